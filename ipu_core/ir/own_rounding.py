"""A rounding of one's own: a NumPy function in place of a mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import FloatFormat, Key, Rounding, astype, random_bits
from lowprec import round as rounded_values
from lowprec.checks import shown

Floats = npt.NDArray[Any]


def _none(*_: Any) -> Floats:
    raise TypeError("OwnRounding needs a function")


@dataclass(frozen=True, repr=False)
class OwnRounding(Rounding):
    """How values are rounded, as a function says.

        def to_powers_of_two(x):
            return np.exp2(np.round(np.log2(np.abs(x)))) * np.sign(x)

        nn.round(x, "float32", OwnRounding(to_powers_of_two))
        Precision.parse("fp32.32").changed(roundings={"weights": OwnRounding(to_powers_of_two)})

    Attributes:
        function: f(x) -> y, or f(x, words) where it `draws`: x is a float32 array of any shape (a float64 one where it
            or the format is wider), y one of the same shape, of numbers of the format that they are rounded to (of
            float32: whatever the function gives). words are uint32, as many as x, uniform in [0, 2^draws), each decided
            by the key and the element's index. It is called with whole arrays, must not change x, and depend on nothing
            else.
        draws: random bits of an element, 1 to 32; 0: none.
        name: what it is called in tables and digests, so that studies tell it from others: the function's by default.

    Raises:
        TypeError: no function.
        ValueError: draws out of range; a mode, or a policy, which the function alone decides.
    """

    function: Callable[..., Any] = _none
    draws: int = 0
    name: str = ""

    def __init__(self, function: Callable[..., Any], draws: int = 0, name: str | None = None) -> None:
        if not callable(function):
            raise TypeError(f"OwnRounding needs a function, not {shown(function)}")
        if type(draws) is not int or not 0 <= draws <= 32:
            raise ValueError(f"draws must be a number of random bits from 0 to 32, not {shown(draws)}")
        super().__init__("stochastic" if draws else "nearest_even", draws or 16)
        called = getattr(function, "__qualname__", type(function).__name__) if name is None else name
        for field, value in (("function", function), ("draws", draws), ("name", called)):
            object.__setattr__(self, field, value)

    def __repr__(self) -> str:
        return f"<OwnRounding {self.name}>"

    def words(self) -> str:
        """What it is called, in one printed line."""
        return f"own rounding {self.name}" + (f", random bits {self.draws}" if self.draws else "")

    def refuse(self, what: str, *, exact: bool = False, flush: bool = False) -> None:
        """Refuses partial sums, which are rounded inside of products.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"a rounding of one's own is for results, not for {what}")

    def called(self, x: Floats, fmt: FloatFormat, key: Key | None) -> npt.NDArray[Any]:
        """The rounded values, in the format's dtype, or in that of x where it has none.

        Raises:
            ValueError: the function gives another shape, or what is no number of the format.
        """
        words = () if not self.draws else (random_bits(key, x.shape, self.draws),) if key is not None else None
        if words is None:
            raise ValueError(f"{self.words()} needs a key")
        given = x.view()
        given.flags.writeable = False  # it may be the caller's own array
        result = np.asarray(self.function(given, *words))
        if result.shape != x.shape:
            raise ValueError(f"{self.words()} gave an array of shape {result.shape} for one of {x.shape}")
        values = result.astype(x.dtype)
        nearest = np.asarray(rounded_values(values, fmt))
        if not np.array_equal(nearest, result, equal_nan=True):
            wrong = result[~((nearest == result) | (np.isnan(nearest) & np.isnan(result)))].flat[0]
            raise ValueError(f"{self.words()} gave {wrong:.9g}, which is no number of {fmt.name}")
        return nearest if fmt.dtype is None else np.asarray(astype(nearest, fmt))
