"""Ctrl-C and SIGTERM that wait: what must be done whole is not left in the middle."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Hold:
    """Lets a Ctrl-C that comes within ``with hold:`` wait for its end, where it means what it meant before.

    So do SIGTERM and SIGHUP where a Python function handles them. It does so while it is `installed`, which takes
    longer than a small step. Only the main thread hears of signals; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._meant: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._busy = self._installed = False
        self._came: list[tuple[int, FrameType | None]] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listens to the signals within the context."""
        if self._installed or threading.current_thread() is not threading.main_thread():
            yield
            return
        mine = list[signal.Signals]()
        try:
            for number in HELD:
                meant = signal.getsignal(number)
                if callable(meant) and meant != self._hear:  # not ignored, and its handler is Python's
                    self._meant[number] = meant
                    mine.append(number)
                    signal.signal(number, self._hear)
            self._installed = True
            yield
        finally:
            self._installed = False  # first: where a signal ends this too, the next time begins anew
            for held in mine:
                if signal.getsignal(held) == self._hear:  # a handler may have put another in its place
                    signal.signal(held, self._meant[held])

    def __enter__(self) -> None:
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False
        if self._came and self._meant:
            number, frame = self._came[0]
            self._came.clear()
            self._meant[number](number, frame)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._busy:
            self._came.append((number, frame))
        elif number in self._meant:
            self._meant[number](number, frame)
