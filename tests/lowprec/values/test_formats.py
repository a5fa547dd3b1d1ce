"""Formats: derived numbers, dtypes, names, P3109, containment, printing and refusals."""

from __future__ import annotations

import builtins
import hashlib
import itertools
import math
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowprec as lp
from tests.golden import load

WITH_DTYPE = [fmt for fmt in lp.formats.values() if fmt.dtype is not None]


@pytest.mark.parametrize("fmt", WITH_DTYPE, ids=lambda fmt: fmt.name)
def test_finfo_agrees_with_ml_dtypes(fmt: lp.FloatFormat) -> None:
    assert fmt.dtype is not None
    theirs = np.finfo(fmt.dtype) if fmt.dtype.kind == "f" and fmt.bits > 8 else ml_dtypes.finfo(fmt.dtype)
    ours = lp.finfo(fmt)
    for name in ["bits", "nmant", "nexp", "iexp", "machep", "negep", "minexp", "maxexp"]:
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ["max", "min", "eps", "epsneg", "smallest_normal", "tiny", "smallest_subnormal"]:
        assert float(getattr(ours, name)) == float(getattr(theirs, name)), name
        assert getattr(ours, name).dtype == fmt.dtype


def test_finfo_without_a_dtype() -> None:
    info = lp.finfo(lp.tfloat32)
    assert info.dtype is None
    assert (info.bits, info.nmant, info.eps, info.max) == (19, 10, 2.0**-10, (2 - 2.0**-10) * 2.0**127)
    assert "tfloat32" in str(info)
    assert "<table>" in info._repr_html_()


@pytest.mark.parametrize("fmt", lp.formats.values(), ids=lambda fmt: fmt.name)
def test_formats_are_values(fmt: lp.FloatFormat) -> None:
    again = pickle.loads(pickle.dumps(fmt))
    assert again == fmt
    assert hash(again) == hash(fmt)
    assert lp.as_format(fmt.name) is fmt
    assert fmt.name in str(fmt)
    assert fmt.name in repr(fmt)
    assert f"<caption>{fmt.name}</caption>" in fmt._repr_html_()
    if fmt.dtype is not None:
        assert lp.as_format(fmt.dtype) is fmt
        assert lp.as_format(fmt.dtype.type) is fmt


def test_a_format_of_ones_own_has_the_dtype_of_the_same_numbers() -> None:
    mine = lp.FloatFormat("half", 5, 10)
    assert mine != lp.float16
    assert mine.dtype == np.float16
    assert lp.FloatFormat("odd", 5, 9).dtype is None


def test_a_named_format_prints_its_table() -> None:
    text = str(lp.float8_e4m3fn)
    for part in ("8 (seeeemmm)", "448.0 (0x7e)", "2^-6 = 0.015625", "NaN 0x7f", "no infinity"):
        assert part in text


@pytest.mark.parametrize(
    "args, message",
    [
        ({"exponent_bits": 0, "mantissa_bits": 3}, "exponent_bits >= 1"),
        ({"exponent_bits": 5, "mantissa_bits": -1}, "mantissa_bits >= 0"),
        ({"exponent_bits": 8, "mantissa_bits": 24}, "at most 31"),
        ({"exponent_bits": 4, "mantissa_bits": 0}, 'nan="ieee"'),
        ({"exponent_bits": 4, "mantissa_bits": 3, "nan": "quiet"}, "allowed are ieee, top"),
        ({"exponent_bits": 4, "mantissa_bits": 3, "signed": False, "nan": "negative_zero"}, "no sign"),
        ({"exponent_bits": 12, "mantissa_bits": 3}, "beyond float64"),
        ({"exponent_bits": 4, "mantissa_bits": 3, "zero": False}, "no zero"),
        ({"exponent_bits": 1, "mantissa_bits": 2, "subnormals": False}, "no finite value beside zero"),
    ],
)
def test_numbers_that_make_no_format_are_refused(args: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lp.FloatFormat("bad", **args)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "args, message",
    [
        ({"name": 3}, "name must be a string, not 3"),
        ({"exponent_bits": 5.0}, "'own': exponent_bits must be an integer, not 5.0"),
        ({"mantissa_bits": None}, "needs exponent_bits and mantissa_bits"),
        ({"bias": 1.5}, "bias must be an integer, not 1.5"),
        ({"signed": "yes"}, "signed must be True or False, not 'yes'"),
        ({"subnormals": 1}, "subnormals must be True or False, not 1"),
    ],
)
def test_what_is_no_number_or_flag_is_refused(args: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        lp.FloatFormat(**({"name": "own", "exponent_bits": 5, "mantissa_bits": 2} | args))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"p3109 needs two integers.*not 8.0 and '3'"):
        lp.p3109(8.0, "3")  # type: ignore[arg-type]


