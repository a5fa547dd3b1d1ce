"""Exact arithmetic in float32 lanes gives the bits of the same arithmetic in doubles."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from lowprec import _kernels
from lowprec.testing.isa import isa
from lowprec.values.rounding import MODES

OPERANDS = {"add": 2, "subtract": 2, "multiply": 2, "divide": 2, "sqrt": 1, "fma": 3}
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
FORMATS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "tfloat32"]


def mixed(dtype: Any, count: int, seed: int, wild: float) -> npt.NDArray[Any]:
    """Normal numbers; sums of them are often exact. A part `wild` of them is of any bits, zeros or infinities."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=count).astype(np.float32) * np.exp2(rng.integers(-6, 6, count)).astype(np.float32)
    bits = rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
    special = rng.choice(np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan], np.float32), count)
    which = rng.random(count)
    with np.errstate(all="ignore"):
        return np.where(which < wild / 2, bits, np.where(which < wild, special, x)).astype(dtype)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_operands_give_the_bits_of_doubles(name: str, dtype: Any, level: str) -> None:
    with isa(level):
        for wild in (0.0, 0.002, 0.5):
            a, b, c = (mixed(dtype, 4097, seed, wild) for seed in (1, 2, 3))
            given = (np.abs(a) if name == "sqrt" and wild == 0 else a, b, c)[: OPERANDS[name]]
            with np.errstate(all="ignore"):
                wide = tuple(x.astype(np.float64) for x in given)
            for fmt in FORMATS:
                for mode in MODES:
                    how: dict[str, Any] = {"rounding": mode, "key": 7, "offset": 5}
                    got, want = getattr(lp, name)(*given, fmt, **how), getattr(lp, name)(*wide, fmt, **how)
                    lp.testing.assert_same_bits(got, want)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "sqrt"])
@pytest.mark.parametrize("exponents", [(-75, -60), (-149, -120), (-60, -10), (110, 127)])
def test_the_ends_of_the_range(name: str, exponents: tuple[int, int], level: str) -> None:
    """Products and remainders that underflow, sums that overflow: with no other element beside them in a piece."""
    rng = np.random.default_rng(8)

    def drawn(low: int, high: int) -> npt.NDArray[np.float32]:
        return np.ldexp(1 + rng.integers(0, 64, 400) / 64, rng.integers(low, high, 400)).astype(np.float32)

    other = (-75, -60) if exponents[0] > -76 and exponents[1] < 0 else (-3, 3)
    operands = (drawn(*exponents), drawn(*other))[: OPERANDS[name]]
    with isa(level):
        for fmt in ("bfloat16", "tfloat32", "float8_e5m2"):
            for mode in MODES:
                how: dict[str, Any] = {"rounding": mode, "key": 7}
                wide = tuple(x.astype(np.float64) for x in operands)
                got, want = getattr(lp, name)(*operands, fmt, **how), getattr(lp, name)(*wide, fmt, **how)
                lp.testing.assert_same_bits(got, want)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", ["add", "subtract", "multiply"])
def test_float16_pairs_far_apart_are_rounded_once_at_random(name: str, level: str) -> None:
    """Their sums have more bits than float32; a rounding tells those from the nearest float32 once in 2^13 times."""
    rng = np.random.default_rng(12)
    a = rng.uniform(1, 2, 1 << 18).astype(np.float16)
    b = (2.0**-14 * rng.normal(size=a.size)).astype(np.float16)
    how: dict[str, Any] = {"rounding": "stochastic", "key": 3}
    with isa(level):
        got = getattr(lp, name)(a, b, "float16", **how)
        want = getattr(lp, name)(a.astype(np.float64), b.astype(np.float64), "float16", **how)
    lp.testing.assert_same_bits(got, want)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_float16_pairs_are_rounded_once(name: str) -> None:
    """Every float16 with partners of every exponent: through float32 no result is rounded twice."""
    a = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(4)
    for exponent in range(0, 32, 3):
        b = (rng.integers(0, 1 << 10, a.size) | exponent << 10).astype(np.uint16).view(np.float16)
        with np.errstate(all="ignore"):
            wide = a.astype(np.float64), b.astype(np.float64)
        for overflow in (None, "saturate"):
            got = getattr(lp, name)(a, b, "float16", overflow=overflow)
            lp.testing.assert_same_bits(got, getattr(lp, name)(*wide, "float16", overflow=overflow))


@pytest.mark.parametrize("number", [0.5, -0.0, 0.1, 1e300, np.nan, np.inf, 1e-300])
@pytest.mark.parametrize("fmt", ["float32", "float16"])
def test_numbers_that_float32_holds_or_not(number: float, fmt: str) -> None:
    x = mixed(np.float32, 1000, 9, 0.1)
    for name in ("add", "multiply", "divide"):
        got = getattr(lp, name)(x, number, fmt)
        with np.errstate(all="ignore"):
            want = getattr(lp, name)(x.astype(np.float64), number, fmt)
        lp.testing.assert_same_bits(got, want)


def test_strides_and_broadcasting() -> None:
    x = mixed(np.float16, 3000, 12, 0.1).reshape(30, 100)
    row = mixed(np.float32, 100, 13, 0.0)
    got = lp.add(x.T[::2], row[:50, None], "bfloat16", "stochastic", key=2)
    with np.errstate(all="ignore"):
        wide = x.T[::2].astype(np.float64), row[:50, None].astype(np.float64)
    lp.testing.assert_same_bits(got, lp.add(*wide, "bfloat16", "stochastic", key=2))
