"""The compiled backend against the reference over random formats, modes and policies: products and sums, by bits."""

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowprec as lp
from lowprec.values.accumulation import ADDERS
from lowprec.values.rounding import INFINITE_INPUTS, MODES, OVERFLOWS
from tests.lowprec.sums_cases import Array, assert_backends_agree

CASES = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
STORED = ["float16", "bfloat16", "float32", "float8_e5m2", "float8_e4m3fn", "float8_e4m3", "float8_e5m2fnuz"]


@st.composite
def formats(draw: st.DrawFn) -> Any:
    """A named format, or one of few bits: with and without infinities, NaN and subnormals."""
    if draw(st.booleans()):
        return draw(st.sampled_from(STORED))
    exponent_bits, mantissa_bits = draw(st.integers(2, 7)), draw(st.integers(1, 22))
    special = draw(st.sampled_from([("ieee", True), ("ieee", True), ("top", False), ("none", False)]))
    subnormals = draw(st.sampled_from([True, True, True, False]))
    return lp.FloatFormat(
        "fuzzed", exponent_bits, mantissa_bits, nan=special[0], infinities=special[1], subnormals=subnormals
    )


@st.composite
def roundings(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "rounding": draw(st.sampled_from(MODES)),
        "random_bits": draw(st.integers(1, 32)),
        "overflow": draw(st.sampled_from([None, *OVERFLOWS])),
        "infinite_input": draw(st.sampled_from([None, *INFINITE_INPUTS])),
        "key": draw(st.integers(0, 2**64 - 1)),
    }


@st.composite
def matrices(draw: st.DrawFn, shape: tuple[int, int], largest: float) -> Array:
    """Numbers of the format's upper end, of one, or small integers, some of them infinite."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([1.0, 3.0, min(largest, 1e30), min(largest, 1e30) / 4, 1e-5]))
    x = rng.normal(size=shape) * scale if draw(st.booleans()) else rng.integers(-3, 4, size=shape) * scale
    if draw(st.integers(0, 3)) == 0:
        x.flat[rng.integers(x.size)] = draw(st.sampled_from([np.inf, -np.inf, np.nan]))
    return x.astype(np.float32)


@st.composite
def sums(draw: st.DrawFn) -> dict[str, Any]:
    accumulate = draw(formats())
    own = None if lp.as_format(accumulate).dtype is not None else draw(st.sampled_from(STORED))
    return {
        "accumulate": accumulate,
        "out_format": draw(st.sampled_from([own, own, "float32", "float16", "float8_e8m0fnu"])),
        "group": draw(st.sampled_from([None, 1, 2, 3])),
        "splits": draw(st.integers(1, 3)),
        "stages": draw(st.sampled_from([None, 1, 2, 3])),
        **draw(roundings()),
    }


@CASES
@given(st.data())
def test_products_agree_over_formats(data: st.DataObject) -> None:
    how = data.draw(sums())
    largest = lp.as_format(how["accumulate"]).max
    k = data.draw(st.integers(1, 7))
    a, b = data.draw(matrices((2, k), largest)), data.draw(matrices((k, 3), 1.0))
    adder = data.draw(st.sampled_from(ADDERS))
    if adder == "aligned":
        how |= {"aligned_bits": data.draw(st.integers(1, 35)), "group": how["group"] or 4}
    if adder == "dot4":
        a, b = lp.astype(a, "bfloat16"), lp.astype(b, "bfloat16")
    assert_backends_agree(lp.matmul, a, b, adder=adder, **how)


@CASES
@given(st.data())
def test_machine_sums_agree_over_formats(data: st.DataObject) -> None:
    how = data.draw(sums())
    x = data.draw(matrices((2, data.draw(st.integers(1, 7))), lp.as_format(how["accumulate"]).max))
    assert_backends_agree(lp.reduce_sum, x, **how)


@CASES
@given(st.data())
def test_ordered_sums_agree_over_formats(data: st.DataObject) -> None:
    fmt, how = data.draw(formats()), data.draw(roundings())
    x = data.draw(matrices((2, data.draw(st.integers(1, 7))), lp.as_format(fmt).max))
    order = data.draw(st.sampled_from(["sequential", "blocked", "pairwise", "kahan"]))
    assert_backends_agree(lp.sum, x, fmt, axis=1, order=order, block=2, flush=data.draw(st.booleans()), **how)


@CASES
@given(st.data())
def test_results_that_overflow_agree(data: st.DataObject) -> None:
    """Formats with infinities, at their upper end, under every pair of policies: a result may be rounded twice."""
    fmt = data.draw(st.sampled_from(["float16", "float8_e5m2", "float8_e4m3"]))
    largest = lp.as_format(fmt).max
    x = np.float32(data.draw(st.lists(st.sampled_from([largest, -largest, 1.0]), min_size=1, max_size=4)))
    policies: dict[str, Any] = {"overflow": "infinity", "infinite_input": data.draw(st.sampled_from(INFINITE_INPUTS))}
    how = {"accumulate": fmt, "rounding": data.draw(st.sampled_from(MODES)), "key": 1, **policies}
    assert_backends_agree(lp.reduce_sum, x, **how)
    assert_backends_agree(lp.matmul, x, np.ones_like(x), **how)


def test_overflow_to_an_infinity_that_is_then_replaced() -> None:
    """A result that overflows where it is accumulated and is infinite where it is stored, of either sign."""
    for sign, mode in ((-1, "down"), (1, "up"), (-1, "nearest_even")):
        a = np.full((1, 2), sign * 60000, np.float16)
        how: dict[str, Any] = dict(accumulate="float16", rounding=mode, overflow="infinity", infinite_input="nan")
        assert np.isnan(lp.matmul(a, np.ones((2, 1), np.float16), **how)).all()
        assert np.isnan(lp.reduce_sum(a, **how)).all()
