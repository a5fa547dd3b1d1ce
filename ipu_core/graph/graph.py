"""Graph: variables spread over tiles, compute sets, and the vertices that connect them (Poplar's Graph)."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.graph.codelet import Codelet
from ipu_core.graph.mapping import linear_boundaries
from ipu_core.graph.printer import graph_text
from ipu_core.graph.regions import runs_of
from ipu_core.graph.tensor import Tensor, Variable, element_type, whole
from ipu_core.graph.vertices import ComputeSet, FieldSource, Vertex, VertexGroup, make_group
from lowprec import FloatFormat, astype
from lowprec.arrays import whole_array
from lowprec.checks import LARGEST, expect, integer, integers, listed, shown, sizes, truth

# Vertices added without an operation number draw their random bits from numbers no traced program reaches.
_FIRST_OPERATION: Final = 1 << 31


class Graph:
    """The tiled graph of one chip.

    Args:
        target: the chip, or its name.

    Attributes:
        variables, compute_sets: all there are, in order.
        operations: numbers for vertices that are given none.
        joined: by compute set that was made of several, what these were called.
    """

    def __init__(self, target: Target | str = "gc200") -> None:
        self.target = Target(target) if isinstance(target, str) else target
        expect(Target, target=self.target)
        self.variables: list[Variable] = []
        self.compute_sets: list[ComputeSet] = []
        self.operations: Iterator[int] = itertools.count(_FIRST_OPERATION)
        self.joined: dict[ComputeSet, tuple[str, ...]] = {}

    def add_variable(self, fmt: Any, shape: Sequence[int], name: str = "", *, temporary: bool = False) -> Tensor:
        """Adds a variable and returns it as a tensor. It starts at zero and lies on no tile yet.

        Args:
            fmt: element format: a FloatFormat, its name or dtype, or "int32", "uint32", "bool".
            shape: shape; () is one element.
            name: for messages and profiles; unnamed variables are numbered.
            temporary: its memory may be shared with other temporaries outside its lifetime; the host cannot read it.

        Raises:
            ValueError: unknown format, one without a storage dtype, or a negative length.
        """
        return whole(self._new(fmt, shape, name, temporary=temporary))

    def add_constant(self, fmt: Any, values: ArrayLike, name: str = "") -> Tensor:
        """Adds a variable that no program may write, with the given values (floats are rounded to nearest).

        Raises:
            TypeError: no numbers.
            ValueError: unknown format; values that an integer type does not hold.
        """
        form, dtype = element_type(fmt)
        given = whole_array(values)
        if given.dtype.kind in "OSUMmc" or given.dtype.names is not None:
            raise TypeError(f"a constant holds numbers, not {shown(values)}")
        if isinstance(form, FloatFormat):
            # Integers are rounded to the format as they are: float64 would round those beyond 2^53 a first time.
            source = given if given.dtype.kind in "iu" or given.dtype == dtype else given.astype(np.float64)
            stored = np.asarray(astype(source, form))
        else:
            with np.errstate(invalid="ignore"):  # NaN, which is refused
                stored = given.astype(dtype)
            if not np.array_equal(stored, given):
                raise ValueError(f"a constant of {fmt} holds integers of {dtype}, not {shown(values)}")
        variable = self._new(fmt, given.shape, name)
        variable.initial = np.ascontiguousarray(stored).reshape(-1)
        variable.constant = True
        return whole(variable)

    def set_tile_mapping(self, item: Tensor | Vertex, tile: int) -> None:
        """Puts all elements of a tensor, or one vertex, on a tile.

        Raises:
            TypeError: neither a Tensor nor a Vertex; a tile that is no number.
            ValueError: no such tile; a tensor of another graph.
        """
        self._check_tile(tile)
        if isinstance(item, Vertex):
            item.tile = tile
            return
        self._check_own(item)
        starts, lengths = runs_of(item.shape, item.strides)
        starts = starts + item.offset
        item.variable.add_piece(starts, starts + lengths, np.full(starts.size, tile, np.int64))

    def map_intervals(self, tensor: Tensor, starts: ArrayLike, tiles: ArrayLike) -> None:
        """Maps the elements of a contiguous tensor: [starts[i], starts[i+1]) go to tiles[i], the last up to the end.

        `starts` counts within the tensor and begins at 0.
        """
        self._check_own(tensor)
        at, where = integers("starts", starts), integers("tiles", tiles)
        if at.shape != where.shape or at.ndim != 1 or (at.size and at[0] != 0) or (np.diff(at) < 0).any():
            raise ValueError("map_intervals needs starts that begin at 0 and ascend, and one tile for each")
        if where.size:
            self._check_tile(int(where.min()))
            self._check_tile(int(where.max()))
        base = _contiguous_offset(tensor)
        tensor.variable.add_piece(base + at, base + np.append(at[1:], tensor.size), where)

    def map_linearly(self, tensor: Tensor, tiles: int | ArrayLike | None = None, grain: int = 1) -> Ints:
        """Spreads a contiguous tensor over tiles in runs of whole grains that differ by at most one grain.

        Args:
            tensor: a contiguous view.
            tiles: number of tiles (0, 1, ..), or their list; default all of the target.
            grain: elements that stay together.

        Returns:
            The borders within the tensor, as `linear_boundaries` gives them: chunk i lies on the i-th tile.
        """
        self._check_own(tensor)
        if tiles is None or isinstance(tiles, int | np.integer):
            count = self.target.tiles if tiles is None else integer("tiles", tiles, 1)
            where = np.arange(min(count, self.target.tiles + 1))  # one too many is refused by its number
        else:
            where = np.atleast_1d(integers("tiles", tiles))
        if where.ndim != 1 or not where.size:
            raise ValueError(f"tiles must be a number of them or a list with one at least, not {shown(tiles)}")
        borders = linear_boundaries(tensor.size, where.size, integer("grain", grain, 1, LARGEST))
        self.map_intervals(tensor, borders[:-1], where[: borders.size - 1])
        return borders

    def map_blocks(self, tensor: Tensor, borders: Sequence[ArrayLike], tiles: ArrayLike) -> None:
        """Maps a grid of blocks: block (i, j) spans borders[0][i]:borders[0][i+1] etc. and lies on tiles[i, j].

        Args:
            tensor: any view.
            borders: one ascending array per axis, from 0 to the axis's length.
            tiles: integer array of the grid's shape.
        """
        self._check_own(tensor)
        cuts = [np.atleast_1d(integers("a border", border)) for border in listed("borders", borders)]
        where = integers("tiles", tiles)
        if where.shape != tuple(cut.size - 1 for cut in cuts) or len(cuts) != tensor.ndim:
            raise ValueError(
                f"tiles of shape {where.shape} do not match borders of {[cut.size for cut in cuts]} entries"
            )
        if any(
            c.ndim != 1 or c[0] != 0 or c[-1] != n or (np.diff(c) < 0).any()
            for c, n in zip(cuts, tensor.shape, strict=True)
        ):
            raise ValueError(f"the borders do not span the tensor's shape {tensor.shape}")
        if where.size == 0 or tensor.size == 0:
            return
        self._check_tile(int(where.min()))
        self._check_tile(int(where.max()))
        # Blocks of equal sizes at a time: at most a few views, where one by one there would be a Python step for each
        # tile.
        for index, view, block_tiles in _equal_blocks(tensor, cuts, where):
            starts, lengths = runs_of(view.shape[index:], view.strides[index:])
            offsets = _offsets(view, index)
            begin = (offsets[:, None] + starts).ravel()
            ends = (offsets[:, None] + (starts + lengths)).ravel()
            tensor.variable.add_piece(begin, ends, np.repeat(block_tiles.ravel(), starts.size))

    def add_compute_set(self, name: str = "") -> ComputeSet:
        """Adds an empty compute set."""
        expect(str, name=name)
        compute_set = ComputeSet(len(self.compute_sets), name or f"compute_set_{len(self.compute_sets)}")
        self.compute_sets.append(compute_set)
        return compute_set

    def join(self, compute_sets: Sequence[ComputeSet], name: str = "") -> ComputeSet:
        """Makes one compute set of several, the first with the vertices of all, which are no more in the graph."""
        given = listed("compute_sets", compute_sets)
        expect(str, name=name)
        if not given:
            raise ValueError("join needs a compute set at least")
        for each in given:
            expect(ComputeSet, compute_set=each)
        first: ComputeSet = given[0]
        others: list[ComputeSet] = given[1:]
        # A set that was itself made of several counts as these.
        self.joined[first] = tuple(called for each in given for called in self.joined.pop(each, (each.name,)))
        for other in others:
            first.groups += other.groups
            first.singles += other.singles
        self.compute_sets = [each for each in self.compute_sets if each not in others]
        first.name = name or first.name
        return first

    def add_vertex(
        self,
        compute_set: ComputeSet,
        codelet: type[Codelet],
        tile: int | None = None,
        fields: Mapping[str, Tensor] | None = None,
        params: Mapping[str, Any] | None = None,
        operation: int | None = None,
    ) -> Vertex:
        """Adds one vertex; fields and tile may be given here or later by `connect` and `set_tile_mapping`.

        For more than some hundred vertices use `add_vertices`.
        """
        if not (isinstance(codelet, type) and issubclass(codelet, Codelet)):
            raise TypeError(f"codelet must be a subclass of Codelet, not {codelet!r}")
        self._check_compute_set(compute_set)
        if tile is not None:
            self._check_tile(tile)
        for what, named in (("fields", fields), ("params", params)):
            if named is not None and not isinstance(named, Mapping):
                raise TypeError(f"{what} must be a dict by name, not {shown(named)}")
        for name, tensor in (fields or {}).items():
            self._check_own(tensor, f"field {name!r}")
        number = next(self.operations) if operation is None else operation
        vertex = Vertex(codelet, tile, dict(fields or {}), dict(params or {}), number, number)
        if compute_set.singles and operation is None and compute_set.singles[-1].codelet is codelet:
            vertex.operation = compute_set.singles[-1].operation  # one group, one number
        compute_set.singles.append(vertex)
        return vertex

    def add_vertices(
        self,
        compute_set: ComputeSet,
        codelet: type[Codelet],
        tiles: ArrayLike,
        fields: Mapping[str, FieldSource],
        params: Mapping[str, Any] | None = None,
        operation: int | None = None,
    ) -> VertexGroup:
        """Adds a whole array of vertices, which run as one call.

        Args:
            compute_set: where.
            codelet: class of the vertices.
            tiles: integer array of 1..3 axes, the *vertex axes*: the tile of each vertex.
            fields: for each field a Tensor whose leading axes are the vertex axes (any strides, 0 for shared
                operands), or (variable, integer array of flat element indices) where they form no affine view.
            params: for each parameter a value (of several numbers a tuple), or an array whose leading axes are the
                vertex axes; values of statics.
            operation: number folded into the key of codelets that round stochastically (default: a fresh one).

        Raises:
            TypeError, ValueError: see `make_group`.
        """
        self._check_compute_set(compute_set)
        number = next(self.operations) if operation is None else operation
        group = make_group(compute_set, codelet, tiles, fields, params or {}, number, self.target.tiles)
        if group.tiles.size:
            compute_set.groups.append(group)
        return group

    def connect(self, vertex: Vertex, field: str, tensor: Tensor) -> None:
        """Connects a field of a single vertex to tensor elements."""
        expect(Vertex, vertex=vertex)
        expect(str, field=field)
        self._check_own(tensor)
        vertex.fields[field] = tensor

    def set_initial_value(self, vertex: Vertex, param: str, value: Any) -> None:
        """Sets a parameter in a single vertex's state."""
        expect(Vertex, vertex=vertex)
        expect(str, param=param)
        vertex.params[param] = value

    def __contains__(self, tensor: Tensor) -> bool:
        number = tensor.variable.number
        return number < len(self.variables) and self.variables[number] is tensor.variable

    def __str__(self) -> str:
        return graph_text(self.variables, self.compute_sets)

    def _new(self, fmt: Any, shape: Sequence[int], name: str, temporary: bool = False) -> Variable:
        form, dtype = element_type(fmt)
        expect(str, name=name)
        temporary = truth("temporary", temporary)
        number = len(self.variables)
        lengths = sizes("a variable's shape", shape)
        variable = Variable(number, name or f"variable_{number}", form, dtype, lengths, temporary)
        self.variables.append(variable)
        return variable

    def _check_tile(self, tile: int) -> None:
        if not isinstance(tile, (int, np.integer)) or isinstance(tile, bool):
            raise TypeError(f"a tile is given by its number, an integer, not {tile!r}")
        if not 0 <= tile < self.target.tiles:
            raise ValueError(f"tile {tile} is outside 0..{self.target.tiles - 1} of {self.target.name}")

    def _check_compute_set(self, compute_set: Any) -> None:
        """Refuses what is no compute set of this graph."""
        expect(ComputeSet, compute_set=compute_set)
        # Vertices are mostly added to the newest: from the front this would be quadratic in the number of sets.
        if not any(each is compute_set for each in reversed(self.compute_sets)):
            raise ValueError(f"compute set {compute_set.name!r} is of another graph, or was joined to another one")

    def _check_own(self, tensor: Any, what: str = "tensor") -> None:
        """Refuses what is no tensor of this graph."""
        expect(Tensor, **{what: tensor})
        if tensor not in self:
            raise ValueError(f"{what}: {tensor.variable} is of another graph")


