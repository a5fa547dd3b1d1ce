"""What is measured of a value: against NumPy in float64 in every format, and of its rounding against ideal results."""

import math

import numpy as np
import pytest

from ipu_core.diagnose.measure import (
    AGAIN,
    BINADES,
    FEWEST,
    HISTOGRAM_OF,
    LOWEST,
    binades,
    is_rounded,
    looked_at,
    measured,
    spread,
    terms,
    truth_values,
)
from ipu_core.ir.block import Equation, Literal, Params, Type, Var
from ipu_core.ir.convolution import exact_weight_gradient, exact_weight_gradient_at
from ipu_core.ir.exact import exact
from lowprec import as_format, astype
from lowprec.statistics.counts import PIECE

FORMATS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"]
RNG = np.random.default_rng(7)


def values(fmt, shape):
    """Numbers over many binades, zeros, and where the format has them infinities and NaN."""
    x = RNG.normal(size=shape) * 2.0 ** RNG.integers(-12, 4, shape)
    x.flat[::7] = 0.0
    x.flat[3::50] = np.nan
    x.flat[5::50] = np.inf
    return np.asarray(astype(x, fmt))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (PIECE + 17,), (4, PIECE // 2 + 1)], ids=str)
def test_an_array_is_measured_as_numpy_measures_it(fmt, shape):
    x = values(fmt, shape)
    seen, plain = looked_at(x, as_format(fmt)), x.astype(np.float64)
    finite = plain[np.isfinite(plain)]
    assert seen.counts[:4] == (x.size, (plain == 0).sum(), np.isinf(plain).sum(), np.isnan(plain).sum())
    assert seen.largest == np.abs(finite).max(initial=0)
    assert seen.squares == pytest.approx((finite**2).sum(), rel=1e-5)


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_histogram_counts_binades_of_what_is_finite_and_not_zero(fmt):
    x = values(fmt, (20, 45))
    assert x.size <= HISTOGRAM_OF
    seen, plain = binades(looked_at(x, as_format(fmt)).histogram), x.astype(np.float64)
    wanted = np.frexp(plain[np.isfinite(plain) & (plain != 0)])[1] - 1 - LOWEST
    assert np.array_equal(seen, np.bincount(wanted, minlength=BINADES))


def test_the_ends_of_the_histogram_are_open():
    x = np.array([1e-37, 2.0**LOWEST, 2.0 ** (LOWEST + 1), 2.0**23, 2.0**24, 1e38], np.float32)
    seen = binades(looked_at(x, as_format("float32")).histogram)
    assert (seen[0], seen[1], seen[-1], seen.sum()) == (2, 1, 3, 6)


def test_a_large_array_is_sampled_along_all_its_axes():
    x = np.ones((256, 512), np.float32)
    x[:, ::2] = 4.0
    seen = binades(looked_at(x, as_format("float32")).histogram)
    assert seen.sum() == HISTOGRAM_OF
    assert seen[-LOWEST] / HISTOGRAM_OF == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_leave_float32s_range_and_not_the_measure(scale):
    x = (RNG.normal(size=1000) * scale).astype(np.float32)
    assert looked_at(x, as_format("float32")).squares == pytest.approx((x.astype(np.float64) ** 2).sum(), rel=1e-5)


def equation(op, inputs, out, fmt, **params):
    """An equation on arrays and numbers, with what it reads."""
    atoms = tuple(
        Literal(x) if isinstance(x, float) else Var("x", Type(x.shape, "int32" if x.dtype.kind == "i" else
                                                              as_format(x.dtype)))
        for x in inputs
    )  # fmt: skip
    return Equation(0, op, atoms, (Var("y", Type(out, as_format(fmt))),), Params(params))


def half(*shape, scale=1.0, dtype=np.float16):
    x = RNG.normal(size=shape) * scale
    x[RNG.random(shape) < 0.3] = 0
    if len(shape) > 1:
        x[:, 0] = x[..., 0] = 0  # sums that are zero
    return x.astype(dtype)


def single(*shape, scale):
    return half(*shape, scale=scale, dtype=np.float32)


PAIR = np.random.default_rng(8).normal(size=(40, 30)).astype(np.float32) * np.float32(1e-3)
PAIR[:, 0] = PAIR[0] = PAIR[-1] = 0
TINY, SPAN = np.float32(1e-5), np.linspace(1e2, 6e4, 1200, dtype=np.float16).reshape(40, 30)
BY = np.where(PAIR == 0, np.float32(1e30), np.float32(1e4) + np.abs(PAIR) * np.float32(1e9))
INDICES = RNG.integers(0, 30, (20,)).astype(np.int32)
CASES = {
    "multiply": ("multiply", (half(40, 30, scale=1e-4), half(40, 30, scale=1e-3)), (40, 30), {}),
    "number": ("multiply", (half(40, 30), 3e-8), (40, 30), {}),
    "one for all": ("multiply", (half(40, 30), np.array(3e-7, np.float16)), (40, 30), {}),
    "scaled_add": ("scaled_add", (half(60), half(60, scale=1e-3), 1e-4), (60,), {}),
    "exp": ("exp", (half(30, 20, scale=20),), (30, 20), {}),
    "gelu": ("gelu", (half(30, 20, scale=4),), (30, 20), {}),
    "narrower": ("convert", (single(100, scale=3e-8),), (100,), {}),
    "dot": ("dot", (half(9, 24, scale=1e-4), half(24, 8, scale=1e-4)), (9, 8), {}),
    "batched": ("dot", (half(3, 5, 6, scale=1e-4), half(3, 6, 4, scale=1e-3)), (3, 5, 4), {}),
    "sum": ("reduce_sum", (single(7, 3, 5, scale=1e-8),), (3,), {"axis": (0, 2), "keepdims": False}),
    "sum kept": ("reduce_sum", (single(7, 3, 5, scale=1e-8),), (7, 1, 5), {"axis": (1,), "keepdims": True}),
    "scatter": ("scatter_add", (INDICES, single(20, 4, scale=3e-8)), (30, 4), {"rows": 30}),
    "put": ("put_along", (INDICES.reshape(5, 4), single(5, 4, scale=3e-8)), (5, 30), {"size": 30}),
    "add": ("add", (PAIR * TINY, np.where(PAIR < 0, -PAIR, PAIR[::-1]) * TINY), (40, 30), {}),
    "subtract": ("subtract", (PAIR, np.where(PAIR < 0, PAIR, PAIR * np.float32(1 + 2**-20))), (40, 30), {}),
    "divide": ("divide", (PAIR.astype(np.float16), SPAN), (40, 30), {}),
    "number by": ("divide", (1e-300, BY), (40, 30), {}),  # by 1e30 nothing is left in float64 either
}


@pytest.mark.parametrize("name", CASES)
def test_underflow_is_what_is_zero_and_would_not_be(name):
    op, inputs, shape, params = CASES[name]
    made = equation(op, inputs, shape, "float16", **params)
    given = [x if isinstance(x, float) or x.dtype.kind == "i" else x.astype(np.float64) for x in inputs]
    ideal = np.asarray(exact(op, given, params))
    result = np.asarray(astype(ideal, "float16"))
    seen = measured(made, inputs, result, is_rounded(made))
    lost = int(((result == 0) & (ideal != 0)).sum())
    assert (result == 0).sum() <= max(FEWEST, AGAIN // terms(made))
    assert seen.underflow == lost > 0
    assert seen.zeros == (result == 0).sum()
    assert seen.zeros > lost or name in ("exp", "gelu")


def test_of_more_zeros_than_are_computed_again_some_stand_for_the_others():
    a = np.full((100, 400), 1e-5, np.float16)
    a[:50] = 0
    b = np.full((400, 100), 1e-12, np.float32)
    made = equation("dot", (a, b), (100, 100), "float16")
    assert max(FEWEST, AGAIN // 400) < 10000
    assert measured(made, (a, b), np.zeros((100, 100), np.float16), True).underflow == pytest.approx(5000, rel=0.2)


@pytest.mark.parametrize("op, padding", [("conv2d", (1, 1)), ("conv2d_input_gradient", (1, 1)),
                                         ("conv2d_weight_gradient", (1, 1))])  # fmt: skip
def test_underflow_of_convolutions(op, padding):
    params = {"stride": (1, 1), "padding": (padding, padding), "dilation": (1, 1), "groups": 1}
    x, w = half(2, 6, 6, 3, scale=1e-4), half(3, 3, 3, 3, scale=1e-4)
    inputs = {"conv2d": (x, w), "conv2d_input_gradient": (x, w), "conv2d_weight_gradient": (x[:1], x[:1])}[op]
    params |= {"conv2d": {}, "conv2d_input_gradient": {"size": (6, 6)}, "conv2d_weight_gradient": {"kernel": (3, 3)}}[
        op
    ]
    ideal = exact(op, [a.astype(np.float64) for a in inputs], params)
    result = ideal.astype(np.float16)
    made = equation(op, inputs, ideal.shape, "float16", **params)
    assert measured(made, inputs, result, True).underflow == ((result == 0) & (ideal != 0)).sum() > 0


@pytest.mark.parametrize("groups", [1, 3])
def test_elements_of_a_convolutions_weight_gradient_are_those_of_the_whole(groups):
    sizes = {"stride": (2, 1), "padding": ((1, 0), (2, 1)), "dilation": (1, 2), "groups": groups, "kernel": (3, 2)}
    x, gradient = RNG.normal(size=(2, 7, 6, 6)), RNG.normal(size=(2, 3, 7, 9))
    whole = exact_weight_gradient(x, gradient, Params(sizes))
    at = np.array([0, 5, 17, whole.size - 1, 40])
    np.testing.assert_allclose(exact_weight_gradient_at(x, gradient, Params(sizes), at), whole.reshape(-1)[at])


def test_overflow_and_saturation_are_what_would_be_finite_and_what_would_be_larger():
    a = np.array([60000, 65504, 300, 100, np.inf, np.nan, 2], np.float16)
    b = np.array([1, 1, 300, 1000, 1, 1, 3], np.float16)
    made = equation("multiply", (a, b), (7,), "float16")
    saturating = np.array([60000, 65504, 65504, 65504, np.inf, np.nan, 6], np.float16)
    seen = measured(made, (a, b), saturating, True)
    assert (seen.overflow, seen.saturated, seen.infinite, seen.nan) == (0, 2, 1, 1)
    infinite = np.array([60000, 65504, np.inf, np.nan, np.inf, np.nan, 6], np.float16)
    seen = measured(made, (a, b), infinite, True)
    assert (seen.overflow, seen.saturated, seen.infinite, seen.nan) == (2, 0, 2, 2)


def test_what_never_rounds_is_not_computed_again():
    x = half(20)
    relu, choice = equation("relu", (x,), (20,), "float16"), equation("maximum", (x, x), (20,), "float16")
    assert not is_rounded(relu)
    assert not is_rounded(choice)
    assert is_rounded(equation("add", (x, x), (20,), "float16"))
    assert is_rounded(equation("convert", (x,), (20,), "float8_e5m2"))
    assert not is_rounded(equation("convert", (x,), (20,), "float32"))
    assert truth_values(equation("greater", (x, x), (20,), "float16"))
    assert not truth_values(relu)


def test_steps_through_an_array_meet_every_remainder():
    for size in (10_000, 2**16, 3 * 2**12):
        places = spread(size, 1000)
        assert len(set(places.tolist())) == 1000
        assert math.gcd(int(places[1]), size) == 1
        assert places.max() < size


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_zeros_of_either_sign_underflow(dtype):
    """In runs longer than the compiled loop looks through at a time."""
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.full(4000, tiny, dtype)
    x[1000:2000] = 0
    x[2000:] = -tiny
    made = equation("multiply", (x, x), (4000,), "float16" if dtype == np.float16 else "float32")
    result = np.where(x < 0, dtype(-0.0), dtype(0))
    seen = measured(made, (x, np.full(4000, 0.25, dtype)), result, True)
    assert (seen.zeros, seen.underflow) == (4000, 3000)
