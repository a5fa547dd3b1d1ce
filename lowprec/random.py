"""Explicit random keys and counter-based random bits (Philox4x32-10; Salmon et al., SC 2011).

Bits are a pure function of key, purpose and index: never of threads, chunks, instruction set, device or earlier calls.
"""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from lowprec import _kernels, backends

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
        """n new keys; the i-th is words 0 and 1 of Philox of the counter (12 << 24, i low, i high, 0)."""
        return tuple(Key(_kernels.split(self.value, i)) for i in range(word("n", n)))

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


def random_bits(
    key: KeyLike, shape: int | tuple[int, ...], bits: int = 16, *, use: str = "user", offset: int = 0
) -> npt.NDArray[Any]:
    """Uniform integers in [0, 2^bits): uint16 up to 16 bits, else uint32.

    Element i (C order) takes its bits from index offset + i, so any chunking gives the same bits.

    Raises:
        ValueError: bits outside 1..32, or an unknown use (allowed are "user" and "dropout").
    """
    if not 1 <= bits <= 32:
        raise ValueError(f"bits must be 1 to 32, not {bits}")
    if use not in ("user", "dropout"):
        raise ValueError(f"unknown use {use!r}; allowed are user, dropout")
    out = np.empty(shape, np.uint16 if bits <= 16 else np.uint32)
    backends.current().random_words(TAGS[use], bits, key_value(key), word("offset", offset), out)
    return out
