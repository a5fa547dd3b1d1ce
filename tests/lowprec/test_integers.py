"""Integers are exact, then rounded once: also those of more bits than float64 has, in every mode and byte order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
import lowprec.testing as lpt
from lowprec.backends.reference.rounding import round_number
from lowprec.values.rounding import FEW_BIT_MODES, MODES, STOCHASTIC_MODES

EVERY_MODE = (*MODES, *FEW_BIT_MODES)
FORMATS: list[Any] = ["float64", "float32", "bfloat16", "float8_e5m2", "float8_e8m0fnu"]
FORMATS += [lp.FloatFormat("e9m20", 9, 20), lp.FloatFormat("u8m22", 8, 22, signed=False)]


def integers(dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Ends of a dtype, and what lies at and beside the middle between neighbours of many grids."""
    info, kind = np.iinfo(dtype), np.dtype(dtype)
    ends = [info.min, info.min + 1, info.max, info.max - 1, 0, 1]
    bits = 8 * kind.itemsize - 1
    middles = [(1 << bits - 1) + (1 << at) + by for at in range(0, bits - 1, 3) for by in (-1, 0, 1)]
    some = ends + [m for m in middles if m <= info.max]
    return np.array(some + [-m for m in some if info.min <= -m <= info.max], kind)


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, ">i8", ">u2", np.int8], ids=str)
def test_one_exact_rounding(mode: Any, dtype: Any) -> None:
    x = integers(dtype)
    for fmt in FORMATS:
        if mode in FEW_BIT_MODES and fmt == "float64":
            continue
        for bits in (3, 16) if mode in STOCHASTIC_MODES else (16,):
            with lpt.backend("reference"):
                want = lp.encode(x, fmt, mode, key=5, random_bits=bits)
            lpt.assert_same_bits(lp.encode(x, fmt, mode, key=5, random_bits=bits), want)
            if lp.as_format(fmt).dtype is not None:
                lpt.assert_same_bits(
                    lp.astype(x, fmt, mode, key=5, random_bits=bits), want.view(lp.as_format(fmt).dtype)
                )


@pytest.mark.parametrize("mode", FEW_BIT_MODES)
def test_the_last_bit_of_64_decides_a_tie(mode: Any) -> None:
    """With one random bit a quarter of the quantum is a tie between never and half the time; one more is half."""
    quantum = 1 << 62 - 10
    tie = (1 << 62) + quantum // 4
    for number, up in ((tie - 1, 0), (tie, mode == "stochastic_half"), (tie + 1, 1)):
        codes = lp.encode(np.full(400, number), "float16", mode, key=1, random_bits=1, overflow="saturate")
        wide = lp.FloatFormat("e8m10", 8, 10)
        drawn = lp.encode(np.full(400, number), wide, mode, key=1, random_bits=1)
        below = round_number(1 << 62, lp.Rounding().rule(wide))
        assert set(codes.tolist()) == {0x7BFF}
        assert set(drawn.tolist()) == ({below, below + 1} if up else {below}), number


def test_a_rounding_in_place_of_either_byte_order() -> None:
    x = np.linspace(-3, 3, 60).reshape(6, 10)
    for dtype in (">f4", ">f8", ">f2"):
        want = lp.round(x.astype(dtype), "float8_e4m3fn")
        for take in (lambda a: a, lambda a: a[::2, ::-1], lambda a: a[:0], lambda a: a[0, 0:1].reshape(())):
            place = take(x.astype(dtype))
            assert lp.round(place, "float8_e4m3fn", out=place) is place
            assert place.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(place, take(want))
    swapped = x.astype(">f4")
    with pytest.raises(TypeError, match="out must be an array of float32, not >f4"):
        lp.round(x.astype(np.float32), "float16", out=swapped)
    with pytest.raises(TypeError, match="out must be an array of >f4, not >f8"):
        lp.round(swapped, "float16", out=x.astype(">f8"))
    with pytest.raises(TypeError, match="out must be an array of float32, not >f4"):
        lp.astype(swapped, "float32", out=swapped)
    swapped.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        lp.round(swapped, "float16", out=swapped)
