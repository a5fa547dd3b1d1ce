"""The measures against their definitions in exact fractions, and the plots by what they draw."""

from __future__ import annotations

import bisect
import builtins
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import matplotlib as mpl
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
import lowprec.testing as lpt
from lowprec import statistics as ls

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def values_of(fmt: lp.FloatFormat) -> np.ndarray:
    """Every value of a short format, ascending, one zero, no NaN."""
    codes = np.arange(1 << fmt.bits, dtype=fmt.code_dtype)
    values = np.asarray(lp.decode(codes, fmt), np.float64)
    return np.unique(values[~np.isnan(values)])


# ---- ulp_distance ----


@pytest.mark.parametrize("fmt", [f for f in lp.formats.values() if f.bits <= 8], ids=lambda f: f.name)
def test_ulp_distance_counts_steps_in_the_sorted_values(fmt: lp.FloatFormat) -> None:
    values = values_of(fmt)
    place = np.arange(values.size)
    wanted = np.abs(place[:, None] - place)
    np.testing.assert_array_equal(ls.ulp_distance(values[:, None], values, fmt), wanted)


def test_ulp_distance_of_special_values_and_wide_formats() -> None:
    x = np.array([0.0, np.nan, np.nan, 65504.0, -np.inf, 1.0], np.float16)
    y = np.array([-0.0, np.nan, 1.0, np.inf, np.inf, 1.0009765625], np.float16)
    np.testing.assert_array_equal(ls.ulp_distance(x, y), [0, 0, np.nan, 1, 2 * 0x7C00, 1])
    assert ls.ulp_distance(1.0, np.nextafter(1.0, 2)) == 1
    assert ls.ulp_distance(-np.inf, np.inf) == 2.0 * 0x7FF0000000000000
    assert ls.ulp_distance(np.float32(1), np.float32(-1)) == 2 * 0x3F800000
    assert ls.ulp_distance(np.array(2, ml_dtypes.bfloat16), 1.9921875) == 1


def test_ulp_distance_refuses_what_has_no_place() -> None:
    with pytest.raises(ValueError, match=r"0\.3.* is not a value of float16"):
        ls.ulp_distance([0.3], [0.25], "float16")
    with pytest.raises(ValueError, match="no infinity"):
        ls.ulp_distance([np.inf], [1.0], "float8_e4m3fn")
    with pytest.raises(TypeError, match="fmt="):
        ls.ulp_distance([1, 2], [1, 2])
    assert ls.ulp_distance([np.nan, np.nan], [np.nan, 1.0], "float4_e2m1fn").tolist()[0] == 0


# ---- ulp_error, relative_error ----


@settings(max_examples=200, derandomize=True, deadline=None)
@given(lpt.formats(max_bits=19), st.floats(allow_nan=False, allow_infinity=False), st.floats(-4, 4))
def test_ulp_error_is_the_distance_over_the_spacing(fmt: lp.FloatFormat, exact: float, by: float) -> None:
    exponent = max(math.frexp(exact)[1] - 1, fmt.emin) if exact else fmt.emin
    step = Fraction(2) ** (exponent - fmt.mantissa_bits)
    x = float(min(max(Fraction(exact) + Fraction(by) * step, -(2**1023)), 2**1023))
    wanted = abs(Fraction(x) - Fraction(exact)) / step
    assert ls.ulp_error(x, exact, fmt) == pytest.approx(float(wanted), rel=1e-12, abs=1e-300)


def test_ulp_error_bounds_the_rounding_modes() -> None:
    x = np.random.default_rng(0).standard_normal(5000) * np.exp2(np.random.default_rng(1).integers(-30, 15, 5000))
    for fmt in (lp.float16, lp.bfloat16, lp.float8_e5m2):
        nearest = ls.ulp_error(lp.round(x, fmt, overflow="saturate"), x, fmt)
        assert 0.49 < nearest.max() <= 0.5
        assert 0.98 < ls.ulp_error(lp.round(x, fmt, "toward_zero"), x, fmt).max() < 1


