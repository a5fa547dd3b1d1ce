"""Races: an element with two writers, or written by one vertex and read by another, and what is no race."""

import re

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.engine import Engine
from ipu_core.errors import DataRace
from ipu_core.graph import Codelet, Execute, Graph, InOut, Input, Output, Tensor


class Move(Codelet):
    x = Input(ndim=1)
    y = Output(ndim=1)

    def compute(self) -> None:
        self.y = self.x

    def cycles(self, target: Target) -> int:
        return 1


class Double(Codelet):
    x = InOut(ndim=1)

    def compute(self) -> None:
        self.x = self.x + self.x

    def cycles(self, target: Target) -> int:
        return 1


def graph_of(*sizes: int) -> tuple[Graph, list[Tensor]]:
    graph = Graph(Target("gc200", tiles=4))
    tensors = [graph.add_variable("float32", (size,), name) for size, name in zip(sizes, "abcd", strict=False)]
    for tensor in tensors:
        graph.set_tile_mapping(tensor, 0)
    return graph, tensors


def run(graph: Graph, *moves: tuple[Tensor, Tensor]) -> Engine:
    cs = graph.add_compute_set("moves")
    for tile, (x, y) in enumerate(moves):
        graph.add_vertex(cs, Move, tile, {"x": x, "y": y})
    return Engine(graph, Execute(cs))


@pytest.mark.parametrize("overlap", [1, 3])
@pytest.mark.parametrize("order", [1, -1])
def test_two_writers_of_one_element_are_refused(overlap: int, order: int) -> None:
    graph, (a, b) = graph_of(8, 20)
    moves = [(a, b[2:10]), (a, b[10 - overlap : 18 - overlap])][::order]
    with pytest.raises(DataRace, match=rf"element {10 - overlap} of .*written by Move.* and by Move"):
        run(graph, *moves)


def test_writers_side_by_side_are_no_race() -> None:
    graph, (a, b) = graph_of(8, 20)
    run(graph, (a, b[2:10]), (a, b[10:18]))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("read", "element"), [(slice(0, 5), 4), (slice(7, 12), 7), (slice(5, 6), 5)])
def test_a_reader_of_what_another_vertex_writes_is_refused(order: int, read: slice, element: int) -> None:
    """Whichever of the two was added first, and though the two share only their first or last element."""
    graph, (a, b, c) = graph_of(4, 12, 12)
    moves = [(a, b[4:8]), (b[read], c[: len(range(12)[read])])][::order]
    with pytest.raises(DataRace, match=re.escape(f"element {element} of b") + ".*is written by Move.*and read by Move"):
        run(graph, *moves)


@pytest.mark.parametrize("read", [slice(0, 4), slice(8, 12)])
def test_a_reader_beside_what_is_written_is_no_race(read: slice) -> None:
    graph, (a, b, c) = graph_of(4, 12, 4)
    run(graph, (a, b[4:8]), (b[read], c))


def test_a_vertex_may_read_what_it_writes_itself() -> None:
    graph, (a,) = graph_of(8)
    cs = graph.add_compute_set("double")
    graph.add_vertices(cs, Double, np.arange(4), {"x": a.reshape(4, 2)})
    Engine(graph, Execute(cs)).run()
    graph.add_vertex(cs, Double, 3, {"x": a[7:]})
    with pytest.raises(DataRace, match="element 7 of a"):
        Engine(graph, Execute(cs))


TWICE = {
    "one element for all": (lambda b: b[3:4].broadcast_to(4), 3),
    "rows that overlap": (lambda b: Tensor(b.variable, 1, (2, 2), (1, 1)), 2),
}


@pytest.mark.parametrize("field", [Output, InOut])
@pytest.mark.parametrize(("name"), TWICE)
def test_a_vertex_writes_no_element_twice(name: str, field: type[Output | InOut]) -> None:
    class Ones(Codelet):
        y = field(ndim=None)

        def compute(self) -> None:
            self.y = 1.0

        def cycles(self, target: Target) -> int:
            return 1

    view, element = TWICE[name]
    graph, (_, b) = graph_of(1, 8)
    cs = graph.add_compute_set("ones")
    graph.add_vertex(cs, Ones, 2, {"y": view(b)})
    words = rf"element {element} of b.* is written twice by Ones\[0\] on tile 2: field 'y' has it twice"
    with pytest.raises(DataRace, match=words):
        Engine(graph, Execute(cs))


def test_element_indices_are_written_once_by_each_vertex() -> None:
    graph, (a, b) = graph_of(4, 8)
    cs = graph.add_compute_set("moves")
    fields = {"x": a.broadcast_to(2, 4), "y": (b, [[0, 1, 2, 3], [7, 5, 6, 5]])}
    graph.add_vertices(cs, Move, [0, 3], fields)
    with pytest.raises(DataRace, match=r"element 5 of b.* is written twice by Move\[1\] on tile 3: field 'y'"):
        Engine(graph, Execute(cs))


class Update(Codelet):
    x = Input(ndim=1)
    y = InOut(ndim=1)

    def compute(self) -> None:
        self.y = self.y + self.x

    def cycles(self, target: Target) -> int:
        return 1


@pytest.mark.parametrize("codelet", [Move, Update])
@pytest.mark.parametrize("indexed", [False, True])
def test_what_a_vertex_writes_is_no_input_of_it(codelet: type[Codelet], indexed: bool) -> None:
    graph, (a,) = graph_of(16)
    cs = graph.add_compute_set("shift")
    x, y = a.reshape(2, 8)[:, :4], a.reshape(2, 8)[:, 3:7]
    fields = {name: (part, part.indices()) for name, part in (("x", x), ("y", y))} if indexed else {"x": x, "y": y}
    graph.add_vertices(cs, codelet, [0, 1], fields)
    words = rf"element 3 of a.* is written by {codelet.__name__}\[0\] on tile 0 through 'y' and is its Input 'x'"
    with pytest.raises(DataRace, match=words):
        Engine(graph, Execute(cs))


def test_inputs_and_outputs_may_be_parts_of_one_variable() -> None:
    graph, (a,) = graph_of(16)
    cs = graph.add_compute_set("copy")
    rows = a.reshape(2, 8)
    graph.add_vertices(cs, Move, [0, 1], {"x": rows[:, :4], "y": rows[:, 4:]})
    engine = Engine(graph, Execute(cs))
    engine.write(a, np.arange(16))
    engine.run()
    assert engine.read(a).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 8, 9, 10, 11, 8, 9, 10, 11]


def test_a_trusted_codelet_may_read_what_it_writes() -> None:
    class InPlace(Move):
        trusted = True

    graph, (a,) = graph_of(4)
    cs = graph.add_compute_set("in place")
    graph.add_vertex(cs, InPlace, 0, {"x": a, "y": a})
    Engine(graph, Execute(cs)).run()
