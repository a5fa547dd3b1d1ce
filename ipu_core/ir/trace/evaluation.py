"""Whether what is traced now is to be evaluated and not trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_EVALUATES: ContextVar[bool] = ContextVar("evaluates", default=False)


@contextmanager
def evaluation() -> Iterator[None]:
    """Of what is traced inside, however deep and by whichever pass, dropout keeps all elements."""
    outer = _EVALUATES.set(True)
    try:
        yield
    finally:
        _EVALUATES.reset(outer)


def evaluates() -> bool:
    """Whether this is inside of `evaluation`."""
    return _EVALUATES.get()
