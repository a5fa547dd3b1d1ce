"""A cache of pure results that keeps the function's signature for type checkers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def cached(function: Function) -> Function:
    """Remembers the last 4096 results; the arguments must be hashable (formats, names, dtypes and numbers are).

    16.0 is not 16: what is refused at first stays refused.
    """
    return cast(Function, lru_cache(maxsize=4096, typed=True)(function))


def refuse_unhashable(**given: object) -> None:
    """Says which argument is no name or number, where a cache could only say that something is unhashable.

    Raises:
        TypeError: one of them cannot be hashed.
    """
    for what, value in given.items():
        try:
            hash(value)
        except TypeError:
            raise TypeError(f"{what} must be a name, a number, a bool or None, not {value!r}") from None
