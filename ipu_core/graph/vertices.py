"""Vertex groups: one codelet, an array of tiles and one operand view per field, checked, to be run as one call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ipu_core.chip.arrays import digest
from ipu_core.chip.integers import Ints
from ipu_core.errors import UnmappedTensor
from ipu_core.graph.codelet import Codelet, Field, declared_fields, declared_params, declared_statics, variant
from ipu_core.graph.tensor import Tensor, Variable
from lowprec.checks import integers, shown

FieldSource = Tensor | tuple[Tensor | Variable, ArrayLike]


@dataclass(frozen=True, eq=False)
class Operand:
    """What a field of all vertices of a group is connected to.

    Attributes:
        field: the declaration.
        variable: the variable all vertices' elements lie in.
        tensor: the affine view, vertex axes first; None where the elements form none.
        indices: flat element indices, vertex axes first, where `tensor` is None.
        vertex_axes: how many leading axes count vertices.
    """

    field: Field
    variable: Variable
    tensor: Tensor | None
    indices: Ints | None
    vertex_axes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Vertex axes, then the field's own."""
        if self.tensor is not None:
            return self.tensor.shape
        return self.indices.shape if self.indices is not None else ()


@dataclass(frozen=True, eq=False)
class VertexGroup:
    """Vertices of one codelet with operands of one shape; axes of `tiles` are the vertex axes.

    Attributes:
        codelet: the variant of it that they run (see `ipu_core.graph.codelet.variant`).
        operation: number folded into the step's key for codelets that use one.
        within: number folded into the key before that, of the function they are a part of; None: none.
    """

    codelet: type[Codelet]
    tiles: Ints
    operands: Mapping[str, Operand]
    params: Mapping[str, Any]
    operation: int
    within: int | None = None

    @property
    def vertices(self) -> int:
        """How many vertices."""
        return self.tiles.size

    @cached_property
    def where(self) -> tuple[tuple[int, ...], bytes]:
        """The shape of `tiles` and a digest: the same for groups whose vertices lie on the same tiles."""
        return self.tiles.shape, digest(self.tiles)


@dataclass(eq=False)
class Vertex:
    """One vertex added by hand; the graph groups those of one key when an engine is built.

    Attributes:
        operation: number folded into the key, shared by neighbours of one codelet, which may make a group.
        number: the same for a group that does not have the first of these in it; it would draw that one's bits.
    """

    codelet: type[Codelet]
    tile: int | None
    fields: dict[str, Tensor]
    params: dict[str, Any]
    operation: int
    number: int


@dataclass(eq=False)
class ComputeSet:
    """Vertices that run in parallel between two syncs."""

    number: int
    name: str
    groups: list[VertexGroup] = field(default_factory=list)
    singles: list[Vertex] = field(default_factory=list)

    def all_groups(self, tiles: int) -> list[VertexGroup]:
        """All vertices as groups: those added in bulk, then the single ones, those of one key together."""
        by_key: dict[Any, list[Vertex]] = {}
        for vertex in self.singles:
            if vertex.tile is None:
                raise UnmappedTensor(f"a {vertex.codelet.__name__} vertex of compute set {self.name!r} has no tile")
            by_key.setdefault(_group_key(self, vertex), []).append(vertex)
        # Neighbours of one codelet have one number, as if they were one group; where their shapes make two of them, the
        # second would draw the bits of the first.
        drawn: set[int] = set()
        groups = []
        for same in by_key.values():
            first = same[0]
            number = first.number if first.operation in drawn else first.operation
            groups.append(_group_singles(self, same, number, tiles))
            drawn.add(first.operation)
        return self.groups + groups


def make_group(
    compute_set: ComputeSet,
    codelet: type[Codelet],
    tiles: ArrayLike,
    fields: Mapping[str, FieldSource],
    params: Mapping[str, Any],
    operation: int,
    tile_count: int,
) -> VertexGroup:
    """Checks a bulk description of vertices against the codelet's declaration.

    Raises:
        TypeError: not a codelet class, or tiles that are no integers.
        ValueError: fields or parameters that are missing, unknown, of the wrong format or shape; a tile out of range.
    """
    if not (isinstance(codelet, type) and issubclass(codelet, Codelet)):
        raise TypeError(f"codelet must be a subclass of Codelet, not {codelet!r}")
    where = f"{codelet.__name__} in compute set {compute_set.name!r}"
    axes = integers(f"{where}: tiles", tiles)
    if axes.size and (int(axes.min()) < 0 or int(axes.max()) >= tile_count):
        raise ValueError(f"{where}: tiles {axes.min()}..{axes.max()} are outside 0..{tile_count - 1}")
    for what, given in (("fields", fields), ("params", params)):
        if not isinstance(given, Mapping):
            raise TypeError(f"{where}: {what} must be a dict by name, not {shown(given)}")
    declared = declared_fields(codelet)
    _same_fields(where, codelet, fields)
    parameters, statics = declared_params(codelet), declared_statics(codelet)
    required = {name for name, param in parameters.items() if param.default is None}
    _same_names(where, "parameter", set(params), {*parameters, *statics}, required)
    values = {name: params.get(name, param.default) for name, param in parameters.items()}
    if not codelet.trusted:
        values = {name: _value(where, name, value, axes.shape) for name, value in values.items()}
    operands = {
        name: _operand(where, name, declared[name], fields[name], axes.shape) for name in declared if name in fields
    }
    program = variant(codelet, fields, {name: params[name] for name in statics if name in params})
    return VertexGroup(program, axes, operands, values, operation)


