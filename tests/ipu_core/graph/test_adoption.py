"""What was built in a graph of its own, taken over by another: tiles, numbers, names, variables already there."""

import numpy as np

from ipu_core.chip.target import Target
from ipu_core.graph.adoption import adopt, in_place_of
from ipu_core.graph.graph import Graph
from ipu_core.graph.tensor import Tensor
from tests.ipu_core.engine.codelets import Draw


def add(graph: Graph, name: str, tiles: list[int]) -> Tensor:
    x = graph.add_variable("float32", (6,), name)
    graph.map_intervals(x, [0, 4], tiles)
    return x


def test_tiles_numbers_and_names_become_those_of_the_graph() -> None:
    graph, other = Graph(Target("gc200", tiles=9)), Graph(Target("gc200", tiles=2))
    here, there, own = add(graph, "here", [7, 3]), add(other, "there", [0, 1]), add(other, "own", [1, 0])
    graph.add_compute_set("first")
    draw = other.join([other.add_compute_set("draw"), other.add_compute_set("more")])
    other.add_vertices(draw, Draw, [0, 1, 1], {"out": own[:3, None]}, operation=17)
    instead = {there.variable: here.variable}
    adopt(graph, other, np.array([7, 3]), instead=instead, name="taken", operation=5)
    assert [each.number for each in graph.variables] == [0, 1]
    assert graph.variables[1] is own.variable
    assert (own.variable.name, draw.name, draw.number) == ("taken.own", "taken.draw", 1)
    np.testing.assert_array_equal(own.variable.mapping.tiles, [3, 7])
    assert graph.joined == {draw: ("taken.draw", "taken.more")}
    (group,) = draw.groups
    assert (group.operation, group.within) == (17, 5)
    np.testing.assert_array_equal(group.tiles, [7, 3, 3])
    seen = in_place_of(there[1:], instead)
    assert seen.variable is here.variable
    assert (seen.offset, seen.shape) == (1, (5,))
    assert in_place_of(own, instead) is own
