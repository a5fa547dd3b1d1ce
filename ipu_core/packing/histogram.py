"""How many sequences there are of each length: what a packing is made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowprec.checks import shown
from lowprec.types import Array

PUBLISHED = {"wikipedia": ("wikipedia_512.csv", 512), "squad": ("squad11_384.csv", 384)}
"""Histograms that come with the package, and the length that they were packed to: of BERT's pre-training on Wikipedia
and of SQuAD 1.1 (Krell et al. 2021, arXiv 2107.02027)."""


@dataclass(frozen=True)
class Histogram:
    """Sequences by length: `counts[n]` of them have n tokens. ``Histogram.of([3, 5, 5])``; frozen, hashable.

    Raises:
        TypeError, ValueError: counts that are no whole numbers from 0 on, empty sequences, or none at all.
    """

    counts: tuple[int, ...]

    def __init__(self, counts: Iterable[int]) -> None:
        given = _whole("counts", counts)
        if given.size and given[0]:
            raise ValueError(f"{given[0]:,} sequences are empty: none of them can be packed, leave them out")
        if not given.any():
            raise ValueError("a histogram needs at least one sequence")
        object.__setattr__(self, "counts", tuple(given[: int(np.flatnonzero(given)[-1]) + 1].tolist()))

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Histogram:
        """Of the lengths of sequences, in any order.

        Raises:
            TypeError, ValueError: lengths that are no whole numbers from 1 on, or none.
        """
        given = _whole("lengths", lengths)
        return cls(np.bincount(given)) if given.size else cls(())

    @classmethod
    def named(cls, name: str) -> tuple[Histogram, int]:
        """One of `PUBLISHED`, and the length that it was packed to.

        Raises:
            ValueError: there is no such histogram.
        """
        if name not in PUBLISHED:
            raise ValueError(f"there is no histogram {shown(name)}; there are {', '.join(PUBLISHED)}, and files (.csv)")
        file, length = PUBLISHED[name]
        return cls.read(Path(__file__).parent / file), length

    @classmethod
    def read(cls, path: str | Path) -> Histogram:
        """From a CSV file of two columns, length and count, with or without a line of their names.

        Raises:
            ValueError: the file cannot be read, or holds something else.
        """
        try:
            lines = Path(path).read_text("utf-8").split()
            rows = [tuple(map(int, line.split(","))) for line in lines[not lines[0][:1].isdecimal() :]]
            lengths, counts = np.array(rows, np.int64).reshape(len(rows), 2).T
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, IndexError, OverflowError):
            raise ValueError(f"{path} is no histogram: two columns are expected, length,count") from None
        if (lengths < 0).any() or (counts < 0).any() or lengths.max(initial=0) >= LONGEST:
            raise ValueError(f"{path}: lengths and counts are from 0 on, lengths below {LONGEST:,}")
        found = np.zeros(int(lengths.max(initial=0)) + 1, np.int64)
        np.add.at(found, lengths, counts)
        return cls(found)

    @property
    def sequences(self) -> int:
        """How many there are."""
        return sum(self.counts)

    @property
    def tokens(self) -> int:
        """Of all sequences."""
        return sum(length * count for length, count in enumerate(self.counts))

    @property
    def longest(self) -> int:
        """Tokens of the longest."""
        return len(self.counts) - 1

    def __repr__(self) -> str:
        return f"<Histogram: {self.sequences:,} sequences of {self.tokens:,} tokens, the longest of {self.longest:,}>"


LONGEST = 2**24
"""Tokens: far more than any model reads at once; more is taken for a mistake of columns."""


def _whole(name: str, given: Any) -> Array:
    """Whole numbers from 0 on, as int64."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{name} must be whole numbers in one row, not {shown(given)}")
    found = np.asarray(given if hasattr(given, "dtype") else list(given))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise TypeError(f"{name} must be whole numbers in one row, not {found.dtype} of shape {found.shape}")
    if found.size and (found.min() < 0 or (name == "lengths" and found.max() >= LONGEST)):
        raise ValueError(f"{name} must be from 0 on (lengths below {LONGEST:,}), not {found.min()} to {found.max()}")
    return found.astype(np.int64)
