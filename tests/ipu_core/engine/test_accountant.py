"""The account alone is the engine's, figure by figure, with the same refusals, and makes no storage."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.engine import Engine, bind, engine, remembered
from ipu_core.engine.accountant import account
from ipu_core.engine.profile import Profile
from ipu_core.errors import DataRace, OutOfStreamingMemory, OutOfTileMemory, UnmappedTensor
from ipu_core.graph import (
    AbortOnNaN,
    Call,
    Codelet,
    Copy,
    DataStream,
    Execute,
    Graph,
    If,
    Input,
    Output,
    Overlap,
    Program,
    RemoteBuffer,
    RemoteLoad,
    RemoteStore,
    Repeat,
    RepeatWhile,
    Sequence,
    StreamCopy,
    Switch,
    Sync,
    WriteUndef,
)
from ipu_core.library.elementwise import add_array, elementwise
from tests.ipu_core.engine.codelets import Decrement, Draw, Scale, counting, on_tile_0

TARGET = Target("gc200", tiles=6)
CONTROL = FloatingPointControl()


def facts(profile: Profile) -> dict[str, Any]:
    """Everything in a profile, every step tile by tile."""
    steps = []
    for step in profile.steps:
        one = step.account
        by_tile = {"compute": one.compute, **dict(zip("abc", one.gather, strict=True)),
                   **dict(zip("def", one.scatter, strict=True)), **one.memory}  # fmt: skip
        accessed = [sorted(v.name for v in those) for those in (one.reads, one.writes, one.defines)]
        steps.append([step.name, step.kind, step.count, one.exchange_cycles, one.sync_cycles, one.vertices, one.hidden,
                      accessed, {name: np.asarray(figures).tolist() for name, figures in by_tile.items()}])  # fmt: skip
    return {**profile.to_json(), "every step": steps}


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    """No account is one of an engine that was built before."""
    remembered._kept.cache_clear()


def program(graph: Graph) -> Program:
    """Something of every kind."""
    n, count = counting(graph)
    x, y, z = (add_array(graph, "float32", (12,), name, temporary=name == "z") for name in "xyz")
    moved = graph.add_variable("float32", (12,), "moved")
    graph.set_tile_mapping(moved, 5)
    add = Sequence(*elementwise(graph, "add", [x, y], z))
    far = RemoteBuffer("far", "float32", (12,), 3)
    doubled = graph.add_compute_set("doubled")
    to = on_tile_0(graph, "float32", (12,), "to")
    graph.add_vertex(doubled, Scale, 3, {"x": moved, "y": to})
    return Sequence(
        StreamCopy(DataStream("in", "float32", (12,)), x),
        Repeat(3, Sequence(add, Copy(z, y), Repeat(2, Execute(doubled)))),
        Overlap(RemoteLoad(far, x, 1), Execute(doubled), Copy(moved, to), *add.steps, RemoteStore(z, far, n)),
        Call(add, "again"),
        WriteUndef(z),
        If(n, Sequence(add, Sync()), Copy(z, x)),
        Switch(n, {1: Copy(x, y), 2: add}, Sync()),
        RepeatWhile(count, n, add),
        StreamCopy(DataStream("out", "float32", (12,), to_device=False), y),
    )


def test_the_account_alone_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(TARGET)
    programs = [program(graph), Sequence(), Repeat(4, program(graph))]
    whole = Engine(graph, programs)
    remembered._kept.cache_clear()
    for where, name in ((engine, "aligned"), (bind, "aligned"), (bind, "bind_group")):
        monkeypatch.delattr(where, name)
    alone = account(graph, programs, CONTROL)
    for number in range(3):
        assert facts(alone.profile(number)) == facts(whole.profile(number))
        assert str(alone.profile(number)) == str(whole.profile(number))


@pytest.mark.parametrize("start", [0, 1, 2])
def test_a_branch_that_is_said_counts_as_one_that_was_run(start: int) -> None:
    graph = Graph(TARGET)
    n, decrement = counting(graph)
    x, y = add_array(graph, "float32", (12,), "x"), add_array(graph, "float32", (12,), "y")
    add = Sequence(*elementwise(graph, "add", [x, 1.0], y))
    branch = Sequence(decrement, Repeat(3, If(n, add, Copy(x, y))), If(n, Sync()))
    ran = Engine(graph, branch)
    assert not ran.profile().measured
    ran.write(n, start)
    ran.run()
    alone = account(graph, [branch], CONTROL)
    holds = {n.variable: start != 1}
    assert facts(alone.profile(0, holds, measured=True)) == facts(ran.profile())
    assert not alone.profile(0, holds).measured
    assert facts(alone.profile()) == facts(Engine(graph, branch).profile())


def test_steps_are_listed_as_each_program_names_them_first() -> None:
    """Also those that another program had before, and transfers, wherever these lie in time."""
    graph = Graph(TARGET)
    n, count = counting(graph)
    x, y = (add_array(graph, "float32", (12,), name, temporary=False) for name in "xy")
    one, two, three = (Sequence(*elementwise(graph, "add", [x, 1.0], y, name=name)) for name in "abc")
    far = RemoteBuffer("far", "float32", (12,))
    programs = [
        Sequence(one, two, three),
        Sequence(two, Repeat(2, Sequence(three, one)), two),
        Sequence(RepeatWhile(three, n, one), If(n, two, count)),
        Overlap(RemoteStore(x, far), Repeat(9, three), one),
    ]
    made = account(graph, programs, CONTROL)
    names = [[step.name for step in made.profile(number).steps] for number in range(4)]
    assert names == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["store far", "c", "a"]]
    assert [step.count for step in made.profile(1).steps] == [2, 2, 2]
    assert made.profile(3).outline[0] != (0, "store far")


def test_compute_sets_that_were_joined_keep_their_names_also_where_they_cost_the_same() -> None:
    graph = Graph(TARGET)
    names, steps = ("ab", "cde", "fgh"), list[Program]()
    for those in names:
        x, *to = (add_array(graph, "float32", (12,), temporary=False) for _ in range(1 + len(those)))
        made = [elementwise(graph, "add", [x, 1.0], y, name=name) for name, y in zip(those, to, strict=True)]
        sets = [step.compute_set for (step,) in made if isinstance(step, Execute)]
        steps.append(Execute(graph.join([graph.join(sets[:2]), *sets[2:]], "joined")))
    found = account(graph, [Sequence(*steps)], CONTROL).profile().steps
    assert [(step.name, step.operations) for step in found] == [("joined", tuple(those)) for those in names]
    assert [len(each) for each in graph.joined.values()] == [2, 3, 3]


def test_barriers_cost_their_cycles() -> None:
    graph = Graph(TARGET)
    x = on_tile_0(graph, "float32", (4,), "x")
    for made, name in ((Sync(), "sync"), (AbortOnNaN(x), "abort on NaN in x")):
        (step,) = account(graph, [Repeat(3, made)], CONTROL).profile().steps
        assert (step.name, step.kind, step.cycles) == (name, "sync", 3 * TARGET.sync_cycles)
    assert account(graph, [WriteUndef(x)], CONTROL).profile().cycles == 0


def test_a_store_that_ends_after_a_branch_leaves_it_its_own_steps() -> None:
    """In the tree the store stands after what runs beside it."""
    graph = Graph(Target("gc200", tiles=6, streaming_share=1e6))
    n, decrement = counting(graph)
    x, y, z = (add_array(graph, "float32", (600,), name, temporary=False) for name in "xyz")
    far, add = RemoteBuffer("far", "float32", (600,)), Sequence(*elementwise(graph, "add", [x, 1.0], y))
    engine = Engine(graph, Overlap(RemoteStore(x, far), If(n, add, decrement), Repeat(2, Copy(y, z))))
    engine.write(n, 1)
    engine.run()
    np.testing.assert_array_equal(engine.read(z), 1)
    profile = engine.profile()
    assert {step.name: step.count for step in profile.steps}["copy y -> z"] == 2
    assert profile.outline[-1] == (0, "store far")
    assert profile.hidden_cycles > 0


class Sparse(Codelet):
    """Costs what its rows hold, which only a constant's elements tell, and what was prepared."""

    rows = Input("int32", ndim=1)
    y = Output("int32", ndim=1)

    def prepare(self) -> None:
        self.most = int(np.asarray(self.rows).max())

    def compute(self) -> None:
        self.y = self.rows

    def cycles(self, target: Target) -> Any:
        return self.rows.sum(axis=-1) + self.most


