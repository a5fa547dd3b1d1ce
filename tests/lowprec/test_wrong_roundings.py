"""A family of wrong roundings, each of which the assertions of lowprec.testing must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
import lowprec.testing as lpt

Array = npt.NDArray[Any]
Cast = Callable[[Array, Any], Array]

FMT = lp.float8_e4m3fn
POINTS = [0.3, -0.3, 1.07, -17.9, 0.0011, -0.0004, 0.03125, -448.0, 447.0, 460.0]


def right(x: Array, key: Any) -> Array:
    return np.asarray(lp.round(x, FMT, "stochastic", key=key))


def steps(y: Array, by: int | Array) -> Array:
    """Values moved along the grid, away from zero."""
    codes = lp.encode(y, FMT, overflow="saturate")
    return np.asarray(lp.decode(np.minimum(codes & 0x7F, 0x7D) + by | codes & 0x80, FMT).astype(np.float64))


def nearest(x: Array, key: Any) -> Array:
    return np.asarray(lp.round(x, FMT))


def sometimes(wrong: Cast, share: float) -> Cast:
    """The right rounding but for a share of the elements."""

    def cast(x: Array, key: Any) -> Array:
        chosen = np.random.default_rng(0).random(x.size) < share
        return np.where(chosen, wrong(x, key), right(x, key))

    return cast


WRONG: dict[str, Cast] = {
    "signs flipped": lambda x, key: -right(x, key),
    "a sign in a thousand flipped": sometimes(lambda x, key: -right(x, key), 1e-3),
    "signs lost": lambda x, key: np.abs(right(x, key)),
    "sign of a random bit": lambda x, key: right(x, key) * np.where(lp.random_bits(key, x.size, 1), 1, -1),
    "nearest": nearest,
    "toward zero": lambda x, key: np.asarray(lp.round(x, FMT, "toward_zero")),
    "always away from zero": lambda x, key: steps(np.asarray(lp.round(x, FMT, "toward_zero")), 1),
    "always up": lambda x, key: np.asarray(lp.round(x, FMT, "up")),
    "always down": lambda x, key: np.asarray(lp.round(x, FMT, "down")),
    "up and down changed for negative numbers": lambda x, key: np.where(
        x < 0,
        steps(np.asarray(lp.round(x, FMT, "toward_zero")), right(x, key) != lp.round(x, FMT, "up")),
        right(x, key),
    ),
    "one step off": lambda x, key: steps(right(x, key), 1),
    "one step off in a thousand": sometimes(lambda x, key: steps(right(x, key), 1), 1e-3),
    "biased by a fifth of a step": lambda x, key: right(x * 1.0125, key),
    "up at even odds": lambda x, key: np.where(
        lp.random_bits(key, x.size, 1), lp.round(x, FMT, "up"), lp.round(x, FMT, "down")
    ),
    "one draw for all elements": lambda x, key: np.repeat(right(x[:1], key), x.size),
    "two random bits": lambda x, key: np.asarray(lp.round(x, FMT, "stochastic", key=key, random_bits=2)),
    "the key ignored": lambda x, key: right(x, 1),
    "no randomness but the right share": lambda x, key: np.where(
        np.arange(x.size) % 100 / 100 < 0.3, lp.round(x, FMT, "up"), lp.round(x, FMT, "down")
    ),
    "another format's grid": lambda x, key: np.asarray(lp.round(x, "float16", "stochastic", key=key)),
    "subnormals flushed": lambda x, key: np.asarray(lp.round(x, FMT, "stochastic", key=key, flush=True)),
    "saturated": lambda x, key: np.asarray(lp.round(x, FMT, "stochastic", key=key, overflow="saturate")),
    "values that move": lambda x, key: right(np.where(x == 0.03125, x * 1.001, x), key),
    "NaN": lambda x, key: np.full(x.size, np.nan),
    "not all of the elements": lambda x, key: right(x, key)[:-1],
    "another shape": lambda x, key: right(x, key)[:, None],
}


def test_the_right_rounding_passes() -> None:
    for key in range(5):
        lpt.assert_unbiased(right, POINTS, FMT, key=key)
        lpt.assert_unbiased(right, np.array(POINTS, ">f4"), FMT, key=key, samples=500)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_stochastic_rounding_is_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        lpt.assert_unbiased(WRONG[wrong], POINTS, FMT)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(AssertionError, match=r"-0\.3 became 0\.3125, which is neither -0\.28125 nor -0\.3125"):
        lpt.assert_unbiased(lambda x, key: np.full(x.size, 0.3125), [-0.3], FMT)
    with pytest.raises(AssertionError, match=r"0\.3 gives the same 20000 results for two keys"):
        lpt.assert_unbiased(WRONG["the key ignored"], [1.0, 0.3, 0.0], FMT)
    with pytest.raises(AssertionError, match=r"20000 copies of 0\.3 became an array of shape \(19999,\)"):
        lpt.assert_unbiased(WRONG["not all of the elements"], [0.3], FMT)


def test_two_keys_may_agree_where_little_is_drawn() -> None:
    lpt.assert_unbiased(WRONG["the key ignored"], [0.3], FMT, samples=4)
    lpt.assert_unbiased(nearest, [1.0, 0.0, -448.0], FMT)


def test_points_that_no_rounding_can_be_held_against_are_refused() -> None:
    for points, fmt in (([], FMT), ([np.nan], FMT), ([-1.0], "float8_e8m0fnu"), ([1.0, -np.inf], FMT)):
        with pytest.raises(ValueError, match="points must be finite"):
            lpt.assert_unbiased(right, points, fmt)
    powers = lambda x, key: np.asarray(lp.round(x, "float8_e8m0fnu", "stochastic", key=key))  # noqa: E731
    lpt.assert_unbiased(powers, [2.0**-130, 3.0, 2.0**-127 * 1.3], "float8_e8m0fnu")
    with pytest.raises(AssertionError):
        lpt.assert_unbiased(lambda x, key: powers(x, key) * 2, [2.0**-130], "float8_e8m0fnu")


@pytest.mark.parametrize("false_alarm", [0, 0.0, 1.0, -1e-6, float("nan")])
def test_an_alarm_that_cannot_sound_is_refused(false_alarm: float) -> None:
    with pytest.raises(ValueError, match="a false alarm"):
        lpt.assert_binomial(0, 1000, 0.5, false_alarm=false_alarm)
    with pytest.raises(ValueError, match="at least one point"):
        lpt.assert_binomial(0, 1000, 0.5, points=0)
    for count in (-1, 1001):
        with pytest.raises(AssertionError):
            lpt.assert_binomial(count, 1000, 0.0 if count < 0 else 1.0)


X = np.random.default_rng(0).standard_normal(3000) * 2.0 ** np.random.default_rng(1).integers(-12, 8, 3000)
# What an assertion about single values can see; the others are about shares.
OFF = [
    "signs flipped",
    "a sign in a thousand flipped",
    "signs lost",
    "one step off",
    "one step off in a thousand",
    "NaN",
]


@pytest.mark.parametrize("wrong", [*OFF, "toward zero", "always up", "subnormals flushed", "another shape"])
def test_a_wrong_nearest_rounding_is_found(wrong: str) -> None:
    lpt.assert_ulp(nearest(X, 0), X, 0.5, FMT)
    lpt.assert_same_bits(nearest(X, 0), nearest(X, 0))
    with pytest.raises(AssertionError):
        lpt.assert_ulp(WRONG[wrong](X, 1).T, X, 0.5, FMT)
    with pytest.raises(AssertionError):
        lpt.assert_same_bits(WRONG[wrong](X, 1), nearest(X, 0))


OFF_GRID: dict[str, tuple[Any, list[float]]] = {
    "half a step": (FMT, [1.0625]),
    "beyond the largest": (FMT, [464.0]),
    "an infinity": (FMT, [-np.inf]),
    "a NaN": ("float6_e2m3fn", [np.nan]),
    "-0": ("float8_e5m2fnuz", [-0.0]),
    "a subnormal": (lp.FloatFormat("flat", 4, 3, subnormals=False), [2.0**-7]),
    "below the smallest": (FMT, [2.0**-10]),
    "negative": (lp.FloatFormat("unsigned", 4, 3, signed=False), [-1.0]),
    "negative infinity": (lp.FloatFormat("unsigned", 4, 3, signed=False), [-np.inf]),
    "zero": ("float8_e8m0fnu", [0.0]),
    "three": ("float8_e8m0fnu", [3.0]),
    "float16's": ("bfloat16", [1.0009765625]),
}


@pytest.mark.parametrize("wrong", OFF_GRID)
def test_a_value_off_the_grid_is_found(wrong: str) -> None:
    fmt, values = OFF_GRID[wrong]
    many = np.ones((50, 100))
    lpt.assert_on_grid(many, fmt)
    many[31, 7] = values[0]
    for lay in (many, many.T, many[::-1], many.astype(">f8"), many.astype(np.float32)):
        with pytest.raises(AssertionError, match="1 of 5000 values are not on"):
            lpt.assert_on_grid(lay, fmt)


@pytest.mark.parametrize("fmt", [f for f in lp.formats.values() if f.bits <= 8], ids=lambda f: f.name)
def test_every_value_of_a_format_is_on_its_grid(fmt: lp.FloatFormat) -> None:
    values = np.asarray(lp.decode(np.arange(1 << fmt.bits, dtype=np.uint8), fmt))
    lpt.assert_on_grid(values, fmt)
    lpt.assert_on_grid(values.astype(np.float64).reshape(-1, 4).T, fmt)


def test_bits_of_what_has_none_are_not_compared() -> None:
    for kind in (np.complex64, np.longdouble, object):
        with pytest.raises(TypeError, match="bits are compared of floating-point formats, integers and bool"):
            lpt.assert_same_bits(np.zeros(2, kind), -np.zeros(2, kind))
    with pytest.raises(TypeError, match="masked"):
        lpt.assert_same_bits(np.ma.array([1.0, 2.0], mask=[True, False]), np.ma.array([3.0, 2.0], mask=[True, False]))
    lpt.assert_same_bits(np.array([True]), np.array([True]))
    for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float64):
        with pytest.raises(AssertionError, match="1 of 2 elements differ"):
            lpt.assert_same_bits(np.array([0.0, 1.0], dtype), np.array([-0.0, 1.0], dtype))
