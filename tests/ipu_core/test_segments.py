"""Sums of rows by segment: NumPy's, their order in narrow formats, gradients, both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec
from ipu_core import Adam, TrainLoop, evaluate, execute, nn, trace, value_and_grad
from ipu_core.chip import tile_scatter
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat

SEGMENTS = 6


def drawn(n: int, width: int = 3, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, width)).astype(np.float32), rng.integers(0, SEGMENTS - 1, n).astype(np.int32)


def exact(x: Any, index: Any, rows: int) -> Any:
    total = np.zeros((rows, *x.shape[index.ndim :]))
    np.add.at(total, index, np.asarray(x, np.float64))
    return total


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 9), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_sums_are_in_the_order_of_the_rows_and_rounded_once(n: int, seed: int, fmt: str) -> None:
    x, index = drawn(n, seed=seed)
    x = lowprec.astype(x, fmt)
    total = np.zeros((SEGMENTS, 3), np.float32)
    for place, row in zip(index, np.asarray(x, np.float32), strict=True):
        total[place] += row
    given = nn.segment_sum(x, index, SEGMENTS)
    assert given.dtype == x.dtype
    assert given.tobytes() == lowprec.astype(total, fmt).tobytes()
    assert (np.asarray(given, np.float32)[-1] == 0).all()


def test_means_and_added_rows() -> None:
    x, index = drawn(20)
    counts = np.bincount(index, minlength=SEGMENTS)
    means = exact(x, index, SEGMENTS) / np.maximum(counts, 1)[:, None]
    assert np.allclose(nn.segment_mean(x, index, SEGMENTS), means, atol=1e-6)
    assert np.allclose(nn.segment_mean(x[:, 0], index, SEGMENTS), means[:, 0], atol=1e-6)
    table = np.ones((SEGMENTS, 3), np.float32)
    assert np.allclose(nn.scatter_add(table, index, x), table + exact(x, index, SEGMENTS), atol=1e-6)
    square = index.reshape(4, 5)
    assert np.allclose(nn.scatter_add(table, square, x.reshape(4, 5, 3)), table + exact(x, index, SEGMENTS), atol=1e-6)


@pytest.mark.parametrize("fmt", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_the_largest_of_each_segment(fmt: str) -> None:
    x, index = drawn(30)
    x = lowprec.astype(x, fmt)
    wide = np.asarray(x, np.float32)
    largest = nn.segment_max(x, index, SEGMENTS)
    assert largest.dtype == x.dtype
    for row in range(SEGMENTS):
        here = wide[index == row]
        assert np.array_equal(np.asarray(largest, np.float32)[row], here.max(axis=0) if len(here) else np.zeros(3))
    x[int(np.flatnonzero(index == index[0])[-1]), 1] = np.nan
    nan = np.asarray(nn.segment_max(x, index, SEGMENTS), np.float32)
    assert np.isnan(nan[index[0], 1])
    assert np.isnan(nan).sum() == 1


def test_means_of_halves_do_not_end_where_their_sums_would() -> None:
    large = np.full((8, 2), 60000, np.float16)
    means = nn.segment_mean(large, np.zeros(8, np.int32), 1)
    assert means.dtype == np.float16
    assert (means == 60000).all()


def test_zeros_have_no_sign_and_ties_share_the_gradient() -> None:
    zeros = np.array([[-0.0], [0.0], [-0.0]], np.float32)
    assert not np.signbit(nn.segment_max(zeros, np.array([0, 0, 1], np.int32), 2)).any()
    both = value_and_grad(lambda x: nn.segment_max(x, np.zeros(3, np.int32), 1).sum())
    _, gradient = both(np.array([[2.0], [1.0], [2.0]], np.float32))
    assert gradient.ravel().tolist() == [0.5, 0, 0.5]


@pytest.mark.parametrize("group", [1, 3, None])
def test_partial_sums_are_rounded_where_it_is_said(group: int | None) -> None:
    x, index = drawn(60)
    half = lowprec.astype(x, "float16")
    order = lowprec.Accumulation(group, accumulate="float16")
    total, added = np.zeros((SEGMENTS, 3), np.float32), np.zeros(SEGMENTS, int)
    for place, row in zip(index, np.asarray(half, np.float32), strict=True):
        total[place] += row
        added[place] += 1
        if group is not None and added[place] % group == 0:
            total[place] = lowprec.round(total[place], "float16")
    wanted = lowprec.astype(total, "float16")
    assert nn.segment_sum(half, index, SEGMENTS, accumulation=order).tobytes() == wanted.tobytes()
    assert (group is None) == (wanted.tobytes() == nn.segment_sum(half, index, SEGMENTS).tobytes())
    wide = nn.segment_sum(x, index, SEGMENTS, accumulation=lowprec.Accumulation(1, accumulate="bfloat16"))
    assert np.array_equal(wide, lowprec.round(wide, "bfloat16"))


def test_a_program_rounds_partial_sums_as_arrays_do() -> None:
    x, index = drawn(60)
    order = lowprec.Accumulation(1, accumulate="float16")
    block = trace(lambda x, i: nn.segment_sum(x, i, SEGMENTS, accumulation=order), x, index)
    wanted = np.asarray(nn.segment_sum(x, index, SEGMENTS, accumulation=order))
    assert np.array_equal(execute(block, x, index, key=0), wanted)
    assert np.array_equal(evaluate(block, x, index, arithmetic="declared", key=0), wanted)
    assert not np.array_equal(nn.segment_sum(x, index, SEGMENTS), wanted)


def test_rows_without_a_segment_are_written_too() -> None:
    out = np.full((3, 2), 7, np.float32)
    tile_scatter.scatter_max(np.array([1], np.int32), np.full((1, 2), -4, np.float32), out)
    assert out.tolist() == [[0, 0], [-4, -4], [0, 0]]


def loss(params: Any, batch: Any) -> Any:
    x, index = batch
    peaks = nn.segment_max(x @ params["w"], index, SEGMENTS)
    halves = lowprec.Accumulation(2, accumulate="float16")
    return (
        _means(params, batch) + 0.1 * (nn.segment_sum(peaks, np.zeros(6, np.int32), 1, accumulation=halves) ** 2).sum()
    )


def _means(params: Any, batch: Any) -> Any:
    x, index = batch
    h = nn.segment_mean(np.tanh(x @ params["w"]), index, SEGMENTS)
    h = nn.scatter_add(h, index, nn.embedding(h, index) * params["b"])
    return (nn.segment_sum(h, np.array([0, 0, 1, 1, 2, 2], np.int32), 3) ** 2).mean()


def test_gradients_are_those_of_differences() -> None:
    x, index = drawn(12)
    params = {"w": drawn(3, 4, 1)[0], "b": drawn(1, 4, 2)[0][0]}
    block = value_and_grad(trace(loss, params, (x, index)))
    given = [np.asarray(leaf) for leaf in flatten((params, (x, index)))[0]]
    value, *gradients = evaluate_flat(block, given)
    for which, gradient in enumerate(gradients):
        for place in np.ndindex(gradient.shape):
            moved = []
            for step in (1e-5, -1e-5):
                other = [leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf for leaf in given]
                other[which] = other[which].copy()
                other[which][place] += step
                moved.append(float(evaluate_flat(block, other)[0]))
            assert np.isclose((moved[0] - moved[1]) / 2e-5, gradient[place], rtol=1e-5, atol=1e-7)
    assert np.isfinite(value)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.32", "fp16.16/stochastic"])
def test_both_engines_have_the_same_bits(precision: str) -> None:
    batch, params = drawn(40), {"w": drawn(3, 4, 1)[0], "b": drawn(1, 4, 2)[0][0]}
    ends = []
    for engine in ("direct", "tiles"):
        loop = TrainLoop(loss, params, batch, optimizer=Adam(0.01), precision=precision, engine=engine, key=3)
        losses = loop.run(lambda _: batch, 6)
        ends.append((losses.tobytes(), *(array.tobytes() for array in loop.arrays().values())))
        assert losses[-1] < losses[0]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, i: nn.segment_sum(x, i, 3), "out of bounds for 3 rows"),
        (lambda x, i: nn.segment_sum(x, i.astype(np.float32), 6), "index must be integers"),
        (lambda x, i: nn.segment_sum(x, i[:3], 6), "must begin with the shape of the indices"),
        (lambda x, i: nn.segment_sum(x, i.reshape(4, 5), 6), "index has one axis"),
        (lambda x, i: nn.segment_sum(x, i, 0), "count must be an integer of at least 1"),
        (lambda x, i: nn.segment_mean(x, i, 2.5), "count"),
        (lambda x, i: nn.segment_max(x, i.reshape(4, 5), 6), "index has one axis"),
        (lambda x, i: nn.segment_max(x, i, 3), "out of bounds"),
        (lambda x, i: nn.segment_sum(x, i, 6, accumulation="float16"), "accumulation must be"),
        (lambda x, i: nn.segment_sum(x, i, 6, accumulation=lowprec.Accumulation(4, 2)), "sums of one part"),
        (
            lambda x, i: nn.segment_sum(x.astype(float), i, 6, accumulation=lowprec.Accumulation(4)),
            "float32 and narrower",
        ),
        (lambda x, i: nn.segment_sum(x, i, 6, accumulation=lowprec.Accumulation(4, out="float16")), "no stages"),
        (lambda x, i: nn.scatter_add(x, i, x[:, :2]), "updates"),
        (lambda x, i: nn.scatter_add(x, x, x), "index must be integers"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError, IndexError), match=words):
        call(*drawn(20))
