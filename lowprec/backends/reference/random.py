"""Philox4x32 and the map from an element's index to its random bits, in plain integers.

Philox: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from lowprec._caching import cached
from lowprec.types import Array

Words = tuple[int, int, int, int]
MASK = 0xFFFFFFFF
# Two tags: draws of more than 16 bits lie in their counters in another way, and must not share words with the others.
ROUNDING, ROUNDING_WIDE = 1, 2


@cached  # the words of a counter serve eight elements, of wide draws four
def philox(counter: Words, key: int, rounds: int = 10) -> Words:
    """Four 32-bit words from a 128-bit counter and a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & MASK, key >> 32
    for _ in range(rounds):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK, (a >> 32) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def half_word(position: int) -> tuple[int, int, int]:
    """Position 0..63 of a block -> (counter 0..7, word 0..3, half 0..1; 0 is the low half)."""
    # In this order vectors of counters give the words of neighbouring elements without a transpose, and a GPU's thread
    # writes whole pairs. Golden files pin it.
    return (position >> 1) & 7, 2 * ((position >> 5) & 1) + (position & 1), (position >> 4) & 1


def whole_word(position: int) -> tuple[int, int]:
    """Position 0..31 of a wide block -> (counter 0..7, word 0..3)."""
    return (position >> 1) & 7, 2 * ((position >> 4) & 1) + (position & 1)


def element_bits(tag: int, bits: int, key: int, index: int) -> int:
    """The random bits of the element of an index: the top `bits` of its half-word (up to 16 bits) or of its word."""
    if bits <= 16:
        lane, word, half = half_word(index & 63)
        counter = 8 * (index >> 6) + lane
        whole = philox((tag << 24, counter & MASK, (counter >> 32) & MASK, 0), key)[word]
        return (whole >> 16 * half & 0xFFFF) >> (16 - bits)
    lane, word = whole_word(index & 31)
    counter = 8 * (index >> 5) + lane
    return philox((tag << 24, counter & MASK, (counter >> 32) & MASK, 0), key)[word] >> (32 - bits)


def rounding_bits(bits: int, key: int, index: int) -> int:
    """The random bits that round element `index`."""
    return element_bits(ROUNDING if bits <= 16 else ROUNDING_WIDE, bits, key, index)


def random_words(tag: int, bits: int, key: int, offset: int, out: Array) -> None:
    """Fills out with the bits of indices offset, offset + 1, ..."""
    for i in range(out.size):
        out.flat[i] = element_bits(tag, bits, key, offset + i)


def fold_in(key: int, n: int) -> int:
    """The 64 bits of `Key.fold_in(n)`."""
    return _derived(11, key, n)


def split(key: int, i: int) -> int:
    """The 64 bits of the i-th key of `Key.split`."""
    return _derived(12, key, i)


def _derived(tag: int, key: int, n: int) -> int:
    """Words 0 and 1 of the counter (tag << 24, n low, n high, 0)."""
    low, high, _, _ = philox((tag << 24, n & MASK, n >> 32, 0), key)
    # The key's low word first, as Random123's known-answer vectors have it.
    return high << 32 | low
