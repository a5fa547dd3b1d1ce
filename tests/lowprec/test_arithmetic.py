"""add, subtract, multiply, divide, sqrt, fma, scaled_add: the exact result rounded once, whatever the format."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

import gmpy2
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import softfloatpy as sf
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from lowprec.values.rounding import MODES

COUNT = {"add": 2, "subtract": 2, "multiply": 2, "divide": 2, "sqrt": 1, "fma": 3, "scaled_add": 3}
FORMATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "f152", "float6_e3m2fn", "tfloat32"]


def corners(dtype: Any, count: int, seed: int) -> npt.NDArray[Any]:
    """Zeros, ones, ends of the range, infinities, NaN, and numbers of every exponent, small integers among them."""
    info = lp.finfo(dtype)
    rng = np.random.default_rng(seed)
    some = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        3.0,
        float(info.max),
        -float(info.max),
        float(info.tiny),
        math.inf,
        -math.inf,
        math.nan,
    ]
    some += [float(info.smallest_subnormal), -float(info.smallest_subnormal), 1.0 + float(info.eps)]
    scale = 2.0 ** rng.integers(-12, 12, count)
    wild = np.ldexp(rng.normal(size=count), rng.integers(info.minexp - 8, info.maxexp, count))
    x = np.concatenate([some, rng.normal(size=count) * scale, rng.integers(-8, 8, count), wild])
    with np.errstate(over="ignore", invalid="ignore"):
        return rng.permutation(x).astype(dtype)


def same(got: Any, want: Any) -> None:
    lp.testing.assert_same_bits(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize("name", COUNT)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_compiled_and_reference_agree(name: str, mode: str, dtype: Any) -> None:
    operands = [corners(dtype, 25, 10 * i + len(name)) for i in range(COUNT[name])]
    for fmt in FORMATS:
        policy: dict[str, Any] = {"overflow": "saturate"} if fmt == "float6_e3m2fn" else {}
        if fmt == "float6_e3m2fn":  # which has no NaN
            operands = [np.where(np.isfinite(x), x, 2).astype(dtype) for x in operands]
            if name in ("divide", "sqrt"):
                operands = [np.maximum(abs(x), dtype(0.25)) for x in operands]
            if name == "fma" or name == "scaled_add":
                policy["infinite_input"] = "max"
        function = getattr(lp, name)
        arguments = {"rounding": mode, "key": 7, "offset": 3, "random_bits": 9, **policy}
        got = function(*operands, fmt, **arguments)
        with lp.testing.backend("reference"):
            same(got, function(*operands, fmt, **arguments))


def exact(name: str, operands: list[float]) -> Fraction:
    a, *others = (Fraction(x) for x in operands)
    b, c = (*others, *(Fraction(0),) * 2)[:2]
    match name:
        case "add":
            return a + b
        case "subtract":
            return a - b
        case "multiply":
            return a * b
        case "divide":
            return a / b
        case "fma":
            return a * b + c
        case _:
            return a + b * c


def below_and_above(x: Fraction, fmt: lp.FloatFormat) -> tuple[Fraction, Fraction]:
    """The values of a format that enclose x, by bisection of its codes (an oracle that shares no code)."""
    low, high = 0, fmt.max_code + 1
    while high - low > 1:
        middle = (low + high) // 2
        if Fraction(fmt.value_of(middle)) <= abs(x):
            low = middle
        else:
            high = middle
    down = Fraction(fmt.value_of(low))
    up = down if down == abs(x) else Fraction(fmt.value_of(low + 1))
    return (down, up) if x >= 0 else (-up, -down)


REAL = st.floats(-1000, 1000, width=32, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-3)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "fma", "scaled_add"])
@settings(max_examples=60, deadline=None)
@given(values=st.lists(REAL, min_size=3, max_size=3), fmt=st.sampled_from(["bfloat16", "float32", "tfloat32"]))
def test_directed_results_enclose_the_exact_one_tightly(name: str, values: list[float], fmt: str) -> None:
    operands = values[: COUNT[name]]
    if name == "divide" and operands[1] == 0:
        return
    function = getattr(lp, name)
    low, high = below_and_above(exact(name, operands), lp.as_format(fmt))
    assert Fraction(float(function(*operands, fmt, "down"))) == low
    assert Fraction(float(function(*operands, fmt, "up"))) == high
    nearest = Fraction(float(function(*operands, fmt)))
    assert abs(nearest - exact(name, operands)) == min(exact(name, operands) - low, high - exact(name, operands))


def test_a_small_term_rounds_up_to_float16(host_backend: str) -> None:
    assert lp.add(np.float32(1), np.float32(2.0**-24), "float16", "up") == 1 + 2.0**-10
    assert lp.add(1.0, 2.0**-40, "float8_e4m3fn", "up") == 1.125
    assert lp.subtract(1.0, 2.0**-1074, "float16", "down") == 1 - 2.0**-11
    assert lp.fma(1 + 2.0**-52, 1 - 2.0**-53, -1.0, "float32", "up") == np.float32(2.0**-53)


def test_ties_that_round_twice_elsewhere(host_backend: str) -> None:
    """1 + 2^-11 + 2^-60: a hair above the tie of float16. Through float64 or float32 it would be the tie."""
    x = np.array([1 + 2.0**-11])
    assert lp.add(x, 2.0**-60, "float16") == 1 + 2.0**-10
    assert lp.add(x, -(2.0**-60), "float16") == 1.0
    assert lp.add(x, 0.0, "float16") == 1.0
    assert lp.fma(2.0**-30, 2.0**-30, x, "float16") == 1 + 2.0**-10


def test_signed_zeros(host_backend: str) -> None:
    x = np.array([1.5, 0.0, -0.0, 0.0, -0.0])
    y = np.array([-1.5, 0.0, -0.0, -0.0, 0.0])
    for fmt in ("float16", "float64"):
        np.testing.assert_array_equal(np.signbit(lp.add(x, y, fmt)), [0, 0, 1, 0, 0])
        np.testing.assert_array_equal(np.signbit(lp.add(x, y, fmt, "down")), [1, 0, 1, 1, 1])
        np.testing.assert_array_equal(np.signbit(lp.subtract(x, -y, fmt, "down")), [1, 0, 1, 1, 1])
        np.testing.assert_array_equal(np.signbit(lp.fma(x, 1.0, y, fmt, "down")), [1, 0, 1, 1, 1])
        np.testing.assert_array_equal(np.signbit(lp.multiply(x, y, fmt)), [1, 0, 0, 1, 1])
        np.testing.assert_array_equal(np.signbit(lp.sqrt(np.abs(x) * 0 * np.copysign(1, x), fmt)), [0, 0, 1, 0, 1])
    tiny = np.array([-(2.0**-100)])
    assert np.signbit(lp.multiply(tiny, 2.0**-100, "float16"))
    assert lp.multiply(tiny, 2.0**-100, "float16", "down") == -(2.0**-24)


def test_special_values(host_backend: str) -> None:
    inf, nan = math.inf, math.nan
    np.testing.assert_array_equal(
        lp.divide([1.0, -1.0, 0.0, inf], [0.0, 0.0, 0.0, inf], "float16"), [inf, -inf, nan, nan]
    )
    assert lp.divide(1.0, 0.0, "float16", overflow="satfinite") == 65504
    np.testing.assert_array_equal(lp.sqrt([-1.0, inf, nan], "float32"), [nan, inf, nan])
    np.testing.assert_array_equal(lp.fma([inf, 1e300], [0.0, 1e300], [1.0, -inf], "float32"), [nan, -inf])
    assert lp.multiply(1e300, 1e300, "float64", "toward_zero") == np.finfo(np.float64).max
    assert lp.multiply(1e300, 1e300, "float64", overflow="saturate") == np.finfo(np.float64).max
    assert lp.multiply(1e300, 1e300, "float64") == inf
    assert lp.multiply(300.0, 300.0, "float16", overflow="saturate") == 65504


WAYS = {"nearest_even": gmpy2.RoundToNearest, "toward_zero": gmpy2.RoundToZero, "up": gmpy2.RoundUp}


@pytest.mark.parametrize("mode", [*WAYS, "down"])
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "sqrt", "fma"])
def test_float64_results_against_mpfr(name: str, mode: str) -> None:
    function = {"multiply": gmpy2.mul, "divide": gmpy2.div}.get(name) or getattr(gmpy2, name)
    operands = [x[np.isfinite(x)][:90] for x in (corners(np.float64, 50, i) for i in range(COUNT[name]))]
    operands = [abs(x) for x in operands] if name == "sqrt" else operands
    got = getattr(lp, name)(*operands, "float64", mode)
    with gmpy2.context(gmpy2.ieee(64), round=WAYS.get(mode, gmpy2.RoundDown)):
        rows = zip(*(x.tolist() for x in operands), strict=True)
        want = np.array([float(function(*(gmpy2.mpfr(x) for x in row))) for row in rows])
    np.testing.assert_array_equal(got, want)


def test_float64_ties_away_from_zero(host_backend: str) -> None:
    a = np.array([1.0, 1 + 2.0**-52, -1.0, 2.0, -(1 + 2.0**-52)])
    b = np.array([2.0**-53, -(2.0**-53), 2.0**-54, 2.0**-52, -(2.0**-53)])
    want = [1 + 2.0**-52, 1 + 2.0**-52, -1.0, 2 + 2.0**-51, -(1 + 2.0**-51)]
    np.testing.assert_array_equal(lp.add(a, b, "float64", "nearest_away"), want)
    np.testing.assert_array_equal(lp.fma(b, 1.0, a, "float64", "nearest_away"), want)


def test_float16_against_softfloat() -> None:
    rng = np.random.default_rng(1)
    a, b, c = rng.integers(0, 1 << 16, (3, 4000), dtype=np.uint16)
    halves = [x.view(np.float16) for x in (a, b, c)]
    modes = {"nearest_even": sf.RoundingMode.NEAR_EVEN, "nearest_away": sf.RoundingMode.NEAR_MAX_MAG}
    modes |= {"toward_zero": sf.RoundingMode.MIN_MAG, "down": sf.RoundingMode.MIN, "up": sf.RoundingMode.MAX}
    functions = {"add": sf.f16_add, "subtract": sf.f16_sub, "multiply": sf.f16_mul, "divide": sf.f16_div}
    functions |= {"sqrt": sf.f16_sqrt, "fma": sf.f16_mul_add}
    for mode, way in modes.items():
        sf.set_rounding_mode(way)
        for name, function in functions.items():
            got = getattr(lp, name)(*halves[: COUNT[name]], "float16", mode)
            rows = zip(*((a, b, c)[: COUNT[name]]), strict=True)
            words = [function(*(sf.Float16.from_bytes(x.tobytes()[::-1]) for x in row)) for row in rows]
            want = np.array([int.from_bytes(w.to_bytes(), "big") for w in words], np.uint16).view(np.float16)
            nan = np.isnan(want)
            np.testing.assert_array_equal(np.isnan(got), nan)
            np.testing.assert_array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])
    sf.set_rounding_mode(sf.RoundingMode.NEAR_EVEN)


@pytest.mark.parametrize("bits", [1, 3, 16, 28, 32])
@pytest.mark.parametrize("fmt", ["float32", "float16", "float64"])
def test_stochastic_law_keeps_every_random_bit(bits: int, fmt: str) -> None:
    """The discarded fraction cut to n bits plus r / 2^n: from Fractions and the drawn bits alone."""
    rng = np.random.default_rng(bits)
    a, b = rng.normal(size=(2, 40)) * 2.0 ** rng.integers(-16, 4, (2, 40))
    a[0], b[0] = 1.0, 2.0**-70
    got = lp.multiply(a, b, fmt, "stochastic", key=5, random_bits=bits, offset=100)
    words = np.empty(40, np.uint32 if bits > 16 else np.uint16)
    lp.backends.current().random_words(2 if bits > 16 else 1, bits, 5, 100, words)
    target = lp.as_format(fmt)
    for x, y, value, r in zip(a.tolist(), b.tolist(), got.tolist(), words.tolist(), strict=True):
        true = abs(Fraction(x) * Fraction(y))
        exponent = max(math.frexp(float(true))[1] - 1, target.emin) - target.mantissa_bits
        quotient = true / Fraction(2) ** exponent
        assert abs(Fraction(value)) == math.floor(quotient + Fraction(r, 2**bits)) * Fraction(2) ** exponent


def test_shapes_dtypes_and_out(host_backend: str) -> None:
    a = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    got = lp.add(a, np.float16([1, 2, 3]), "float8_e5m2")
    assert got.dtype == ml_dtypes.float8_e5m2
    np.testing.assert_array_equal(got.astype(float), [[1, 3, 5], [4, 6, 8]])
    assert isinstance(lp.add(1, 2.5, "float16"), np.float16)
    assert lp.add(a[:0], a[:0], "float16").shape == (0, 3)
    same(lp.add(a.T, a.T, "float32"), (2 * a.astype(np.float32)).T)
    out = np.ones((2, 3), np.float32)
    assert lp.multiply(out, 3.0, "float32", out=out) is out
    assert out[0, 0] == 3
    strided = np.zeros((2, 6), np.float32)[:, ::2]
    assert lp.multiply(out, 2.0, "float32", out=strided) is strided
    assert strided[1, 2] == 6
    assert lp.add(np.float32([1.0]), 2.0**-9, "tfloat32").dtype == np.float32


def test_chunks_threads_and_offsets_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 100_000)).astype(np.float32)
    whole = lp.multiply(a, b, "bfloat16", "stochastic", key=3)
    with lp.num_threads(1):
        same(lp.multiply(a, b, "bfloat16", "stochastic", key=3), whole)
    parts = [
        lp.multiply(a[i : i + 999], b[i : i + 999], "bfloat16", "stochastic", key=3, offset=i)
        for i in range(0, 100_000, 999)
    ]
    same(np.concatenate(parts), whole)
    for isa in lp.testing.isa_names():
        with lp.testing.isa(isa):
            same(lp.multiply(a, b, "bfloat16", "stochastic", key=3), whole)
            same(lp.fma(a, b, a[::-1], "float32", "up"), lp.fma(a, b, a[::-1].copy(), "float32", "up"))


def test_refusals() -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(TypeError, match="int64"):
        lp.add(np.arange(3), x, "float16")
    with pytest.raises(ValueError, match="float64 does not hold"):
        lp.add(2**60 + 1, x, "float16")
    with pytest.raises(ValueError, match="needs key="):
        lp.add(x, x, "float16", "stochastic")
    with pytest.raises(ValueError, match="random_bits must be an integer of 1 to 32"):
        lp.add(x, x, "float16", "stochastic", key=1, random_bits="exact")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no NaN"):
        lp.divide(0.0, 0.0, "float4_e2m1fn")
    with pytest.raises(TypeError, match="unknown keywords"):
        lp.add(x, x, "float16", scale=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="out must be an array of float16"):
        lp.add(x, x, "float16", out=x)
    with pytest.raises(ValueError, match="out has shape"):
        lp.add(x, x, "float32", out=np.ones(4, np.float32))
    with pytest.raises(ValueError, match="unknown rounding"):
        lp.add(x, x, "float16", "closest")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="broadcast"):
        lp.add(x, np.ones(2, np.float32), "float16")


def test_operands_of_any_layout(host_backend: str) -> None:
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    want = np.array([[float(v) + 0.1 for v in row] for row in x]).astype(np.float16)
    crooked = np.frombuffer(b"\0" + x.tobytes(), np.float32, offset=1).reshape(3, 4) if sys.byteorder == "little" else x
    for operand in (x, x.astype(">f4"), x.astype(np.float64), np.asfortranarray(x), x[::-1][::-1], crooked):
        lp.testing.assert_same_bits(lp.add(operand, 0.1, "float16"), want)
        lp.testing.assert_same_bits(lp.add(0.1, operand, "float16"), want)
    row, column = x[0], x[:, :1].astype(ml_dtypes.bfloat16)
    lp.testing.assert_same_bits(lp.add(row, column, "float32"), row + column.astype(np.float32))
    many = x.reshape(1, 3, 1, 1, 1, 1, 1, 1, 1, 4)
    lp.testing.assert_same_bits(lp.multiply(many, 2, "float32"), many * 2)
    assert lp.add(x[:0], 1, "float16").shape == (0, 4)


@pytest.mark.parametrize("axes", [2, 8, 9, 12])
def test_many_axes_draw_as_one(axes: int, host_backend: str) -> None:
    x, how = np.random.default_rng(0).standard_normal(64).astype(np.float32), dict(key=3, offset=77)
    want = lp.add(x, x[0], "float16", "stochastic", **how)
    for view in (x.reshape(8, *(1,) * (axes - 2), 8), x.astype(np.float64).reshape(*(1,) * (axes - 2), 4, 16)):
        out = np.zeros(view.shape, np.float16)
        got = lp.add(view, x[0], "float16", "stochastic", **how)
        assert lp.add(view, x[0], "float16", "stochastic", out=out, **how) is out
        for result in (got, out):
            np.testing.assert_array_equal(result.reshape(-1).view(np.uint16), want.view(np.uint16))


def test_out_may_be_an_operand_or_have_gaps(host_backend: str) -> None:
    far = np.array([5e-324, 3.0, -(2.0**1023), 7.0])  # products that are left to the reference among others
    want = lp.multiply(far, far[::-1].copy(), "float64")
    for out in (far.copy(), np.zeros(8)[::2]):
        left = out if out.flags.c_contiguous else far
        right = left[::-1]
        assert lp.multiply(left, right, "float64", out=out) is out
        lp.testing.assert_same_bits(out, want)


def test_a_million_elements_in_threads_are_those_of_one() -> None:
    x = np.linspace(-1, 1, 1 << 20, dtype=np.float32)
    x[::1000] = np.nan
    options: dict[str, Any] = {"fmt": "float8_e5m2", "rounding": "stochastic", "key": 3, "offset": 17}
    with lp.num_threads(2):
        got = lp.multiply(x, 0.3, **options)
    with lp.num_threads(1):
        lp.testing.assert_same_bits(got, lp.multiply(x, 0.3, **options))
    lp.testing.assert_same_bits(got[70_001:70_100], lp.multiply(x[70_001:70_100], 0.3, **{**options, "offset": 70_018}))


def test_results_are_float32_where_no_format_is_named() -> None:
    x = np.array([1.5, 2.5], np.float16)
    for made in (lp.add(x, x), lp.subtract(x, x), lp.multiply(x, x), lp.divide(x, x), lp.sqrt(x), lp.fma(x, x, x)):
        assert made.dtype == np.float32
    for made in (lp.scaled_add(x, x, 2.0), lp.exp(x), lp.sum(x, 0), lp.matmul(x, x), lp.reduce_sum(x)):
        assert made.dtype == np.float32
