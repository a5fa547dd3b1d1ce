"""What one step of a program costs: cycles of compute, exchange and sync, bytes by tile, memory while it runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipu_core.chip import cost
from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic
from ipu_core.engine.accesses import Accesses
from ipu_core.engine.exchange import copy_traffic
from ipu_core.engine.moves import Moves
from ipu_core.graph.codelet import Codelet
from ipu_core.graph.program import Copy
from ipu_core.graph.regions import runs_of
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import ComputeSet, VertexGroup
from lowprec.checks import shown

Vertices = Sequence[tuple[VertexGroup, Codelet]]
"""Groups, each with the codelet that says what its vertices cost."""


@dataclass(frozen=True, eq=False)
class StepAccount:
    """One superstep. Arrays are by tile.

    Attributes:
        name, kind: what it is; kind is execute, copy, stream, remote or sync.
        compute: cycles each tile computes.
        gather, scatter: traffic before and after.
        exchange_cycles, sync_cycles: cycles of both phases together.
        memory: bytes by tile and category while the step runs: gathered operands, exchange buffers, scratch.
        reads, writes: the variables it accesses; `defines` are written in full, whatever they held before.
        vertices: how many ran.
        hidden: cycles of a transfer that passed beside other steps and are in none of the other figures.
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

    @property
    def compute_cycles(self) -> int:
        """Cycles of the slowest tile."""
        return int(self.compute.max(initial=0))

    @property
    def cycles(self) -> int:
        """All cycles of the step."""
        return self.compute_cycles + self.exchange_cycles + self.sync_cycles


def account_execute(
    compute_set: ComputeSet, vertices: Vertices, accesses: Accesses, moves: Moves, target: Target
) -> StepAccount:
    """The account of a compute set: one sync before it, a second one only where results are scattered."""
    reads, writes = accesses
    gather = Traffic.sum((moves.gathered(v, sets) for v, sets in reads.items()), target.tiles)
    scatter = Traffic.sum((moves.scattered(v, sets) for v, sets in writes.items()), target.tiles)
    scattered = scatter.cycles(target)
    return StepAccount(
        compute_set.name,
        "execute",
        _compute_cycles(vertices, target),
        gather,
        scatter,
        gather.cycles(target) + scattered,
        target.sync_cycles * (2 if scattered else 1),
        {"gathered operands": gather.received, "exchange buffers": scatter.sent, "scratch": _scratch(vertices, target)},
        frozenset(reads),
        frozenset(writes),
        frozenset(v for v, s in writes.items() if v not in reads and _is_all(v, *s.union)),
        sum(group.vertices for group, _ in vertices),
    )


def account_copy(name: str, copy: Copy, target: Target) -> StepAccount:
    """The account of a copy: foreign bytes over the exchange, local ones by the tile's workers."""
    traffic, local = copy_traffic(copy.source, copy.destination, target)
    compute = cost.local_copy(target, local)
    source, destination = copy.source.variable, copy.destination.variable
    full = _is_all(destination, *_runs(copy.destination))
    return StepAccount(
        name,
        "copy",
        compute,
        traffic,
        Traffic.none(target.tiles),
        traffic.cycles(target),
        target.sync_cycles,
        {},
        frozenset([source]),
        frozenset([destination]),
        frozenset([destination] if full and source is not destination else []),
    )


def account_host(name: str, kind: str, tensor: Tensor, into: bool, bandwidth: float, target: Target) -> StepAccount:
    """The account of a transfer with the host or streaming memory: the slower of that link and the tiles' own rate."""
    pieces = tensor.variable.mapping.cut(*_runs(tensor))
    size = tensor.dtype.itemsize
    by_tile = np.bincount(pieces.tiles, pieces.lengths * size, target.tiles).astype(np.int64)
    none = np.zeros(target.tiles, np.int64)
    traffic = Traffic(by_tile if into else none, none if into else by_tile, none)
    cycles = max(traffic.cycles(target), target.transfer_cycles(int(by_tile.sum()), bandwidth))
    accessed = frozenset([tensor.variable])
    return StepAccount(
        name,
        kind,
        none,
        traffic,
        Traffic.none(target.tiles),
        cycles,
        target.sync_cycles,
        {"exchange buffers": by_tile},
        frozenset() if into else accessed,
        accessed if into else frozenset(),
        accessed if into and _is_all(tensor.variable, *_runs(tensor)) else frozenset(),
    )


def account_sync(name: str, target: Target, reads: frozenset[Variable], defines: frozenset[Variable]) -> StepAccount:
    """The account of a step that moves nothing: a barrier (or, without cycles, a remark on liveness)."""
    none = Traffic.none(target.tiles)
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
        np.add.at(queues, where * workers + (dealt[where] + rank) % workers, each)
        dealt += counts
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


def _runs(tensor: Tensor) -> tuple[Ints, Ints]:
    starts, lengths = runs_of(tensor.shape, tensor.strides)
    return starts + tensor.offset, lengths


def _is_all(variable: Variable, starts: Ints, lengths: Ints) -> bool:
    """Whether disjoint runs that do not touch are all elements of a variable."""
    return variable.size == 0 or (starts.size == 1 and starts[0] == 0 and lengths[0] == variable.size)