def test_numpys_integers_make_the_same_format() -> None:
    assert lp.FloatFormat("own", np.int64(5), np.uint8(2), np.int32(15)) == lp.FloatFormat("own", 5, 2)  # type: ignore[arg-type]


def test_names_of_the_ipu_and_of_p3109() -> None:
    assert lp.as_format("F143") is lp.as_format("f143") is lp.float8_e4m3fnuz
    for k, p, signed, extended in (
        (8, 3, True, True),
        (6, 2, False, True),
        (15, 15, False, False),
        (3, 1, True, False),
    ):
        fmt = lp.p3109(k, p, signed=signed, extended=extended)
        assert lp.as_format(fmt.name) is fmt
    with pytest.raises(ValueError, match="p3109 needs 3 <= k"):
        lp.as_format("binary8p8se")
    for name in ("binary8p3", "binary8p3xe", "binaryp3se", "8p3se", "binary8p3p3se"):
        with pytest.raises(ValueError, match="names of P3109 such as binary8p3se"):
            lp.as_format(name)


def test_unknown_specs_are_refused_with_the_valid_names() -> None:
    with pytest.raises(
        ValueError,
        match=r"unknown format 'fp8': did you mean float8_e4m3fn or float8_e5m2\?; known are float64, .*float8_e4m3fn",
    ):
        lp.as_format("fp8")
    for spec in (np.int32, np.dtype("i4"), np.longdouble, np.complex64, 3):
        with pytest.raises(TypeError, match="no floating-point format"):
            lp.as_format(spec)  # type: ignore[arg-type]


# Values of the tables in IEEE P3109's interim report: Binary8p3 and Binary8p4, signed extended; name, code, value.
P3109 = [
    (3, 0x01, 2.0**-17),
    (3, 0x04, 2.0**-15),
    (3, 0x40, 1.0),
    (3, 0x7E, 49152.0),
    (4, 0x01, 2.0**-10),
    (4, 0x08, 2.0**-7),
    (4, 0x40, 1.0),
    (4, 0x7E, 224.0),
]


@pytest.mark.parametrize("p, code, value", P3109)
def test_p3109_values(p: int, code: int, value: float) -> None:
    fmt = lp.p3109(8, p)
    assert fmt.value_of(code) == value
    assert fmt.value_of(code | 0x80) == -value
    assert fmt.value_of(0x7F) == np.inf
    assert fmt.value_of(0xFF) == -np.inf
    assert np.isnan(fmt.value_of(0x80))


@pytest.mark.parametrize("k, p", [(k, p) for k in range(3, 9) for p in range(1, k)])
def test_p3109_against_gfloat(k: int, p: int) -> None:
    gfloat = pytest.importorskip("gfloat")
    formats = pytest.importorskip("gfloat.formats")
    for signed, extended in itertools.product((True, False), repeat=2):
        domain = gfloat.Domain.Extended if extended else gfloat.Domain.Finite
        signedness = formats.Signedness.Signed if signed else formats.Signedness.Unsigned
        theirs = formats.format_info_p3109(k, p, signedness, domain)
        ours = lp.p3109(k, p, signed=signed, extended=extended)
        for code in range(1 << k):
            np.testing.assert_equal(ours.value_of(code), gfloat.decode_float(theirs, code).fval)


@pytest.mark.parametrize("p", [6, 8, 11, 15])
def test_p3109_of_16_bits_against_gfloat(p: int) -> None:
    gfloat, formats = pytest.importorskip("gfloat"), pytest.importorskip("gfloat.formats")
    theirs = formats.format_info_p3109(16, p, formats.Signedness.Signed, gfloat.Domain.Extended)
    ours = lp.p3109(16, p)
    codes = [*range(0, 1 << 16, 53), *range(64), *range(0x7FC0, 0x8040), *range(0xFFC0, 1 << 16)]
    values = lp.decode(np.array(codes, np.uint16), ours)
    np.testing.assert_equal(values, np.array([gfloat.decode_float(theirs, code).fval for code in codes]))


