"""Supersteps: independent equations of one kind run at once, where there is memory for them; sums of any kind too.

They share a compute set: one barrier and one exchange instead of one for each, and the slowest tile of all of them
together, as in PopLibs' `reduceMany` and `multiUpdate`. No bit changes: numbers, not places, name the random words.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ipu_core.compile.labelled import labelled
from ipu_core.compile.planning import BlockPlan
from ipu_core.compile.schedule.paths import SUM, Paths, room_for_paths
from ipu_core.compile.schedule.starts import tile_bytes
from ipu_core.ir.block import Block, Equation, Type
from ipu_core.ir.bodies import equations_of, outputs_of
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.liveness.stays import occupancy
from ipu_core.ir.ops import COLLECTIVES, EACH_REPLICA, ELEMENTWISE, GATHERS, GROUP_SUM, OPS
from ipu_core.ir.passes.dependences import Dependences, dependences, reordered
from ipu_core.placement.matmul import SumPlan

NEAREST = 8  # sets of its kind that an equation is tried in
MARGIN = 3 / 4  # of the most memory may be needed where equations were moved: what they have under way is an estimate


NO_ROWS: Mapping[int, int] = MappingProxyType({})


class Shared(NamedTuple):
    """A Block in an order, and the numbers of the equations that run at once: those stand in a row, but for views.

    Attributes:
        sums: new plans, by number: those of sums that run beside others on tiles of their own.
    """

    block: Block
    fused: tuple[tuple[int, ...], ...]
    sums: Mapping[int, SumPlan] = MappingProxyType({})


def shared(block: Block, plan: BlockPlan, rows: Mapping[int, int] = NO_ROWS, *, parallel: bool = False) -> Shared:
    """Which equations run at once.

    They are of one operation, element by element, or sums or maxima of one shape; none needs another's result, or what
    is streamed, which is on the tiles for a time. At no time do values, and what equations have under way, need more
    memory than at most in the Block as it is.

    Args:
        block: typed.
        plan: of this Block.
        rows: by number of an equation that updates a parameter whose state is streamed, the row of those that may be
            updated at once; these share with their row alone.
        parallel: whether products and sums of unlike sizes run at once too, on tiles of their own where that is faster
            by the account, and a little more memory may be needed where half of it is empty (see `schedule.paths`).
    """
    known = dependences(block, 1)
    rows_of_labels = labelled(block, plan.target).rows
    made = (None if stay.var in rows_of_labels else stay.var.type for stay in known.values)
    sizes = [0 if one is None else tile_bytes(plan.target, one) for one in made]
    every = equations_of(block)
    equations = [every[position] for position in known.positions]
    far = _streamed(block)
    paths = Paths.of(plan, [e.number for e in equations] if parallel else ())

    def kind(node: int, e: Equation) -> Hashable:
        if not rows_of_labels.keys().isdisjoint((e.output, *e.operands)):
            return None  # made by no sum or choice of the Block's
        if e.number in rows:
            return None if (own := _kind(e)) is None else (own, rows[e.number])
        own = SUM if node in paths.sums else _kind(e)
        return None if {e.output, *e.operands} & far else own

    kinds = [kind(node, e) for node, e in enumerate(equations)]
    slots = _Slots(known, sizes, kinds, [_under_way(block, plan, e) for e in equations])
    slots.allow(room_for_paths(block, plan.target, slots.peak) if parallel else 0)
    slots.widen(node for node, e in enumerate(equations) if e.number in rows)  # which are where most lives
    slots.keep(node for node, e in enumerate(equations) if e.op in GATHERS or OPS[e.op].kind == "scatter")
    for part in known.parts:
        slots.delay(part)
        slots.advance(part)
    together = tuple(tuple(equations[node].number for node in group) for group in slots.groups if len(group) > 1)
    order = [node for group in slots.groups for node in group]
    if not together:
        return Shared(block, ())  # the order stays
    placed = [paths.placed(group, slots.room(slot)) for slot, group in enumerate(slots.groups)]
    sums = {equations[node].number: one for moved in placed for node, one in moved.items()}
    return Shared(reordered(block, known, order), together, sums)


def _kind(equation: Equation) -> Hashable:
    """What equations that run at once have in common; None: it runs alone."""
    if equation.op in ELEMENTWISE:
        return equation.op
    if equation.op in COLLECTIVES - {EACH_REPLICA} | {GROUP_SUM} and equation.family != "loss":
        how = equation.params.get("collective")  # one message has a part of each; losses go to the host
        return "links", equation.params["replicas"], "ring" if how is None else how.algorithm
    one = equation.op, tuple(var.type.shape for var in equation.operands), equation.params
    return one if OPS[equation.op].kind in ("reduction", "product") else None


def _streamed(block: Block) -> set[object]:
    """The values that lie in memory that is streamed."""
    known, outputs = lifetimes(block), outputs_of(block)
    roots = known.roots(*(var for i in block.streamed for var in (block.inputs[i], outputs[i]))) | block.offloaded
    return {var for var, view in known.views.items() if view.root in roots}


def _under_way(block: Block, plan: BlockPlan, equation: Equation) -> tuple[int, int]:
    """The bytes of a tile that an equation needs besides operands and result: at least, and at most."""
    target, result = plan.target, equation.output.type
    # A plan's memory has the result in it, which counts among the values already.
    if (planned := plan.sums.get(equation.number)) is not None:
        return max(0, planned.memory - tile_bytes(target, result)), planned.memory
    views = lifetimes(block).views
    # A whole operand of the result's shape lies where it is needed: nothing is gathered.
    far = (var for var in equation.operands if not views[var].whole or var.type.shape != result.shape)
    return 0, sum(tile_bytes(target, Type(result.shape, var.type.format)) for var in far)


class _Slots:
    """When every equation runs: in the slot of its place in the Block, or with others in that of one of them.

    Attributes:
        groups: the equations in every slot, by their numbers in the dependences.
        sizes: bytes of the values on the fullest tile.
        live: bytes of it in every slot, of values and of what its equations have under way.
        limit: how many there may be in every slot where equations are moved.
        peak: the most of them in the Block as it is.
    """

    def __init__(
        self,
        known: Dependences,
        sizes: Sequence[int],
        kinds: Sequence[Hashable],
        under_way: Sequence[tuple[int, int]],
    ) -> None:
        self.known, self.sizes, self.kinds = known, sizes, kinds
        count = len(kinds)
        self.groups = [[node] for node in range(count)]
        self.slot = list(range(count))
        self.live = occupancy(
            [known.span(value, nodes, count) for value, nodes in enumerate(known.touched)], sizes, count
        )
        # The limit comes from the lower bounds, what is there from the upper: a move that passes makes no peak higher.
        least, most = np.array(under_way, np.int64).reshape(-1, 2).T
        self.peak = int((self.live + least).max(initial=0))
        self.limit, self.under_way = np.full(count, int(MARGIN * self.peak), np.int64), most
        self.live += most

    def allow(self, size: int) -> None:
        """Lets so much live anywhere, if that is more: then the peak may become higher."""
        np.maximum(self.limit, size, out=self.limit)

    def room(self, slot: int) -> int:
        """Bytes that the equations of a slot may have under way."""
        return int(self.limit[slot] - self.live[slot] + self.under_way[self.groups[slot]].sum())

    def widen(self, nodes: Iterable[int]) -> None:
        """Lets as much live as at most anywhere while some equations run: those whose values are small."""
        slots = list(nodes)
        self.limit[slots] = np.maximum(self.limit[slots], self.peak)

    def keep(self, nodes: Iterable[int]) -> None:
        """Lets no more live than now while some equations run, of which it is not known what they have under way."""
        slots = list(nodes)
        self.limit[slots] = np.minimum(self.limit[slots], self.live[slots])

    def delay(self, part: range) -> None:
        """Equations of a part join later ones, the last first."""
        places = dict[Hashable, list[int]]()
        for node in reversed(part):
            if (kind := self.kinds[node]) is None:
                continue
            there, own = places.setdefault(kind, []), self.slot[node]
            end = min((self.slot[later] for later in self.known.after[node]), default=part.stop)
            options = there[bisect_right(there, own) : bisect_left(there, end)]
            if not any(self._moved(node, slot) for slot in islice(reversed(options), NEAREST)):
                insort(there, own)

    def advance(self, part: range) -> None:
        """Equations of a part that are still alone join earlier ones, the first first."""
        places = dict[Hashable, list[int]]()
        for own in part:
            if not (group := self.groups[own]) or (kind := self.kinds[group[0]]) is None:
                continue
            there, node = places.setdefault(kind, []), group[0]
            begin = max((self.slot[earlier] for earlier in self.known.before[node]), default=-1)
            options = there[bisect_right(there, begin) :]
            if len(group) > 1 or not any(self._moved(node, slot) for slot in islice(reversed(options), NEAREST)):
                there.append(own)

    def _moved(self, node: int, slot: int) -> bool:
        """Lets an equation run in another slot, if there is memory for it."""
        own = self.slot[node]
        low, high = min(own, slot), max(own, slot)
        old = self.live[low : high + 1]
        new = old.copy()
        for first, last, size in self._changes(node, own, slot):
            new[first - low : last - low] += size
        # A slot that is over its limit as it is may stay so, but not grow.
        if ((new > self.limit[low : high + 1]) & (new > old)).any():
            return False
        self.live[low : high + 1] = new
        self.groups[own].remove(node)
        insort(self.groups[slot], node)
        self.slot[node] = slot
        return True

    def _changes(self, node: int, own: int, slot: int) -> Iterator[tuple[int, int, int]]:
        """What of the bytes changes: (first slot, the one after the last, more bytes)."""
        yield own, own + 1, -int(self.under_way[node])
        yield slot, slot + 1, int(self.under_way[node])
        for value in self.known.touches[node]:
            others = [self.slot[one] for one in self.known.touched[value] if one != node]
            size, count = self.sizes[value], len(self.groups)
            first, last = self.known.span(value, (*others, own), count)
            begin, end = self.known.span(value, (*others, slot), count)
            if begin != first:
                yield min(first, begin), max(first, begin), size if begin < first else -size
            if end != last:
                yield min(end, last) + 1, max(end, last) + 1, size if end > last else -size
