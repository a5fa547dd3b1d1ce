"""A product of matrices, or a sum of terms, as the planner sees it, and the exact account of one Placement of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core import cost
from ipu_core.plan.account import Account, Traffic
from ipu_core.plan.geometry import Geometry, Step
from ipu_core.plan.layout import Range, linear_layout, owned
from ipu_core.plan.placement import COLUMN_GRAIN, Segment
from ipu_core.target import Target
from lowprec import Accumulation, as_format
from lowprec.spec.formats import FormatLike

__all__ = ["Operand", "Product", "account", "chain_cycles", "item_bytes", "operand", "result_stays", "stage_cycles"]

Ints = npt.NDArray[np.int64]
Ranges = Mapping[str, Range]
Only = tuple[str, Segment] | None


class Operand(NamedTuple):
    """Where an operand lies: its axes as they are stored, outermost first, and elements per tile in that order.

    The axes are named b (batch), m, k, n; "bkm" is an a whose matrices are stored transposed, "mkn" the terms of a sum.
    """

    axes: str
    chunk: int


@dataclass(frozen=True)
class Product:
    """The sizes, formats and operand layouts of (batch, m, k) x (batch, k, n), or of the sum over k of (m, k, n).

    Attributes:
        batch, m, k, n: sizes.
        operands: name of the operands' format.
        a, b, out: layouts; the plan's cycles hold for operands that lie so. b is None for a sum.
    """

    batch: int
    m: int
    k: int
    n: int
    operands: str
    a: Operand
    b: Operand | None
    out: Operand

    @property
    def grain(self) -> int:
        """Columns are cut in multiples of this."""
        return COLUMN_GRAIN if self.b else cost.width(2)

    @property
    def loaded(self) -> tuple[tuple[str, Operand], ...]:
        """The operands by name; a sum's terms are called x and never held."""
        return (("a", self.a), ("b", self.b)) if self.b else (("x", self.a),)

    @property
    def sizes(self) -> dict[str, int]:
        """Size by axis name."""
        return {"b": self.batch, "m": self.m, "k": self.k, "n": self.n}


def operand(target: Target, axes: str, sizes: Mapping[str, int]) -> Operand:
    """The operand in the layout every array of its shape gets."""
    return Operand(axes, linear_layout(target, [sizes[axis] for axis in axes]).chunk)


def item_bytes(fmt: FormatLike) -> int:
    """Bytes of an element of a format.

    Raises:
        ValueError: unknown format, or one without a storage dtype.
    """
    known = as_format(fmt)
    if known.dtype is None:
        raise ValueError(f"format {known.name} has no storage dtype: no tile can hold it")
    return int(np.dtype(known.dtype).itemsize)


def result_stays(grid: Geometry, accumulation: Accumulation) -> bool:
    """Whether the chains write the result themselves: one part, and nothing to convert."""
    return grid.parts.size == 1 and accumulation.accumulate == accumulation.out


def account(target: Target, product: Product, accumulation: Accumulation, grid: Geometry) -> Account:
    """Cycles and bytes of every superstep of a product placed so, exactly as an engine counts them."""
    result = Account(target)
    name = "matmul" if product.b else "reduce"
    reads: dict[Any, Traffic] = {}
    stays = result_stays(grid, accumulation)
    for step in grid.steps():
        boxes = _boxes(target, grid, step)
        whole = _boxes(target, grid, step, whole=True) if step.last else boxes
        gather = Traffic.none(target.tiles)
        for side, layout in product.loaded:
            if grid.hold != side:
                known = side, *_needs(grid, step, layout)
                reads[known] = reads[known] if known in reads else _read(target, product, grid, step, layout, boxes)
                gather += reads[known]
            elif step.load_a if side == "a" else step.load_b:
                _hold(result, product, grid, step, layout)
        scatter = Traffic.none(target.tiles)
        if stays and step.last:
            scatter = _write(target, product, grid, step, whole, accumulation)
        result.superstep(name, _chains(target, product, grid, step, boxes, accumulation), gather, scatter)
        if step.last and not stays:
            _stages(result, product, accumulation, grid, step, whole)
    return result


def _hold(result: Account, product: Product, grid: Geometry, step: Step, layout: Operand) -> None:
    """The copies that bring the held operand's pieces to their tiles: one for whole blocks, one for a short last."""
    axis, segments = (
        ("m", grid.rows.segments(step.rows)) if "m" in layout.axes else ("n", grid.columns.segments(step.columns))
    )
    for segment in segments:
        boxes = _boxes(result.target, grid, step, (axis, segment), whole=True)
        traffic = _read(result.target, product, grid, step, layout, boxes, (axis, segment))
        volume = _volume(layout.axes, boxes)[: result.target.tiles]
        result.copy(traffic, volume * item_bytes(product.operands) - traffic.received)


