"""Whether an error speaks to who made the call, or is one of Python's or NumPy's from somewhere inside.

A call may refuse what it was given with an error of a kind that documentation names, raised by a `raise` of ours, which
can say what was given and what is allowed. Anything that Python, NumPy or a binding raised by itself on a line of ours
says what went wrong there, which is nothing that the caller knows of.
"""

from __future__ import annotations

import ast
import re
import traceback
from functools import cache
from pathlib import Path

import ipu_core
import lowprec
from ipu_core import errors

OURS = tuple(kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception))
ALLOWED = (
    TypeError,
    ValueError,
    IndexError,
    OverflowError,
    MemoryError,
    FloatingPointError,
    NotImplementedError,
    *OURS,
)
ON_PURPOSE = (*ALLOWED, KeyError, ImportError, OSError, EOFError)
"""Kinds that a `raise` of ours may have: a name of a record, an extra that is not installed, a file, a stream that
ended too. What the system says of memory and files names what there is too little of, or the file: right as it is."""
PYTHONS_OWN = re.compile(
    r"unhashable type|object is not (subscriptable|iterable|callable)|unsupported operand type"
    r"|object of type .* has no len|incompatible function arguments|object cannot be interpreted"
    r"|not supported between instances"
    r"|object has no attribute|to unpack|truth value of an array|only (length-1|0-dimensional|integer scalar) arrays"
)
CALLERS_OWN = re.compile(
    r"^\S*(loss|_function|_forward|relu|Twice|(Target|Sgd).__init__|<lambda>|evaluate)\(\) (missing|takes|got)"
    r"|^str\(\) "
)
"""A function that was given, called with other arguments than it takes: Python's message names it."""
HERE = Path(__file__).parent
HOUSE = tuple(Path(package.__file__ or "").parent for package in (lowprec, ipu_core))
COMPILED = HOUSE[0] / "backends" / "cpu"
"""Where the compiled module is called, whose own refusals Python knows no line of."""


def of_the_caller(error: BaseException) -> bool:
    """Whether it was raised by the call itself, which did not take the arguments, or in a function that was given.

    Then Python's message is the right one, or that of the library which the function calls.
    """
    frames = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    known = [path for path in frames if any(path.is_relative_to(place) for place in (HERE, *HOUSE))]
    return known[-1].is_relative_to(HERE)


def inner(error: BaseException) -> str:
    """What is wrong with an error, and where it came from; nothing, where it is a refusal in words."""
    of_python = isinstance(error, TypeError) and CALLERS_OWN.search(str(error))
    if isinstance(error, MemoryError | OSError) or of_python:
        return ""
    if of_the_caller(error) and "incompatible function arguments" not in str(error):
        return ""
    last = _last(error)
    where = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {error}"
    if not str(error):
        return f"no message: {where}"
    if not isinstance(error, ON_PURPOSE):
        return f"another kind: {where}"
    path = Path(last.filename)
    if (path.parent == COMPILED or path.match("lowprec/elementwise.py")) and not PYTHONS_OWN.search(str(error)):
        return ""
    if not any(path.is_relative_to(house) for house in HOUSE) or last.lineno not in _raised(path):
        return f"raised by no `raise`: {where}"
    return ""


def _last(error: BaseException) -> traceback.FrameSummary:
    return traceback.extract_tb(error.__traceback__)[-1]


@cache
def _raised(path: Path) -> frozenset[int]:
    """The lines of a file on which a `raise` stands."""
    found = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Raise)]
    return frozenset(line for node in found for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))
