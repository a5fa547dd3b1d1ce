"""The same calls behind several doors: `reference` (exact Python, the definition), `cpu` (compiled) and `cuda`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType, ModuleType

from lowprec.backends import cpu, cuda, reference

BACKENDS = MappingProxyType({"reference": reference, "cpu": cpu, "cuda": cuda})

_current: ContextVar[ModuleType] = ContextVar("lowprec_backend", default=cpu)

current = _current.get
"""The backend in force: cpu unless `backend` says otherwise."""


def of(array: object) -> ModuleType:
    """The backend that computes with this array: cuda for CuPy's, else the one in force."""
    return cuda if cuda.is_cupy(array) else _current.get()


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Within the context, every lowprec call on NumPy arrays runs on the named backend.

    CuPy arrays run on their own device anywhere. On "cuda", NumPy arrays travel to the GPU and back: it is for tests.

    Raises:
        ValueError: an unknown name.
        ImportError, RuntimeError: "cuda" without CuPy or without a GPU; one sentence says what is missing.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(BACKENDS)}")
    if BACKENDS[name] is cuda:
        cuda.check()
    token = _current.set(BACKENDS[name])
    try:
        yield
    finally:
        _current.reset(token)
