"""Arrays of other libraries in, NumPy out, and every way to name a format."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
import lowprec.testing as lpt
from lowprec import statistics
from lowprec._dlpack import NARROW, from_dlpack
from lowprec.scaling.blocks import to_blocks
from lowprec.scaling.tensor import to_scaled


class OnlyDlpack:
    """An array of a library that knows nothing but DLPack; `code` overrides the type code, as a narrow dtype would.

    Its data may be said to begin some bytes behind where the pointer points.
    """

    def __init__(self, array: np.ndarray, code: int | None = None, device: int = 1, behind: int = 0) -> None:
        self._array, self._code, self._device, self._behind = array, code, device, behind

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        tensor = pointer(capsule, b"dltensor")
        if self._code is not None:
            ctypes.c_uint8.from_address(tensor + 20).value = self._code
        ctypes.c_uint64.from_address(tensor).value -= self._behind
        ctypes.c_uint64.from_address(tensor + 40).value += self._behind
        return capsule


class OnlyArray:
    """An array of a library that knows nothing but `__array__`."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._array


X = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
CALLS: dict[str, Callable[[Any], Any]] = {
    "round": lambda x: lp.round(x, "float16"),
    "astype": lambda x: lp.astype(x, "float8_e4m3fn", "stochastic", key=1),
    "encode": lambda x: lp.encode(x, "float4_e2m1fn"),
    "to_blocks": lambda x: to_blocks(x, "mxfp8_e4m3").dequantize(),
    "to_scaled": lambda x: to_scaled(x, "float8_e5m2fnuz").dequantize(),
    "shares": lambda x: np.array(statistics.shares(x, "float8_e4m3fn")),
    "ulp_error": lambda x: statistics.ulp_error(x, X, "float16"),
    "snr": lambda x: statistics.signal_to_noise_ratio(X, x),
    "histogram": lambda x: statistics.exponent_histogram(x).counts,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", [OnlyDlpack, OnlyArray])
def test_foreign_arrays_give_the_same_numpy_result(call: str, kind: Any) -> None:
    want, got = CALLS[call](X), CALLS[call](kind(X))
    assert type(got) is type(want)
    lpt.assert_same_bits(got, want)


@pytest.mark.parametrize("code", NARROW)
def test_narrow_dtypes_come_through_dlpack(code: int) -> None:
    fmt = lp.formats[NARROW[code]]
    codes = np.arange(256, dtype=np.uint8).reshape(8, 32)
    if fmt.bits == 16:
        codes = codes.astype(np.uint16) << 8
    for view in (codes, codes[::2, ::-3], codes.T, codes[3:4, 5], codes[:0], codes[::-1]):
        got = from_dlpack(OnlyDlpack(view, code))
        assert got.dtype == fmt.dtype
        lpt.assert_same_bits(got, view.view(fmt.dtype))
    if fmt.nan_code is not None and fmt != lp.float8_e8m0fnu:
        rounded = lp.round(OnlyDlpack(codes, code), fmt)
        lpt.assert_same_bits(rounded, codes.view(fmt.dtype))


def test_a_view_keeps_its_memory_and_is_written_only_where_that_is_asked() -> None:
    codes = np.full(4, 0x3F80, np.uint16)
    got, own = from_dlpack(OnlyDlpack(codes, 4)), from_dlpack(OnlyDlpack(codes, 4), writable=True)
    codes[:] = 0x4000
    assert got.tolist() == [2, 2, 2, 2]
    own[1] = 3
    assert codes[1] == 0x4040
    with pytest.raises(ValueError, match="read-only"):
        got[0] = 1
    del codes
    assert got[1] == own[1] == 3


def test_an_offset_into_the_memory_is_followed() -> None:
    codes = np.arange(64, dtype=np.uint16) << 8
    for view in (codes[20:40], codes[40:20:-2]):
        lpt.assert_same_bits(from_dlpack(OnlyDlpack(view, 4, behind=24)), view.view(ml_dtypes.bfloat16))
        own = from_dlpack(OnlyDlpack(view, behind=24), writable=True)
        own[0] ^= 3
        assert own[0] == view[0]


def test_what_dlpack_cannot_give_says_why() -> None:
    with pytest.raises(TypeError, match="OnlyDlpack lives on DLPack device 2, not on the CPU"):
        lp.round(OnlyDlpack(X, device=2), "float16")
    with pytest.raises(TypeError, match="type code 17 of 8 bits and 1 lanes, which has no NumPy"):
        lp.round(OnlyDlpack(np.zeros(3, np.uint8), 17), "float16")
    with pytest.raises(TypeError, match="complex"):
        lp.round(OnlyDlpack(np.zeros(3, complex)), "float16")


CODES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
FOREIGN: dict[str, Callable[..., Any]] = {
    "round": lambda x, y: lp.round(x, "fp16"),
    "astype": lambda x, y: lp.astype(x, "bfloat16", "stochastic", key=3, offset=5),
    "encode": lambda x, y: lp.encode(x, "e4m3"),
    "decode": lambda x, y: lp.decode(lp.encode(x, "e4m3"), "e4m3"),
    "add": lambda x, y: lp.add(x, y, "fp16"),
    "fma": lambda x, y: lp.fma(x, 2.0, y, "bf16"),
    "exp": lambda x, y: lp.exp(x, "half", random_bits=8),
    "float32_op": lambda x, y: lp.float32_op("maximum", x, y),
    "matmul": lambda x, y: lp.matmul(x, y.T, accumulate="fp16", rounding="stochastic", key=1),
    "matmul of vectors": lambda x, y: lp.matmul(x[0], y[0]),
    "conv2d": lambda x, y: lp.conv2d(x.reshape(1, 6, 8, 5), y[:, :5].reshape(1, 3, 5, 2)),
    "sum": lambda x, y: lp.sum(x, "fp16"),
    "mean": lambda x, y: lp.mean(x, "fp16", axis=0),
    "dot": lambda x, y: lp.dot(x, y),
    "norm": lambda x, y: lp.norm(x),
    "cumulative_sum": lambda x, y: lp.cumulative_sum(x, axis=1),
    "reduce_sum": lambda x, y: lp.reduce_sum(x, 0),
    "reduce_max": lambda x, y: lp.reduce_max(x),
    "all_reduce": lambda x, y: lp.all_reduce(x, lp.Collective("tree", wire="fp16")),
    "scatter_add": lambda x, y: lp.scatter_add(np.arange(6) % 2, x, 2),
    "pack": lambda x, y: lp.unpack(lp.pack(lp.encode(x, "e2m1"), "e2m1"), "e2m1", 40),
    "hadamard": lambda x, y: lp.hadamard(x, block=8, key=1),
    "to_scaled": lambda x, y: to_scaled(x, "e4m3", scale="auto", axis=0).dequantize(),
    "to_blocks": lambda x, y: to_blocks(x, "nvfp4").dequantize(),
    "scaled_matmul": lambda x, y: lp.scaled_matmul(to_scaled(x, "e4m3", scale="auto"), y.T),
    "scaled_matmul of blocks": lambda x, y: lp.scaled_matmul(to_blocks(x, "nvfp4"), to_blocks(y.T, "nvfp4", axis=0)),
    "ulp_error": lambda x, y: statistics.ulp_error(x, y, "float16"),
}


@pytest.mark.parametrize("call", FOREIGN)
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_the_same_kind_comes_out_with_the_same_bits(library: str, call: str) -> None:
    module = pytest.importorskip(library)
    kind, make = (module.Tensor, module.tensor) if library == "torch" else (module.Array, module.numpy.asarray)
    y = X[::-1].copy()
    got, want = FOREIGN[call](make(X), make(y)), np.asarray(FOREIGN[call](X, y))
    assert isinstance(got, np.ndarray if (library, call) == ("jax", "ulp_error") else kind)  # JAX holds no float64
    assert str(got.dtype).removeprefix("torch.") == str(want.dtype)
    back = from_dlpack(got) if library == "torch" else np.asarray(got)
    lpt.assert_same_bits(back, want)


def test_jax_arrays() -> None:
    jnp = pytest.importorskip("jax.numpy")
    for dtype in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float8_e5m2):
        x = jnp.asarray(X, dtype)
        lpt.assert_same_bits(np.asarray(lp.astype(x, "float8_e4m3fn")), lp.astype(np.asarray(x), "float8_e4m3fn"))
    assert lp.encode(jnp.float32(1.5), jnp.bfloat16) == 0x3FC0
    into = np.zeros(X.shape, np.float16)
    for call in (lp.astype, lp.exp, lambda x, fmt, out: lp.add(x, x, fmt, out=out)):
        assert call(jnp.asarray(X), "float16", out=into) is into
        lpt.assert_same_bits(into, call(X, "float16", out=into.copy()))
    with pytest.raises(TypeError, match="out must be an array that can be written to, and those of JAX cannot"):
        lp.round(jnp.asarray(X), "fp16", out=jnp.asarray(X))
    with pytest.raises(TypeError, match="JAX holds no uint64 unless jax_enable_x64 is set"):
        lp.encode(jnp.asarray(X), "float64")


