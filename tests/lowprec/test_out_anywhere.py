"""`out=` of every door: with gaps, turned and over what is still to be read, and nothing beside it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
import lowprec.testing as lpt

Array = npt.NDArray[Any]
Door = tuple[type[Any], Callable[[int], tuple[int, ...]], Callable[[Array, Any], Any]]
F32, F16, U8 = np.float32, np.float16, np.uint8


def square(k: int) -> tuple[int, ...]:
    return k, k


def image(k: int) -> tuple[int, ...]:
    return 1, k, k, 1


def scaled(x: Array, scale: Any = 1.0) -> lp.ScaledArray:
    return lp.ScaledArray(lp.float8_e5m2, x.view(ml_dtypes.float8_e5m2), 0 if scale != 1.0 else 3, scale)


KERNEL = np.ones((3, 3, 1, 1), F32)
DRAWN: dict[str, Any] = dict(rounding="stochastic", key=1)
# Of x, from its dtype and shape, the result in `out` (None: in a new array).
STRIDED: dict[str, Door] = {
    "round": (F32, square, lambda x, o: lp.round(x, "float16", **DRAWN, out=o)),
    "round, turned": (F32, square, lambda x, o: lp.round(x.T, "float16", out=o)),
    "astype, 8 bits": (F32, square, lambda x, o: lp.astype(x, "float8_e5m2", **DRAWN, out=o)),
    "astype, 16 bits": (F32, square, lambda x, o: lp.astype(x, "float16", out=o)),
    "astype, wider": (F16, square, lambda x, o: lp.astype(x, "float32", out=o)),
    "astype, few bits": (F32, square, lambda x, o: lp.astype(x, "float8_e5m2", "stochastic_half", key=1, out=o)),
    "encode": (F32, square, lambda x, o: lp.encode(x, "float6_e2m3fn", out=o)),
    "decode": (U8, square, lambda x, o: lp.decode(x, "float8_e5m2", out=o)),
    "add": (F32, square, lambda x, o: lp.add(x, x[::-1], "float16", out=o)),
    "add, broadcast": (F32, square, lambda x, o: lp.add(x[:1], x[:, :1], out=o)),
    "fma": (F32, square, lambda x, o: lp.fma(x, x[0], x.T, "float32", "toward_zero", out=o)),
    "float32_op": (F32, square, lambda x, o: lp.float32_op("scaled_add", x, x.T, 0.5, fmt="float16", **DRAWN, out=o)),
    "float32_op, broadcast": (F32, square, lambda x, o: lp.float32_op("add", x[:1], x[:, :1], out=o)),
    "exp": (F32, square, lambda x, o: lp.exp(x, out=o)),
    "sum": (F32, square, lambda x, o: lp.sum(x, axis=0, out=o)),
    "sum, pairwise": (F32, square, lambda x, o: lp.sum(x, "float16", axis=1, order="pairwise", out=o)),
    "mean": (F32, square, lambda x, o: lp.mean(x, axis=1, out=o)),
    "norm": (F32, square, lambda x, o: lp.norm(x, axis=1, out=o)),
    "cumulative_sum": (F32, square, lambda x, o: lp.cumulative_sum(x, axis=0, out=o)),
    "kahan_sum": (F32, square, lambda x, o: lp.kahan_sum(x, axis=0, out=o)),
    "dot": (F32, square, lambda x, o: lp.dot(x, x[::-1], axis=0, out=o)),
    "reduce_sum": (F32, square, lambda x, o: lp.reduce_sum(x, 0, out=o)),
    "reduce_sum, of none": (F32, square, lambda x, o: lp.reduce_sum(x, (), out=o)),
    "reduce_max": (F32, square, lambda x, o: lp.reduce_max(x, 0, out=o)),
    "reduce_part": (F32, lambda k: (2, k, k), lambda x, o: lp.reduce_part(x, accumulate="float16", out=o)),
    "sum_parts": (F32, lambda k: (3, k, k), lambda x, o: lp.sum_parts(x, fmt="float32", out=o)),
    "sum_parts, 16 bits": (F32, lambda k: (3, 2, k, k), lambda x, o: lp.sum_parts(x, fmt="bfloat16", out=o)),
    "sum_parts, drawn": (F16, lambda k: (3, k, k), lambda x, o: lp.sum_parts(x, fmt="float16", **DRAWN, out=o)),
    "matmul": (F32, square, lambda x, o: lp.matmul(x, x, out=o)),
    "matmul, 16 bits": (F16, square, lambda x, o: lp.matmul(x, x.T, accumulate="float16", **DRAWN, out=o)),
    "matmul, vector": (F32, square, lambda x, o: lp.matmul(x, x[0], out=o)),
    "matmul_part": (F32, lambda k: (2, k, k), lambda x, o: lp.matmul_part(x, x, out=o)),
    "scatter_add": (F32, square, lambda x, o: lp.scatter_add(np.arange(len(x)) % 3, x, 3, out=o)),
    "conv2d": (F32, image, lambda x, o: lp.conv2d(x, KERNEL, padding=1, out=o)),
    "input gradient": (F32, image, lambda x, o: lp.conv2d_input_gradient(x, KERNEL, x.shape[1:3], padding=1, out=o)),
    "weight gradient": (F32, image, lambda x, o: lp.conv2d_weight_gradient(x, x, (3, 3), padding=1, out=o)),
}
CONTIGUOUS: dict[str, Door] = {
    "to_scaled": (F32, square, lambda x, o: lp.to_scaled(x, "float8_e4m3fn", out=o).elements),
    "to_scaled, drawn": (F32, square, lambda x, o: lp.to_scaled(x, "float16", 1, **DRAWN, out=o).elements),
    "to_scaled, along an axis": (
        F32,
        square,
        lambda x, o: lp.to_scaled(x, "e4m3", scale="auto", axis=0, out=o).elements,
    ),
    "dequantize": (U8, square, lambda x, o: scaled(x).dequantize(out=o)),
    "dequantize, scaled": (U8, square, lambda x, o: scaled(x, 0.3).dequantize(np.float64, out=o)),
}


def operand(door: Door, k: int) -> Array:
    dtype, shape, _ = door
    rng = np.random.default_rng(k)
    if dtype is U8:
        return rng.integers(0, 120, shape(k)).astype(U8)
    return rng.standard_normal(shape(k)).astype(dtype)


GAPS: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "columns apart": lambda m, s: m[tuple(slice(n) for n in s[:-1])][..., : 2 * s[-1] : 2],
    "columns at the left": lambda m, s: m[tuple(slice(n) for n in s)],
    "rows apart": lambda m, s: m[tuple(slice(0, 2 * n, 2) for n in s[:-1])][..., : s[-1]],
    "backwards": lambda m, s: m[tuple(slice(n - 1, None, -1) for n in s)],
    "turned": lambda m, s: m[tuple(slice(n) for n in s[::-1])].T,
}


@pytest.mark.parametrize("name", STRIDED)
def test_gaps_stay_as_they_were(name: str, host_backend: str) -> None:
    x, call = operand(STRIDED[name], 6), STRIDED[name][2]
    want = np.asarray(call(x, None))
    for way, lay in GAPS.items():
        memory = np.full((14,) * want.ndim, 96).astype(want.dtype)
        out = lay(memory, want.shape)
        assert call(x, out) is out
        lpt.assert_same_bits(out, want)
        written = np.zeros(memory.shape, bool)
        lay(written, want.shape)[...] = True
        assert (memory[~written].astype(np.float64) == 96).all(), way


@pytest.mark.parametrize("name", [*STRIDED, *CONTIGUOUS])
@pytest.mark.parametrize("k", [8, 30, 300])
def test_what_is_still_to_be_read_is_kept(name: str, k: int, host_backend: str) -> None:
    """`out` begins before, at, in the middle of and at the end of an operand."""
    if host_backend == "reference" and k > 8:
        k = 5
    door = (STRIDED | CONTIGUOUS)[name]
    values, call = operand(door, k), door[2]
    want = np.asarray(call(values, None))
    begin = (want.nbytes + 63) // 64 * 64
    ends = begin + values.nbytes - want.nbytes
    places = [begin - want.nbytes // 2, begin, begin + 8, (begin + ends) // 2, ends, begin + values.nbytes - 8]
    for place in sorted({max(0, place) // 8 * 8 for place in places}):
        memory = np.full(begin + values.nbytes + want.nbytes, 3, U8)
        x = memory[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
        x[...] = values
        before = memory.copy()
        out = memory[place : place + want.nbytes].view(want.dtype).reshape(want.shape)
        call(x, out)
        lpt.assert_same_bits(out, want)
        memory[place : place + want.nbytes] = before[place : place + want.nbytes]
        assert np.array_equal(memory, before), place


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp4_e2m1", "mxint8", "nvfp4"])
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_over_what_they_are_made_of(name: str, axis: int, host_backend: str) -> None:
    """Elements and scales lie in x's memory; then the values over these."""
    values = np.random.default_rng(1).standard_normal((64, 64 if host_backend == "cpu" else 32)).astype(F32)
    want = lp.to_blocks(values, name, axis)

    def laid(memory: Array, elements: int, scales: int) -> lp.BlockArray:
        """What `want` is, with its elements and scales from these bytes of a memory on."""

        def at(begin: int, own: Array) -> Array:
            return memory[begin : begin + own.nbytes].view(own.dtype).reshape(own.shape)

        return replace(want, elements=at(elements, want.elements), scales=at(scales, want.scales))

    size = want.elements.nbytes
    for begin in (0, values.nbytes // 2, values.nbytes - size - want.scales.nbytes):
        x = values.copy()
        got = lp.to_blocks(x, name, axis, out=laid(x.reshape(-1).view(U8), begin, begin + size))
        lpt.assert_same_bits(got.elements.view(U8), want.elements.view(U8))
        lpt.assert_same_bits(got.scales.view(U8), want.scales.view(U8))
        assert got.dequantize(out=x) is x
        lpt.assert_same_bits(x, want.dequantize())
    for both in (False, True):  # the scales alone lie over what is read
        x, apart = values.copy(), np.zeros(values.nbytes, U8)
        mine = laid(x.reshape(-1).view(U8), 0, 4 * both)
        got = lp.to_blocks(x, name, axis, out=replace(mine, elements=laid(apart, 0, size).elements))
        lpt.assert_same_bits(got.elements.view(U8), want.elements.view(U8))
        lpt.assert_same_bits(got.scales.view(U8), want.scales.view(U8))
    with pytest.raises(ValueError, match=r"out\.elements and out\.scales share memory"):
        lp.to_blocks(values, name, axis, out=laid(np.zeros(2 * size, U8), 0, size - 1))


def test_no_operand_is_written_where_no_out_is_given() -> None:
    """Results that would be the operand itself, unchanged, are new arrays."""
    x = np.random.default_rng(0).standard_normal((8, 8)).astype(F32)
    before = x.copy()
    for call in (
        lambda: lp.round(x, "float32"),
        lambda: lp.astype(x, "float32"),
        lambda: lp.hadamard(x),
        lambda: lp.hadamard(x, axis=0, key=3, inverse=True),
        lambda: lp.cumulative_sum(x, axis=0),
        lambda: lp.reduce_sum(x, ()),
        lambda: lp.float32_op("identity", x),
        lambda: lp.decode(x, "float32"),
        lambda: lp.encode(x, "float32"),
        lambda: lp.matmul(x, np.eye(8, dtype=F32)),
        lambda: lp.to_scaled(x, "float32", 0).elements,
        lambda: lp.to_scaled(x, "float32", 0).dequantize(),
    ):
        result = call()
        assert not np.may_share_memory(result, x)
        lpt.assert_same_bits(x, before)