def test_special_values_of_the_errors() -> None:
    x = np.array([np.nan, np.nan, np.inf, np.inf, -np.inf, 0.0, -0.0, 1.0, 3.0])
    exact = np.array([np.nan, 1.0, np.inf, 1.0, np.inf, 0.0, 0.0, 0.0, 2.0])
    relative = [0, np.nan, 0, np.inf, np.inf, 0, 0, np.inf, 0.5]
    np.testing.assert_array_equal(ls.relative_error(x, exact), relative)
    in_ulps = [0, np.nan, 0, np.inf, np.inf, 0, 0, 2.0**24, 512.0]
    np.testing.assert_array_equal(ls.ulp_error(x, exact, "float16"), in_ulps)
    assert ls.relative_error(3, 4) == 0.25


# ---- signal_to_noise_ratio ----


def test_signal_to_noise_ratio_is_its_definition() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 50))
    y = x + 0.01 * rng.standard_normal(x.shape)
    for axis in (None, 0, 1, (0, 1)):
        wanted = 10 * np.log10((x**2).sum(axis) / ((x - y) ** 2).sum(axis))
        np.testing.assert_allclose(ls.signal_to_noise_ratio(x, y, axis), wanted, rtol=1e-12)
        for scale in (1e-200, 1e200):
            np.testing.assert_allclose(ls.signal_to_noise_ratio(scale * x, scale * y, axis), wanted, rtol=1e-9)


def test_signal_to_noise_ratio_of_special_cases() -> None:
    one = np.ones(3)
    assert ls.signal_to_noise_ratio(one, one) == np.inf
    assert ls.signal_to_noise_ratio(0 * one, one) == -np.inf
    assert ls.signal_to_noise_ratio(0 * one, 0 * one) == np.inf
    assert np.isnan(ls.signal_to_noise_ratio(one, [1, 1, np.nan]))
    assert np.isnan(ls.signal_to_noise_ratio([1, np.inf, 1], one))
    assert isinstance(ls.signal_to_noise_ratio(one, 0.9 * one), float)
    assert ls.signal_to_noise_ratio(one, 0.9 * one) == pytest.approx(20)


def test_a_bit_is_worth_six_decibels() -> None:
    x = np.random.default_rng(0).standard_normal(20000)
    half, bfloat = (ls.signal_to_noise_ratio(x, lp.round(x, f)) for f in ("float16", "bfloat16"))
    assert half - bfloat == pytest.approx(3 * 6.02, abs=0.2)


# ---- exponent_histogram, shares, lost_updates ----


def test_exponent_histogram_counts_binades() -> None:
    x = [1.0, 1.9, -2.0, 0.3, 0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324]
    histogram = ls.exponent_histogram(x)
    counts = dict(zip(histogram.exponents.tolist(), histogram.counts.tolist(), strict=True))
    assert {e: c for e, c in counts.items() if c} == {-1074: 1, -2: 1, 0: 2, 1: 1}
    assert (histogram.zeros, histogram.infinities, histogram.nans, histogram.size) == (2, 2, 1, 10)
    empty = ls.exponent_histogram([0.0])
    assert (empty.exponents.size, empty.zeros, empty.size) == (0, 1, 1)


@cache
def sizes(fmt: lp.FloatFormat) -> list[Fraction]:
    """The finite magnitudes of a format, ascending."""
    return sorted({Fraction(v) for v in values_of(fmt) if math.isfinite(v) and v >= 0})


def classes(x: float, fmt: lp.FloatFormat) -> str:
    """The class of one value rounded to nearest, by looking through the format's magnitudes."""
    if math.isnan(x):
        return "nan"
    if math.isinf(x):
        return "infinite"
    if x == 0:
        return "zero"
    if x < 0 and not fmt.signed:
        return "overflow"
    values = sizes(fmt)
    beyond = values[-1] + Fraction(2) ** (fmt.emax - fmt.mantissa_bits)
    size = abs(Fraction(x))
    below = max(bisect.bisect(values, size) - 1, 0)
    above = values[below + 1] if below + 1 < len(values) else beyond
    nearest = min(values[below], above, key=lambda v: abs(v - size))
    if size * 2 == values[-1] + beyond:
        nearest = values[-1] if fmt.max_code % 2 == 0 else beyond
    elif size * 2 == values[below] + above:
        nearest = values[below + below % 2]
    if nearest > values[-1]:
        return "overflow"
    if nearest == 0:
        return "underflow"
    return "subnormal" if nearest < Fraction(fmt.smallest_normal) else "normal"


