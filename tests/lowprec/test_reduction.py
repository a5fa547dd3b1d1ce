"""reduce_sum, reduce_part, sum_parts and reduce_max."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from tests.lowprec.sums_cases import (
    ACCUMULATORS,
    OPERANDS,
    RESULTS,
    arrays,
    assert_backends_agree,
    rounding_options,
    strided,
)

LENGTHS = st.lists(st.sampled_from([1, 2, 5, 18, 40]), min_size=1, max_size=3).map(tuple)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(LENGTHS, rounding_options(), st.data())
def test_every_backend_gives_the_same_sums(shape: Any, options: dict[str, Any], data: st.DataObject) -> None:
    assert_backends_agree(
        lp.reduce_sum,
        data.draw(arrays(shape).flatmap(strided)),
        **options,
        accumulate=data.draw(st.sampled_from(ACCUMULATORS)),
        group=data.draw(st.sampled_from([1, 4, 16, None])),
        splits=data.draw(st.sampled_from([1, 2, 5, 20])),
        out_format=data.draw(st.sampled_from(RESULTS)),
        axis=data.draw(st.integers(0, len(shape) - 1)),
        keepdims=data.draw(st.booleans()),
    )


@settings(max_examples=120, derandomize=True, deadline=None)
@given(rounding_options(), st.data())
def test_every_backend_gives_the_same_sums_of_parts(options: dict[str, Any], data: st.DataObject) -> None:
    vertices = data.draw(st.sampled_from([(), (2,), (2, 2)]))
    shape = (
        data.draw(st.integers(0, 4)),
        *vertices,
        data.draw(st.integers(1, 4)),
        data.draw(st.sampled_from([1, 5, 17])),
    )
    assert_backends_agree(
        *(lp.sum_parts, data.draw(arrays(shape).flatmap(strided))),
        **options,
        fmt=data.draw(st.sampled_from(RESULTS)),
        tag=data.draw(st.sampled_from(["stage", "output"])),
        **{name: data.draw(st.integers(0, 40)) for name in ("index", "row", "column", "batch")},
    )


@settings(max_examples=150, derandomize=True, deadline=None)
@given(LENGTHS, st.data())
def test_every_backend_gives_the_same_maxima(shape: Any, data: st.DataObject) -> None:
    x = data.draw(arrays(shape, OPERANDS[:6]).flatmap(strided))
    assert_backends_agree(lp.reduce_max, x, axis=data.draw(st.integers(0, len(shape) - 1)))


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_sum_is_a_product_with_ones(rounding: str, axis: int, host_backend: str) -> None:
    x = np.random.default_rng(2).normal(size=(3, 21, 18)).astype(np.float16)
    options: dict[str, Any] = dict(accumulate="float16", group=4, splits=2, rounding=rounding, key=4)
    got = lp.reduce_sum(x, axis, **options)
    outer = int(np.prod(x.shape[:axis]))
    terms = x.reshape(outer, x.shape[axis], -1)
    ones = np.ones((1, x.shape[axis]), np.float16)
    rows = [lp.matmul(ones, terms[i], offset=(i, 0), **options) for i in range(outer)]
    lp.testing.assert_same_bits(got.ravel(), np.concatenate(rows).ravel())


def test_parts_of_a_sum(host_backend: str) -> None:
    x = np.random.default_rng(3).normal(size=(2, 4, 40, 5)).astype(np.float16)
    options: dict[str, Any] = dict(accumulate="float16", group=8, rounding="stochastic", key=1)
    row = np.array([0, 4])
    whole = lp.reduce_part(x, row=row, **options)
    assert whole.shape == (2, 4, 5)
    want = lp.reduce_sum(x.reshape(8, 40, 5), 1, **options).reshape(2, 4, 5)
    lp.testing.assert_same_bits(whole, want)
    halves = [lp.reduce_part(x[:, :, k : k + 24], row=row, first_group=k // 8, **options) for k in (0, 24)]
    want = lp.reduce_sum(x.reshape(8, 40, 5), 1, splits=2, **options).reshape(2, 4, 5)
    total = lp.sum_parts(np.stack(halves), fmt="float16", tag="output", row=row, rounding="stochastic", key=1)
    lp.testing.assert_same_bits(total, want)


def test_shapes_empty_axes_and_out(host_backend: str) -> None:
    x = np.ones((2, 3, 4), np.float16)
    assert lp.reduce_sum(x, 1).shape == (2, 4)
    assert lp.reduce_sum(x, -1, keepdims=True).shape == (2, 3, 1)
    assert lp.reduce_sum(x[0, 0]) == 4.0
    assert lp.reduce_sum(np.ones((2, 0), np.float16), 1).tolist() == [0.0, 0.0]
    out = np.empty((2, 4), np.float32)
    assert lp.reduce_sum(x, 1, out=out) is out
    assert (out == 3).all()


def test_maxima_of_zeros_infinities_and_nan(host_backend: str) -> None:
    x = np.float16([[-0.0, 0.0, -1], [-np.inf, -np.inf, -np.inf], [1, np.nan, np.inf], [-0.0, -0.0, -0.0]])
    lp.testing.assert_same_bits(lp.reduce_max(x), np.float16([0.0, -np.inf, np.nan, -0.0]))
    lp.testing.assert_same_bits(lp.reduce_max(x.T.copy(), 0), np.float16([0.0, -np.inf, np.nan, -0.0]))


def test_threads_do_not_matter() -> None:
    x = np.random.default_rng(4).normal(size=(400, 900)).astype(np.float32)
    for axis in (0, 1):
        results = []
        for threads in (1, 2):
            with lp.num_threads(threads):
                results.append(lp.reduce_sum(x, axis, accumulate="float16", group=16, rounding="stochastic", key=2))
        lp.testing.assert_same_bits(results[1], results[0])


def test_bad_calls_say_what_is_allowed(host_backend: str) -> None:
    x = np.ones((2, 3), np.float16)
    with pytest.raises(ValueError, match="axis 2 is out of bounds for an array of 2 axes"):
        lp.reduce_sum(x, 2)
    with pytest.raises(ValueError, match="no elements"):
        lp.reduce_max(x[:, :0])
    with pytest.raises(ValueError, match="unknown tag 'end'; allowed are stage, output"):
        lp.sum_parts(x[None], fmt="float16", tag="end")
    with pytest.raises(TypeError, match="not int64"):
        lp.reduce_sum(np.ones(3, np.int64))
    with pytest.raises(ValueError, match="out has shape"):
        lp.reduce_sum(x, 1, out=np.empty(3, np.float32))
    with pytest.raises(ValueError, match="x has axes"):
        lp.reduce_part(np.ones(3, np.float16))
    with pytest.raises(ValueError, match="parts has axes"):
        lp.sum_parts(x, fmt="float16")
