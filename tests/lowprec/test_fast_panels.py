"""The short cuts for full panels of 256 elements give the bits of the general rounding, special values included."""

from __future__ import annotations

import numpy as np
import pytest

import lowprec as lp

FORMATS = [
    *("float16", "bfloat16", "tfloat32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
    lp.FloatFormat("e7m11", 7, 11),
    lp.FloatFormat("e8m1", 8, 1),
    lp.FloatFormat("far", 5, 4, 90),
    lp.FloatFormat("high", 5, 4, -90),
    lp.p3109(8, 3),
    lp.p3109(8, 1),
]
PARTS = 100  # fewer than a panel: these take the general way


def patterns() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Random bit patterns (subnormals, infinities and NaNs of every payload among them) and numbers near one."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 3000, np.uint32)
    special = np.array([0, 1, 0x7F800000, 0x7F800001, 0x7FFFFFFF, 0x007FFFFF, 0x00800000, 0x7F7FFFFF], np.uint32)
    normal = rng.standard_normal(3000).astype(np.float32) * np.float32(2.0) ** rng.integers(-20, 20, 3000)
    every = np.concatenate([bits, special, special | np.uint32(0x80000000), normal.astype(np.float32).view(np.uint32)])
    return rng.permutation(every).view(np.float32)


@pytest.mark.parametrize("isa", lp.testing.isa_names())
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: str(getattr(fmt, "name", fmt)))
def test_whole_arrays_and_parts_agree(isa: str, fmt: str | lp.FloatFormat) -> None:
    x = patterns()
    if lp.as_format(fmt).nan_code is None:
        x = x[~np.isnan(x)]
    policies: list[dict[str, str]] = [{}, {"overflow": "satfinite"}, {"overflow": "saturate"}]
    policies += [{"overflow": "nan"}] if lp.as_format(fmt).nan_code is not None else []
    with lp.testing.isa(isa), np.errstate(invalid="ignore"):
        for policy in policies:
            for mode, bits in (("nearest_even", 16), ("stochastic", 16), ("stochastic", 3)):

                def rounded(call: str, start: int, stop: int) -> np.ndarray:
                    args = {"key": 5, "random_bits": bits, "offset": 64 + start, **policy}  # noqa: B023
                    return getattr(lp, call)(x[start:stop], fmt, mode, **args)  # type: ignore[no-any-return]  # noqa: B023

                for call in ("encode", "round"):
                    whole = rounded(call, 0, x.size)
                    parts = [rounded(call, i, i + PARTS) for i in range(0, x.size, PARTS)]
                    lp.testing.assert_same_bits(whole, np.concatenate(parts))
