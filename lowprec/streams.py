"""Standard output and error as a command finds them: closed, on a full disk, a pipe that nobody reads any more."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

PIPE_CLOSED = 141  # 128 + SIGPIPE, what shells say of a program whose reader is gone
UNWRITABLE = 2


class Unprintable(OSError):
    """Standard output or error takes no more; the file name is the stream's name."""


class Printed:
    """A stream whose errors are told from those of files, and are not forgotten where somebody swallows them.

    Attributes:
        error: The first error; None: everything was written.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name
        self.error: Unprintable | None = None

    def write(self, text: str) -> int:
        """Writes to the stream; an OSError becomes an Unprintable, and is kept."""
        return int(self._tried(self._stream.write, text))

    def flush(self) -> None:
        """Flushes the stream; an OSError becomes an Unprintable, and is kept."""
        self._tried(self._stream.flush)

    def _tried(self, call: Callable[..., Any], *arguments: str) -> Any:
        try:
            return call(*arguments)
        except OSError as error:
            self.error = self.error or Unprintable(error.errno, error.strerror, self._name)
            raise self.error from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guarded(name: str, run: Callable[[], int]) -> int:
    """Runs a command, and checks before it ends that all it printed was written.

    Args:
        name: Of the command, for the line that says what went wrong.
        run: Gives the exit code; may raise SystemExit.

    Returns:
        The exit code; 141 where the reader of what is printed is gone, 2 where it cannot be written (one line on
        standard error says so).
    """
    open_closed()
    out, err = Printed(sys.stdout, "standard output"), Printed(sys.stderr, "standard error")
    with contextlib.redirect_stdout(cast(TextIO, out)), contextlib.redirect_stderr(cast(TextIO, err)):
        try:
            try:
                code = run()
            finally:
                # Here and not at Python's own end, where the exit code is given already. The error is kept in `out`.
                with contextlib.suppress(Unprintable):
                    out.flush()
        except (Unprintable, SystemExit):
            # argparse ends with SystemExit too; where nothing failed to print, that is the command's own end.
            if out.error is None and err.error is None:
                raise
    # Libraries swallow errors of printing (warnings do): what counts is what the streams remember.
    failed = out.error or err.error
    if failed is None:
        return code
    for stream, printed in ((sys.stdout, out), (sys.stderr, err)):
        if printed.error is not None:  # else Python itself complains at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if failed.errno == errno.EPIPE:
        return PIPE_CLOSED
    print(f"{name}: {failed.filename} cannot be written: {failed.strerror}", file=sys.stderr)
    return UNWRITABLE


def open_closed() -> None:
    """Opens standard streams that the caller has closed (``>&-``) on the null device.

    Left closed, a stream's number would be that of the next file opened, and what is printed would land in that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the least free number
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  it stays open to the end
