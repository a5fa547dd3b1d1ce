"""Golden bits of formats, random words and rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

import lowprec as lp
from lowprec.values.rounding import MODES
from tests.golden import hexadecimal

FORMATS = [fmt for fmt in lp.formats.values() if fmt.bits <= 32]


def formats() -> dict[str, Any]:
    """The numbers of every named format and of a few of the P3109 family."""
    family = [lp.p3109(8, p, signed=s) for p in (1, 3, 4) for s in (True, False)]
    return {
        fmt.name: {
            "exponent_bits": fmt.exponent_bits,
            "mantissa_bits": fmt.mantissa_bits,
            "bias": fmt.bias,
            "max": fmt.max.hex(),
            "smallest_normal": fmt.smallest_normal.hex(),
            "smallest_subnormal": fmt.smallest_subnormal.hex(),
            "max_code": fmt.max_code,
            "inf_code": fmt.inf_code,
            "nan_code": fmt.nan_code,
        }
        for fmt in [*lp.formats.values(), *family]
    }


def words() -> dict[str, Any]:
    """Random words of the elementwise map, fold_in and split."""
    draws = {
        f"key {key} {use} {bits} bits from {offset}": hexadecimal(lp.random_bits(key, 70, bits, use=use, offset=offset))
        for key in (0, 0x0123456789ABCDEF)
        for use in ("user", "dropout")
        for bits in (1, 13, 16, 17, 32)
        for offset in (0, 2**33 + 5)
    }
    derived = {f"Key(7).fold_in({n})": hex(lp.Key(7).fold_in(n).value) for n in (0, 1, 2**32, 2**64 - 1)}
    split = {"Key(7).split(3)": [hex(key.value) for key in lp.Key(7).split(3)]}
    return {**draws, **derived, **split}


def sample(fmt: lp.FloatFormat) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Numbers of every size around a format's range; made of integers only, so the same on every machine."""
    i = np.arange(96)
    significand = 1 + (i * 40503 % 65536) / 65536.0 + (i % 7) * 2.0**-40
    exponent = fmt.emin - fmt.mantissa_bits - 2 + i * (min(fmt.emax, 127) - fmt.emin + fmt.mantissa_bits + 4) // 96
    x = np.ldexp(np.where(i % 3 == 0, -significand, significand), exponent)
    x[:4] = [0.0, -0.0, np.inf, -np.inf]
    return x


def rounding() -> dict[str, Any]:
    """Codes of the sample in every format and mode."""
    return {
        f"{fmt.name} {mode} {bits}".strip(): hexadecimal(
            lp.encode(sample(fmt), fmt, mode, key=11, random_bits=bits, offset=1000)
        )
        for fmt in FORMATS
        for mode in MODES
        for bits in ((3, 16, 32) if mode == "stochastic" else (16,))
    }


def build() -> dict[str, Any]:
    """Every file of this module."""
    return {"formats.json": formats(), "random_words.json": words(), "rounding.json": rounding()}
