"""Progress across processes: lines in a named pipe, heard from any worker on this machine, whatever runs it."""

import json
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Payload = dict[str, Any]


class Abandoned(RuntimeError):
    """Nobody reads the pipe any more: the process that leads the study was interrupted or is dead."""


@dataclass(frozen=True)
class Wire:
    """The pipe through which the worker of an item reports. On a machine without this pipe reports are dropped.

    Attributes:
        path: of the pipe.
        item: number of the item.
    """

    path: str
    item: int

    @contextmanager
    def opened(self) -> Iterator["Sender"]:
        """The worker's end."""
        try:
            # Non-blocking: opening fails where nobody reads, and a full pipe must not hold up the training.
            pipe = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            yield Sender(self.item, None)
            return
        try:
            yield Sender(self.item, pipe)
        finally:
            os.close(pipe)


class Sender:
    """Sends reports through the pipe.

    Attributes:
        told: how many reports.
        unsaid: warnings that could not be told; they go with the result.
    """

    def __init__(self, item: int, pipe: int | None) -> None:
        self._item, self._pipe = item, pipe
        self.told = 0
        self.unsaid: list[Payload] = []

    def __call__(self, payload: Payload) -> None:
        """Sends one report.

        Raises:
            Abandoned: who listened at first does so no longer.
        """
        if self._sent(payload):
            self.told += 1
        elif "warning" in payload:
            self.unsaid.append(payload)

    def _sent(self, payload: Payload) -> bool:
        line = json.dumps([self._item, payload]).encode() + b"\n"
        if self._pipe is None or len(line) > select.PIPE_BUF:  # a longer one could be torn by those of others
            return False
        try:
            os.write(self._pipe, line)
        except BrokenPipeError:
            raise Abandoned("nobody waits for this result") from None
        except BlockingIOError:  # the pipe is full
            return False
        return True


@contextmanager
def listening(tell: Callable[[int, Payload], None]) -> Iterator[str]:
    """The path of a pipe; `tell` is called in a thread with what is told there, an item's number and a payload."""
    with TemporaryDirectory(prefix="lowprec-") as folder:
        path = Path(folder, "progress")
        os.mkfifo(path, 0o600)
        pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # which waits for no writer
        own = os.open(path, os.O_WRONLY)  # so that the pipe does not end with its first writer
        # Opened without blocking, but read with: the reading thread sleeps until there is a report.
        os.set_blocking(pipe, True)
        thread = threading.Thread(target=_read, args=(pipe, tell), daemon=True)
        thread.start()
        try:
            yield str(path)
        finally:
            # Closing would not end the thread: workers may hold the pipe open still.
            os.write(own, b"\n")
            thread.join()
            os.close(own)


def _read(pipe: int, tell: Callable[[int, Payload], None]) -> None:
    """Reads reports until an empty line."""
    with os.fdopen(pipe, encoding="ascii") as lines:
        for line in lines:
            if line == "\n":
                return
            tell(*json.loads(line))
