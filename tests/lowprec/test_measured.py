"""What may be measured, on every kind of format and array: shares in every mode, and the same numbers however given."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
import lowprec.testing as lpt
from lowprec import statistics as ls
from lowprec.backends.reference.random import rounding_bits
from lowprec.backends.reference.rounding import round_magnitude
from lowprec.values.rounding import FEW_BIT_MODES, MODES, STOCHASTIC_MODES

Array = npt.NDArray[Any]

KINDS = [
    *(fmt for fmt in lp.formats.values() if fmt.bits <= 32),
    lp.FloatFormat("of 31 bits, nothing special", 8, 22, infinities=False, nan="none"),
    lp.FloatFormat("widest exponents", 10, 4, 560, infinities=False, nan="none"),
    lp.FloatFormat("powers of two", 5, 0, infinities=False, nan="none"),
    lp.FloatFormat("odd largest", 3, 2, infinities=True, nan="none"),
    lp.FloatFormat("unsigned", 4, 3, signed=False, infinities=False, nan="none"),
    lp.FloatFormat("unsigned ieee", 4, 3, signed=False),
    lp.FloatFormat("one subnormal", 1, 1, infinities=False, nan="none"),
    lp.FloatFormat("flat", 4, 3, infinities=False, nan="none", subnormals=False),
    lp.fixed_point(8, 3),
    lp.p3109(8, 3),
]


def near_the_ends(fmt: lp.FloatFormat) -> npt.NDArray[np.float64]:
    """Around zero, the smallest values, 1 and the largest, on the grid, between and beyond, of both signs."""
    step = 2.0 ** (fmt.emax - fmt.mantissa_bits)
    beyond = [fmt.max + part * step for part in (0.0, 0.25, 0.5, 0.75, 1.0, 7.0)] + [fmt.max * 0.999, fmt.max * 4]
    low = [fmt.smallest_subnormal * part for part in (0.1, 0.5, 0.7, 1.0, 1.5, 2.3)]
    low += [fmt.smallest_normal * part for part in (0.5, 0.99, 1.0, 1.3)]
    finite = np.array([*beyond, *low, 1.0, 1.1, fmt.max / 3])
    return np.concatenate([finite, -finite, [0.0, -0.0, np.inf, -np.inf, np.nan]])


def kinds(x: float | int, how: lp.Rounding, fmt: lp.FloatFormat, bits: int, index: int) -> str:
    """The kind of one value, by the reference's rounding to a grid without an upper end."""
    if x == 0 or not math.isfinite(x):
        return "zero" if x == 0 else "nan" if math.isnan(x) else "infinite"
    rule = how.rule(fmt)
    random = Fraction(rounding_bits(bits, 5, index), 1 << bits) if how.stochastic else Fraction(0)
    code = round_magnitude(abs(Fraction(x)), x < 0, rule, random)
    if x < 0 and not fmt.signed and (code or not fmt.zero):
        return "overflow"
    inward = how.mode in ("toward_zero", "odd", "up" if x < 0 else "down")
    if code > fmt.max_code and not inward:
        return "overflow"
    size = fmt.value_of(min(code, fmt.max_code))
    return "underflow" if size == 0 else "subnormal" if size < fmt.smallest_normal else "normal"


def assert_shares(x: Array, fmt: lp.FloatFormat, mode: Any, bits: int = 16) -> None:
    how = lp.Rounding(mode, bits)
    got = ls.shares(x, fmt, how, key=5)
    wanted = Counter(kinds(v, how, fmt, bits, i) for i, v in enumerate(x.astype(np.float64).tolist()))
    assert {name: round(share * x.size) for name, share in got._asdict().items() if share} == dict(wanted), mode


@pytest.mark.parametrize("fmt", KINDS, ids=lambda fmt: fmt.name)
def test_shares_in_every_mode(fmt: lp.FloatFormat, host_backend: str) -> None:
    x = near_the_ends(fmt)
    for mode in (*MODES, *FEW_BIT_MODES):
        if mode in FEW_BIT_MODES and fmt.zero and not fmt.subnormals:
            continue
        assert_shares(x, fmt, mode)
        if mode in STOCHASTIC_MODES:
            assert_shares(np.repeat(x, 9), fmt, mode, 3)


