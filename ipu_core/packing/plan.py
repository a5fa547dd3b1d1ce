"""A packing: which lengths lie in one row together, how often, and what that saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ipu_core.packing.histogram import Histogram
from ipu_core.study.plot import Picture, plain
from ipu_core.train.table import Table
from lowprec.extras import optional

Strategy = tuple[int, ...]
"""The lengths of the sequences of a pack, the longest first."""


@dataclass(frozen=True)
class Packing:
    """Packs of one length that hold all sequences of a histogram.

    Attributes:
        histogram: What is packed.
        length: Tokens of a pack.
        strategies: The lengths that lie in a pack together, the longest first; each kind of pack once.
        counts: How many packs of each there are. They have at least as many places for a length as sequences have it;
            what a place is left empty for is padding.
    """

    histogram: Histogram
    length: int
    strategies: tuple[Strategy, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, histogram: Histogram, length: int, packs: Mapping[Strategy, int]) -> Packing:
        """Of packs by strategy; those there are none of are left out."""
        found = {tuple(sorted(lengths, reverse=True)): 0 for lengths, count in packs.items() if count}
        for lengths, count in packs.items():
            if count:
                found[tuple(sorted(lengths, reverse=True))] += count
        order = sorted(found, reverse=True)
        return cls(histogram, length, tuple(order), tuple(found[each] for each in order))

    @property
    def packs(self) -> int:
        """Rows that are needed."""
        return sum(self.counts)

    @property
    def tokens(self) -> int:
        """Of all packs, padding among them."""
        return self.packs * self.length

    @property
    def padding(self) -> int:
        """Tokens of no sequence."""
        return self.tokens - self.histogram.tokens

    @property
    def efficiency(self) -> float:
        """Share of tokens that are a sequence's, from 0 to 1."""
        return self.histogram.tokens / self.tokens

    @property
    def factor(self) -> float:
        """Sequences of a pack on average: p of LAMB's beta^p, and what a batch of packs holds more than one of rows."""
        return self.histogram.sequences / self.packs

    @property
    def depth(self) -> int:
        """Sequences of the fullest pack."""
        return max(map(len, self.strategies))

    def places(self) -> list[int]:
        """Places for each length, from 0 on."""
        found = [0] * (self.length + 1)
        for lengths, count in zip(self.strategies, self.counts, strict=True):
            for each in lengths:
                found[each] += count
        return found

    def table(self) -> Table:
        """Packs by how many sequences they hold, and all of them."""
        rows = []
        for depth in range(1, self.depth + 1):
            own = [(each, n) for each, n in zip(self.strategies, self.counts, strict=True) if len(each) == depth]
            packs = sum(n for _, n in own)
            filled = sum(sum(each) * n for each, n in own)
            if packs:
                share = f"{filled / (packs * self.length):.1%}"
                rows.append((str(depth), f"{len(own):,}", f"{packs:,}", f"{packs / self.packs:.1%}", share))
        whole = ("all", f"{len(self.strategies):,}", f"{self.packs:,}", "100.0%", f"{self.efficiency:.1%}")
        note = (
            f"{self.histogram.sequences:,} sequences of {self.histogram.tokens:,} tokens in packs of {self.length}: "
            f"{self.tokens:,} tokens, {self.padding:,} of padding ({1 - self.efficiency:.2%}), "
            f"{self.factor:.3f} sequences a pack"
        )
        return Table("Packs", ("sequences", "kinds", "packs", "share", "filled"), (*rows, whole), note)

    def plot(self) -> Picture:
        """Sequences by length, and what lies in the packs by how many they hold (needs matplotlib)."""
        figure = optional("matplotlib.figure", extra="study").Figure((10.4, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        counts = np.array(self.histogram.counts)
        width = max(1, -(-len(counts) // 64))
        bins = np.add.reduceat(counts, np.arange(0, len(counts), width))
        left.bar(np.arange(len(bins)) * width, bins, width, align="edge", color="#0072B2")
        left.set(xlabel="tokens of a sequence", ylabel="sequences", xlim=(0, self.length))
        left.set_title(f"{self.histogram.sequences:,} sequences", loc="left", fontsize=10)
        depths = np.array([len(each) for each in self.strategies])
        filled = np.array([sum(each) for each in self.strategies], np.float64) * self.counts
        lengths = np.arange(1, self.depth + 1)
        real = np.array([filled[depths == each].sum() for each in lengths])
        whole = np.array([np.array(self.counts)[depths == each].sum() for each in lengths]) * float(self.length)
        right.bar(lengths, real, color="#0072B2", label="tokens of sequences")
        right.bar(lengths, whole - real, bottom=real, color="#d5d5d5", label="padding")
        right.set(xlabel="sequences of a pack", ylabel="tokens")
        right.xaxis.get_major_locator().set_params(integer=True)
        right.set_title(f"{self.packs:,} packs of {self.length}, {self.efficiency:.1%} filled", loc="left", fontsize=10)
        right.legend(frameon=False)
        for axes in (left, right):
            plain(axes)
        return Picture(figure)

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        return (
            f"<Packing: {self.packs:,} packs of {self.length}, {len(self.strategies):,} kinds, "
            f"{self.efficiency:.2%} filled, {self.factor:.3f} sequences a pack>"
        )
