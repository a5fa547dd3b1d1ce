"""The backends, modules of the same functions: `reference` (exact Python, the definition), `cpu` (compiled), `cuda`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from lowprec.backends import cpu
from lowprec.backends.owner import is_cupy
from lowprec.backends.owner import load as load

NAMES = ("reference", "cpu", "cuda")

# Of a thread or asyncio task: a test's backend must not reach the threads beside it.
_current: ContextVar[ModuleType] = ContextVar("lowprec_backend", default=cpu)

current = _current.get
"""The backend in force: cpu unless `backend` says otherwise."""


def of(array: object) -> ModuleType:
    """The backend that computes with this array: cuda for CuPy's, else the one in force."""
    return load("cuda") if is_cupy(array) else _current.get()


def prepared(name: str, *specification: Hashable) -> Callable[[], Callable[..., Any]]:
    """A function f of which f() is the prepared call of the backend in force at that time.

    Args:
        name: of the backends' function that makes a prepared call from a specification.
        specification: that function's arguments.
    """
    # Made at once: what is refused is refused when a call is prepared, and the usual case looks nothing up.
    native, current = getattr(cpu, name)(*specification), _current.get

    def chosen() -> Callable[..., Any]:
        backend = current()
        return native if backend is cpu else getattr(backend, name)(*specification)  # type: ignore[no-any-return]

    return chosen


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Within the context, every lowprec call on NumPy arrays runs on the named backend.

    CuPy arrays run on their own device anywhere. On "cuda", NumPy arrays travel to the GPU and back: it is for tests.

    Raises:
        ValueError: an unknown name.
        ImportError, RuntimeError: "cuda" without CuPy or without a GPU; one sentence says what is missing.
    """
    if name not in NAMES:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(NAMES)}")
    module = load(name)
    if name == "cuda":
        # Before the context is entered: without a GPU nothing of it runs.
        module.check()
    token = _current.set(module)
    try:
        yield
    finally:
        _current.reset(token)
