"""A cache of pure results that keeps the function's signature for type checkers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def cached(function: Function) -> Function:
    """Remembers the last 4096 results; the arguments must be hashable (formats, names, dtypes and numbers are).

    Arguments are told apart by type: group=16.0 is refused even after group=16 was taken.
    """
    # Bounded: a sweep over formats or seeds would otherwise keep every plan it ever made.
    return cast(Function, lru_cache(maxsize=4096, typed=True)(function))
