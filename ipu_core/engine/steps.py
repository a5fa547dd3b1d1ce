"""What steps of a program cost: cycles of compute, exchange and sync, bytes by tile, memory while they run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipu_core.chip import cost
from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic
from ipu_core.engine.accesses import Accesses
from ipu_core.engine.exchange import Moved
from ipu_core.engine.tree import Interleaved, Tree, counts_of
from ipu_core.graph.codelet import Codelet
from ipu_core.graph.program import Copy
from ipu_core.graph.regions import merge_runs, runs_of
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import VertexGroup
from lowprec.checks import shown
from lowprec.integers import ceil_div

Vertices = Sequence[tuple[VertexGroup, Codelet]]
"""Groups, each with the codelet that says what its vertices cost."""


@dataclass(frozen=True, eq=False)
class StepAccount:
    """One superstep. Arrays are by tile.

    Attributes:
        name, kind: what it is; kind is execute, copy, stream, remote, links or sync.
        compute: cycles each tile computes.
        gather, scatter: traffic before and after.
        exchange_cycles, sync_cycles: cycles of both phases together.
        memory: bytes by tile and category while the step runs: gathered operands, exchange buffers, scratch.
        reads, writes: the variables it accesses; `defines` are written in full, whatever they held before.
        vertices: how many ran.
        hidden: cycles of a transfer that passed beside other steps and are in none of the other figures.
        joined: names of the compute sets of which it was made; none: it is one of its own.
    """

    name: str
    kind: str
    compute: Ints
    gather: Traffic
    scatter: Traffic
    exchange_cycles: int
    sync_cycles: int
    memory: dict[str, Ints]
    reads: frozenset[Variable]
    writes: frozenset[Variable]
    defines: frozenset[Variable]
    vertices: int = 0
    hidden: int = 0
    joined: tuple[str, ...] = ()

    @property
    def compute_cycles(self) -> int:
        """Cycles of the slowest tile."""
        return int(self.compute.max(initial=0))

    @property
    def exchanged(self) -> int:
        """Bytes received by tiles."""
        return self.gather.total + self.scatter.total

    def mean_exchange(self, target: Target) -> float:
        """Cycles of exchange of the mean tile; through an interface that all share they are the interface's."""
        if self.kind in ("stream", "remote", "links"):
            return float(self.exchange_cycles)
        return self.gather.mean_cycles(target) + self.scatter.mean_cycles(target)

    @property
    def cycles(self) -> int:
        """All cycles of the step."""
        return self.compute_cycles + self.exchange_cycles + self.sync_cycles


def account_execute(
    name: str, vertices: Vertices, accesses: Accesses, moved: tuple[Traffic, Traffic], target: Target
) -> StepAccount:
    """The account of a compute set: one sync before it, a second one only where results are scattered.

    Args:
        name, vertices: its.
        accesses: what they read and write.
        moved: what gathering that and scattering that moves.
        target: the chip.
    """
    (reads, writes), (gather, scatter) = accesses, moved
    scattered = scatter.cycles(target)
    return StepAccount(
        name,
        "execute",
        _compute_cycles(vertices, target),
        gather,
        scatter,
        gather.cycles(target) + scattered,
        # Results that lie where they are made need no exchange behind the computation, and so no barrier before it.
        target.sync_cycles * (2 if scattered else 1),
        {"gathered operands": gather.received, "exchange buffers": scatter.sent, "scratch": _scratch(vertices, target)},
        frozenset(reads),
        frozenset(writes),
        # A variable that is written in part, or read too, goes on with what it held: its life does not begin here.
        frozenset(v for v, s in writes.items() if v not in reads and is_all(v, *s.union)),
        sum(group.vertices for group, _ in vertices),
    )


def account_copies(name: str, copies: Sequence[Copy], moves: Sequence[Moved], target: Target) -> StepAccount:
    """The account of copies in one phase: foreign bytes over the exchange, local ones by the tile's workers.

    Where the order counts and less than a vector stays together, workers move all that a tile gets.
    """
    word, local, compute = (
        target.local_copy_bytes_per_cycle,
        np.zeros(target.tiles, np.int64),
        np.zeros(target.tiles, np.int64),
    )
    for copy, moved in zip(copies, moves, strict=True):
        if copy.reorders and moved.together < word:
            compute += cost.reorder(target, moved.local + moved.traffic.received, moved.together)
        else:
            local += word * ceil_div(moved.local, word)
    # The workers start once for all that only moves.
    compute += cost.local_copy(target, local)
    traffic = Traffic.sum((moved.traffic for moved in moves), target.tiles)
    to: dict[Variable, list[Tensor]] = {}
    for copy in copies:
        to.setdefault(copy.destination.variable, []).append(copy.destination)
    none = Traffic.none(target.tiles)
    reads, writes = frozenset(copy.source.variable for copy in copies), frozenset(to)
    return StepAccount(
        name, "copy", compute, traffic, none, traffic.cycles(target), target.sync_cycles, {}, reads, writes,
        frozenset(variable for variable, parts in to.items() if is_all(variable, *_union(parts))),
    )  # fmt: skip