@pytest.mark.parametrize("mode", ["nearest_even", "odd", "stochastic"])
def test_shares_of_float32_and_of_narrow_arrays(mode: Any) -> None:
    rng = np.random.default_rng(3)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        x = (rng.standard_normal(300) * 2.0 ** rng.integers(-14, 14, 300)).astype(dtype)
        for name in ("float6_e2m3fn", "float8_e4m3fnuz", "float8_e8m0fnu", "bfloat16"):
            assert_shares(x, lp.as_format(name), mode)


def test_shares_of_large_arrays_draw_as_round_does() -> None:
    x = np.full(200_001, 0.3 * lp.float16.smallest_subnormal).astype(np.float64)
    for view in (x, x.reshape(3, -1).T):
        rounded = lp.round(view, "float16", "stochastic", key=9)
        assert ls.shares(view, "float16", "stochastic", key=9).underflow == np.mean(rounded == 0)


def test_what_is_said_of_overflow_and_infinities_plays_no_part() -> None:
    x = near_the_ends(lp.float4_e2m1fn)
    want = ls.shares(x, "float4_e2m1fn")
    assert want.overflow > 0.1
    for said in (dict(overflow="infinity"), dict(overflow="nan"), dict(infinite_input="keep"), dict(overflow="ieee")):
        assert ls.shares(x, "float4_e2m1fn", lp.Rounding(**said)) == want
    flushed = ls.shares(x, "float6_e2m3fn", lp.Rounding(flush=True))
    assert flushed.subnormal == 0
    assert flushed.underflow > ls.shares(x, "float6_e2m3fn").underflow


def test_exact_draws_are_those_of_round() -> None:
    x = (np.random.default_rng(0).standard_normal(2000) * 2.0**-9).astype(np.float16)
    rounded = np.abs(lp.round(x, "float8_e4m3fn", "stochastic", key=7, random_bits="exact"))
    share = ls.shares(x, "float8_e4m3fn", "stochastic", key=7, random_bits="exact")
    assert share.underflow == np.mean(rounded == 0)
    with pytest.raises(ValueError, match="more than 32 random bits"):
        ls.shares([1e-30], "float16", "stochastic", key=7, random_bits="exact")


