"""The exact account of one Placement of a product: cycles and bytes of every superstep, as an engine counts them."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic, pairs_of
from ipu_core.placement.axis_blocks import Segment
from ipu_core.placement.cuts import PlacementProblem, item_bytes, stage_cycles
from ipu_core.placement.layout import Range, Stored, owned
from ipu_core.placement.matmul.geometry import Geometry, Turn
from ipu_core.placement.matmul.product import Product, chain_cycles
from ipu_core.placement.matmul.spread import moves, spread_stages
from ipu_core.placement.supersteps import Account
from lowprec import Accumulation

Boxes = Mapping[str, Range]
Only = tuple[str, Segment] | None


class _Reach(NamedTuple):
    """Elements of an operand in boxes, by tile: in its own box, of these on the tile itself, of the others those that
    the other tile of its pair needs too, and what of all boxes lies on the tile."""

    volume: Ints
    mine: Ints
    shared: Ints
    sent: Ints


class _Work(NamedTuple):
    """Which tiles have anything to do in a turn, which of them in pairs, and the cycles of each; numbered."""

    number: int
    works: Ints
    both: Ints
    cycles: Ints


@dataclass(frozen=True, eq=False)
class _Placed:
    """A product on its grid, and what many of its turns have in common, worked out once.

    Attributes:
        problem, grid: the product, and its blocks.
        ranges: per tile, the numbers of an axis that a piece covers.
        reaches: what turns need of operands, if all tiles worked.
        reads: what operands that are not held move.
        work: what tiles do, by the lengths of the pieces.
    """

    problem: PlacementProblem[Product]
    grid: Geometry
    ranges: dict[Hashable, Range] = field(default_factory=dict)
    reaches: dict[Hashable, _Reach] = field(default_factory=dict)
    reads: dict[Hashable, Traffic] = field(default_factory=dict)
    work: dict[Hashable, _Work] = field(default_factory=dict)

    @property
    def target(self) -> Target:
        """The chip."""
        return self.problem.target

    @property
    def product(self) -> Product:
        """The sizes."""
        return self.problem.sums

    @cached_property
    def runs(self) -> dict[str, list[tuple[Segment, ...]]]:
        """What every piece of rows and of columns covers."""
        blocks = {"m": self.grid.rows, "n": self.grid.columns}
        return {axis: [cut.segments(piece) for piece in range(cut.turns)] for axis, cut in blocks.items()}

    @cached_property
    def places(self) -> dict[str, Ints]:
        """Per tile, its place along each axis; -1 on unused tiles."""
        place = [axis.ravel() for axis in np.indices(self.grid.grid)]
        tiles = self.grid.tile(*place)
        # Every tile has its pair, also the last of an odd number.
        empty = np.full(self.target.tiles + self.target.tiles % self.target.tiles_per_supertile, -1)
        found = {}
        for name, at in zip("bpmn", place, strict=True):
            found[name] = empty.copy()
            found[name][tiles] = at
        return found


def result_stays(grid: Geometry, accumulation: Accumulation) -> bool:
    """Whether the chains write the result themselves: one part, and nothing to convert."""
    return grid.parts.size == 1 and accumulation.one_format


def account(problem: PlacementProblem[Product], grid: Geometry) -> Account:
    """Cycles and bytes of every superstep of a product placed so, exactly as an engine counts them."""
    placed = _Placed(problem, grid)
    target, product, accumulation = problem
    result, none = Account(target), Traffic.none(target.tiles)
    if not product.batch * product.m * product.n:
        return result  # nothing runs where there are no results
    name = "matmul" if product.b else "reduce"
    stays = result_stays(grid, accumulation)
    for turn in grid.turns():
        gather, work = none, _work(placed, turn)
        for side, layout in product.loaded:
            if grid.hold != side:
                loaded = _loaded(placed, turn, work, side, layout)
                gather = loaded if gather is none else gather + loaded
            elif turn.load_a if side == "a" else turn.load_b:
                _hold(result, placed, turn, layout)
        whole = _boxes(placed, turn, whole=_cut_in_depth(grid)) if turn.last else {}
        scatter = _write(placed, turn, whole) if stays and turn.last else none
        result.superstep(name, work.cycles, gather, scatter)
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
        reach = _reach(placed, layout, boxes, _needed(placed, turn, (axis, segment)))
        traffic = _traffic(placed, turn, layout, reach)
        volume = reach.volume[: placed.target.tiles]
        result.copy(traffic, volume * item_bytes(placed.product.operands) - traffic.received)


def _work(placed: _Placed, turn: Turn) -> _Work:
    """What the tiles do in a turn: the same in all whose pieces are as long. A vertex for each product and part."""
    grid, last = placed.grid, len(placed.grid.spans) - 1
    lengths = [grid.span(grid.spans[part][1] - grid.spans[part][0], turn.depth) for part in (0, last)]
    pieces = placed.runs["m"][turn.rows], placed.runs["n"][turn.columns]
    covered = [(one.first, one.runs, one.length) for piece in pieces for one in piece]
    goes_on = turn.depth > 0
    # A product may take thousands of turns, of few different lengths: cycles are worked out once for each of these.
    known = len(pieces[0]), *covered, turn.part, *lengths, goes_on
    if known not in placed.work:
        boxes = _boxes(placed, turn)
        rows, columns, batch, parts = (np.maximum(boxes[axis].hi - boxes[axis].lo, 0) for axis in "mnbp")
        has_last = (boxes["p"].hi > last).astype(np.int64)
        cycles = [chain_cycles(placed.problem, rows, length, columns, goes_on) for length in lengths]
        each = batch * ((parts - has_last) * cycles[0] + has_last * cycles[1])
        works = rows * columns * batch * parts > 0
        both = works & works[pairs_of(placed.target, works.size)]
        placed.work[known] = _Work(len(placed.work), works, both, np.where(works, each, 0))
    return placed.work[known]


def _loaded(placed: _Placed, turn: Turn, work: _Work, side: str, layout: Stored) -> Traffic:
    """What brings an operand that is not held moves in a turn."""
    own = turn.rows if "m" in layout.axes else -1, turn.columns if "n" in layout.axes else -1
    piece = side, turn.part, turn.depth, *own
    known = *piece, work.number
    if known not in placed.reads:
        if piece not in placed.reaches:
            placed.reaches[piece] = _reach(placed, layout, _ranges(placed, turn), _needed(placed, turn))
        placed.reads[known] = _traffic(placed, turn, layout, placed.reaches[piece], work)
    return placed.reads[known]


def _boxes(placed: _Placed, turn: Turn, only: Only = None, *, whole: bool = False) -> dict[str, Range]:
    """Per tile, the numbers of every axis its block covers in a turn ("p": parts); empty on tiles without work.

    Restricted to the blocks of one segment of one axis if `only` names it. With `whole` all parts and k's of a tile,
    not only those of the turn.
    """
    boxes = _ranges(placed, turn, whole=whole)
    if only is not None:
        axis, segment = only
        at, covered = placed.places[axis], boxes[axis]
        inside = (at >= segment.first) & (at < segment.first + segment.runs)
        boxes[axis] = Range(covered.lo, np.where(inside, covered.hi, covered.lo))
    works = _volume("bpmn", boxes) > 0  # a tile without rows or columns in this turn needs no operand either
    if not whole and turn.depth:
        works &= _volume("k", boxes) > 0  # nor does one whose part is short and done
    return {axis: Range(r.lo, np.where(works, r.hi, r.lo)) for axis, r in boxes.items()}


def _ranges(placed: _Placed, turn: Turn, *, whole: bool = False) -> dict[str, Range]:
    """Per tile, the numbers of every axis its block covers in a turn, where those of another may be none."""
    pieces: dict[str, int | None] = {"b": 0, "p": None if whole else turn.part, "m": turn.rows, "n": turn.columns}
    found = {axis: _range(placed, axis, piece) for axis, piece in pieces.items()}
    return found | {"k": _terms(placed, found["p"], pieces["p"], None if whole else turn.depth)}


def _range(placed: _Placed, axis: str, piece: int | None) -> Range:
    """Per tile, the numbers of an axis that a piece of its block covers; None: the whole block."""
    known = axis, piece
    if known not in placed.ranges:
        grid = placed.grid
        blocks = {"b": grid.batch, "p": grid.parts, "m": grid.rows, "n": grid.columns}[axis]
        at = placed.places[axis]
        lo, hi = at * blocks.block, np.minimum((at + 1) * blocks.block, blocks.size)
        if piece is not None:
            lo = np.minimum(lo + piece * blocks.piece, hi)
            hi = np.minimum(lo + blocks.piece, hi)
        used = at >= 0
        placed.ranges[known] = Range(np.where(used, lo, 0), np.where(used, np.maximum(lo, hi), 0))
    return placed.ranges[known]


def _terms(placed: _Placed, parts: Range, piece: int | None, depth: int | None) -> Range:
    """Per tile, the k's of its parts in a turn; all of them if no depth is given."""
    known = "k", piece, depth
    if known not in placed.ranges:
        grid = placed.grid
        spans = np.array(grid.spans)
        first, last = (spans[np.clip(part, 0, len(spans) - 1)] for part in (parts.lo, parts.hi - 1))
        start, end = first[:, 0], last[:, 1]
        if depth is not None and grid.depths > 1:
            start = np.minimum(start + depth * grid.depth, end)
            end = np.minimum(start + grid.depth, end)
        used = parts.hi > parts.lo
        placed.ranges[known] = Range(np.where(used, start, 0), np.where(used, end, 0))
    return placed.ranges[known]