def test_torch_tensors_in_every_dtype_as_operands_and_out() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(X).abs()
    for name in (*CODES, "float16", "float32"):
        dtype, fmt = getattr(torch, name), lp.formats[name]
        want = lp.astype(np.abs(X), fmt)
        made = lp.astype(x, dtype)
        assert made.dtype == dtype
        lpt.assert_same_bits(from_dlpack(made), want)
        lpt.assert_same_bits(from_dlpack(lp.round(made.T, fmt)), want.T)
        into = torch.zeros(X.shape[::-1], dtype=dtype).T
        assert lp.astype(x, fmt, out=into) is into
        lpt.assert_same_bits(from_dlpack(into), want)
        into = torch.zeros(X.shape, dtype=dtype)
        assert lp.astype(np.abs(X), fmt, out=into) is into
        lpt.assert_same_bits(from_dlpack(into), want)
    with pytest.raises((BufferError, RuntimeError), match="detach"):
        lp.round(torch.ones(3, requires_grad=True), "float16")
    with pytest.raises(TypeError, match=r"out is a tensor that requires a gradient.*out\.detach\(\)"):
        lp.round(X, "fp16", out=torch.zeros(X.shape, requires_grad=True))
    with pytest.raises(TypeError, match="torch has no dtype float8_e3m4: take round's values, encode's codes"):
        lp.astype(x, "float8_e3m4")
    with pytest.raises(TypeError, match="out must be an array of float16, not float32"):
        lp.astype(x, "fp16", out=torch.zeros(X.shape))


