"""The arithmetic of a product as one value: how operands are cast, added up and rounded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lowprec.rounding import astype, round
from lowprec.sums.matmul import matmul
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32
from lowprec.values.rounding import NEAREST_EVEN, Rounding


@dataclass(frozen=True)
class Operands:
    """The format that operands are cast to, from float32, and the rounding of that cast."""

    format: FloatFormat = float32
    rounding: Rounding = NEAREST_EVEN

    def cast(self, x: Array) -> Array:
        """x as operands of `lowprec.matmul`: in the format's storage dtype, or where it has none as float32."""
        if self == Operands():
            return x
        # A dtype where there is one: adders ask it for the smallest exponent and the significand's length.
        cast = round if self.format.dtype is None else astype
        how = self.rounding
        result: Array = cast(
            x, self.format, how.mode, overflow=how.overflow, infinite_input=how.infinite_input, flush=how.flush
        )
        return result

    def words(self) -> str:
        """The operands in one printed line."""
        return self.format.name if self == Operands() else f"{self.format.name} ({self.rounding.words()})"


@dataclass(frozen=True)
class Arithmetic:
    """Operands, Accumulation and Rounding of a product: called with float32 matrices it computes as they say.

    A `rounding` that flushes does so once, with the results: `lowprec.matmul` itself takes no such Rounding.

    Attributes:
        accumulation: order and types of a sum.
        rounding: of partial sums and results.
        operands: what operands are cast to before.
        promote: after at most so many products a partial sum is added to a float32 one, however long the sum is (see
            `Accumulation.promoted`); None: the Accumulation's own splits.
    """

    accumulation: Accumulation
    rounding: Rounding = NEAREST_EVEN
    operands: Operands = Operands()
    promote: int | None = None

    def __call__(self, a: Array, b: Array) -> Array:
        """The product of float32 matrices (m, k) and (k, n), in the storage dtype of the Accumulation's `out`."""
        left, right = self.operands.cast(a), self.operands.cast(b)
        plain = replace(self.rounding, flush=False)
        # A format without dtype has its values in float32.
        order = self.order(a.shape[1])
        stored = order if order.out.dtype is not None else order.with_types(order.accumulate, float32)
        result: Array = matmul(left, right, accumulation=stored, rounding=plain)
        if stored is not order:
            result = round(result, order.out, plain.mode, overflow=plain.overflow, infinite_input=plain.infinite_input)
        return np.asarray(round(result, order.out, flush=True)) if self.rounding.flush else result

    def order(self, terms: int) -> Accumulation:
        """The Accumulation of a sum of so many terms: its splits are what `promote` makes of them."""
        return self.accumulation if self.promote is None else self.accumulation.promoted(terms, self.promote)

    @property
    def takes_nan(self) -> bool:
        """Whether every format has a NaN: into others NaN is refused."""
        return all(
            fmt.nan != "none" for fmt in (self.operands.format, self.accumulation.accumulate, self.accumulation.out)
        )

    def words(self) -> str:
        """The arithmetic in one printed line."""
        sums = self.accumulation.words()
        if self.promote is not None:
            sums = ", ".join(word for word in sums.split(", ") if not word.startswith(("splits", "stages")))
            sums += f", promoted to float32 every {self.promote}"
        return f"operands {self.operands.words()}; {sums}; results and partial sums {self.rounding.words()}"
