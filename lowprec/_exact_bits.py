"""How many random bits make the stochastic law exact (`random_bits="exact"`)."""

from __future__ import annotations

import numpy as np

from lowprec._pieces import pieces
from lowprec.backends.owner import is_cupy
from lowprec.types import Array
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import format_of_dtype

LIMIT = 32  # the most that a stochastic rounding draws


def exact_random_bits(x: Array, fmt: FloatFormat) -> int:
    """Bits that cover every discarded bit of x: by its dtype where that is at most 32, else 32 after looking at x.

    Raises:
        ValueError: an element has more than 32 bits below the format's quantum; or x is on a GPU and would have to be
            looked at.
    """
    source = format_of_dtype(x.dtype)
    if source is None:
        # An integer has no bits below 1: at most so many lie below the last one that is kept.
        bound = 8 * x.dtype.itemsize - fmt.mantissa_bits
    else:
        spacing = min(source.smallest_subnormal, source.smallest_normal)
        lowest = np.frexp(spacing)[1] - 1
        # Discarded are bits of the significand or, of small numbers, those from the format's smallest step down to the
        # dtype's.
        quantum = fmt.emin if not fmt.subnormals else fmt.emin - fmt.mantissa_bits
        bound = max(source.mantissa_bits - fmt.mantissa_bits, quantum - int(lowest))
    # The answer is one number for the whole array: it would have to wait for the GPU.
    if bound > LIMIT and is_cupy(x):
        raise ValueError(f"random_bits='exact' would have to look at every {x.dtype} on the GPU; give 1 to {LIMIT}")
    if bound > LIMIT and not _covered(x, fmt):
        raise ValueError(
            f"exact stochastic rounding to {fmt.name} needs more than {LIMIT} random bits for some elements"
        )
    return max(1, min(bound, LIMIT))


def _covered(x: Array, fmt: FloatFormat) -> bool:
    """Whether every element's discarded fraction has at most 32 bits."""
    return all(_piece_covered(runs[0], fmt) for _, runs in pieces(x))


def _piece_covered(x: Array, fmt: FloatFormat) -> bool:
    if x.dtype.kind in "iu" and x.size and max(abs(int(x.min())), abs(int(x.max()))) > 1 << 53:
        # As Python's integers: float64 would round them before they are asked.
        whole = [abs(int(v)) for v in x]
        return all((v << LIMIT) % (1 << max(v.bit_length() - fmt.precision, 0)) == 0 for v in whole)
    values = np.abs(x[np.isfinite(x)].astype(np.float64))
    exponent = np.maximum(np.frexp(values)[1] - 1, fmt.emin) - fmt.mantissa_bits
    # In units of the last random bit: what is whole there is covered.
    scaled = np.ldexp(values, LIMIT - exponent)
    return bool(np.all(scaled == np.floor(scaled)))
