"""Passes over the order of a Block: what is needed, and when so that the least memory lives at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from heapq import heapify, heappop, heappush
from operator import itemgetter, or_

from ipu_core.ir.block import Block, Equation, Params, Var, per_block
from ipu_core.ir.bodies import closed, equations_of, mapped, regions_of, with_body
from ipu_core.ir.liveness.lifetimes import START
from ipu_core.ir.liveness.stays import occupancy
from ipu_core.ir.ops import CUSTOM
from ipu_core.ir.passes.dependences import Dependences, dependences, reordered
from ipu_core.ir.regions import Loop, Scan

MOVED_AS_ONE = 16  # equations that may be moved as one


def dead_code(block: Block) -> Block:
    """The Block without equations, constants and carries of scans that no output needs; numbers stay.

    All totals of micro-batches are needed.
    """
    block = closed(block)
    loops = (loop for loop, _ in regions_of(block, Loop) if not isinstance(loop, Scan))
    needed: set[Var] = {*block.outputs, *(new for loop in loops for _, new in loop.carries)}

    equations = _alive(block.equations, needed)
    constants = {var: array for var, array in block.constants.items() if var in needed}
    return closed(replace(block, equations=equations, constants=constants))


@per_block
def as_it_runs(block: Block) -> Block:
    """The Block without anything for gradients yet to be made: results of `custom_gradient` are seen as they are."""
    if all(equation.op != CUSTOM for equation in equations_of(block)):
        return block
    return dead_code(mapped(block, _plain))


def _plain(equation: Equation) -> Equation:
    if equation.op != CUSTOM:
        return equation
    return replace(equation, op="stop_gradient", inputs=equation.inputs[:1], params=Params({}))


def _alive(equations: Sequence[Equation], needed: set[Var]) -> tuple[Equation, ...]:
    """The equations of which something is needed; adds to that what they read."""
    kept = []
    for equation in reversed(equations):
        if needed.isdisjoint(equation.outputs):
            continue
        if (region := equation.region) is not None:
            if isinstance(region, Scan):
                region = _needed_carries(region, needed)
                equation = replace(equation, region=region)
            needed.update(region.ends)
            equation = with_body(equation, _alive(region.body.equations, needed))
            needed.update(region.operands)
        else:
            needed.update(equation.operands)
        kept.append(equation)
    return tuple(reversed(kept))


def _needed_carries(scan: Scan, needed: set[Var]) -> Scan:
    """A scan with the carries alone that are needed after it, or by those that are."""
    carries = list(zip(scan.carries, scan.starts, strict=True))
    kept = [each for each in carries if each[0][1] in needed]
    while True:
        read = {*needed, *(new for (_, new), _ in kept)}
        _alive(scan.body.equations, read)
        more = [each for each in carries if each not in kept and each[0][0] in read]
        if not more:
            break
        kept += more
    kept = [each for each in carries if each in kept]
    return replace(scan, carries=tuple(pair for pair, _ in kept), starts=tuple(start for _, start in kept))


def schedule(block: Block, grain: int = 1) -> Block:
    """The Block with its equations in an order in which less memory lives at a time; no bit changes.

    The order of the trace stays but for two things. An equation waits until its result is first read, unless it makes
    room: what it reads for the last time is larger than what it makes. And a few equations that together make room
    come as soon as they can, as those do that need a gradient. State that was written over its old value still is;
    equations stay in their region, and on their side of one.

    Args:
        block: typed; every format must have a storage dtype.
        grain: bytes that arrays take multiples of.

    Returns:
        The new Block, or the same where none of the orders is better.
    """
    known = dependences(block, grain)
    trace = list(range(len(known.reads)))
    # Each rule moves what the other has moved, so both sequences are tried; the trace wins where neither helps.
    orders = (trace, _early(known, _late(known, trace)), _late(known, _early(known, trace)))
    best = min(orders, key=lambda order: peak(known, order))  # the first of equals
    return block if best is trace else reordered(block, known, best)


def peak(known: Dependences, order: Sequence[int]) -> int:
    """The most bytes that live at a time: while an equation runs, what it reads and what it makes."""
    place = {node: number for number, node in enumerate(order)}
    spans = (known.span(value, map(place.__getitem__, nodes), len(order)) for value, nodes in enumerate(known.touched))
    return int(occupancy(spans, known.bytes, len(order)).max(initial=0))


class _Memory:
    """What lives while equations run in some order.

    Attributes:
        live: bytes.
        there: values that live.
        left: by value, how many equations will yet touch it; one more where it lives to the end.
    """

    def __init__(self, known: Dependences) -> None:
        self.known = known
        self.there = {value for value, stay in enumerate(known.values) if stay.first == START}
        self.live = sum(known.bytes[value] for value in self.there)
        self.left = [len(touched) + (value in known.kept) for value, touched in enumerate(known.touched)]

    def run(self, node: int) -> None:
        """Runs an equation."""
        for value in self.known.touches[node]:
            if value not in self.there:
                self.there.add(value)
                self.live += self.known.bytes[value]
            self.left[value] -= 1
            if not self.left[value]:
                self.there.remove(value)
                self.live -= self.known.bytes[value]

    def change(self, nodes: Sequence[int]) -> tuple[int, int]:
        """What running some equations would add: (bytes at most on the way, bytes in the end)."""
        sizes, there, left = self.known.bytes, self.there, dict[int, int]()
        added = most = 0
        for node in nodes:
            touches = self.known.touches[node]
            for value in touches:
                if value not in left:
                    left[value] = self.left[value]
                    added += 0 if value in there else sizes[value]
                left[value] -= 1
            most = max(most, added)
            added -= sum(sizes[value] for value in touches if not left[value])
        return most, added


def _late(known: Dependences, order: Sequence[int]) -> list[int]:
    """The order in which equations wait for what reads them, unless they make room. Made from the end."""
    needed = set(known.kept)  # values that live before what is placed so far
    after = [len(later) for later in known.after]
    rank = {node: place for place, node in enumerate(order)}
    placed = set[int]()
    result: list[int] = []

    def place(node: int) -> Iterable[int]:
        """Places an equation; gives those that may now be worth placing."""
        placed.add(node)
        result.append(node)
        needed.difference_update(known.makes[node])
        fresh = [value for value in known.reads[node] if value not in needed]
        needed.update(fresh)
        for earlier in known.before[node]:
            after[earlier] -= 1
        return known.before[node].union(*(known.touched[value] for value in fresh))

    def waits(node: int) -> bool:
        if node in placed or after[node]:
            return False
        # Later means: what it makes lives shorter, and what only it still reads longer.
        reads = sum(known.bytes[value] for value in known.reads[node] if value not in needed)
        return reads <= sum(known.bytes[value] for value in known.makes[node])

    for part in reversed(known.parts):
        for node in reversed(order[part.start : part.stop]):
            worth = [] if node in placed else [(-rank[one], one) for one in place(node)]
            heapify(worth)
            while worth:
                _, one = heappop(worth)
                if one in part and waits(one):
                    for other in place(one):
                        heappush(worth, (-rank[other], other))
    return result[::-1]


def _ends(known: Dependences, order: Sequence[int]) -> list[int]:
    """By value, all that has to run until it is free: a bit for each place in the order."""
    until: dict[int, int] = {}
    for place, node in enumerate(order):
        until[node] = 1 << place
        for earlier in known.before[node]:
            until[node] |= until[earlier]
    return [reduce(or_, (until[node] for node in touched)) for touched in known.touched]


def _early(known: Dependences, order: Sequence[int]) -> list[int]:
    """The order in which runs of equations that make room come as soon as they can, within the peak of the old one."""
    memory, limit = _Memory(known), peak(known, order)
    rank = {node: place for place, node in enumerate(order)}
    ends = _ends(known, order)
    done, left = set[int](), (1 << len(order)) - 1
    result: list[int] = []

    def run(nodes: Iterable[int]) -> set[int]:
        """Runs equations; gives the values that something might now make room by freeing."""
        nonlocal left
        touched = set[int]()
        for node in nodes:
            done.add(node)
            left ^= 1 << rank[node]
            result.append(node)
            memory.run(node)
            touched.update(known.touches[node])
            for later in known.after[node]:
                touched.update(known.reads[later])
        return touched & memory.there

    def last_readers(value: int, part: range) -> list[int]:
        """All that has yet to run until a value is free, in order; none where that is too much, or it is never."""
        # Bit masks: of a step's thousands of equations those that are left are found in one operation.
        found = ends[value] & left
        if value in known.kept or found.bit_count() > MOVED_AS_ONE:
            return []
        nodes = []
        while found:
            nodes.append(order[(found & -found).bit_length() - 1])
            found &= found - 1
        return nodes if all(node in part for node in nodes) else []

    for part in known.parts:
        for node in order[part.start : part.stop]:
            touched = set() if node in done else run([node])
            while touched:
                groups = filter(None, (last_readers(value, part) for value in sorted(touched)))
                options = [(*memory.change(nodes), nodes) for nodes in groups]
                # Fewer bytes in the end, and on the way no more than the old order's peak: no step of this makes an
                # order worse.
                room = [each for each in options if each[1] < 0 and memory.live + each[0] <= limit]
                touched = run(min(room, key=itemgetter(0, 1))[2]) if room else set()
    return result