def _value(where: str, name: str, value: Any, axes: tuple[int, ...]) -> Any:
    """A parameter: an array's leading axes are the vertex axes; a list is an array."""
    found = np.asarray(value) if isinstance(value, list) else value
    if isinstance(found, np.ndarray) and found.shape[: len(axes)] != axes:
        raise ValueError(
            f"{where}: parameter {name!r} has shape {found.shape}, which does not begin with the vertex axes {axes}; "
            "several numbers that are one value for all vertices are a tuple"
        )
    return found


def _same_fields(where: str, codelet: type[Codelet], given: Mapping[str, Any]) -> None:
    declared = declared_fields(codelet)
    required = {name for name, field in declared.items() if not field.optional}
    _same_names(where, "field", set(given), set(declared), required)


def _same_names(where: str, kind: str, given: set[str], allowed: set[str], required: set[str]) -> None:
    if unknown := sorted(given - allowed):
        raise ValueError(f"{where} has no {kind} {unknown[0]!r}; it has {', '.join(sorted(allowed)) or 'none'}")
    if missing := sorted(required - given):
        raise ValueError(f"{where}: {kind} {missing[0]!r} is not given")


def _operand(where: str, name: str, declared: Field, source: FieldSource, axes: tuple[int, ...]) -> Operand:
    tensor, indices, variable = _resolve(where, name, source)
    shape = tensor.shape if tensor is not None else indices.shape  # type: ignore[union-attr]
    if shape[: len(axes)] != axes:
        raise ValueError(f"{where}, field {name!r}: shape {shape} does not begin with the vertex axes {axes}")
    if declared.ndim is not None and len(shape) - len(axes) != declared.ndim:
        raise ValueError(
            f"{where}, field {name!r}: one vertex's part must have {declared.ndim} axes, not shape {shape[len(axes) :]}"
        )
    have = variable.format if isinstance(variable.format, str) else variable.format.name
    if declared.format is not None and declared.format != have:
        raise ValueError(f"{where}, field {name!r} is {declared.format}, but {variable} is {have}")
    if declared.writes and variable.constant:
        raise ValueError(f"{where}, field {name!r} would write the constant {variable}")
    return Operand(declared, variable, tensor, indices, len(axes))


def _resolve(where: str, name: str, source: FieldSource) -> tuple[Tensor | None, Ints | None, Variable]:
    if isinstance(source, Tensor):
        return source, None, source.variable
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], Tensor | Variable):
        variable = source[0] if isinstance(source[0], Variable) else source[0].variable
        indices = integers(f"{where}, field {name!r}: element indices", source[1])
        if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= variable.size):
            raise ValueError(f"{where}, field {name!r}: element indices are outside {variable}")
        return None, indices, variable
    raise TypeError(
        f"{where}, field {name!r} must be a Tensor or (variable, element indices), not {type(source).__name__}"
    )


def _group_key(compute_set: ComputeSet, vertex: Vertex) -> Any:
    _same_fields(f"{vertex.codelet.__name__} in compute set {compute_set.name!r}", vertex.codelet, vertex.fields)
    statics = declared_statics(vertex.codelet)
    geometry = tuple((n, t.variable.number, t.shape, t.strides) for n, t in sorted(vertex.fields.items()))
    shapes = tuple((n, np.shape(v)) for n, v in sorted(vertex.params.items()) if n not in statics)
    values = tuple(vertex.params.get(name, static.default) for name, static in statics.items())
    return vertex.codelet, geometry, shapes, values, vertex.operation


def _group_singles(compute_set: ComputeSet, same: Sequence[Vertex], operation: int, tile_count: int) -> VertexGroup:
    first = same[0]
    fields = {name: _stack([vertex.fields[name] for vertex in same]) for name in first.fields}
    statics = declared_statics(first.codelet)
    params = {
        name: value if name in statics else np.stack([np.asarray(vertex.params[name]) for vertex in same])
        for name, value in first.params.items()
    }
    tiles = [vertex.tile for vertex in same]
    return make_group(compute_set, first.codelet, tiles, fields, params, operation, tile_count)  # type: ignore[arg-type]


def _stack(tensors: Sequence[Tensor]) -> FieldSource:
    """Views of one geometry as one operand: affine where the offsets are evenly spaced."""
    first = tensors[0]
    offsets = np.array([tensor.offset for tensor in tensors], np.int64)
    steps = np.diff(offsets)
    if not steps.size or (steps == steps[0]).all():
        step = int(steps[0]) if steps.size else 0
        return Tensor(first.variable, first.offset, (len(tensors), *first.shape), (step, *first.strides))
    inner: NDArray[np.int64] = first.indices() - first.offset
    return first.variable, offsets.reshape((-1,) + (1,) * inner.ndim) + inner
