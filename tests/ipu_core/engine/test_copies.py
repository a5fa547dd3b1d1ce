"""Copies that put elements in another order: what they cost beside those that only move."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.engine.engine import Engine
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Sequence
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import add_array
from ipu_core.placement.layout import linear_layout

TILES = Target("gc200", tiles=8)


def steps(target: Target, source: Tensor, to: Tensor, graph: Graph) -> list[int]:
    """Compute cycles of a copy, and of one that reorders, in one program."""
    engine = Engine(graph, Sequence(Copy(source, to, "moves"), Copy(source, to, "reorders", reorders=True)))
    shape = [1 if not stride else size for size, stride in zip(source.shape, source.strides, strict=True)]
    values = np.random.default_rng(1).normal(size=shape).astype(source.dtype)
    engine.write(source, np.broadcast_to(values, source.shape))
    engine.run()
    np.testing.assert_array_equal(engine.read(to), np.broadcast_to(values, source.shape))
    return [step.account.compute_cycles for step in engine.profile().steps]


@pytest.mark.parametrize("fmt, together", [("float16", 2), ("float32", 4)])
@pytest.mark.parametrize("figure", [1.25, 10.3])
def test_a_transpose_is_moved_once_more_element_by_element(fmt: str, together: int, figure: float) -> None:
    """All that a tile gets, from itself and from others: as PopLibs' planner counts it."""
    target = Target("gc200", tiles=8, reorder_cycles=figure)
    graph = Graph(target)
    x, to = (add_array(graph, fmt, (64, 64), name, temporary=False) for name in "ab")
    plain, reordered = steps(target, x.transpose(1, 0), to, graph)
    size = 64 * 64 * together // 8  # bytes on each of the eight tiles
    assert reordered == 6 * 20 + math.ceil(size / together * figure)
    assert 0 < plain < reordered


def test_what_stays_together_as_long_as_a_vector_costs_no_more() -> None:
    graph = Graph(TILES)
    x, to = (add_array(graph, "float16", shape, "x", temporary=False) for shape in ((16, 8, 4), (8, 16, 4)))
    plain, reordered = steps(TILES, x.transpose(1, 0, 2), to, graph)
    assert plain == reordered
    graph = Graph(TILES)
    x, to = (add_array(graph, "float16", shape, "x", temporary=False) for shape in ((16, 8, 2), (8, 16, 2)))
    plain, reordered = steps(TILES, x.transpose(1, 0, 2), to, graph)
    pairs = linear_layout(TILES, (8, 16, 2)).chunk // 2
    assert reordered == 6 * 20 + math.ceil(pairs * 1.25) > plain


def test_an_element_for_many_places_is_no_other_order() -> None:
    graph = Graph(TILES)
    x, to = (add_array(graph, "float16", shape, "x", temporary=False) for shape in ((64, 1), (64, 64)))
    plain, reordered = steps(TILES, x.broadcast_to(64, 64), to, graph)
    assert plain == reordered
