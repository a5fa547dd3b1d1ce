"""Float16 operands to float16 results, rounded stochastically: every code is floor(q + r / 2^n), of the
exact result q in quanta and the random bits r, by integers. What a format holds draws no bits and keeps asking for a
key."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from lowprec import _kernels
from lowprec.backends.cpu.random import random_words
from lowprec.elementwise import prepare
from lowprec.testing.isa import isa
from lowprec.values.elementwise_op import OPERATIONS
from lowprec.values.keywords import as_rounding

Ints = npt.NDArray[np.int64]
FUNCTIONS = ("rsqrt", "exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "gelu")
NUMBER = {name: i for i, name in enumerate(OPERATIONS)}
CODES = np.arange(1 << 16, dtype=np.uint16)
CORNERS = np.array(
    [0, 1, 2, 3, 0x3FF, 0x400, 0x401, 0x7FF, 0x3555, 0x3BFF, 0x3C00, 0x3C01, 0x4200, 0x7800, 0x7BFE, 0x7BFF],
    np.uint16,
)
SPECIAL = np.array([0x7C00, 0x7E00, 0x7C01], np.uint16)
ROUNDING_TAG = 1


def drawn(key: int, offset: int, count: int, bits: int = 16) -> Ints:
    """The random bits of elements from `offset` on, as of 16."""
    words = np.empty(count, np.uint16)
    random_words(ROUNDING_TAG, bits, key, offset, words)
    return words.astype(np.int64) << (16 - bits)


def parts(codes: npt.NDArray[np.uint16]) -> tuple[Ints, Ints]:
    """Significands and exponents: a magnitude is significand * 2^exponent."""
    field, fraction = (codes >> 10).astype(np.int64) & 31, codes.astype(np.int64) & 1023
    return np.where(field > 0, fraction + 1024, fraction), np.maximum(field, 1) - 25


def law(top: Ints, bottom: Ints, exponent: Ints, random: Ints, saturate: bool = False) -> npt.NDArray[np.uint16]:
    """The code of top / bottom * 2^exponent, that is positive. What a root leaves out is no matter: see `roots`."""
    binade = np.maximum(np.frexp(top / bottom)[1] - 1 + exponent, -14)
    shift = np.clip(exponent - (binade - 10) + 16, -40, 40)
    whole = np.where(shift >= 0, (top << np.maximum(shift, 0)) // bottom, top // (bottom << np.maximum(-shift, 0)))
    code = ((binade + 14) << 10) + ((whole + random) >> 16)
    most = 0x7BFF if saturate else 0x7C00
    return np.where(code > 0x7BFF, most, code).astype(np.uint16)


def pairs(count: int, seed: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    """Codes of finite positive numbers: any bits, and corners with corners and with any."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(1, 0x7C00, (2, count), dtype=np.uint16)
    corners = CORNERS[1:]
    first, second = (x.ravel() for x in np.meshgrid(corners, corners))
    beside = rng.permutation(np.resize(corners, count // 8))
    return np.concatenate([a, np.tile(first, 64), beside]), np.concatenate([b, np.tile(second, 64), a[: beside.size]])


def exact_parts(name: str, a: npt.NDArray[np.uint16], b: npt.NDArray[np.uint16]) -> tuple[Ints, Ints, Ints]:
    (ma, ea), (mb, eb) = parts(a), parts(b)
    one = np.ones_like(ma)
    if name == "divide":
        return ma, mb, ea - eb
    if name == "multiply":
        return ma * mb, one, ea + eb
    x, y = ma << (ea + 24), mb << (eb + 24)  # in units of 2^-24
    return (x + y if name == "add" else np.abs(x - y)), one, np.full_like(ma, -24)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_exact_results_of_two_operands_follow_the_law(name: str, level: str) -> None:
    a, b = pairs(1 << 18, 5)
    if name == "subtract":
        a, b = np.maximum(a, b), np.minimum(a, b)
        b = np.where(a == b, b - 1, b).astype(np.uint16)
    x, y = a.view(np.float16), b.view(np.float16)
    given = exact_parts(name, a, b)
    for key, bits, overflow in ((1, 16, None), (2, 16, "saturate"), (3, 11, None), (4, 1, None)):
        want = law(*given, drawn(key, 77, a.size, bits), overflow == "saturate")
        policies: dict[str, Any] = {"random_bits": bits, "overflow": overflow}
        if overflow:
            policies["infinite_input"] = "max"
        with isa(level):
            got = getattr(lp, name)(x, y, "float16", "stochastic", key=key, offset=77, **policies)
            np.testing.assert_array_equal(got.view(np.uint16), want)
            if name in ("multiply", "divide"):
                got = getattr(lp, name)(-x, y, "float16", "stochastic", key=key, offset=77, **policies)
                np.testing.assert_array_equal(got.view(np.uint16), want | 0x8000)


@pytest.mark.parametrize("level", _kernels.isa_names())
def test_sums_whose_float32_is_not_exact_follow_the_law(level: str) -> None:
    """Terms of which one is 2^13 and more times the other: a float32 alone would round twice."""
    rng = np.random.default_rng(6)
    small = rng.integers(1, 0x1000, 1 << 17, dtype=np.uint16)
    large = rng.integers(0x4400, 0x7C00, small.size, dtype=np.uint16)
    for name in ("add", "subtract"):
        want = law(*exact_parts(name, large, small), drawn(9, 0, small.size))
        with isa(level):
            got = getattr(lp, name)(large.view(np.float16), small.view(np.float16), "float16", "stochastic", key=9)
        np.testing.assert_array_equal(got.view(np.uint16), want)


def roots() -> tuple[Ints, Ints, Ints]:
    """Of every positive finite number, the root cut off after 31 bits and more: fewer are compared with random ones."""
    m, e = parts(CODES[1:0x7C00])
    odd = e & 1
    whole = [math.isqrt(int(x) << (60 + int(o))) for x, o in zip(m, odd, strict=True)]
    return np.array(whole, np.int64), np.ones_like(m), (e - odd) // 2 - 30


@pytest.mark.parametrize("level", _kernels.isa_names())
def test_every_root_follows_the_law(level: str) -> None:
    given, x = roots(), CODES[1:0x7C00].view(np.float16)
    for key in range(8):
        want = law(*given, drawn(key, 3, x.size))
        with isa(level):
            got = lp.sqrt(x, "float16", "stochastic", key=key, offset=3)
        np.testing.assert_array_equal(got.view(np.uint16), want)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", ["sqrt", "divide"])
def test_one_result_with_every_word(name: str, level: str) -> None:
    """Among them 0 and the largest; exact ones, those next to a code, subnormals and those beyond the largest."""
    count = 1 << 19
    random = drawn(11, 0, count)
    assert len(np.unique(random)) > 65_000
    assert (random.min(), random.max()) == (0, 0xFFFF)
    if name == "sqrt":
        given, cases = roots(), [(c, c) for c in (1, 2, 3, 0x3C00, 0x4200, 0x4400, 0x7BFF, 0x3BFF, 0x3C01)]
    else:
        ties = [(0x3C01, 0x4000), (1, 0x4000), (3, 0x4000), (0x7BFF, 0x3BFF), (0x3C00, 0x4200), (0x7BFF, 1)]
        cases = [
            *ties,
            (0x0400, 0x3C01),
            (0x0401, 0x3C01),
            (0x3C01, 0x3C00),
            (1, 0x7BFF),
            (0x3BFF, 0x3C01),
            (1, 0x3C00),
        ]
    for a, b in cases:
        x, y = (np.full(count, c, np.uint16) for c in (a, b))
        parts_of = tuple(p[a - 1 : a] for p in given) if name == "sqrt" else exact_parts(name, x[:1], y[:1])
        want = law(*parts_of, random)
        operands = (x.view(np.float16), y.view(np.float16))[: 1 + (name == "divide")]
        with isa(level):
            got = getattr(lp, name)(*operands, "float16", "stochastic", key=11)
        np.testing.assert_array_equal(got.view(np.uint16), want)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_zeros_infinities_and_nan_are_those_of_float64(name: str, level: str) -> None:
    ends = np.concatenate([CORNERS, SPECIAL])
    ends = np.concatenate([ends, ends | 0x8000]).astype(np.uint16)
    a, b = (x.ravel() for x in np.meshgrid(ends, ends))
    x, y = a.view(np.float16), b.view(np.float16)
    with isa(level), np.errstate(all="ignore"):
        for key in range(4):
            got = getattr(lp, name)(x, y, "float16", "stochastic", key=key)
            want = getattr(lp, name)(x.astype(np.float64), y.astype(np.float64), "float16", "stochastic", key=key)
            lp.testing.assert_same_bits(got, want)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("name", [*FUNCTIONS, "square", "reciprocal", "sqrt", "gelu_gradient"])
def test_all_float16_operands_of_functions_give_the_rounded_float32_result(name: str, level: str) -> None:
    x = np.random.default_rng(4).permutation(CODES).view(np.float16)
    with isa(level):
        whole = lp.float32_op(name, x)
        for key in range(12):
            for how in ({}, {"overflow": "saturate", "infinite_input": "max"}, {"random_bits": 5}):
                options: dict[str, Any] = {"rounding": "stochastic", "key": key, "offset": 64 * key + key % 3, **how}
                lp.testing.assert_same_bits(
                    lp.float32_op(name, x, fmt="float16", **options), lp.astype(whole, "float16", **options)
                )


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("count", [1, 15, 17, 63, 64, 65, 255, 256, 257, 1000, 3001])
def test_any_length_offset_and_place(level: str, count: int) -> None:
    x, y, s = np.random.default_rng(count).normal(size=(3, count + 1)).astype(np.float16)
    with isa(level):
        for offset in (0, 1, 63, 64, 2**35 - 70):
            for name, operands in (("scaled_add", (x, y, s)), ("add", (x, y)), ("exp", (x,))):
                for first in (0, 1):
                    given = [v[first:] for v in operands]
                    how: dict[str, Any] = {"rounding": "stochastic", "key": 5, "offset": offset}
                    want = lp.astype(lp.float32_op(name, *given), "float16", **how)
                    lp.testing.assert_same_bits(lp.float32_op(name, *given, fmt="float16", **how), want)
                    into = given[0].copy()
                    lp.float32_op(name, into, *given[1:], fmt="float16", out=into, **how)
                    lp.testing.assert_same_bits(into, want)


# ---- results that the format holds ----

CHOOSING = ("identity", "negative", "absolute", "relu", "maximum", "minimum", "select", "step", "greater", "equal")
HELD = [
    (np.float16, "float16"),
    (np.float16, "float32"),
    (ml_dtypes.bfloat16, "bfloat16"),
    (ml_dtypes.float8_e4m3fn, "float16"),
    (ml_dtypes.float8_e4m3fn, "float8_e4m3fn"),
    (ml_dtypes.float8_e5m2, "float16"),
    (ml_dtypes.float8_e4m3fnuz, "float8_e4m3fnuz"),
    (np.float16, "bfloat16"),  # not held
    (np.float32, "float16"),
]


def every_value(dtype: Any) -> npt.NDArray[Any]:
    if dtype is np.float32:
        return np.random.default_rng(1).integers(0, 1 << 32, 60_000, dtype=np.uint32).view(np.float32)
    return np.arange(1 << 8 * np.dtype(dtype).itemsize).astype(f"u{np.dtype(dtype).itemsize}").view(dtype)


@pytest.mark.parametrize("name", CHOOSING)
@pytest.mark.parametrize(("dtype", "fmt"), HELD)
def test_what_chooses_an_operand_is_rounded_as_any_float32(name: str, dtype: Any, fmt: str) -> None:
    x = every_value(dtype)
    rng = np.random.default_rng(2)
    operands = [x, rng.permutation(x), rng.permutation(x)][: OPERATIONS[name]]
    for overflow in (None, "saturate"):
        how: dict[str, Any] = {"rounding": "stochastic", "key": 8, "offset": 5, "overflow": overflow}
        got = lp.float32_op(name, *operands, fmt=fmt, **how)
        with np.errstate(invalid="ignore"):  # signalling NaN
            wide = lp.float32_op(name, *(v.astype(np.float32) for v in operands))
        lp.testing.assert_same_bits(got, lp.astype(wide, fmt, **how))


@pytest.mark.parametrize("number", [0.0, -0.0, 0.5, 0.1, 1e-9, 70000.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["maximum", "minimum", "select"])
@pytest.mark.parametrize(("dtype", "fmt"), HELD)
def test_numbers_among_the_operands_are_rounded_as_any_float32(name: str, dtype: Any, fmt: str, number: float) -> None:
    x = every_value(dtype)
    how: dict[str, Any] = {"rounding": "stochastic", "key": 8, "offset": 5}
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = np.broadcast_to(np.float32(number), x.shape)
        operands = (x.astype(np.float32) > 0, x, number) if name == "select" else (x, number)
        chosen = [np.asarray(v, np.float32) for v in operands[:-1]]
        want = lp.astype(lp.float32_op(name, *chosen, wide), fmt, **how)
        given = tuple(v.astype(np.float32) if v.dtype == bool else v for v in operands[:-1])
    lp.testing.assert_same_bits(lp.float32_op(name, *given, number, fmt=fmt, **how), want)
    dtypes = (*(v.dtype for v in given), x.dtype)  # prepared for an array in the number's place
    call = prepare(name, dtypes, fmt, as_rounding("stochastic"))
    lp.testing.assert_same_bits(call((*given, number), 8, 5), want)


@pytest.mark.parametrize(("dtype", "fmt"), HELD)
def test_conversions_to_formats_that_hold_the_input_ask_for_a_key_all_the_same(dtype: Any, fmt: str) -> None:
    x = every_value(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = x.astype(np.float32)
    got, want = (lp.astype(v, fmt, "stochastic", key=3) for v in (x, wide))
    lp.testing.assert_same_bits(got, want)
    for _ in range(2):  # what the second takes is remembered
        with pytest.raises(ValueError, match="key"):
            lp.astype(x, fmt, "stochastic")
        with pytest.raises(ValueError, match="key"):
            lp.encode(x, fmt, "stochastic")
    if fmt != "float32":
        with pytest.raises(ValueError, match="key"):
            lp.float32_op("negative", x, fmt=fmt, rounding="stochastic")