def account_host(name: str, kind: str, tensor: Tensor, into: bool, bandwidth: float, target: Target) -> StepAccount:
    """The account of a transfer with the host or streaming memory: the slower of that link and the tiles' own rate."""
    by_tile = elements(tensor, target) * tensor.dtype.itemsize
    none = np.zeros(target.tiles, np.int64)
    traffic = Traffic(by_tile, none, none) if into else Traffic(none, by_tile, none)
    # All tiles share the link, each has its own port to the exchange: whichever takes longer.
    cycles = max(traffic.cycles(target), target.transfer_cycles(int(by_tile.sum()), bandwidth))
    nothing, one = frozenset[Variable](), frozenset([tensor.variable])
    reads, writes = (nothing, one) if into else (one, nothing)
    return StepAccount(
        name, kind, none, traffic, Traffic.none(target.tiles), cycles, target.sync_cycles,
        {"exchange buffers": by_tile}, reads, writes, writes if is_all(tensor.variable, *runs(tensor)) else nothing,
    )  # fmt: skip


def account_sync(name: str, target: Target, reads: frozenset[Variable], defines: frozenset[Variable]) -> StepAccount:
    """The account of a step that moves nothing: a barrier (or, without cycles, a remark on liveness)."""
    none = Traffic.none(target.tiles)
    # A WriteUndef is a remark on what lives, and no tile waits for it.
    cycles = 0 if defines else target.sync_cycles
    zero = np.zeros(target.tiles, np.int64)
    return StepAccount(name, "sync", zero, none, none, 0, cycles, {}, reads, frozenset(), defines)


def _compute_cycles(vertices: Vertices, target: Target) -> Ints:
    """Cycles by tile: supervisor vertices one after another, worker vertices dealt in turn to the W workers."""
    tiles, workers = target.tiles, target.workers
    alone = np.zeros(tiles, np.int64)
    dealt = np.zeros(tiles, np.int64)
    queues = np.zeros(tiles * workers, np.int64)
    for group, codelet in vertices:
        each = _by_vertex(group, "cycles", codelet.cycles(target))
        where = group.tiles.ravel()
        if group.codelet.supervisor:
            np.add.at(alone, where, each)
            continue
        counts = np.bincount(where, minlength=tiles)
        order = np.argsort(where, kind="stable")
        rank = np.empty_like(where)
        rank[order] = np.arange(where.size) - np.repeat(np.cumsum(counts) - counts, counts)
        # A group goes on with the worker behind the last group's: begun at worker 0 each time, the rests of all groups
        # would lie on the same few.
        np.add.at(queues, where * workers + (dealt[where] + rank) % workers, each)
        dealt += counts
    # Workers take turns, one instruction each: one that is busy for n of its own slots takes n * workers cycles,
    # however idle the others are.
    total: Ints = alone + workers * queues.reshape(tiles, workers).max(axis=1)
    return total


def _by_vertex(group: VertexGroup, what: str, said: object) -> Ints:
    """What a codelet says of its vertices, one number for all or for each.

    Raises:
        ValueError: no whole numbers of at least 0, or not as many as there are vertices.
    """
    shape, given = group.tiles.shape, np.asarray(said)
    name = f"{group.codelet.__name__}.{what}"
    if given.dtype.kind not in "iuf" or not ((given >= 0) & (given < 2**62) & (given == np.trunc(given))).all():
        raise ValueError(f"{name} must give whole numbers of at least 0, not {shown(said)}")
    try:
        return np.broadcast_to(given.astype(np.int64), shape).ravel()
    except ValueError:
        raise ValueError(f"{name} gives {given.shape} numbers for vertices of the shape {shape}") from None


def _scratch(vertices: Vertices, target: Target) -> Ints:
    """Scratch bytes by tile. Vertices of a tile that run at once hold theirs at once; counted as all of them."""
    total = np.zeros(target.tiles, np.int64)
    for group, codelet in vertices:
        each = _by_vertex(group, "scratch", codelet.scratch(target))
        np.add.at(total, group.tiles.ravel(), each)
    return total


def elements(tensor: Tensor, target: Target) -> Ints:
    """Elements of a tensor by tile."""
    pieces = tensor.variable.mapping.cut(*runs(tensor))
    return np.bincount(pieces.tiles, pieces.lengths, target.tiles).astype(np.int64)


def runs(tensor: Tensor) -> tuple[Ints, Ints]:
    starts, lengths = runs_of(tensor.shape, tensor.strides)
    return starts + tensor.offset, lengths


def _union(tensors: Sequence[Tensor]) -> tuple[Ints, Ints]:
    """Disjoint ascending runs of all elements of tensors of one variable."""
    starts, lengths = (np.concatenate(parts) for parts in zip(*map(runs, tensors), strict=True))
    return merge_runs(starts, lengths)


def is_all(variable: Variable, starts: Ints, lengths: Ints) -> bool:
    """Whether disjoint runs that do not touch are all elements of a variable."""
    return variable.size == 0 or (starts.size == 1 and starts[0] == 0 and lengths[0] == variable.size)


