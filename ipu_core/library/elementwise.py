"""Elementwise operations: codelets of one to three operands, and the builder that spreads them over tiles."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ipu_core.chip import cost, tile, tile_random
from ipu_core.chip.target import Target
from ipu_core.graph.codelet import Codelet, Input, Output, Param, Static
from ipu_core.graph.graph import Graph
from ipu_core.graph.mapping import linear_mapping
from ipu_core.graph.program import Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.graph.vertices import FieldSource
from ipu_core.library.folding import broadcast_scalars, join_axes
from ipu_core.placement.layout import LinearLayout, linear_layout
from lowprec import Rounding
from lowprec.values.rounding import NEAREST_EVEN, STOCHASTIC

Array = npt.NDArray[Any]
Operand = Tensor | float


class Rounded(Codelet):
    """A codelet that rounds to nearest, or stochastically with the key."""

    trusted = True
    supervisor = True  # one vertex uses all workers of its tile, as the cycles of `chip.cost` count
    stochastic: ClassVar[Any] = Static(False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # each static value makes a class of its own, and only the stochastic one asks for keys
        cls.uses_key = cls.stochastic

    @property
    def rounding(self) -> Rounding:
        """How it rounds."""
        return STOCHASTIC if self.stochastic else NEAREST_EVEN


class ElementwiseVertex(Rounded):
    """One operation on equally shaped operands; a Python number in `operands` stands for an array full of it.

    The elements of a group are contiguous in the result, in C order from `offset` on, so random bits do not depend on
    the layout.
    """

    out = Output(None, ndim=None)
    x = Input(None, ndim=None, optional=True)
    y = Input(None, ndim=None, optional=True)
    z = Input(None, ndim=None, optional=True)
    op = Param("identity")
    operands: Any = Param(())
    offset = Param(0)
    own_axes = Param(1)

    def prepare(self) -> None:
        """Joins axes and makes the kernel call ready."""
        names = [item for item in self.operands if isinstance(item, str)]
        *inputs, result = join_axes([getattr(self, name) for name in names] + [self.out])
        folded = broadcast_scalars(inputs)
        if not any(view.ndim for view in folded):  # the result's shape must be that of an operand
            folded = inputs
        views = dict(zip(names, folded, strict=True))
        given = tuple(views[item] if isinstance(item, str) else item for item in self.operands)
        formats = tuple(item.dtype if isinstance(item, np.ndarray) else None for item in given)
        if self.draws is None:
            kernel = tile.elementwise(self.op, formats, result.dtype, self.rounding, self.control)
        else:
            kernel = tile_random.elementwise(self.op, formats, result.dtype, self.control, self.draws)
        self._call = kernel, given, self.offset, result

    def compute(self) -> None:
        """Runs the kernel."""
        kernel, given, offset, result = self._call
        kernel(given, self.key, offset, result)

    def cycles(self, target: Target) -> int:
        """Cycles of each vertex."""
        elements = math.prod(self.out.shape[-self.own_axes :])
        size = max(self.out.itemsize, *self._sizes())  # the widest type decides how many elements a 64-bit vector holds
        # PopLibs has an estimator of its own for casts, with another overhead
        if self.op == "identity":
            return int(cost.cast(target, elements, size))
        return int(cost.elementwise(target, self.op, elements, size))

    def _sizes(self) -> list[int]:
        return [getattr(self, item).itemsize for item in self.operands if isinstance(item, str)] or [0]


def begin_of(tensor: Tensor) -> int:
    """The tile where a tensor's variable begins; of one that lies nowhere yet 0."""
    variable = tensor.variable
    return int(variable.mapping.tiles[0]) if variable.pieces and variable.size else 0


def layout_of(graph: Graph, tensor: Tensor) -> LinearLayout:
    """The layout of a tensor's shape, from where its variable begins."""
    return linear_layout(graph.target, tensor.shape, begin_of(tensor))


def map_array(target: Target, tensor: Tensor, first: int = 0) -> Tensor:
    """Maps a whole variable in the layout of its shape, from a tile on, and returns it."""
    if tensor.size:
        lies = linear_layout(target, tensor.shape, first)
        tensor.variable.map_as(linear_mapping(tensor.size, lies.chunk, lies.first, lies.around))
    return tensor


def add_array(
    graph: Graph, fmt: Any, shape: Sequence[int], name: str = "", *, temporary: bool = True, first: int = 0
) -> Tensor:
    """Adds a variable in the layout of its shape, from a tile on."""
    return map_array(graph.target, graph.add_variable(fmt, shape, name, temporary=temporary), first)


