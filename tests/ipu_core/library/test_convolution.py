"""Convolutions built by hand on a graph: parts that lie anywhere, several groups, refusals."""

from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core.engine import Engine
from ipu_core.graph import Graph
from ipu_core.graph.program import Sequence
from ipu_core.library.convolution import convolve, windows_of
from ipu_core.library.elementwise import add_array
from ipu_core.plan.accumulation import Accumulation
from ipu_core.plan.convolution import plan_convolution
from ipu_core.plan.convolved import Convolution, ConvPlacement
from ipu_core.target import Target

GC200 = Target("gc200")
X = np.random.default_rng(0).normal(size=(2, 6, 7, 2 * 19)).astype(np.float16)
W = np.random.default_rng(1).normal(size=(3, 2, 19, 2 * 18)).astype(np.float16)
SIZES = Convolution("image", (2, 4, 6, 2, 18), (3, 2, 19), (1, 1), (1, 1), "float16")


def built(order: Accumulation, place: ConvPlacement, *, stochastic: bool = False) -> Any:
    """The result of a convolution on tiles."""
    graph = Graph(GC200)
    x, w = (add_array(graph, "float16", array.shape, name, temporary=False) for array, name in ((X, "x"), (W, "w")))
    out = add_array(graph, order.types[1], (2, 4, 6, 36), "out", temporary=False)
    windows = windows_of(x.reshape(2, 6, 7, 2, 19), (3, 2), (1, 1), (1, 1), (4, 6))
    weight = w.reshape(3, 2, 19, 2, 18).transpose(0, 1, 3, 2, 4)
    plan = plan_convolution(GC200, SIZES, order, place)
    programs = convolve(
        graph, windows, weight, out.reshape(2, 4, 6, 2, 18), plan, stochastic=stochastic, operation=3
    )  # fmt: skip
    engine = Engine(graph, Sequence(*programs))
    engine.set_key(5)
    engine.write(x, X)
    engine.write(w, W)
    engine.run()
    return engine.read(out)


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("types", [("float16", "float16"), ("float32", "float16")])
@pytest.mark.parametrize("group, splits, stages", [(16, 1, None), (16, 5, 2), (4, 7, None), (5, 20, 3)])
def test_parts_that_begin_anywhere(
    types: tuple[str, str], group: int, splits: int, stages: int | None, stochastic: bool
) -> None:
    order = Accumulation(group, splits, stages, types)
    found = built(order, ConvPlacement((2, 3, 2, 2, 2), 3), stochastic=stochastic)
    key = lowprec.Key(5).fold_in(3) if stochastic else None
    expected = lowprec.conv2d(
        X, W, groups=2, accumulate=types[0], out_format=types[1], group=group, splits=splits, stages=stages,
        rounding="stochastic" if stochastic else "nearest_even", key=key,
    )  # fmt: skip
    np.testing.assert_array_equal(found, expected)


def test_other_sizes_and_targets_are_refused() -> None:
    order = Accumulation(types=("float16", "float16"))
    graph = Graph(GC200)
    x = add_array(graph, "float16", (2, 6, 7, 2, 19))
    w = add_array(graph, "float16", (3, 2, 2, 19, 18))
    windows = windows_of(x, (3, 2), (1, 1), (1, 1), (4, 6))
    with pytest.raises(ValueError, match="not the plan's"):
        convolve(
            graph, windows, w, add_array(graph, "float16", (2, 4, 5, 2, 18)), plan_convolution(GC200, SIZES, order)
        )
    out = add_array(graph, "float16", (2, 4, 6, 2, 18))
    with pytest.raises(ValueError, match="the plan is for bow"):
        convolve(graph, windows, w, out, plan_convolution(Target("bow"), SIZES, order))