def _volume(axes: str, boxes: Boxes) -> Ints:
    result = np.ones(1, np.int64)
    for axis in axes:
        result = result * np.maximum(boxes[axis].hi - boxes[axis].lo, 0)
    return result


def _reach(placed: _Placed, layout: Stored, boxes: Boxes, needed: Boxes) -> _Reach:
    """What tiles need of an operand, each its own box, and what lies where of all that is needed."""
    target, tiles = placed.target, boxes["b"].lo.size
    volume, mine = _volume(layout.axes, boxes), _owned(placed, layout, boxes, tiles)
    shared = 0 * mine
    if target.tiles_per_supertile == 2:
        pair = pairs_of(target, tiles)
        both = {axis: boxes[axis] for axis in layout.axes}
        both = {axis: Range(np.maximum(r.lo, r.lo[pair]), np.minimum(r.hi, r.hi[pair])) for axis, r in both.items()}
        both = {axis: Range(r.lo, np.maximum(r.lo, r.hi)) for axis, r in both.items()}
        shared = _volume(layout.axes, both)
        if shared.any():
            # What one of the pair holds itself does not arrive over the exchange, and is not shared on the way.
            held = mine if (shared == volume).all() else _owned(placed, layout, both, tiles)  # by the tile, or below
            shared = shared - held - _owned(placed, layout, both, tiles, neighbours=True)  # by the other of its pair
    return _Reach(volume, mine, shared, _owned(placed, layout, needed, tiles))


