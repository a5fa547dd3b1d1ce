"""Results in float8_e8m0fnu, which has powers of two alone and reaches below float32's normal numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from tests.lowprec.sums.doors import WHOLE, Door
from tests.lowprec.sums_cases import Array

E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], largest: float | None = None) -> Array:
    """Mostly positive numbers of all sizes."""
    if largest is not None:
        return rng.choice(np.float32([1, 0.5, 0]), size=shape)
    x = rng.uniform(1, 2, shape) * 2.0 ** rng.choice([-149, -130, -127, -126, -100, 0, 100, 127], size=shape)
    return (x * rng.choice([1, 1, 1, 1, 0, -1], size=shape)).astype(np.float32)


@pytest.mark.parametrize("rounding", ["nearest_even", "up", "toward_zero"])
@pytest.mark.parametrize("name", WHOLE)
def test_results_are_those_of_float32_rounded_once(name: str, rounding: str, host_backend: str) -> None:
    def result(fmt: str, call: Door = WHOLE[name], **how: Any) -> Any:
        return call(partial(numbers, np.random.default_rng(1)), out_format=fmt, rounding=rounding, **how)

    got = result("float8_e8m0fnu", overflow="saturate")
    assert got.dtype == E8M0
    if name.endswith("scaled_matmul"):
        return  # its result is rounded from the exact product with the tensors' scales
    lp.testing.assert_same_bits(got, lp.astype(result("float32"), "float8_e8m0fnu", rounding, overflow="saturate"))
    assert not np.isnan(np.float32(got)).all()


@pytest.mark.parametrize("shape", [(1, 90), (90, 1), (19, 40), (70, 3), (33, 33)])
@pytest.mark.parametrize("turned", [False, True])
def test_results_of_any_shape_where_they_are_asked_for(shape: tuple[int, int], turned: bool) -> None:
    a, b = np.full((shape[0], 41), 1.0, np.float16), np.full((41, shape[1]), 1.0, np.float16)
    a[::2] *= 2
    b[:, 1::3] *= -1
    want = lp.astype(lp.matmul(a, b, out_format="float32"), "float8_e8m0fnu")
    memory = np.full((shape[1], 2 * shape[0]) if turned else (shape[0], 2 * shape[1]), 3.0, E8M0)
    out = memory[:, ::2].T if turned else memory[:, ::2]
    for name in lp.testing.isa_names():
        with lp.testing.isa(name):
            lp.testing.assert_same_bits(lp.matmul(a, b, out_format="float8_e8m0fnu"), want)
            lp.testing.assert_same_bits(lp.matmul(a, b, out=out, out_format="float8_e8m0fnu"), want)
            assert (memory[:, 1::2] == 4).all()
            out[...] = 1


def test_every_code_is_its_own_sum_and_maximum(host_backend: str) -> None:
    codes = np.arange(256, dtype=np.uint8).view(E8M0)
    for x, axis in ((codes[:, None], 1), (codes[None], 0)):
        lp.testing.assert_same_bits(lp.reduce_sum(x, axis, out_format="float8_e8m0fnu"), codes)
        lp.testing.assert_same_bits(lp.sum_parts(x[None], fmt="float8_e8m0fnu")[:, :, None].ravel(), codes)
        lp.testing.assert_same_bits(lp.reduce_max(x, axis), codes)
    assert lp.reduce_max(codes[:255]) == codes[254]
    assert np.isnan(np.float32(lp.reduce_max(codes)))