def _boxes(target: Target, grid: Geometry, step: Step, only: Only = None, *, whole: bool = False) -> dict[str, Range]:
    """Per tile, the numbers of every axis its block covers in a serial step ("p": parts); empty on unused tiles.

    Restricted to the blocks of one segment of one axis if `only` names it. With `whole` all parts and k's of a tile,
    not only those of the step.
    """
    place = [axis.ravel() for axis in np.indices(grid.grid)]
    tiles = grid.tile(*place)
    result = {}
    for name, blocks, at, piece in (
        ("b", grid.batch, place[0], 0),
        ("p", grid.parts, place[1], None if whole else step.part),
        ("m", grid.rows, place[2], step.rows),
        ("n", grid.columns, place[3], step.columns),
    ):
        lo, hi = at * blocks.block, np.minimum((at + 1) * blocks.block, blocks.size)
        if piece is not None:
            lo = np.minimum(lo + piece * blocks.piece, hi)
            hi = np.minimum(lo + blocks.piece, hi)
        if only is not None and name == only[0]:
            hi = np.where((at >= only[1].first) & (at < only[1].first + only[1].runs), hi, lo)
        result[name] = Range(_by_tile(target, tiles, lo), _by_tile(target, tiles, np.maximum(lo, hi)))
    spans = np.array(grid.spans)
    lo, hi = result["p"].lo, result["p"].hi
    first, last = (spans[np.clip(part, 0, len(spans) - 1)] for part in (lo, hi - 1))
    start, end = first[:, 0], last[:, 1]
    if not whole and grid.depths > 1:
        start = np.minimum(start + step.depth * grid.depth, end)
        end = np.minimum(start + grid.depth, end)
    result["k"] = Range(np.where(hi > lo, start, 0), np.where(hi > lo, end, 0))
    works = _volume("bpmn", result) > 0  # a tile without rows or columns in this step needs no operand either
    if not whole and step.depth:
        works &= _volume("k", result) > 0  # nor does one whose part is short and done
    return {axis: Range(r.lo, np.where(works, r.hi, r.lo)) for axis, r in result.items()}


def _by_tile(target: Target, tiles: Ints, values: Ints) -> Ints:
    padded = np.zeros(target.tiles + target.tiles % target.tiles_per_supertile, np.int64)
    padded[tiles] = values
    return padded


def _volume(axes: str, boxes: Ranges) -> Ints:
    result = np.ones(1, np.int64)
    for axis in axes:
        result = result * np.maximum(boxes[axis].hi - boxes[axis].lo, 0)
    return result


def _read(
    target: Target, product: Product, grid: Geometry, step: Step, layout: Operand, boxes: Ranges, only: Only = None
) -> Traffic:
    """Traffic of bringing an operand's boxes to their tiles, of all vertices or of one segment's."""
    sizes = [product.sizes[axis] for axis in layout.axes]
    tiles = boxes["b"].lo.size
    volume, mine = _volume(layout.axes, boxes), _owned(layout, tiles, sizes, boxes)
    paired = target.tiles_per_supertile == 2
    pair = np.arange(tiles) ^ int(paired)
    both = {axis: Range(np.maximum(r.lo, r.lo[pair]), np.minimum(r.hi, r.hi[pair])) for axis, r in boxes.items()}
    both = {axis: Range(r.lo, np.maximum(r.lo, r.hi)) for axis, r in both.items()}
    shared = (
        _volume(layout.axes, both)
        - _owned(layout, tiles, sizes, both)
        - _owned(layout, tiles, sizes, both, neighbours=True)
    )
    needed = _needed(product, grid, step, only)
    missing = [axis for axis in "mn" if axis not in layout.axes]
    readers = max([np.unique(boxes[axis].lo[_volume("bpmn", boxes) > 0]).size for axis in missing], default=1)
    sent = _owned(layout, tiles, sizes, needed) - (mine if readers == 1 else 0)
    return _traffic(target, item_bytes(product.operands), volume - mine, sent, shared if paired else 0 * shared)


def _write(
    target: Target, product: Product, grid: Geometry, step: Step, boxes: Ranges, accumulation: Accumulation
) -> Traffic:
    """Traffic of taking the results in the boxes to the tiles where the result lies."""
    layout = product.out
    sizes = [product.sizes[axis] for axis in layout.axes]
    tiles = boxes["b"].lo.size
    volume, mine = _volume(layout.axes, boxes), _owned(layout, tiles, sizes, boxes)
    received = _owned(layout, tiles, sizes, _needed(product, grid, step)) - mine
    return _traffic(target, item_bytes(accumulation.out), received, volume - mine, 0 * mine)


def _needs(grid: Geometry, step: Step, layout: Operand) -> tuple[int, ...]:
    """What an operand's traffic depends on in a serial step: its own piece, and the other axis's blocks at work."""
    pieces = (("m", grid.rows, step.rows), ("n", grid.columns, step.columns))
    return (
        step.part,
        step.depth,
        *(
            piece if axis in layout.axes else sum(segment.runs for segment in blocks.segments(piece))
            for axis, blocks, piece in pieces
        ),
    )


