"""The command line: `python -m lowprec 0.1 float8_e4m3fn` explains a number, `python -m lowprec formats` lists them."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence

from lowprec import streams
from lowprec.explanation import explain
from lowprec.values.formats import as_format, formats


def parser() -> argparse.ArgumentParser:
    """The command line's arguments."""
    p = argparse.ArgumentParser(
        prog="python -m lowprec", description="Explains what a number becomes in a format.", allow_abbrev=False
    )
    p.add_argument("number", help='a number such as 0.1, 0x1.8p-3, inf or nan; or a format\'s name, or "formats"')
    p.add_argument("format", nargs="?", help="a format's name, such as float8_e4m3fn or bfloat16")
    return p


def number(text: str) -> float:
    """A decimal or hexadecimal number.

    Raises:
        ValueError: neither.
    """
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None
    except OverflowError:
        raise ValueError(f"{text!r} is beyond float64") from None


def listing() -> str:
    """One line per named format."""
    rows = [
        f"{fmt.name:<20} {fmt.bits:>2} bits  e{fmt.exponent_bits}m{fmt.mantissa_bits:<3} max {fmt.max:<24.6g}"
        for fmt in formats.values()
    ]
    return "\n".join(row.rstrip() for row in rows)


def answer(first: str, fmt: str | None) -> str:
    """What the command prints.

    Raises:
        ValueError: no such number or format.
    """
    if fmt is not None:
        return str(explain(number(first), as_format(fmt)))
    if first == "formats":
        return listing()
    try:
        return str(as_format(first))
    except ValueError:
        try:
            number(first)
        except ValueError:
            pass
        else:  # a number alone: what is missing is the format
            raise ValueError(f"in which format? python -m lowprec {first} float8_e4m3fn") from None
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; 2 for bad input, with one line on stderr; see `streams.guarded`."""
    return streams.guarded("lowprec", functools.partial(_run, arguments))


def _run(arguments: Sequence[str] | None) -> int:
    given = parser().parse_args(_negative_numbers_apart(sys.argv[1:] if arguments is None else arguments))
    try:
        print(answer(given.number, given.format))
    except (ValueError, TypeError) as error:
        print(f"lowprec: {error}", file=sys.stderr)
        return 2
    return 0


def _negative_numbers_apart(arguments: Sequence[str]) -> list[str]:
    """The arguments with "--" before them where one is a negative number: argparse would take -inf for an option."""
    first = next((a for a in arguments if a.startswith("-") and a not in ("-h", "--help")), None)
    # Behind "--" nothing is an option; asking for help still works.
    return ["--", *arguments] if first is not None and "-h" not in arguments else list(arguments)


if __name__ == "__main__":
    sys.exit(main())
