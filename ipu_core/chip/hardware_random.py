"""The tiles' own random generator: xoroshiro128aox per worker, seeded and consumed as the hardware does.

Sources: Hanlon & Felix, arXiv 2203.04058 (the generator); the public Poplar and PopLibs repositories (state registers,
setSeed, $PRNG_SEED, replica seeds); the conversion rule is derived: it is the one rule found that reproduces the
counts of PopLibs' own test of stochastic rounding, on hardware and on its simulator.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ipu_core.chip.integers import Ints
from ipu_core.errors import Unvalidated
from lowprec.checks import integer, listed, shown, truth
from lowprec.xoroshiro import register_state
from lowprec.xoroshiro import step as aox_step

Words = NDArray[np.uint64]

WARM_UP: Final = 15  # draws after setSeed
WARM_UP_2019: Final = 10  # the same before November 2020
_STEPS_PER_INSTRUCTION: Final = 2
_DISCARDED: Final = 13  # significand bits that float32 has and half has not
_LOW: Final = np.uint64(0xFFFFFFFF)
_LARGEST: Final = 65504.0
_LANES: Final = 4  # numbers of 16 bits in an output


class WorkerState(NamedTuple):
    """The 128-bit state of many workers: s0 = PRNG_0_1:PRNG_0_0 and s1 = PRNG_1_1:PRNG_1_0, arrays of one shape."""

    s0: Words
    s1: Words


def set_seed(
    seed: Sequence[int], modifier: int, tiles: ArrayLike, workers: ArrayLike, *, warm_up: int = WARM_UP
) -> WorkerState:
    """PopLibs' setSeed on every given tile and worker (the two are broadcast together).

    Args:
        seed: two 32-bit words.
        modifier: 32 bits.
        tiles, workers: tile and worker numbers.
        warm_up: draws thrown away; 15, or 10 before November 2020. A draw is an instruction, two steps (the published
            counts come out exactly so, and not with one step).

    Raises:
        ValueError: the seed has not two words, or a word is outside 32 bits.
    """
    if len(seed) != 2 or not all(0 <= word < 1 << 32 for word in (*seed, modifier)):
        raise ValueError(f"setSeed takes two 32-bit words and a 32-bit modifier, not {tuple(seed)}, {modifier}")
    tile, worker = np.broadcast_arrays(np.asarray(tiles, np.uint64), np.asarray(workers, np.uint64))
    low = (((tile << np.uint64(4)) ^ np.uint64(0xAAAAAAA0)) | worker) & _LOW
    high = np.uint64(modifier ^ 0x55555555)
    state = WorkerState(np.full(tile.shape, seed[1] << 32 | seed[0], np.uint64), high << np.uint64(32) | low)
    for _ in range(warm_up * _STEPS_PER_INSTRUCTION):
        state, _ = step(state)
    return state


def write_prng_seed(value: int) -> WorkerState:
    """The state of one worker after writing a 32-bit value to $PRNG_SEED.

    Raises:
        ValueError: the value is outside 32 bits.
    """
    s0, s1 = register_state(value)
    return WorkerState(np.asarray(s0, np.uint64), np.asarray(s1, np.uint64))


def replica_seed(seed: Sequence[int], replica: int, *, identical: bool) -> tuple[int, int]:
    """The seed words of a replica: one seed for all, or the 64-bit seed plus the replica's index.

    Identical seeds are for what must be equal on all replicas, such as weight updates; differing ones for the rest.

    Raises:
        ValueError: a negative replica.
    """
    if replica < 0:
        raise ValueError(f"replica must be at least 0, not {replica}")
    # one 64-bit number, so that a carry reaches the upper word
    word = (seed[1] << 32 | seed[0]) + (0 if identical else replica)
    return word & 0xFFFFFFFF, word >> 32 & 0xFFFFFFFF


def step(state: WorkerState) -> tuple[WorkerState, Words]:
    """Advances every worker by one step: (new state, 64-bit outputs)."""
    output, s0, s1 = aox_step(state.s0, state.s1)
    return WorkerState(s0, s1), output


def outputs(state: WorkerState, instructions: int) -> tuple[WorkerState, Words]:
    """The first of the two outputs of each of so many instructions that consume randomness.

    Returns:
        The state afterwards and an array of shape (instructions, *state shape).
    """
    drawn = np.empty((instructions, *state.s0.shape), np.uint64)
    for i in range(instructions):
        state, drawn[i] = step(state)
        for _ in range(_STEPS_PER_INSTRUCTION - 1):
            state, _ = step(state)
    return state, drawn


def half_from_bits(x: ArrayLike, random: Words) -> NDArray[np.float16]:
    """float32 values converted to half stochastically with given generator outputs (broadcast together).

    The low 13 bits of the output are added to the 13 discarded bits; a carry rounds up. Overflow and infinities
    saturate, NaN stays NaN. Subnormal results use the same 13 bits against the fraction that the subnormal grid
    discards; that is not documented.

    Warns:
        Unvalidated: a result is subnormal.
    """
    values = np.asarray(x, np.float32)
    tiny = (np.abs(values) < np.float32(2.0**-14)) & (values != 0)
    if tiny.any():
        warnings.warn("stochastic conversion to half subnormals follows no public source", Unvalidated, stacklevel=2)
    return _half(values, random)


def _half(values: NDArray[np.float32], random: Words, nanoo: bool = False) -> NDArray[np.float16]:
    """The halves of `half_from_bits`; with `nanoo` NaN where they overflow."""
    values, words = np.broadcast_arrays(values, random)
    mask = np.uint64((1 << _DISCARDED) - 1)
    bits = values.view(np.uint32) if values.flags.c_contiguous else values.copy().view(np.uint32)
    carried = (bits + (words & mask).astype(np.uint32)) & np.uint32(0xFFFFFFFF - int(mask))
    with np.errstate(over="ignore"):
        rounded = carried.view(np.float32).astype(np.float64)
    subnormal = _subnormal(values, words)
    result = np.where(np.abs(values) < 2.0**-14, subnormal, rounded)
    # the machine never makes a half infinity: NaN with nanoo, else the largest half
    undefined = np.isnan(values) | (np.abs(result) > _LARGEST) if nanoo else np.isnan(values)
    return np.where(undefined, np.nan, np.clip(result, -_LARGEST, _LARGEST)).astype(np.float16)


def float32_to_half(x: ArrayLike, state: WorkerState) -> tuple[WorkerState, NDArray[np.float16]]:
    """Converts values along the first axis one instruction after another on every worker.

    Args:
        x: float32, shape (n, *state shape) or broadcastable to it.
        state: the workers' generators.

    Returns:
        The state afterwards and the halves.
    """
    values = np.asarray(x, np.float32)
    state, drawn = outputs(state, values.shape[0])
    return state, half_from_bits(values, drawn)


def _subnormal(values: NDArray[Any], words: Words) -> NDArray[np.float64]:
    """The same rule on the grid of half's subnormals, 2^-24: 13 random bits against the discarded fraction."""
    scaled = np.where(np.isfinite(values), np.abs(values.astype(np.float64)), 0.0) * 2.0**24
    fraction = (words & np.uint64((1 << _DISCARDED) - 1)).astype(np.float64) / (1 << _DISCARDED)
    result: NDArray[np.float64] = np.copysign(np.floor(scaled + fraction) * 2.0**-24, values)
    return result


