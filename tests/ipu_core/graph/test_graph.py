"""Vertices are checked against their codelet's declaration, and single ones are grouped."""

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.engine import Engine
from ipu_core.errors import DataRace, UnmappedTensor
from ipu_core.graph import Codelet, Execute, Graph, InOut, Input, Output, Param, Tensor, Vertex


class Axpy(Codelet):
    x = Input("float32", ndim=1)
    y = InOut("float32", ndim=1)
    a = Param()
    b = Param(0.0)

    def compute(self) -> None:
        self.y += self.a[..., None] * self.x if np.ndim(self.a) else self.a * self.x

    def cycles(self, target: Target) -> int:
        return 5


class Fill(Codelet):
    out = Output(ndim=None)
    value = Param(1.0)

    def compute(self) -> None:
        self.out = self.value

    def cycles(self, target: Target) -> int:
        return 5


def mapped(graph: Graph, shape: tuple[int, ...], name: str, fmt: str = "float32") -> Tensor:
    tensor = graph.add_variable(fmt, shape, name)
    graph.set_tile_mapping(tensor, 0)
    return tensor


BAD = [
    ({"fields": {"x": "x"}}, ValueError, "Axpy in compute set 'cs': field 'y' is not given"),
    ({"fields": {"x": "x", "y": "y", "z": "y"}}, ValueError, "has no field 'z'; it has x, y"),
    ({"fields": {"x": "half", "y": "y"}}, ValueError, "field 'x' is float32, but half:float16"),
    ({"fields": {"x": "x", "y": "wide"}}, ValueError, "field 'y': one vertex's part must have 1 axes, not shape"),
    ({"fields": {"x": "constant", "y": "constant"}}, ValueError, "would write the constant"),
    ({"params": {}}, ValueError, "parameter 'a' is not given"),
    ({"params": {"a": 1, "c": 2}}, ValueError, "no parameter 'c'; it has a, b"),
    ({"tiles": [0, 1472]}, ValueError, r"tiles 0\.\.1472 are outside 0\.\.1471"),
    ({"tiles": [0.0, 1.0]}, TypeError, "tiles must be integers"),
    ({"tiles": [0, 1, 2]}, ValueError, r"does not begin with the vertex axes \(3,\)"),
    ({"fields": {"x": "x", "y": 3}}, TypeError, "must be a Tensor or"),
    ({"fields": {"x": "x", "y": "outside"}}, ValueError, "element indices are outside y"),
    ({"codelet": Axpy()}, TypeError, "subclass of Codelet"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_vertices_are_refused(change: dict, error: type[Exception], message: str) -> None:
    graph = Graph()
    cs = graph.add_compute_set("cs")
    y = mapped(graph, (2, 4), "y")
    tensors = {
        "x": mapped(graph, (2, 4), "x"),
        "y": y,
        "half": mapped(graph, (2, 4), "half", "float16"),
        "wide": mapped(graph, (2, 4, 1), "wide"),
        "constant": graph.add_constant("float32", np.zeros((2, 4)), "c"),
        "outside": (y, [[0], [8]]),
    }
    given = {"codelet": Axpy, "tiles": [0, 1], "fields": {"x": "x", "y": "y"}, "params": {"a": 1.0}} | change
    fields = {name: tensors.get(source, source) for name, source in given["fields"].items()}
    with pytest.raises(error, match=message):
        graph.add_vertices(cs, given["codelet"], given["tiles"], fields, given["params"])


def test_single_vertices_of_one_key_are_one_group() -> None:
    graph = Graph()
    x, y = mapped(graph, (6, 4), "x"), mapped(graph, (6, 4), "y")
    cs = graph.add_compute_set()
    for row in range(5):
        graph.add_vertex(cs, Axpy, row, {"x": x[row], "y": y[row]}, {"a": float(row)})
    graph.add_vertex(cs, Axpy, 9, {"x": x[5, :2], "y": y[5, :2]}, {"a": -1.0})
    groups = cs.all_groups(1472)
    assert [group.vertices for group in groups] == [5, 1]
    assert groups[0].operands["x"].tensor is not None
    engine = Engine(graph, Execute(cs))
    engine.write(x, np.ones((6, 4)))
    engine.run()
    expected = np.repeat(np.arange(6.0)[:, None], 4, axis=1)
    expected[5] = [-1, -1, 0, 0]
    np.testing.assert_array_equal(engine.read(y), expected)


def test_unevenly_spaced_vertices_share_a_group_by_indices() -> None:
    graph = Graph()
    y = mapped(graph, (10, 3), "y")
    cs = graph.add_compute_set()
    for row in (0, 7, 2):
        graph.add_vertex(cs, Fill, row, {"out": y[row]}, {"value": np.full(3, row + 1.0)})
    (group,) = cs.all_groups(1472)
    assert group.operands["out"].indices is not None
    engine = Engine(graph, Execute(cs))
    engine.run()
    assert engine.read(y)[:, 0].tolist() == [1, 0, 3, 0, 0, 0, 0, 8, 0, 0]


def test_vertices_need_tiles_and_variables_mappings() -> None:
    graph = Graph()
    cs = graph.add_compute_set("fill")
    vertex = graph.add_vertex(cs, Fill, fields={"out": mapped(graph, (2,), "y")})
    assert isinstance(vertex, Vertex)
    with pytest.raises(UnmappedTensor, match="a Fill vertex of compute set 'fill' has no tile"):
        Engine(graph, Execute(cs))
    graph.set_tile_mapping(vertex, 3)
    Engine(graph, Execute(cs))
    graph.add_variable("float32", (3,), "forgotten")
    with pytest.raises(UnmappedTensor, match="forgotten: 3 of 3"):
        Engine(graph, Execute(cs))


def test_two_writers_are_a_race() -> None:
    graph = Graph()
    y = mapped(graph, (10,), "y")
    cs = graph.add_compute_set("fill")
    graph.add_vertices(cs, Fill, [4, 5], {"out": Tensor(y.variable, 0, (2, 4), (3, 1))})
    message = (
        r"compute set 'fill': element 3 of y:float32\[10\] is written by Fill\[0\] on tile 4 "
        r"and by Fill\[1\] on tile 5"
    )
    with pytest.raises(DataRace, match=message):
        Engine(graph, Execute(cs))


def test_a_reader_of_what_another_writes_is_a_race() -> None:
    graph = Graph()
    y, z = mapped(graph, (10,), "y"), mapped(graph, (3,), "z")
    cs = graph.add_compute_set("axpy")
    graph.add_vertex(cs, Axpy, 1, {"x": y[0:3], "y": y[4:7]}, {"a": 1.0})
    graph.add_vertex(cs, Axpy, 2, {"x": y[6:9], "y": z}, {"a": 1.0})
    with pytest.raises(DataRace, match=r"'axpy': element 6 of y.* is written by Axpy\[0\] on tile 1 and read by"):
        Engine(graph, Execute(cs))


def test_fields_exist_only_in_running_vertices() -> None:
    with pytest.raises(AttributeError, match="only inside a running vertex"):
        _ = Axpy().x
    with pytest.raises(ValueError, match="unknown format"):
        Input("float17")
