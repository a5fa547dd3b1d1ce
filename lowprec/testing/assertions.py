"""Assertions about low-precision results: distance in ulps, membership of a grid, and unbiased stochastic rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lowprec.arrays import whole_array
from lowprec.extras import optional
from lowprec.integers import ceil_div
from lowprec.processor import in_default_state
from lowprec.random import Key, KeyLike, as_key
from lowprec.rounding import round
from lowprec.statistics.measures import ulp_error
from lowprec.statistics.values import as_float64, real_array
from lowprec.types import Array
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import as_format, format_of_dtype


@in_default_state
def assert_ulp(actual: ArrayLike, exact: ArrayLike, ulps: float = 0.5, fmt: Any = None) -> None:
    """Asserts that every element is within `ulps` of the exact value, in units of the format's spacing there.

    NaN must meet NaN and infinity the same infinity (see `lowprec.statistics.ulp_error`).

    Args:
        actual: What was computed.
        exact: What should have been, as float64 or wider than `fmt`; broadcast with `actual`.
        ulps: Largest error allowed: 0.5 for rounding to nearest, 0 for equality.
        fmt: A format, name or dtype; None means that of actual's dtype.

    Raises:
        AssertionError: names the worst element, its index, its error, and how many exceed the bound.
        TypeError: a GPU array.
    """
    error = np.asarray(ulp_error(real_array(actual), real_array(exact), fmt))
    # So written a NaN is bad: it compares false.
    bad = ~(error <= ulps)
    if not bad.any():
        return
    worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    got, wanted = (float(np.broadcast_to(as_float64(a), error.shape)[worst]) for a in (actual, exact))
    raise AssertionError(
        f"{np.count_nonzero(bad)} of {error.size} values are more than {ulps} ulp off; "
        f"the worst is {got!r} for {wanted!r}, {error[worst]:.6g} ulp, at index {tuple(int(i) for i in worst)}"
    )


@in_default_state
def assert_same_bits(actual: ArrayLike, desired: ArrayLike) -> None:
    """Asserts that both have the same dtype, shape and bits; any two NaNs are the same.

    Raises:
        AssertionError: names the first element that differs, its index and bits, and how many do.
        TypeError: arrays of no format, integer or bool (complex, extended precision, objects), or masked elements.
    """
    a, b = whole_array(actual), whole_array(desired)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        raise AssertionError(f"{a.dtype} of shape {a.shape} is not {b.dtype} of shape {b.shape}")
    wrong = np.atleast_1d(_bits(a) != _bits(b))
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        left, right = (_with_bits(np.atleast_1d(x)[where]) for x in (a, b))
        raise AssertionError(
            f"{np.count_nonzero(wrong)} of {a.size} elements differ, the first at {where}: {left} and {right}"
        )


def _with_bits(value: Any) -> str:
    """A number and, if it is of a format, its code: neighbours may print alike, and no decimal shows the bit."""
    fmt = format_of_dtype(value.dtype)
    if fmt is None:
        return str(value)
    code = int(np.atleast_1d(value).view(fmt.code_dtype)[0])
    return f"{value} (0x{code:0{ceil_div(fmt.bits, 4)}x})"


def _bits(x: Array) -> Array:
    """The array's bytes as unsigned integers, with one code for every NaN."""
    fmt = format_of_dtype(x.dtype)
    if fmt is None and x.dtype.kind not in "iub":
        raise TypeError(f"bits are compared of floating-point formats, integers and bool, not of {x.dtype}")
    if fmt is None:
        return x
    codes = np.ascontiguousarray(x).view(fmt.code_dtype)
    if fmt.nan_code is None:
        return codes
    # Payloads of NaN differ between processors and libraries, and mean nothing here.
    return np.where(np.isnan(as_float64(x)), fmt.code_dtype.type(fmt.nan_code), codes)


