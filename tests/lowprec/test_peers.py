"""Mistakes found in other libraries, each as a test of this one."""

from __future__ import annotations

import numpy as np
import pytest

import lowprec as lp


def rounded(x: float, fmt: str = "float16", mode: str = "nearest_even", **options: object) -> float:
    return float(lp.round(np.float64(x), fmt, mode, **options))  # type: ignore[arg-type]


def chance_up(x: float, fmt: str, low: float, *, bits: int = 16, overflow: str | None = None) -> float:
    """Share of 2^18 stochastic roundings of x that do not give `low`."""
    got = lp.round(np.full(1 << 18, x), fmt, "stochastic", key=7, random_bits=bits, overflow=overflow)
    return float(np.mean(got != low))


def test_ml_dtypes_and_torch_round_float64_twice(backend: str) -> None:
    assert rounded(1 + 2.0**-4 + 2.0**-40, "float8_e4m3fn") == 1.125
    assert rounded(1 + 2.0**-8 + 2.0**-40, "bfloat16") == 1 + 2.0**-7
    assert rounded(-(1 + 2.0**-11 + 2.0**-50)) == -(1 + 2.0**-10)
    assert rounded(2.0**-25 + 2.0**-70) == 2.0**-24


def test_torch_saturates_infinity_in_e4m3fn(backend: str) -> None:
    assert np.isnan(rounded(np.inf, "float8_e4m3fn"))
    assert rounded(np.inf, "float8_e4m3fn", infinite_input="max") == 448


def test_jax_reduce_precision_flushes_subnormals(backend: str) -> None:
    assert rounded(3 * 2.0**-24) == 3 * 2.0**-24
    assert rounded(3 * 2.0**-24, flush=True) == 0


def test_cpfloat_stochastic_law_near_overflow() -> None:
    """65508 is 4/32 of the way from 65504 to 65536: infinity with P = 0.125."""
    assert abs(chance_up(65508.0, "float16", 65504.0) - 0.125) < 5 * np.sqrt(0.125 * 0.875 / 2**18)


def test_cpfloat_results_depend_on_threads() -> None:
    x = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    with lp.num_threads(1):
        want = lp.round(x, "float16", "stochastic", key=1)
    with lp.num_threads(2):
        np.testing.assert_array_equal(lp.round(x, "float16", "stochastic", key=1), want)


def test_qtorch_ties_away_and_finite_overflow(backend: str) -> None:
    assert rounded(1 + 2.0**-11) == 1.0
    assert rounded(1 + 3 * 2.0**-11) == 1 + 2.0**-9
    assert rounded(65520.0) == np.inf
    assert np.isnan(rounded(np.nan))


def test_mptorch_nan_becomes_max_in_stochastic_mode(backend: str) -> None:
    assert np.isnan(rounded(np.nan, mode="stochastic", key=1))


def test_mptorch_few_bits_give_the_wrong_chance() -> None:
    """One bit, fraction 63/64: the truncated fraction is 1/2."""
    assert abs(chance_up(1 + 63 / 64 * 2.0**-10, "float16", 1.0, bits=1) - 0.5) < 5 * 0.5 / 2**9


def test_pychop_large_values_and_directed_modes(backend: str) -> None:
    assert rounded(131008.0) == np.inf
    assert rounded(2.0, "float8_e5m2", "odd") == 2.0
    assert rounded(15.999999, "float8_e4m3fn", "toward_zero") == 15.0


def test_pychop_every_instance_repeats_its_seed() -> None:
    x = np.full(64, 1 + 2.0**-11)
    one, two = (lp.round(x, "float16", "stochastic", key=k) for k in lp.Key(42).split(2))
    assert not np.array_equal(one, two)


def test_apytypes_between_the_largest_subnormal_and_the_smallest_normal(backend: str) -> None:
    assert rounded(2.0**-14 - 2.0**-26) == 2.0**-14
    assert rounded(2.0**-14 - 3 * 2.0**-26) == 2.0**-14 - 2.0**-24


def test_apytypes_never_rounds_up_below_half_the_smallest_subnormal() -> None:
    assert abs(chance_up(2.0**-26, "float16", 0.0) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 2**18)


@pytest.mark.parametrize("sign", [1, -1])
def test_microxcaling_toward_zero_below_powers_of_two(sign: int, backend: str) -> None:
    assert rounded(sign * float(np.nextafter(np.float32(2), np.float32(0))), mode="toward_zero") == sign * 1.9990234375


def test_microxcaling_largest_float32_and_negative_zero(backend: str) -> None:
    largest = float(np.finfo(np.float32).max)
    assert rounded(largest, "float8_e5m2", overflow="saturate") == 57344
    assert rounded(largest, "bfloat16") == np.inf
    assert np.signbit(lp.round(np.float32(-0.0), "float8_e4m3fn"))


def test_unit_scaling_ties_and_subnormal_step(backend: str) -> None:
    assert rounded(1 + 3 * 2.0**-4, "float8_e4m3fn") == 1.25
    assert rounded(2.0**-9, "float8_e4m3fn") == 2.0**-9
    assert rounded(2.0**-10, "float8_e4m3fn") == 0.0


def test_the_numpy_bit_trick_is_wrong_for_float16_subnormals() -> None:
    """Masking the low 13 bits of a float32 keeps bits that a float16 subnormal has not."""
    x = (np.arange(1, 2048) * 2.0**-25 * 1.37).astype(np.float32)
    np.testing.assert_array_equal(lp.round(x, "float16"), x.astype(np.float16).astype(np.float32))


def test_e8m0_ties_go_to_the_even_code(backend: str) -> None:
    """3.0 is 4 in ml_dtypes and 2 in gfloat; its lower neighbour 2 has the even code."""
    assert rounded(3.0, "float8_e8m0fnu") == 2.0
    assert rounded(6.0, "float8_e8m0fnu") == 8.0
