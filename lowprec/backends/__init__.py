"""The same calls behind several doors: `reference` (exact Python, it defines the answer) and `cpu` (compiled)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType, ModuleType

from lowprec.backends import cpu, reference

BACKENDS = MappingProxyType({"reference": reference, "cpu": cpu})

_current: ContextVar[ModuleType] = ContextVar("lowprec_backend", default=cpu)

current = _current.get
"""The backend in force: cpu unless `backend` says otherwise."""


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Within the context, every lowprec call runs on the named backend.

    Raises:
        ValueError: an unknown name.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(BACKENDS)}")
    token = _current.set(BACKENDS[name])
    try:
        yield
    finally:
        _current.reset(token)
