"""Random keys as backends read them, the tags that keep their uses apart, and places among the random bits."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from lowprec.types import Array

_LIMIT = 1 << 64

# Part of the contract, pinned by golden files. 2, 4, 6 and 8 are the wide draws', 11 and 12 derive keys.
TAGS = {
    "rounding": 1,
    "step": 3,
    "stage": 5,
    "output": 7,
    "dropout": 9,
    "user": 10,
    "signs": 13,
}
"""Use of random bits -> the tag in the first word of its Philox counters, so that no two uses share random words.

Draws of more than 16 bits take tag + 1, for the tags 1 to 7.
"""


def word(what: str, value: SupportsIndex) -> int:
    """The value as an int, checked to be in [0, 2^64); `what` names it in the message."""
    try:
        # Takes NumPy's integers; a float, even a whole one, is refused: beyond 2^53 it would be another seed.
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer in [0, 2^64), not {type(value).__name__}") from None
    if not 0 <= number < _LIMIT:
        raise ValueError(f"{what} must be an integer in [0, 2^64), not {number}")
    return number


def first_index(offset: SupportsIndex, size: int) -> int:
    """The offset as an int, checked so that the indices of `size` elements from it on stay below 2^64."""
    number = word("offset", offset)
    # Beyond, indices would wrap and elements share their random bits.
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
    # Rows and columns are words of the counter, 32 bits each.
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

    row: int | Array = 0
    column: int | Array = 0
    first_group: int | Array = 0
    batch: int | Array | None = 0


ORIGIN = Coordinates()


def coordinates(row: Any, column: Any, first_group: Any = 0, batch: Any = 0) -> Coordinates:
    """Coordinates as a caller gives them: arrays of a foreign byte order become native.

    Raises:
        TypeError: something that is neither a number nor an array.
    """
    if type(row) is int and type(column) is int and type(first_group) is int and type(batch) is int:  # most, quickly
        return Coordinates(row, column, first_group, batch)
    # The loops read the arrays' bytes as they lie.
    given = Coordinates(native(row), native(column), native(first_group), native(batch))
    for what, value in zip(given._fields, given, strict=True):
        if not isinstance(value, (int, np.integer, np.ndarray)):
            raise TypeError(f"{what} must be an int or an int64 array, not {value!r}")
    return given


def native(number: Any) -> Any:
    """An int as it is, an array in the machine's byte order."""
    if isinstance(number, np.ndarray) and not number.dtype.isnative:
        return number.astype(number.dtype.newbyteorder("="))
    return number


# The part of a key that backends know; `lowprec.Key` adds what needs a backend (fold_in, split).
class RawKey:
    """64 bits, the two words of a Philox4x32 key (low word first): what backends read of a `lowprec.Key`.

    Args:
        seed: any integer in [0, 2^64).
    """

    __slots__ = ("value",)
    value: int

    def __init__(self, seed: SupportsIndex) -> None:
        # Around the class's own `__setattr__`, which refuses.
        object.__setattr__(self, "value", word("a seed", seed))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Key cannot be changed; derive a new one with fold_in or split")


KeyLike: TypeAlias = RawKey | SupportsIndex


def key_value(key: KeyLike) -> int:
    """The 64 bits of a key or of the integer that stands for one."""
    return key.value if isinstance(key, RawKey) else word("a key", key)
