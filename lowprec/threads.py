"""How many threads the compiled loops use. Results never depend on it.

By default there is one thread for every processor that the process may run on (its affinity, asked anew at every call),
but no more than OMP_NUM_THREADS says where that is set; or as many as LOWPREC_NUM_THREADS says. Both are environment
variables that are read at the import. `num_threads` sets another number for a while. Where there are fewer processors
than threads, the work is cut as if for all of them but done by no more than there are processors (or two).

Threads are made when they are first wanted and sleep between calls; a forked child makes its own. Where the system
refuses a thread, those that there are do the work.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import numpy as np

from lowprec import _kernels

MOST = 1024

_threads: ContextVar[int] = ContextVar("lowprec_threads", default=0)

current = _threads.get
"""The number that this thread or task has set; 0 where it has set none, for which the kernels know a number."""

_in_force: dict[object, tuple[int, int]] = {}
"""The number and the thread of every context that was entered and not yet left, the last one last."""
# Reentrant: with a plain lock a signal handler that forks or enters a context would hang in the thread that holds it.
_lock = threading.RLock()


def environment_threads(environment: Mapping[str, str]) -> int:
    """The default that an environment asks for; 0: one thread for every processor.

    Raises:
        ValueError: LOWPREC_NUM_THREADS is no integer or above MOST; 0 is as if it were not set.
    """
    # A value that is empty or 0 is as good as none: scripts unset variables so.
    text = environment.get("LOWPREC_NUM_THREADS") or "0"
    if not text.isdecimal() or int(text) > MOST:
        raise ValueError(f"LOWPREC_NUM_THREADS must be an integer of 1 to {MOST}, not {text!r}")
    bound = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # of the outermost level
    if int(text) or not bound.isdecimal() or int(bound) < 1:
        return int(text)
    # No more than the affinity allows: OMP_NUM_THREADS is often set for a larger machine.
    return min(_kernels.default_threads(), int(bound))


_DEFAULT = environment_threads(os.environ)
_kernels.set_default_threads(_DEFAULT)


def num_threads(n: int) -> AbstractContextManager[None]:
    """Within the context, lowprec's loops use at most n threads.

    This holds for the thread (or asyncio task) that enters the context and, while it lasts, for all threads that are in
    no such context of their own, as those that are started in it. Of several contexts these follow the one that was
    entered last.

    Args:
        n: 1 to 1024; no more of them work at once than there are processors, or two.

    Raises:
        ValueError: n is no integer or out of range.
    """
    if not isinstance(n, (int, np.integer)) or n < 1:
        raise ValueError(f"num_threads needs an integer of at least 1, not {n!r}")
    if n > MOST:
        raise ValueError(f"num_threads needs an integer of at most {MOST}, not {n!r}")
    return _context(int(n))


@contextmanager
def _context(n: int) -> Iterator[None]:
    # An object as the key: two contexts with the same number are two.
    token, place = _threads.set(n), object()
    with _lock:
        _in_force[place] = n, threading.get_ident()
        _follow_last()
    try:
        yield
    finally:
        with _lock:
            del _in_force[place]
            _follow_last()
        _threads.reset(token)


def _follow_last() -> None:
    """Threads in no context of their own follow the one entered last."""
    # Contexts of several threads end in any order, so that the last one entered is looked up, not restored.
    _kernels.set_default_threads(next(reversed(_in_force.values()), (_DEFAULT, 0))[0])


def _forked() -> None:
    """In a forked child, drops the contexts of the threads that it does not have: nobody would leave them."""
    own = threading.get_ident()
    for place in [place for place, (_, thread) in _in_force.items() if thread != own]:
        del _in_force[place]
    _follow_last()
    _lock.release()


# The fork waits for a change of another thread to end: a child that inherits the lock held hangs at its first context.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forked)
