"""Corners of rounding, each found wrong once."""

from __future__ import annotations

import numpy as np
import pytest

import lowprec as lp


@pytest.mark.parametrize("mode", ["stochastic", "stochastic_half", "stochastic_even"])
def test_float64_subnormals_are_the_smallest_power_of_two(host_backend: str, mode: str) -> None:
    x = np.array([5e-324, 1e-310, 2.0**-1022, 2.0**-127, 0.0, -1e-310, np.nan])
    codes = lp.encode(x, "float8_e8m0fnu", mode, key=1, random_bits=3)
    assert codes.tolist() == [0, 0, 0, 0, 255, 255, 255]


def test_unsigned_formats_flush_before_they_refuse_a_sign(host_backend: str) -> None:
    fmt = lp.as_format("binary14p10ue")
    x = np.array([-(2.0**-16), 2.0**-16, -1.0], np.float32)
    assert lp.encode(x, fmt, flush=True).tolist() == [0, 0, fmt.nan_code]


def test_the_largest_of_a_format_of_subnormals_alone_is_flushed_too(host_backend: str) -> None:
    fmt = lp.FloatFormat("subnormals alone", 1, 2)
    assert fmt.max < fmt.smallest_normal
    x = np.array([fmt.max, 100.0, -100.0, np.inf, -np.inf, 0.0])
    plain, flushed = (lp.encode(x, fmt, overflow="satfinite", flush=flush) for flush in (False, True))
    top = fmt.max_code
    assert plain.tolist() == [top, top, top | fmt.sign_bit, top, top | fmt.sign_bit, 0]
    assert flushed.tolist() == [0, 0, fmt.sign_bit, 0, fmt.sign_bit, 0]
    infinity = fmt.inf_code or 0
    below = infinity | fmt.sign_bit
    assert lp.encode(x, fmt, flush=True).tolist() == [0, infinity, below, infinity, below, 0]