@dataclass
class _Part:
    """A transfer, or a program beside which transfers pass.

    Attributes:
        steps: the numbers of its steps.
        begin, end: its time, in cycles.
        exposed: cycles of a transfer in which the tiles wait.
    """

    tree: Tree
    steps: tuple[int, ...]
    begin: int
    end: int
    exposed: int = 0


def account_overlap(steps: list[StepAccount], trees: Sequence[Tree], moves: Sequence[bool]) -> Tree:
    """Accounts transfers that pass beside programs: what of their time is hidden, and their memory meanwhile.

    Args:
        steps: all accounts, by number; those concerned are replaced.
        trees: the programs in order.
        moves: which of them are transfers, which share one channel.

    Returns:
        The tree of all, with a load just before what runs when it begins and a store after what runs when it ends.
    """
    programs, transfers = _timeline(steps, trees, moves)
    _buffers(steps, programs, transfers)
    for transfer in transfers:
        (number,) = transfer.steps
        account, left = steps[number], transfer.exposed
        # Of what the tiles wait for, the exchange counts first, up to its whole, and the rest as barrier.
        exchange = min(left, account.exchange_cycles)
        steps[number] = replace(
            account, exchange_cycles=exchange, sync_cycles=left - exchange, hidden=account.cycles - left
        )
    return Interleaved(tuple(part.tree for part in _placed(steps, programs, transfers)), tuple(trees))


def _timeline(
    steps: Sequence[StepAccount], trees: Sequence[Tree], moves: Sequence[bool]
) -> tuple[list[_Part], list[_Part]]:
    """When programs and transfers begin and end."""
    programs, transfers, flying = list[_Part](), list[_Part](), list[_Part]()
    now = free = 0

    def wait(until: int) -> int:
        """Lets the tiles wait; the channel is busy all the while."""
        for one in flying:
            one.exposed += max(0, min(until, one.end) - max(now, one.begin))
        return max(now, until)

    for tree, moved in zip(trees, moves, strict=True):
        counts = counts_of(tree, len(steps), {})
        own = tuple(number for number, count in enumerate(counts) if count)
        cycles = sum(counts[number] * steps[number].cycles for number in own)
        if moved:
            # One channel, in the order of the program: a transfer begins when all that stands before it has ended.
            begin = max(now, free)
            free = begin + cycles
            transfers.append(_Part(tree, own, begin, free))
            flying.append(transfers[-1])
        else:
            # Those that have ended make nobody wait any more.
            flying = [one for one in flying if one.end > now]
            now = wait(max((one.end for one in flying if _meet(steps, own, one)), default=now))
            programs.append(_Part(tree, own, now, now + cycles))
            now += cycles
    # A run is over when its last transfer is: the next run's would find the channel busy.
    wait(max(now, free))
    return programs, transfers


def _meet(steps: Sequence[StepAccount], own: Sequence[int], transfer: _Part) -> bool:
    """Whether a program has to wait for a transfer: for its tensor, or for the channel."""
    moved = steps[transfer.steps[0]]
    return any(
        steps[number].kind == "remote"
        or (steps[number].writes & (moved.reads | moved.writes))
        or (steps[number].reads & moved.writes)
        for number in own
    )


def _buffers(steps: list[StepAccount], programs: Sequence[_Part], transfers: Sequence[_Part]) -> None:
    """Adds to the memory of what runs beside transfers the exchange buffers of these."""
    held: dict[int, Ints] = {}
    for program in programs:
        beside = [one for one in transfers if one.begin < program.end and program.begin < one.end]
        if beside:
            buffers = np.sum([steps[one.steps[0]].memory["exchange buffers"] for one in beside], axis=0)
            for number in program.steps:
                held[number] = np.maximum(held.get(number, 0), buffers)
    for number, buffers in held.items():
        steps[number] = replace(steps[number], memory={**steps[number].memory, "transfers": buffers})


def _placed(steps: Sequence[StepAccount], programs: Sequence[_Part], transfers: Sequence[_Part]) -> list[_Part]:
    """All parts in the order in which the tensors live."""
    ends, begins = ([getattr(part, name) for part in programs] for name in ("end", "begin"))
    places: list[tuple[int, int, int]] = []
    for number, one in enumerate(transfers):
        account = steps[one.steps[0]]
        same = [places[i][0] for i in range(number) if steps[transfers[i].steps[0]].reads & account.writes]
        # A store reads its tensor until it ends, and a load fills one from when it begins: their variables must live
        # that long, which is why the places differ.
        if not account.writes:
            places.append((int(np.searchsorted(begins, one.end, side="left")) - 1, 2, number))
        elif (begin := int(np.searchsorted(ends, one.begin, side="right"))) > max(same, default=-1):
            places.append((begin, 0, number))
        else:
            places.append((max(same), 2, number))  # after the store of what lay there before
    places += [(place, 1, place) for place in range(len(programs))]
    # At one place loads (0) stand before the program (1), and stores (2) behind it.
    return [programs[number] if kind == 1 else transfers[number] for _, kind, number in sorted(places)]
