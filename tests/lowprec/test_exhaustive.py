"""Every format of at most 8 bits on every kind of point, in every mode and under every policy, against the oracle."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import lowprec as lp
from lowprec.values.rounding import INFINITE_INPUTS, MODES, OVERFLOWS, rounding_rule
from tests.lowprec.oracle import expected_codes, interesting, random_fractions

NAMED = [fmt for fmt in lp.formats.values() if fmt.bits <= 8]
FAMILY = [
    lp.p3109(k, p, signed=signed, extended=extended)
    for k, p in ((3, 1), (4, 2), (5, 2), (6, 3), (8, 1), (8, 3), (8, 4), (8, 7))
    for signed, extended in itertools.product((True, False), repeat=2)
]
OWN = [
    lp.FloatFormat("no_subnormals", 4, 3, subnormals=False),
    lp.FloatFormat("wide_range", 6, 1, 40, nan="top"),
    lp.FloatFormat("no_specials", 3, 4, infinities=False, nan="none"),
    lp.FloatFormat("infinity_only", 3, 3, nan="none"),
]
SMALL = [*NAMED, *FAMILY, *OWN]


def policies(fmt: lp.FloatFormat) -> list[tuple[str, str]]:
    """The pairs of overflow and infinite_input that the format can express."""
    missing = set()
    if fmt.inf_code is None:
        missing |= {"infinity", "keep"}
    if fmt.nan_code is None:
        missing |= {"nan"}
    return [(o, i) for o in OVERFLOWS for i in INFINITE_INPUTS if not {o, i} & missing]


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("mode", MODES)
def test_codes_against_the_oracle(fmt: lp.FloatFormat, mode: str) -> None:
    x = interesting(fmt)
    exact = x.astype(np.float64)
    for bits in (1, 7, 16, 23, 32) if mode == "stochastic" else (16,):
        random = random_fractions(bits, 11, x.size) if mode == "stochastic" else 0.0
        for (overflow, infinite), flush in itertools.product(policies(fmt), (False, True)):
            args = {"overflow": overflow, "infinite_input": infinite, "flush": flush, "random_bits": bits}
            want = expected_codes(exact, rounding_rule(fmt, mode, **args), random)
            got = lp.encode(x, fmt, mode, key=11, **args)
            wrong = np.flatnonzero(got != want)
            assert wrong.size == 0, (args, x[wrong[0]], hex(got[wrong[0]]), hex(want[wrong[0]]))


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_every_way_in_and_out_agrees(fmt: lp.FloatFormat) -> None:
    """float64 input, values instead of codes, and storage dtypes give what float32 input and codes give."""
    x = interesting(fmt)
    for mode in MODES:
        codes = lp.encode(x, fmt, mode, key=3)
        np.testing.assert_array_equal(lp.encode(x.astype(np.float64), fmt, mode, key=3), codes)
        decoded = lp.decode(codes, fmt)
        values = lp.round(x, fmt, mode, key=3)
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, decoded)
        np.testing.assert_array_equal(np.signbit(values), np.signbit(decoded) & ~np.isnan(decoded))
        if fmt.dtype is not None:
            stored = lp.astype(x, fmt, mode, key=3)
            assert stored.dtype == fmt.dtype
            np.testing.assert_array_equal(stored.view(fmt.code_dtype), codes)


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_decode_gives_the_value_of_every_code(fmt: lp.FloatFormat, backend: str) -> None:
    codes = np.arange(1 << fmt.bits, dtype=fmt.code_dtype)
    want = np.array([fmt.value_of(int(code)) for code in codes])
    got = lp.decode(codes, fmt)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])
    if fmt.dtype is not None:
        np.testing.assert_array_equal(codes.view(fmt.dtype).astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("fmt", [*NAMED, *OWN, lp.p3109(6, 3), lp.p3109(5, 2, signed=False)], ids=lambda f: f.name)
@pytest.mark.parametrize("mode", MODES)
def test_reference_and_cpu_give_the_same_codes(fmt: lp.FloatFormat, mode: str) -> None:
    x = interesting(fmt)[::7]
    for dtype in (np.float32, np.float64):
        got = lp.encode(x.astype(dtype), fmt, mode, key=5, offset=60)
        with lp.testing.backend("reference"):
            np.testing.assert_array_equal(got, lp.encode(x.astype(dtype), fmt, mode, key=5, offset=60))
