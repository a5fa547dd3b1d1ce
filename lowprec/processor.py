"""The processor's default state for what Python and NumPy compute here; the compiled loops see to themselves.

A caller may have changed the rounding direction, or have subnormal numbers flushed to zero (torch.set_flush_denormal, a
library linked with -ffast-math): results never depend on it, and it is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from lowprec._kernels import DefaultState

P = ParamSpec("P")
R = TypeVar("R")


def in_default_state(function: Callable[P, R]) -> Callable[P, R]:
    """The function, computing in the processor's default state. For those that return at once: no generators."""

    # Not of generators: their bodies would run after the state was put back.
    @wraps(function)
    def door(*args: P.args, **keywords: P.kwargs) -> R:
        with DefaultState():
            return function(*args, **keywords)

    return door
