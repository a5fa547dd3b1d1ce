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
