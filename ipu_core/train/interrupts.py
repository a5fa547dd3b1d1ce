"""Ctrl-C that waits: what must be done whole is not left in the middle."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets a Ctrl-C that comes in the context wait for its end, where it means what it meant before.

    Only in the main thread, the one that signals are handled in; elsewhere it does nothing.
    """
    meant = signal.getsignal(signal.SIGINT)
    if not callable(meant) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, meant)
        if came:
            meant(signal.SIGINT, came[0])
