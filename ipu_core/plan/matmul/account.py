"""The exact account of one Placement of a product: cycles and bytes of every superstep, as an engine counts them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ipu_core.integers import Ints
from ipu_core.plan.account import Account
from ipu_core.plan.blocks import Segment
from ipu_core.plan.cuts import PlacementProblem, item_bytes, stage_cycles
from ipu_core.plan.layout import Range, Stored, owned
from ipu_core.plan.matmul.geometry import Geometry, Turn
from ipu_core.plan.matmul.product import Product, chain_cycles
from ipu_core.target import Target
from ipu_core.traffic import Traffic, pairs_of
from lowprec import Accumulation

Boxes = Mapping[str, Range]
Only = tuple[str, Segment] | None


class _Placed(NamedTuple):
    """A product on its grid."""

    problem: PlacementProblem[Product]
    grid: Geometry

    @property
    def target(self) -> Target:
        """The chip."""
        return self.problem.target

    @property
    def product(self) -> Product:
        """The sizes."""
        return self.problem.sums


def result_stays(grid: Geometry, accumulation: Accumulation) -> bool:
    """Whether the chains write the result themselves: one part, and nothing to convert."""
    return grid.parts.size == 1 and accumulation.one_format


def account(problem: PlacementProblem[Product], grid: Geometry) -> Account:
    """Cycles and bytes of every superstep of a product placed so, exactly as an engine counts them."""
    placed = _Placed(problem, grid)
    target, product, accumulation = problem
    result = Account(target)
    name = "matmul" if product.b else "reduce"
    reads: dict[Any, Traffic] = {}
    stays = result_stays(grid, accumulation)
    for turn in grid.turns():
        boxes = _boxes(placed, turn)
        whole = _boxes(placed, turn, whole=True) if turn.last and _cut_in_depth(grid) else boxes
        gather = Traffic.none(target.tiles)
        for side, layout in product.loaded:
            if grid.hold != side:
                known = side, *_needs(grid, turn, layout)
                if known not in reads:
                    reads[known] = _read(placed, turn, layout, boxes)
                gather += reads[known]
            elif turn.load_a if side == "a" else turn.load_b:
                _hold(result, placed, turn, layout)
        scatter = _write(placed, turn, whole) if stays and turn.last else Traffic.none(target.tiles)
        result.superstep(name, _chains(placed, turn, boxes), gather, scatter)
        if turn.last and not stays:
            _stages(result, placed, turn, whole)
    return result


def _cut_in_depth(grid: Geometry) -> bool:
    """Whether tiles take several turns for the k's of a piece of rows and columns."""
    return grid.parts.turns * grid.depths > 1


def _hold(result: Account, placed: _Placed, turn: Turn, layout: Stored) -> None:
    """The copies that bring the held operand's pieces to their tiles: one for whole blocks, one for a short last."""
    grid = placed.grid
    axis, segments = (
        ("m", grid.rows.segments(turn.rows)) if "m" in layout.axes else ("n", grid.columns.segments(turn.columns))
    )
    for segment in segments:
        boxes = _boxes(placed, turn, (axis, segment), whole=True)
        traffic = _read(placed, turn, layout, boxes, (axis, segment))
        volume = _volume(layout.axes, boxes)[: placed.target.tiles]
        result.copy(traffic, volume * item_bytes(placed.product.operands) - traffic.received)


