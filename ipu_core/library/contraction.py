"""Products and sums on tiles: chains on their blocks, then the parts summed in stages, as a plan says."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.graph.codelet import Codelet
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.graph.vertices import ComputeSet
from ipu_core.library.blocks import (
    Cuts,
    block_tiles,
    chain_tiles,
    compact,
    field,
    group_cuts,
    held_field,
    hold_piece,
    partials,
    place_of,
)  # fmt: skip
from ipu_core.library.sums import StochasticSumParts, SumParts
from ipu_core.plan.geometry import Geometry, Step
from ipu_core.plan.placement import Segment
from ipu_core.plan.product import result_stays
from ipu_core.plan.sums import SumPlan

__all__ = ["Chains", "contract"]


class Chains(NamedTuple):
    """What differs between a product and a sum.

    Attributes:
        codelet: makes the chains of a block.
        operands: by field name the tensor, the letters of its axes, and those of the field's own axes.
        params: further parameters of the codelet.
    """

    codelet: type[Codelet]
    operands: Mapping[str, tuple[Tensor, str, str]]
    params: Mapping[str, Any]


def contract(
    graph: Graph, chains: Chains, out: Tensor, plan: SumPlan, *, stochastic: bool, operation: int | None, name: str
) -> list[Copy | Execute]:
    """Adds the vertices of a plan and returns the programs to run, in order.

    Args:
        graph: where; its target must be the plan's.
        chains: codelet and operands.
        out: (batch, m, n), mapped.
        plan: the order and the place.
        stochastic: whether the parts' sums round stochastically (the chains' codelet says it for the chains).
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
    for step in grid.steps():
        for side in chains.operands:
            if grid.hold == side and (step.load_a if side == "a" else step.load_b):
                held = builder.hold(side, step, programs)
        programs += builder.step(step, held)
    return programs