def _traffic(placed: _Placed, turn: Turn, layout: Stored, reach: _Reach, work: _Work | None = None) -> Traffic:
    """Traffic of bringing an operand to the tiles that work: to all if None is given."""
    volume, mine, shared, sent = reach
    if work is not None:
        volume, mine, shared = volume * work.works, mine * work.works, shared * work.both
    missing = [axis for axis in "mn" if axis not in layout.axes]
    at = {"m": turn.rows, "n": turn.columns}
    readers = max([sum(run.runs for run in placed.runs[axis][at[axis]]) for axis in missing], default=1)
    size = item_bytes(placed.product.operands)
    # With one reader, what the tile itself needs of its own leaves it for nobody.
    return _bytes(placed.target, size, volume - mine, sent - (mine if readers == 1 else 0), shared)


def _write(placed: _Placed, turn: Turn, boxes: Boxes) -> Traffic:
    """Traffic of taking the results in the boxes to the tiles where the result lies."""
    product = placed.product
    layout, tiles = product.out, boxes["b"].lo.size
    volume, mine = _volume(layout.axes, boxes), _owned(placed, layout, boxes, tiles)
    received = _owned(placed, layout, _needed(placed, turn), tiles) - mine
    return _bytes(placed.target, item_bytes(placed.problem.accumulation.out), received, volume - mine, 0 * mine)


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


