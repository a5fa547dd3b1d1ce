"""float16 and bfloat16: every value with its midpoints and neighbours, against numpy, ml_dtypes and the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import lowprec as lp
from lowprec.values.rounding import MODES, rounding_rule
from tests.lowprec.oracle import expected_codes, grid, random_fractions

PAIR = [lp.float16, lp.bfloat16]


def points(fmt: lp.FloatFormat) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """All magnitudes, quarter points and midpoints (exact in float32), one float32 step either side, both signs."""
    values = grid(fmt)[: fmt.max_code + 3]
    steps = np.diff(values)
    with np.errstate(over="ignore"):
        some = np.concatenate([values, *(values[:-1] + part * steps for part in (0.25, 0.5))]).astype(np.float32)
        some = some[np.isfinite(some)]
        near = np.concatenate([some, np.nextafter(some, np.float32(np.inf)), np.nextafter(some, np.float32(0))])
    near = near[np.isfinite(near)]
    return np.concatenate([near, -near, np.array([np.inf, -np.inf, np.nan], np.float32)])


@pytest.mark.parametrize("fmt", PAIR, ids=lambda fmt: fmt.name)
def test_nearest_even_is_numpys_and_ml_dtypes(fmt: lp.FloatFormat) -> None:
    x = points(fmt)
    with np.errstate(over="ignore"):
        want = x.astype(fmt.dtype)
    lp.testing.assert_same_bits(lp.astype(x, fmt), want)
    lp.testing.assert_same_bits(lp.astype(x.astype(np.float64), fmt), want)


@pytest.mark.parametrize("fmt", PAIR, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_against_the_oracle(fmt: lp.FloatFormat, mode: str) -> None:
    x = points(fmt)
    for policy in ("infinity", "saturate", "nan"):
        rule = rounding_rule(fmt, mode, 16, policy)
        random = np.resize(random_fractions(16, 3, 4096), x.size) if mode == "stochastic" else 0.0
        if mode == "stochastic":  # the oracle's bits are slow to make: the same 4,096 for every run of elements
            starts = range(0, x.size, 4096)
            parts = [lp.encode(x[i : i + 4096], fmt, mode, key=3, overflow=policy) for i in starts]
            got = np.concatenate(parts)
        else:
            got = lp.encode(x, fmt, mode, overflow=policy)
        np.testing.assert_array_equal(got, expected_codes(x.astype(np.float64), rule, random))


@pytest.mark.parametrize("fmt", PAIR, ids=lambda fmt: fmt.name)
def test_decode_of_every_code(fmt: lp.FloatFormat) -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs, where the processor widens halves itself
        want = codes.view(fmt.dtype).astype(np.float32)
    np.testing.assert_array_equal(lp.decode(codes, fmt), want)
