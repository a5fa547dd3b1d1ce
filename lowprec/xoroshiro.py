"""xoroshiro128aox, the IPU's hardware generator (Hanlon and Felix, arXiv 2203.04058).

The state is two 64-bit words. Seeding per tile and worker follows PopLibs' setSeed and the $PRNG_SEED register.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lowprec.types import Array
from lowprec.values.keys import word

MASK = 0xFFFFFFFFFFFFFFFF
MASK32 = 0xFFFFFFFF

# x^(2^64) modulo the characteristic polynomial of the state's transition (constants 55, 14, 36): 2^64 steps at once.
JUMP = 0xD86B048B86AA9922_BEAC0467EBA5FACB

Word = TypeVar("Word", int, Array)


def rotate(x: Word, k: int) -> Word:
    """x rotated left by k bits, 0 < k < 64."""
    return ((x << k) | (x >> (64 - k))) & MASK


def step(s0: Word, s1: Word) -> tuple[Word, Word, Word]:
    """One step of the generator: output, new s0, new s1. Works on integers and on uint64 arrays of many states."""
    sx = s0 ^ s1
    sa = s0 & s1
    output = sx ^ (rotate(sa, 1) | rotate(sa, 2))
    # Masked, since Python's integers do not end at 64 bits.
    return output, rotate(s0, 55) ^ sx ^ ((sx << 14) & MASK), rotate(sx, 36)


def tile_state(seed: tuple[int, int], modifier: int, tile: int, worker: int) -> tuple[int, int]:
    """The state that PopLibs' setSeed gives to a worker of a tile, before its warm-up draws.

    Args:
        seed: two 32-bit words.
        modifier: 32-bit seed modifier.
        tile: number of the tile.
        worker: number of the worker, 0 to 5 on the machine (the field has four bits).

    Raises:
        TypeError: the seed is no pair, or a number no integer.
        ValueError: a number outside its range.
    """
    if not isinstance(seed, (Sequence, np.ndarray)) or len(seed) != 2:
        raise TypeError(f"seed must be a pair of 32-bit words, not {seed!r}")
    for what, number, limit in (
        ("seed[0]", seed[0], 1 << 32),
        ("seed[1]", seed[1], 1 << 32),
        ("modifier", modifier, 1 << 32),
        ("tile", tile, 1 << 28),
        ("worker", worker, 16),
    ):
        if not isinstance(number, (int, np.integer)):
            raise TypeError(f"{what} must be an integer, not {number!r}")
        if not 0 <= number < limit:
            raise ValueError(f"{what} must be in [0, {limit}), not {number}")
    # The tile's number above four bits for the worker, in PopLibs' constants.
    low = (((int(tile) << 4) ^ 0xAAAAAAA0) | int(worker)) & MASK32
    return int(seed[0]) | int(seed[1]) << 32, low | (int(modifier) ^ 0x55555555) << 32


def register_state(value: int) -> tuple[int, int]:
    """The state after writing a 32-bit value to $PRNG_SEED.

    Raises:
        ValueError: the value is outside [0, 2^32).
    """
    if not 0 <= value <= MASK32:
        raise ValueError(f"a $PRNG_SEED value must be in [0, 2^32), not {value}")
    inverse = ~value & MASK32
    # As the instruction set's description of $PRNG_SEED gives the four words.
    word2 = ((value << 13) | (inverse >> 19)) & MASK32
    word3 = ((inverse << 13) | (value >> 19)) & MASK32
    return value | inverse << 32, word2 | word3 << 32


class Xoroshiro128aox:
    """A generator with state: each draw advances it.

    Args:
        s0: first 64-bit word of the state.
        s1: second 64-bit word; both zero is not a state.

    Raises:
        TypeError: a word is no integer.
        ValueError: a word outside [0, 2^64), or both zero.
    """

    __slots__ = ("s0", "s1")

    def __init__(self, s0: int, s1: int) -> None:
        self.s0, self.s1 = word("a state word", s0), word("a state word", s1)
        if self.s0 == self.s1 == 0:
            raise ValueError("the state (0, 0) never leaves itself; give another")

    @classmethod
    def for_tile(
        cls, seed: tuple[int, int], *, modifier: int = 0, tile: int = 0, worker: int = 0, warm_up: int = 15
    ) -> Xoroshiro128aox:
        """The generator of one worker after setSeed.

        Args:
            seed, modifier, tile, worker: as in `tile_state`.
            warm_up: instructions whose random numbers are thrown away, 15 (10 before November 2020). Like every
                instruction that consumes random numbers, each advances the state by two steps.

        Raises:
            TypeError, ValueError: as `tile_state`.
        """
        generator = cls(*tile_state(seed, modifier, tile, worker))
        for _ in range(2 * word("warm_up", warm_up)):
            generator.next()
        return generator

    def next(self) -> int:
        """The next 64-bit output."""
        output, self.s0, self.s1 = step(self.s0, self.s1)
        return output

    def draw(self, n: int) -> npt.NDArray[np.uint64]:
        """The next n outputs."""
        return np.array([self.next() for _ in range(word("n", n))], np.uint64)

    def jump(self) -> None:
        """Advances by 2^64 steps: 2^64 generators that never overlap start from one seed this way."""
        s0 = s1 = 0
        for bit in range(128):
            if JUMP >> bit & 1:
                # The polynomial's terms are added up as states: stepping is linear over bits, though the output is not.
                s0, s1 = s0 ^ self.s0, s1 ^ self.s1
            self.next()
        self.s0, self.s1 = s0, s1

    def copy(self) -> Xoroshiro128aox:
        """Another generator in the same state."""
        return Xoroshiro128aox(self.s0, self.s1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Xoroshiro128aox) and (self.s0, self.s1) == (other.s0, other.s1)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Xoroshiro128aox({self.s0:#x}, {self.s1:#x})"
