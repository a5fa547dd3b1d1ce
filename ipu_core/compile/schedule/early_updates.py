"""Updates of parameters among the gradients, so that their state is loaded and stored beside these.

A parameter is updated once its gradient is there and, by an estimate of all times, its state on the tiles. Small ones
are updated at once, in rows whose state takes no more than the largest parameter's.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from ipu_core.chip import cost
from ipu_core.chip.target import Target
from ipu_core.compile.planning import BlockPlan
from ipu_core.compile.schedule.starts import tile_bytes
from ipu_core.ir.block import Block, Equation, Var
from ipu_core.ir.bodies import closed, equations_of, outputs_of, runs_of, with_body
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.liveness.stays import PHASES, phase
from ipu_core.ir.passes.dependences import Dependences, dependences, reordered
from ipu_core.ir.regions import Branch

EXCHANGE = 20  # cycles of a superstep's exchange, about, where others share it
BYTES = 8  # of a result that a worker makes in a few cycles
SMALL = 8  # times smaller than the largest are parameters that may wait for others
FEW = 8  # of these are updated at once
AHEAD = "grad_weight", "optimizer"  # roles of equations that come as soon as they can, where an update needs them
EARLY = 0.75  # of the time until the first load has to begin: it may begin then, since times are estimates


class EarlyUpdates(NamedTuple):
    """A Block whose updates are among its gradients.

    Attributes:
        block: in its new order.
        rows: by equation number, the row in which it updates.
        start: number of the equation before which no state is loaded; None: there is none.
    """

    block: Block
    rows: Mapping[int, int]
    start: int | None


class _Row(NamedTuple):
    """Parameters that are updated at once: bytes of their streamed state, and the equations of their updates."""

    bytes: int
    nodes: list[int]


def with_early_updates(block: Block, plan: BlockPlan) -> EarlyUpdates:
    """The Block with its updates among its gradients; no bit changes.

    Where a guard is to say whether the state is replaced, only weights wait for it: what is streamed is kept beside the
    old state until it has spoken.
    """
    sizes, early = _state(block)
    if not sizes:
        return EarlyUpdates(block, {}, None)
    block = _beside(block)
    known = dependences(block, 1)
    every = equations_of(block)
    equations = [every[position] for position in known.positions]
    # The last part outside of loops: totals of micro-batches are complete after the last iteration.
    part = [one for one, run in zip(known.parts, runs_of(block), strict=True) if one and not run.inside][-1]
    updates = _updates(known, equations, sizes, part)
    updating = {node for nodes in updates.values() for node in nodes}
    others, hurry = _hurried(known, equations, updating, part)
    rank = {node: place for place, node in enumerate(others)}
    ready = {name: max((rank.get(one, -1) for node in nodes for one in known.before[node]), default=-1)
             for name, nodes in updates.items()}  # fmt: skip
    rows = [
        _Row(sum(sizes[name] for name in names), sorted(node for name in names for node in updates[name]))
        for names in _rows(ready, sizes, early)
    ]
    costs = [_cycles(plan, equation) for equation in equations]
    order, start = _order(known, others, hurry, rows, costs, plan.target, part)
    numbers = {equations[node].number: number for number, row in enumerate(rows) for node in row.nodes}
    new = reordered(block, known, [*order, *range(part.stop, len(equations))])
    return EarlyUpdates(new, numbers, equations[order[start]].number)


def _beside(block: Block) -> Block:
    """The Block with all before its branch but the updates that nothing else needs, which write over the weights."""
    place, branch = next(((i, e) for i, e in enumerate(block.equations) if isinstance(e.region, Branch)), (0, None))
    if branch is None or not isinstance(branch.region, Branch):
        return block
    read = {var for equation in equations_of(block) for var in equation.operands}
    outputs = outputs_of(block)
    far = {outputs[i] for i in block.streamed}
    late = [e for e in branch.region.body.equations if e.role == "update" and e.output not in read | far]
    numbers = {e.number for e in late}
    early = [e for e in branch.region.body.equations if e.number not in numbers]
    new = with_body(replace(branch, region=replace(branch.region, beside=True)), late)
    return closed(replace(block, equations=(*block.equations[:place], *early, new, *block.equations[place + 1 :])))


def most_streamed(block: Block) -> int:
    """The bytes of what is streamed that may be on the tiles at a time: a parameter's, and as many on their way."""
    sizes, _ = _state(block)
    return 2 * max([*sizes.values(), *(var.type.nbytes for var in block.offloaded)], default=0)


def _state(block: Block) -> tuple[dict[str, int], set[str]]:
    """By parameter the bytes of its streamed state, and those of which some is also read before the update."""
    known, number_of, outputs = lifetimes(block), dict[Var, int](), outputs_of(block)
    for number in block.streamed:
        number_of |= dict.fromkeys(known.roots(block.inputs[number], outputs[number]), number)
    state, soon = dict[str, set[int]](), set[int]()
    for equation in equations_of(block):
        roots = known.roots(equation.output, *equation.operands)
        found = {number_of[root] for root in roots & number_of.keys()}
        if phase(equation) < PHASES["update"]:
            soon |= found
        elif found and equation.parameter is not None:
            state.setdefault(equation.parameter, set()).update(found)
    sizes = {name: sum(block.inputs[i].type.nbytes for i in numbers) for name, numbers in state.items()}
    return sizes, {name for name, numbers in state.items() if numbers & soon}