@pytest.mark.parametrize("fmt", [f for f in lp.formats.values() if f.bits <= 8], ids=lambda f: f.name)
def test_shares_put_every_value_into_its_class(fmt: lp.FloatFormat) -> None:
    values = values_of(fmt)
    values = values[np.isfinite(values)]
    between = (values[1:] + values[:-1]) / 2
    step = 2.0 ** (fmt.emax - fmt.mantissa_bits)
    edges = fmt.max + step * np.array([0.25, 0.499, 0.5, 0.501, 1, 100])
    x = np.concatenate([values, between, edges, -edges, [0, -0.0, np.inf, -np.inf, np.nan, 1e-300]])
    for v in x:
        got = ls.shares([v], fmt)
        assert [name for name, share in got._asdict().items() if share] == [classes(v, fmt)], v
    whole = ls.shares(x.reshape(2, -1) if x.size % 2 == 0 else x, fmt)
    assert sum(whole) == pytest.approx(1)
    assert whole.nan == 1 / x.size


def test_shares_follow_the_rounding_mode() -> None:
    x = [65519.9, 65520.0, 70000.0, 2.0**-25, 2.0**-25 * 1.01, 2.0**-20, 1.0]
    assert ls.shares(x, "float16") == pytest.approx(ls.Shares(2 / 7, 2 / 7, 1 / 7, 2 / 7, 0, 0, 0))
    assert ls.shares(x, "float16", "toward_zero").overflow == 0
    assert ls.shares(x, "float16", "up").underflow == 0
    many = np.full(4000, 2.0**-26)
    share = ls.shares(many, "float16", "stochastic", key=3)
    assert share.subnormal == pytest.approx(0.25, abs=0.04)
    assert share.subnormal + share.underflow == 1
    with pytest.raises(ValueError, match="key="):
        ls.shares(many, "float16", "stochastic")


def test_shares_of_nothing_are_nan() -> None:
    assert np.isnan(ls.shares([], "float16")).all()


def test_lost_updates_counts_what_did_not_move() -> None:
    before = np.array([1.0, 1.0, 1.0, 1.0, np.nan, 1.0])
    update = np.array([0.5, 1e-9, 0.0, -1e-9, 1.0, np.inf])
    after = np.array([1.5, 1.0, 1.0, 1.0, np.nan, np.inf])
    count = ls.lost_updates(before, update, after)
    assert (count.wanted, count.lost, count.share) == (3, 2, 2 / 3)
    assert count.arrived == pytest.approx(1)
    none = ls.lost_updates([1.0], [0.0], [1.0])
    assert (none.wanted, none.lost, math.isnan(none.share), math.isnan(none.arrived)) == (0, 0, True, True)


NUMBERS = [0.0, -0.0, 1.0, -1.5, 1e-300, 5e-324, 65504.0, 1e30, np.inf, -np.inf, np.nan]
EVERY = [column.ravel() for column in np.meshgrid(NUMBERS, NUMBERS, NUMBERS)]


def test_which_updates_count_and_which_are_lost_one_by_one() -> None:
    for before, update, after in zip(*EVERY, strict=True):
        wanted = math.isfinite(before) and math.isfinite(update) and update != 0
        count = ls.lost_updates(before, update, after)
        assert count[:2] == (wanted, wanted and before == after), (before, update, after)
        assert ls.UpdateCount.of(before, update, after)[:2] == count[:2]
        assert math.isnan(count.share) == math.isnan(count.arrived) == (not wanted) or not math.isfinite(after)
        assert not math.isfinite(count.arrived) or math.isfinite(after)


def test_counts_add_up_over_parts_and_shares_are_taken_of_sums() -> None:
    before, update = np.ones(300, np.float16), np.exp2(np.arange(300) % 20 - 16.0)
    after = lp.round(before + update, "float16")
    parts = [ls.UpdateCount.of(before[i::3], update[i::3], after[i::3]) for i in range(3)]
    whole, added = ls.lost_updates(before, update, after), parts[0].plus(parts[1]).plus(parts[2])
    assert (added.wanted, added.lost, added.share) == (whole.wanted, whole.lost, whole.share)
    assert added.kept == pytest.approx(whole.arrived, rel=1e-13)
    assert added.squared == pytest.approx(np.sum(update**2))
    assert math.isnan(ls.UpdateCount().share)
    assert math.isnan(ls.UpdateCount().kept)


