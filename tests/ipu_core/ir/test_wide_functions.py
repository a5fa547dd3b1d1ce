"""Functions in float64: near to the truth, and the same bits on every machine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.ir.run.wide_functions import FUNCTIONS

# Numbers without NumPy's generators, whose draws a version may change.
UNIT = (np.arange(1, 4001) * 2654435761 % 2**32) / 2.0**32
AROUND = 24 * UNIT - 12


def _phi(x: float) -> float:
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


def _density(x: float) -> float:
    return math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("name, x, truth, ulps", [
    ("rsqrt", np.exp(50 * AROUND), lambda x: 1 / math.sqrt(x), 2), ("exp", 59 * AROUND, math.exp, 3),
    ("exp", AROUND / 12, math.exp, 3), ("log", np.exp(58 * AROUND), math.log, 4), ("log", 0.5 + UNIT, math.log, 4),
    ("tanh", AROUND, math.tanh, 5), ("tanh", AROUND / 5000, math.tanh, 5), ("erf", AROUND / 2, math.erf, 5),
    ("erf", AROUND / 50, math.erf, 5), ("sigmoid", AROUND, lambda x: 1 / (1 + math.exp(-x)), 4),
    ("gelu", AROUND / 3, lambda x: x * _phi(x), 24),
])  # fmt: skip
def test_functions_are_within_some_units_of_the_last_place(
    name: str, x: Any, truth: Callable[[float], float], ulps: int
) -> None:
    """Of the truth as `math` has it, which is off by a unit itself; its erfc of gelu's by more."""
    expected = np.array([*map(truth, x.tolist())])
    assert (np.abs(FUNCTIONS[name](x) - expected) / np.spacing(np.abs(expected))).max() <= ulps


@pytest.mark.parametrize("name, x, truth", [
    ("sin", 1000 * AROUND, math.sin), ("sin", 80_000 * AROUND, math.sin), ("cos", AROUND, math.cos),
    ("gelu_gradient", AROUND, lambda x: _phi(x) + x * _density(x)),
])  # fmt: skip
def test_functions_are_near_to_the_truth_in_units_of_one(name: str, x: Any, truth: Callable[[float], float]) -> None:
    assert np.abs(FUNCTIONS[name](x) - [*map(truth, x.tolist())]).max() <= 2.0**-50


DIGESTS = {
    "rsqrt": "c3917aa550d5b006",
    "exp": "ea7eb503d8feae6f",
    "log": "f94293a04df194f8",
    "tanh": "f5f81b9169224207",
    "erf": "9fb4f8aaa4288f93",
    "sigmoid": "125c94889a08cc26",
    "sin": "c5a3e77efeffde6d",
    "cos": "8c1e1d2495d817e5",
    "gelu": "bba0bf5ecaa544c0",
    "gelu_gradient": "44034646502189aa",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_bits_of_functions_are_pinned(name: str) -> None:
    x = np.concatenate([AROUND, AROUND * 2.0**-30])
    with np.errstate(all="ignore"):
        made = FUNCTIONS[name](np.abs(x) if name in ("log", "rsqrt") else x)
    assert hashlib.sha256(made.astype("<f8").tobytes()).hexdigest()[:16] == DIGESTS[name]


def test_numbers_at_the_ends() -> None:
    inf, nan = math.inf, math.nan
    with np.errstate(all="ignore"):
        for name, given, wanted in [
            ("exp", [inf, -inf, nan, 0, 710, -745, -746], [inf, 0, nan, 1, inf, 5e-324, 0]),
            ("log", [0, -0.0, -1, inf, nan, 1, 5e-324], [-inf, -inf, nan, inf, nan, 0, math.log(5e-324)]),
            ("tanh", [inf, -inf, nan, -0.0, 5e-324, 30], [1, -1, nan, -0.0, 5e-324, 1]),
            ("erf", [inf, -inf, nan, -0.0, 7], [1, -1, nan, -0.0, 1]),
            ("sigmoid", [inf, -inf, nan, 0, -800], [1, 0, nan, 0.5, 0]),
            ("rsqrt", [0, -0.0, inf, -1, nan, 4], [inf, -inf, 0, nan, nan, 0.5]),
            ("gelu", [inf, -inf, nan, 0, 50], [inf, -0.0, nan, 0, 50]),
            ("gelu_gradient", [inf, -inf, nan, 0], [1, 0, nan, 0.5]),
            ("sin", [inf, nan, 0], [nan, nan, 0]), ("cos", [inf, nan, 0], [nan, nan, 1]),
        ]:  # fmt: skip
            made = FUNCTIONS[name](np.array(given, np.float64))
            np.testing.assert_array_equal(made, wanted, err_msg=name)
            np.testing.assert_array_equal(np.signbit(made[made == 0]), np.signbit(np.array(wanted)[made == 0]))


def test_there_is_no_sine_of_far_numbers() -> None:
    with pytest.raises(ValueError, match="no sine of 2e\\+06 in float64, only up to 2\\^20"):
        FUNCTIONS["cos"](np.array([1.0, 2e6]))
