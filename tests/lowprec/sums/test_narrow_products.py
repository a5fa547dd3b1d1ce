"""Products of few rows, few columns or one group, which have ways of their own: bits of the reference everywhere."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from tests.lowprec.sums_cases import Array, assert_backends_agree

THIN = [(1, 70), (70, 1), (2, 130), (65, 2), (3, 33), (37, 3), (40, 4), (70, 5), (6, 49), (35, 10), (33, 16)]
DTYPES: list[Any] = [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float32]
LAYOUTS = ["plain", "turned", "padded", "strided"]


def laid_out(x: Array, layout: str) -> Array:
    """The same numbers with other strides."""
    if layout == "turned":
        return np.ascontiguousarray(x.T).T
    if layout == "padded":
        return np.pad(x, ((0, 0), (1, 2)))[:, 1:-2]
    if layout == "strided":
        return np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3]
    return x


def factors(m: int, k: int, n: int, dtype: Any, scale: float = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(m + k + n)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return (np.float32(scale) * a).astype(dtype), b.astype(dtype)


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("number", range(len(THIN)))
def test_few_rows_or_columns(number: int, rounding: Any) -> None:
    options: dict[str, Any] = dict(rounding=rounding, key=7 if rounding == "stochastic" else None)
    m, n = THIN[number]
    for i, (dtype, layout) in enumerate([*((np.float16, x) for x in LAYOUTS), *((x, LAYOUTS[0]) for x in DTYPES[1:])]):
        a, b = (laid_out(x, layout) for x in factors(m, 45, n, dtype))
        accumulate, group = [("float16", 16), ("bfloat16", 4), ("float32", 16)][(i + number) % 3]
        offset = [(0, 0), (6, 2), (3, 5)][(i // 2 + number) % 3]
        assert_backends_agree(lp.matmul, a, b, accumulate=accumulate, group=group, offset=offset, **options)
        assert_backends_agree(lp.matmul, a, b, accumulate="float16", **options)


@pytest.mark.parametrize(("m", "n"), [(1, 70), (70, 1), (3, 40), (40, 3)])
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_sums_are_carried_from_piece_to_piece(m: int, n: int, rounding: Any) -> None:
    options: dict[str, Any] = dict(rounding=rounding, key=7 if rounding == "stochastic" else None)
    for layout, group, accumulate in (("plain", 16, "float16"), ("turned", 100, "float16"), ("plain", 16, "float32")):
        a, b = (laid_out(x, layout) for x in factors(m, 600, n, np.float16))
        assert_backends_agree(lp.matmul, a, b, accumulate=accumulate, group=group, **options)


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("scale", [1, 1e-6, 30, 3e4, np.inf])
@pytest.mark.parametrize(("m", "k", "n"), [(33, 16, 33), (70, 10, 48), (41, 3, 32), (64, 16, 8), (12, 40, 20)])
def test_one_group(m: int, k: int, n: int, scale: float, rounding: Any) -> None:
    options: dict[str, Any] = dict(rounding=rounding, key=9 if rounding == "stochastic" else None)
    with np.errstate(over="ignore", invalid="ignore"):
        a, b = factors(m, k, n, np.float16)
        a[5::7] *= np.float16(scale)
    a[::4] = 0
    for kind in ({}, {"random_bits": 5} if rounding == "stochastic" else {}, {"overflow": "saturate"}):
        assert_backends_agree(lp.matmul, a, b, accumulate="float16", **options, **kind)
    assert_backends_agree(lp.matmul, a, b, accumulate="float16", offset=(3, 5), **options)
    assert_backends_agree(lp.matmul, a, b, accumulate="float32", **options)


@pytest.mark.parametrize(("m", "k", "n"), [(5, 45, 33), (33, 45, 5), (40, 16, 40)])
def test_nothing_beside_the_result_is_written(m: int, k: int, n: int) -> None:
    a, b = factors(m, k, n, np.float16)
    for name in lp.testing.isa_names():
        with lp.testing.isa(name):
            for rounding in ("nearest_even", "stochastic"):
                options: dict[str, Any] = dict(accumulate="float16", rounding=rounding, key=1)
                whole = np.full((m + 2, n + 3), np.float16(7))
                lp.matmul(a, b, out=whole[1:-1, 1:-2], **options)
                lp.testing.assert_same_bits(whole[1:-1, 1:-2], lp.matmul(a, b, **options))
                whole[1:-1, 1:-2] = 7
                assert (whole == 7).all()
