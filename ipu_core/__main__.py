"""The command line: python -m ipu_core COMMAND, installed as ipu-core; its parts are in `command_line`."""

import codecs
import contextlib
import functools
import io
import sys
from collections.abc import Sequence

from ipu_core import command_line, interruption
from ipu_core.command_line.parser import parser_of_all
from ipu_core.errors import IpuError, refusal_in_words
from lowprec import streams

PLAIN = {"±": "+-"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    0; 2 for bad input, a failed point or a file that could not be written; 130 after Ctrl-C, 143 after SIGTERM; of
    what is printed see `streams.guarded`.
    """
    # first: an error while arguments are read must be printable, too
    _print_anywhere()
    return streams.guarded("ipu-core", functools.partial(_run, arguments))


def _run(arguments: Sequence[str] | None) -> int:
    parser = parser_of_all()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    older = "--optimiser"  # as version 0.1.0 spelt it
    arguments = [f"--optimizer{word.removeprefix(older)}" if word.startswith(older) else word for word in arguments]
    given = parser.parse_args(arguments)
    try:
        # until here a Ctrl-C ended the process at once; from here on somebody catches it
        interruption.restore()
        if getattr(given, "config", None) is not None:
            # the file's options first: argparse takes the last, so what was typed wins
            given = parser.parse_args([given.command, *command_line.stands_for.from_file(given), *arguments[1:]])
        if given.command == "profile":
            command_line.stands_for.filled(given, parser)
        if getattr(given, "recipe", None) is not None:
            command_line.stands_for.from_recipe(given)
        return int(given.run(given))
    # an OSError of the output itself: there is nowhere to print it, and `guarded` has the exit code
    except streams.Unprintable:
        raise
    except (ValueError, ImportError, IpuError, OSError, MemoryError) as error:
        print(f"{parser.prog} {given.command}: {_in_words(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        goes_on = "finished points are kept, the same command goes on from here"
        kept = f"; {goes_on}" if given.command in ("study", "sweep", "train") else ""
        with contextlib.suppress(OSError):  # the terminal may be what is gone
            print(f"\n{interruption.WORDS[interruption.number_of(error)]}{kept}", file=sys.stderr)
        return interruption.exit_code(error)


def _in_words(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, OSError):
        return refusal_in_words(error) or type(error).__name__
    # messages of several lines (a plan in words) as one
    text = " ".join(str(error).split()) or type(error).__name__
    # tile memory that is too small says so itself: only Python's own has no words
    if isinstance(error, MemoryError) and not isinstance(error, IpuError):
        return f"not enough memory: {text}"
    return text


def _print_anywhere() -> None:
    """Where a terminal's encoding lacks a character, something like it is printed instead of raising an error."""
    codecs.register_error("plain", _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # an encoding without the character (LANG=C) would end a study at its first table
            stream.reconfigure(errors="plain")


def _plainly(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


if __name__ == "__main__":
    raise SystemExit(main())
