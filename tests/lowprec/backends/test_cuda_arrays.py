"""The cuda backend on CuPy's double: the kernels' source, compiled by g++, against the reference and the cpu backend.

It has no GPU: launches, streams and speed are not tested here.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from lowprec import backends
from lowprec.values.rounding import MODES
from tests.lowprec.oracle import interesting

SHORT = [fmt for fmt in lp.formats.values() if fmt.bits <= 8]
CUSTOM = [
    lp.FloatFormat("e6m9", 6, 9),
    lp.FloatFormat("e3m0", 3, 0, nan="negative_zero", infinities=False),
    lp.FloatFormat("e4m3_coarse", 4, 3, subnormals=False),
    lp.p3109(8, 4),
    lp.p3109(6, 3, signed=False),
]
WIDE = [lp.float16, lp.bfloat16, lp.tfloat32, lp.float32, lp.float64]
OFFSETS = (0, 1, 2, 63, 64, 65, 2**32 - 5, 2**40 + 3)

Array = npt.NDArray[Any]


def same(got: Any, want: Array) -> None:
    """Equal bits, shape and dtype; got is the double's array."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(bits(host(got)), bits(want))


def host(x: Any) -> Array:
    """The elements of the double's array, or of one on a device."""
    return np.asarray(x.host if hasattr(x, "host") else x.get())


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def values_for(fmt: lp.FloatFormat, most: int = 400) -> Array:
    """Points that matter to a format, NaN last where it has one."""
    points = interesting(fmt) if fmt.bits <= 16 else np.float32([0, -0.0, 1, -1.1, 1e-45, 3.4e38, np.inf, -np.inf])
    step = max(1, points.size // most) | 1
    some = np.concatenate([points[::step], points[-2:]])
    return some if fmt.nan_code is None else np.append(some, np.float32(np.nan))


@pytest.mark.parametrize("mode", MODES)
def test_codes_are_the_references(mode: str, device_arrays: ModuleType) -> None:
    for fmt in (*SHORT, *CUSTOM, *WIDE):
        x = values_for(fmt)
        got = lp.encode(device_arrays.asarray(x), fmt, mode, key=7, offset=3)
        with backends.backend("reference"):
            same(got, lp.encode(x, fmt, mode, key=7, offset=3))


@pytest.mark.parametrize("overflow", ["ieee", "satfinite", "ipu", "nan"])
def test_policies_and_flush_are_the_cpus(overflow: str, device_arrays: ModuleType) -> None:
    for fmt, mode in itertools.product((lp.float16, lp.float8_e5m2, lp.float8_e4m3), ("nearest_even", "stochastic")):
        x = np.append(interesting(fmt)[::7], np.float32(np.nan))
        arguments: dict[str, Any] = {"overflow": overflow, "flush": True, "key": 2**64 - 1}
        same(lp.encode(device_arrays.asarray(x), fmt, mode, **arguments), lp.encode(x, fmt, mode, **arguments))


@pytest.mark.parametrize("random_bits", range(1, 33))
def test_any_number_of_random_bits_at_any_offset(random_bits: int, device_arrays: ModuleType) -> None:
    x = np.random.default_rng(random_bits).standard_normal(201).astype(np.float32)
    for offset in OFFSETS:
        arguments: dict[str, Any] = {"key": 5, "random_bits": random_bits, "offset": offset}
        got = lp.encode(device_arrays.asarray(x), "float8_e4m3fn", "stochastic", **arguments)
        same(got, lp.encode(x, "float8_e4m3fn", "stochastic", **arguments))


@pytest.mark.parametrize("mode", ["stochastic_half", "stochastic_even"])
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float16", "float4_e2m1fn", "bfloat16"])
def test_few_bit_modes(fmt: str, mode: str, device_arrays: ModuleType) -> None:
    x = values_for(lp.as_format(fmt))
    whole = np.random.default_rng(1).integers(-(2**62), 2**62, 301)
    for random_bits in (1, 3, 16):
        how: dict[str, Any] = {"random_bits": random_bits, "key": 4, "offset": 9}
        for array in (x, x.astype(np.float64)[::-2], whole >> 20, whole):
            same(lp.encode(device_arrays.asarray(array), fmt, mode, **how), lp.encode(array, fmt, mode, **how))
    same(lp.round(device_arrays.asarray(x), fmt, mode, key=1), lp.round(x, fmt, mode, key=1))
    # Just below ties of float32's finer grid, which the nearest doubles are.
    ties = np.repeat(2**62 + np.array([1, 3]) * 2**37 - 1, 50)
    how = {"random_bits": 1, "key": 4}
    same(lp.encode(device_arrays.asarray(ties), "float32", mode, **how), lp.encode(ties, "float32", mode, **how))


@pytest.mark.parametrize("size", [1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 40_000])
def test_any_size_and_chunking(size: int, cupy: ModuleType) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    whole = lp.astype(cupy.asarray(x), "float16", "stochastic", key=1)
    same(whole, lp.astype(x, "float16", "stochastic", key=1))
    cut = size // 3
    for start, stop in ((0, cut), (cut, size)):
        part = lp.astype(cupy.asarray(x[start:stop]), "float16", "stochastic", key=1, offset=start)
        same(part, whole.host[start:stop])


FLOATS = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu)


