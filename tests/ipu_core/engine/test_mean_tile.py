"""What the mean tile does with its time, and the state of vertices that are equal."""

from __future__ import annotations

import pytest

from ipu_core import Engine, Execute, Graph, Sequence, Target
from ipu_core.library.elementwise import add_array, elementwise

TARGET = Target("gc200", tiles=8)
EACH = 4 * (1 + 2 + 2)


def test_what_the_mean_tile_waits_is_sync() -> None:
    graph = Graph(TARGET)
    x = add_array(graph, "float32", (5, 96), "x", temporary=False)
    y = add_array(graph, "float32", (5, 96), "y", temporary=False)
    profile = Engine(graph, Sequence(*elementwise(graph, "exp", [x], y))).profile()
    (step,) = profile.steps
    split = profile.mean_tile
    assert split.compute == pytest.approx(float(step.account.compute.mean()))
    assert split.exchange == 0
    assert sum(split) == pytest.approx(profile.cycles)
    # Some tiles have nothing, so the mean tile waits for longer than the barrier takes.
    assert split.sync > profile.sync_cycles
    assert split.words().startswith("compute ")


def state(*names: str, together: bool = False) -> int:
    """Bytes of vertex state of exponentials of arrays of one shape, in a compute set each or in one."""
    graph = Graph(TARGET)
    pairs = [
        (add_array(graph, "float32", (8, 8), name, temporary=False),
         add_array(graph, "float32", (8, 8), f"{name} out", temporary=False))
        for name in names
    ]  # fmt: skip
    programs = [step for x, y in pairs for step in elementwise(graph, "exp", [x], y)]
    if together:
        programs = [Execute(graph.join([step.compute_set for step in programs], "all"))]
    return int(Engine(graph, Sequence(*programs)).memory.always["vertex state"].sum())


def test_equal_vertices_of_other_compute_sets_share_their_state_and_those_of_one_do_not() -> None:
    one = state("a")
    # A vertex has a word, two pointers and two numbers: where its elements begin, and how many axes are its own.
    assert one == EACH * 3
    assert state("a", "b", "c") == one
    assert state("a", "b", "c", together=True) == 3 * one


def test_vertices_of_other_shapes_share_nothing() -> None:
    graph = Graph(TARGET)
    arrays = [add_array(graph, "float32", (8, n), f"{n}", temporary=False) for n in (8, 8, 16, 16)]
    programs = [*elementwise(graph, "exp", arrays[:1], arrays[1]), *elementwise(graph, "exp", arrays[2:3], arrays[3])]
    engine = Engine(graph, Sequence(*programs))
    vertices = sum(step.account.vertices for step in engine.profile().steps)
    assert int(engine.memory.always["vertex state"].sum()) == EACH * vertices > state("a")
