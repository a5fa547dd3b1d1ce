"""The testing tools: assertions that fail when they should and say why, strategies that reach every corner."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import lowprec as lp
import lowprec.testing as lpt

NEAREST = "nearest_even"


def stochastic(fmt: Any, **options: Any) -> Any:
    return lambda x, key: lp.round(x, fmt, "stochastic", key=key, **options)


# ---- assertions ----


def test_assert_ulp_passes_within_the_bound_and_not_beyond() -> None:
    x = np.random.default_rng(0).standard_normal(1000)
    y = lp.round(x, "float16")
    lpt.assert_ulp(y, x, 0.5, "float16")
    lpt.assert_ulp(y.astype(np.float16), x)
    with pytest.raises(AssertionError, match=r"values are more than 0\.49 ulp off"):
        lpt.assert_ulp(y, x, 0.49, "float16")
    y[17] += 2.0**-8
    message = rf"1 of 1000 .* 0\.5 ulp off; the worst is {float(y[17])!r} for {float(x[17])!r}, .* index \(17,\)"
    with pytest.raises(AssertionError, match=message):
        lpt.assert_ulp(y, x, 0.5, "float16")


def test_assert_ulp_treats_special_values_strictly() -> None:
    lpt.assert_ulp([np.nan, np.inf, 0.0], [np.nan, np.inf, -0.0], 0, "float16")
    for actual, exact in ((np.nan, 1.0), (1.0, np.nan), (np.inf, 65504.0), (np.inf, -np.inf)):
        with pytest.raises(AssertionError):
            lpt.assert_ulp([actual], [exact], 1e9, "float16")


def test_assert_on_grid() -> None:
    lpt.assert_on_grid([1.0, -448.0, 2.0**-9, 0.0, np.nan], "float8_e4m3fn")
    lpt.assert_on_grid(np.arange(16), lp.float8_e4m3fn)
    lpt.assert_on_grid([np.inf, -0.0, 65504], np.float16)
    lpt.assert_on_grid([1.0, 2.0**-127], "float8_e8m0fnu")
    cases = [
        ([[1, 0.3]], "float16", r"0\.3 at index \(0, 1\), between 0\.2998046875 and 0\.300048828125"),
        ([1.0, 449.0], "float8_e4m3fn", r"449\.0 at index \(1,\)$"),
        ([1e300], "float16", "1e\\+300"),
        ([np.inf], "float8_e4m3fn", "inf"),
        ([np.nan], "float4_e2m1fn", "nan"),
        ([-0.0], "float8_e4m3fnuz", r"-0\.0"),
        ([-1.0, 0.0, -np.inf], "float8_e8m0fnu", "3 of 3"),
        ([2.0**-25], "float16", r"between 0\.0 and 5\.96"),
    ]
    for x, fmt, message in cases:
        with pytest.raises(AssertionError, match=message):
            lpt.assert_on_grid(x, fmt)


def test_assert_same_bits() -> None:
    lpt.assert_same_bits(np.array([np.nan, 1], np.float16), np.array([-np.nan, 1], np.float16))
    lpt.assert_same_bits([1, 2], [1, 2])
    expected = r"differ, the first at \(1,\): 0\.0 \(0x0000000000000000\) and -0\.0 \(0x8000000000000000\)"
    with pytest.raises(AssertionError, match=expected):
        lpt.assert_same_bits([1.0, 0.0], [1.0, -0.0])
    with pytest.raises(AssertionError, match=r"float32 of shape \(1,\) is not float64"):
        lpt.assert_same_bits(np.ones(1, np.float32), np.ones(1))


POINTS = [0.3, 1.0, 1.0004, -2.7, 2.0**-24 * 0.3, 2.0**-15 * 1.0003, 65510.0, 65530.0, 70000.0, 0.0]


@pytest.mark.parametrize("fmt", ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_assert_unbiased_passes_a_right_rounding(fmt: str) -> None:
    top = lp.as_format(fmt).max
    points = [p for p in POINTS if abs(p) < 60000] + [0.97 * top, 1.01 * top, 5 * top]
    lpt.assert_unbiased(stochastic(fmt), points, fmt, samples=2000, key=5)


def test_assert_unbiased_knows_few_random_bits() -> None:
    x = [1 + 0.7 * 2.0**-10]
    lpt.assert_unbiased(stochastic("float16", random_bits=2), x, "float16", random_bits=2)
    with pytest.raises(AssertionError, match=r"expected 0\.70000"):
        lpt.assert_unbiased(stochastic("float16", random_bits=2), x, "float16")


def test_assert_unbiased_without_subnormals() -> None:
    fmt = lp.FloatFormat("flat", 4, 3, subnormals=False)
    lpt.assert_unbiased(stochastic(fmt), [fmt.smallest_normal * 0.3, 1.01], fmt, samples=3000)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (
            lambda x, key: lp.round(x, "float16"),
            r"20000 of 20000, a share of 1\.00000; expected 0\.80000, and 1\d+ to 1",
        ),
        (lambda x, key: lp.round(x, "bfloat16", "stochastic", key=key), "which is neither 0.2998046875 nor 0.3000488"),
        (lambda x, key: lp.round(x * 1.00002, "float16", "stochastic", key=key), "expected 0.80000"),
        (lambda x, key: np.where(np.arange(x.size) % 5 == 0, 0.299, 0.3), "which is neither"),
    ],
)
def test_assert_unbiased_fails_a_wrong_rounding(wrong: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        lpt.assert_unbiased(wrong, [0.3], "float16")


def test_assert_unbiased_sees_values_that_move_and_saturation() -> None:
    with pytest.raises(AssertionError, match=r"share of 1\.00000; expected 0\.00000"):
        lpt.assert_unbiased(lambda x, key: x + 2.0**-10, [1.0], "float16")
    with pytest.raises(AssertionError, match=r"expected 0\.75000"):
        lpt.assert_unbiased(stochastic("float16", overflow="saturate"), [65528.0], "float16")
    with pytest.raises(ValueError, match="finite"):
        lpt.assert_unbiased(stochastic("float16"), [np.inf], "float16")


def test_false_alarms_are_as_rare_as_promised() -> None:
    """At a false alarm of 20 % over 4 points about that many keys fail, and surely not twice as many."""
    failures = 0
    for key in range(200):
        try:
            lpt.assert_unbiased(stochastic("float16"), POINTS[2:6], "float16", samples=400, key=key, false_alarm=0.2)
        except AssertionError:
            failures += 1
    assert 5 <= failures <= 60


def test_assert_binomial() -> None:
    lpt.assert_binomial(500, 1000, 0.5)
    with pytest.raises(AssertionError, match=r"600 of 1000, a share of 0\.60000; expected 0\.50000"):
        lpt.assert_binomial(600, 1000, 0.5)
    lpt.assert_binomial(560, 1000, 0.5, points=1000)
    with pytest.raises(AssertionError):
        lpt.assert_binomial(560, 1000, 0.5, false_alarm=0.01)


# ---- strategies ----


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.data())
def test_values_and_codes_belong_to_their_format(data: st.DataObject) -> None:
    fmt = data.draw(lpt.formats())
    finite = data.draw(st.booleans())
    value = data.draw(lpt.values(fmt, finite=finite))
    lpt.assert_on_grid(value, fmt)
    assert math.isfinite(value) or not finite
    assert data.draw(lpt.codes(fmt)) < 1 << fmt.bits


@settings(max_examples=200, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_arrays_belong_to_their_format(data: st.DataObject) -> None:
    fmt = data.draw(lpt.formats())
    array = data.draw(lpt.arrays(fmt))
    assert array.dtype == (fmt.dtype or np.float64)
    lpt.assert_on_grid(array, fmt)
    shaped = data.draw(lpt.arrays(fmt, (2, 3), dtype=np.float64, finite=True))
    assert (shaped.shape, shaped.dtype) == ((2, 3), np.float64)
    assert np.isfinite(shaped).all()


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.data())
def test_near_values_are_near(data: st.DataObject) -> None:
    fmt = data.draw(lpt.formats())
    x = data.draw(lpt.near_values(fmt))
    assert math.isfinite(x)
    assert abs(x) <= 2.1 * fmt.max


CORNERS = {
    "zero": lambda v: v == 0 and math.copysign(1, v) > 0,
    "negative zero": lambda v: v == 0 and math.copysign(1, v) < 0,
    "largest": lambda v: v == 65504,
    "most negative": lambda v: v == -65504,
    "smallest subnormal": lambda v: v == 2.0**-24,
    "largest subnormal": lambda v: v == 2.0**-14 - 2.0**-24,
    "smallest normal": lambda v: v == 2.0**-14,
    "infinity": lambda v: v == math.inf,
    "nan": math.isnan,
}


@pytest.mark.parametrize("corner", CORNERS)
def test_values_weight_the_corners(corner: str) -> None:
    """Each corner is one value among 63,490, and still comes up within 300 draws."""
    settings_ = settings(max_examples=300, deadline=None, database=None, derandomize=True)
    find(lpt.values("float16"), CORNERS[corner], settings=settings_)


def test_finite_values_of_a_format_without_minus_zero_hold_no_nan() -> None:
    settings_ = settings(max_examples=300, deadline=None, database=None, derandomize=True)
    with pytest.raises(NoSuchExample):
        find(lpt.values("float8_e4m3fnuz", finite=True), math.isnan, settings=settings_)
    assert math.isnan(find(lpt.values("float8_e4m3fnuz"), math.isnan, settings=settings_))


def test_near_values_find_a_midpoint_and_the_float_beside_it() -> None:
    settings_ = settings(max_examples=2000, deadline=None, database=None, derandomize=True)

    def beside_a_tie(x: float) -> bool:
        inward = lp.round(np.nextafter(x, 0), "float8_e4m3fn", overflow="saturate")
        outward = lp.round(np.nextafter(x, np.copysign(np.inf, x)), "float8_e4m3fn", overflow="saturate")
        return bool(inward != outward)

    find(lpt.near_values("float8_e4m3fn"), beside_a_tie, settings=settings_)
    find(lpt.near_values("float8_e4m3fn"), lambda x: abs(x) > 448, settings=settings_)


def test_formats_and_modes_cover_the_conventions() -> None:
    settings_ = settings(max_examples=1000, deadline=None, database=None, derandomize=True)
    for wanted in (
        lambda f: f.name == "float4_e2m1fn",
        lambda f: not f.subnormals and f.signed,
        lambda f: f.nan == "negative_zero" and f.infinities,
        lambda f: f.nan == "none" and f.infinities,
        lambda f: f.nan == "top" and f.infinities,
    ):
        find(lpt.formats(), wanted, settings=settings_)
    with pytest.raises(NoSuchExample):
        find(lpt.formats(max_bits=8), lambda f: f.bits > 8, settings=settings_)
    with pytest.raises(NoSuchExample):
        find(lpt.formats(custom=False), lambda f: f.name not in lp.formats, settings=settings_)
    with pytest.raises(NoSuchExample):
        find(lpt.rounding_modes(stochastic=False), lambda m: m == "stochastic", settings=settings_)
    assert find(lpt.rounding_modes(), lambda m: m == "stochastic", settings=settings_) == "stochastic"


@settings(derandomize=True)
@given(lpt.keys())
def test_keys_are_keys(key: lp.Key) -> None:
    assert isinstance(key, lp.Key)


# ---- the package ----


def test_all_names_exist_and_unknown_ones_say_so() -> None:
    for name in lpt.__all__:
        assert callable(getattr(lpt, name)), name
    with pytest.raises(AttributeError, match=r"lowprec.testing' has no attribute 'vectors'"):
        lpt.vectors  # noqa: B018


def test_assertions_work_without_hypothesis() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import lowprec.testing as t\n"
        "t.assert_on_grid([1.0], 'float16')\n"
        "try: t.keys\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "hypothesis is needed here: python -m pip install -e '.[test]' in a clone of lowprec\n"


@pytest.mark.parametrize("name", lpt.isa_names())
def test_isa_is_a_context(name: str) -> None:
    before = lp._kernels.isa()
    with lpt.isa(name):
        assert lp._kernels.isa() == name
    assert lp._kernels.isa() == before


def test_backend_is_a_context() -> None:
    x = np.linspace(-3, 3, 40)
    with lpt.backend("reference"):
        wanted = lp.encode(x, "float8_e5m2", "stochastic", key=2)
    lpt.assert_same_bits(lp.encode(x, "float8_e5m2", "stochastic", key=2), wanted)
    with pytest.raises(ValueError, match="unknown backend 'gpu'; known are reference, cpu"), lpt.backend("gpu"):
        pass
