"""Pairs of sentences for BERT, out of a text's bytes: packed, masked, and the batch of any step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ipu_core.packing.histogram import Histogram
from ipu_core.packing.rows import PackedRows, pack
from ipu_core.train.data.dataset import permutation, shuffled
from ipu_core.train.data.text import Bytes
from lowprec.types import Array

BYTES = 256
CLS, SEP, MASK = BYTES, BYTES + 1, BYTES + 2
SYMBOLS = BYTES + 4  # a multiple of four
SEQUENCES, HELD_OUT = 8192, 256
SHORTEST = 12  # [CLS], two [SEP], and some bytes
SHARE = 0.15  # of a sequence's bytes are asked for: four fifths are hidden, a tenth each another byte or as it is
LONGEST = 512  # of the published histogram of lengths


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sequences in rows, and what is asked about each.

    Attributes:
        rows: [CLS], the first sentence's bytes, [SEP], the second's, [SEP]; several a row where they are packed.
        first: tokens of each sequence up to its first [SEP], that included.
        follows: of each sequence whether the second sentence follows the first in the text.
        factor: sequences of a row on average.
    """

    rows: PackedRows
    first: Array
    follows: Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def factor(self) -> float:
        """Sequences of a row on average."""
        return self.rows.sequences / len(self)


@functools.lru_cache(maxsize=4)
def _made(data: bytes, context: int, depth: int, count: int, strategy: str) -> Sentences:
    return _packed(np.frombuffer(data, np.uint8), context, depth, count, strategy)


def made(data: Bytes, context: int, depth: int, strategy: str = "lpfhp") -> Sentences:
    """Pairs of sentences of a text, up to `depth` in each row of `context` tokens.

    Lengths are those of BERT's pre-training on Wikipedia, as a share of the longest. Places and lengths depend on the
    text and the context alone, so that all depths have the same sequences.

    Raises:
        ValueError: rows that are too short for a sequence, or a text that is.
    """
    return _made(data.tobytes(), context, depth, SEQUENCES, strategy)


def tested(data: Bytes, context: int) -> Sentences:
    """Such of the part of a text that is not trained on, one a row."""
    return _made(data.tobytes(), context, 1, HELD_OUT, "lpfhp")


def _packed(data: Bytes, context: int, depth: int, count: int, strategy: str) -> Sentences:
    if context < SHORTEST:
        raise ValueError(f"a sequence needs {SHORTEST} tokens at least: context {context} is too short")
    if len(data) < 2 * context:
        raise ValueError(f"a text of {len(data)} bytes is too short for pairs of sentences of {context}")
    histogram, _ = Histogram.named("wikipedia")
    words = np.random.Philox(key=np.array((len(data), context), np.uint64)).random_raw((count, 4))
    # By the histogram's own counts: which sequence of all a word names.
    drawn = np.searchsorted(np.cumsum(histogram.counts), (words[:, 0] % np.uint64(histogram.sequences)), "right")
    lengths = np.maximum(-(-drawn * context // LONGEST), SHORTEST)
    content = lengths - 3
    first, follows = content // 2, (words[:, 1] & np.uint64(1)).astype(np.int32)
    begin, other = ((words[:, which] % (len(data) - context)).astype(np.int64) for which in (2, 3))
    sequences = []
    for own, a, start, away, true in zip(content, first, begin, other, follows, strict=True):
        second = start + a if true else away
        pair = data[start : start + a], data[second : second + own - a]
        sequences.append(np.concatenate([[CLS], pair[0], [SEP], pair[1], [SEP]]))
    return Sentences(pack(sequences, context, depth=depth, strategy=strategy), first + 2, follows)


def batches(task: Sentences, size: int, seed: int) -> Callable[[int], dict[str, Array]]:
    """The batch of any step: rows drawn without repetition in every pass, what is masked drawn anew in each.

    Which bytes of a sequence are masked depends on the seed, the pass and the sequence, however it is packed.

    Raises:
        ValueError: an empty batch, or one with more rows than there are.
    """
    order, passes = shuffled(len(task), size, seed), len(task) // size

    def batch(step: int) -> dict[str, Array]:
        return asked(task, order(step), (seed, step // passes))

    return batch


def asked(task: Sentences, chosen: Array, key: tuple[int, int]) -> dict[str, Array]:
    """Rows with their masked bytes, and everything that the loss asks about them.

    Args:
        task: which has the rows.
        chosen: their numbers.
        key: seed and pass, which decide with the sequence what is masked.
    """
    rows = task.rows
    tokens, positions, segments = (array[chosen].copy() for array in (rows.tokens, rows.positions, rows.segments))
    starts, sources = rows.starts[chosen], rows.sources[chosen]
    context, depth = tokens.shape[1], sources.shape[1]
    most = round(SHARE * context) + depth
    places, masked, counts = (np.zeros((len(chosen), most), kind) for kind in (np.int32, np.int32, np.float32))
    types = np.zeros_like(tokens)
    for row, own in enumerate(sources):
        found: list[Array] = []
        for slot in np.flatnonzero(own >= 0):
            where = np.flatnonzero(segments[row] == slot + 1)
            types[row, where[task.first[own[slot]] :]] = 1
            found.append(_hidden(tokens[row], where, int(own[slot]), key, masked[row], sum(map(len, found))))
        joined = np.concatenate(found)
        places[row, : len(joined)] = joined
        counts[row, : len(joined)] = 1
    there = sources >= 0
    return {
        "tokens": tokens, "positions": positions, "segments": segments, "types": types, "places": places,
        "masked": masked, "counts": counts, "starts": np.where(there, starts, 0).astype(np.int32),
        "next": np.where(there, task.follows[sources], 0).astype(np.int32), "there": there.astype(np.float32),
    }  # fmt: skip


def _hidden(tokens: Array, where: Array, sequence: int, key: tuple[int, int], masked: Array, first: int) -> Array:
    """Hides bytes of one sequence and gives their places in the row; what they were goes to `masked`, from first on."""
    bytes_at = where[tokens[where] < BYTES]
    # Two words a sequence: which bytes, and what becomes of them.
    drawn = (key[0] * 0x9E3779B97F4A7C15 + key[1]) % 2**64, sequence
    chosen = bytes_at[permutation(len(bytes_at), drawn)[: max(1, round(SHARE * len(bytes_at)))]]
    words = np.random.Philox(key=np.array(drawn, np.uint64) + np.uint64(1)).random_raw((len(chosen), 2))
    masked[first : first + len(chosen)] = tokens[chosen]
    kind = words[:, 0] % np.uint64(10)
    other = np.where(kind == 8, (words[:, 1] % np.uint64(BYTES)).astype(np.int32), tokens[chosen])
    tokens[chosen] = np.where(kind < 8, MASK, other)
    return chosen
