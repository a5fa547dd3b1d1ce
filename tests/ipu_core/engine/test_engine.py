"""The engine end to end: the smallest example as a user writes it, refusals, control flow, assignment."""

import numpy as np
import pytest

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.engine import Engine
from ipu_core.errors import FloatingPointException
from ipu_core.graph import (
    AbortOnNaN,
    Call,
    Codelet,
    Copy,
    Execute,
    Graph,
    If,
    Input,
    Output,
    Param,
    RemoteBuffer,
    RemoteStore,
    Repeat,
    RepeatWhile,
    Sequence,
    Switch,
    Sync,
    WriteUndef,
)
from tests.ipu_core.engine.codelets import Scale, ToHalf, counting, on_tile_0


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

    for codelet, error, words in ((Wrong, AttributeError, "x is an Input"), (Sneaky, ValueError, "is read-only")):
        graph = Graph()
        x, y = on_tile_0(graph, "float32", (4,), "x"), on_tile_0(graph, "float32", (4,), "y")
        cs = graph.add_compute_set()
        graph.add_vertex(cs, codelet, 0, {"x": x, "y": y})
        with pytest.raises(error, match=words):
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


def test_what_is_read_is_the_readers_own() -> None:
    graph = Graph()
    x = on_tile_0(graph, "float32", (3,), "x")
    far = RemoteBuffer("far", "float32", (3,))
    engine = Engine(graph, RemoteStore(x, far))
    engine.write(x, [1, 2, 3])
    engine.run()
    before, stored = engine.read(x), engine.read_remote(far, 0)
    engine.write(x, [4, 5, 6])
    engine.run()
    np.testing.assert_array_equal(before, [1, 2, 3])
    np.testing.assert_array_equal(stored, [1, 2, 3])
    before[:] = stored[:] = 9
    np.testing.assert_array_equal(engine.read(x), [4, 5, 6])
    np.testing.assert_array_equal(engine.read_remote(far, 0), [4, 5, 6])


@pytest.mark.parametrize("fmt", ["int32", "uint32", "bool", "float16"])
def test_tensors_without_elements_are_written_and_read(fmt: str) -> None:
    graph = Graph()
    x = on_tile_0(graph, fmt, (0, 2), "x")
    engine = Engine(graph, Sequence())
    engine.write(x, np.zeros((0, 2), np.int64))
    assert engine.read(x).shape == (0, 2)
