"""Explicit random keys: 64 bits from which new ones are derived, and the tags that keep their uses apart.

Nothing here computes with arrays: `lowprec.random` draws bits and every backend reads keys from here.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from lowprec import _kernels

_LIMIT = 1 << 64

TAGS = {
    "rounding": 1,
    "step": 3,
    "stage": 5,
    "output": 7,
    "dropout": 9,
    "user": 10,
}
"""What a counter's first word is tagged with, so that no two uses share words (wide draws of 1 to 7: tag + 1)."""


def word(what: str, value: SupportsIndex) -> int:
    """The value as an int, checked to be in [0, 2^64); `what` names it in the message."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer in [0, 2^64), not {type(value).__name__}") from None
    if not 0 <= number < _LIMIT:
        raise ValueError(f"{what} must be an integer in [0, 2^64), not {number}")
    return number


def first_index(offset: SupportsIndex, size: int) -> int:
    """The offset as an int, checked so that the indices of `size` elements from it on stay below 2^64."""
    number = word("offset", offset)
    if number + size > _LIMIT:
        raise ValueError(f"offset + size must be at most 2^64, not {number} + {size}")
    return number


def first_element(offset: tuple[int, int]) -> tuple[int, int]:
    """The checked row and column of a result's first element among the random bits.

    Raises:
        TypeError: no pair of integers.
        ValueError: a number outside [0, 2^32).
    """
    if (
        not isinstance(offset, (tuple, list))
        or len(offset) != 2
        or not all(isinstance(x, (int, np.integer)) for x in offset)
    ):
        raise TypeError(f"offset must be two integers, row and column, not {offset!r}")
    if not all(0 <= x < 1 << 32 for x in offset):
        raise ValueError(f"offset must lie in [0, 2^32) in both numbers, not {offset!r}")
    return int(offset[0]), int(offset[1])


class Coordinates(NamedTuple):
    """Where vertices' blocks lie in a whole result: ints, or int64 arrays that broadcast over the vertex axes.

    Attributes:
        row, column: of each block's first element.
        first_group: number of its first group of terms in the whole sum.
        batch: number of the product it belongs to.
    """

    row: int | npt.NDArray[Any] = 0
    column: int | npt.NDArray[Any] = 0
    first_group: int | npt.NDArray[Any] = 0
    batch: int | npt.NDArray[Any] | None = 0


ORIGIN = Coordinates()


class Key:
    """A random key: 64 bits, the two words of a Philox4x32 key (low word first).

    Keys are values: equal seeds make equal keys, they hash, pickle and print, and nothing changes them. Derive a new
    key for every use with `fold_in` (a number you have, such as a step) or `split`.

    Args:
        seed: any integer in [0, 2^64).

    Raises:
        TypeError: the seed is no integer.
        ValueError: it is outside [0, 2^64).
    """

    __slots__ = ("value",)
    value: int

    def __init__(self, seed: SupportsIndex) -> None:
        object.__setattr__(self, "value", word("a seed", seed))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Key cannot be changed; derive a new one with fold_in or split")

    def fold_in(self, n: int) -> Key:
        """The key for number n in [0, 2^64): words 0 and 1 of Philox of the counter (11 << 24, n low, n high, 0)."""
        try:
            return Key(_kernels.fold_in(self.value, n))
        except TypeError:
            return Key(_kernels.fold_in(self.value, word("n", n)))

    def split(self, n: int = 2) -> tuple[Key, ...]:
        """n new keys; the i-th is words 0 and 1 of Philox of the counter (12 << 24, i low, i high, 0).

        Raises:
            TypeError, ValueError: n is no integer in [0, 2^24]; for more keys than that there is `fold_in`.
        """
        if word("n", n) > 1 << 24:
            raise ValueError(f"split makes at most 2^24 keys, not {n}; fold_in(i) gives the i-th of any number")
        return tuple(Key(_kernels.split(self.value, i)) for i in range(operator.index(n)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.value == other.value

    def __hash__(self) -> int:
        return hash((Key, self.value))

    def __repr__(self) -> str:
        return f"Key({self.value:#x})"

    def __reduce__(self) -> tuple[type[Key], tuple[int]]:
        return Key, (self.value,)


KeyLike: TypeAlias = Key | SupportsIndex


def as_key(key: KeyLike) -> Key:
    """The key itself, or Key(key) of an integer."""
    return key if isinstance(key, Key) else Key(key)


def key_value(key: KeyLike) -> int:
    """The 64 bits of a key or of the integer that stands for one."""
    return key.value if isinstance(key, Key) else word("a key", key)