@in_default_state
def assert_on_grid(x: ArrayLike, fmt: Any) -> None:
    """Asserts that every element is a value of the format: rounding would not change it.

    NaN and infinities count as values if the format has them, and -0 does only where the format has one.

    Raises:
        AssertionError: names the first element that is not, its index, its neighbours, and how many there are.
    """
    fmt = as_format(fmt)
    values = as_float64(x)
    # round refuses NaN and infinities where the format has none; those are judged below.
    finite = np.where(np.isfinite(values), values, 0.0)
    good = np.isfinite(values) & (round(finite, fmt, "toward_zero", overflow="saturate") == finite)
    # -0 equals 0 above: its sign is asked by itself.
    good &= fmt.negative_zero | (values != 0) | ~np.signbit(values)
    good |= np.isnan(values) & (fmt.nan_code is not None)
    good |= np.isinf(values) & fmt.infinities & (fmt.signed | (values > 0))
    if good.all():
        return
    where = tuple(int(i) for i in np.argwhere(~good)[0])
    value = float(values[where])
    beside = ""
    if np.isfinite(value) and fmt.min < value < fmt.max:
        low, high = (float(round(value, fmt, mode)) for mode in ("down", "up"))
        beside = f", between {low!r} and {high!r}"
    raise AssertionError(
        f"{np.count_nonzero(~good)} of {values.size} values are not on {fmt.name}'s grid; "
        f"the first is {value!r} at index {where}{beside}"
    )


def assert_binomial(count: int, trials: int, probability: float, *, points: int = 1, false_alarm: float = 1e-6) -> None:
    """Asserts that `count` successes in `trials` are plausible for a probability, by the exact two-sided binomial law.

    Args:
        count: How often it happened.
        trials: How often it could have.
        probability: That it happens in one trial.
        points: How many such tests are made: each gets false_alarm / points (Bonferroni).
        false_alarm: Probability that any of them fails although the probability is right.

    Raises:
        AssertionError: gives the observed and expected shares, and the counts that would have passed.
        ValueError: a probability outside [0, 1], no trials, no points, or a false alarm that is no probability between
            0 and 1 (at 0 every count would pass).
    """
    if not 0 <= probability <= 1 or trials < 1:
        raise ValueError(f"a probability in [0, 1] and at least one trial are needed, not {probability} and {trials}")
    if not 0 < false_alarm < 1 or points < 1:
        raise ValueError(
            f"a false alarm between 0 and 1 and at least one point are needed, not {false_alarm}, {points}"
        )
    binomial = optional("scipy.stats", extra="test").binom
    # Half to each side.
    tail = false_alarm / points / 2
    least, most = int(binomial.ppf(tail, trials, probability)), int(binomial.isf(tail, trials, probability))
    if not least <= count <= most:
        raise AssertionError(
            f"{count} of {trials}, a share of {count / trials:.5f}; expected {probability:.5f}, and {least} to {most} "
            f"would have passed (false alarm {false_alarm:g} over {points} points)"
        )


