"""Accumulation: the order and the types in which a sum is made, and the one home of their formulas.

`lowprec.matmul` tells every addition in words; the numbers that it speaks of are computed here and nowhere else.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from lowprec.integers import ceil_div
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import FormatLike, as_format, float32, formats

Adder = Literal["sequential", "dot4", "pairwise", "aligned"]
Stages = Literal[1, 2, 3]

ADDERS: tuple[str, ...] = get_args(Adder)
"""Orders of addition inside a group; the position is the number the kernels know it by."""

# A product cut 35 places behind the largest exponent is below 4 * 2^35 = 2^37 in units of the last place: the sum of
# 2^15 of them and the partial sum stays below 2^53, so that doubles add them exactly.
MOST_ALIGNED_BITS = 35
MOST_ALIGNED_TERMS = 1 << 15
"""A group of at most so many terms, of at most so many places each, is added exactly in float64."""

# The limits of PopLibs' convolution plan: above them it adds a stage. Part of the contract: golden files pin them.
ONE_STAGE_PARTS = 15
TWO_STAGE_PARTS = 124


class Cut(NamedTuple):
    """The numbers that an Accumulation gives for a sum of a known number of terms.

    Attributes:
        group: terms between two roundings.
        part: terms of a part (the last may have fewer).
        parts: number of parts; 0 where there are no terms.
        stages: number of stages in which the parts are summed.
        run: in every stage but the last, so many results are added to one.
    """

    group: int
    part: int
    parts: int
    stages: int
    run: int


@dataclass(frozen=True, init=False)
class Accumulation:
    """The order and the types in which the K products of a dot product (or the K terms of a sum) are added.

    The K terms are cut into parts of whole groups. A part is one chain that starts at +0 and is rounded to
    `accumulate` after every group; the parts are then summed in float32, ascending, in stages, and rounded to
    `accumulate` between them and to `out` at the end. `lowprec.matmul` tells every addition.

    Args:
        group: terms between two roundings of the accumulator (16: one pass of the IPU's AMP unit on halves);
            None: all of a part.
        splits: parts wanted; parts that would be empty vanish, see :meth:`parts`.
        stages: stages in which the parts are summed, 1 to 3; None: one up to 15 parts, two up to 124, else three.
        accumulate: the format partial sums are rounded to; float32 means no rounding beside the chain's own. One that
            float32 does not hold is for sums in float64, which `ipu_core` makes (see its `Precision`); here all refuse.
        out: the result's format; None: `accumulate`.
        adder: order inside a group: "sequential", "dot4", "pairwise" or "aligned".
        aligned_bits: with "aligned", and only with it: places that terms keep behind the largest exponent, 1 to 35.

    Raises:
        TypeError: something that names no format.
        ValueError: a field out of range, an unknown name, an accumulator that is none (`accumulator_format`).
    """

    group: int | None
    splits: int
    stages: Stages | None
    accumulate: FloatFormat
    out: FloatFormat
    adder: Adder
    aligned_bits: int | None

    def __init__(
        self,
        group: int | None = 16,
        splits: int = 1,
        stages: Stages | None = None,
        accumulate: FormatLike = "float32",
        out: FormatLike | None = None,
        adder: Adder = "sequential",
        aligned_bits: int | None = None,
    ) -> None:
        if not (group is None or _is_count(group)):
            raise ValueError(f"group must be an integer of at least 1, or None for all of a part, not {group!r}")
        if not _is_count(splits):
            raise ValueError(f"splits must be an integer of at least 1, not {splits!r}")
        if stages is not None and not (_is_count(stages) and stages <= 3):
            raise ValueError(f"stages must be 1, 2 or 3, or None for the number of parts to decide, not {stages!r}")
        if not isinstance(adder, str) or adder not in ADDERS:
            raise ValueError(f"unknown adder {adder!r}; allowed are {', '.join(ADDERS)}")
        _check_aligned(adder, group, aligned_bits)
        # NumPy's integers become ints: two equal Accumulations print, hash and are digested alike.
        chain = accumulator_format(accumulate)
        fields = {
            "group": None if group is None else int(group),
            "splits": int(splits),
            "stages": None if stages is None else int(stages),
            "accumulate": chain,
            "out": chain if out is None else as_format(out),
            "adder": adder,
            "aligned_bits": None if aligned_bits is None else int(aligned_bits),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

        object.__setattr__(self, "_hash", hash(tuple(fields.values())))

    def __hash__(self) -> int:
        return int(self._hash)  # type: ignore[attr-defined]  # a key of the caches that every call asks

    def __reduce__(self) -> tuple[type[Accumulation], tuple[Any, ...]]:
        # Made anew from the fields: hashes of strings differ between processes, so the stored hash must not travel.
        return Accumulation, tuple(getattr(self, name) for name in self.__dataclass_fields__)

    @cached_property
    def one_format(self) -> bool:
        """Whether the result has the accumulator's own format."""
        return self.accumulate == self.out

    def with_types(self, accumulate: FormatLike, out: FormatLike | None = None) -> Accumulation:
        """The same order in other types (a study keeps the order and varies the types)."""
        return Accumulation(self.group, self.splits, self.stages, accumulate, out, self.adder, self.aligned_bits)

    def promoted(self, terms: int, promote: int) -> Accumulation:
        """The same for sums of so many terms, in equal parts of at most `promote` of them, in whole groups.

        A group is no longer than a part; the parts are added to a float32 sum, in one stage.
        """
        group = None if self.group is None else min(self.group, promote)  # None: a group is all of a part
        most = promote // group * group if group else promote
        return replace(self, group=group, splits=max(1, ceil_div(terms, most)), stages=1)

    def one_part(self) -> Accumulation:
        """The Accumulation of a single part: this one's group, accumulator and adder; the result has its format."""
        return Accumulation(self.group, 1, 1, self.accumulate, None, self.adder, self.aligned_bits)

    def group_of(self, size: int) -> int:
        """Terms between two roundings in a sum of `size`: `group`, or all of a part."""
        # At least 1: the lengths of a sum of no terms are divided by it too.
        return self.group or max(1, ceil_div(size, self.splits))

    def part_length(self, size: int) -> int:
        """Terms in a part (the last may have fewer): whole groups, group * ceil(ceil(K / group) / splits)."""
        group = self.group_of(size)
        return group * max(1, ceil_div(ceil_div(size, group), self.splits))

    def parts(self, size: int) -> tuple[tuple[int, int], ...]:
        """Start and end of every part of K terms, ascending; empty parts vanish (none at all for K = 0)."""
        length = self.part_length(size)
        return tuple((start, min(size, start + length)) for start in range(0, size, length))

    def stage_shape(self, parts: int) -> tuple[int, int]:
        """(number of stages, results that are added to one in every stage but the last) for so many parts."""
        stages = stage_count(parts) if self.stages is None else self.stages
        return stages, run_length(parts, stages)

    def stage_runs(self, parts: int) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For every stage the runs (start, end) of the previous results that become one result.

        Two stages take contiguous runs of ceil(sqrt(parts)), three of the cube root; the last takes what is left.
        Rounded to the accumulator's format between stages and to the result's at the end.
        """
        stages, run = self.stage_shape(parts)
        result = []
        for _ in range(stages - 1):
            runs = tuple((start, min(parts, start + run)) for start in range(0, parts, run))
            result.append(runs)
            # The next stage's runs are as long, though fewer results are left: the root is that of all parts.
            parts = len(runs)
        return (*result, ((0, parts),))

    def cut(self, size: int) -> Cut:
        """The lengths and counts of a sum of `size` terms."""
        part = self.part_length(size)
        parts = ceil_div(size, part)
        return Cut(self.group_of(size), part, parts, *self.stage_shape(parts))

    def words(self) -> str:
        """The Accumulation in one printed line; :meth:`digest` is its hash."""
        types = f"accumulate {self.accumulate.name}, out {self.out.name}"
        return self.order_words().replace(", adder", f", {types}, adder")

    def order_words(self) -> str:
        """The order alone, without the types."""
        group = "all of a part" if self.group is None else self.group
        stages = "stages by number of parts" if self.stages is None else f"stages {self.stages}"
        kept = "" if self.aligned_bits is None else f" ({self.aligned_bits} bits)"
        return f"group {group}, splits {self.splits}, {stages}, adder {self.adder}{kept}"

    def digest(self) -> str:
        """SHA-256 of the printed form, in hexadecimal: the same in every process and on every machine.

        Formats of one's own count with all their numbers: their names do not identify them.
        """
        # Compared as formats, not by name: a user's format may have the name of a built-in one.
        own = [str(astuple(fmt)) for fmt in (self.accumulate, self.out) if formats.get(fmt.name) != fmt]
        return hashlib.sha256("\n".join([self.words(), *own]).encode()).hexdigest()


def accumulator_format(accumulate: FormatLike) -> FloatFormat:
    """The checked format of an accumulator: signed, with a zero.

    Raises:
        TypeError: something that names no format.
        ValueError: a format without sign or zero.
    """
    fmt = as_format(accumulate)
    if not (fmt.signed and fmt.zero):
        raise ValueError(f"{fmt.name} cannot accumulate: it has no negative numbers or no zero")
    return fmt


def check_float32_holds(accumulate: FloatFormat) -> None:
    """Refuses an accumulator with a value that float32 lacks, for sums that are made in float32.

    Raises:
        ValueError: it is one.
    """
    # Asked of all values, not of the number of bits: a bias can move a narrow format out of float32's range.
    if not float32.contains(accumulate):
        raise ValueError(
            f"{accumulate.name} cannot accumulate: partial sums are float32, which lacks some of its values; "
            "lowprec.sum and lowprec.dot add in any format, and out_format='float64' stores float32 sums"
        )


def stage_count(parts: int) -> Stages:
    """Stages in which parts are summed unless an Accumulation says otherwise (PopLibs' convolution plan)."""
    return 1 if parts <= ONE_STAGE_PARTS else 2 if parts <= TWO_STAGE_PARTS else 3


def run_length(parts: int, stages: int) -> int:
    """The smallest whole run with run**stages >= parts: ceil of the stages-th root, found without floats."""
    if stages == 1:
        return max(1, parts)
    run = 1
    # In whole numbers: the length of a run is part of the bits, and no rounding of a float root shall decide it.
    while run**stages < parts:
        run += 1
    return run


def _check_aligned(adder: str, group: int | None, bits: object) -> None:
    """Raises ValueError unless adder, group and aligned_bits fit together (see MOST_ALIGNED_BITS)."""
    if adder != "aligned":
        if bits is not None:
            raise ValueError(f"aligned_bits={bits!r} is for adder='aligned', not {adder!r}")
        return
    if not (_is_count(bits) and bits <= MOST_ALIGNED_BITS):  # type: ignore[operator]  # a count is a number
        raise ValueError(f"adder='aligned' needs aligned_bits, 1 to {MOST_ALIGNED_BITS}, not {bits!r}")
    if group is None or group > MOST_ALIGNED_TERMS:
        raise ValueError(f"adder='aligned' needs a group of at most {MOST_ALIGNED_TERMS} products, not {group!r}")


def _is_count(value: object) -> bool:
    # True is an int in Python, but splits=True is a mistake.
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 1
