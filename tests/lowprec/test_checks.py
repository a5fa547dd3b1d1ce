"""The checks of arguments that every door uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowprec import checks


@pytest.mark.parametrize(
    ("check", "good"),
    [
        (lambda x: checks.integer("x", x, 1, 9), [1, np.int8(9)]),
        (lambda x: checks.number("x", x), [1, 0.5, np.float32(2), np.nan]),
        (lambda x: checks.truth("x", x), [True, np.False_]),
        (lambda x: checks.sizes("x", x), [(), [2, 0], np.array([3])]),
        (lambda x: checks.integers("x", x), [3, [1, 2], np.zeros(0), np.ones((2, 2), "u1")]),
        (lambda x: checks.listed("x", x), [(), [1], {1: 2}, np.ones(2), iter([3])]),
        (lambda x: checks.entries("x", x, ("a",)), [{"a": 1}, {"a": 1, "b": 2}]),
        (lambda x: checks.by_number("x", x, float), [None, {}, {3: 0.5}]),
        (lambda x: checks.pairs("x", x), [[], [("a", 1)]]),
        (lambda x: checks.expect_path("x", x), ["a", Path("a")]),
    ],
)
def test_each_takes(check: Any, good: list[Any]) -> None:
    for value in good:
        check(value)


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (lambda x: checks.integer("x", x, 1, 9), [0, 10, 1.0, True, "1", None, np.bool_(True), np.ones(2)]),
        (lambda x: checks.number("x", x), [True, "1", None, 1j, 10**400, np.ones(2)]),
        (lambda x: checks.truth("x", x), [0, 1, None, "", np.ones(2)]),
        (lambda x: checks.sizes("x", x), [3, "ab", [-1], [1.5], [2**47, 3], None]),
        (lambda x: checks.integers("x", x), [0.5, [True], "a", [[1], [2, 3]], None]),
        (lambda x: checks.listed("x", x), ["ab", b"", 3, None, np.array(3)]),
        (lambda x: checks.entries("x", x, ("a",)), [[], {}, {"b": 1}, "a"]),
        (lambda x: checks.by_number("x", x, float), [True, [1], {"a": 0.5}, {True: 0.5}, {3: 1}]),
        (lambda x: checks.pairs("x", x), [3, [1], [("a",)], [(1, 1)], [("a", 0.5)]]),
        (lambda x: checks.expect_path("x", x), [3, b"a", "", "\0", None]),
    ],
)
def test_each_refuses(check: Any, bad: list[Any]) -> None:
    for value in bad:
        with pytest.raises((TypeError, ValueError), match=r"^x"):
            check(value)


def test_a_long_value_is_cut_in_a_message() -> None:
    assert checks.shown([0] * 1000).endswith("0, 0...")
    with pytest.raises(TypeError, match=r"^count must be an int, not 'x{100,250}\.\.\.$"):
        checks.expect(int, count="x" * 1000)