@in_default_state
def assert_unbiased(
    rounding: Callable[[Array, Key], ArrayLike],
    points: ArrayLike,
    fmt: Any,
    *,
    samples: int = 20_000,
    key: KeyLike = 0,
    false_alarm: float = 1e-6,
    random_bits: int | None = None,
) -> None:
    """Asserts that a stochastic rounding goes away from zero with the right probability at every point.

    With q the distance between the format's neighbours of x, the probability must be (|x| - below) / q. Every result
    must be one of the two neighbours, of x's sign (zeros may have either), and a value of the format must never move.
    Beyond the largest finite value the grid goes on as if there were a next binade, and every result but the largest
    value counts as away from zero (so the rounding must not saturate there). The count of each point is held against
    the exact two-sided binomial law with `false_alarm` shared out between the points (Bonferroni), so that a correct
    rounding fails at most once in 1 / false_alarm keys; the key is fixed, so a run always gives the same answer. The
    point whose draws tell most is drawn with a second key: a rounding that ignores the key gives the same again.

    Args:
        rounding: Called as rounding(x, key) with x an array of `samples` copies of a point; returns their values.
        points: Finite numbers; their dtype is that of the x above.
        fmt: A format, name or dtype.
        samples: Draws per point. The smallest error in probability that is sure to be seen is about 5 / sqrt(samples).
        key: Point i is drawn with key.fold_in(i).
        false_alarm: Probability that a correct rounding fails, over all points.
        random_bits: If given, the law is that of so many bits: the probability truncated to a multiple of
            2^-random_bits (for the default 16 the difference is too small to be seen).

    Raises:
        AssertionError: names the point, the observed and expected shares, and the counts that would have passed.
        ValueError: a point is not finite, or negative where the format has no sign; no points, or no samples.
    """
    fmt, key, x = as_format(fmt), as_key(key), np.atleast_1d(np.asarray(points)).ravel()
    known = as_float64(x)
    if not (np.isfinite(known) & (fmt.signed | (known >= 0))).all() or not x.size:
        raise ValueError(f"points must be finite, within the signs of {fmt.name}, and at least one")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}")
    telling, most, first = 0, 0.0, np.empty(0)
    for i, point in enumerate(known.tolist()):
        below, quantum = _neighbours(point, fmt)
        drawn = _drawn(rounding, x[i], samples, key.fold_in(i))
        law = min(1.0, max(0.0, (abs(point) - below) / quantum))
        # Add and carry cuts the fraction to so many bits.
        law = law if random_bits is None else math.floor(law * 2**random_bits) / 2**random_bits
        away = _count_away(point, drawn, below, quantum, fmt)
        try:
            assert_binomial(away, samples, law, points=x.size, false_alarm=false_alarm)
        except AssertionError as error:
            raise AssertionError(f"{point!r} went to {math.copysign(below + quantum, point)!r} in {error}") from None
        # The point nearest to even odds: there two keys agree by chance least often.
        if law * (1 - law) > most:
            telling, most, first = i, law * (1 - law), drawn
    if (1 - 2 * most) ** samples < false_alarm:  # else two keys may well agree
        again = _drawn(rounding, x[telling], samples, key.fold_in(x.size))
        if np.array_equal(first, again, equal_nan=True):
            raise AssertionError(f"{float(known[telling])!r} gives the same {samples} results for two keys")


def _drawn(rounding: Callable[[Array, Key], ArrayLike], point: Any, samples: int, key: Key) -> Array:
    """The results, in float64, of rounding `samples` copies of a point with a key."""
    # Copies in one array, not many calls: a rounding draws by index.
    drawn = as_float64(rounding(np.full(samples, point), key))
    if drawn.shape != (samples,):
        raise AssertionError(f"{samples} copies of {float(point)!r} became an array of shape {drawn.shape}")
    return drawn


def _count_away(point: float, drawn: Array, below: float, quantum: float, fmt: FloatFormat) -> int:
    """How many results are away from zero; all must be neighbours on the point's side."""
    # By the point's sign, not by each result's: a result on the other side of zero is neither neighbour.
    sizes = -drawn if point < 0 else drawn
    above = below + quantum
    # Beyond the largest value the policy decides what stands for the next one: infinity or NaN.
    strangers = (sizes != below) & (sizes != above) if above <= fmt.max else sizes < below
    if strangers.any():
        near, far = math.copysign(below, point), math.copysign(above, point)
        raise AssertionError(f"{point!r} became {float(drawn[strangers][0])!r}, which is neither {near!r} nor {far!r}")
    return int(np.count_nonzero(sizes != below))


def _neighbours(x: float, fmt: FloatFormat) -> tuple[float, float]:
    """The magnitude on the grid at or below |x|, and the distance to the next one."""
    # Of the magnitude, since formats without a sign have neighbours on one side only.
    below = abs(float(round(abs(x), fmt, "toward_zero", overflow="saturate")))
    exponent = max(math.frexp(below)[1] - 1, fmt.emin) if below else fmt.emin
    if below < fmt.smallest_normal and not fmt.subnormals:
        return below, fmt.smallest_normal
    return below, math.ldexp(1.0, exponent - fmt.mantissa_bits)