def test_torch_tensors_of_sums_and_products_go_into_out() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(X)
    product, total, added = torch.zeros(6, 6), torch.zeros(6), torch.zeros(X.shape, dtype=torch.bfloat16)
    assert lp.matmul(x, x.T, out=product) is product
    assert lp.sum(x, axis=1, out=total) is total
    assert lp.add(x, x, "bf16", out=added) is added
    assert lp.exp(x, "bf16", out=added) is added
    lpt.assert_same_bits(product.numpy(), lp.matmul(X, X.T))
    lpt.assert_same_bits(total.numpy(), lp.sum(X, axis=1))
    lpt.assert_same_bits(from_dlpack(added), lp.exp(X, "bf16"))


SPECS = [
    ("float16", lp.float16, np.float16, np.dtype("float16"), np.dtype(">f2"), "f2", "fp16", "half", "FP16", "e5m10"),
    ("float8_e4m3fn", "e4m3", "E4M3", ml_dtypes.float8_e4m3fn),
    ("bfloat16", "bf16", "BF16", lp.bfloat16, ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)),
    ("float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz, "f143", lp.float8_e4m3fnuz),
    ("float32", float32 := np.float32, np.dtype(float32), lp.float32),
    ("float4_e2m1fn", ml_dtypes.float4_e2m1fn, lp.float4_e2m1fn),
    ("float64", float, np.float64, np.dtype(float)),
]


@pytest.mark.parametrize("specs", SPECS, ids=lambda specs: specs[0])
def test_a_format_by_any_name(specs: tuple[Any, ...]) -> None:
    wide = X.astype(np.float64)
    want = lp.encode(wide, specs[0])
    for spec in specs[1:]:
        if isinstance(spec, str) and spec == "f2":
            with pytest.raises(ValueError, match=r"unknown format 'f2': did you mean .*; known are float64, float32"):
                lp.encode(wide, spec)
            continue
        lpt.assert_same_bits(lp.encode(wide, spec), want)
        lpt.assert_same_bits(lp.astype(wide, spec), lp.astype(wide, specs[0]))
        assert statistics.shares(wide, spec) == statistics.shares(wide, specs[0])
        lpt.assert_on_grid(lp.round(wide, spec, overflow="saturate"), spec)


@pytest.mark.parametrize("wrong", [np.int32, "int8", object, 16, None, complex])
def test_what_is_no_format(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="format"):
        lp.round(X, wrong)


def test_results_are_plain_numpy() -> None:
    assert isinstance(lp.round(1.5, "float16"), float)
    assert lp.astype([1.5, 2.5], "bfloat16").dtype == ml_dtypes.bfloat16
    assert isinstance(lp.encode(OnlyDlpack(X[0]), "float16"), np.ndarray)


def test_public_names_resolve_and_the_rare_ones_load_late() -> None:
    code = (
        "import sys, lowprec as lp\n"
        "late = 'values.axes values.windows values.column_sums values.block_format values.format_info'\n"
        "late += ' sums.ordered sums.reduce'\n"
        "late += ' sums.scatter convolution scaling arithmetic elementwise functions explanation statistics testing'\n"
        "loaded = [name for name in late.split() if 'lowprec.' + name in sys.modules]\n"
        "assert not loaded, loaded\n"
        "assert not [name for name in lp.__all__ if not hasattr(lp, name)]\n"
        "assert sorted(lp.__all__) == dir(lp)\n"
        "assert lp.testing.backend and lp.statistics.shares and lp.to_blocks([1.0], 'nvfp4')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="'lowprec' has no attribute 'to_block'"):
        lp.to_block  # noqa: B018


def test_no_module_takes_the_place_of_a_public_name() -> None:
    """Importing lowprec.x sets the attribute x of lowprec, so that a late x would be lost."""
    code = (
        "import pkgutil, importlib, types, lowprec as lp\n"
        "for package in (lp, lp.backends.cpu):\n"
        "    for found in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "        if not found.name.endswith('__main__'):\n"
        "            importlib.import_module(found.name)\n"
        "public = [getattr(p, n) for p in (lp, lp.backends.cpu) for n in p.__all__]\n"
        "modules = [x.__name__[8:] for x in public if isinstance(x, types.ModuleType)]\n"
        "assert modules == ['statistics', 'testing'], modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