def _boxes(placed: _Placed, turn: Turn, only: Only = None, *, whole: bool = False) -> dict[str, Range]:
    """Per tile, the numbers of every axis its block covers in a turn ("p": parts); empty on unused tiles.

    Restricted to the blocks of one segment of one axis if `only` names it. With `whole` all parts and k's of a tile,
    not only those of the turn.
    """
    grid = placed.grid
    place = [axis.ravel() for axis in np.indices(grid.grid)]
    tiles = grid.tile(*place)
    result = {}
    for name, blocks, at, piece in (
        ("b", grid.batch, place[0], 0),
        ("p", grid.parts, place[1], None if whole else turn.part),
        ("m", grid.rows, place[2], turn.rows),
        ("n", grid.columns, place[3], turn.columns),
    ):
        lo, hi = at * blocks.block, np.minimum((at + 1) * blocks.block, blocks.size)
        if piece is not None:
            lo = np.minimum(lo + piece * blocks.piece, hi)
            hi = np.minimum(lo + blocks.piece, hi)
        if only is not None and name == only[0]:
            hi = np.where((at >= only[1].first) & (at < only[1].first + only[1].runs), hi, lo)
        result[name] = Range(_by_tile(placed.target, tiles, lo), _by_tile(placed.target, tiles, np.maximum(lo, hi)))
    spans = np.array(grid.spans)
    lo, hi = result["p"].lo, result["p"].hi
    first, last = (spans[np.clip(part, 0, len(spans) - 1)] for part in (lo, hi - 1))
    start, end = first[:, 0], last[:, 1]
    if not whole and grid.depths > 1:
        start = np.minimum(start + turn.depth * grid.depth, end)
        end = np.minimum(start + grid.depth, end)
    result["k"] = Range(np.where(hi > lo, start, 0), np.where(hi > lo, end, 0))
    works = _volume("bpmn", result) > 0  # a tile without rows or columns in this turn needs no operand either
    if not whole and turn.depth:
        works &= _volume("k", result) > 0  # nor does one whose part is short and done
    return {axis: Range(r.lo, np.where(works, r.hi, r.lo)) for axis, r in result.items()}


def _by_tile(target: Target, tiles: Ints, values: Ints) -> Ints:
    padded = np.zeros(target.tiles + target.tiles % target.tiles_per_supertile, np.int64)
    padded[tiles] = values
    return padded


def _volume(axes: str, boxes: Boxes) -> Ints:
    result = np.ones(1, np.int64)
    for axis in axes:
        result = result * np.maximum(boxes[axis].hi - boxes[axis].lo, 0)
    return result


def _read(placed: _Placed, turn: Turn, layout: Stored, boxes: Boxes, only: Only = None) -> Traffic:
    """Traffic of bringing an operand's boxes to their tiles, of all vertices or of one segment's."""
    target, product = placed.target, placed.product
    tiles = boxes["b"].lo.size
    volume, mine = _volume(layout.axes, boxes), _owned(product, layout, boxes, tiles)
    shared = 0 * mine
    if target.tiles_per_supertile == 2:
        pair = pairs_of(target, tiles)
        both = {axis: Range(np.maximum(r.lo, r.lo[pair]), np.minimum(r.hi, r.hi[pair])) for axis, r in boxes.items()}
        both = {axis: Range(r.lo, np.maximum(r.lo, r.hi)) for axis, r in both.items()}
        held = _owned(product, layout, both, tiles)  # by the tile, or below by the other one of its pair
        shared = _volume(layout.axes, both) - held - _owned(product, layout, both, tiles, neighbours=True)
    missing = [axis for axis in "mn" if axis not in layout.axes]
    readers = max([np.unique(boxes[axis].lo[_volume("bpmn", boxes) > 0]).size for axis in missing], default=1)
    sent = _owned(product, layout, _needed(placed, turn, only), tiles) - (mine if readers == 1 else 0)
    return _traffic(target, item_bytes(product.operands), volume - mine, sent, shared)


def _write(placed: _Placed, turn: Turn, boxes: Boxes) -> Traffic:
    """Traffic of taking the results in the boxes to the tiles where the result lies."""
    product = placed.product
    layout, tiles = product.out, boxes["b"].lo.size
    volume, mine = _volume(layout.axes, boxes), _owned(product, layout, boxes, tiles)
    received = _owned(product, layout, _needed(placed, turn), tiles) - mine
    return _traffic(placed.target, item_bytes(placed.problem.accumulation.out), received, volume - mine, 0 * mine)