INTO = ["float8_e8m0fnu", "float4_e2m1fn", "float16", "bfloat16", "float32", "float64"]
INTEGERS = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)]
CONVERSIONS = [
    pytest.param(dtype, name, mode, marks=[pytest.mark.slow] * ((place + other) % 3 != turn % 3))
    for turn, mode in enumerate(("nearest_even", "stochastic"))
    for place, dtype in enumerate(FLOATS)
    for other, name in enumerate(INTO)
]
"""Every pair in two modes, each a kernel to compile; a third of them, in which each of both is met, are not slow."""
INTEGER_MODES = [
    pytest.param(dtype, mode, marks=[pytest.mark.slow] * (dtype != "i8" and place % len(MODES) != turn))
    for place, dtype in enumerate(INTEGERS)
    for turn, mode in enumerate(MODES)
]
"""Every integer in every mode, each a kernel; those that are not slow have every mode for int64, one for the others."""


@pytest.mark.parametrize("dtype, name, mode", CONVERSIONS, ids=str)
def test_every_dtype_in_and_the_same_dtype_out(dtype: Any, name: str, mode: str, device_arrays: ModuleType) -> None:
    rng = np.random.default_rng(4)
    x = (np.abs(rng.standard_normal(300)) * 2.0 ** rng.integers(-12, 12, 300)).astype(dtype)
    same(lp.astype(device_arrays.asarray(x), name, mode, key=3), lp.astype(x, name, mode, key=3))
    if dtype != ml_dtypes.float8_e8m0fnu:  # whose grid does not hold float4_e2m1fn's
        same(
            lp.round(device_arrays.asarray(x), "float4_e2m1fn", mode, key=3), lp.round(x, "float4_e2m1fn", mode, key=3)
        )


@pytest.mark.parametrize("dtype, mode", INTEGER_MODES)
def test_integers_are_exact_then_rounded_once(dtype: str, mode: str, device_arrays: ModuleType) -> None:
    info = np.iinfo(dtype)
    some = np.random.default_rng(0).integers(info.min, info.max, 300, dtype, endpoint=True)
    x = np.concatenate([some, np.array([0, 1, info.min, info.max, info.max - 1], dtype)])
    same(lp.encode(device_arrays.asarray(x), "float16", mode, key=8), lp.encode(x, "float16", mode, key=8))
    if mode == "down":
        same(lp.encode(device_arrays.asarray(x), "float64", mode), lp.encode(x, "float64", mode))


def layouts(x: Array) -> dict[str, Array]:
    """Views of a (6, 10, 14) array that are not C-contiguous runs, or begin at an odd place."""
    return {
        "transposed": x.T,
        "reversed": x[::-1, :, ::-1],
        "every other": x[::2, 1::3],
        "one column": x[:, :, 5],
        "odd start": x.reshape(-1)[1:],
        "broadcast": np.broadcast_to(x[:, :1], x.shape),
        "scalar": x[2, 3, 4],
        "empty": x[:, :0],
        "ones": x[:1, None, :, 3:4],
    }


