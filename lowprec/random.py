"""Explicit random keys and counter-based random bits (Philox4x32-10; Salmon et al., SC 2011).

Bits are a pure function of key, purpose and index: never of threads, chunks, instruction set, device or earlier calls.
"""

from __future__ import annotations

import operator
from typing import SupportsIndex

import numpy as np

from lowprec import backends
from lowprec.types import Array
from lowprec.values.keys import TAGS, RawKey, first_index, key_value, word
from lowprec.values.keys import KeyLike as KeyLike

_END = 1 << 64


class Key(RawKey):
    """A random key: 64 bits, the two words of a Philox4x32 key (low word first).

    Keys are values: equal seeds make equal keys, they hash, pickle and print, and nothing changes them. Derive a new
    key for every use with `fold_in` (a number you have, such as a step) or `split`.

    Args:
        seed: any integer in [0, 2^64).

    Raises:
        TypeError: the seed is no integer.
        ValueError: it is outside [0, 2^64).
    """

    __slots__ = ()

    def fold_in(self, n: SupportsIndex) -> Key:
        """The key for number n in [0, 2^64): words 0 and 1 of Philox of the counter (11 << 24, n low, n high, 0)."""
        # A training step folds several keys: the usual case is spared the general check.
        number = n if type(n) is int and 0 <= n < _END else word("n", n)
        return Key(backends.current().fold_in(self.value, number))

    def split(self, n: int = 2) -> tuple[Key, ...]:
        """n new keys; the i-th is words 0 and 1 of Philox of the counter (12 << 24, i low, i high, 0).

        Raises:
            TypeError, ValueError: n is no integer in [0, 2^24]; for more keys than that there is `fold_in`.
        """
        # A tuple of more is a slip, and would fill the memory before it was noticed.
        if word("n", n) > 1 << 24:
            raise ValueError(f"split makes at most 2^24 keys, not {n}; fold_in(i) gives the i-th of any number")
        split = backends.current().split
        return tuple(Key(split(self.value, i)) for i in range(operator.index(n)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.value == other.value

    def __hash__(self) -> int:
        return hash((Key, self.value))

    def __repr__(self) -> str:
        return f"Key({self.value:#x})"

    def __reduce__(self) -> tuple[type[Key], tuple[int]]:
        return Key, (self.value,)


def as_key(key: KeyLike) -> Key:
    """The key itself, or Key(key) of an integer."""
    return key if isinstance(key, Key) else Key(key_value(key))


def random_bits(
    key: KeyLike, shape: int | tuple[int, ...], bits: int = 16, *, use: str = "user", offset: int = 0
) -> Array:
    """Uniform integers in [0, 2^bits): uint16 up to 16 bits, else uint32.

    Element i (C order) takes its bits from index offset + i, so any chunking gives the same bits.

    Raises:
        TypeError: bits is no integer, or the shape is none.
        ValueError: bits outside 1..32, or an unknown use (allowed are "user" and "dropout").
    """
    if not isinstance(bits, (int, np.integer)):
        raise TypeError(f"bits must be an integer of 1 to 32, not {bits!r}")
    if not 1 <= bits <= 32:
        raise ValueError(f"bits must be 1 to 32, not {bits}")
    if use not in ("user", "dropout"):
        raise ValueError(f"unknown use {use!r}; allowed are user, dropout")
    try:
        # The width of what a draw is cut from: half a word, or a whole one.
        out = np.empty(shape, np.uint16 if bits <= 16 else np.uint32)
    except TypeError:
        raise TypeError(f"shape must be an integer or a tuple of integers, not {shape!r}") from None
    backends.current().random_words(TAGS[use], int(bits), key_value(key), first_index(offset, out.size), out)
    return out