def pieces(layout: LinearLayout, tensor: Tensor, shape: Sequence[int]) -> list[FieldSource]:
    """What the vertices of each group of a layout touch of a tensor seen in the result's `shape`, vertex axes first.

    The groups are those of `vertex_tiles`. Where the view has no affine form its element indices are given.
    """
    rows, columns = layout.shape
    view: Tensor | None
    try:
        view = tensor.broadcast_to(shape).reshape(rows, columns)
    except ValueError:
        view = None
    if view is None:
        index = tensor.broadcast_to(shape).indices().reshape(rows, columns)
        return [(tensor.variable, part) for part in _split_indices(layout, index)]
    down, across = view.strides
    if layout.columns < columns:
        count = columns // layout.columns
        cut = (down, across * layout.columns, across)
        return [Tensor(view.variable, view.offset, (rows, count, layout.columns), cut)]
    whole, rest = divmod(rows, layout.rows)
    step = layout.rows * down  # affine, so that a group of vertices is one tensor and no list of indices
    found = [Tensor(view.variable, view.offset, (whole, layout.rows, columns), (step, down, across))] if whole else []
    if rest:
        found.append(Tensor(view.variable, view.offset + whole * step, (1, rest, columns), (step, down, across)))
    return list(found)


def _split_indices(layout: LinearLayout, index: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    rows, columns = layout.shape
    if layout.columns < columns:
        return [index.reshape(rows, columns // layout.columns, layout.columns)]
    whole, rest = divmod(rows, layout.rows)
    found = [index[: whole * layout.rows].reshape(whole, layout.rows, columns)] if whole else []
    return found + ([index[whole * layout.rows :].reshape(1, rest, columns)] if rest else [])


def vertex_tiles(layout: LinearLayout) -> list[tuple[npt.NDArray[np.int64], int]]:
    """For each group of a layout the tiles of its vertices, and where its elements begin in the flat result."""
    rows, columns = layout.shape
    if layout.columns < columns:
        count = columns // layout.columns
        return [(layout.tile(np.arange(rows * count).reshape(rows, count) // layout.per_tile), 0)]
    whole, rest = divmod(rows, layout.rows)
    found = [(layout.tile(np.arange(whole) // layout.per_tile), 0)] if whole else []
    last = layout.tile(np.array([whole // layout.per_tile]))
    return found + ([(last, whole * layout.rows * columns)] if rest else [])


def elementwise(
    graph: Graph,
    op: str,
    operands: Sequence[Operand],
    out: Tensor,
    *,
    stochastic: bool = False,
    operation: int | None = None,
    name: str = "",
) -> list[Execute]:
    """Adds one compute set that computes `op` on the operands into `out`.

    Args:
        graph: where.
        op: an operation of the tile ("add", "exp", ...; "identity" converts).
        operands: tensors of the result's shape or that broadcast to it, and Python numbers.
        out: a whole variable in the layout of its shape (see `add_array`); its format is the result's. It may be an
            operand's variable (in place) if that operand is the same view.
        stochastic: round stochastically where the result is inexact.
        operation: number folded into the key of the random bits.
        name: of the compute set.

    Returns:
        The programs to run, in order; none for an empty result.
    """
    if not out.size:
        return []
    # operands that lie on other tiles are gathered by the engine: the vertices stand where the result lies
    compute_set = graph.add_compute_set(name or op)
    layout = layout_of(graph, out)
    tensors = [item for item in operands if isinstance(item, Tensor)]
    # the n-th tensor among the operands is the n-th field; numbers stand in `pattern` alone
    fields = dict(zip("xyz", (pieces(layout, tensor, out.shape) for tensor in tensors), strict=False))
    names = iter("xyz")
    pattern = tuple(next(names) if isinstance(item, Tensor) else float(item) for item in operands)
    results = pieces(layout, out, out.shape)
    for number, (tiles, offset) in enumerate(vertex_tiles(layout)):
        sources: dict[str, FieldSource] = {key: parts[number] for key, parts in fields.items()}
        sources["out"] = results[number]
        # a cut row has the vertex axes (rows, pieces); of whole rows a vertex has the two axes (rows, columns) itself
        own = 1 if layout.columns < layout.shape[1] else 2
        params = {"op": op, "operands": pattern, "offset": offset, "own_axes": own, "stochastic": stochastic}
        graph.add_vertices(compute_set, ElementwiseVertex, tiles, sources, params, operation)
    return [Execute(compute_set)]