@pytest.mark.parametrize("size", [1e200, 1e-200, 1.7e308, 5e-324, 1e150, 3.0])
def test_counts_are_right_whatever_the_magnitude(size: float) -> None:
    before, update = np.zeros(4), np.array([size, -size, size, 0.0])
    after = np.array([size, 0.0, size, 0.0])
    count = ls.UpdateCount.of(before, update, after)
    assert (count.wanted, count.lost, count.kept) == (3, 1, pytest.approx(2 / 3))
    assert (count.exponent == 0) == (size == 3.0)
    twice = count.plus(ls.UpdateCount()).plus(ls.UpdateCount().plus(count))
    assert (twice.wanted, twice.lost, twice.kept) == (6, 2, count.kept)
    for other in (1e-3, 1e200, 1e-200):  # what is larger decides, in either order
        more = ls.UpdateCount.of([0.0], [other], [other * 2])
        for both in (count.plus(more), more.plus(count)):
            expected = 2 if other > 1e3 * size else 2 / 3 if other < size / 1e3 else 1.0
            assert both.kept == pytest.approx(expected, rel=1e-5)
    gone = ls.UpdateCount.of(before, update, np.full(4, np.inf))
    assert (gone.wanted, gone.lost, math.isfinite(gone.arrived)) == (3, 0, False)


def test_an_update_below_the_format_of_the_weight_is_lost_and_one_of_a_weight_that_is_not_finite_is_none() -> None:
    weights = np.array([1, 6e-8, np.inf, np.nan, 65504], np.float16)
    update = np.full(5, 1e-40)
    assert ls.lost_updates(weights, update, weights)[:2] == (3, 3)
    after = np.array([33, 32, np.inf, np.nan, np.inf], np.float16)
    beyond = ls.lost_updates(weights, np.full(5, 32.0), after)
    assert (beyond.wanted, beyond.lost, beyond.arrived) == (3, 0, math.inf)


def test_underflow_is_of_finite_numbers_that_became_zero_one_by_one() -> None:
    for exact, rounded in zip(*EVERY[:2], strict=True):
        counts = math.isfinite(exact) and exact != 0
        assert ls.underflow(exact, rounded)[:2] == (counts, counts and rounded == 0), (exact, rounded)
    many = np.resize(NUMBERS, 200_000)
    assert ls.underflow(many, np.zeros(200_000))[:2] == (count := int(np.isfinite(many[many != 0]).sum()), count)
    assert math.isnan(ls.underflow([0.0, np.nan], 0.0).share)


@pytest.mark.parametrize("fmt", ["float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero", "stochastic"])
def test_underflow_is_the_share_that_shares_says(fmt: str, mode: Any) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(5000) * 2.0 ** rng.integers(-40, 20, 5000)
    x[:9] = 0.0
    made = ls.underflow(x, lp.round(x, fmt, mode, key=3))
    assert ls.shares(x, fmt, mode, key=3).underflow == made.zeroed / x.size
    assert 0 < made.share == made.zeroed / made.nonzero < 1


def test_stochastic_updates_arrive_on_average() -> None:
    w = np.ones(20000)
    update = np.full(20000, 2.0**-14)
    nearest = ls.lost_updates(w, update, lp.round(w + update, "float16"))
    assert (nearest.share, nearest.arrived) == (1, 0)
    stochastic = ls.lost_updates(w, update, lp.round(w + update, "float16", "stochastic", key=1))
    assert stochastic.share == pytest.approx(15 / 16, abs=0.01)
    assert stochastic.arrived == pytest.approx(1, abs=0.15)
    tiny = ls.lost_updates(w * 1e-200, update * 1e-200, (w + update) * 1e-200)
    assert tiny.arrived == pytest.approx(1, rel=1e-9)


# ---- plots ----


