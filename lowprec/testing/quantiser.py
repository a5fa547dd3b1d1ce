"""`assert_rounds`: a quantiser of one's own beside `lowprec.round`, on the numbers where quantisers go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lowprec.checks import integer, shown
from lowprec.foreign import library_of
from lowprec.processor import in_default_state
from lowprec.rounding import decode, round
from lowprec.types import Array
from lowprec.values.formats import FormatLike, as_format
from lowprec.values.keywords import RoundingLike, as_rounding

ALL_CODES = 16
"""Formats of at most so many bits are tried at each value, and beside it."""


@in_default_state
def assert_rounds(
    quantise: Callable[[Any], Any],
    fmt: FormatLike,
    rounding: RoundingLike = "nearest_even",
    *,
    trials: int = 10**5,
    nan: bool = True,
    key: int = 0,
) -> None:
    """Asserts that a quantiser rounds float32 numbers to a format as `lowprec.round` does, bit for bit.

    Tried are every value of a format of at most 16 bits (of others some), what lies half-way between two and the
    float32 numbers beside both; numbers beyond the largest, subnormal ones, both zeros, infinities, NaN; and random
    float32 numbers of every exponent.

    Args:
        quantise: takes a float32 vector and gives one of as many values, in any dtype that float32 holds.
        fmt: the format.
        rounding: a mode, or a `lowprec.Rounding` with policies; not a stochastic one, which `assert_unbiased` is for.
        trials: random numbers.
        nan: whether NaN is tried; it is not where the format has none.
        key: of the random numbers.

    Raises:
        AssertionError: names how many differ, and of the first the number, what was given and what is right, with bits.
        TypeError: no function.
        ValueError: a stochastic rounding, numbers out of range, an unknown mode or format.
    """
    fmt, rounding = as_format(fmt), as_rounding(rounding)
    if not callable(quantise):
        raise TypeError(f"quantise must be a function of a float32 vector, not {shown(quantise)}")
    if rounding.stochastic:
        raise ValueError(f"{rounding.mode} has random bits of its own; assert_unbiased is for it")
    x = _numbers(fmt, integer("trials", trials, 0), np.random.default_rng(integer("key", key, 0)))
    if not nan or fmt.nan == "none":
        x = x[~np.isnan(x)]
    wanted = np.asarray(
        round(x, fmt, rounding.mode, overflow=rounding.overflow, infinite_input=rounding.infinite_input,
              flush=rounding.flush)
    )  # fmt: skip
    result = quantise(x.copy())
    library = library_of(result)
    got = np.asarray(result if library is None else library.input(result))
    if got.shape != x.shape:
        raise AssertionError(f"the quantiser gave shape {got.shape} for {x.shape}")
    values = got.astype(np.float32)
    wrong = (values.view(np.uint32) != wanted.view(np.uint32)) & ~(np.isnan(values) & np.isnan(wanted))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise AssertionError(
            f"{np.count_nonzero(wrong)} of {len(x)} numbers are not rounded to {fmt.name} ({rounding.words()}); the "
            f"first is {_shown(x[first])}: given {_shown(values[first])}, right is {_shown(wanted[first])}"
        )


def _shown(value: np.float32) -> str:
    return f"{value!s} (0x{int(value.view(np.uint32)):08x})"


def _numbers(fmt: Any, trials: int, generator: np.random.Generator) -> Array:
    """Values of a format, what is half-way between them, their neighbours, the ends, and random numbers."""
    codes = np.arange(2**fmt.bits) if fmt.bits <= ALL_CODES else generator.integers(0, 2**fmt.bits, 2**ALL_CODES)
    values = np.asarray(decode(codes.astype(fmt.code_dtype), fmt), np.float64)
    values = np.unique(values[np.isfinite(values)])
    ends = [fmt.max * factor for factor in (1 + 2.0 ** -(fmt.precision + 1), 1.5, 2)] + [fmt.smallest_subnormal / 2]
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, ends, -np.array(ends)])
    with np.errstate(over="ignore"):
        points = points.astype(np.float32)
    beside = [np.nextafter(points, np.float32(end)) for end in (np.inf, -np.inf)]
    random = generator.integers(0, 2**32, trials, dtype=np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-149)], np.float32)
    return np.concatenate([special, points, *beside, random])
