"""A format and how values come into it, as a precision's name says them: "e5m3", "e4m3ieee@stochastic(bits=5,flush)".

Behind the @ stands a mode of `lowprec.Rounding` ("nearest" is nearest_even), in parentheses what else is said of it:
bits=N or bits=exact (random bits), flush, overflow=POLICY, infinite_input=POLICY.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ipu_core.ir.own_rounding import OwnRounding
from lowprec import FloatFormat, Rounding, as_format
from lowprec.values.rounding import FEW_BIT_MODES, MODES

_TEXT = re.compile(r"(\w+)(?:\((.*)\))?", re.DOTALL)
_POLICIES = ("overflow", "infinite_input")


class RoundedFormat(NamedTuple):
    """A format, and how results are rounded to it.

    Attributes:
        format: the format.
        rounding: how; None: as the precision rounds.
    """

    format: FloatFormat
    rounding: Rounding | None = None

    def __str__(self) -> str:
        return self.format.name if self.rounding is None else f"{self.format.name}@{written(self.rounding)}"


def read_rounding(text: str) -> Rounding:
    """The Rounding that a text says.

    Raises:
        ValueError: it says none, and why.
    """
    found = _TEXT.fullmatch(text)
    mode, said = found.groups() if found else (text, None)
    modes = ("nearest", *MODES, *FEW_BIT_MODES)
    if found is None or mode not in modes:
        raise ValueError(f"unknown rounding {text!r}; there are {', '.join(modes)}, such as stochastic(bits=5,flush)")
    given: dict[str, Any] = {"mode": mode}
    for word in [] if said is None else said.split(","):
        field, value = _option(word.strip(), text)
        if field in given:
            raise ValueError(f"{text!r} says {field} twice")
        given[field] = value
    rounding = Rounding(**given)
    if "random_bits" in given and not rounding.stochastic:
        raise ValueError(f"{text!r}: {mode} draws no random bits")
    return rounding


def _option(word: str, text: str) -> tuple[str, Any]:
    field, equals, value = word.partition("=")
    if field == "flush" and not equals:
        return "flush", True
    if field == "bits" and (value == "exact" or value.isdecimal()):
        return "random_bits", value if value == "exact" else int(value)
    if field in _POLICIES and value:
        return field, value
    raise ValueError(f"unknown option {word!r} in {text!r}; there are bits=N, flush, overflow=..., infinite_input=...")


def written(rounding: Rounding) -> str:
    """The text from which `read_rounding` makes a Rounding; one of one's own has none, and is called by its words."""
    if isinstance(rounding, OwnRounding):
        return rounding.words()
    options = [f"bits={rounding.random_bits}"] if rounding.stochastic and rounding.random_bits != 16 else []
    options += ["flush"] if rounding.flush else []
    options += [f"{name}={value}" for name in _POLICIES if (value := getattr(rounding, name)) is not None]
    mode = rounding.mode.removesuffix("_even") if rounding.mode == "nearest_even" else rounding.mode
    return f"{mode}({','.join(options)})" if options else mode


def read_format(text: str) -> RoundedFormat:
    """The format that a text says, and how values come into it.

    Raises:
        ValueError: an unknown format or rounding.
    """
    name, at, how = text.partition("@")
    return RoundedFormat(as_format(name), read_rounding(how) if at else None)


def as_rounded(field: str, value: Any) -> RoundedFormat:
    """A field's format, with a rounding or without one, as both.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, RoundedFormat):
        return value
    if isinstance(value, FloatFormat):
        return RoundedFormat(value)
    raise TypeError(f"{field} must be a FloatFormat such as lowprec.float16, not {value!r}")


def split_words(text: str, at: str) -> list[str]:
    """A text's parts between separators that stand outside parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == at and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
