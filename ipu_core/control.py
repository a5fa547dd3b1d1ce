"""The floating-point control register of a tile, as data ($FP_CTL)."""

from dataclasses import dataclass
from typing import Any

from lowprec import as_format

__all__ = ["FloatingPointControl"]


@dataclass(frozen=True)
class FloatingPointControl:
    """What a tile does with exceptional results and inexact halves.

    Attributes:
        inv: raise when a result is NaN though no operand is (invalid operation).
        div0: raise when something is divided by zero.
        oflo: raise when a result from finite operands reaches the format's largest magnitude.
        esr: stochastic rounding of conversions float32 -> half and of half results read out of the accumulators.
        nanoo: an overflow to half or fp8 gives NaN; otherwise it saturates (a half infinity is never produced).
    """

    inv: bool = False
    div0: bool = False
    oflo: bool = False
    esr: bool = False
    nanoo: bool = False

    def overflow(self, fmt: Any) -> str | None:
        """lowprec's `overflow` argument for results in `fmt`: "saturate" or "nan"; None (the format's rule) for float32."""
        return None if self._ieee(fmt) else "nan" if self.nanoo else "saturate"

    def infinite_input(self, fmt: Any) -> str | None:
        """lowprec's `infinite_input` for results in `fmt`: fp8 gives NaN always, half NaN or the largest value."""
        if self._ieee(fmt):
            return None
        return "nan" if self.nanoo or as_format(fmt).exponent_bits + as_format(fmt).mantissa_bits < 10 else "max"

    @property
    def traps(self) -> bool:
        """Whether any exception is enabled."""
        return self.inv or self.div0 or self.oflo

    @staticmethod
    def _ieee(fmt: Any) -> bool:
        return as_format(fmt).name in ("float32", "float64", "bfloat16", "tfloat32")
