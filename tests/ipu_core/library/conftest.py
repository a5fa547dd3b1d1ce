"""Helpers: a product or sum built and run from its plan, and a count over every vertex and every element moved."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.engine.engine import Engine
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Sequence
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import VertexGroup
from ipu_core.library.elementwise import add_array
from ipu_core.library.matmul import matmul
from ipu_core.placement.matmul import SumPlan


class Built(NamedTuple):
    """A product on tiles."""

    graph: Graph
    programs: list[Any]
    engine: Engine
    a: Tensor
    b: Tensor
    out: Tensor

    def run(self, a: Any, b: Any) -> Any:
        """The product of two arrays."""
        self.engine.write(self.a, a)
        self.engine.write(self.b, b)
        self.engine.run()
        return self.engine.read(self.out)


def build(plan: SumPlan, *, stochastic: bool = False, key: int | None = None, transposed: str = "") -> Built:
    """The product of a plan; operands named in `transposed` are stored with their last two axes exchanged."""
    p, graph = plan.product, Graph(plan.target)
    tensors = {}
    for name, shape in (("a", (p.batch, p.m, p.k)), ("b", (p.batch, p.k, p.n))):
        stored = (shape[0], shape[2], shape[1]) if name in transposed else shape
        tensor = add_array(graph, p.operands, stored, name, temporary=False)
        tensors[name] = tensor.transpose(0, 2, 1) if name in transposed else tensor
    out = add_array(graph, plan.accumulation.out, (p.batch, p.m, p.n), "out", temporary=False)
    _, programs = matmul(graph, tensors["a"], tensors["b"], plan, out=out, stochastic=stochastic, operation=7)
    engine = Engine(graph, Sequence(*programs), key=key, allow_out_of_memory=True)
    return Built(graph, programs, engine, tensors["a"], tensors["b"], out)


class Count(NamedTuple):
    """What an operation costs, counted one by one."""

    compute: int
    exchange: int
    sync: int
    received: int
    sent: int


def homes(variable: Variable) -> np.ndarray[Any, Any]:
    """The tile of every element, from the pieces as they were given; each element must have exactly one."""
    tiles = np.full(variable.size, -1)
    for starts, ends, where in variable.pieces:
        for start, end, tile in zip(starts, ends, where, strict=True):
            assert (tiles[start:end] == -1).all()
            tiles[start:end] = tile
    assert (tiles >= 0).all()
    return tiles


def phase(transfers: dict[Variable, list[np.ndarray[Any, Any]]], target: Target) -> tuple[int, int, int]:
    """(cycles, bytes received, bytes sent) of an exchange of (from, to, element) triples, each counted once."""
    received, sent = np.zeros(target.tiles), np.zeros(target.tiles)
    shared = np.zeros(target.tiles)
    for variable, rows in transfers.items():
        size = variable.dtype.itemsize
        moved = np.unique(np.concatenate(rows), axis=0)
        moved = moved[moved[:, 0] != moved[:, 1]]
        received += np.bincount(moved[:, 1], minlength=target.tiles) * size
        once = np.unique(moved[:, [0, 2]], axis=0)
        sent += np.bincount(once[:, 0], minlength=target.tiles) * size
        pairs, counts = np.unique(np.stack([moved[:, 1] // 2, moved[:, 2]], 1), axis=0, return_counts=True)
        both = np.bincount(pairs[counts == 2, 0], minlength=(target.tiles + 1) // 2) * size
        shared += np.repeat(both, 2)[: target.tiles]
    busiest = max((received - shared / 2).max(), sent.max())
    cycles = 100 + int(-(-busiest // 4)) if busiest else 0
    return cycles, int(received.sum()), int(sent.sum())


def elements(group: VertexGroup, name: str) -> np.ndarray[Any, Any]:
    """Flat element indices of a field, one row per vertex."""
    operand = group.operands[name]
    indices = operand.tensor.indices() if operand.tensor is not None else operand.indices
    assert indices is not None
    return indices.reshape(group.tiles.size, -1)


def count(programs: list[Any], target: Target, cycles: Callable[[VertexGroup], int]) -> Count:
    """Counts programs vertex by vertex and element by element; `cycles` gives those of one vertex of a group."""
    total = np.zeros(5, np.int64)
    for program in programs:
        before: dict[Variable, list[Any]] = {}
        after: dict[Variable, list[Any]] = {}
        busy = np.zeros(target.tiles, np.int64)
        if isinstance(program, Copy):
            source, to = program.source, program.destination
            rows = np.stack([homes(source.variable)[source.indices()], homes(to.variable)[to.indices()]], -1).reshape(
                -1, 2
            )
            at = source.indices().reshape(-1)
            before[source.variable] = [np.column_stack([rows, at])]
            local = np.bincount(rows[rows[:, 0] == rows[:, 1], 0], minlength=target.tiles) * source.dtype.itemsize
            busy = np.where(local > 0, 120 + -(-local // 8), 0)
        else:
            for group in program.compute_set.groups:
                tiles = group.tiles.ravel()
                for tile in tiles:
                    busy[tile] += cycles(group)
                for name, operand in group.operands.items():
                    home, touched = homes(operand.variable), elements(group, name)
                    mine = np.broadcast_to(tiles[:, None], touched.shape)
                    if operand.field.reads:
                        rows = np.stack([home[touched], mine, touched], -1).reshape(-1, 3)
                        before.setdefault(operand.variable, []).append(rows)
                    else:
                        rows = np.stack([mine, home[touched], touched], -1).reshape(-1, 3)
                        after.setdefault(operand.variable, []).append(rows)
        gathered, scattered = phase(before, target), phase(after, target)
        syncs = 90 * (2 if scattered[0] else 1)
        total += [busy.max(), gathered[0] + scattered[0], syncs, gathered[1] + scattered[1], gathered[2] + scattered[2]]
    return Count(*(int(value) for value in total))


@pytest.fixture
def small() -> Target:
    """A chip of few tiles."""
    return Target("gc200", tiles=64)
