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
    """

    accumulation: Accumulation
    rounding: Rounding = NEAREST_EVEN
    operands: Operands = Operands()

    def __call__(self, a: Array, b: Array) -> Array:
        """The product of float32 matrices (m, k) and (k, n), in the storage dtype of the Accumulation's `out`."""
        left, right = self.operands.cast(a), self.operands.cast(b)
        plain = replace(self.rounding, flush=False)
        result: Array = matmul(left, right, accumulation=self.accumulation, rounding=plain)
        if self.rounding.flush:
            return np.asarray(round(result, self.accumulation.out, flush=True))
        return result

    def words(self) -> str:
        """The arithmetic in one printed line."""
        return (
            f"operands {self.operands.words()}; {self.accumulation.words()}; results and partial sums "
            f"{self.rounding.words()}"
        )
