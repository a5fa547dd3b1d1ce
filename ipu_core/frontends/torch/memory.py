"""The host's memory while a module is compared with what was captured of it."""

from __future__ import annotations

import ctypes
import importlib.util
import sys

from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.passes.recompute import recompute

LARGE = 1 << 30
"""Bytes of all results together, from which on it is worth the pass to make cheap ones again."""


def lean(block: Block) -> Block:
    """A Block with the same results that keeps less for its gradients where they are large, see `recompute`."""
    large = sum(equation.output.type.nbytes for equation in equations_of(block)) > LARGE
    return recompute(block) if large and importlib.util.find_spec("scipy") is not None else block


def give_back() -> None:
    """Gives what torch freed back to the system.

    glibc keeps results of a few MiB for the next of them, and large arrays of NumPy take other memory.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
