"""The instruction set of the compiled loops, as a context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lowprec import _kernels


def isa_names() -> list[str]:
    """The instruction sets this machine can run, worst first."""
    return _kernels.isa_names()


@contextmanager
def isa(name: str) -> Iterator[None]:
    """Within the context, the compiled loops are those of the named instruction set (for the whole process).

    Raises:
        ValueError: not one of `isa_names()`.
    """
    before = _kernels.isa()
    _kernels.set_isa(name)
    try:
        yield
    finally:
        _kernels.set_isa(before)