def test_integers_are_measured_exactly_or_refused() -> None:
    """2^53 is the largest of this format, and the tie beyond it goes up, for the largest code is odd."""
    fmt = lp.FloatFormat("up to 2^54 - 2^53", 3, 0, bias=-50, infinities=False, nan="none")
    top = int(fmt.max)
    x = np.array([top, top + top // 2 - 1, top + top // 2, top + top // 2 + 1], np.int64)
    assert ls.shares(x, fmt).overflow == 0.5
    for by, over in ((-1, 0.0), (0, 1.0), (1, 1.0)):
        assert ls.shares(np.array([top + top // 2 + by]), fmt, "nearest_away").overflow == over
    big = np.array([2**53 + 1])
    for call in (
        lambda: ls.exponent_histogram(big),
        lambda: ls.ulp_error([1.0], big, "float16"),
        lambda: ls.ulp_distance(-big, [1.0], "float64"),
        lambda: ls.relative_error(big.astype(np.uint64), 1.0),
        lambda: ls.signal_to_noise_ratio(big, [1.0]),
        lambda: ls.lost_updates([1.0], [1.0], big),
        lambda: ls.underflow(big, 0.0),
        lambda: lpt.assert_on_grid(big, "float64"),
    ):
        with pytest.raises(ValueError, match="integers beyond 2\\^53"):
            call()
    assert ls.exponent_histogram(np.array([2**53, -(2**53)])).exponents.tolist() == [53]


X = np.random.default_rng(1).standard_normal((6, 10)).astype(np.float16) * np.float16(300)
Y = (X * np.float16(1.01)).astype(np.float16)
MEASURES: dict[str, Callable[[Any, Any], Any]] = {
    "ulp_distance": lambda x, y: ls.ulp_distance(x, y, "float16"),
    "ulp_error": lambda x, y: ls.ulp_error(x, y, "bfloat16"),
    "relative_error": ls.relative_error,
    "signal_to_noise_ratio": lambda x, y: ls.signal_to_noise_ratio(x, y, 0) if np.ndim(x) else [],
    "exponent_histogram": lambda x, y: ls.exponent_histogram(x).counts,
    "shares": lambda x, y: ls.shares(x, "float4_e2m1fn", "stochastic", key=3),
    "lost_updates": lambda x, y: ls.lost_updates(x, y, y)[:2],
    "underflow": lambda x, y: ls.underflow(x, y)[:2],
    "magnitudes": lambda x, y: [*ls.magnitudes(np.asarray(x))[:5], *ls.magnitudes(np.asarray(x)).exponents],
}


def frozen(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS: dict[str, Callable[[Array], Any]] = {
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "read-only": frozen,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "Fortran's order": np.asfortranarray,
    "unaligned": lambda x: np.frombuffer(b"a" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "float32": lambda x: x.astype(np.float32),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("measure", MEASURES)
def test_the_layout_plays_no_part(measure: str, layout: str) -> None:
    call, lay = MEASURES[measure], LAYOUTS[layout]
    np.testing.assert_array_equal(call(lay(X), lay(Y)), call(X, Y))


@pytest.mark.parametrize("measure", MEASURES)
def test_arrays_without_axes_and_without_elements(measure: str) -> None:
    call = MEASURES[measure]
    one = call(X[:1, 0], Y[:1, 0])
    np.testing.assert_array_equal(np.ravel(call(X[0, 0], Y[0, 0])), [] if "noise" in measure else np.ravel(one))
    with np.errstate(all="raise"):
        empty = np.asarray(call(X[:, :0], Y[:, :0]), np.float64)
    assert not np.nan_to_num(empty).any()


@pytest.mark.parametrize("wrong", [[1j], [True], np.ones(2, np.longdouble), ["a"], [2**70], [None]], ids=str)
@pytest.mark.parametrize("measure", [name for name in MEASURES if name != "magnitudes"])
def test_what_is_no_real_number_is_refused(measure: str, wrong: Any) -> None:
    given = np.asarray(wrong)
    with pytest.raises(TypeError, match=rf"real numbers of at most 64 bits, not of {given.dtype}|masked"):
        MEASURES[measure](given, given)


@pytest.mark.parametrize("measure", MEASURES)
def test_masked_elements_are_refused(measure: str) -> None:
    masked = np.ma.array([1.0, 2.0], mask=[False, True], dtype=np.float32)
    call = MEASURES[measure] if measure != "magnitudes" else lambda x, y: ls.magnitudes(x)
    with pytest.raises(TypeError, match="no masked elements"):
        call(masked, masked)


def test_arrays_of_jax_are_measured_in_float64() -> None:
    """JAX holds float64 where jax_enable_x64 is set; elsewhere the measures are NumPy's."""
    jax = pytest.importorskip("jax")
    x, y = jax.numpy.asarray(X), jax.numpy.asarray(Y)
    for call in (lambda x, y: ls.ulp_error(x, y, "bfloat16"), ls.ulp_distance, ls.relative_error):
        got = call(x, y)
        assert isinstance(got, np.ndarray)
        lpt.assert_same_bits(got, call(X, Y))
        with jax.enable_x64(True):
            held = call(x, y)
        assert isinstance(held, jax.Array)
        lpt.assert_same_bits(np.asarray(held), got)
    for one in (ls.signal_to_noise_ratio(x, y), ls.shares(x, "float16").normal, ls.lost_updates(x, y, x).share):
        assert isinstance(one, float)
    assert ls.magnitudes(x)[:5] == ls.magnitudes(X)[:5]
    lpt.assert_ulp(x, y, 30.0)
    with pytest.raises(AssertionError, match="ulp off"):
        lpt.assert_ulp(x, y, 8.0)
