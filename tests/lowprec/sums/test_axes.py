"""Reductions over any axes: which terms, in which order, without copies, against sums of single axes and fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
import lowprec.testing as lpt
from lowprec.values.axes import fold, vertices
from tests.lowprec.sums_cases import arrays, assert_backends_agree, rounding_options, strided

SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 7]), min_size=0, max_size=4).map(tuple)


@st.composite
def axes_of(draw: st.DrawFn, count: int) -> Any:
    """None, one axis (some negative) or a tuple of distinct ones."""
    if not count or draw(st.booleans()):
        return None if draw(st.booleans()) or not count else draw(st.integers(-count, count - 1))
    chosen = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count))
    return tuple(axis - count if draw(st.booleans()) else axis for axis in chosen)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(SHAPES, rounding_options(), st.data())
def test_every_backend_gives_the_same_sums_over_any_axes(
    shape: Any, options: dict[str, Any], data: st.DataObject
) -> None:
    assert_backends_agree(
        lp.reduce_sum,
        data.draw(arrays(shape).flatmap(strided)),
        data.draw(axes_of(len(shape))),
        **options,
        accumulate=data.draw(st.sampled_from(["float16", "float32", "float8_e4m3fn"])),
        group=data.draw(st.sampled_from([1, 4, None])),
        splits=data.draw(st.sampled_from([1, 3])),
        keepdims=data.draw(st.booleans()),
        offset=data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))),
    )


@settings(max_examples=100, derandomize=True, deadline=None)
@given(SHAPES, st.data())
def test_sums_of_integers_are_numpys(shape: Any, data: st.DataObject) -> None:
    x = data.draw(arrays(shape, [np.float32]).flatmap(strided))
    x = np.round(np.clip(np.nan_to_num(x), -8, 8))
    axis, keepdims = data.draw(axes_of(x.ndim)), data.draw(st.booleans())
    want = np.sum(x, axis, keepdims=keepdims)
    for function in (lp.reduce_sum, lambda x, axis, **k: lp.sum(x, axis=axis, **k)):
        got = function(x, axis, keepdims=keepdims)
        assert np.shape(got) == want.shape
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2), (1, 3), (2, 1), (0, 1, 3), ()])
@pytest.mark.parametrize("perm", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
def test_strides_do_not_matter(rounding: str, axis: Any, perm: tuple[int, ...], host_backend: str) -> None:
    base = np.random.default_rng(0).normal(size=(4, 3, 5, 6)).astype(np.float16)
    x = base.transpose(perm)[:, ::-1]
    options: dict[str, Any] = dict(accumulate="float16", group=4, rounding=rounding, key=3)
    want = lp.reduce_sum(x.copy(), axis, **options)
    lp.testing.assert_same_bits(lp.reduce_sum(x, axis, **options), want)
    out = np.zeros_like(np.asarray(want).T).T
    assert lp.reduce_sum(x, axis, out=out, **options) is out
    lp.testing.assert_same_bits(out, np.asarray(want))


def test_the_order_over_several_axes_is_c_order(host_backend: str) -> None:
    x = np.random.default_rng(1).normal(size=(3, 4, 2, 5)).astype(np.float16)
    options: dict[str, Any] = dict(accumulate="float16", group=3, rounding="stochastic", key=9)
    moved = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(6, 20)  # kept 0 and 2; terms over 1 and 3
    lp.testing.assert_same_bits(lp.reduce_sum(x, (1, 3), **options).ravel(), lp.reduce_sum(moved, 1, **options))
    lp.testing.assert_same_bits(lp.reduce_sum(x, (3, -3), **options).ravel(), lp.reduce_sum(moved, 1, **options))
    flat = lp.reduce_sum(x.reshape(-1), **options)
    lp.testing.assert_same_bits(np.asarray(lp.reduce_sum(x, None, **options)), np.asarray(flat))


def test_part_of_a_sum_with_its_offset(host_backend: str) -> None:
    x = np.random.default_rng(2).normal(size=(9, 40, 50)).astype(np.float16)
    options: dict[str, Any] = dict(accumulate="float16", group=2, splits=3, rounding="stochastic", key=4)
    whole = lp.reduce_sum(x, 1, **options)
    lp.testing.assert_same_bits(lp.reduce_sum(x[3:5, :, 7:30], 1, offset=(3, 7), **options), whole[3:5, 7:30])
    rows = lp.reduce_sum(x[:, :, 0], -1, **options)
    lp.testing.assert_same_bits(lp.reduce_sum(x[4:, :, 0], -1, offset=(4, 0), **options), rows[4:])
    with pytest.raises(ValueError, match="offset must lie in"):
        lp.reduce_sum(x, 1, offset=(-1, 0))


def test_group_one_is_the_exact_sum_rounded_twice() -> None:
    """Each term is added to a float32 exactly rounded, then the format's rounding: fractions, by hand."""
    x = np.random.default_rng(3).normal(size=200).astype(np.float16)
    total = np.float16(0)
    for value in x:
        exact = Fraction(float(total)) + Fraction(float(value))
        total = np.float16(np.float32(float(exact)))  # float(exact) is exact here: at most 40 bits
    assert lp.reduce_sum(x, accumulate="float16", group=1) == total


