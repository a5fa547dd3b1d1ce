"""The engine end to end: the smallest example as a user writes it, refusals, streams, control flow, random keys."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.control import FloatingPointControl
from ipu_core.engine import Engine, Profile
from ipu_core.errors import FloatingPointException, OutOfStreamingMemory
from ipu_core.graph import (
    AbortOnNaN,
    Call,
    Codelet,
    Computation,
    Copy,
    DataStream,
    Execute,
    Graph,
    If,
    InOut,
    Input,
    Output,
    Overlap,
    Param,
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
    Tensor,
    Whole,
    WriteUndef,
    program_text,
)
from ipu_core.library.elementwise import map_array
from ipu_core.target import Target
from lowprec import Key


class AdderVertex(Codelet):
    x = Input("float32")
    y = Input("float32", ndim=1)
    z = Output("float32")
    bias = Param(0.0)

    def compute(self) -> None:
        self.z = self.x + self.y.sum(axis=-1) + self.bias

    def cycles(self, target: Target) -> int:
        return 20 + self.y.shape[-1]


def smallest() -> tuple[Engine, Graph, dict]:
    graph = Graph("gc200")
    t1 = graph.add_variable("float32", (4, 5), "t1")
    t2 = graph.add_variable("float32", (4,), "t2")
    graph.set_tile_mapping(t1[0:4, 0:2], 0)
    graph.set_tile_mapping(t1[0:4, 2:5], 1)
    graph.set_tile_mapping(t2, 2)
    cs = graph.add_compute_set("add")
    v1 = graph.add_vertex(cs, AdderVertex, 0, {"x": t1[1, 1], "y": t1[3, 1:3], "z": t2[0]}, {"bias": 0.5})
    v2 = graph.add_vertex(cs, AdderVertex)
    graph.set_tile_mapping(v2, 1)
    graph.connect(v2, "x", t1[0, 3])
    graph.connect(v2, "y", t1[2, 2:4])
    graph.connect(v2, "z", t2[3])
    graph.set_initial_value(v2, "bias", 0.5)
    engine = Engine(graph, Sequence(Execute(cs)))
    return engine, graph, {"t1": t1, "t2": t2, "v1": v1}


def test_smallest_example_runs_as_a_user_writes_it() -> None:
    engine, _, tensors = smallest()
    values = np.arange(20, dtype=np.float32).reshape(4, 5)
    engine.write(tensors["t1"], values)
    engine.run(0)
    expected = [values[1, 1] + values[3, 1:3].sum() + 0.5, 0, 0, values[0, 3] + values[2, 2:4].sum() + 0.5]
    np.testing.assert_array_equal(engine.read(tensors["t2"]), np.array(expected, np.float32))
    profile = engine.profile()
    assert profile.bytes_in[:3].tolist() == [4, 0, 8]  # t1[3,2] to tile 0; both results to tile 2
    assert profile.bytes_out[:3].tolist() == [4, 8, 0]  # tile 1 sends t1[3,2] and its result
    assert profile.compute_cycles == 6 * 22
    assert profile.cycles == 6 * 22 + (100 + 1) + (100 + 2) + 2 * 90
    printed = str(profile)
    assert "515 cycles" in printed
    assert "t1 48" in printed


class Scale(Codelet):
    x = Input("float32", ndim=1)
    y = Output("float32", ndim=1)
    factor = Param(2.0)

    def compute(self) -> None:
        self.y = self.x * self.factor

    def cycles(self, target: Target) -> int:
        return 10


class Decrement(Codelet):
    x = InOut("int32")

    def compute(self) -> None:
        self.x -= 1

    def cycles(self, target: Target) -> int:
        return 3


class Draw(Codelet):
    uses_key = True
    out = Output("float32", ndim=1)

    def compute(self) -> None:
        self.out = self.key.value % 10007

    def cycles(self, target: Target) -> int:
        return 1


class ToHalf(Codelet):
    x = Input("float32", ndim=1)
    y = Output("float16", ndim=1)

    def compute(self) -> None:
        self.y = self.x

    def cycles(self, target: Target) -> int:
        return 7


def on_tile_0(graph: Graph, fmt: str, shape: tuple[int, ...], name: str, **options: bool) -> Tensor:
    tensor = graph.add_variable(fmt, shape, name, **options)
    graph.set_tile_mapping(tensor, 0)
    return tensor


def counting(graph: Graph) -> tuple[Tensor, Execute]:
    n = on_tile_0(graph, "int32", (), "n")
    cs = graph.add_compute_set("decrement")
    graph.add_vertex(cs, Decrement, 0, {"x": n})
    return n, Execute(cs)


def test_repeat_while_counts_what_ran() -> None:
    graph = Graph()
    n, step = counting(graph)
    engine = Engine(graph, RepeatWhile(Sequence(), n, step))
    assert not engine.profile().measured
    assert engine.profile().steps[0].count == 1
    engine.write(n, 5)
    engine.run()
    assert engine.read(n) == 0
    assert engine.profile().measured
    assert engine.profile().steps[0].count == 5
    assert engine.profile().cycles == 5 * (6 * 3 + 90)
    engine.run()
    assert engine.profile().steps == ()


def test_repeat_if_switch_and_call() -> None:
    graph = Graph()
    n, step = counting(graph)
    which = on_tile_0(graph, "int32", (), "which")
    engine = Engine(
        graph,
        [
            Repeat(3, Sequence(step, Call(step))),
            If(which, step),
            Switch(which, {7: step, 9: Repeat(2, step)}, Repeat(4, step)),
        ],
    )
    engine.write(n, 100)
    engine.run(0)
    assert engine.read(n) == 94
    assert engine.profile(0).steps[0].count == 6
    for value, after_if, after_switch in ((0, 94, 90), (7, 89, 88), (9, 87, 85)):
        engine.write(which, value)
        engine.run(1)
        assert engine.read(n) == after_if
        engine.run(2)
        assert engine.read(n) == after_switch
        assert engine.profile(2).steps[0].count == after_if - after_switch
    with pytest.raises(IndexError, match=r"programs 0\.\.2"):
        engine.run(3)


def test_streams_both_ways() -> None:
    graph = Graph("gc200")
    x = on_tile_0(graph, "float16", (1000,), "x")
    down, up = DataStream("down", "float16", (1000,)), DataStream("up", "float16", (1000,), to_device=False)
    engine = Engine(graph, Sequence(StreamCopy(down, x), StreamCopy(up, x)))
    with pytest.raises(ValueError, match="'down' is not connected"):
        engine.run()
    sent: list[np.ndarray] = []
    engine.connect(up, sent.append)
    engine.connect(down, iter([np.full(1000, 0.1), np.full(1000, 2.0, np.float16)]))
    engine.run()
    engine.run()
    assert [values[3] for values in sent] == [np.float16(0.1), 2.0]
    with pytest.raises(EOFError, match="no more transfers"):
        engine.run()
    engine.connect(down, lambda: np.zeros(7))
    with pytest.raises(ValueError, match=r"shape \(1000,\), not \(7,\)"):
        engine.run()
    step = engine.profile().steps[0]
    assert step.account.exchange_cycles == 100 + 2000 // 4  # slower than 2000 bytes over PCIe
    assert step.kind == "stream"


def test_remote_buffers() -> None:
    graph = Graph()
    x = on_tile_0(graph, "float32", (4, 2), "x")
    entry = on_tile_0(graph, "int32", (), "entry")
    buffer = RemoteBuffer("moments", "float32", (4, 2), entries=3)
    engine = Engine(graph, [RemoteLoad(buffer, x, entry), RemoteStore(x, buffer, 2)])
    engine.write_remote(buffer, 1, np.arange(8).reshape(4, 2))
    engine.write(entry, 1)
    engine.run(0)
    engine.run(1)
    assert engine.read_remote(buffer, 2).tolist() == engine.read(x).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    engine.write(entry, 3)
    with pytest.raises(IndexError, match=r"entries 0\.\.2, not 3"):
        engine.run(0)
    with pytest.raises(ValueError, match="entry 3 is outside"):
        RemoteStore(x, buffer, 3)
    assert buffer.nbytes == 96


def test_remote_buffers_beyond_streaming_memory_are_refused() -> None:
    graph = Graph()
    x = on_tile_0(graph, "float32", (1000,), "x")
    small, large = RemoteBuffer("small", "float32", (1000,)), RemoteBuffer("large", "float32", (1000,), 32_650_000)
    Engine(graph, RemoteStore(x, large, 7))
    program = Sequence(RemoteLoad(large, x, 7), RemoteStore(x, large, 8), RemoteStore(x, small))
    words = (
        "need 130,600,004,000 bytes of 130,600,000,000 of streaming memory; the largest: large 130,600,000,000, small"
    )
    with pytest.raises(OutOfStreamingMemory, match=words) as caught:
        Engine(graph, program)
    assert pickle.loads(pickle.dumps(caught.value)).buffers == [("large", 130_600_000_000), ("small", 4000)]
    memory = Engine(graph, program, allow_out_of_memory=True).memory
    assert (memory.remote, memory.remote_available) == (130_600_004_000, 130_600_000_000)
    assert memory.unstreamed[0] == memory.peak[0] + 130_600_004_000
    Engine(Graph(Target("gc2")), Sequence())  # whose streaming memory is the host's, without a figure


def test_transfers_beside_programs_take_the_time_these_leave() -> None:
    graph = Graph(Target("gc200", tiles=2, streaming_bandwidth=2e8))
    a, b, c, d, e = (on_tile_0(graph, "float32", (500,), name) for name in "abcde")
    far = [RemoteBuffer(name, "float32", (500,)) for name in ("x", "y", "z")]
    copy, use = Copy(a, b, "work"), Copy(c, e, "use")
    load, store = RemoteLoad(far[0], c), RemoteStore(d, far[1])

    def run(program: Program) -> Profile:
        engine = Engine(graph, program)
        engine.write_remote(far[0], 0, np.arange(500))
        engine.write(a, np.ones(500))
        engine.write(d, np.full(500, 7))
        engine.run()
        assert engine.read(b).tolist() == [1] * 500
        assert engine.read(e).tolist() == list(range(500))
        assert engine.read_remote(far[1], 0).tolist() == [7] * 500
        return engine.profile()

    work, moved, _, used = (step.cycles for step in run(Sequence(copy, load, store, use)).steps)
    assert 10 * work < moved < 50 * work
    for count in (10, 50, 70):  # what uses the load waits for it, not for the store, which the end waits for
        profile = run(Overlap(load, store, Repeat(count, copy), use))
        assert profile.cycles == max(max(count * work, moved) + used, 2 * moved)
        assert profile.streaming_cycles == 2 * moved
        assert profile.hidden_cycles == min(max(count * work, moved) + used, 2 * moved) - max(0, moved - count * work)
        during = next(step for step in profile.steps if step.name == "work").account.memory["transfers"]
        assert during.tolist() == [2000 if count * work <= moved else 4000, 0]
    # A store stands in the way of the load behind it, and of what writes its tensor; of what reads it does not.
    assert run(Overlap(store, load, use, Repeat(20, copy))).cycles == 2 * moved + used + 20 * work
    wait = run(Overlap(load, use, store, Copy(b, d, "write"), copy)).cycles
    assert wait == 2 * moved + used + 2 * work
    assert run(Overlap(load, use, store, Copy(d, b, "read"), copy)).cycles == 2 * moved + used
    # What uses streaming memory inside has the channel to itself.
    inside = Repeat(1, RemoteStore(a, far[2]))
    assert run(Overlap(load, store, use, inside, copy)).cycles == 3 * moved + work
    assert "Overlap" in program_text(Overlap(load, copy))
    with pytest.raises(TypeError, match="is no program"):
        Overlap("work")  # type: ignore[arg-type]


def test_a_tensor_lives_while_it_passes_beside_programs() -> None:
    """From when its load begins, not from where it stands; and until its store has ended."""
    graph = Graph(Target("gc200", tiles=1, streaming_bandwidth=2e8))
    a, b = (on_tile_0(graph, "float32", (500,), name) for name in "ab")
    c, d = (map_array(graph, graph.add_variable("float32", (500,), name, temporary=True)) for name in "cd")
    far = [RemoteBuffer(name, "float32", (500,)) for name in "xyz"]
    steps = [Copy(a, b, f"work {number}") for number in range(60)]
    program = Overlap(
        RemoteLoad(far[0], c), RemoteLoad(far[1], d), *steps, Copy(c, a, "use"), RemoteStore(d, far[2]), *steps
    )
    profile = Engine(graph, program).profile()
    live = {point.step: point.total for point in profile.memory.lifetimes}
    always = profile.memory.always_bytes
    assert live["work 0"] == always + 2000 + 2000  # c comes, through exchange buffers
    names = [point.step for point in profile.memory.lifetimes]
    assert names.index("load y") > names.index("work 20")
    assert names.index("store z") > len(names) - 55


def drawing() -> tuple[Engine, Tensor, list[np.ndarray]]:
    graph = Graph()
    out = on_tile_0(graph, "float32", (1,), "out")
    up = DataStream("up", "float32", (1,), to_device=False)
    cs = graph.add_compute_set()
    graph.add_vertex(cs, Draw, 0, {"out": out}, operation=17)
    draw = Execute(cs)
    engine = Engine(graph, [draw, Repeat(2, Repeat(3, Sequence(draw, StreamCopy(up, out))))], key=5)
    sent: list[np.ndarray] = []
    engine.connect(up, sent.append)
    return engine, out, sent


def test_keys_follow_from_key_step_and_operation() -> None:
    engine, out, _ = drawing()
    seen = []
    for _ in range(3):
        engine.run(0)
        seen.append(engine.read(out)[0])
    assert seen == [Key(5).fold_in(step).fold_in(17).value % 10007 for step in range(3)]
    again, out, _ = drawing()
    again.step = 1
    again.run(0)
    assert again.read(out)[0] == seen[1]
    again.set_key(Key(5).fold_in(2))
    again.run(0)
    assert again.read(out)[0] == seen[2]


def test_rounds_of_a_loop_draw_different_bits() -> None:
    engine, _, sent = drawing()
    engine.run(1)
    engine.run(1)
    drawn = [float(values[0]) for values in sent]
    assert len(drawn) == len(set(drawn)) == 12
    assert drawn[0] == Key(5).fold_in(0).fold_in(17).value % 10007  # Repeat(1, x) is x
    assert engine.profile(1).cycles == 6 * (6 + 90) + 6 * (101 + 90)


def test_rounds_that_are_runs_draw_the_bits_of_runs() -> None:
    engine, out, sent = drawing()
    cs = engine.graph.compute_sets[0]
    up = DataStream("up", "float32", (1,), to_device=False)
    body = Sequence(Execute(cs), Repeat(2, Execute(cs)), StreamCopy(up, out))
    apart, joined = (Engine(engine.graph, [body, Repeat(3, body, runs=True)], key=5) for _ in range(2))
    drawn: list[list[np.ndarray]] = [[], []]
    for made, seen, program, times in ((apart, drawn[0], 0, 6), (joined, drawn[1], 1, 2)):
        made.connect(up, seen.append)
        for _ in range(times):
            made.run(program)
    assert [float(x[0]) for x in drawn[0]] == [float(x[0]) for x in drawn[1]]
    assert len(drawn[1]) == 6 == len({float(x[0]) for x in drawn[1]})
    assert apart.step == joined.step == 6
    assert joined.profile(1).cycles == 3 * joined.profile(0).cycles
    assert "Repeat 3 runs" in program_text(Repeat(3, body, runs=True))
    assert sent == []


def scaled(operation: int | None) -> tuple[Graph, Tensor, Tensor, Program, list[Key | None]]:
    """Twice x to y by way of a temporary, whole times three instead so that the two can be told apart; keys seen."""
    graph = Graph()
    x, y = (on_tile_0(graph, "float32", (4,), name) for name in "xy")
    middle = on_tile_0(graph, "float32", (4,), "middle", temporary=True)
    seen: list[Key | None] = []

    def bind(operands: list[Any], out: Any, control: FloatingPointControl) -> Callable[[Key | None], Any]:
        def call(key: Key | None) -> None:
            seen.append(key)
            np.multiply(operands[0], 3, out=out)

        return call

    steps = []
    for source, to, factor in ((x, middle, 4.0), (middle, y, 0.5)):
        cs = graph.add_compute_set()
        graph.add_vertex(cs, Scale, 0, {"x": source, "y": to}, {"factor": factor})
        steps.append(Execute(cs))
    return graph, x, y, Repeat(2, Whole(tuple(steps), (Computation((x,), y, bind, operation),))), seen


def test_what_is_computed_whole_is_accounted_vertex_by_vertex() -> None:
    profiles = []
    for whole, control, factor in [
        (False, None, 2.0),
        (True, None, 3.0),
        (True, FloatingPointControl(oflo=True), 2.0),  # every vertex looks for exceptions
    ]:
        graph, x, y, program, _ = scaled(None)
        engine = Engine(graph, program, control, whole=whole)
        engine.write(x, [1, 2, 3, 4])
        engine.run()
        np.testing.assert_array_equal(engine.read(y), np.arange(1, 5) * factor)
        profiles.append((engine.profile().to_json(), engine.memory.peak.tolist()))
    assert profiles[0] == profiles[1] == profiles[2]
    assert len(profiles[0][0]["steps"]) == 2


def test_variables_lie_in_the_memory_they_are_given() -> None:
    graph, x, y, program, _ = scaled(None)
    middle = next(variable for variable in graph.variables if variable.name == "middle")
    ones = graph.add_constant("float32", np.ones(2), "ones")
    graph.set_tile_mapping(ones, 1)
    memory = {y.variable: np.zeros(4, np.float32), middle: np.zeros(4, np.float32), ones.variable: np.zeros(2, "f4")}
    engine = Engine(graph, program, memory=memory)
    engine.write(x, [1, 2, 3, 4])
    engine.run()
    np.testing.assert_array_equal(memory[y.variable], [2, 4, 6, 8])
    np.testing.assert_array_equal(memory[middle], [4, 8, 12, 16])
    np.testing.assert_array_equal(memory[ones.variable], [1, 1])
    assert engine.profile().to_json() == Engine(graph, program).profile().to_json()


def test_what_is_computed_whole_takes_the_key_of_its_operation() -> None:
    graph, _, _, program, seen = scaled(17)
    engine = Engine(graph, program, key=5, whole=True)
    engine.run()
    engine.run()
    rounds = [key for step in range(2) for key in (Key(5).fold_in(step), Key(5).fold_in(step).fold_in((1 << 32) + 1))]
    assert seen == [key.fold_in(17) for key in rounds]
    with pytest.raises(ValueError, match="y draws random bits: give the engine a key"):
        Engine(graph, program, whole=True).run()


def test_a_codelet_that_draws_needs_a_key() -> None:
    graph = Graph()
    cs = graph.add_compute_set()
    graph.add_vertex(cs, Draw, 0, {"out": on_tile_0(graph, "float32", (1,), "out")})
    with pytest.raises(ValueError, match="give the engine a key"):
        Engine(graph, Execute(cs)).run()


def test_assignment_converts_as_the_tile_does() -> None:
    values = np.array([1e6, -np.inf, 1.0 + 2.0**-12, np.nan], np.float32)
    results = {}
    for name, control in (("plain", None), ("nanoo", FloatingPointControl(nanoo=True))):
        graph = Graph()
        x, y = on_tile_0(graph, "float32", (4,), "x"), on_tile_0(graph, "float16", (4,), "y")
        cs = graph.add_compute_set()
        graph.add_vertex(cs, ToHalf, 0, {"x": x, "y": y})
        engine = Engine(graph, Execute(cs), control)
        engine.write(x, values)
        engine.run()
        results[name] = engine.read(y)
    np.testing.assert_array_equal(results["plain"], np.array([65504, -65504, 1, np.nan], np.float16))
    np.testing.assert_array_equal(results["nanoo"], np.array([np.nan, np.nan, 1, np.nan], np.float16))


def test_assignment_rounds_stochastically_under_esr() -> None:
    graph = Graph()
    x, y = on_tile_0(graph, "float32", (4000,), "x"), on_tile_0(graph, "float16", (4000,), "y")
    cs = graph.add_compute_set()
    graph.add_vertex(cs, ToHalf, 0, {"x": x, "y": y})
    engine = Engine(graph, Execute(cs), FloatingPointControl(esr=True), key=1)
    engine.write(x, np.full(4000, 1 + 2.0**-12))
    engine.run()
    up = int((engine.read(y) > 1).sum())
    assert abs(up - 1000) < 5 * np.sqrt(4000 * 3 / 16)


def test_an_input_cannot_be_written() -> None:
    class Wrong(Scale):
        def compute(self) -> None:
            self.x = self.x * 2

    class Sneaky(Scale):
        def compute(self) -> None:
            self.x[...] = 0

    for codelet, error in ((Wrong, AttributeError), (Sneaky, ValueError)):
        graph = Graph()
        x, y = on_tile_0(graph, "float32", (4,), "x"), on_tile_0(graph, "float32", (4,), "y")
        cs = graph.add_compute_set()
        graph.add_vertex(cs, codelet, 0, {"x": x, "y": y})
        with pytest.raises(error):
            Engine(graph, Execute(cs)).run()


def test_operands_without_affine_form_are_gathered_and_scattered() -> None:
    graph = Graph()
    x, y = on_tile_0(graph, "float32", (30,), "x"), on_tile_0(graph, "float32", (30,), "y")
    rng = np.random.default_rng(0)
    source, result = rng.integers(0, 30, (5, 6)), rng.permutation(30).reshape(5, 6)
    cs = graph.add_compute_set()
    factors = np.arange(5.0, dtype=np.float32)[:, None]
    graph.add_vertices(cs, Scale, [4, 0, 9, 9, 2], {"x": (x, source), "y": (y, result)}, {"factor": factors})
    engine = Engine(graph, Execute(cs))
    values = rng.integers(0, 100, 30).astype(np.float32)
    engine.write(x, values)
    engine.run()
    expected = np.zeros(30, np.float32)
    expected[result] = values[source] * factors
    np.testing.assert_array_equal(engine.read(y), expected)


def test_constants_and_temporaries_and_wrong_values() -> None:
    graph = Graph()
    c = graph.add_constant("float16", [0.1, 2.0], "c")
    graph.set_tile_mapping(c, 0)
    t = on_tile_0(graph, "float16", (2,), "t", temporary=True)
    n = on_tile_0(graph, "int32", (2,), "n")
    engine = Engine(graph, Copy(c, t))
    assert engine.read(c).tolist() == [float(np.float16(0.1)), 2.0]
    with pytest.raises(ValueError, match="constant"):
        engine.write(c, [1, 2])
    with pytest.raises(ValueError, match="temporary=False"):
        engine.read(t)
    with pytest.raises(ValueError, match="would write the constant"):
        Copy(t, c)
    with pytest.raises(ValueError, match="do not fit int32"):
        engine.write(n, [0, 1 << 40])
    with pytest.raises(TypeError, match="takes int32, not float64"):
        engine.write(n, [0.5, 1.0])
    with pytest.raises(ValueError, match="not in this engine's graph"):
        engine.read(on_tile_0(Graph(), "int32", (2,), "other"))


def test_abort_on_nan() -> None:
    graph = Graph()
    x = on_tile_0(graph, "float32", (2,), "x")
    engine = Engine(graph, Sequence(AbortOnNaN(x), Sync(), WriteUndef(x)))
    engine.run()
    engine.write(x, [1, np.nan])
    with pytest.raises(FloatingPointException, match="x:float32"):
        engine.run()
