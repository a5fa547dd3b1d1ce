"""reduce_sum, reduce_part, sum_parts and reduce_max."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowprec as lp
from tests.examples import examples
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


@examples(quick=100, slow=200)
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


@examples(quick=60, slow=120)
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


@examples(quick=75, slow=150)
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


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize(
    ("shape", "axis"), [((130, 5), 1), ((3, 300), 1), ((70, 700), 0), ((4, 9, 37), 1), ((130, 5), 0)]
)
def test_the_largest_wherever_it_lies(dtype: Any, shape: tuple[int, ...], axis: int, host_backend: str) -> None:
    x = np.random.default_rng(2).integers(-3, 0, shape).astype(np.float32)
    x.reshape(-1)[::11] = -0.0
    x.reshape(-1)[::17] = 0.0
    x.reshape(-1)[7] = np.float32(np.nan) * np.float32(-1)
    values = x.astype(dtype)
    for view in (values, np.asfortranarray(values), values[::-1]):
        columns = np.moveaxis(view.astype(np.float32), axis, -1)
        want = [largest(column.tolist()) for column in columns.reshape(-1, columns.shape[-1])]
        lp.testing.assert_same_bits(lp.reduce_max(view, axis).reshape(-1), np.array(want, np.float32).astype(dtype))


def largest(values: list[float]) -> float:
    """NaN wins, and +0 is larger than -0."""
    if any(math.isnan(value) for value in values):
        return math.nan
    return max(values, key=lambda value: (value, math.copysign(1, value)))


def test_rounding_after_every_term_in_registers_is_that_of_the_definition() -> None:
    """Sums into float16, one term to a group, of every layout, at the ends of the range too."""
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(70, 90)) * 2.0 ** rng.integers(-26, 13, (70, 90))).astype(np.float32)
    x[5, 5], x[6, 6], x[7, 7], x[8, 8] = np.inf, np.nan, 65519.996, 3e38
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        with np.errstate(over="ignore"):
            values = x.astype(dtype)
        for view in (values, np.asfortranarray(values), values[:1], values[:, :1]):
            for axis in (0, 1, None):
                options: dict[str, Any] = {"accumulate": "float16", "group": 1, "out_format": "float32"}
                assert_backends_agree(lp.reduce_sum, view, axis, **options)


@pytest.mark.parametrize("offset", [(0, 0), (5, 0), (0, 7), (3, 11)])
def test_stochastic_sums_of_an_uncopied_view_have_the_bits_of_its_copy_at_any_offset(offset: tuple[int, int]) -> None:
    """Kept axes that cannot be joined become vertex axes, whose places count from the offset."""
    x = np.random.default_rng(4).standard_normal((4, 6, 5, 8)).astype(np.float32)[:, ::2, :, :3]
    how = {"axis": 1, "accumulate": "float16", "group": 1, "rounding": "stochastic", "key": 9, "offset": offset}
    np.testing.assert_array_equal(lp.reduce_sum(x, **how), lp.reduce_sum(np.ascontiguousarray(x), **how))


@pytest.mark.parametrize("name", lp.testing.isa_names())
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("terms", [3, 4, 15, 16, 17, 63, 65, 256, 257, 511])
def test_the_largest_may_be_anywhere_in_a_row(name: str, dtype: Any, terms: int) -> None:
    x = np.full((terms, terms + 1), -2, dtype)
    x[:, -1] = 5  # behind the rows
    x[:, :-1][np.eye(terms, dtype=bool)] = -1  # row i has it as element i
    x[1, 2] = np.nan
    want = np.full(terms, -1, dtype)
    want[1] = np.nan
    with lp.testing.isa(name):
        for rows in (x, np.repeat(x, 2, 1)[:, ::2]):
            lp.testing.assert_same_bits(lp.reduce_max(rows[:, :-1], 1), want)
