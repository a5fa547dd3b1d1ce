"""The cuda backend: rounding and decoding of CuPy arrays, by the CPU's own headers compiled with NVRTC.

Arrays choose it: `round`, `astype`, `encode` and `decode` of a CuPy array run on its device, on CuPy's current stream,
without copies, and return CuPy arrays with the bits that the CPU gives. CuPy is imported when it is first needed.
"""

from typing import Any

from lowprec.backends.cpu import random_words
from lowprec.backends.cuda.device import check, output_array
from lowprec.backends.cuda.rounding import as_codes, convert, decode
from lowprec.backends.owner import is_cupy

__all__ = ["as_codes", "check", "convert", "decode", "is_cupy", "output_array", "random_words"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"the cuda backend has round, astype, encode and decode, but no {name}; use the cpu backend")