def test_an_engines_codelets_see_their_elements_when_they_say_what_they_cost() -> None:
    graph = Graph(TARGET)
    rows = graph.add_constant("int32", np.array([5, 7, 30], np.int32), "rows")
    graph.set_tile_mapping(rows, 0)
    cs = graph.add_compute_set()
    graph.add_vertex(cs, Sparse, 0, {"rows": rows, "y": on_tile_0(graph, "int32", (3,), "y")})
    assert Engine(graph, Execute(cs)).profile().compute_cycles == 72 * TARGET.workers


def large(graph: Graph) -> Program:
    return Copy(*(on_tile_0(graph, "float32", (100_000,), name) for name in "xy"))


def unmapped(graph: Graph) -> Program:
    return Copy(graph.add_variable("float32", (4,), "x"), on_tile_0(graph, "float32", (4,), "y"))


def racing(graph: Graph) -> Program:
    n, cs = on_tile_0(graph, "int32", (), "n"), graph.add_compute_set("race")
    for tile in (0, 1):
        graph.add_vertex(cs, Decrement, tile, {"x": n})
    return Execute(cs)


def streaming(graph: Graph) -> Program:
    x = on_tile_0(graph, "float32", (1000,), "x")
    return RemoteLoad(RemoteBuffer("far", "float32", (1000,), 2), x, 1)


