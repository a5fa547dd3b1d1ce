"""Ctrl-C that waits: what must be done whole is not left in the middle."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Hold:
    """Lets a Ctrl-C that comes within ``with hold:`` wait for its end, where it means what it meant before.

    It does so while it is `installed`, which takes longer than a small step. Only the main thread hears of Ctrl-C;
    elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._meant: Callable[[int, FrameType | None], Any] | None = None
        self._busy = False
        self._came: list[FrameType | None] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listens to Ctrl-C within the context."""
        if self._meant is not None or threading.current_thread() is not threading.main_thread():
            yield
            return
        meant = signal.getsignal(signal.SIGINT)
        if not callable(meant):  # ignored, or its handler is not Python's
            yield
            return
        self._meant = meant
        signal.signal(signal.SIGINT, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, meant)
            self._meant = None

    def __enter__(self) -> None:
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False
        if self._came and self._meant is not None:
            frame = self._came[0]
            self._came.clear()
            self._meant(signal.SIGINT, frame)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._busy:
            self._came.append(frame)
        elif self._meant is not None:
            self._meant(number, frame)
