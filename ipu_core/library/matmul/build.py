"""Products and sums on tiles: chains on their blocks, then the parts summed in stages, as a plan says."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ipu_core.graph.codelet import Codelet
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.graph.vertices import ComputeSet
from ipu_core.library.matmul.chains import SumParts
from ipu_core.library.matmul.fields import (
    GroupCuts,
    block_tiles,
    chain_tiles,
    compact,
    field,
    group_cuts,
    held_field,
    hold_piece,
    origin_of,
    partials,
)  # fmt: skip
from ipu_core.placement.axis_blocks import Segment
from ipu_core.placement.matmul import SumPlan
from ipu_core.placement.matmul.account import result_stays
from ipu_core.placement.matmul.geometry import Geometry, Turn, TurnGroup
from ipu_core.placement.matmul.spread import SpreadStage, spread_stages


class Chains(NamedTuple):
    """The codelet and operands in which a product and a sum differ.

    Attributes:
        codelet: makes the chains of a block.
        operands: by field name the tensor, the letters of its axes, and those of the field's own axes.
        params: further parameters of the codelet, and its static values.
        stages: the codelet that makes one of several parts.
    """

    codelet: type[Codelet]
    operands: Mapping[str, tuple[Tensor, str, str]]
    params: Mapping[str, Any]
    stages: type[SumParts] = SumParts


def contract(
    graph: Graph, chains: Chains, out: Tensor, plan: SumPlan, *, stochastic: bool, operation: int | None, name: str
) -> list[Copy | Execute]:
    """Adds the vertices of a plan and returns the programs to run, in order.

    Args:
        graph: where; its target must be the plan's.
        chains: codelet and operands.
        out: (batch, m, n), mapped.
        plan: the order and the place.
        stochastic: whether the parts' sums round stochastically (the chains' parameters say it for the chains).
        operation: number folded into the key of the random bits.
        name: of the compute sets.
    """
    if graph.target != plan.target:
        raise ValueError(
            f"the plan is for {plan.target.name}, the graph for {graph.target.name}, or their figures differ"
        )
    if not out.size:
        return []
    grid = plan.geometry
    builder = _Builder(graph, chains, out, plan, grid, stochastic, operation, name)
    programs: list[Copy | Execute] = []
    held: dict[tuple[str, Segment], Tensor] = {}
    parts: Tensor | None = None
    for turn in grid.turns():
        for side in chains.operands:
            # a held operand stays on the tiles while the other one's pieces pass; most turns load nothing
            if grid.hold == side and (turn.load_a if side == "a" else turn.load_b):
                held = builder.hold(side, turn, programs)
        # the later pieces of k of a turn add to the partials that the first made
        parts = builder.parts(turn) if turn.first else parts
        programs += builder.turn(turn, held, parts)
    return programs


@dataclass(frozen=True)
class _Share:
    """Shares of a block of rows: the number of the first, how many, rows in each."""

    first: int
    count: int
    rows: int


@dataclass(frozen=True)
class _Stage:
    """One run of parts of one summing stage.

    Attributes:
        parts: (parts, batch, rows, columns) of a turn; segments follow each other without gaps.
        run: first and last of the parts to sum.
        to: (batch, m, n), the result itself if `final`, else an intermediate result like a part.
        index: running number of an intermediate result.
        final: whether this is the last stage.
        rows, columns: what the turn covers.
        each: rows of a tile's share of a block.
    """

    parts: Tensor
    run: tuple[int, int]
    to: Tensor
    index: int
    final: bool
    rows: Sequence[Segment]
    columns: Sequence[Segment]
    each: int


class _Builder(NamedTuple):
    """The arguments of `contract`, shared by the functions that build one turn."""

    graph: Graph
    chains: Chains
    out: Tensor
    plan: SumPlan
    grid: Geometry
    stochastic: bool
    operation: int | None
    name: str

    def hold(self, side: str, turn: Turn, programs: list[Copy | Execute]) -> dict[tuple[str, Segment], Tensor]:
        """Copies a piece of the held operand to the tiles."""
        mine, others = (self.grid.rows, self.grid.columns) if side == "a" else (self.grid.columns, self.grid.rows)
        piece = turn.rows if side == "a" else turn.columns
        # every block along the other axis gets a copy; its pieces in time lie on the same tiles
        across = sum(segment.runs for segment in others.segments(0))
        found = {}
        for segment in mine.segments(piece):
            tensor = self.chains.operands[side][0]
            held, copy = hold_piece(self.graph, self.grid, side, tensor, segment, across, f"{self.name}: hold {side}")
            found[side, segment] = held
            programs.append(copy)
        return found

    def parts(self, turn: Turn) -> Tensor | None:
        """Room for the parts (parts, batch, rows, columns) of a piece of rows and columns, if any are kept."""
        order, grid = self.plan.accumulation, self.grid
        # a single chain in the result's own format, not cut in time, is the result: nothing is kept beside it
        if result_stays(grid, order) and grid.depths == 1:
            return None
        borders = np.append(np.arange(0, grid.parts.size, grid.parts.block), grid.parts.size)
        rows, columns = grid.rows.segments(turn.rows), grid.columns.segments(turn.columns)
        return partials(self.graph, grid, order.accumulate.name, borders, rows, columns, 0, f"{self.name}: partials")

    def turn(
        self, turn: Turn, held: Mapping[tuple[str, Segment], Tensor], parts: Tensor | None
    ) -> list[Copy | Execute]:
        """One turn: the chains, or a piece of them, and after the last piece the stages."""
        order, grid = self.plan.accumulation, self.grid
        rows, columns = grid.rows.segments(turn.rows), grid.columns.segments(turn.columns)
        stays = result_stays(grid, order)
        compute_set = self.graph.add_compute_set(self.name)
        for group in grid.groups(turn):
            cuts = group_cuts(grid, group)
            fields: dict[str, Any] = {}
            for side, (tensor, axes, own) in self.chains.operands.items():
                piece = held.get((side, group.rows if side == "a" else group.columns))
                # an operand that is not held is gathered by the engine in every turn
                fields[side] = field(tensor, axes, cuts, own) if piece is None else held_field(piece, side, cuts, group)
            if parts is not None:
                inside = _in_partials(cuts, group, _pushed(rows, group.rows), _pushed(columns, group.columns))
                fields["out"] = field(parts, "pbmn", inside, "mn")
            if turn.depth:
                # goes on in place from what the piece of k before left: the bits are those of an uncut chain
                fields["partial"] = fields["out"]
            if stays and turn.last:
                fields["out"] = field(self.out, "bmn", cuts, "mn")
            # of the whole sum: the numbers of groups decide random bits, whatever part or piece they are in
            terms = grid.spans[-1][1]
            params = dict(self.chains.params) | {
                "accumulation": order, "axes": cuts_letters(cuts), "origin": origin_of(cuts, order.group_of(terms)),
            }  # fmt: skip
            tiles = chain_tiles(grid, group)
            self.graph.add_vertices(compute_set, self.chains.codelet, tiles, fields, params, self.operation)
        programs: list[Copy | Execute] = [Execute(compute_set)]
        if turn.last and not stays:
            assert parts is not None
            programs += self.stages(parts, rows, columns)
        return programs

    def stages(self, parts: Tensor, rows: Sequence[Segment], columns: Sequence[Segment]) -> list[Copy | Execute]:
        """Sums the parts (parts, batch, rows, columns) of a turn into the result, stage by stage."""
        order, grid = self.plan.accumulation, self.grid
        if grid.spreads:
            return list(self.spread(parts, columns))
        # the tiles that hold parts of a block share its rows in the sums, so that none adds up the whole block
        each = grid.share
        stages = order.stage_runs(grid.parts.size)
        programs: list[Copy | Execute] = []
        counted = 0
        for number, runs in enumerate(stages):
            final = number == len(stages) - 1
            counts = np.array([0, len(runs)])
            name = f"{self.name}: {'sum parts' if grid.parts.size > 1 else 'convert'}"
            to = (
                self.out
                if final
                else partials(self.graph, grid, order.accumulate.name, counts, rows, columns, each, name)
            )
            compute_set = self.graph.add_compute_set(name)
            for slot, run in enumerate(runs):
                # numbers of intermediate sums go on over runs and stages, so that no two draw the same bits
                index, target = (0, to) if final else (counted + slot, to[slot])
                stage = _Stage(parts, run, target, index, final, rows, columns, each)
                for row, column in itertools.product(rows, columns):
                    self._sum(compute_set, stage, row, column)
            programs.append(Execute(compute_set))
            counted += len(runs)
            parts = to
        return programs

    def spread(self, parts: Tensor, columns: Sequence[Segment]) -> Iterator[Execute]:
        """The same where tiles share the runs of parts and the columns of a single row."""
        order, grid = self.plan.accumulation, self.grid
        stages = spread_stages(order, grid.parts.size, grid.parts.count, min(grid.columns.piece, grid.columns.size))
        counted = 0
        for number, stage in enumerate(stages):
            final, name = number == len(stages) - 1, f"{self.name}: sum parts"
            to = self.out if final else self._between(stage, columns, name)
            compute_set = self.graph.add_compute_set(name)
            for column in columns:
                for share in _shares(column.length, stage.each):
                    for slot, run, count in _equal_runs(stage.runs):
                        cut = _SpreadCut(parts, to, column, share, slot, run, count, final, 0 if final else counted)
                        self._sum_runs(compute_set, stage, cut, columns)
            yield Execute(compute_set)
            counted += len(stage.runs)
            parts = to

    def _between(self, stage: SpreadStage, columns: Sequence[Segment], name: str) -> Tensor:
        """Room for the results (runs, 1, 1, columns) of a stage, on the tiles that make them."""
        order, grid = self.plan.accumulation, self.grid
        count = len(stage.runs)
        total = sum(segment.runs * segment.length for segment in columns)
        borders, shares, blocks = [0], list[int](), list[int]()
        for segment in columns:
            for block in range(segment.runs):
                ends = stage.borders(segment.length)[1:] + borders[-1]
                shares += range(len(ends))
                blocks += [segment.first + block] * len(ends)
                borders += ends.tolist()
        made = self.graph.add_variable(order.accumulate.name, (count, 1, 1, total), name, temporary=True)
        at = stage.tile(np.arange(count)[:, None, None, None], np.array(shares))
        tiles = block_tiles(grid, at, 0, np.array(blocks))
        self.graph.map_blocks(
            made, [np.arange(count + 1), np.array([0, 1]), np.array([0, 1]), np.array(borders)], tiles
        )
        return made

    def _sum_runs(
        self, compute_set: ComputeSet, stage: SpreadStage, cut: "_SpreadCut", columns: Sequence[Segment]
    ) -> None:
        """Adds the vertices that sum runs of one length over shares of the columns of some blocks."""
        inner, share = _pushed(columns, cut.column), cut.share
        length, start = cut.run[1] - cut.run[0], share.first * stage.each

        def cuts(column: Segment, runs: tuple[int, int]) -> GroupCuts:
            vertex = (("p", cut.together, runs[1]), ("n", column.runs, column.step), ("n", share.count, stage.each))
            own = {"b": (0, 1), "m": (0, 1), "k": (0, 0), "p": runs, "n": (column.start + start, share.rows)}
            return GroupCuts(vertex, own)

        outside, made = cuts(cut.column, (cut.slot, 1)), cuts(inner, (cut.slot, 1))
        fields = {
            "parts": field(cut.parts, "pbmn", cuts(inner, (cut.run[0], length)), "pmn"),
            "out": field(cut.to, "bmn", outside, "mn") if cut.final else field(cut.to, "pbmn", made, "mn"),
        }
        params = {
            "accumulation": self.plan.accumulation,
            "axes": cuts_letters(outside),
            "final": cut.final,
            "origin": origin_of(outside, 1),
            "index": cut.counted + cut.slot if not cut.final else 0,
            "stochastic": self.stochastic,
        }
        runs = cut.slot + np.arange(cut.together)[:, None, None]
        at = stage.tile(runs, share.first + np.arange(share.count))
        tiles = block_tiles(self.grid, at, 0, (cut.column.first + np.arange(cut.column.runs))[:, None])
        self.graph.add_vertices(compute_set, self.chains.stages, tiles, fields, params, self.operation)

    def _sum(self, compute_set: ComputeSet, stage: _Stage, row: Segment, column: Segment) -> None:
        """Adds the vertices that sum one run of parts over the blocks of one pair of segments."""
        inner = _pushed(stage.rows, row), _pushed(stage.columns, column)
        together = self.grid.parts.count == 1  # nobody to share a block with: one vertex for every product of a batch
        for share in _shares(row.length, stage.each):
            for batch in range(1 if together else self.grid.batch.size):
                inside = self._share_cuts(*inner, share, stage.each, batch)
                outside = self._share_cuts(row, column, share, stage.each, batch)
                taken = inside._replace(own=dict(inside.own) | {"p": (0, stage.run[1] - stage.run[0])})
                fields = {
                    "parts": field(stage.parts[stage.run[0] : stage.run[1]], "pbmn", taken, "pmn"),
                    "out": field(stage.to, "bmn", outside if stage.final else inside, "mn"),
                }
                params = {
                    "accumulation": self.plan.accumulation,
                    "axes": cuts_letters(outside),
                    "final": stage.final,
                    "origin": origin_of(outside, 1),
                    "index": stage.index,
                    "stochastic": self.stochastic,
                }
                tiles = self._share_tiles(row, column, share, batch)
                self.graph.add_vertices(compute_set, self.chains.stages, tiles, fields, params, self.operation)

    def _share_cuts(self, row: Segment, column: Segment, share: _Share, each: int, batch: int) -> GroupCuts:
        """The cuts of vertices that each have a share of the rows of a block."""
        rows, columns = ("m", row.runs, row.step), ("n", column.runs, column.step)
        if self.grid.parts.count == 1:
            vertex = (("b", self.grid.batch.size, 1), rows, columns)
        else:
            vertex = (rows, ("m", share.count, each), columns)
        start = row.start + share.first * each
        return GroupCuts(
            vertex, {"b": (batch, 1), "m": (start, share.rows), "n": (column.start, column.length), "k": (0, 0)}
        )

    def _share_tiles(self, row: Segment, column: Segment, share: _Share, batch: int) -> Any:
        blocks = row.first + np.arange(row.runs)
        across = column.first + np.arange(column.runs)
        if self.grid.parts.count == 1:
            batches = np.arange(self.grid.batch.size)[:, None, None]
            return block_tiles(self.grid, np.zeros((1, 1, 1), np.int64), blocks[:, None], across, batches)
        shares = share.first + np.arange(share.count)[:, None]
        return block_tiles(self.grid, shares, blocks[:, None, None], across, batch)


class _SpreadCut(NamedTuple):
    """Runs of parts of one length, and shares of one length of the columns of some blocks.

    Attributes:
        parts: (parts, 1, 1, columns) of a turn.
        to: where to, as of a stage.
        column: the blocks of columns.
        share: which shares of each; its rows are columns.
        slot: number of the first run.
        run: first and last of its parts.
        together: runs, a vertex each.
        final: whether this is the last stage.
        counted: intermediate results of the stages before.
    """

    parts: Tensor
    to: Tensor
    column: Segment
    share: _Share
    slot: int
    run: tuple[int, int]
    together: int
    final: bool
    counted: int


def _equal_runs(runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, tuple[int, int], int]]:
    """Runs of one length that follow each other: the number of the first, what it covers, how many."""
    last = len(runs) - 1
    even = runs[last][1] - runs[last][0] == runs[0][1] - runs[0][0]
    yield 0, runs[0], len(runs) if even else last
    if not even:
        yield last, runs[last], 1


def cuts_letters(cuts: GroupCuts) -> str:
    """The letters of the vertex axes."""
    return "".join(axis for axis, _, _ in cuts.vertex)


def _pushed(segments: Sequence[Segment], segment: Segment) -> Segment:
    return compact(segments)[list(segments).index(segment)]


def _in_partials(cuts: GroupCuts, group: TurnGroup, rows: Segment, columns: Segment) -> GroupCuts:
    """The cuts of a group's chains in the partials: parts in place of k, rows and columns without the gaps between."""
    steps = {"m": rows.step, "n": columns.step, "b": 1}
    vertex = tuple(("p", n, group.apart) if axis == "k" else (axis, n, steps[axis]) for axis, n, _ in cuts.vertex)
    own = {"p": (group.parts.first, 1), "b": (0, 1), "m": (rows.start, rows.length)}
    return GroupCuts(vertex, own | {"n": (columns.start, columns.length)})


def _shares(rows: int, each: int) -> list[_Share]:
    """A block of rows cut into shares of `each`: whole ones, then a short one."""
    whole, rest = divmod(rows, each)
    return [share for share in (_Share(0, whole, each), _Share(whole, 1, rest)) if share.count and share.rows]
