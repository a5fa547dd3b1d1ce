"""The floating-point control register of a tile, as data ($FP_CTL)."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from lowprec import Rounding, as_format
from lowprec.checks import expect


@dataclass(frozen=True)
class FloatingPointControl:
    """What a tile does with exceptional results and inexact halves.

    Attributes:
        inv: raise when a result is NaN though no operand is (invalid operation).
        div0: raise when something is divided by zero.
        oflo: raise when a result from finite operands reaches the format's largest magnitude.
        esr: stochastic rounding of conversions float32 -> half and of half results read out of the accumulators.
        nanoo: an overflow to half or fp8 gives NaN; otherwise it saturates (a half infinity is never produced).

    The first three stop the run with a `FloatingPointException`. In a codelet of one's own they do so for what is
    assigned to outputs and for NumPy's operations, and cannot for what is computed otherwise: see `Codelet`.

    Raises:
        TypeError: a field that is neither True nor False.
    """

    inv: bool = False
    div0: bool = False
    oflo: bool = False
    esr: bool = False
    nanoo: bool = False

    def __post_init__(self) -> None:
        expect(bool, **vars(self))

    def overflow(self, fmt: Any) -> Literal["ipu", "ipu_nanoo"]:
        """lowprec's `overflow` argument for results in `fmt`: the preset "ipu", or "ipu_nanoo" with `nanoo`.

        Half and fp8 saturate ("ipu"; infinite inputs give the largest half, NaN in fp8) or give NaN ("ipu_nanoo");
        formats of more than 16 bits follow IEEE under both.

        Raises:
            ValueError: unknown format.
        """
        as_format(fmt)
        return "ipu_nanoo" if self.nanoo else "ipu"

    def rounding(self, rounding: Rounding, fmt: Any) -> Rounding:
        """A rounding with the overflow of results in `fmt` (or, of a sum, in the format it accumulates in).

        One that says itself what overflow gives keeps that; and formats that no machine has keep their own rule.
        """
        expect(Rounding, rounding=rounding)
        if rounding.overflow is not None or as_format(fmt).dtype is None:
            return rounding
        return _with_overflow(rounding, self.overflow(fmt))

    @property
    def traps(self) -> bool:
        """Whether any exception is enabled."""
        return self.inv or self.div0 or self.oflo


@lru_cache(maxsize=4096)
def _with_overflow(rounding: Rounding, overflow: Literal["ipu", "ipu_nanoo"]) -> Rounding:
    return replace(rounding, overflow=overflow)
