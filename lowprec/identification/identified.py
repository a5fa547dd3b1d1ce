"""What was identified: an arithmetic that reproduces a black box, or the first element that refutes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lowprec.checks import integer
from lowprec.identification.arithmetic import Arithmetic, Operands
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.rounding import Rounding

Kind = Literal["product", "sum"]


@dataclass(frozen=True, eq=False)
class Counterexample:
    """One element where a black box differs.

    Attributes:
        a, b: its terms, two float32 vectors (of a sum b is ones).
        given: what the black box gave.
        wanted: what the Accumulation gives.
    """

    a: Array
    b: Array
    given: float
    wanted: float

    def __str__(self) -> str:
        return f"of {len(self.a)} terms the black box gives {self.given!r}, the Accumulation {self.wanted!r}"


@dataclass(frozen=True)
class Identified:
    """What `identify` found; called with float32 matrices it computes as the black box does.

    Attributes:
        arithmetic: operands, Accumulation, Rounding and promotion that reproduce all that was compared, the simplest of
            those that do; None: nothing does, and `reason` says where the search ended.
        counterexample: of an arithmetic that reproduces what was asked on the way, the first difference in random
            elements; it is then not named, and `nearest` has it.
        nearest: the arithmetic that the counterexample refutes.
        terms: length of the sums compared.
        trials: random elements compared bit for bit.
        any_length: whether sums of other lengths were reproduced too.
        kind: "product" or "sum".
        reason: why nothing is named; "" where something is.
    """

    arithmetic: Arithmetic | None
    counterexample: Counterexample | None
    nearest: Arithmetic | None
    terms: int
    trials: int
    any_length: bool
    kind: Kind
    reason: str = ""

    @property
    def accumulation(self) -> Accumulation | None:
        """Order and types of sums; at other lengths than `terms` see `order`."""
        return None if self.arithmetic is None else self.arithmetic.order(self.terms)

    @property
    def rounding(self) -> Rounding | None:
        """Of partial sums and results, with its policies and flush."""
        return None if self.arithmetic is None else self.arithmetic.rounding

    @property
    def operands(self) -> Operands | None:
        """What operands are cast to, and how."""
        return None if self.arithmetic is None else self.arithmetic.operands

    @property
    def promote(self) -> int | None:
        """After so many terms partial sums are added to a float32 one, however long the sum; None: they are not."""
        return None if self.arithmetic is None else self.arithmetic.promote

    def order(self, terms: int) -> Accumulation:
        """The Accumulation of sums of so many terms.

        Raises:
            ValueError: nothing was found, or not for other lengths.
        """
        arithmetic = self._found()
        if terms != self.terms and not self.any_length:
            raise ValueError(f"it is known for sums of {self.terms} terms alone: those of other lengths differ")
        return arithmetic.order(integer("terms", terms, 1))

    def __call__(self, a: Array, b: Array | None = None) -> Array:
        """The product of float32 matrices (m, k) and (k, n); of kind "sum" the sum of a vector.

        Raises:
            TypeError: a second matrix that is missing, or one too many.
            ValueError: as of `order`.
        """
        if (b is None) != (self.kind == "sum"):
            raise TypeError(f"a {self.kind} takes {'one vector' if self.kind == 'sum' else 'two matrices'}")
        left, right = np.asarray(a, np.float32), None if b is None else np.asarray(b, np.float32)
        self.order(left.shape[-1])
        if right is not None:
            return self._found()(left, right)
        result: Array = self._found()(left[None], np.ones((len(left), 1), np.float32))[0, 0]
        return result

    def __str__(self) -> str:
        if self.arithmetic is None:
            return f"no known arithmetic: {self.reason}"
        lengths = "sums of every length tried" if self.any_length else f"sums of {self.terms} terms alone"
        return (
            f"{self.arithmetic.words()}; reproduces {self.trials:,} random {self.kind}s of {self.terms} terms bit for "
            f"bit; {lengths}"
        )

    def _found(self) -> Arithmetic:
        if self.arithmetic is None:
            raise ValueError(f"no arithmetic was found: {self.reason}")
        return self.arithmetic
