"""Collective: the order and the formats in which an all-reduce adds what several chips hold.

`lowprec.all_reduce` tells every addition in words. What a collective costs is a machine's to say, from the same value.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass
from typing import Literal, get_args

import numpy as np

from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import FormatLike, as_format, formats
from lowprec.values.keywords import RoundingLike, as_rounding
from lowprec.values.rounding import Rounding

Algorithm = Literal["ring", "ring_pair", "tree", "two_level"]

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@dataclass(frozen=True, init=False)
class Collective:
    """Order, formats and rounding of a sum over R chips, which decide its bits; `lowprec.all_reduce` says how.

    Args:
        algorithm: "ring", "ring_pair" (two rings in opposite directions, each with half of the elements), "tree"
            (neighbours in pairs, then pairs of pairs), or "two_level" (a ring in every group, then one across groups).
        first: the chip at which the first chunk begins; for "tree" the chip that has the sum; for "two_level" the
            member of a group and, of the second ring, the group. Taken modulo how many there are.
        group: chips of a group, neighbours; with "two_level", and only with it.
        wire: the format in which partial sums travel, and so that of the result.
        accumulate: the format that partial sums are rounded to before; None: `wire`, and they are rounded once.
        rounding: of partial sums and of what travels: a `Rounding`, or the name of a mode.

    Raises:
        TypeError: something that names no format or rounding, a number that is no integer.
        ValueError: an unknown algorithm, a field out of range, a group where there are none, a format without sign or
            zero.
    """

    algorithm: Algorithm
    first: int
    group: int | None
    wire: FloatFormat
    accumulate: FloatFormat | None
    rounding: Rounding

    def __init__(
        self,
        algorithm: Algorithm = "ring",
        first: int = 0,
        group: int | None = None,
        wire: FormatLike = "float32",
        accumulate: FormatLike | None = None,
        rounding: RoundingLike = "nearest_even",
    ) -> None:
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise ValueError(f"unknown algorithm {algorithm!r}; allowed are {', '.join(ALGORITHMS)}")
        if (group is None) is (algorithm == "two_level"):
            needs = "two_level needs group=, the chips of a group" if group is None else f"{algorithm} has no groups"
            raise ValueError(f"{needs}, not group={group!r}")
        how = as_rounding(rounding)
        how.refuse("collectives", exact=True)
        fields = {
            "algorithm": algorithm,
            "first": _count("first", first, 0),
            "group": None if group is None else _count("group", group, 1),
            "wire": _signed(as_format(wire)),
            "accumulate": None if accumulate is None else _signed(as_format(accumulate)),
            "rounding": how,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def partial(self) -> FloatFormat:
        """The format of partial sums on a chip."""
        return self.wire if self.accumulate is None else self.accumulate

    def words(self) -> str:
        """The Collective in one printed line; :meth:`digest` is its hash."""
        groups = "" if self.group is None else f" in groups of {self.group}"
        partial = "" if self.accumulate is None else f", partial sums {self.accumulate.name}"
        return f"{self.algorithm}{groups} from chip {self.first}, {self.wire.name}{partial}, {self.rounding.words()}"

    __str__ = words

    def digest(self) -> str:
        """SHA-256 of the printed form, in hexadecimal: the same in every process and on every machine."""
        own = [str(astuple(fmt)) for fmt in (self.wire, self.partial) if formats.get(fmt.name) != fmt]
        return hashlib.sha256("\n".join([self.words(), *own]).encode()).hexdigest()


def _count(name: str, value: object, least: int) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return int(value)


def _signed(fmt: FloatFormat) -> FloatFormat:
    if not (fmt.signed and fmt.zero):
        raise ValueError(f"{fmt.name} cannot hold a sum: it has no negative numbers or no zero")
    return fmt
