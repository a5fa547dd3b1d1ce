"""Which library an array belongs to, and the backends by name."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


def is_cupy(x: object) -> bool:
    """Whether x is a CuPy array. Costs nothing where CuPy was never imported."""
    # A CuPy array cannot be there without CuPy; importing it to ask would slow down everybody else.
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def refuse_cupy(x: object) -> None:
    """Raises a TypeError for a CuPy array, on which this cannot be computed."""
    if is_cupy(x):
        raise TypeError(
            "this runs on NumPy arrays only: give it x.get(); on a GPU (CuPy arrays) there is rounding, arithmetic, "
            "sums, products, convolutions, blocks and counts"
        )


def load(name: str) -> ModuleType:
    """The module of a backend. The reference and cuda are imported when they are first asked for."""
    return import_module(f"lowprec.backends.{name}")
