"""Products of scaled operands: the docstring's three steps as loops, on both backends, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from lowprec.scaling import shared_scale_products as products
from lowprec.scaling.blocks import BlockArray
from tests.lowprec.sum_oracle import BRAIN, SINGLE, Sum

Array = npt.NDArray[Any]
TINY = lp.BlockFormat("tiny", lp.float8_e4m3fn, lp.float8_e4m3fn, 5)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def values(x: BlockArray) -> tuple[Array, Array, int]:
    """Elements, scales of every element's block, and the block's size."""
    plain = x.elements.astype(np.float64) * (2.0**-6 if x.format.integers else 1)
    scales = np.repeat(x.scales.astype(np.float64), x.format.block, x.axis)
    return plain, scales.take(range(x.shape[x.axis]), x.axis), x.format.block


def by_loops(a: BlockArray, b: BlockArray, how: Sum) -> Array:
    """Blocks added up as `Sum` says, scaled, and added in float32; the last rounding is left to the caller."""
    (left, left_scales, block), (right, right_scales, _) = values(a), values(b)
    m, n, k = left.shape[0], right.shape[1], left.shape[1]
    result = np.empty((m, n))
    for i, j in np.ndindex(m, n):
        total = Fraction(0)
        for number, start in enumerate(range(0, k, block)):
            terms = list(zip(left[i, start : start + block], right[start : start + block, j], strict=True))
            scale = Fraction(left_scales[i, start]) * Fraction(right_scales[start, j])
            total = SINGLE.rounded(total + Fraction(how.of(terms, number, i, j)) * scale)
        result[i, j] = float(total)
    return result


@pytest.mark.parametrize("fmt", ["mxfp8_e4m3", "mxfp6_e2m3", "mxfp4_e2m1", "mxint8", "nvfp4", TINY])
@pytest.mark.parametrize("key", [None, 7])
def test_the_docstring_as_loops(fmt: Any, key: int | None, host_backend: str) -> None:
    a, b = lp.to_blocks(normal(2, 70), fmt), lp.to_blocks(normal(70, 3, seed=1), fmt, axis=0)
    how = Sum(BRAIN, SINGLE, 4, 2, key=key)
    options: dict[str, Any] = dict(accumulate="bfloat16", out_format="float32", group=4, splits=2, key=key)
    options |= {} if key is None else {"rounding": "stochastic"}
    lp.testing.assert_same_bits(lp.scaled_matmul(a, b, **options), by_loops(a, b, how).astype(np.float32))


def test_the_last_rounding_takes_the_tensors_scales_and_bits_of_its_own(host_backend: str) -> None:
    a = lp.to_blocks(normal(3, 40) * 3000, "nvfp4", tensor_scale="auto")
    b = lp.to_blocks(normal(40, 20, seed=1), "nvfp4", axis=0, tensor_scale=float(np.float32(0.3)))
    exact = by_loops(a, b, Sum()) * (a.tensor_scale * b.tensor_scale)
    assert a.tensor_scale != 1
    got = lp.scaled_matmul(a, b)
    assert got.dtype == np.float32
    lp.testing.assert_same_bits(got, exact.astype(np.float32))
    options: dict[str, Any] = {"rounding": "stochastic", "key": 5}
    rounded = lp.scaled_matmul(a, b, out_format="float16", **options)
    lp.testing.assert_same_bits(rounded, lp.astype(exact, "float16", **options))


def test_tensors_with_one_scale_and_plain_arrays(host_backend: str) -> None:
    x, y = normal(4, 48), normal(48, 5, seed=1)
    a, b = lp.to_scaled(x * 1000, "float8_e4m3fn"), lp.to_scaled(y, "float8_e5m2fnuz", exponent=-3)
    order = lp.Accumulation(group=8, splits=3, accumulate="float16", out="float16")
    inner = lp.matmul(a.elements, b.elements, accumulation=order.with_types("float16", "float32"))
    want = lp.multiply(inner, 2.0 ** (a.exponent + b.exponent), "float16")
    lp.testing.assert_same_bits(lp.scaled_matmul(a, b, accumulation=order), want)
    plain = x.astype(np.float16), y.astype(np.float16)
    lp.testing.assert_same_bits(lp.scaled_matmul(*plain, group=4), lp.matmul(*plain, group=4))
    one = lp.to_blocks(y, "mxfp8_e4m3", axis=0)
    ones = lp.BlockArray(
        one.format, plain[0].astype(one.elements.dtype), np.float32([[1, 1]] * 4).astype(one.scales.dtype), 1
    )
    lp.testing.assert_same_bits(lp.scaled_matmul(ones.elements, one), lp.scaled_matmul(ones, one))


@pytest.mark.parametrize("axes", [(None, None), (0, None), (None, 1), (0, 1)])
def test_scales_of_any_size_of_tensors_rows_and_columns(axes: Any, host_backend: str) -> None:
    x, y = normal(4, 48) * 1000, normal(48, 5, seed=1)
    a, b = lp.to_scaled(x, "e4m3", scale="auto", axis=axes[0]), lp.to_scaled(y, "e5m2", scale="auto", axis=axes[1])
    inner = lp.matmul(a.elements, b.elements, accumulate="bfloat16", out_format="float32")
    scales = np.asarray(a.scale, np.float64) * np.asarray(b.scale, np.float64)
    got = lp.scaled_matmul(a, b, accumulate="bfloat16", out_format="float32")
    lp.testing.assert_same_bits(got, (inner * scales).astype(np.float32))
    assert np.linalg.norm(got - x @ y) < 0.15 * np.linalg.norm(x @ y)


def test_a_vector_of_scales_lies_along_its_axis() -> None:
    x, scales = normal(2, 3, 4), np.float32([0.5, 0.3])
    given = lp.to_scaled(x, "e4m3", scale=scales, axis=0)
    lp.testing.assert_same_bits(given.dequantize(), lp.to_scaled(x, "e4m3", scale=scales.reshape(2, 1, 1)).dequantize())
    with pytest.raises(ValueError, match=r"has \(3,\) scales along axis 1, not an array of shape \(2,\)"):
        lp.to_scaled(x, "e4m3", scale=scales, axis=1)


def test_wide_and_broken_scales(host_backend: str) -> None:
    """Scales whose product is beyond float32, and a NaN scale, which only its own row has."""
    a, b = lp.to_blocks(normal(2, 32), "mxfp8_e4m3"), lp.to_blocks(normal(32, 3, seed=1), "mxfp8_e4m3", axis=0)
    plain = lp.scaled_matmul(a, b)
    a.scales[:, 0], b.scales[...] = (2.0**120, np.nan), (b.scales.astype(np.float64) * 2.0**20).astype(b.scales.dtype)
    got = lp.scaled_matmul(a, b)
    np.testing.assert_array_equal(got[0], np.copysign(np.inf, plain[0]))
    assert np.isnan(got[1]).all()
    a.scales[:, 0], b.scales[...] = 2.0**-127, 2.0**126
    np.testing.assert_array_equal(lp.scaled_matmul(a, b), lp.matmul(a.elements, b.elements) / 2)


def test_accumulators_and_adders_of_tensor_cores(host_backend: str) -> None:
    a, b = lp.to_blocks(normal(3, 64), "mxfp8_e4m3"), lp.to_blocks(normal(64, 4, seed=1), "mxfp8_e4m3", axis=0)
    core = lp.Accumulation(32, 1, 1, lp.FloatFormat("e8m13", 8, 13), "float32", "aligned", 13)
    got = lp.scaled_matmul(a, b, accumulation=core, rounding="toward_zero")
    exact = a.dequantize(np.float64) @ b.dequantize(np.float64)
    assert 0 < np.abs(got - exact).max() < 2.0**-8
    halves = [
        lp.matmul(a.elements[:, k : k + 32], b.elements[k : k + 32], accumulation=core, rounding="toward_zero")
        * (a.scales[:, k // 32, None].astype(np.float64) * b.scales[k // 32].astype(np.float64))
        for k in (0, 32)
    ]
    lp.testing.assert_same_bits(got, (halves[0].astype(np.float32) + halves[1]).astype(np.float32))


def test_pieces_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = lp.to_blocks(normal(5, 200), "nvfp4"), lp.to_blocks(normal(200, 18, seed=1), "nvfp4", axis=0)
    options: dict[str, Any] = dict(accumulate="float16", rounding="stochastic", key=3, group=8)
    want = lp.scaled_matmul(a, b, **options)
    for sums in (1, 200):
        monkeypatch.setattr(products, "BLOCK_SUMS", sums)
        lp.testing.assert_same_bits(lp.scaled_matmul(a, b, **options), want)
    with lp.num_threads(3):
        lp.testing.assert_same_bits(lp.scaled_matmul(a, b, **options), want)


def test_formats_without_a_dtype_and_empty_sums() -> None:
    own = lp.BlockFormat("own", lp.FloatFormat("e3m4", 3, 3), lp.float8_e8m0fnu, 16)
    x, y = normal(3, 20), normal(20, 4, seed=1)
    a, b = lp.to_blocks(x, own), lp.to_blocks(y, own, axis=0)
    np.testing.assert_allclose(lp.scaled_matmul(a, b), a.dequantize() @ b.dequantize(), rtol=1e-5, atol=1e-6)
    scaled = lp.to_scaled(x, own.element), lp.to_scaled(y, own.element)
    np.testing.assert_allclose(
        lp.scaled_matmul(*scaled), scaled[0].dequantize() @ scaled[1].dequantize(), rtol=1e-5, atol=1e-6
    )
    assert lp.scaled_matmul(lp.to_blocks(x[:, :0], own), y[:0].astype(np.float32)).tolist() == [[0.0] * 4] * 3
    assert lp.scaled_matmul(lp.to_blocks(x[:0], own), b).shape == (0, 4)


def test_what_does_not_fit_is_named() -> None:
    a, b = lp.to_blocks(normal(4, 64), "mxfp8_e4m3"), lp.to_blocks(normal(64, 4), "mxfp8_e4m3", axis=0)
    with pytest.raises(ValueError, match="the blocks of b lie along axis 1, and axis 0 is summed"):
        lp.scaled_matmul(a, lp.to_blocks(normal(64, 4), "mxfp8_e4m3"))
    with pytest.raises(ValueError, match="the blocks of a lie along axis 0"):
        lp.scaled_matmul(lp.to_blocks(normal(4, 64), "mxfp8_e4m3", axis=0), b)
    with pytest.raises(ValueError, match="the blocks of a hold 32 values and those of b 16"):
        lp.scaled_matmul(a, lp.to_blocks(normal(64, 4), "nvfp4", axis=0))
    with pytest.raises(ValueError, match=r"a has 64 scales along axis 1, which is summed: .* axis 0, .*axis=0"):
        lp.scaled_matmul(lp.to_scaled(normal(4, 64), "e4m3", scale="auto", axis=1), b)
    with pytest.raises(TypeError, match=r"b is a BlockArray: scaled_matmul\(a, b\) .* matmul its values, b\.dequant"):
        lp.matmul(normal(4, 64), b)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the inner lengths differ: 64 and 32"):
        lp.scaled_matmul(a, lp.to_blocks(normal(32, 4), "mxfp8_e4m3", axis=0))
    with pytest.raises(ValueError, match="b has 1 axes; scaled_matmul takes matrices"):
        lp.scaled_matmul(a, normal(64))
    with pytest.raises(TypeError, match="operands must be float32"):
        lp.scaled_matmul(a, np.ones((64, 4)))
    with pytest.raises(ValueError, match="stochastic rounding needs key="):
        lp.scaled_matmul(a, b, accumulate="float16", rounding="stochastic")
    with pytest.raises(TypeError, match="unknown keywords"):
        lp.scaled_matmul(a, b, offset=(0, 0))  # type: ignore[call-arg]