def _needed(product: Product, grid: Geometry, step: Step, only: Only = None) -> dict[str, Range]:
    """The numbers of every axis that a serial step (or the segment `only`) covers on all tiles together."""
    whole = {axis: Range(0, size) for axis, size in product.sizes.items()}
    for axis, blocks, piece in (("m", grid.rows, step.rows), ("n", grid.columns, step.columns)):
        start = piece * blocks.piece
        whole[axis] = Range(start, min(start + blocks.piece, blocks.block), blocks.block)
    if only is not None:
        whole[only[0]] = _run(only[1])
    elif grid.parts.steps * grid.depths > 1:
        period = grid.parts.block * grid.chunk
        start = step.part * grid.parts.piece * grid.chunk + step.depth * grid.depth
        length = grid.span(grid.chunk, step.depth) if grid.depths > 1 else grid.parts.piece * grid.chunk
        whole["k"] = Range(start, min(start + length, period), period)
    return whole


def _run(segment: Segment) -> Range:
    """The numbers of a segment: periodic and cut off after its last run."""
    if segment.runs == 1:
        return Range(segment.start, segment.start + segment.length)
    skip = segment.start % segment.step
    return Range(skip, skip + segment.length, segment.step, segment.start - skip + segment.runs * segment.step)


def _owned(layout: Operand, tiles: int, sizes: list[int], box: Ranges, *, neighbours: bool = False) -> Ints:
    return owned(layout.chunk, tiles, sizes, [box[axis] for axis in layout.axes], neighbours=neighbours)


def _traffic(target: Target, size: int, received: Ints, sent: Ints, shared: Ints) -> Traffic:
    return Traffic(*(each[: target.tiles] * size for each in (received, sent, shared)))


def _chains(
    target: Target, product: Product, grid: Geometry, step: Step, boxes: Ranges, accumulation: Accumulation
) -> Ints:
    """Cycles per tile of the chains of a step: a vertex for each product and part on the tile."""
    rows, columns = (np.maximum(boxes[axis].hi - boxes[axis].lo, 0) for axis in "mn")
    vertices = boxes["b"].hi - boxes["b"].lo
    last = len(grid.spans) - 1
    has_last = (boxes["p"].hi > last).astype(np.int64)
    full = boxes["p"].hi - boxes["p"].lo - has_last
    lengths = (grid.span(grid.spans[part][1] - grid.spans[part][0], step.depth) for part in (0, last))
    goes_on = step.depth > 0
    cycles = [chain_cycles(target, product, accumulation, rows, length, columns, goes_on) for length in lengths]
    return np.where(rows * columns > 0, vertices * (full * cycles[0] + has_last * cycles[1]), 0)


def chain_cycles(
    target: Target, product: Product, accumulation: Accumulation, m: Any, k: Any, n: Any, goes_on: bool = False
) -> Ints:
    """Cycles of one vertex that makes m x n chains of k steps, or goes on with them from partial results."""
    if product.b is None:
        return cost.reduce(target, k, m * n, item_bytes(product.operands))
    unit = cost.amp_shape(target, product.operands, accumulation.accumulate.name)
    return cost.matmul(target, m, k, n, shape=unit, group=accumulation.group_of(product.k), goes_on=goes_on)


def _stages(
    result: Account, product: Product, accumulation: Accumulation, grid: Geometry, step: Step, boxes: Ranges
) -> None:
    """Supersteps that sum the parts: the tiles of a block share its rows, and exchange only before the first stage."""
    target, size = result.target, item_bytes(accumulation.accumulate)
    whole = np.maximum(boxes["m"].hi - boxes["m"].lo, 0)
    each = grid.share
    first = (boxes["p"].lo // grid.parts.block) * each
    lo = np.minimum(boxes["m"].lo + first, boxes["m"].hi)
    mine = dict(boxes) | {"m": Range(lo, np.minimum(lo + each, boxes["m"].hi))}
    rows, columns, vertices = (np.maximum(mine[axis].hi - mine[axis].lo, 0) for axis in "mnb")
    own = boxes["p"].hi - boxes["p"].lo
    received = (grid.parts.size - own) * rows * columns * vertices
    sent = own * (whole - rows) * columns * vertices
    gather = _traffic(target, size, received, sent, 0 * sent)
    runs = accumulation.stage_runs(grid.parts.size)
    for number, stage in enumerate(runs):
        scatter = Traffic.none(target.tiles)
        if number == len(runs) - 1:
            scatter = _write(target, product, grid, step, mine, accumulation)
        per_vertex = sum(stage_cycles(target, b - a, rows * columns, size) for a, b in stage)
        per_tile = np.where(rows * columns > 0, vertices * per_vertex, 0)
        result.superstep("sum parts" if grid.parts.size > 1 else "convert", per_tile, gather, scatter)
        gather = Traffic.none(target.tiles)


def stage_cycles(target: Target, terms: int, results: Ints, size: int) -> Ints:
    """Cycles of one vertex of a summing stage; one term is a conversion."""
    return cost.cast(target, results, size) if terms == 1 else cost.reduce(target, terms, results, size)