class _Builder(NamedTuple):
    """The arguments of `contract`, shared by the functions that build one serial step."""

    graph: Graph
    chains: Chains
    out: Tensor
    plan: SumPlan
    grid: Geometry
    stochastic: bool
    operation: int | None
    name: str

    def hold(self, side: str, step: Step, programs: list[Copy | Execute]) -> dict[tuple[str, Segment], Tensor]:
        """Copies a piece of the held operand to the tiles."""
        mine, others = (self.grid.rows, self.grid.columns) if side == "a" else (self.grid.columns, self.grid.rows)
        piece = step.rows if side == "a" else step.columns
        across = sum(segment.runs for segment in others.segments(0))
        found = {}
        for segment in mine.segments(piece):
            tensor = self.chains.operands[side][0]
            held, copy = hold_piece(self.graph, self.grid, side, tensor, segment, across, f"{self.name}: hold {side}")
            found[side, segment] = held
            programs.append(copy)
        return found

    def step(self, step: Step, held: Mapping[tuple[str, Segment], Tensor]) -> list[Copy | Execute]:
        """One serial step: the chains, then the stages."""
        order, grid = self.plan.accumulation, self.grid
        rows, columns = grid.rows.segments(step.rows), grid.columns.segments(step.columns)
        direct = result_stays(grid, order)
        target, letters = self.out, "bmn"
        if not direct:
            borders = np.append(np.arange(0, grid.parts.size, grid.parts.block), grid.parts.size)
            target = partials(self.graph, grid, order.types[0], borders, rows, columns, 0, f"{self.name}: partials")
            letters = "pbmn"
        compute_set = self.graph.add_compute_set(self.name)
        for group in grid.groups(step):
            cuts = group_cuts(grid, group)
            fields: dict[str, Any] = {}
            for side, (tensor, axes, own) in self.chains.operands.items():
                piece = held.get((side, group.rows if side == "a" else group.columns))
                fields[side] = field(tensor, axes, cuts, own) if piece is None else held_field(piece, side, cuts, group)
            to = (
                cuts
                if direct
                else _in_partials(cuts, group.parts, _pushed(rows, group.rows), _pushed(columns, group.columns))
            )
            fields["out"] = field(target, letters, to, "mn")
            params = dict(self.chains.params) | {
                "accumulation": order, "axes": cuts_letters(cuts), "place": place_of(cuts, order.group),
            }  # fmt: skip
            self.graph.add_vertices(
                compute_set, self.chains.codelet, chain_tiles(grid, group), fields, params, self.operation
            )
        return [Execute(compute_set)] + ([] if direct else self.stages(target, rows, columns))

    def stages(self, parts: Tensor, rows: Sequence[Segment], columns: Sequence[Segment]) -> list[Copy | Execute]:
        """Sums the parts (parts, batch, rows, columns) of a step into the result, stage by stage."""
        order, grid = self.plan.accumulation, self.grid
        each = -(-grid.rows.piece // grid.parts.count)
        stages = order.stage_runs(grid.parts.size)
        programs: list[Copy | Execute] = []
        counted = 0
        for number, runs in enumerate(stages):
            final = number == len(stages) - 1
            counts = np.array([0, len(runs)])
            name = f"{self.name}: {'sum parts' if grid.parts.size > 1 else 'convert'}"
            to = self.out if final else partials(self.graph, grid, order.types[0], counts, rows, columns, each, name)
            compute_set = self.graph.add_compute_set(name)
            for index, run in enumerate(runs):
                for row, column in ((r, c) for r in rows for c in columns):
                    places = (row, _pushed(rows, row), column, _pushed(columns, column))
                    self._sum(compute_set, parts, run, to, index, 0 if final else counted + index, final, places, each)
            programs.append(Execute(compute_set))
            counted += len(runs)
            parts = to
        return programs

    def _sum(
        self,
        compute_set: ComputeSet,
        parts: Tensor,
        run: tuple[int, int],
        to: Tensor,
        slot: int,
        index: int,
        final: bool,
        places: tuple[Segment, Segment, Segment, Segment],
        each: int,
    ) -> None:
        """Adds the vertices that sum one run of parts over the rows and columns of one pair of segments."""
        row, row_in, column, column_in = places
        for first, shares, share in _shares(row.length, each):
            for batch in range(1) if self.grid.parts.count == 1 else range(self.grid.batch.size):

                def cuts(r: Segment, c: Segment, batch: int = batch, first: int = first, shares: int = shares,
                         share: int = share) -> Cuts:  # fmt: skip
                    along: tuple[str, int, int] = ("m", shares, each)
                    if self.grid.parts.count == 1:
                        along = ("b", self.grid.batch.size, 1)
                    vertex = (along, ("m", r.runs, r.step), ("n", c.runs, c.step))
                    if along[0] == "m":
                        vertex = (vertex[1], along, vertex[2])
                    own = {"b": (batch, 1), "m": (r.start + first * each, share), "n": (c.start, c.length), "k": (0, 0)}
                    return Cuts(vertex, own)

                inside, outside = cuts(row_in, column_in), cuts(row, column)
                source = field(parts[run[0] : run[1]], "pbmn", _with_parts(inside, run[1] - run[0]), "pmn")
                result = field(to, "bmn", outside, "mn") if final else field(to[slot], "bmn", inside, "mn")
                tiles = self._share_tiles(row, column, first, shares, batch)
                params = {
                    "accumulation": self.plan.accumulation, "axes": cuts_letters(outside), "final": final,
                    "place": place_of(outside, 1), "index": index,
                }  # fmt: skip
                codelet = StochasticSumParts if self.stochastic else SumParts
                self.graph.add_vertices(
                    compute_set, codelet, tiles, {"parts": source, "out": result}, params, self.operation
                )

    def _share_tiles(self, row: Segment, column: Segment, first: int, shares: int, batch: int) -> Any:
        blocks = row.first + np.arange(row.runs)
        across = column.first + np.arange(column.runs)
        if self.grid.parts.count == 1:
            batches = np.arange(self.grid.batch.size)[:, None, None]
            return block_tiles(self.grid, np.zeros((1, 1, 1), np.int64), blocks[:, None], across, batches)
        return block_tiles(self.grid, first + np.arange(shares)[:, None], blocks[:, None, None], across, batch)


def cuts_letters(cuts: Cuts) -> str:
    """The letters of the vertex axes."""
    return "".join(axis for axis, _, _ in cuts.vertex)


def _pushed(segments: Sequence[Segment], segment: Segment) -> Segment:
    return compact(segments)[list(segments).index(segment)]


def _in_partials(cuts: Cuts, parts: Segment, rows: Segment, columns: Segment) -> Cuts:
    """The cuts of a group's chains in the partials: part numbers instead of k's, rows and columns pushed together."""
    steps = {"m": rows.step, "n": columns.step, "b": 1}
    vertex = tuple(("p", runs, 1) if axis == "k" else (axis, runs, steps[axis]) for axis, runs, _ in cuts.vertex)
    own = {"p": (parts.first, 1), "b": (0, 1), "m": (rows.start, rows.length), "n": (columns.start, columns.length)}
    return Cuts(vertex, own)


def _with_parts(cuts: Cuts, parts: int) -> Cuts:
    return cuts._replace(own=dict(cuts.own) | {"p": (0, parts)})


def _shares(rows: int, each: int) -> list[tuple[int, int, int]]:
    """(first share, number of shares, rows in each) of a block of rows cut into shares of `each`."""
    whole, rest = divmod(rows, each)
    return [share for share in ((0, whole, each), (whole, 1, rest)) if share[1] and share[2]]
