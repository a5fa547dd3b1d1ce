"""Equal steps are accounted once: what differs in any way that costs something has a memo key of its own."""

import gc
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import ipu_core.engine.accountant as accountant_module
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.engine import Engine, remembered
from ipu_core.engine.steps import StepAccount
from ipu_core.errors import DataRace
from ipu_core.graph import Codelet, Copy, Execute, Graph, Input, Output, Param, Program, Sequence, Tensor
from ipu_core.library.elementwise import add_array, elementwise

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
    together = [facts(account) for account in Engine(graph, Sequence(*programs))._account.steps]
    alone = []
    for program in programs:
        remembered._kept.cache_clear()
        alone += [facts(account) for account in Engine(graph, program)._account.steps]
    assert together == alone
    costs = [str((fact[1:6], fact[7])) for fact in alone]
    assert costs[0] == costs[1]
    assert costs[19] == costs[20]
    assert len(set(costs)) >= len(STEPS) - 4  # the steps differ, so that one taken for another is seen


def test_steps_of_one_memo_key_are_accounted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, made = Graph(TARGET), counted(monkeypatch)
    Engine(graph, Sequence(*(step(graph) for step in STEPS[:2] * 3 + STEPS[19:21] * 3)))
    assert sorted(made) == ["account_copies", "account_execute"]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which accounts are made from here on, where none has been kept."""
    made: list[str] = []
    remembered._kept.cache_clear()
    for name in ("account_execute", "account_copies"):
        real = getattr(accountant_module, name)
        monkeypatch.setattr(
            accountant_module, name, lambda *given, name=name, real=real: made.append(name) or real(*given)
        )
    return made


def ours(graph: Graph, op: str = "add") -> Program:
    """An operation of the library, and a copy of what it gives."""
    x, y, z = (add_array(graph, "float32", (12,), temporary=False) for _ in range(3))
    return Sequence(*elementwise(graph, op, [x, y], z), Copy(z, x))


def built(target: Target = TARGET, op: str = "add", **more: Any) -> Engine:
    graph = Graph(target)
    return Engine(graph, ours(graph, op), **more)


DIFFERENT: list[dict[str, Any]] = [
    {"op": "divide"},
    {"control": FloatingPointControl(nanoo=True)},
    {"target": Target("gc2", tiles=6)},
]


def test_another_engine_takes_over_the_accounts_of_the_librarys_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    first = [facts(account) for account in built()._account.steps]
    assert made == ["account_execute", "account_copies"]
    assert [facts(account) for account in built()._account.steps] == first
    assert len(made) == 2
    for number, different in enumerate(DIFFERENT):
        built(**different)
        assert made.count("account_execute") == 2 + number


def test_what_is_kept_can_be_written_by_nobody_and_keeps_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch)
    engine = built()
    with pytest.raises(ValueError, match="read-only"):
        engine._account.steps[0].compute[0] = 1
    kept = [weakref.ref(engine.graph), *(weakref.ref(variable) for variable in engine.graph.variables)]
    del engine
    gc.collect()
    assert all(one() is None for one in kept)


def test_no_more_accounts_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    monkeypatch.setattr(remembered, "_kept", lru_cache(2)(remembered._kept.__wrapped__))
    built()
    built(op="divide")  # whose copy is known, and takes the place of the addition
    made.clear()
    built(op="divide")
    assert made == []
    built()
    assert made == ["account_execute"]


def test_a_users_codelet_is_accounted_by_every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch)
    cycles = []
    for cost in (7, 9):
        monkeypatch.setattr(Other, "cycles", lambda self, target, cost=cost: cost)
        graph = Graph(TARGET)
        cycles.append(Engine(graph, execute(graph, codelet=Other)).profile().compute_cycles)
    assert cycles == [7 * TARGET.workers, 9 * TARGET.workers]


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


def test_a_race_is_found_where_other_vertices_stand_before_those_that_are_remembered() -> None:
    """Of the first step the vertices 0 and 1 write what 2 and 3 of the second write, which 0 and 1 read there."""
    graph = Graph(TARGET)
    x, y, z = lying(graph), lying(graph), lying(graph)
    part = y[4:8].reshape(2, 2)
    first, second = graph.add_compute_set("first"), graph.add_compute_set("second")
    for cs, source, to in ((first, x[:4].reshape(2, 2), part), (second, part, z[4:8].reshape(2, 2)),
                           (second, x[:4].reshape(2, 2), part)):  # fmt: skip
        graph.add_vertices(cs, Work, np.array([1, 3]), {"x": source, "y": to})
    with pytest.raises(DataRace, match="second"):
        Engine(graph, Sequence(Execute(first), Execute(second)))
