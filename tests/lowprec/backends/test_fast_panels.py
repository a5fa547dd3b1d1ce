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


def near(value: float, count: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Numbers of both signs within a few binades of a value, a third of them zero, none infinite or NaN."""
    numbers = rng.standard_normal(count) * value * 2.0 ** rng.integers(-3, 4, count)
    numbers[rng.random(count) < 1 / 3] = 0.0
    limit = float(np.finfo(np.float32).max)
    return np.clip(numbers, -limit, limit).astype(np.float32)


@pytest.mark.parametrize("isa", lp.testing.isa_names())
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: str(getattr(fmt, "name", fmt)))
def test_panels_of_plain_numbers_are_rounded_as_short_arrays_are(isa: str, fmt: str | lp.FloatFormat) -> None:
    # Without infinities and NaN whole panels stay on the short cut; around the smallest values, one, and the largest.
    info = lp.finfo(fmt)
    rng = np.random.default_rng(1)
    with lp.testing.isa(isa):
        for value in (float(info.smallest_subnormal), float(info.smallest_normal), 1.0, float(info.max) / 4):
            x = near(value, 1024, rng)
            for overflow in (None, "saturate"):
                for bits in (16, 7):
                    args = {"key": 9, "random_bits": bits, "overflow": overflow}
                    whole = lp.encode(x, fmt, "stochastic", offset=320, **args)  # type: ignore[arg-type]
                    parts = [
                        lp.encode(x[i : i + PARTS], fmt, "stochastic", offset=320 + i, **args)  # type: ignore[arg-type]
                        for i in range(0, x.size, PARTS)
                    ]
                    lp.testing.assert_same_bits(whole, np.concatenate(parts))


@pytest.mark.parametrize("isa", lp.testing.isa_names())
def test_blocks_on_both_sides_of_a_full_counter_word(isa: str) -> None:
    # 64 elements use 8 counters: at element 2^35 the counter's low word is full and the high one counts on.
    x = near(1.0, 1024, np.random.default_rng(2))
    with lp.testing.isa(isa):
        for start in (2**35 - 1024, 2**35 - 128, 2**35 - 64, 2**35 - 1, 2**35):
            whole = lp.encode(x, "float16", "stochastic", key=3, offset=start)
            parts = [
                lp.encode(x[i : i + PARTS], "float16", "stochastic", key=3, offset=start + i)
                for i in range(0, x.size, PARTS)
            ]
            lp.testing.assert_same_bits(whole, np.concatenate(parts))
            with lp.testing.backend("reference"):
                lp.testing.assert_same_bits(
                    whole[:200], lp.encode(x[:200], "float16", "stochastic", key=3, offset=start)
                )


@pytest.mark.parametrize("isa", lp.testing.isa_names())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["nearest_even", "nearest_away", "toward_zero", "up", "down", "odd", "stochastic"])
def test_panels_of_every_input_and_mode_are_rounded_as_short_arrays_are(isa: str, dtype: str, mode: str) -> None:
    # Ties, their neighbours in float64, and numbers around the smallest and largest values; short arrays go element by
    # element through the general rounding, and the values of float64 input also through 64-bit lanes.
    rng = np.random.default_rng(3)
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "float6_e3m2fn", lp.FloatFormat("x", 8, 3)):
        fmt = lp.as_format(name)
        codes = rng.integers(0, fmt.max_code, 2048)
        low, high = (lp.decode(c.astype(fmt.code_dtype), fmt).astype(np.float64) for c in (codes, codes + 1))
        x = (low + high) / 2 * rng.choice([-1, 1], codes.size)
        x = np.where(rng.random(x.size) < 0.5, x, x * (1 + 2.0**-52 * rng.integers(-2, 3, x.size)))
        x[::7] *= 1.7  # off the ties, and beyond the largest value
        x = lp.astype(x, dtype)
        key = 4 if mode == "stochastic" else None
        with lp.testing.isa(isa):
            whole = lp.encode(x, fmt, mode, key=key)
            parts = [lp.encode(x[i : i + PARTS], fmt, mode, key=key, offset=i) for i in range(0, x.size, PARTS)]
            lp.testing.assert_same_bits(whole, np.concatenate(parts))
            if dtype == "float64":
                values = lp.round(x, fmt, mode, key=key)
                lp.testing.assert_same_bits(lp.decode(whole, fmt).astype(np.float64), values)
