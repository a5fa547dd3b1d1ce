"""Accumulation: the half of a plan that is the bits; order and types of every sum, and nothing else."""

import hashlib
import math
from dataclasses import dataclass, replace

from lowprec import as_format
from lowprec.sums import ADDERS, run_length, stage_count


@dataclass(frozen=True)
class Accumulation:
    """The order and the types in which the K products of a dot product (or the K terms of a sum) are added.

    The K terms are cut into parts of whole groups. A part is one chain that starts at +0 and is rounded to the
    accumulator's format after every group; the parts are then summed in float32, ascending, in stages, and rounded to
    the accumulator's format between them and to the result's at the end. `lowprec.matmul` takes the same names, and its
    docstring tells every addition.

    Args:
        group: terms between two roundings of the accumulator (16: one pass of the AMP unit on halves).
        splits: parts wanted; parts that would be empty vanish, see :meth:`parts`.
        stages: stages in which the parts are summed, 1 to 3; None: one up to 15 parts, two up to 124, else three.
        types: names of the accumulator's and of the result's format.
        adder: order inside a group: "sequential", "dot4" or "pairwise".

    Raises:
        ValueError: a field out of range.
    """

    group: int = 16
    splits: int = 1
    stages: int | None = None
    types: tuple[str, str] = ("float32", "float32")
    adder: str = "sequential"

    def __post_init__(self) -> None:
        for name in ("group", "splits"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Accumulation: {name} must be an int of at least 1, not {value!r}")
        if self.stages not in (None, 1, 2, 3):
            raise ValueError(f"Accumulation: stages must be None, 1, 2 or 3, not {self.stages!r}")
        if self.adder not in ADDERS:
            raise ValueError(f"Accumulation: unknown adder {self.adder!r}; it is one of {', '.join(ADDERS)}")
        if len(self.types) != 2 or not all(isinstance(name, str) for name in self.types):
            raise ValueError(f"Accumulation: types must be two format names (accumulate, out), not {self.types!r}")
        for name in self.types:
            as_format(name)  # raises for an unknown one, with the names there are

    @staticmethod
    def default(size: int) -> "Accumulation":
        """One part for any K: the order that depends on no machine.

        Args:
            size: K, the number of terms; it does not matter to this choice.
        """
        del size
        return Accumulation()

    def with_types(self, accumulate: str, out: str) -> "Accumulation":
        """The same order in other types (a study keeps the order and varies the types)."""
        return replace(self, types=(accumulate, out))

    def chunk(self, size: int) -> int:
        """Terms in a part (the last may have fewer): whole groups, group*ceil(ceil(K/group)/splits)."""
        groups = math.ceil(size / self.group)
        return self.group * max(1, math.ceil(groups / self.splits))

    def parts(self, size: int) -> tuple[tuple[int, int], ...]:
        """Start and end of every part of K terms, ascending; empty parts vanish (none at all for K = 0)."""
        chunk = self.chunk(size)
        return tuple((start, min(size, start + chunk)) for start in range(0, size, chunk))

    def stage_runs(self, parts: int) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For every stage the runs (start, end) of the previous results that become one result.

        Two stages take contiguous runs of ceil(sqrt(parts)), three of the cube root; the last takes what is left.
        Rounded to the accumulator's format between stages and to the result's at the end.
        """
        stages = stage_count(parts) if self.stages is None else self.stages
        run = run_length(parts, stages)
        result = []
        for _ in range(stages - 1):
            runs = tuple((start, min(parts, start + run)) for start in range(0, parts, run))
            result.append(runs)
            parts = len(runs)
        return (*result, ((0, parts),))

    def words(self) -> str:
        """The Accumulation in one printed line; :meth:`digest` is its hash."""
        stages = "stages by number of parts" if self.stages is None else f"stages {self.stages}"
        return (
            f"group {self.group}, splits {self.splits}, {stages}, "
            f"accumulate {self.types[0]}, out {self.types[1]}, adder {self.adder}"
        )

    def digest(self) -> str:
        """SHA-256 of the printed form, in hexadecimal: the same in every process and on every machine."""
        return hashlib.sha256(self.words().encode()).hexdigest()
