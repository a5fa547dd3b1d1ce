"""What a precision says that changes nothing in a step: moments that nothing keeps, a rounding of what is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from ipu_core.ir.block import Block, Literal, Var
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision.precision import PRESETS, Precision

TOGETHER = (("group", "splits", "adder"), ("first_moment", "second_moment"))
"""Fields that one word may say, or that stand for one thing: where one of them counts, all do."""
ELSEWHERE = ("name", "rules", "roundings", "unit_scaled")
"""Rules for nothing are refused, a rounding goes with its field, and unit scaling is of the weights too."""


def unused(precision: Precision, ideal: Callable[[Precision], Block]) -> tuple[str, ...]:
    """The fields in which a precision differs from the preset that its name begins with, and that change nothing.

    Args:
        precision: what the step is to be in.
        ideal: the step as it is traced for a precision, before that is applied.
    """
    base = PRESETS.get(precision.name.split("/")[0], Precision(""))
    said = [f.name for f in fields(Precision) if f.name not in ELSEWHERE and _said(precision, base, f.name)]
    groups = dict.fromkeys(next((group for group in TOGETHER if name in group), (name,)) for name in said)
    if not groups:
        return ()
    own = _computed(precision.apply(ideal(precision)))
    idle = [group for group in groups if _without(group, precision, base, ideal) == own]
    return tuple(name for group in idle for name in group if name in said)


def _said(precision: Precision, base: Precision, field: str) -> bool:
    own, other = (dict(each.roundings).get(field) for each in (precision, base))
    return own != other or getattr(precision, field) != getattr(base, field)


def _without(names: tuple[str, ...], precision: Precision, base: Precision, ideal: Callable[[Precision], Block]) -> Any:
    """What is computed if these fields are the base's; None where the others do not go without them."""
    roundings = {field: how for field, how in precision.roundings if field not in names}
    roundings |= {field: how for field, how in base.roundings if field in names}
    try:
        other = replace(
            precision, name="", roundings=tuple(roundings.items()), **{name: getattr(base, name) for name in names}
        )
        return _computed(other.apply(ideal(other)))
    except ValueError:
        return None


def _computed(typed: Block) -> Any:
    """All that a precision decides of a step, comparable."""
    number: dict[Var, int] = {}  # in the order of computation, which says what is read
    made = []
    for equation in equations_of(typed):
        read = [x if isinstance(x, Literal) else number.setdefault(x, len(number)) for x in equation.inputs]
        gives = [(number.setdefault(var, len(number)), var.type) for var in equation.outputs]
        made.append((equation.op, equation.params, equation.arithmetic, read, gives))
    return [var.type for var in typed.inputs], made, typed.streamed