def decremented(graph: Graph, n: Any) -> Program:
    cs = graph.add_compute_set()
    graph.add_vertices(cs, Decrement, [0], {"x": n})
    return Execute(cs)


def foreign(make: Callable[[Graph, Graph], Program]) -> Callable[[Graph], Program]:
    return lambda graph: make(graph, Graph(TARGET))


REFUSED: dict[str, tuple[Callable[[Graph], Program], type[Exception], str]] = {
    "memory": (large, OutOfTileMemory, "tile 0 needs"),
    "mapping": (unmapped, UnmappedTensor, "mapped to no tile"),
    "race": (racing, DataRace, "'race'"),
    "streaming memory": (streaming, OutOfStreamingMemory, "8,000 bytes of 7,999"),
    "variable": (foreign(lambda own, other: large(other)), ValueError, "'x' is of another graph"),
    "entry": (
        foreign(lambda own, other: RemoteLoad(RemoteBuffer("far", "int32", ()), on_tile_0(own, "int32", (), "x"),
                                              on_tile_0(other, "int32", (), "entry"))),
        ValueError, "'entry' is of another graph",
    ),
    "predicate": (
        foreign(lambda own, other: If(on_tile_0(other, "int32", (), "p"), Sync())), ValueError, "'p' is of another"
    ),
    "operand": (foreign(lambda own, other: decremented(own, on_tile_0(other, "int32", (1,), "n"))), ValueError,
                "'n' is of another graph"),
    "compute set": (foreign(lambda own, other: counting(other)[1]), ValueError, "'decrement' is of another graph"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_both_refuse_the_same_in_the_same_words(what: str) -> None:
    make, kind, words = REFUSED[what]
    said = []
    for run in (lambda graph, made: Engine(graph, made), lambda graph, made: account(graph, [made], CONTROL)):
        remembered._kept.cache_clear()
        graph = Graph(Target("gc200", tiles=6, streaming_memory=7_999))
        made = make(graph)
        with pytest.raises(kind, match=words) as caught:
            run(graph, made)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_what_does_not_fit_is_accounted_where_it_is_allowed() -> None:
    graph = Graph(Target("gc200", tiles=6, streaming_memory=7_999))
    made = [large(graph), streaming(graph)]
    alone = account(graph, made, CONTROL, allow_out_of_memory=True)
    assert facts(alone.profile(1)) == facts(Engine(graph, made, allow_out_of_memory=True).profile(1))
    assert alone.memory.peak_bytes > alone.memory.available


def test_who_draws_is_accounted_without_a_key() -> None:
    graph = Graph(TARGET)
    cs = graph.add_compute_set()
    graph.add_vertex(cs, Draw, 0, {"out": on_tile_0(graph, "float32", (1,), "out")})
    assert facts(account(graph, [Execute(cs)], CONTROL).profile()) == facts(Engine(graph, Execute(cs)).profile())
