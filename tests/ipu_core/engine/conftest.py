"""A count over every vertex, element and transfer, with Python sets: what the engine's arithmetic must equal."""

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import Operand, VertexGroup


def tile_of(variable: Variable) -> list[int]:
    """Tile of every element, from the pieces as they were given."""
    tiles = [-1] * variable.size
    for starts, ends, where in variable.pieces:
        for start, end, tile in zip(starts, ends, where, strict=True):
            for element in range(start, end):
                assert tiles[element] == -1
                tiles[element] = int(tile)
    assert -1 not in tiles
    return tiles


def elements(operand: Operand) -> np.ndarray:
    """Flat element indices, one row per vertex."""
    indices = operand.tensor.indices() if operand.tensor is not None else operand.indices
    return indices.reshape(int(np.prod(operand.shape[: operand.vertex_axes])), -1)


def count_traffic(transfers: set[tuple[int, int, int, int]], sizes: dict[int, int], target: Target) -> Traffic:
    """Transfers are (from tile, to tile, variable, element), each element once per receiver."""
    received, sent, shared = (np.zeros(target.tiles, np.int64) for _ in range(3))
    inbox = defaultdict(set)
    for _, to, variable, element in transfers:
        inbox[to].add((variable, element))
        received[to] += sizes[variable]
    for source, variable, _ in {(t[0], t[2], t[3]) for t in transfers}:
        sent[source] += sizes[variable]
    for tile in range(target.tiles):
        neighbour = tile + 1 if tile % 2 == 0 else tile - 1
        shared[tile] = sum(sizes[variable] for variable, _ in inbox[tile] & inbox[neighbour])
    return Traffic(received, sent, shared)


def gather(groups: Sequence[VertexGroup], target: Target) -> Traffic:
    """Operands that vertices need from other tiles."""
    transfers, sizes = set(), {}
    for group in groups:
        for operand in group.operands.values():
            if not operand.field.reads:
                continue
            home, number = tile_of(operand.variable), operand.variable.number
            sizes[number] = operand.variable.dtype.itemsize
            for tile, row in zip(group.tiles.ravel(), elements(operand), strict=True):
                transfers |= {(home[e], int(tile), number, int(e)) for e in row if home[e] != tile}
    return count_traffic(transfers, sizes, target)


def scatter(groups: Sequence[VertexGroup], target: Target) -> Traffic:
    """Results that vertices send to other tiles; a result has one receiver, so nothing is shared."""
    received, sent = np.zeros(target.tiles, np.int64), np.zeros(target.tiles, np.int64)
    for group in groups:
        for operand in group.operands.values():
            if not operand.field.writes:
                continue
            home, size = tile_of(operand.variable), operand.variable.dtype.itemsize
            for tile, row in zip(group.tiles.ravel(), elements(operand), strict=True):
                for element in row:
                    if home[element] != tile:
                        received[home[element]] += size
                        sent[tile] += size
    return Traffic(received, sent, np.zeros(target.tiles, np.int64))


def copied(source: Tensor, destination: Tensor, target: Target) -> tuple[Traffic, np.ndarray]:
    """A copy's transfers, and the bytes written from the same tile."""
    size, number = source.dtype.itemsize, source.variable.number
    ours, theirs = tile_of(source.variable), tile_of(destination.variable)
    transfers, local = set(), np.zeros(target.tiles, np.int64)
    for s, d in zip(source.indices().ravel(), destination.indices().ravel(), strict=True):
        if ours[s] == theirs[d]:
            local[ours[s]] += size
        else:
            transfers.add((ours[s], theirs[d], number, int(s)))
    return count_traffic(transfers, {number: size}, target), local


def compute_cycles(groups: Sequence[VertexGroup], cycles: Sequence[np.ndarray], target: Target) -> np.ndarray:
    """Supervisor vertices add up; worker vertices are dealt to the workers in turn, the slowest counts W times."""
    alone = [0] * target.tiles
    queues = [[0] * target.workers for _ in range(target.tiles)]
    dealt = [0] * target.tiles
    for group, each in zip(groups, cycles, strict=True):
        for tile, cost in zip(group.tiles.ravel(), np.broadcast_to(each, group.tiles.shape).ravel(), strict=True):
            if group.codelet.supervisor:
                alone[tile] += int(cost)
            else:
                queues[tile][dealt[tile] % target.workers] += int(cost)
                dealt[tile] += 1
    return np.array([a + target.workers * max(queue) for a, queue in zip(alone, queues, strict=True)])


@pytest.fixture(scope="session")
def brute() -> SimpleNamespace:
    """The counts of this file."""
    return SimpleNamespace(gather=gather, scatter=scatter, copied=copied, compute_cycles=compute_cycles)
