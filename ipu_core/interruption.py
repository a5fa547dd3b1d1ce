"""Ctrl-C while the command line is still being imported: one line and exit code 130 instead of a traceback.

Imported before everything else of the package. It does something only in the command line's own process: a program
that imports the package keeps its signal handlers.
"""

import itertools
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

INTERRUPTED = 130  # 128 + SIGINT, the exit code shells give to what Ctrl-C ended


def is_command_line(arguments: Sequence[str], script: str) -> bool:
    """Whether a process was started as `python -m ipu_core` or as the installed script.

    Args:
        arguments: `sys.orig_argv`.
        script: `sys.argv[0]`.
    """
    if script == "-m":  # what Python puts there while it looks for the module
        return "-mipu_core" in arguments or ("-m", "ipu_core") in itertools.pairwise(arguments)
    return os.path.splitext(os.path.basename(script))[0] == "ipu-core"


def restore() -> None:
    """Gives Ctrl-C its usual meaning, KeyboardInterrupt, once somebody is there to catch it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signal: int, _frame: FrameType | None) -> None:
    """Ends the process at once: nothing has been begun, and an exception could be lost inside an import."""
    os.write(2, b"\ninterrupted before anything was begun\n")
    os._exit(INTERRUPTED)


if is_command_line(sys.orig_argv, sys.argv[0] if sys.argv else "") and (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, _end)
