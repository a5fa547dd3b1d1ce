"""What a precision says that changes nothing in a step: moments that nothing keeps, a rounding of what is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ipu_core.ir.block import Block, Literal, Var
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.said_rounding import split_words


def unused(precision: Precision, ideal: Callable[[Precision], Block]) -> tuple[str, ...]:
    """The words of a precision's name without which the step would be the same.

    Rules for nothing are refused elsewhere, and a field that a rule is for too may be said in vain: the rule wins.

    Args:
        precision: what the step is to be in.
        ideal: the step as it is traced for a precision, before that is applied.
    """
    if _parsed(precision.name) != precision:
        return ()  # it is of a name that says nothing
    preset, *words = split_words(precision.name, "/")
    # Unit scaling is in the step already.
    known = {"unit_scaled", *(rule.field for rule in precision.rules)}
    others = {
        word: other
        for word in words
        if ":" not in word.partition("(")[0] and word.partition("=")[0] not in known
        if (other := _parsed("/".join([preset, *(each for each in words if each != word)]))) is not None
        if replace(other, name="") != replace(precision, name="")  # what the preset has may be said again
    }
    own = _computed(precision, ideal) if others else None
    return tuple(word for word, other in others.items() if _is_computed(other, ideal, own))


def _parsed(name: str) -> Precision | None:
    """The precision of a name; None: there is none."""
    try:
        return Precision.parse(name)
    except ValueError:
        return None


def _is_computed(precision: Precision, ideal: Callable[[Precision], Block], own: Any) -> bool:
    """Whether a precision makes the same step; one that is refused makes none."""
    try:
        return bool(_computed(precision, ideal) == own)
    except ValueError:
        return False


def _computed(precision: Precision, ideal: Callable[[Precision], Block]) -> Any:
    """All that a precision decides of a step, comparable."""
    typed = precision.apply(ideal(precision))
    number: dict[Var, int] = {}  # in the order of computation, which says what is read
    made = []
    for equation in equations_of(typed):
        read = [x if isinstance(x, Literal) else number.setdefault(x, len(number)) for x in equation.inputs]
        gives = [(number.setdefault(var, len(number)), var.type) for var in equation.outputs]
        made.append((equation.op, equation.params, equation.arithmetic, read, gives))
    # Such as the largest number that a tensor's amax is brought to.
    constants = {number[var]: np.asarray(x).tobytes() for var, x in typed.constants.items() if var in number}
    return [var.type for var in typed.inputs], made, constants, typed.streamed
