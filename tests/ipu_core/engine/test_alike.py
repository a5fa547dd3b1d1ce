"""Equal steps are accounted once: what differs in any way that costs something has an account of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.engine import Engine
from ipu_core.engine.account import StepAccount
from ipu_core.errors import DataRace
from ipu_core.graph import Codelet, Copy, Execute, Graph, Input, Output, Param, Program, Sequence, Tensor
from ipu_core.target import Target

TARGET = Target("gc200", tiles=6)


class Work(Codelet):
    x = Input(ndim=1)
    y = Output(ndim=1)
    cost = Param(3)

    def compute(self) -> None:
        self.y = self.x

    def cycles(self, target: Target) -> Any:
        return np.asarray(self.cost).sum() + self.x.shape[-1]


class Other(Work):
    def cycles(self, target: Target) -> Any:
        return 100


class Both(Work):
    z = Input(ndim=1)


def lying(graph: Graph, start: int = 0, fmt: str = "float32", size: int = 12) -> Tensor:
    tensor = graph.add_variable(fmt, (size,), "some")
    graph.map_linearly(tensor, 2)
    if start:
        tensor = graph.add_variable(fmt, (size,), "other")
        graph.set_tile_mapping(tensor, start)
    return tensor


def execute(
    graph: Graph, *, start: int = 0, fmt: str = "float32", size: int = 12, tiles: Any = (1, 3), shift: int = 0,
    codelet: type[Codelet] = Work, cost: Any = 3, indices: Any = None, same: bool = False,
) -> Program:  # fmt: skip
    x, y = lying(graph, start, fmt, size), lying(graph, 0, fmt, size)
    source = x[shift : shift + 4].reshape(2, 2) if indices is None else (x, indices)
    to = x[8:12].reshape(2, 2) if same else y[4:8].reshape(2, 2)
    cs = graph.add_compute_set("work")
    graph.add_vertices(cs, codelet, np.array(tiles), {"x": source, "y": to}, {"cost": cost})
    return Execute(cs)


def execute_both(graph: Graph, second: int) -> Program:
    """Reads one variable and writes another, and reads more of either."""
    x, y = variables = lying(graph), lying(graph)
    cs = graph.add_compute_set("both")
    fields = {"x": x[:4].reshape(2, 2), "z": variables[second][8:12].reshape(2, 2), "y": y[4:8].reshape(2, 2)}
    graph.add_vertices(cs, Both, np.array([3, 4]), fields)
    return Execute(cs)


def copy(graph: Graph, *, start: int = 0, shift: int = 0, fmt: str = "float32", name: str = "") -> Program:
    x, y = lying(graph, start, fmt), lying(graph, 2, fmt)
    return Copy(x[shift : shift + 4], y[4:8], name)


STEPS: list[Callable[[Graph], Program]] = [
    lambda graph: execute(graph),
    lambda graph: execute(graph),
    lambda graph: execute(graph, start=5),
    lambda graph: execute(graph, fmt="float16"),
    lambda graph: execute(graph, size=24),
    lambda graph: execute(graph, tiles=(1, 2)),
    lambda graph: execute(graph, tiles=(0, 0)),
    lambda graph: execute(graph, shift=6),
    lambda graph: execute(graph, codelet=Other),
    lambda graph: execute(graph, cost=4),
    lambda graph: execute(graph, cost=(4, 5)),
    lambda graph: execute(graph, cost=np.array([4, 6])),
    lambda graph: execute(graph, cost=np.array([4, 7])),
    lambda graph: execute(graph, cost=[1, 2]),  # has no hash
    lambda graph: execute(graph, indices=np.array([[0, 3], [8, 5]])),
    lambda graph: execute(graph, indices=np.array([[0, 3], [8, 11]])),
    lambda graph: execute(graph, same=True),
    lambda graph: execute_both(graph, 0),
    lambda graph: execute_both(graph, 1),
    lambda graph: copy(graph),
    lambda graph: copy(graph, name="again"),
    lambda graph: copy(graph, start=4),
    lambda graph: copy(graph, shift=8),
    lambda graph: copy(graph, fmt="float16"),
]


def facts(account: StepAccount) -> Any:
    gather, scatter = ([part.received.tolist(), part.sent.tolist()] for part in (account.gather, account.scatter))
    memory = {name: by_tile.tolist() for name, by_tile in account.memory.items()}
    accessed = [sorted(v.number for v in those) for those in (account.reads, account.writes, account.defines)]
    costs = account.exchange_cycles, account.sync_cycles, account.vertices
    return account.name, account.kind, account.compute.tolist(), gather, scatter, memory, accessed, costs


def test_every_step_has_the_account_that_it_has_alone() -> None:
    graph = Graph(TARGET)
    programs = [step(graph) for step in STEPS]
    together = [facts(account) for account in Engine(graph, Sequence(*programs))._steps]
    alone = [facts(account) for program in programs for account in Engine(graph, program)._steps]
    assert together == alone
    costs = [str((fact[1:6], fact[7])) for fact in alone]
    assert costs[0] == costs[1]
    assert costs[19] == costs[20]
    assert len(set(costs)) >= len(STEPS) - 4  # the steps differ, so that one taken for another is seen


def test_steps_that_are_alike_are_accounted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, made = Graph(TARGET), []
    programs = [step(graph) for step in STEPS[:2] * 3 + STEPS[19:21] * 3]
    for name in ("account_execute", "account_copy"):
        real = getattr(__import__("ipu_core.engine.compile", fromlist=[name]), name)
        monkeypatch.setattr(f"ipu_core.engine.compile.{name}", lambda *given, real=real: made.append(1) or real(*given))
    Engine(graph, Sequence(*programs))
    assert len(made) == 2


def test_a_race_is_found_in_the_second_step_too() -> None:
    graph = Graph(TARGET)
    x, y = lying(graph), lying(graph)
    programs = []
    for to in (y[4:8].reshape(2, 2), y[4:6].reshape(1, 2).broadcast_to((2, 2))):
        cs = graph.add_compute_set("work")
        graph.add_vertices(cs, Work, np.array([1, 3]), {"x": x[:4].reshape(2, 2), "y": to})
        programs.append(Execute(cs))
    with pytest.raises(DataRace):
        Engine(graph, Sequence(*programs))
