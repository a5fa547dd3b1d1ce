"""Packed rows: the tokens of several sequences side by side, with what keeps them apart.

What is written depends on the sequences, the options and the key alone, window by window, so that a stream can be cut
off anywhere and goes on to the same rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from ipu_core.packing.histogram import Histogram
from ipu_core.packing.plan import Packing
from ipu_core.packing.strategies import lpfhp, nnlshp, spfhp
from ipu_core.train.data.dataset import permutation
from lowprec.checks import integer, iterable, shown
from lowprec.random import KeyLike, as_key
from lowprec.types import Array

STRATEGIES: Final[dict[str, Callable[[Histogram, int, int | None], Packing]]] = {
    "lpfhp": lpfhp,
    "spfhp": spfhp,
    "nnlshp": lambda histogram, length, _: nnlshp(histogram, length),
}
ROWS = 512
WINDOW = 2**16
"""Sequences that are packed together: each kind of pack comes up often enough that no window ends in many open ones."""


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows of packed sequences, a data set for `ipu_core.Samples`; each sample is a dict of the first four by name.

    Attributes:
        tokens: (rows, length) int32; padding behind the sequences.
        positions: (rows, length) int32: of each token within its sequence, from 0; of padding 0.
        segments: (rows, length) int32: 1, 2, ... by sequence of the row; of padding 0.
        starts: (rows, depth) int32: where each sequence begins, its [CLS] if it has one; -1 where there is none.
        sources: (rows, depth) int64: the number of each sequence among all, from 0; -1 where there is none.
    """

    tokens: Array
    positions: Array
    segments: Array
    starts: Array
    sources: Array

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> dict[str, Array]:
        # Copies: who masks bytes of a sample must not change the rows.
        return {name: np.array(getattr(self, name)[row]) for name in ("tokens", "positions", "segments", "starts")}

    @classmethod
    def joined(cls, parts: Iterable[PackedRows]) -> PackedRows:
        """All rows of several, one after another."""
        listed = list(parts)
        return cls(*(np.concatenate([getattr(each, f.name) for each in listed]) for f in fields(cls)))

    @property
    def sequences(self) -> int:
        """How many there are in all rows."""
        return int((self.sources >= 0).sum())

    @property
    def efficiency(self) -> float:
        """Share of tokens that are a sequence's."""
        return float((self.segments > 0).mean())

    def sequence(self, row: int, number: int) -> Array:
        """The tokens of a row's sequence, numbered from 0; none where there is none."""
        found: Array = self.tokens[row][self.segments[row] == number + 1]
        return found

    def __repr__(self) -> str:
        return (
            f"<PackedRows: {len(self):,} rows of {self.tokens.shape[1]:,} tokens, {self.sequences:,} sequences, "
            f"{self.efficiency:.2%} filled>"
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    """How sequences are packed; what decides the rows beside the sequences and the key.

    Attributes:
        length: Tokens of a row.
        depth: Most sequences of a row.
        strategy: "lpfhp", "spfhp" or "nnlshp" (three sequences at most).
        window: Sequences that are packed together.
        padding: The token behind the sequences.

    Raises:
        TypeError, ValueError: one out of range.
    """

    length: int
    depth: int = 3
    strategy: str = "lpfhp"
    window: int = WINDOW
    padding: int = 0

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("depth", 1), ("window", 1), ("padding", 0)):
            object.__setattr__(self, name, integer(name, getattr(self, name), least, 2**31 - 1))
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy is {', '.join(STRATEGIES)}, not {shown(self.strategy)}")
        if self.strategy == "nnlshp" and self.depth < 3:
            raise ValueError(f"nnlshp puts up to three sequences into a row: depth must be 3 or more, not {self.depth}")


def pack(
    sequences: Iterable[Any], length: int, *, depth: int = 3, strategy: str = "lpfhp", window: int = WINDOW,
    key: KeyLike = 0, padding: int = 0,
) -> PackedRows:  # fmt: skip
    """Sequences as packed rows, all at once.

    Args:
        sequences: Arrays or lists of token numbers, each of 1 to `length`.
        length: Tokens of a row.
        depth: Most sequences of a row.
        strategy: "lpfhp", "spfhp" or "nnlshp", see those.
        window: So many sequences at a time are packed together.
        key: Which sequences of a length go together, and the order of the rows of a window.
        padding: The token behind the sequences.

    Raises:
        TypeError, ValueError: an option out of range; a sequence that is empty, longer than a row, or holds no whole
            numbers that int32 does, with its number; no sequences.
    """
    options = Options(length=length, depth=depth, strategy=strategy, window=window, padding=padding)
    parts = list(stream(sequences, options, key))
    if not parts:
        raise ValueError("there are no sequences to pack")
    return PackedRows.joined(parts)