def _needs(grid: Geometry, turn: Turn, layout: Stored) -> tuple[int, ...]:
    """What an operand's traffic depends on in a turn: its own piece, and the other axis's blocks at work."""
    pieces = (("m", grid.rows, turn.rows), ("n", grid.columns, turn.columns))
    return (
        turn.part,
        turn.depth,
        *(
            piece if axis in layout.axes else sum(segment.runs for segment in blocks.segments(piece))
            for axis, blocks, piece in pieces
        ),
    )


def _needed(placed: _Placed, turn: Turn, only: Only = None) -> dict[str, Range]:
    """The numbers of every axis that a turn (or the segment `only`) covers on all tiles together."""
    grid = placed.grid
    whole = {axis: Range(0, size) for axis, size in placed.product.sizes.items()}
    for axis, blocks, piece in (("m", grid.rows, turn.rows), ("n", grid.columns, turn.columns)):
        start = piece * blocks.piece
        whole[axis] = Range(start, min(start + blocks.piece, blocks.block), blocks.block)
    if only is not None:
        whole[only[0]] = _run(only[1])
    elif _cut_in_depth(grid):
        period = grid.parts.block * grid.chunk
        start = turn.part * grid.parts.piece * grid.chunk + turn.depth * grid.depth
        length = grid.span(grid.chunk, turn.depth) if grid.depths > 1 else grid.parts.piece * grid.chunk
        whole["k"] = Range(start, min(start + length, period), period)
    return whole


def _run(segment: Segment) -> Range:
    """The numbers of a segment: periodic and cut off after its last run."""
    if segment.runs == 1:
        return Range(segment.start, segment.start + segment.length)
    skip = segment.start % segment.step
    return Range(skip, skip + segment.length, segment.step, segment.start - skip + segment.runs * segment.step)


def _owned(product: Product, layout: Stored, box: Boxes, tiles: int, *, neighbours: bool = False) -> Ints:
    sizes = [product.sizes[axis] for axis in layout.axes]
    return owned(layout.chunk, tiles, sizes, [box[axis] for axis in layout.axes], neighbours=neighbours)


def _traffic(target: Target, size: int, received: Ints, sent: Ints, shared: Ints) -> Traffic:
    return Traffic(*(each[: target.tiles] * size for each in (received, sent, shared)))


def _chains(placed: _Placed, turn: Turn, boxes: Boxes) -> Ints:
    """Cycles per tile of the chains of a turn: a vertex for each product and part on the tile."""
    grid = placed.grid
    rows, columns = (np.maximum(boxes[axis].hi - boxes[axis].lo, 0) for axis in "mn")
    vertices = boxes["b"].hi - boxes["b"].lo
    last = len(grid.spans) - 1
    has_last = (boxes["p"].hi > last).astype(np.int64)
    full = boxes["p"].hi - boxes["p"].lo - has_last
    lengths = (grid.span(grid.spans[part][1] - grid.spans[part][0], turn.depth) for part in (0, last))
    cycles = [chain_cycles(placed.problem, rows, length, columns, turn.depth > 0) for length in lengths]
    return np.where(rows * columns > 0, vertices * (full * cycles[0] + has_last * cycles[1]), 0)


def _stages(result: Account, placed: _Placed, turn: Turn, boxes: Boxes) -> None:
    """Supersteps that sum the parts: the tiles of a block share its rows, and exchange only before the first stage."""
    (target, _, accumulation), grid = placed
    size = item_bytes(accumulation.accumulate)
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
            scatter = _write(placed, turn, mine)
        per_vertex = sum(stage_cycles(target, b - a, rows * columns, size) for a, b in stage)
        per_tile = np.where(rows * columns > 0, vertices * per_vertex, 0)
        result.superstep("sum parts" if grid.parts.size > 1 else "convert", per_tile, gather, scatter)
        gather = Traffic.none(target.tiles)
