"""Tensors of torch on a GPU, on doubles of torch and CuPy: the same memory in and out, no copies, and CuPy's results.

What the real torch.from_dlpack and cupy.from_dlpack do with streams is not seen here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from tests.cuda_shim import torch_double
from tests.lowprec.backends.test_cuda_arrays import same

RNG = np.random.default_rng(3)


@pytest.fixture
def torch(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """torch's part played over CuPy's double."""
    monkeypatch.setitem(sys.modules, "torch", torch_double)
    return torch_double


def tensor(cupy: ModuleType, x: Any) -> Any:
    """A NumPy array as a tensor on the GPU."""
    return torch_double.Tensor(cupy.asarray(x), getattr(torch_double, lp.as_format(x.dtype).name))


def same_tensor(got: Any, want: Any) -> None:
    assert isinstance(got, torch_double.Tensor)
    assert str(got.dtype) == f"torch.{want.dtype.name}"
    same(got.codes.view(want.dtype), want)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2], ids=str)
def test_in_every_dtype_and_out(dtype: Any, cupy: ModuleType, torch: Any) -> None:
    x = RNG.standard_normal((4, 16)).astype(dtype)
    there = tensor(cupy, x)
    for fmt in ("float8_e4m3fn", "bfloat16", "float16"):
        same_tensor(lp.astype(there, fmt, "stochastic", key=1), lp.astype(x, fmt, "stochastic", key=1))
    same_tensor(lp.exp(there), lp.exp(x))
    same_tensor(lp.add(there, there, "float16"), lp.add(x, x, "float16"))
    same_tensor(lp.reduce_sum(there, 1, accumulate="float16"), lp.reduce_sum(x, 1, accumulate="float16"))
    same_tensor(lp.encode(there, "float8_e4m3fn"), lp.encode(x, "float8_e4m3fn"))
    same_tensor(lp.hadamard(there, key=1), lp.hadamard(x, key=1))
    y = x.reshape(1, 4, 4, 4)
    image = tensor(cupy, y)
    same_tensor(lp.conv2d(image, image), lp.conv2d(y, y))
    same_tensor(lp.to_blocks(there, "mxfp8_e4m3").dequantize(), lp.to_blocks(x, "mxfp8_e4m3").dequantize())


def test_products_and_what_out_gets(cupy: ModuleType, torch: Any) -> None:
    a, b = RNG.standard_normal((5, 8)).astype(np.float32), RNG.standard_normal((8, 6)).astype(np.float32)
    out = tensor(cupy, np.zeros((5, 6), ml_dtypes.bfloat16))
    cupy.calls.clear()
    assert lp.matmul(tensor(cupy, a), tensor(cupy, b), accumulate="bfloat16", out=out) is out
    assert cupy.calls["copy"] == cupy.calls["get"] == 0
    same_tensor(out, lp.matmul(a, b, accumulate="bfloat16"))


def test_what_is_refused(cupy: ModuleType, torch: Any) -> None:
    x = tensor(cupy, np.ones((2, 4), np.float32))
    with pytest.raises(TypeError, match="torch has no dtype float8_e3m4: take round's values, or encode's codes"):
        lp.astype(x, "float8_e3m4")
    with pytest.raises(TypeError, match="move them together"):
        lp.matmul(x, np.ones((4, 2), np.float32))
    x.requires_grad = True
    with pytest.raises(BufferError, match=r"requires a gradient, which no call here follows, is not taken: x.detach"):
        lp.round(x, "float16")
    with pytest.raises(TypeError, match=r"give out.detach"):
        lp.round(tensor(cupy, np.ones((2, 4), np.float32)), "float16", out=x)
