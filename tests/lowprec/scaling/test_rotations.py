"""Hadamard rotations: the docstring as loops, orthogonality, signs, and what they do for a product in four bits."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from lowprec.scaling.rotations import random_signs
from tests.lowprec.sum_oracle import half_word, lane, philox

Array = npt.NDArray[Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_loops(line: Array, size: int) -> list[np.float32]:
    """The steps of the docstring, one number at a time."""
    result: list[np.float32] = []
    for start in range(0, len(line), size):
        block = [np.float32(v) for v in line[start : start + size]]
        half = 1
        while half < size:
            for i in [i for i in range(size) if not i & half]:
                block[i], block[i + half] = block[i] + block[i + half], block[i] - block[i + half]
            half *= 2
        result += [v * np.float32(1 / math.sqrt(size)) for v in block]
    return result


@pytest.mark.parametrize("size", [1, 2, 8, 16, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_the_docstring_as_loops(size: int, dtype: Any) -> None:
    x = normal(3, 128).astype(dtype)
    got = lp.hadamard(x, block=size)
    assert got.dtype == np.float32
    lp.testing.assert_same_bits(got, np.array([by_loops(line, size) for line in x], np.float32))


def test_sylvesters_matrix_and_axes() -> None:
    """Rows of the identity give the matrix, along any axis, of any strides."""
    matrix = np.array([[1]])
    while len(matrix) < 16:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    np.testing.assert_array_equal(lp.hadamard(np.eye(16, dtype=np.float32)), matrix / 4)
    x = normal(4, 6, 16, seed=1)
    for axis, block in ((-1, 16), (0, 2), (0, 4), (1, 2)):
        moved = np.moveaxis(x, axis, -1)
        want = np.moveaxis(np.asarray(lp.hadamard(moved, block=block)), -1, axis)
        for given in (x, np.asfortranarray(x), x[::-1][::-1]):
            lp.testing.assert_same_bits(lp.hadamard(given, axis, block=block), np.ascontiguousarray(want))
    assert lp.hadamard(x.astype(np.float64)).dtype == np.float64


@pytest.mark.parametrize("key", [None, 5])
def test_the_inverse_undoes_it(key: int | None) -> None:
    x = np.random.default_rng(1).integers(-99, 99, (3, 32)).astype(np.float32)  # all sums are exact
    for block in (4, 16):
        turned = lp.hadamard(x, block=block, key=key)
        np.testing.assert_array_equal(lp.hadamard(turned, block=block, key=key, inverse=True), x)
        np.testing.assert_allclose((turned**2).sum(1), (x**2).sum(1), rtol=1e-6)
    np.testing.assert_allclose(lp.hadamard(lp.hadamard(x, key=key), key=key, inverse=True), x, rtol=1e-5, atol=1e-4)


def test_signs_are_bits_of_the_key_under_a_tag_of_their_own(host_backend: str) -> None:
    signs = random_signs(7, 200)
    bits = [half_word(philox((13 << 24, 8 * (k // 64) + lane(k % 64), 0, 0), 7, 10), k % 64) >> 15 for k in range(200)]
    np.testing.assert_array_equal(signs, 1 - 2 * np.float32(bits))
    assert 70 < (signs > 0).sum() < 130
    np.testing.assert_array_equal(lp.hadamard(np.ones((2, 4), np.float32), block=1, key=7), [signs[:4]] * 2)
    np.testing.assert_array_equal(random_signs(7, 50), signs[:50])
    assert not np.array_equal(random_signs(8, 200), signs)


@pytest.mark.parametrize("key", [None, 3])
def test_rotated_operands_give_the_same_product_with_smaller_errors_in_four_bits(key: int | None) -> None:
    x, y = normal(32, 128), normal(128, 32, seed=1)
    x[:, 5] *= 50  # an outlier, beside which the rest of its block is lost
    exact = x.astype(np.float64) @ y.astype(np.float64)
    turned = lp.hadamard(x, block=64, key=key), lp.hadamard(y, 0, block=64, key=key)
    np.testing.assert_allclose(turned[0].astype(np.float64) @ turned[1], exact, rtol=1e-4, atol=1e-3)

    def error(a: Array, b: Array) -> float:
        made = lp.scaled_matmul(lp.to_blocks(a, "mxfp4_e2m1"), lp.to_blocks(b, "mxfp4_e2m1", axis=0))
        return float(np.sqrt(np.mean((made - exact) ** 2)))

    assert error(*turned) < 0.8 * error(x, y)


def test_infinities_and_nan_fill_their_block_only() -> None:
    x = np.ones((1, 8), np.float32)
    x[0, 1], x[0, 6] = np.inf, np.nan
    turned = lp.hadamard(x, block=2)[0]
    assert np.isinf(turned[:2]).all()
    assert np.isnan(turned[6:]).all()
    assert np.isfinite(turned[2:6]).all()


def test_what_does_not_fit_is_named() -> None:
    x = normal(4, 24)
    with pytest.raises(ValueError, match="a Hadamard block holds a power of two of elements, not 24; give block="):
        lp.hadamard(x)
    with pytest.raises(ValueError, match="blocks of 16 do not divide an axis of 24"):
        lp.hadamard(x, block=16)
    for block in (0, -4, 3, 2.0, True):
        with pytest.raises(ValueError, match="a power of two"):
            lp.hadamard(x, block=block)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="floating-point arrays, not int64"):
        lp.hadamard(np.ones(4, np.int64))
    with pytest.raises(ValueError, match="needs an axis"):
        lp.hadamard(np.float32(1))
    with pytest.raises(ValueError, match="there is no axis 2 in a shape of 2 axes"):
        lp.hadamard(x, 2, block=8)
    for axis in (None, 1.0, True, slice(1)):
        with pytest.raises(TypeError, match="axis must be an integer, not "):
            lp.hadamard(x, axis, block=8)  # type: ignore[arg-type]


def test_arrays_without_elements_stay_so() -> None:
    assert lp.hadamard(np.zeros((0, 8), np.float16)).shape == (0, 8)
    assert lp.hadamard(np.zeros((3, 4, 0)), 1, key=1).shape == (3, 4, 0)