def _contiguous_offset(tensor: Tensor) -> int:
    starts, lengths = runs_of(tensor.shape, tensor.strides)
    flat = tensor.size == 0 or (starts.size == 1 and starts[0] == 0 and lengths[0] == tensor.size)
    if not flat or tensor.strides != tuple(sorted(tensor.strides, reverse=True)):
        raise ValueError(f"{tensor} is not contiguous: map a contiguous view, or use map_blocks")
    return tensor.offset


def _equal_blocks(tensor: Tensor, cuts: Sequence[Ints], tiles: Ints) -> Iterator[tuple[int, Tensor, NDArray[Any]]]:
    """Runs of equally long blocks on every axis, as one view (grid axes first) each."""
    per_axis = [_equal_runs(cut) for cut in cuts]
    for choice in itertools.product(*per_axis):
        lengths = [length for _, _, length in choice]
        if math.prod(lengths) == 0:
            continue
        grid = tuple(last - first for first, last, _ in choice)
        start = sum(int(cut[f]) * s for cut, (f, _, _), s in zip(cuts, choice, tensor.strides, strict=True))
        steps = tuple(s * n for s, n in zip(tensor.strides, lengths, strict=True))
        view = Tensor(tensor.variable, tensor.offset + start, grid + tuple(lengths), steps + tensor.strides)
        yield len(grid), view, tiles[tuple(slice(first, last) for first, last, _ in choice)]


def _equal_runs(cut: Ints) -> list[tuple[int, int, int]]:
    """(first, last, length) of maximal runs of equally long chunks."""
    lengths = np.diff(cut)
    changes = np.flatnonzero(np.diff(lengths)) + 1
    bounds = [0, *changes.tolist(), lengths.size]
    return [(a, b, int(lengths[a])) for a, b in itertools.pairwise(bounds)]


def _offsets(view: Tensor, axes: int) -> Ints:
    return Tensor(view.variable, view.offset, view.shape[:axes], view.strides[:axes]).indices().ravel()
