"""Conversions that the machine does itself: results larger than the caches, ends of arrays, NaN of any payload."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import _kernels
from lowprec.testing.isa import isa

LARGE = (1 << 22) + 321  # elements; 16-bit results of so many are written past the caches


def numbers(count: int) -> np.ndarray[Any, Any]:
    """Floats of all kinds, NaN of many payloads and both signs among them."""
    bits = np.random.default_rng(2).integers(0, 1 << 32, count, dtype=np.uint32)
    return bits.view(np.float32)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_results_larger_than_the_caches(level: str, dtype: Any) -> None:
    x, step = numbers(LARGE), 100_003
    with isa(level), lp.num_threads(1):
        for first in (0, 3):
            whole = np.empty(LARGE + first, dtype)[first:]
            lp.astype(x, dtype, out=whole)
            parts = [lp.astype(x[i : i + step], dtype) for i in range(0, LARGE, step)]
            lp.testing.assert_same_bits(whole, np.concatenate(parts))
            back = np.empty(LARGE + first, np.float32)[first:]
            lp.decode(whole, dtype, out=back)
            lp.testing.assert_same_bits(back, np.concatenate([lp.decode(part, dtype) for part in parts]))


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("overflow", [None, "satfinite"])
def test_the_reference_agrees_at_every_length(level: str, dtype: Any, overflow: Any) -> None:
    x = numbers(300)
    x[::3] = np.random.default_rng(3).normal(size=100) * 2.0 ** np.arange(-50, 50)
    with lp.testing.backend("reference"):
        codes, values = lp.astype(x, dtype, overflow=overflow), lp.round(x, dtype, overflow=overflow)
        every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        decoded = lp.decode(every[::7], dtype)
    with isa(level):
        for count in (*range(70), 255, 256, 257, 300):
            lp.testing.assert_same_bits(lp.astype(x[:count], dtype, overflow=overflow), codes[:count])
            lp.testing.assert_same_bits(lp.round(x[:count], dtype, overflow=overflow), values[:count])
            lp.testing.assert_same_bits(lp.decode(every[::7][:count], dtype), decoded[:count])
        lp.testing.assert_same_bits(lp.decode(np.ascontiguousarray(every[::7]), dtype), decoded)


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("count", [3, 40, 600])
def test_nan_of_any_payload_is_one(level: str, dtype: Any, count: int) -> None:
    """Rounding, arithmetic and decoding give the positive quiet NaN."""
    payloads = np.random.default_rng(count).integers(0x7F800001, 0x80000000, count, dtype=np.uint32)
    x = (payloads | np.where(np.arange(count) % 2, 1 << 31, 0).astype(np.uint32)).view(np.float32)
    code = {np.float16: 0x7E00, ml_dtypes.bfloat16: 0x7FC0}[dtype]
    stored = ((x.view(np.uint32) >> 16) & 0x8001 | code).astype(np.uint16).view(dtype)
    with isa(level):
        assert (lp.astype(x, dtype).view(np.uint16) == code).all()
        assert (lp.round(x, dtype).view(np.uint32) == 0x7FC00000).all()
        for name in ("negative", "add", "maximum"):
            operands = (stored,) if name == "negative" else (stored, stored[::-1].copy())
            assert (lp.float32_op(name, *operands, fmt=dtype).view(np.uint16) == code).all()
        for got in (lp.add(x, x, "float32"), lp.multiply(x, 2.0, "float32")):
            assert (got.view(np.uint32) == 0x7FC00000).all()
        assert (lp.decode(stored, dtype).view(np.uint32) == 0x7FC00000).all()


@pytest.mark.parametrize("level", _kernels.isa_names())
@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"])
def test_codes_of_eight_bits_through_the_table(level: str, fmt: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    with isa(level):
        want = np.concatenate([lp.decode(codes[i : i + 8], fmt) for i in range(0, 256, 8)])
        many = np.tile(codes, 9)[5:]
        lp.testing.assert_same_bits(lp.decode(many, fmt), np.tile(want, 9)[5:])


def test_results_go_where_they_are_told() -> None:
    x = np.linspace(-3, 3, 5000, dtype=np.float32)
    want = lp.round(x, "bfloat16")
    lp.testing.assert_same_bits(lp.round(x, "bfloat16", out=x), want)
    both = np.zeros(4000, np.float32)
    both[:2000] = np.linspace(1, 2, 2000)
    want = lp.round(both[:2000].copy(), "float16")
    lp.testing.assert_same_bits(lp.round(both[:2000], "float16", out=both[1000:3000]), want)
    assert lp.astype(x.reshape(50, 100), "float16", out=(out := np.empty((50, 100), np.float16))) is out
    with pytest.raises(ValueError, match="shape"):
        lp.astype(x.reshape(50, 100), "float16", out=np.empty((100, 50), np.float16))
    with pytest.raises(TypeError, match="out"):
        lp.astype(x, "float16", out=np.empty(5000, np.float32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_results_beyond_the_caches_are_the_same_in_pieces(dtype: Any) -> None:
    x = np.resize(np.linspace(-3, 3, 4099, dtype=np.float32), (1 << 22) + 777)  # 8 MiB of codes
    name, rows = np.dtype(dtype).name, np.zeros(x.size + 32, dtype)
    want = np.concatenate([lp.astype(part, name) for part in np.array_split(x, 5)])
    for threads in (1, 2, 3):
        rows[:] = 7
        with lp.num_threads(threads):
            lp.astype(x, name, out=rows[5:-27])
            values = lp.decode(rows[5:-27], name)
        lp.testing.assert_same_bits(rows[5:-27], want)
        lp.testing.assert_same_bits(values, want.astype(np.float32))
        assert (rows[:5] == 7).all()
        assert (rows[-27:] == 7).all()


def test_decoding_goes_where_it_is_told() -> None:
    codes = np.linspace(-3, 3, 500).astype(np.float16)
    out = np.empty(500, np.float32)
    assert lp.decode(codes, "float16", out) is out
    lp.testing.assert_same_bits(out, codes.astype(np.float32))
    with pytest.raises(ValueError, match="shape"):
        lp.decode(codes, "float16", np.empty(499, np.float32))
    with pytest.raises(TypeError, match="no floating-point format"):
        lp.decode(codes, [1])  # type: ignore[arg-type]