@pytest.mark.parametrize("name", layouts(np.zeros((6, 10, 14))))
@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
def test_any_layout(name: str, mode: str, cupy: ModuleType) -> None:
    x = np.random.default_rng(9).standard_normal((6, 10, 14)).astype(np.float32)
    on_device = cupy.asarray(x)
    view = on_device._like(np.asarray(layouts(on_device.host)[name]))
    want = lp.encode(view.host, "bfloat16", mode, key=3, offset=11)
    got = lp.encode(view, "bfloat16", mode, key=3, offset=11)
    same(got, np.asarray(want))
    same(lp.decode(got, "bfloat16"), lp.decode(np.asarray(want), "bfloat16"))


def test_out_of_any_layout_and_in_place(cupy: ModuleType) -> None:
    x = np.random.default_rng(9).standard_normal((40, 30)).astype(np.float32)
    room = cupy.asarray(np.zeros((40, 60), np.float16))
    out = room[:, ::2]
    assert lp.astype(cupy.asarray(x), "float16", "stochastic", key=1, out=out) is out
    same(out, lp.astype(x, "float16", "stochastic", key=1))
    assert not room.host[:, 1::2].any()
    itself = cupy.asarray(x).T
    assert lp.round(itself, "float8_e5m2", "stochastic", key=1, out=itself) is itself
    same(itself, lp.round(x.T, "float8_e5m2", "stochastic", key=1))
    values = cupy.asarray(np.zeros((30, 40), np.float64)).T
    codes = cupy.asarray(lp.encode(x.astype(np.float64), "float64"))
    same(lp.decode(codes, "float64", out=values), x.astype(np.float64))


@pytest.mark.parametrize("fmt", [*SHORT, *CUSTOM, lp.float16, lp.bfloat16], ids=lambda fmt: fmt.name)
def test_decode_of_every_code(fmt: lp.FloatFormat, device_arrays: ModuleType) -> None:
    codes = np.arange(1 << fmt.bits).astype(fmt.code_dtype)
    want = lp.decode(codes, fmt)
    same(lp.decode(device_arrays.asarray(codes), fmt), want)
    if fmt.bits == 8 * codes.itemsize:
        same(lp.decode(device_arrays.asarray(codes[1:].view(f"i{codes.itemsize}")), fmt), want[1:])


def test_arrays_in_storage_dtypes_know_their_format(device_arrays: ModuleType) -> None:
    x = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    narrow = lp.astype(device_arrays.asarray(x), "float8_e4m3fn")
    assert narrow.dtype == ml_dtypes.float8_e4m3fn
    same(lp.decode(narrow, narrow.dtype), lp.round(x, "float8_e4m3fn"))
    same(narrow.view(np.uint8), lp.encode(x, "float8_e4m3fn"))


def test_nothing_is_copied_and_nothing_waits(cupy: ModuleType) -> None:
    x = cupy.asarray(np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)).T
    codes = cupy.asarray(np.zeros((64, 64), np.uint8))
    out = cupy.asarray(np.zeros((64, 64), np.float32))
    cupy.calls.clear()
    lp.encode(x, "float8_e4m3fn", "stochastic", key=1, out=codes)
    lp.decode(codes, "float8_e4m3fn", out=out)
    assert cupy.calls == {"launch": 2}
    lp.astype(x, "float16")
    assert cupy.calls == {"launch": 3, "alloc": 1}
    lp.encode(x[:0], "float16", out=cupy.asarray(np.zeros((0, 64), np.uint16)))
    assert cupy.calls["launch"] == 3


def test_formats_without_nan_wait_to_refuse_it(cupy: ModuleType) -> None:
    x = np.ones(1000, np.float32)
    lp.encode(cupy.asarray(x), "float4_e2m1fn")
    assert cupy.calls["get"] == 1
    x[777] = np.nan
    for layout in (cupy.asarray(x), cupy.asarray(np.stack([x, x]))[:, ::-1]):
        with pytest.raises(ValueError, match="NaN cannot be represented in float4_e2m1fn"):
            lp.encode(layout, "float4_e2m1fn")
    cupy.calls.clear()
    lp.encode(cupy.asarray(np.ones(1000, np.int32)), "float4_e2m1fn")
    assert cupy.calls["get"] == 0


