"""Whose an array is."""

from __future__ import annotations

import sys


def is_cupy(x: object) -> bool:
    """Whether x is a CuPy array. Costs nothing where CuPy was never imported."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)
