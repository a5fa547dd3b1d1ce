"""`identify`: the arithmetic of a product or sum that is only called, as an Accumulation, a Rounding and operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowprec.checks import integer
from lowprec.identification.arithmetic import Arithmetic, Operands
from lowprec.identification.black_box import BlackBox, Kind
from lowprec.identification.comparison import Counterexample, first_difference
from lowprec.identification.search import NothingFits, Search
from lowprec.processor import in_default_state
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.rounding import Rounding

SHORTEST, LONGEST = 64, 8192


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


@in_default_state
def identify(
    f: Callable[..., Any], *, kind: Kind = "product", trials: int = 10**6, terms: int = 1024, key: int = 0
) -> Identified:
    """The arithmetic of a black box: what reproduces its results bit for bit, or where that fails.

    Chosen inputs narrow down, in this order, what operands are cast to and how (from products of two numbers), the
    range of operands and results with their rules for overflow, infinities and subnormal results, the adder with the
    bits that it keeps, the accumulator and its rounding (from four terms whose larger ones cancel), the products of a
    group, parts and stages (from the longest sums that one group, then one part reproduces), and whether at other
    lengths parts keep their number or their length (a promotion to float32 at a fixed interval). Every step computes
    the candidates and keeps those whose bits agree; `trials` random elements decide. Of candidates that no bit tells
    apart the simplest is named: float32 sums in order have no groups, so that group=16 stands for any.

    Known are operands in any format of at most float32's exponents, one for both factors; every Accumulation of
    `lowprec.matmul` whose accumulator has float32's exponents or those of the results; the deterministic roundings.
    Anything else (several running sums, a scale, unfused products, order by blocks of several lengths) is refused with
    the step at which candidates ran out.

    Args:
        f: f(a, b) takes float32 matrices (m, k) and (k, n) and casts as it likes; of kind "sum" f(x) takes a vector.
            Matrices have multiples of 16 rows, columns and terms where `terms` is one.
        trials: random elements to compare at last.
        terms: length of the sums; groups and parts up to it are found. Twice as many are asked too.
        key: of the random numbers, at least 0.

    Raises:
        TypeError: results that are no array of float32 or narrower.
        ValueError: f is not deterministic or gives another shape; numbers out of range.

    References:
        Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330
        (2021); Xie et al., "FPRev" (arXiv 2411.00442) and "MMA-Sim" (arXiv 2511.10909), for what there is to find.
    """
    terms, trials = integer("terms", terms, SHORTEST, LONGEST), integer("trials", trials, 1)
    box = BlackBox(f, kind)
    search = Search(box, terms, np.random.default_rng(integer("key", key, 0)))

    first: tuple[Arithmetic, Counterexample] | None = None
    try:
        for candidate in search.run():
            # The same random elements for each.
            wrong = first_difference(box, candidate, np.random.default_rng((key, 1)), terms, trials)
            if wrong is None:
                return Identified(candidate, None, candidate, terms, trials, search.any_length, kind)
            first = first or (candidate, wrong)
    except NothingFits as nothing:
        return Identified(None, None, None, terms, trials, False, kind, str(nothing))
    assert first is not None
    nearest, wrong = first
    why = f"{nearest.words()} reproduces the chosen inputs, but {wrong}"
    return Identified(None, wrong, nearest, terms, trials, False, kind, why)
