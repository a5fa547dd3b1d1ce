"""Convolutions of CuPy arrays and their gradients, on CuPy's double or a GPU: the bits of the cpu backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from tests.lowprec.backends.test_cuda_arrays import host, same

Array = npt.NDArray[Any]
RNG = np.random.default_rng(8)
WHERE: dict[str, dict[str, Any]] = {
    "plain": {},
    "same": {"padding": "same", "groups": 3},
    "strides": {"stride": (2, 3), "padding": ((2, 0), (1, 3)), "dilation": (1, 2)},
    "few positions": {"stride": (4, 4), "groups": 3, "layout": "NCHW"},
}
HALF: dict[str, Any] = {"accumulate": "float16", "group": 4, "rounding": "stochastic", "key": 7}
HOWS: dict[str, dict[str, Any]] = {
    "half": HALF,
    "float32": {"splits": 3},
    "parts": HALF | {"splits": 9, "stages": 2, "out_format": "bfloat16", "random_bits": 24},
    "whole positions": {"accumulate": "bfloat16", "group": None, "rounding": "up"},
}


def operands(where: dict[str, Any], dtype: Any = np.float32) -> tuple[Array, Array, Array]:
    """Images, a weight and a gradient."""
    groups = where.get("groups", 1)
    x, w = RNG.standard_normal((2, 9, 8, 6)).astype(dtype), RNG.standard_normal((3, 2, 6 // groups, 9)).astype(dtype)
    if where.get("layout") == "NCHW":
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    shape = lp.conv2d(x, w, **where).shape
    return x, w, RNG.standard_normal(shape).astype(dtype)


def passes(x: Any, w: Any, g: Any, **options: Any) -> list[Any]:
    """The convolution and its two gradients."""
    size, kernel = (x.shape[2:], w.shape[2:]) if options.get("layout") == "NCHW" else (x.shape[1:3], w.shape[:2])
    return [
        lp.conv2d(x, w, **options, offset=(3, 5)),
        lp.conv2d_input_gradient(g, w, size, **options),
        lp.conv2d_weight_gradient(x, g, kernel, **options),
    ]


def agree(cupy: ModuleType, arrays: tuple[Array, ...], **options: Any) -> None:
    for got, want in zip(passes(*map(cupy.asarray, arrays), **options), passes(*arrays, **options), strict=True):
        same(got, np.asarray(want))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("where", WHERE)
def test_the_cpus_bits(where: str, how: str, device_arrays: ModuleType) -> None:
    agree(device_arrays, operands(WHERE[where]), **WHERE[where], **HOWS[how])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fnuz], ids=str)
def test_every_kind_of_operand(dtype: Any, device_arrays: ModuleType) -> None:
    agree(device_arrays, operands(WHERE["same"], dtype), **WHERE["same"], **HALF)


def test_powers_of_two_are_operands(device_arrays: ModuleType) -> None:
    x, w, g = operands({})
    scales = np.arange(w.size, dtype=np.uint8).reshape(w.shape).view(ml_dtypes.float8_e8m0fnu)
    agree(device_arrays, (x, scales, g))


@pytest.mark.parametrize("blocks", [1, 3])
def test_squares_beyond_the_first_and_any_grid(blocks: int, cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    # More positions than a square has rows, more outputs than it has columns, and a grid that goes round.
    monkeypatch.setattr("lowprec.backends.cuda.device.BLOCKS_PER_PROCESSOR", blocks)
    x, w = RNG.standard_normal((2, 9, 13, 3)).astype(np.float16), RNG.standard_normal((2, 2, 3, 70)).astype(np.float16)
    g = RNG.standard_normal((2, 8, 12, 70)).astype(np.float16)
    agree(cupy, (x, w, g), **HALF | {"group": 2})


def test_padding_meets_infinities_and_missing_channels_nothing(device_arrays: ModuleType) -> None:
    x, w, g = operands({})
    w[0, 0, 0, 0], x[0, 0, 0, 1], g[0, 0, 0, 2] = np.inf, np.nan, -np.inf
    agree(device_arrays, (x, w, RNG.standard_normal((2, 9, 9, 9)).astype(np.float32)), padding=1)
    # -1e-8 is rounded to -0, which a product (+0) * (+0) in place of a missing channel would make +0.
    tiny, weight = np.full((1, 1, 2, 5), 1e-4, np.float16), np.full((1, 2, 5, 1), -0.0, np.float16)
    weight[0, 0, 0] = -1e-4
    got = lp.conv2d(*map(device_arrays.asarray, (tiny, weight)), accumulate="float16", group=4)
    same(got, np.full((1, 1, 1, 1), -0.0, np.float16))


def test_no_channels_no_images_and_no_terms(device_arrays: ModuleType) -> None:
    for shape, kernel in (((2, 4, 4, 0), (2, 2, 0, 3)), ((0, 4, 4, 2), (2, 2, 2, 3)), ((1, 4, 4, 2), (1, 1, 2, 3))):
        x, w = np.ones(shape, np.float32), np.ones(kernel, np.float32)
        # Under a stride of 3 most inputs are reached by no window of 1 x 1.
        agree(device_arrays, (x, w, np.asarray(lp.conv2d(x, w, stride=3))), stride=3, accumulate="float16")


def test_any_strides_in_and_out(device_arrays: ModuleType) -> None:
    x, w, _ = operands({})
    there = device_arrays.asarray(x), device_arrays.asarray(w)
    room = device_arrays.zeros((2, 7, 14, 9), np.float16)
    assert lp.conv2d(*there, out=room[:, :, ::2], **HALF) is not None
    same(room[:, :, ::2], np.asarray(lp.conv2d(x, w, **HALF)))
    same(room[:, :, 1::2], np.zeros((2, 7, 7, 9), np.float16))
    got = lp.conv2d(there[0][:, ::-1], there[1][::-1, :, ::2, 7::-1], groups=2, **HALF)
    same(got, np.asarray(lp.conv2d(x[:, ::-1], w[::-1, :, ::2, 7::-1], groups=2, **HALF)))


def test_out_may_be_an_operands_memory(device_arrays: ModuleType) -> None:
    x = RNG.standard_normal((1, 5, 5, 3)).astype(np.float32)
    w = RNG.standard_normal((3, 3, 3, 3)).astype(np.float32)
    there = device_arrays.asarray(x)
    assert lp.conv2d(there, device_arrays.asarray(w), padding=1, out=there) is there
    same(there, np.asarray(lp.conv2d(x, w, padding=1)))
    # Each phase of a stride writes a quarter of out, while the next ones still read the gradient.
    room = device_arrays.asarray(RNG.standard_normal((1, 5, 5, 3)).astype(np.float32))
    g = host(room)[:, 1:3, 1:3].copy()
    lp.conv2d_input_gradient(room[:, 1:3, 1:3], device_arrays.asarray(w), (5, 5), stride=2, out=room)
    same(room, np.asarray(lp.conv2d_input_gradient(g, w, (5, 5), stride=2)))


def test_nothing_waits_and_no_panel_is_made(cupy: ModuleType) -> None:
    x, w, g = map(cupy.asarray, operands({}))
    cupy.calls.clear()
    lp.conv2d(x, w, padding=1, **HALF)
    lp.conv2d_weight_gradient(x, g, (3, 2), **HALF)
    assert cupy.calls == {"launch": 4, "alloc": 4}  # parts and results
    cupy.calls.clear()
    lp.conv2d_input_gradient(g, w, (9, 8), **HALF)
    assert cupy.calls == {"launch": 2, "alloc": 2}


def test_what_is_refused(device_arrays: ModuleType) -> None:
    x, w, g = operands({})
    there = device_arrays.asarray(x)
    for call in (lambda: lp.conv2d(there, w), lambda: lp.conv2d_input_gradient(g, device_arrays.asarray(w), (9, 8)),
                 lambda: lp.conv2d_weight_gradient(there, g, (3, 2))):  # fmt: skip
        with pytest.raises(TypeError, match=r"lie on a GPU \(CuPy arrays\) and here: move them together"):
            call()
    with pytest.raises(ValueError, match="made by the sequential adder, not 'pairwise'"):
        lp.conv2d(there, device_arrays.asarray(w), adder="pairwise")
    with pytest.raises(TypeError, match="out must be a CuPy array of float32, not ndarray"):
        lp.conv2d(there, device_arrays.asarray(w), out=np.zeros((2, 7, 7, 9), np.float32))
    x[0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="a NaN arose"):
        lp.conv2d(device_arrays.asarray(x), device_arrays.asarray(w), out_format="float6_e2m3fn")
