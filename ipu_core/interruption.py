"""Ctrl-C and SIGTERM (kill, slurm, docker): one line and exit code 130 or 143, in the middle of the imports too.

Imported before everything else of the package. It does something only in the command line's own process: a program
that imports the package keeps its signal handlers.
"""

import functools
import itertools
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
"""What is said of the signals that end the command line."""
PATIENCE = 2.0  # seconds in which another of the same is no second wish: GNU's timeout sends two at once


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: a KeyboardInterrupt, so that whatever handles Ctrl-C in good order handles these, too.

    Attributes:
        args: The signal's number.
    """


def is_command_line(arguments: Sequence[str], script: str) -> bool:
    """Whether a process was started as `python -m ipu_core` or as the installed script, and not as a worker of that.

    Args:
        arguments: `sys.orig_argv`.
        script: `sys.argv[0]`.
    """
    # workers of the installed script have its name in sys.argv, and are ended quietly by their pool
    if "--multiprocessing-fork" in arguments:
        return False
    if script == "-m":  # what Python puts there while it looks for the module
        return "-mipu_core" in arguments or ("-m", "ipu_core") in itertools.pairwise(arguments)
    return os.path.splitext(os.path.basename(script))[0] == "ipu-core"


def restore() -> None:
    """Ctrl-C is KeyboardInterrupt again and the others are `Terminated`, once somebody is there to catch them."""
    # only what this module set: a handler of the caller's stays
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in WORDS:
        if signal.getsignal(number) is _end:
            signal.signal(number, _terminate)


def exit_code(error: KeyboardInterrupt) -> int:
    """The exit code that shells give to what a signal ended: 128 and its number."""
    return 128 + number_of(error)


def number_of(error: KeyboardInterrupt) -> signal.Signals:
    """The signal behind an exception."""
    return signal.Signals(error.args[0]) if isinstance(error, Terminated) else signal.SIGINT


def _terminate(number: int, _frame: FrameType | None, since: float = -PATIENCE) -> None:
    """Raises, but for a signal that comes while the last one's exception is on its way."""
    now = time.monotonic()
    # a second signal would raise in the midst of what the first one's exception cleans up
    if now - since >= PATIENCE:
        signal.signal(number, functools.partial(_terminate, since=now))
        raise Terminated(number)


def _end(number: int, _frame: FrameType | None) -> None:
    """Ends the process at once: nothing has been begun, and an exception could be lost inside an import."""
    # not print: the signal may have come in the midst of one, whose lock it would wait for
    os.write(2, f"\n{WORDS[signal.Signals(number)]} before anything was begun\n".encode())
    os._exit(128 + number)


if is_command_line(sys.orig_argv, sys.argv[0] if sys.argv else ""):
    for _number in WORDS:  # one that is ignored stays so (nohup, background jobs of a shell)
        if signal.getsignal(_number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(_number, _end)
