"""Arguments, checked where they come in: refusals that name the argument and say what was given and what is allowed."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from os import PathLike, fspath
from typing import Any

import numpy as np
import numpy.typing as npt

LONGEST = 200  # characters of a value in a message
LARGEST = 2**48  # elements of an array


def shown(value: object) -> str:
    """A value in a message: its repr, of which the end is left out where it is long."""
    words = repr(value)
    # A message with an array of a million numbers helps nobody.
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}..."


def expect(kind: type, **given: object) -> None:
    """Refuses arguments of another kind.

    Raises:
        TypeError: one of them is no `kind`; it is named.
    """
    if not isinstance(kind, type):
        raise TypeError(f"expect takes a type, not {shown(kind)}")
    for name, value in given.items():
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            article = "an" if kind.__name__[0] in "aeiouI" else "a"
            raise TypeError(f"{name} must be {article} {kind.__name__}, not {shown(value)}")


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number, Python's or NumPy's, as an int.

    Raises:
        TypeError: no integer; truth values are none.
        ValueError: below the least, or above the most.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, not {shown(value)}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, not {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be an integer of at most {most}, not {value}")
    return int(value)


def number(name: str, value: Any) -> float:
    """A real number, Python's or NumPy's, as a float; infinities and NaN are numbers.

    Raises:
        TypeError: no number, or too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, Real | np.floating | np.integer):
        raise TypeError(f"{name} must be a number, not {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise TypeError(f"{name} must be a number that a float holds, not {shown(value)}") from None


def truth(name: str, value: Any) -> bool:
    """Yes or no, Python's or NumPy's.

    Raises:
        TypeError: anything else.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")
    return bool(value)


def sizes(name: str, value: Any) -> tuple[int, ...]:
    """A shape: integers of at least 0, in any sequence.

    Raises:
        TypeError: no integers.
        ValueError: one below 0, or more elements than memory holds.
    """
    try:
        # index, not int: 2.5 is no length.
        found = tuple(operator.index(size) for size in value)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of integers, not {shown(value)}") from None
    if any(size < 0 for size in found):
        raise ValueError(f"{name} has no negative lengths: {shown(found)}")
    # Each by itself too: beside a length of 0 any other would pass.
    if any(size > LARGEST for size in found) or math.prod(found) > LARGEST:
        raise ValueError(f"{name} has more elements than any memory: {shown(found)}")
    return found


def integers(name: str, value: Any) -> npt.NDArray[np.int64]:
    """An array of whole numbers; without elements it may be of any kind.

    Raises:
        TypeError: no array of integers.
    """
    try:
        found = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be integers, not {shown(value)}: {error}") from None
    # An empty list is float64 to NumPy, and has no number that is not whole.
    if found.dtype.kind not in "iu" and (found.size or found.dtype.kind != "f"):
        raise TypeError(f"{name} must be integers, not {shown(value)}")
    return found.astype(np.int64)


def listed(name: str, value: Any) -> list[Any]:
    """The elements of an iterable as a list; refuses what `iterable` refuses."""
    return list(iterable(name, value))


def iterable(name: str, value: Any) -> Iterable[Any]:
    """The value itself, checked to be an iterable; a text counts as none.

    Raises:
        TypeError: anything else, an array without axes too.
    """
    # A text is a list of letters to Python, which nobody means; an array without axes says it can be iterated over.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable) or getattr(value, "shape", None) == ():
        raise TypeError(f"{name} must be a list, not {shown(value)}")
    return value


def pairs(name: str, value: Any) -> list[tuple[str, int]]:
    """Pairs of a name and a whole number.

    Raises:
        TypeError: anything else.
    """
    found = listed(name, value)
    for pair in found:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"{name} must be pairs of a name and a number, not {shown(pair)}")
        integer(name, pair[1])
    return found


def entries(what: str, given: Any, names: Collection[str]) -> list[Any]:
    """The values of a mapping by some names, in their order; it may hold others.

    Raises:
        TypeError: no mapping.
        ValueError: a name is missing; the message says which there are.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a dict of {', '.join(names)}, not {shown(given)}")
    if missing := [name for name in names if name not in given]:
        there = ", ".join(map(str, given)) or "nothing"
        raise ValueError(f"{what} must be a dict of {', '.join(names)}: {', '.join(missing)} is missing in {there}")
    return [given[name] for name in names]


def by_number(name: str, given: Any, kind: type) -> dict[int, Any]:
    """A checked dict from equation numbers to values of a kind; an empty one for None.

    Raises:
        TypeError: no such dict.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a dict from equation numbers to {kind.__name__}s, not {shown(given)}")
    for key, value in given.items():
        integer(f"{name}: an equation's number", key)
        if not isinstance(value, kind):
            raise TypeError(f"{name}[{key!r}] must be one such as {kind.__name__}(...), not {shown(value)}")
    return dict(given)


def expect_path(name: str, value: Any) -> None:
    """Refuses what is no path of a file.

    Raises:
        TypeError: neither a text nor a `pathlib.Path`.
        ValueError: an empty text, or one that no file system takes.
    """
    if not isinstance(value, str | PathLike) or isinstance(fspath(value), bytes):
        raise TypeError(f"{name} must be a path, not {shown(value)}")
    if not fspath(value) or "\0" in fspath(value):
        raise ValueError(f"{name} must be the path of a file, not {shown(value)}")
