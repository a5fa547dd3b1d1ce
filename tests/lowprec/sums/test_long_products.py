"""Long chains of products, whose kernels go shorter ways while sums stay in range: every way gives the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowprec as lp
from tests.lowprec.sums_cases import Array, assert_backends_agree

ROWS, INNER, COLUMNS = 9, 200, 20  # tiles of 8 x 32, and what is left over
HALF_LARGEST = 65504.0


def normal(rng: np.random.Generator, scale: float = 1.0) -> tuple[Array, Array]:
    a, b = rng.normal(size=(ROWS, INNER)), rng.normal(size=(INNER, COLUMNS))
    return (a * scale).astype(np.float16), b.astype(np.float16)


def operands(case: str) -> tuple[Array, Array]:
    """A pair of operands whose sums visit the part of the range that the case names."""
    rng = np.random.default_rng(sum(map(ord, case)))
    a, b = normal(rng, {"tiny": 1e-6, "subnormal at times": 2e-4, "large": 30.0}.get(case, 1.0))
    if case == "overflow late":
        a[:, 130:] = np.abs(a[:, 130:]) * 60
        b[130:] = np.abs(b[130:]) * 60
    elif case == "up to the largest":
        a[:], b[:] = 1, 0
        b[: INNER // 2] = np.float16(HALF_LARGEST / (INNER // 2))
    elif case == "there and back":
        a[:, :64], b[:64] = 8.0, np.float16(HALF_LARGEST / 500)
        a[:, 64:128], b[64:128] = -8.0, np.float16(HALF_LARGEST / 500)
    elif case == "zeros":
        a[::2], b[:, ::3] = 0, 0
        b[:60] = 0
    elif case == "negative zeros":
        a[:], b[:, ::2] = -0.0, np.abs(b[:, ::2])
    elif case == "cancelling":
        a[:, 1::2], b[1::2] = -a[:, ::2], b[::2]
    elif case == "infinity":
        a[3, 150], b[150, 5] = np.inf, 1
    elif case == "nan":
        b[129, 19] = np.nan
    return a, b


CASES = ["normal", "tiny", "subnormal at times", "large", "overflow late", "up to the largest", "there and back"]
CASES += ["zeros", "negative zeros", "cancelling", "infinity", "nan"]
STEPS: list[dict[str, Any]] = [
    {"group": 1},
    *({"group": group, "rounding": "stochastic", "key": 5} for group in (1, 16)),
    {"group": 4, "rounding": "stochastic", "key": 5, "accumulate": lp.FloatFormat("e6m9", 6, 9)},
    {"group": 2, "rounding": "stochastic", "key": 5, "accumulate": "float8_e5m2"},
]


PAIRS = [
    pytest.param(case, step, marks=[pytest.mark.slow] * ((place + other) % 2))
    for place, case in enumerate(CASES)
    for other, step in enumerate(STEPS)
]
"""Every case with every step; half of them, in which each of both is met, are not slow."""


@pytest.mark.parametrize("case, step", PAIRS, ids=str)
def test_every_backend_gives_the_same_bits(case: str, step: dict[str, Any]) -> None:
    assert_backends_agree(lp.matmul, *operands(case), **{"accumulate": "float16", **step})


IN_PARTS: list[dict[str, Any]] = [
    {"group": 1, "splits": 9, "rounding": "stochastic", "key": 5},
    {"group": 4, "splits": 40, "rounding": "stochastic", "key": 5, "random_bits": 20},
    {"group": 16, "splits": 3, "rounding": "stochastic", "key": 5},
    {"group": 16, "splits": 13},
]


@pytest.mark.parametrize("step", [*STEPS, *IN_PARTS], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_large_product_holds_the_bits_of_its_pieces(case: str, step: dict[str, Any]) -> None:
    """With so many rows and columns kernels first look how large products can be, and then do without other looks."""
    a, b = operands(case)
    options = {"accumulate": "float16", "out_format": "float32", **step}
    for name in lp.testing.isa_names():
        with lp.testing.isa(name):
            whole = lp.matmul(np.tile(a, (4, 1)), np.tile(b, (1, 3)), **options)
            piece = lp.matmul(a, b, offset=(ROWS, COLUMNS), **options)
            lp.testing.assert_same_bits(whole[ROWS : 2 * ROWS, COLUMNS : 2 * COLUMNS], piece)


def test_the_cases_visit_what_they_name() -> None:
    """The sums of each case lie where its name says, or the tests above would compare less than they promise."""

    def sums(case: str) -> Array:
        a, b = operands(case)
        with np.errstate(invalid="ignore"):
            return np.cumsum(a[:, :, None].astype(np.float64) * b[None].astype(np.float64), axis=1)

    assert np.abs(sums("normal")).max() < 200
    assert np.abs(sums("tiny")).max() < 2.0**-14
    assert 0.01 < np.mean(np.abs(sums("subnormal at times")) < 2.0**-14) < 0.3
    late = np.abs(sums("overflow late"))
    assert late[:, 128].max() < HALF_LARGEST < late[:, -1].max()
    assert 0.99 * HALF_LARGEST < sums("up to the largest").max() < 1.01 * HALF_LARGEST
    back = sums("there and back")
    assert back[:, 63].min() > HALF_LARGEST > np.abs(back[:, 128]).max()
    assert np.mean(sums("zeros") == 0) > 0.3


def test_a_long_left_operand_of_side_by_side_rows_is_read_whole() -> None:
    """Of so many products only the fewest rows are packed at a time."""
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(9000, 45)).astype(np.float16), rng.normal(size=(9000, 3)).astype(np.float16)
    got = lp.matmul(a.T, b, accumulate="float16")
    np.testing.assert_array_equal(got, lp.matmul(a.T.copy(), b, accumulate="float16"))
