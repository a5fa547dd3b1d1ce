"""The largest of rows on tiles, by a graph alone: results of NumPy, cycles by hand, few and many rows for each tile."""

import numpy as np
import pytest

from ipu_core.chip import cost
from ipu_core.chip.target import Target
from ipu_core.engine.engine import Engine
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Sequence
from ipu_core.library.elementwise import add_array
from ipu_core.library.rows import put_along, take_along, top_indices

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("rows", [1, 63, 64, 200])
def test_rows_are_ordered_taken_from_and_put_back(small: Target, rows: int) -> None:
    graph = Graph(small)
    x = add_array(graph, "float16", (rows, 20), "x", temporary=False)
    which = add_array(graph, "int32", (rows, 3), "which", temporary=False)
    largest = add_array(graph, "float16", (rows, 3), "largest", temporary=False)
    back = add_array(graph, "float32", (rows, 20), "back", temporary=False)
    programs = (
        top_indices(graph, x, which) + take_along(graph, x, which, largest) + put_along(graph, which, largest, back)
    )
    engine = Engine(graph, Sequence(*programs))
    given = RNG.normal(size=(rows, 20)).astype(np.float16)
    engine.write(x, given)
    engine.run()
    order = np.argsort(-given, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(engine.read(which), order)
    np.testing.assert_array_equal(engine.read(largest), np.take_along_axis(given, order, 1))
    wanted = np.zeros((rows, 20), np.float32)
    np.put_along_axis(wanted, order, np.take_along_axis(given, order, 1), 1)
    np.testing.assert_array_equal(engine.read(back), wanted)
    first = next(step for step in engine.profile().steps if step.name == "top_indices").account
    each = -(-rows // 64)
    assert first.compute_cycles == cost.top(small, each, 20, 3)


def test_cycles_by_hand(small: Target) -> None:
    # six workers: 20 + rows each * (terms * (3 + 6 levels) + k * (3 + 6 levels)); a heap of three has two levels
    assert cost.top(small, 1, 20, 3) == 6 * (20 + 20 * 15 + 3 * 15)
    assert cost.top(small, 7, 100, 1) == 6 * (20 + 2 * (100 * 3 + 3))


def test_indices_outside_their_rows_are_refused(small: Target) -> None:
    for wrong in (-1, 4):
        graph = Graph(small)
        which = add_array(graph, "int32", (2, 1), "which", temporary=False)
        x = add_array(graph, "float32", (2, 1), "x", temporary=False)
        out = add_array(graph, "float32", (2, 4), "out", temporary=False)
        engine = Engine(graph, Sequence(*put_along(graph, which, x, out)))
        engine.write(which, np.array([[0], [wrong]], np.int32))
        engine.write(x, np.ones((2, 1), np.float32))
        with pytest.raises(IndexError, match="out of bounds for rows of 4"):
            engine.run()
