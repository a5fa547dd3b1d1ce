"""Random bits of a run follow from its key, the step, the operation and the vertex."""

import numpy as np
import pytest

from ipu_core.engine import Engine
from ipu_core.graph import (
    DataStream,
    Execute,
    Graph,
    Repeat,
    Sequence,
    StreamCopy,
    Tensor,
    program_text,
)
from lowprec import Key
from tests.ipu_core.engine.codelets import Draw, on_tile_0


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


def test_a_codelet_that_draws_needs_a_key() -> None:
    graph = Graph()
    cs = graph.add_compute_set()
    graph.add_vertex(cs, Draw, 0, {"out": on_tile_0(graph, "float32", (1,), "out")})
    with pytest.raises(ValueError, match="give the engine a key"):
        Engine(graph, Execute(cs)).run()
