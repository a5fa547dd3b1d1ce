"""round, astype, encode, decode as calls: dtypes, shapes, out, offset, policies, and what they refuse."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import _kernels
from lowprec.values.rounding import MODES

X = np.array([0.1, -3.0, 65520.0, 65519.996, 1e-8, -0.0, np.inf, np.nan], np.float32)


def test_astype_and_round_of_the_documented_examples(backend: str) -> None:
    half = lp.astype(X, "float16")
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, np.array([0.1, -3, np.inf, 65504, 0, -0.0, np.inf, np.nan], np.float16))
    rounded = lp.round(X, "float16")
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, half.astype(np.float32))
    x = np.array([464, np.float32(464.00003), -464.00003, np.inf], np.float32)
    np.testing.assert_array_equal(lp.round(x, "float8_e4m3fn"), [448, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(lp.round(x, "float8_e4m3fn", overflow="saturate"), [448, 448, -448, 448])
    wished = lp.round(x, "float8_e4m3fn", overflow="saturate", infinite_input="nan")
    np.testing.assert_array_equal(wished, [448, 448, -448, np.nan])


def test_presets(backend: str) -> None:
    x = np.array([1e6, -1e6, np.inf, -np.inf, np.nan], np.float32)

    def rounded(fmt: str, overflow: str) -> list[float]:
        return list(lp.round(x, fmt, overflow=overflow))

    np.testing.assert_equal(rounded("float16", "ieee"), [np.inf, -np.inf, np.inf, -np.inf, np.nan])
    np.testing.assert_equal(rounded("float16", "satfinite"), [65504, -65504, 65504, -65504, np.nan])
    np.testing.assert_equal(rounded("float16", "ipu"), [65504, -65504, 65504, -65504, np.nan])
    np.testing.assert_equal(rounded("f143", "satfinite"), [240, -240, 240, -240, np.nan])
    np.testing.assert_equal(rounded("f143", "ipu"), [240, -240, np.nan, np.nan, np.nan])
    np.testing.assert_equal(rounded("float32", "ipu"), x)
    kept = lp.round(x, "f143", overflow="ipu", infinite_input="max")
    np.testing.assert_equal(list(kept), [240, -240, 240, -240, np.nan])


def test_python_and_the_kernels_have_the_same_modes() -> None:
    assert tuple(_kernels.modes()) == MODES


@pytest.mark.parametrize("mode, want", [("toward_zero", 65504), ("odd", 65504), ("down", 65504), ("up", np.inf)])
def test_modes_directed_inward_never_overflow(mode: str, want: float, backend: str) -> None:
    x = np.array([1e30, -1e30], np.float32)
    mirrored = {"up": 65504, "down": np.inf}.get(mode, want)
    np.testing.assert_array_equal(lp.round(x, "float16", mode), [want, -mirrored])


def test_flush_comes_after_rounding(backend: str) -> None:
    below = np.float32(np.nextafter(np.float32(2.0**-14), np.float32(0)))
    x = np.array([below, -below, 2.0**-15, -(2.0**-15)], np.float32)
    got = lp.round(x, "float16", flush=True)
    np.testing.assert_array_equal(got, [2.0**-14, -(2.0**-14), 0, 0])
    np.testing.assert_array_equal(np.signbit(got), [False, True, False, True])


@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero", "stochastic"])
def test_a_largest_value_that_is_subnormal_is_flushed(backend: str, mode: str) -> None:
    low = lp.FloatFormat("low", 1, 2)  # the top exponent is taken by infinity and NaN
    x = np.array([9, -9, low.max, -low.max, np.inf, -np.inf], np.float32)
    kept = lp.round(x, low, mode, key=1, overflow="saturate", infinite_input="max")
    np.testing.assert_array_equal(kept, low.max * np.sign(x))
    got = lp.encode(x, low, mode, key=1, overflow="saturate", infinite_input="max", flush=True)
    np.testing.assert_array_equal(got, [0, low.sign_bit] * 3)


@pytest.mark.parametrize("overflow, want", [("saturate", 448), ("nan", np.nan), (None, np.nan)])
def test_an_infinity_without_a_place_counts_as_an_overflow(backend: str, overflow: Any, want: float) -> None:
    x = np.array([np.inf, -np.inf, 1e9, -1e9], np.float32)
    got = lp.round(x, "float8_e4m3fn", overflow=overflow)
    np.testing.assert_array_equal(got, [want, -want, want, -want])
    np.testing.assert_array_equal(lp.round(x[:2], "float16", overflow="saturate"), x[:2])
    np.testing.assert_array_equal(lp.round(x[:2], "float8_e4m3fnuz", overflow="ipu"), [np.nan, np.nan])


def test_fnuz_formats_have_no_negative_zero(backend: str) -> None:
    codes = lp.encode(np.array([-0.0, -1e-9, np.nan], np.float32), "float8_e4m3fnuz")
    np.testing.assert_array_equal(codes, [0, 0, 0x80])


def test_e8m0(backend: str) -> None:
    x = np.array([3.0, 6.0, 0.0, -1.0, np.nan, 1e-45, 2.0**127, np.inf], np.float32)
    want = [2, 8, np.nan, np.nan, np.nan, 2.0**-127, 2.0**127, np.nan]
    np.testing.assert_array_equal(lp.round(x, "float8_e8m0fnu"), np.array(want, np.float32))


FLOATS = ["f2", "f4", "f8", *(n for n in dir(ml_dtypes) if n.startswith(("float", "bfloat")))]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fmt", lp.formats.values(), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("mode", ["nearest_even", "up", "stochastic"])
def test_every_dtype_into_every_format(dtype: str, fmt: lp.FloatFormat, mode: str) -> None:
    """Every value of a dtype, against the same values as float64, and against the reference on some."""
    np_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if np_dtype.itemsize < 4:
        x = np.arange(1 << 8 * np_dtype.itemsize, dtype=f"u{np_dtype.itemsize}")[:: 1 if np_dtype.itemsize == 1 else 37]
        x = x[x < 1 << lp.as_format(np_dtype).bits].view(np_dtype)
    else:
        rng = np.random.default_rng(0)
        x = (rng.standard_normal(500) * 2.0 ** rng.integers(-40, 40, 500)).astype(np_dtype)
    with np.errstate(invalid="ignore"):  # numpy warns of signalling NaNs
        exact = x.astype(np.float64)
    if fmt.nan_code is None:
        x, exact = x[~np.isnan(exact)], exact[~np.isnan(exact)]
    codes = lp.encode(x, fmt, mode, key=1)
    np.testing.assert_array_equal(codes, lp.encode(exact, fmt, mode, key=1))
    with lp.testing.backend("reference"):
        np.testing.assert_array_equal(codes[:100], lp.encode(x[:100], fmt, mode, key=1))
    own = lp.as_format(np_dtype)
    if own.contains(fmt) or fmt.contains(own):
        rounded = lp.round(x, fmt, mode, key=1)
        assert rounded.dtype == np_dtype
        np.testing.assert_array_equal(rounded.astype(np.float64), lp.decode(codes, fmt).astype(np.float64))
    if fmt.contains(own):
        np.testing.assert_array_equal(lp.round(x, fmt, mode, key=1).astype(np.float64), exact)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
@pytest.mark.parametrize("mode", MODES)
def test_integers_are_exact_then_rounded_once(dtype: str, mode: str) -> None:
    info = np.iinfo(dtype)
    near = [v for p in (1 << 11, 1 << 24, 1 << 53, 1 << 60, 1 << 63) for v in (p - 1, p, p + 1, p + p // 2 + 1, -p - 1)]
    x = np.array([v for v in [0, 1, info.min, info.max, info.max // 3, *near] if info.min <= v <= info.max], dtype)
    for fmt in ("float64", "float32", "bfloat16", "float8_e5m2", "float8_e8m0fnu", lp.p3109(8, 3, signed=False)):
        for bits in (16, 32) if mode == "stochastic" else (16,):
            got = lp.encode(x, fmt, mode, key=2, random_bits=bits, overflow="saturate")
            with lp.testing.backend("reference"):
                want = lp.encode(x, fmt, mode, key=2, random_bits=bits, overflow="saturate")
            np.testing.assert_array_equal(got, want)


def test_integers_into_storage() -> None:
    assert lp.astype(np.array([2**53 + 1]), "float32")[0] == np.float32(2**53)
    assert lp.astype(7, "float16") == np.float16(7)
    assert lp.astype([1, 2], "bfloat16").dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (7, 5), (2, 3, 4)])
def test_shapes(shape: tuple[int, ...], backend: str) -> None:
    x = (np.arange(np.prod(shape, dtype=int), dtype=np.float32) / 7).reshape(shape)
    for call in (lp.round, lp.astype, lp.encode):
        got = call(x, "float8_e5m2", "stochastic", key=1)
        assert isinstance(got, np.ndarray)
        assert got.shape == shape
    assert lp.decode(lp.encode(x, "float16"), "float16").shape == shape


def test_scalars_give_scalars() -> None:
    assert isinstance(lp.round(0.1, "float16"), np.float64)
    assert lp.round(0.1, "float16") == np.float64(np.float16(0.1))
    assert isinstance(lp.astype(np.float32(0.1), "float16"), np.float16)
    assert lp.encode(1.0, "float8_e4m3fn") == 0x38
    assert lp.decode(0x38, "float8_e4m3fn") == 1.0


def test_indices_are_in_c_order_whatever_the_strides() -> None:
    x = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
    want = lp.round(x, "float8_e5m2", "stochastic", key=1)
    np.testing.assert_array_equal(lp.round(np.asfortranarray(x), "float8_e5m2", "stochastic", key=1), want)
    wide = np.zeros((40, 60), np.float32)
    wide[:, ::2] = x
    np.testing.assert_array_equal(lp.round(wide[:, ::2], "float8_e5m2", "stochastic", key=1), want)
    back = lp.round(x[::-1, ::-1], "float8_e5m2")[::-1, ::-1]
    np.testing.assert_array_equal(back, lp.round(x, "float8_e5m2"))
    np.testing.assert_array_equal(lp.round(np.broadcast_to(x[0], (3, 30)), "float16")[1], lp.round(x[0], "float16"))


def test_out() -> None:
    x = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    want = lp.astype(x, "float16", "stochastic", key=1)
    out = np.empty(300, np.float16)
    assert lp.astype(x, "float16", "stochastic", key=1, out=out) is out
    lp.testing.assert_same_bits(out, want)
    spaced = np.zeros((300, 2), np.float16)[:, 1]
    assert lp.astype(x, "float16", "stochastic", key=1, out=spaced) is spaced
    lp.testing.assert_same_bits(spaced, want)
    place = x.copy()
    assert lp.round(place, "float16", "stochastic", key=1, out=place) is place
    np.testing.assert_array_equal(place, want.astype(np.float32))
    shared = np.concatenate([x, x[:1]])
    expected = lp.round(shared[:-1], "float16")
    lp.round(shared[:-1], "float16", out=shared[1:])
    np.testing.assert_array_equal(shared[1:], expected)
    decoded = np.empty(300, np.float32)
    assert lp.decode(want, "float16", out=decoded) is decoded
    np.testing.assert_array_equal(decoded, want.astype(np.float32))


def test_out_that_does_not_fit_is_refused() -> None:
    x = np.zeros(3, np.float32)
    with pytest.raises(TypeError, match="out must be an array of float16, not float32"):
        lp.astype(x, "float16", out=np.empty(3, np.float32))
    with pytest.raises(ValueError, match=r"out has shape \(4,\), the result \(3,\)"):
        lp.astype(x, "float16", out=np.empty(4, np.float16))
    frozen = np.empty(3, np.float16)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        lp.astype(x, "float16", out=frozen)


def test_read_only_foreign_and_byte_swapped_inputs() -> None:
    x = np.linspace(-2, 2, 50, dtype=np.float32)
    want = lp.round(x, "float8_e4m3fn")
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(lp.round(frozen, "float8_e4m3fn"), want)
    np.testing.assert_array_equal(lp.round(x.astype(">f4"), "float8_e4m3fn"), want)

    class Foreign:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
            return x

    class Exporter:
        def __dlpack__(self, **kwargs: Any) -> Any:
            return x.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> Any:
            return x.__dlpack_device__()

    np.testing.assert_array_equal(lp.round(Foreign(), "float8_e4m3fn"), want)
    np.testing.assert_array_equal(lp.round(Exporter(), "float8_e4m3fn"), want)  # type: ignore[arg-type]


def test_subclasses_stay_what_they_are() -> None:
    masked = np.ma.masked_array(np.array([0.1, 0.2], np.float32), mask=[False, True])
    got = lp.round(masked, "float8_e4m3fn")
    assert isinstance(got, np.ma.MaskedArray)
    np.testing.assert_array_equal(got.mask, masked.mask)


def test_exact_random_bits() -> None:
    x = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    got = lp.encode(x, "bfloat16", "stochastic", key=1, random_bits="exact")
    np.testing.assert_array_equal(got, lp.encode(x, "bfloat16", "stochastic", key=1, random_bits=16))
    got = lp.encode(x, "float16", "stochastic", key=1, random_bits="exact")
    np.testing.assert_array_equal(got, lp.encode(x, "float16", "stochastic", key=1, random_bits=32))
    with pytest.raises(ValueError, match="more than 32 random bits"):
        lp.round(np.array([2.0**-60], np.float32), "float16", "stochastic", key=1, random_bits="exact")
    lp.encode(np.array([2**39 + 1]), "bfloat16", "stochastic", key=1, random_bits="exact", overflow="saturate")
    with pytest.raises(ValueError, match="more than 32 random bits"):
        lp.encode(np.array([2**62 + 1]), "bfloat16", "stochastic", key=1, random_bits="exact")
    lp.round(np.array([1.5, np.nan, np.inf, 0.0]), "float16", "stochastic", key=1, random_bits="exact")


def test_nan_into_a_format_without_nan(backend: str) -> None:
    with pytest.raises(ValueError, match="NaN cannot be represented in float4_e2m1fn"):
        lp.encode(np.array([1.0, np.nan], np.float32), "float4_e2m1fn")


def test_decode_of_every_kind_of_codes(backend: str) -> None:
    assert lp.decode(np.array([1, 2], np.int64), "float8_e5m2").dtype == np.float32
    assert lp.decode(np.zeros(2, np.float16), "float16").dtype == np.float32
    assert lp.decode(np.zeros(2, np.uint64), "float64").dtype == np.float64
    with pytest.raises(ValueError, match=r"codes of float6_e2m3fn must be in \[0, 64\)"):
        lp.decode(np.array([64], np.uint8), "float6_e2m3fn")
    with pytest.raises(ValueError, match="must be in"):
        lp.decode(np.array([-1]), "float16")
    with pytest.raises(TypeError, match="decode needs integer codes"):
        lp.decode(np.zeros(2, np.float32), "float16")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("float16", "closest"), "unknown rounding 'closest'; allowed are nearest_even, nearest_away"),
        (("halves",), "unknown format 'halves'.*; known are"),
        (("float16", "stochastic"), "stochastic rounding needs key="),
    ],
)
def test_unknown_names(arguments: tuple[str, ...], message: str) -> None:
    for call in (lp.round, lp.astype, lp.encode):
        with pytest.raises(ValueError, match=message):
            call(X, *arguments)


def test_policies_the_format_cannot_express() -> None:
    for fmt, policy in (("float8_e4m3fn", {"overflow": "infinity"}), ("float8_e4m3fn", {"overflow": "ieee"})):
        with pytest.raises(ValueError, match="needs a format with infinity; float8_e4m3fn has none"):
            lp.round(X, fmt, **policy)
    with pytest.raises(ValueError, match="needs a format with NaN; float4_e2m1fn has none"):
        lp.encode(X[:2], "float4_e2m1fn", infinite_input="nan")
    with pytest.raises(ValueError, match="unknown overflow 'clip'; allowed are infinity, nan, saturate, ieee"):
        lp.round(X, "float16", overflow="clip")
    with pytest.raises(ValueError, match="unknown infinite_input 'drop'; allowed are keep, nan, max"):
        lp.round(X, "float16", infinite_input="drop")
    for bits in (0, 33, "all", 2.5):
        with pytest.raises(ValueError, match=r"random_bits must be an integer of 1 to 32 .*'exact'"):
            lp.round(X, "float16", "stochastic", key=1, random_bits=bits)


@pytest.mark.parametrize("dtype", ["?", "F", "D", "g", "O", "U3", "M8[s]"])
def test_dtypes_that_cannot_be_rounded(dtype: str) -> None:
    with pytest.raises(TypeError, match=r"cannot round .*; allowed are floating-point"):
        lp.astype(np.zeros(2).astype(dtype), "float16")


def test_results_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="int64 cannot hold float16; use astype or encode"):
        lp.round(np.array([1]), "float16")
    with pytest.raises(TypeError, match="float16 cannot hold bfloat16's values; use astype"):
        lp.round(np.zeros(2, np.float16), "bfloat16")
    with pytest.raises(TypeError, match="tfloat32 has no storage dtype; use encode"):
        lp.astype(X, "tfloat32")
    assert lp.encode(X, "tfloat32").dtype == np.uint32


def test_offset_and_key_arguments() -> None:
    with pytest.raises(ValueError, match="offset must be an integer"):
        lp.round(X, "float16", "stochastic", key=1, offset=-1)
    with pytest.raises(ValueError, match=r"a key must be an integer in \[0, 2\^64\)"):
        lp.round(X, "float16", "stochastic", key=-1)
    np.testing.assert_array_equal(
        lp.round(X, "float8_e5m2", "stochastic", key=lp.Key(5)), lp.round(X, "float8_e5m2", "stochastic", key=5)
    )


def test_decode_of_floats_that_are_no_codes() -> None:
    with pytest.raises(TypeError, match="needs integer codes, not float64"):
        lp.decode(np.array([1.0]), "tfloat32")
    with pytest.raises(TypeError, match="needs integer codes or an array of float16, not float64"):
        lp.decode(np.array([1.0]), "float16")


EXTREME = [
    *(lp.FloatFormat(f"e11m{m}", 11, m) for m in (1, 5, 7)),  # emin -1022, subnormals below float64's
    lp.FloatFormat("e10m8b1000", 10, 8, 1000),
    lp.FloatFormat("e11m3b1024", 11, 3, 1024, nan="top"),  # from here on for the reference
    lp.FloatFormat("e11m5b1062", 11, 5, 1062),
    lp.FloatFormat("e11m2 normal", 11, 2, subnormals=False),
    lp.p3109(11, 1, signed=False),
]


def test_a_format_that_only_the_reference_knows_says_so_once() -> None:
    fmt = lp.FloatFormat("slow", 11, 3, bias=1060)
    with pytest.warns(RuntimeWarning, match="slow reaches below float64's normal values: the reference computes it"):
        lp.round(np.ones(2), fmt)
    lp.round(np.ones(3), fmt)
    lp.add(1.0, 2.0, fmt)


@pytest.mark.filterwarnings("ignore:.*the reference computes it")
@pytest.mark.parametrize("fmt", EXTREME, ids=lambda fmt: fmt.name)
def test_formats_as_wide_as_float64_are_exact_to_the_ends(fmt: lp.FloatFormat) -> None:
    codes = np.concatenate([np.arange(300), np.arange(fmt.max_code - 300, fmt.max_code + 1)]).astype(fmt.code_dtype)
    if not fmt.subnormals:
        codes = codes[(codes == 0) | (codes >= fmt.min_normal_code)]
    values = np.array([fmt.value_of(int(code)) for code in codes])
    np.testing.assert_array_equal(lp.decode(codes, fmt), values)
    between = values[:-1] + np.diff(values) * 0.75  # exact wherever the distance is at least 2^-1072
    some = (np.diff(codes) == 1) & (np.diff(values) >= 2.0**-1072)
    for mode in MODES:
        np.testing.assert_array_equal(lp.encode(values, fmt, mode, key=1), codes)
        np.testing.assert_array_equal(lp.round(values, fmt, mode, key=1), values)
    for mode, step in (("nearest_even", 1), ("toward_zero", 0), ("up", 1), ("down", 0)):
        np.testing.assert_array_equal(lp.encode(between[some], fmt, mode), codes[:-1][some] + step)
    assert lp.add(values[1], values[1], fmt) == 2 * values[1]
    if not fmt.within_kernels and fmt.signed:
        with pytest.raises(ValueError, match="partial sums are float32, which lacks some of its values"):
            lp.matmul(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), accumulate=fmt, out_format="float32")
