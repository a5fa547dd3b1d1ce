"""exp, log, tanh, erf, sigmoid, rsqrt, sin, cos of all 2^32 float32 numbers, within 0.501 ulp of the true value.

A result that is the rounded double of numpy or scipy is right to half an ulp and the double's own error, some 2^-27 ulp
of float32. Only the others are measured, by MPFR; so a wrong double could not hide a wrong result, only cost time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gmpy2
import numpy as np
import numpy.typing as npt
import pytest
import scipy.special

import lowprec as lp
from tests.lowprec.every_float32 import PARTS, numbers
from tests.lowprec.test_functions import TRUE

DOUBLES: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": scipy.special.erf,
    "sigmoid": scipy.special.expit,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
}
SYMMETRY = {"tanh": 1 << 31, "erf": 1 << 31, "sin": 1 << 31, "cos": 0}  # what the sign of x does to the result's bits


def error_in_ulps(name: str, x: float, value: float) -> float:
    """How far a result is from the true value, in units of the last place of float32 there."""
    with gmpy2.context(gmpy2.get_context(), precision=200):
        true = TRUE[name](gmpy2.mpfr(x))
        exponent = max(int(gmpy2.floor(gmpy2.log2(abs(true)))), -126) if true != 0 else -126
        return float(abs(gmpy2.mpfr(value) - true) / gmpy2.mpfr(2) ** (exponent - 23))


def worst_error(name: str, x: npt.NDArray[np.float32]) -> float:
    """The largest error among the results that are not the rounded doubles."""
    got = getattr(lp, name)(x)
    with np.errstate(all="ignore"):
        near = DOUBLES[name](x.astype(np.float64)).astype(np.float32)
    same = (got.view(np.uint32) == near.view(np.uint32)) | (np.isnan(got) & np.isnan(near))
    others = np.flatnonzero(~same)
    assert np.isfinite(got[others]).all()
    return max((error_in_ulps(name, float(x[i]), float(got[i])) for i in others), default=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", DOUBLES)
def test_every_float32_is_within_0_501_ulp(name: str, part: int) -> None:
    worst = 0.0
    for x in numbers(part, 2 * PARTS):  # the positive ones; the sign bit is the last to change
        mirrored = -x
        worst = max(worst, worst_error(name, x))
        if name in SYMMETRY:
            positive, negative = getattr(lp, name)(x), getattr(lp, name)(mirrored)
            mirror = positive.view(np.uint32) ^ np.uint32(SYMMETRY[name])
            assert ((negative.view(np.uint32) == mirror) | (np.isnan(positive) & np.isnan(negative))).all()
        else:
            worst = max(worst, worst_error(name, mirrored))
    print(f"{name}: largest error of a result that is not the rounded double: {worst:.6f} ulp (0: there is none)")
    assert worst < 0.501


@pytest.mark.parametrize("name", DOUBLES)
def test_a_sample_of_every_binade(name: str) -> None:
    x = np.arange(0, 1 << 32, 65_521, dtype=np.uint32).view(np.float32)
    assert worst_error(name, x) < 0.501