def _updates(
    known: Dependences, equations: Sequence[Equation], sizes: Mapping[str, int], part: range
) -> dict[str, list[int]]:
    """By parameter, the equations of its update, up to the end of a part, that nothing but its update needs there."""
    found: dict[str, list[int]] = {}
    own, last = dict[int, str](), range(part.stop, len(equations))
    # Backwards: whether only the update needs a result is known once all that follows has been seen.
    for node in reversed(range(len(equations))):
        name = equations[node].parameter
        late = phase(equations[node]) == PHASES["update"] and name in sizes
        after = set(known.after[node]).difference(last)
        if late and node not in last and name is not None and all(own.get(one) == name for one in after):
            own[node] = name
            found.setdefault(name, []).append(node)
    return {name: nodes[::-1] for name, nodes in found.items()}


def _hurried(
    known: Dependences, equations: Sequence[Equation], updating: Collection[int], part: range
) -> tuple[list[int], set[int]]:
    """The other equations in their order, but what updates need as soon as it can be made, and which those are."""
    earlier = range(part.start)
    order, placed = list(earlier), set(earlier)
    ahead = {node for node, e in enumerate(equations) if e.role in AHEAD and node not in earlier}
    hurry = _needed(known, updating, ahead.difference(updating))

    def soon(node: int) -> bool:
        return node in hurry and node not in placed and placed.issuperset(known.before[node])

    def place(node: int) -> None:
        pending = [node]
        while pending:
            if (one := pending.pop()) in placed:
                continue
            order.append(one)
            placed.add(one)
            pending += [after for after in known.after[one] if soon(after)]

    for node in part:
        if soon(node):
            place(node)
    for node in part:
        if node not in placed and node not in updating:
            place(node)
    return order, hurry


def _needed(known: Dependences, nodes: Iterable[int], among: set[int]) -> set[int]:
    """What has to run before some equations, of those among which it is looked for."""
    found, pending = set[int](), list(nodes)
    while pending:
        fresh = (known.before[pending.pop()] & among) - found
        found |= fresh
        pending += fresh
    return found


def _rows(ready: Mapping[str, int], sizes: Mapping[str, int], alone: Container[str]) -> list[list[str]]:
    """The parameters in rows, in the order in which their gradients are there."""
    largest = max(sizes.values(), default=0)
    rows, room, few = list[list[str]](), 0, list[str]()

    def add(names: Sequence[str]) -> None:
        nonlocal room
        size = sum(sizes[name] for name in names)
        if size > room:
            rows.append([])
            room = largest
        rows[-1] += names
        room -= size

    for name in sorted(ready, key=ready.__getitem__):
        if name in alone:
            rows.append([name])
            room = 0  # none joins its row
        elif sizes[name] * SMALL <= largest:
            few.append(name)
        else:
            add([name])
        if len(few) == FEW:
            add(few)
            few = []
    add(few)
    return rows


def _cycles(plan: BlockPlan, equation: Equation) -> int:
    """The time of an equation by itself, about."""
    target = plan.target
    if (planned := plan.sums.get(equation.number)) is not None:
        return planned.compute_cycles + planned.exchange_cycles + planned.sync_cycles
    words = tile_bytes(target, equation.output.type) // BYTES
    return target.sync_cycles + EXCHANGE + target.workers * cost.ELEMENTWISE_OVERHEAD + 3 * words


def _order(
    known: Dependences,
    others: Sequence[int],
    hurry: set[int],
    rows: Sequence[_Row],
    costs: Sequence[int],
    target: Target,
    part: range,
) -> tuple[list[int], int]:
    """The others in their order and the rows in theirs, each where it need not wait, and the place of the first load.

    Those that hurry come just before what needs them, so that no gradient waits long for its moments.

    Two rows are loaded at first, another when one has been updated, after what is stored of it: all in turn.
    """
    rank = {node: place for place, node in enumerate(others)}
    moves = [target.transfer_cycles(row.bytes, target.streaming_bandwidth) for row in rows]
    order, begins, placed, late = list[int](), list[int](), set[int](), set(hurry)
    arrivals, used = list(accumulate(moves[:2])), list[int]()
    now, free = 0, sum(moves[:2])

    def run(nodes: Sequence[int]) -> None:
        nonlocal now
        for node in nodes:
            order.append(node)
            begins.append(now)
            placed.add(node)
            late.discard(node)
            now += costs[node]

    def update() -> None:
        nonlocal now, free
        number = len(used)
        run(sorted(_needed(known, rows[number].nodes, late), key=rank.__getitem__))
        now = max(now, arrivals[number])  # the tiles wait for the load
        used.append(now)
        run(rows[number].nodes)
        # The store of this row, then the load of the row after next: one channel.
        free = max(free, now) + moves[number]
        if number + 2 < len(rows):
            free += moves[number + 2]
            arrivals.append(free)

    def ready() -> bool:
        nodes = {*rows[len(used)].nodes, *_needed(known, rows[len(used)].nodes, late)}
        return all(placed.issuperset(known.before[node] - nodes) for node in nodes)

    run(range(part.start))  # a loop: its totals are there after the last iteration
    for node in others[part.start :]:
        if node not in hurry:
            run([*sorted(_needed(known, [node], late), key=rank.__getitem__), node])
            while len(used) < len(rows) and arrivals[len(used)] <= now and ready():
                update()
    while len(used) < len(rows):
        update()
    run([node for node in others if node not in placed])
    # Loads that begin sooner would only hold memory: the first row is not needed before.
    latest = (used[0] if used else 0) - sum(moves[:2])
    return order, max(0, sum(begin <= EARLY * latest for begin in begins) - 1)
