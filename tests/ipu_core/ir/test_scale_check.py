"""Factors of gradients: refused where a gradient would be wrong, which brute force says too; both engines agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_core import Machine, Precision, Target, evaluate, execute, nn, trace, value_and_grad
from ipu_core.ir.passes.scale_check import UnbalancedScale

PRIMES = (2.0, 3.0, 5.0, 7.0, 11.0, 13.0)
RNG = np.random.default_rng(3)
TABLE = RNG.normal(size=(64, 3))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], dict[int, float]]:
    """Sources, sums of two earlier values each, and factors of the gradient by number of edge: two edges a sum."""
    sources = draw(st.integers(1, 3))
    count = draw(st.integers(1, 7))
    sums = [
        (draw(st.integers(0, sources + i - 1)), draw(st.integers(max(0, sources + i - 3), sources + i - 1)))
        for i in range(count)
    ]
    scaled = draw(st.lists(st.integers(0, 2 * count - 1), max_size=3, unique=True))
    return sources, sums, dict(zip(scaled, PRIMES, strict=False))


def gradients(graph, factors):
    """In float64; each edge also multiplies by three numbers of its own, so that no two paths are alike."""
    sources, sums, _ = graph

    def loss(params):
        values = list(params)
        for i, pair in enumerate(sums):
            weighed = [
                nn.scale(values[n], backward=factors.get(2 * i + j, 1.0)) * TABLE[2 * i + j] for j, n in enumerate(pair)
            ]
            values.append(weighed[0] + weighed[1])
        return values[-1].sum()

    params = [np.ones(3)] * sources
    return evaluate(value_and_grad(trace(loss, params)), params)[1]


def bridges_by_force(sources: int, sums: list[tuple[int, int]]) -> dict[int, bool]:
    """For every edge between a source and the loss whether taking it away cuts them apart (one more node joins the
    sources, which are ends: an edge from a source is judged with that source alone)."""
    edges = {2 * i + j: (n, sources + i) for i, pair in enumerate(sums) for j, n in enumerate(pair)}
    last = sources + len(sums) - 1

    def closure(start: set[int], pairs) -> set[int]:
        while more := {b for a, b in pairs if a in start} - start:
            start = start | more
        return start

    down = closure(set(range(sources)), list(edges.values()))
    up = closure({last}, [(b, a) for a, b in edges.values()])
    kept = {n: e for n, e in edges.items() if set(e) <= down & up}
    found = {}
    for number, (a, b) in kept.items():
        rest = [e for n, e in kept.items() if n != number]
        found[number] = b not in closure({a}, [*rest, *((y, x) for x, y in rest)])
    return found


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_what_is_refused_is_what_is_on_no_bridge(graph):
    sources, sums, factors = graph
    bridges = bridges_by_force(sources, sums)
    wrong = any(not bridges[edge] for edge in factors if edge in bridges)
    if wrong:
        with pytest.raises(UnbalancedScale):
            gradients(graph, factors)
    else:
        plain, scaled = gradients(graph, {}), gradients(graph, factors)
        for a, b in zip(plain, scaled, strict=True):
            ratio = np.divide(b, a, out=np.ones(3), where=a != 0)
            np.testing.assert_allclose(ratio, ratio[0], rtol=1e-10)
            assert ratio[0] > 0


def test_the_refusal_names_the_edge_and_its_line():
    def loss(w):
        h = nn.scale(w * 2.0, backward=0.5)  # this line
        return (h + w).sum()

    with pytest.raises(
        UnbalancedScale, match=r"%w would be wrong.*scale_gradient\.\d+ \(test_scale_check.py:\d+\) times 0.5"
    ):
        value_and_grad(trace(loss, np.ones(3)))


def test_a_factor_matched_on_every_way_is_right():
    def gradient(delayed):
        return evaluate(value_and_grad(trace(lambda w: loss(w, delayed), w)), w)[1]

    def loss(w, delayed):
        branch = nn.scale(w, backward=0.25) if delayed else w
        branch = np.tanh(branch) * 3.0
        branch = nn.scale(branch, 0.25, 1.0) if delayed else branch * 0.25
        return (branch + w).sum()

    w = RNG.normal(size=5)
    np.testing.assert_allclose(gradient(delayed=True), gradient(delayed=False), rtol=1e-12)


def test_what_only_chooses_is_no_way_of_a_gradient():
    def loss(w, x):
        return (nn.where(nn.scale(w, backward=0.5), w, 0.0) * x).sum()

    w = np.array([1.0, 0.0, 2.0])
    np.testing.assert_array_equal(evaluate(value_and_grad(trace(loss, w, w)), w, w)[1], [1.0, 0.0, 2.0])


@pytest.mark.parametrize("factor", [0.0, -1.0, np.inf, np.nan, "2"])
def test_only_positive_numbers_are_factors(factor):
    with pytest.raises(ValueError, match="scale: forward must be a finite number above 0"):
        nn.scale(np.ones(2), factor)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/nearest", "fp16.16/stochastic"])
def test_both_engines_and_the_definition_agree(precision):
    def loss(w, x):
        return nn.scale(np.tanh(nn.scale(x @ w, 0.37, 1.9)), 1.6, 1.5).sum()

    w, x = (RNG.normal(size=(6, 6)).astype(np.float32) for _ in range(2))
    block = Precision.parse(precision).apply(value_and_grad(trace(loss, w, x)))
    inputs = [np.asarray(a, v.type.format.dtype) for a, v in zip((w, x), block.inputs, strict=True)]
    direct = execute(block, *inputs, key=5)
    slow = evaluate(block, *inputs, arithmetic="declared", key=5)
    tiles = Machine.build(block, Target("gc200", tiles=4)).run(inputs, 5)
    for results in zip(direct, slow, tiles, strict=True):
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other)