def test_codes_wider_than_the_format_are_refused(cupy: ModuleType) -> None:
    good = np.arange(16, dtype=np.uint8)
    same(lp.decode(cupy.asarray(good), "float4_e2m1fn"), lp.decode(good, "float4_e2m1fn"))
    for codes in (np.append(good, np.uint8(16)), np.append(good, np.uint8(255))[::-1]):
        with pytest.raises(ValueError, match=r"codes of float4_e2m1fn must be in \[0, 16\)"):
            lp.decode(cupy.asarray(np.zeros(codes.size, np.uint8))._like(codes), "float4_e2m1fn")
    with pytest.raises(TypeError, match="needs uint8 codes or an array of float8_e5m2, not int64"):
        lp.decode(cupy.asarray(np.arange(4)), "float8_e5m2")


def test_bad_arguments_say_what_is_allowed(cupy: ModuleType) -> None:
    x = cupy.asarray(np.ones((4, 6), np.float32))
    with pytest.raises(TypeError, match="out must be a CuPy array of float16, not ndarray"):
        lp.astype(x, "float16", out=np.empty((4, 6), np.float16))
    with pytest.raises(TypeError, match="out must be a CuPy array of float16, not float32"):
        lp.astype(x, "float16", out=x)
    with pytest.raises(ValueError, match=r"out has shape \(6, 4\), the result \(4, 6\)"):
        lp.round(x, "float16", out=cupy.asarray(np.ones((6, 4), np.float32)))
    square = cupy.asarray(np.ones((4, 4), np.float32))
    with pytest.raises(ValueError, match="out shares memory with the input"):
        lp.round(square, "float16", out=square.T)
    broadcast = x._like(np.broadcast_to(np.ones(6, np.float32), (4, 6)))
    with pytest.raises(ValueError, match="several elements in one place"):
        lp.round(x, "float16", out=broadcast)
    with pytest.raises(ValueError, match="needs key="):
        lp.round(x, "float16", "stochastic")
    with pytest.raises(ValueError, match="look at every float64 on the GPU"):
        lp.round(cupy.asarray(np.ones(3)), "float16", "stochastic", key=1, random_bits="exact")
    same(
        lp.round(x, "bfloat16", "stochastic", key=1, random_bits="exact"),
        lp.round(x.host, "bfloat16", "stochastic", key=1, random_bits="exact"),
    )


def test_what_a_gpu_does_not_do_says_what_it_does(device_arrays: ModuleType) -> None:
    x = device_arrays.asarray(np.ones(4, np.float32))
    with pytest.raises(ValueError, match="stochastic_even to float8_e8m0fnu runs on NumPy arrays; on the GPU there is"):
        lp.encode(x, "float8_e8m0fnu", "stochastic_even", key=1)
    wide = lp.FloatFormat("e11m3b1024", 11, 3, 1024)
    for call in (lambda: lp.encode(x, wide), lambda: lp.decode(device_arrays.asarray(np.ones(3, np.uint16)), wide)):
        with pytest.raises(ValueError, match="reaches below float64's normal values and runs on NumPy arrays only"):
            call()


def test_a_dtype_that_cupy_cannot_hold_names_encode(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(cupy.ndarray):  # type: ignore[misc,name-defined]
        def __init__(self, shape: Any, dtype: Any, memptr: Any = None) -> None:
            if np.dtype(dtype).name.startswith("float8"):
                raise ValueError("Unsupported dtype")
            super().__init__(shape, dtype, memptr)

    x = cupy.asarray(np.ones(5, np.float32))
    monkeypatch.setattr(cupy, "ndarray", Older)
    x.__class__ = Older
    with pytest.raises(TypeError, match="cannot hold float8_e5m2: use encode"):
        lp.astype(x, "float8_e5m2")


def test_numpy_arrays_are_not_touched_by_the_door(cupy: ModuleType) -> None:
    x = np.ones(5, np.float32)
    assert isinstance(lp.round(x, "float16"), np.ndarray)
    assert cupy.calls == {}
    with backends.backend("cuda"):
        assert isinstance(lp.round(x, "float16"), np.ndarray)
    assert cupy.calls["launch"] == 1
    with pytest.raises(AttributeError, match="the cuda backend has rounding, arithmetic and sums, but no matmul"):
        backends.cuda.matmul  # noqa: B018