def test_plot_ulp_error_draws_median_and_largest_per_binade() -> None:
    exact = np.array([1.0, 1.25, 1.5, 4.0, 0.0, np.inf])
    x = exact + np.array([0, 2.0**-10, 3 * 2.0**-10, 2.0**-8, 0, 0])
    ax = ls.plot_ulp_error(x, exact, "float16")
    median, largest = ax.get_lines()
    np.testing.assert_array_equal(median.get_xydata(), [[0, 1], [2, 1]])
    np.testing.assert_array_equal(largest.get_ydata(), [3, 1])
    assert "ulp" in ax.get_ylabel()


def test_plot_relative_error_joins_curves_on_given_axes() -> None:
    x = np.linspace(0.1, 9, 300)
    ax = ls.plot_relative_error(lp.round(x, "float16"), x, label="float16")
    same = ls.plot_relative_error(lp.round(x, "bfloat16"), x, ax=ax, label="bfloat16")
    assert same is ax
    assert len(ax.get_lines()) == 4
    assert [t.get_text() for t in ax.get_legend().get_texts()][2] == "bfloat16: median"


def test_plot_ulp_distance_shares_the_pairs_out() -> None:
    ax = ls.plot_ulp_distance(np.array([1, 1, 1, np.nan], np.float16), np.array([1, 1, 1.5, 2], np.float16), most=3)
    assert [bar.get_height() for bar in ax.patches] == [50, 0, 0, 25, 25]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "1", "2", "3+", "NaN"]


def test_plot_signal_to_noise_ratio_draws_a_bar_for_each() -> None:
    x = np.linspace(-1, 1, 99)
    ax = ls.plot_signal_to_noise_ratio(x, {"same": x, "half": lp.round(x, "float16")})
    words = [t.get_text() for t in ax.texts]
    assert words[0] == "exact"
    assert words[1].endswith(" dB")
    assert ax.patches[1].get_width() == pytest.approx(ls.signal_to_noise_ratio(x, lp.round(x, "float16")))


def test_plot_exponent_histogram_shows_ranges_of_formats() -> None:
    ax = ls.plot_exponent_histogram([1, 2, 3, 0, np.nan], ["float16", "float8_e4m3fn"])
    assert ax.get_legend_handles_labels()[1] == ["normal"]
    heights = [bar.get_height() for bar in ax.patches if bar.get_y() >= 0]
    assert heights == [20, 40]
    assert [t.get_text() for t in ax.texts] == ["float16", "float8_e4m3fn"]
    assert "1 zero, 1 NaN" in ax.get_title(loc="left")


def test_plot_shares_fills_every_bar() -> None:
    x = np.random.default_rng(0).standard_normal(1000) * 2.0**-8
    formats = ["float16", "float8_e4m3fn", "float4_e2m1fn"]
    ax = ls.plot_shares(x, formats)
    assert [t.get_text() for t in ax.get_yticklabels()] == formats
    ends = np.zeros(3)
    for bars in ax.containers:
        ends += [bar.get_width() for bar in bars]
    np.testing.assert_allclose(ends, 100)


def test_plot_lost_updates_shows_the_cliff() -> None:
    w = np.ones(40)
    update = np.exp2(np.arange(40.0) - 30)
    ax = ls.plot_lost_updates(w, update, lp.round(w + update, "float16"), label="nearest")
    places, lost = np.asarray(ax.get_lines()[0].get_xydata()).T
    np.testing.assert_array_equal(places, np.arange(40) - 30)
    np.testing.assert_array_equal(lost, np.where(places <= -11, 100, 0))


PLOTS: list[Callable[[], Any]] = [
    lambda: ls.plot_ulp_error([], [], "float16"),
    lambda: ls.plot_relative_error([], []),
    lambda: ls.plot_ulp_distance(np.zeros(0), np.zeros(0)),
    lambda: ls.plot_exponent_histogram([]),
    lambda: ls.plot_lost_updates([], [], []),
]


@pytest.mark.parametrize("draw", PLOTS)
def test_plots_of_nothing_are_empty(draw: Callable[[], Any]) -> None:
    draw().figure.canvas.draw()


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"matplotlib is needed here: python -m pip install -e '.\[study\]'"):
        ls.plot_exponent_histogram([1.0])
    assert builtins.sum(ls.shares([1.0], "float16")) == 1