def _owned(placed: _Placed, layout: Stored, box: Boxes, tiles: int, *, neighbours: bool = False) -> Ints:
    product = placed.product
    axes = layout.axes.replace("b", "") if product.batch == 1 else layout.axes  # where nothing is, no axis has anything
    sizes = [product.sizes[axis] for axis in axes]
    lies = {"first": layout.first, "around": placed.target.tiles} if layout.first else {}
    return owned(layout.chunk, tiles, sizes, [box[axis] for axis in axes], neighbours=neighbours, **lies)


def _bytes(target: Target, size: int, received: Ints, sent: Ints, shared: Ints) -> Traffic:
    return Traffic(*(each[: target.tiles] * size for each in (received, sent, shared)))


def _stages(result: Account, placed: _Placed, turn: Turn, boxes: Boxes) -> None:
    """Supersteps that sum the parts: the tiles of a block share its rows, and exchange only before the first stage."""
    (target, _, accumulation), grid = placed.problem, placed.grid
    size = item_bytes(accumulation.accumulate)
    if grid.spreads:
        _spread(result, placed, turn, boxes)
        return
    whole = np.maximum(boxes["m"].hi - boxes["m"].lo, 0)
    each = grid.share
    first = (boxes["p"].lo // grid.parts.block) * each
    lo = np.minimum(boxes["m"].lo + first, boxes["m"].hi)
    mine = dict(boxes) | {"m": Range(lo, np.minimum(lo + each, boxes["m"].hi))}
    rows, columns, vertices = (np.maximum(mine[axis].hi - mine[axis].lo, 0) for axis in "mnb")
    own = boxes["p"].hi - boxes["p"].lo
    received = (grid.parts.size - own) * rows * columns * vertices
    sent = own * (whole - rows) * columns * vertices
    gather = _bytes(target, size, received, sent, 0 * sent)
    runs = accumulation.stage_runs(grid.parts.size)
    for number, stage in enumerate(runs):
        scatter = Traffic.none(target.tiles)
        if number == len(runs) - 1:
            scatter = _write(placed, turn, mine)
        per_vertex = sum(stage_cycles(target, b - a, rows * columns, size) for a, b in stage)
        per_tile = np.where(rows * columns > 0, vertices * per_vertex, 0)
        result.superstep("sum parts" if grid.parts.size > 1 else "convert", per_tile, gather, scatter)
        gather = Traffic.none(target.tiles)


def _spread(result: Account, placed: _Placed, turn: Turn, boxes: Boxes) -> None:
    """The same where tiles share runs and columns: an exchange before every stage."""
    (target, _, accumulation), grid = placed.problem, placed.grid
    size, tiles = item_bytes(accumulation.accumulate), grid.parts.count
    stages = spread_stages(accumulation, grid.parts.size, tiles, min(grid.columns.piece, grid.columns.size))
    # The parts' numbers of a tile are its number in the block; the last block of columns may be narrower.
    within, block = placed.places["p"], _range(placed, "n", turn.columns)
    widths = np.where(within >= 0, np.maximum(block.hi - block.lo, 0), 0)
    by_width = {int(w): list(moves(target, stages, grid.parts.block, int(w), size)) for w in np.unique(widths) if w}
    for number, stage in enumerate(stages):
        cycles, received, sent = (np.zeros(widths.size, np.int64) for _ in range(3))
        for width, made in by_width.items():
            here = widths == width
            for total, of_block in zip((cycles, received, sent), made[number], strict=True):
                total[here] = of_block[within[here]]
        scatter = Traffic.none(target.tiles)
        if number == len(stages) - 1:
            lo = np.minimum(block.lo + within * stage.each, block.hi)
            mine = Range(np.where(widths > 0, lo, 0), np.where(widths > 0, np.minimum(lo + stage.each, block.hi), 0))
            scatter = _write(placed, turn, dict(boxes) | {"n": mine})
        gather = _bytes(target, 1, received, sent, 0 * sent)
        result.superstep("sum parts", cycles[: target.tiles], gather, scatter)