def stream(sequences: Iterable[Any], options: Options, key: KeyLike = 0) -> Iterator[PackedRows]:
    """Packed rows of one window of sequences after another."""
    own, source = as_key(key), iter(iterable("sequences", sequences))
    for number in itertools.count():
        window = list(itertools.islice(source, options.window))
        if not window:
            return
        yield packed_window(window, options, own.fold_in(number), number * options.window)


def packed_window(window: list[Any], options: Options, key: KeyLike, first: int) -> PackedRows:
    """Sequences that are packed together; the first has this number among all."""
    arrays = [_checked(each, number, options.length) for number, each in enumerate(window, first)]
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    packing = STRATEGIES[options.strategy](Histogram.of(lengths), options.length, options.depth)
    return _laid_out(arrays, lengths, assigned(packing, lengths, key, options.depth), options, first)


def _checked(sequence: Any, number: int, most: int) -> Array:
    """A sequence as an array of whole numbers."""
    array = sequence if isinstance(sequence, np.ndarray) else np.asarray(sequence)
    if array.ndim != 1 or not 1 <= len(array) <= most:
        raise ValueError(f"sequence {number:,} must be 1 to {most:,} tokens in one row, not of shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"sequence {number:,} must hold whole numbers, not {array.dtype}")
    return array


def assigned(packing: Packing, lengths: Array, key: KeyLike, depth: int | None = None) -> Array:
    """Which sequence lies in each place of each pack: (packs, depth) int64, -1 in a place that none is there for.

    Args:
        packing: Has at least as many places for a length as sequences of it.
        lengths: Of each sequence.
        key: Draws which sequences of a length go together, and the order of the packs.
        depth: Columns; None: as many as the fullest pack has sequences.
    """
    own = as_key(key)
    kinds = np.full((len(packing.strategies), packing.depth), 0, np.int64)
    for row, each in enumerate(packing.strategies):
        kinds[row, : len(each)] = each
    wanted = np.repeat(kinds, packing.counts, axis=0)[permutation(packing.packs, (own.value, 1))]
    places = np.flatnonzero(wanted.ravel())
    places = places[np.argsort(wanted.ravel()[places], kind="stable")]
    drawn = permutation(len(lengths), (own.value, 2))
    order = drawn[np.argsort(lengths[drawn], kind="stable")]
    # Both by length: the k-th sequence of a length goes into its k-th place.
    asked, had = wanted.ravel()[places], lengths[order]
    rank = np.arange(len(order)) - np.searchsorted(had, had)
    found = np.full(wanted.size, -1, np.int64)
    found[places[np.searchsorted(asked, had) + rank]] = order
    members = found.reshape(wanted.shape)
    members = members[(members >= 0).any(axis=1)]
    # Sequences first: a place that nobody came for is behind them.
    members = np.take_along_axis(members, np.argsort(members < 0, axis=1, kind="stable"), axis=1)
    missing = max((depth or 0) - packing.depth, 0)
    padded: Array = np.pad(members, ((0, 0), (0, missing)), constant_values=-1)
    return padded


def _laid_out(arrays: list[Array], lengths: Array, members: Array, options: Options, first: int) -> PackedRows:
    """Rows of the sequences of each pack."""
    there = members >= 0
    own = np.where(there, lengths[members], 0).astype(np.int32)
    begins = np.cumsum(own, axis=1, dtype=np.int32) - own
    shape = len(members), options.length
    tokens, positions, segments = (np.zeros(shape, np.int32) for _ in range(3))
    starts, sources = np.where(there, begins, -1).astype(np.int32), np.where(there, members + first, -1)
    made = PackedRows(tokens, positions, segments, starts, sources)
    # As many rows at a time as a cache holds.
    for row in range(0, len(members), ROWS):
        part = slice(row, row + ROWS)
        _fill(made, part, [arrays[number] for number in members[part][there[part]]], begins[part], own[part], options)
    return made


def _fill(made: PackedRows, part: slice, arrays: list[Array], begins: Array, own: Array, options: Options) -> None:
    """Writes some rows, whose sequences lie one behind the other in `arrays`."""
    joined = np.concatenate(arrays)
    if joined.min() < 0 or joined.max() > 2**31 - 1:
        raise ValueError(f"tokens are numbers from 0 to 2^31 - 1, not {joined.min()} to {joined.max()}")
    place = np.arange(options.length, dtype=np.int32)
    filled = place < own.sum(axis=1, dtype=np.int32)[:, None]
    tokens, segments, positions = made.tokens[part], made.segments[part], made.positions[part]
    tokens[:] = options.padding
    tokens[filled] = joined
    positions += place
    for slot in range(own.shape[1]):
        reached = (place >= begins[:, slot, None]) & (own[:, slot, None] > 0)
        segments += reached
        # Where a sequence begins, the one before it is left behind.
        positions -= reached * (own[:, slot - 1, None] if slot else np.int32(0))
    segments *= filled
    positions *= filled