def test_no_copy_where_kept_axes_cannot_be_joined() -> None:
    base = np.zeros((4, 3, 5, 6), np.float16)
    x = base[:, :, ::2, ::2].transpose(2, 0, 3, 1)
    blocks = vertices(x, fold(x.shape, 1))
    assert blocks is not None
    assert np.shares_memory(blocks.x, base)
    assert blocks.x.shape[-3:] == (3, 4, 3)
    assert vertices(x, fold(x.shape, (0, 1))) is None
    assert not fold(x.shape, (0, 1)).is_view(x)
    assert fold(base.shape, (2, 3)).is_view(base)


def test_scalars_and_empty_axes(host_backend: str) -> None:
    assert lp.reduce_sum(np.float32(2.5), None) == 2.5
    assert np.shape(lp.reduce_sum(np.ones((2, 3), np.float16), None)) == ()
    assert lp.reduce_sum(np.ones((2, 0, 3), np.float16), (0, 1)).tolist() == [0.0, 0.0, 0.0]
    assert lp.reduce_sum(np.ones((0, 3), np.float16), 1).shape == (0,)
    same = np.float32([[1.25, 2050.0]])
    lp.testing.assert_same_bits(lp.reduce_sum(same, (), accumulate="float16"), np.float16([[1.25, 2050.0]]))
    assert lp.reduce_max(np.float16([[1, 5], [7, 2]]), None) == 7
    assert lp.reduce_max(np.float16([[[1, 5], [7, 2]]]), (0, 2)).tolist() == [5, 7]


def test_bad_axes_say_what_is_wrong() -> None:
    x = np.ones((2, 3), np.float16)
    for function in (lp.reduce_sum, lp.reduce_max, lambda x, axis: lp.sum(x, axis=axis)):
        with pytest.raises(ValueError, match=r"names an axis twice"):
            function(x, (0, -2))
        with pytest.raises(ValueError, match=r"axis 2 is out of bounds for an array of 2 axes"):
            function(x, (0, 2))
        with pytest.raises(TypeError, match=r"an integer, a tuple of integers or None"):
            function(x, 0.5)
    with pytest.raises(TypeError, match="one axis or all"):
        lp.cumulative_sum(x, axis=(0, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 1), (1, 2), (0, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
def test_a_fold_says_whether_its_view_copies(axis, order):
    for shape in ((2, 3, 4), (1, 3, 4), (2, 1, 4)):
        x = np.zeros(shape).transpose(order)
        how = fold(x.shape, axis)
        assert how.is_view(x) == np.shares_memory(how.view(x), x)


@pytest.mark.parametrize("name", ["sum", "mean", "norm", "cumulative_sum", "kahan_sum"])
def test_an_axis_or_a_format_may_stand_second(name: str) -> None:
    call = getattr(lp, name)
    x = np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32)
    for axis in (0, -1, np.int64(1), None):
        lpt.assert_same_bits(call(x, axis), call(x, axis=axis))
        lpt.assert_same_bits(call(x, axis, "bf16", "up"), call(x, axis=axis, fmt="bf16", rounding="up"))
    lpt.assert_same_bits(call(x, "bf16", "up", axis=0), call(x, 0, fmt="bf16", rounding="up"))
    lpt.assert_same_bits(call(x, lp.bfloat16, lp.Rounding("up")), call(x, fmt="bf16", rounding="up"))
    lpt.assert_same_bits(call(x, "bf16", rounding="nearest"), call(x, "bf16", rounding="nearest_even"))
    with pytest.raises(TypeError, match="is given fmt twice: 'bf16', and by its name"):
        call(x, "bf16", fmt="fp16")
    with pytest.raises(TypeError, match="at most a format and a rounding after its operands"):
        call(x, "bf16", "up", 0)


def test_dot_takes_an_axis_or_a_format_third() -> None:
    x = np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32)
    lpt.assert_same_bits(lp.dot(x, x, 0), lp.dot(x, x, axis=0))
    lpt.assert_same_bits(lp.dot(x, x, "bf16"), lp.dot(x, x, -1, "bf16"))