@dataclass(frozen=True)
class HardwareRandom:
    """How the generators of all tiles of a chip start: the arguments of setSeed, and of a replica its number.

    Attributes:
        seed: two 32-bit words.
        modifier: 32 bits.
        replica, identical: see `replica_seed`.
        warm_up: see `set_seed`.

    Raises:
        TypeError, ValueError: words outside 32 bits; no whole numbers.
    """

    seed: tuple[int, int] = (0, 0)
    modifier: int = 0
    replica: int = 0
    identical: bool = False
    warm_up: int = WARM_UP

    def __post_init__(self) -> None:
        words = listed("seed", self.seed)
        if len(words) != 2:
            raise ValueError(f"seed must be two 32-bit words, not {shown(self.seed)}")
        own = {
            "seed": tuple(integer(f"seed[{place}]", word, 0, 0xFFFFFFFF) for place, word in enumerate(words)),
            "modifier": integer("modifier", self.modifier, 0, 0xFFFFFFFF),
            "replica": integer("replica", self.replica, 0),
            "identical": truth("identical", self.identical),
            "warm_up": integer("warm_up", self.warm_up, 0),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def state(self, tiles: int, workers: int) -> WorkerState:
        """The state of every worker of every tile, of shape (tiles, workers).

        Raises:
            ValueError: see `set_seed` and `replica_seed`.
        """
        seed = replica_seed(self.seed, self.replica, identical=self.identical)
        return set_seed(seed, self.modifier, np.arange(tiles)[:, None], np.arange(workers), warm_up=self.warm_up)


class TileRandom:
    """The generators of all workers of all tiles while programs run.

    What is documented of one conversion is not of many: which worker converts which of a vertex's results, and which
    bits of an output the lanes of a vector instruction take. Here a vertex takes its results four by four in C order,
    the i-th four on worker i modulo their number, by one instruction, whose lane l adds the low 13 of bits 16 l to
    16 l + 15 of its output (lane 0 is the documented one). Vertices of a tile draw one after another.

    Attributes:
        state: of shape (tiles, workers).

    Warns:
        Unvalidated: always, for the sake of the above.
    """

    def __init__(self, state: WorkerState) -> None:
        self.state = WorkerState(*(np.array(words, np.uint64) for words in state))
        warnings.warn(
            "the order in which vertices draw, the lanes of vector conversions, the accumulators' read-out and half "
            "subnormals follow no public source: these random bits are not validated on hardware",
            Unvalidated,
            stacklevel=2,
        )

    def restore(self, state: WorkerState) -> None:
        """Goes on from another state.

        Raises:
            ValueError: of another shape.
        """
        for own, words in zip(self.state, state, strict=True):
            if np.shape(words) != own.shape:
                raise ValueError(
                    f"the generators of (tiles, workers) {own.shape} have no state of shape {np.shape(words)}"
                )
            own[...] = words

    def draw(self, tiles: Ints, count: int) -> NDArray[np.uint16]:
        """Numbers of 16 bits for `count` results of each of some vertices, which lie on these tiles.

        Returns:
            Shape (vertices, count).
        """
        drawn = np.empty((tiles.size, count), np.uint16)
        left = np.arange(tiles.size)
        while left.size:  # a vertex on each tile at a time
            first = np.unique(tiles[left], return_index=True)[1]
            drawn[left[first]] = self._draw_once(tiles[left[first]], count)
            left = np.delete(left, first)
        return drawn

    def _draw_once(self, tiles: Ints, count: int) -> NDArray[np.uint16]:
        workers = self.state.s0.shape[1]
        vectors = -(-count // _LANES)
        drawn = np.empty((tiles.size, vectors), np.uint64)
        s0, s1 = (words[tiles] for words in self.state)
        for first in range(0, vectors, workers):
            busy = min(workers, vectors - first)
            after, words = outputs(WorkerState(s0[:, :busy], s1[:, :busy]), 1)
            s0[:, :busy], s1[:, :busy] = after
            drawn[:, first : first + busy] = words[0]
        self.state.s0[tiles], self.state.s1[tiles] = s0, s1
        lanes = drawn[..., None] >> (np.arange(_LANES, dtype=np.uint64) * np.uint64(16))
        return (lanes & np.uint64(0xFFFF)).astype(np.uint16).reshape(tiles.size, -1)[:, :count]


class Draws:
    """The random numbers that the vertices of a group draw.

    Args:
        random: the generators of the chip.
        tiles: the tiles of the vertices, in C order of the vertex axes.
    """

    def __init__(self, random: TileRandom, tiles: Ints) -> None:
        self._random, self._tiles = random, tiles.ravel()

    def words(self, shape: tuple[int, ...]) -> NDArray[np.uint16]:
        """A number of 16 bits for every result of the group, vertices first, each one's results in C order."""
        count = int(np.prod(shape, dtype=np.int64)) // max(1, self._tiles.size)
        return self._random.draw(self._tiles, count).reshape(shape)

    def half(self, values: NDArray[Any], nanoo: bool) -> NDArray[np.float16]:
        """float32 results of the group, vertices first, converted to half stochastically.

        Args:
            values: the results.
            nanoo: whether an overflow gives NaN; else it saturates.
        """
        return _half(np.asarray(values, np.float32), self.words(values.shape).astype(np.uint64), nanoo)
