"""How many threads the compiled loops use. Results never depend on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import numpy as np


def _default() -> int:
    """LOWPREC_NUM_THREADS, or 0 for OpenMP's own default."""
    text = os.environ.get("LOWPREC_NUM_THREADS", "0")
    if not text.isdecimal():
        raise ValueError(f"LOWPREC_NUM_THREADS must be a positive integer, not {text!r}")
    return int(text)


_DEFAULT = _default()
_threads: ContextVar[int] = ContextVar("lowprec_threads", default=_DEFAULT)

current = _threads.get
"""The number of threads in force; 0 means OpenMP's default."""


def num_threads(n: int) -> AbstractContextManager[None]:
    """Within the context, lowprec's loops use at most n threads.

    Raises:
        ValueError: n is no integer or less than 1.
    """
    if not isinstance(n, (int, np.integer)) or n < 1:
        raise ValueError(f"num_threads needs an integer of at least 1, not {n!r}")
    return _in_force(int(n))


@contextmanager
def _in_force(n: int) -> Iterator[None]:
    token = _threads.set(n)
    try:
        yield
    finally:
        _threads.reset(token)
