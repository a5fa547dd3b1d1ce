"""The reference backend: exact, slow Python, written to be read. It defines the answer."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from lowprec.backends.reference.arithmetic import arithmetic, column_sums, fill
from lowprec.backends.reference.blocks import (
    dequantize,
    largest_magnitude,
    quantize,
    scale_and_round,
    spread_power,
)
from lowprec.backends.reference.convolution import correlate, correlate_gradient, correlate_windows, weight_sums
from lowprec.backends.reference.counting import changes, magnitudes, underflows
from lowprec.backends.reference.elementwise import elementwise
from lowprec.backends.reference.packing import pack, unpack
from lowprec.backends.reference.products import maximum, product, reduce, scatter, sum_parts
from lowprec.backends.reference.random import fold_in, random_words, split
from lowprec.backends.reference.rounding import convert, decode
from lowprec.processor import in_default_state

__all__ = [
    "arithmetic",
    "changes",
    "column_sums",
    "convert",
    "correlate",
    "correlate_gradient",
    "correlate_windows",
    "decode",
    "dequantize",
    "elementwise",
    "fill",
    "fold_in",
    "largest_magnitude",
    "magnitudes",
    "maximum",
    "pack",
    "product",
    "quantize",
    "random_words",
    "reduce",
    "scale_and_round",
    "scatter",
    "split",
    "spread_power",
    "sum_parts",
    "underflows",
    "unpack",
    "weight_sums",
]


def _door(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run in the processor's default state; where it returns a prepared call, that runs in it too."""

    @wraps(function)
    @in_default_state
    def door(*args: Any, **keywords: Any) -> Any:
        # Products and sums are made in two steps: the call that a specification gives computes later.
        result = function(*args, **keywords)
        return in_default_state(result) if callable(result) else result

    return door


# Python's floats are the processor's: a rounding direction that some library has set would change the definition.
globals().update({name: _door(globals()[name]) for name in __all__})