@pytest.mark.filterwarnings("ignore:.*the reference computes it")
@pytest.mark.parametrize("k", range(3, 12))
def test_p3109_against_the_working_groups_tables(k: int) -> None:
    """Every value of every table for up to 11 bits that the group publishes: signed, unsigned, extended, finite."""
    tables = load("p3109_tables.json")
    family = [
        lp.p3109(k, p, signed=signed, extended=extended)
        for p in range(1, k + 1)
        for signed, extended in itertools.product((True, False), repeat=2)
        if p < k or not signed
    ]
    assert [name for name in tables if name.startswith(f"binary{k}p")] == sorted(
        (fmt.name for fmt in family), key=list(tables).index
    )
    for fmt in family:
        values = lp.decode(np.arange(1 << k, dtype=fmt.code_dtype), fmt).astype(np.float64).tolist()
        digest = hashlib.sha256("\n".join(value.hex() for value in values).encode()).hexdigest()
        assert digest == tables[fmt.name], fmt.name


def test_p3109_families() -> None:
    unsigned = lp.p3109(8, 3, signed=False)
    assert not unsigned.signed
    assert np.isnan(unsigned.value_of(0xFF))
    assert unsigned.value_of(0xFE) == np.inf
    assert lp.p3109(8, 3, signed=False, extended=False).value_of(0xFE) == unsigned.value_of(0xFD) * 1.2
    assert lp.p3109(8, 3) is lp.p3109(8, 3)
    for k, p in ((2, 1), (17, 8), (8, 0), (8, 8)):
        with pytest.raises(ValueError, match="p3109 needs"):
            lp.p3109(k, p)
    with pytest.raises(ValueError, match="beyond float64"):
        lp.p3109(15, 1)


def test_contains() -> None:
    """Against the values themselves, for every pair of small formats."""
    small = [fmt for fmt in lp.formats.values() if fmt.bits <= 8] + [lp.p3109(6, 3), lp.p3109(5, 1, signed=False)]
    values = {fmt: {str(fmt.value_of(code)) for code in range(1 << fmt.bits)} for fmt in small}
    for a in small:
        for b in small:
            assert a.contains(b) == (values[b] <= values[a]), (a, b)
    assert lp.float32.contains(lp.bfloat16)
    assert not lp.float16.contains(lp.bfloat16)
    assert lp.float64.contains(lp.float32)


def test_value_of_refuses_codes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="0x100 does not fit the 8 bits"):
        lp.float8_e5m2.value_of(0x100)


@given(st.integers(3, 19), st.integers(-4, 20), st.booleans(), st.integers(-(2**19), 2**19))
def test_fixed_point_is_evenly_spaced_and_saturates(bits: int, fraction: int, signed: bool, quarters: int) -> None:
    fmt = lp.fixed_point(bits, fraction, signed=signed)
    largest = 2 ** (bits - signed) - 1
    step = math.ldexp(1.0, -fraction)
    x = quarters / 4 * step
    wanted = min(max(builtins.round(quarters / 4), -largest if signed else 0), largest) * step
    assert lp.round(np.float64(x), fmt) == wanted
    assert fmt.bits == bits
    assert float(lp.finfo(fmt).max) == largest * step


@pytest.mark.parametrize("bits", [2, 20])
def test_fixed_point_names_bad_widths(bits: int) -> None:
    with pytest.raises(ValueError, match=f"3 to 19 bits, not {bits}"):
        lp.fixed_point(bits, 0)
    with pytest.raises(TypeError, match=r"two integers.*8\.5"):
        lp.fixed_point(16, 8.5)  # type: ignore[arg-type]


def test_short_names_mean_the_ocp_formats_and_any_other_exmy_is_ieee_like() -> None:
    short = {"e4m3": "float8_e4m3fn", "E5M2": "float8_e5m2", "e2m1": "float4_e2m1fn", "fp16": "float16"}
    short |= {"bf16": "bfloat16", "HALF": "float16", "tf32": "tfloat32", "e3m2": "float6_e3m2fn", "double": "float64"}
    for name, full in short.items():
        assert lp.as_format(name) is lp.formats[full]
    assert lp.as_format("e2m2") == lp.FloatFormat("e2m2", 2, 2)
    assert set(lp.aliases.values()) <= set(lp.formats.values())
    for wrong, near in (("flot16", "float16"), ("fp8", "float8_e4m3fn or float8_e5m2"), ("e4m3fm", "e4m3fn")):
        with pytest.raises(ValueError, match=f"unknown format '{wrong}': did you mean .*{near}"):
            lp.as_format(wrong)
