"""The backends, modules of the same functions: `reference` (exact Python, the definition), `cpu` (compiled), `cuda`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import numpy as np

from lowprec.backends import cpu
from lowprec.backends.owner import is_cupy
from lowprec.backends.owner import load as load

NAMES = ("reference", "cpu", "cuda")

# Of a thread or asyncio task: a test's backend must not reach the threads beside it.
_current: ContextVar[ModuleType] = ContextVar("lowprec_backend", default=cpu)

current = _current.get
"""The backend in force: cpu unless `backend` says otherwise."""


def of(*arrays: object) -> ModuleType:
    """The backend that computes with these arrays: cuda where one is CuPy's, else the one in force."""
    for x in arrays:
        if type(x) is not np.ndarray and is_cupy(x):
            return load("cuda")
    return _current.get()


def prepared(name: str, *specification: Hashable) -> Callable[..., Callable[..., Any]]:
    """A function f of which f(array) is the prepared call of the backend that computes with an array.

    f() is that of the backend in force at that time.

    Args:
        name: of the backends' function that makes a prepared call from a specification.
        specification: that function's arguments.
    """
    # Made at once: what is refused is refused when a call is prepared, and the usual case looks nothing up.
    native, current = getattr(cpu, name)(*specification), _current.get

    def chosen(array: object = None) -> Callable[..., Any]:
        backend = current() if array is None or type(array) is np.ndarray else of(array)
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
