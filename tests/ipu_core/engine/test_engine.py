"""The engine end to end: the smallest example as a user writes it, refusals, streams, control flow, random keys."""

import numpy as np
import pytest

from ipu_core.engine import Engine
from ipu_core.graph import Codelet, Execute, Graph, Input, Output, Param, Sequence
from ipu_core.target import Target


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
    print(profile)
