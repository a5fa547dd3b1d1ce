"""What a word of a precision's name says: the fields that it sets, whatever earlier words set them to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipu_core.ir.precision.operand_scaling import HOWS, NUMBER, READERS, OperandScaling, is_said, overridden
from ipu_core.ir.precision.rules import ROUNDINGS, PrecisionRule, rules_of
from ipu_core.ir.precision.said_rounding import RoundedFormat, read_format, read_rounding
from lowprec import Rounding
from lowprec.values.rounding import FEW_BIT_MODES, MODES

RoundingsByField = tuple[tuple[str, Rounding], ...]
"""How single fields of a precision are rounded."""

SUMS = ("promote", "group", "splits", "adder")
"""What a precision says of the order of products."""

TEXTS = ("adder", "norms")
SWITCHES = ("store_root", "running_mean", "unit_scaled", "everywhere")
SWITCH: Mapping[str, bool] = {"true": True, "false": False}
STREAMING: Mapping[str, bool] = {"streamed": True, "unstreamed": False}
"""What a name says of where the moments live."""


def overrides(
    word: str, spec: str, scaling: OperandScaling | None, rules: Sequence[PrecisionRule], formats: Sequence[str],
    roundings: RoundingsByField = (),
) -> dict[str, Any]:  # fmt: skip
    """The fields of a precision that a word sets, with their values.

    Args:
        word: "stochastic", "weights=float16", "layers.0:weights=float32", ...
        spec: the whole name, for messages.
        scaling, rules: what the words before it said.
        formats: the fields of a precision that are formats.
        roundings: of single fields, what the words before it said.

    Raises:
        ValueError: an unknown word, field or value.
    """
    field, equals, value = word.partition("=")
    if ":" in word:
        return {"rules": (*rules, *rules_of(word, formats))}
    if word in STREAMING:
        return {"streamed": STREAMING[word]}
    if is_said(word):
        return {"scaling": overridden(scaling, word, spec)}
    if not equals or "(" in field:
        return {"rounding": _rounding(word, spec)}
    if field in SWITCHES:
        if value not in SWITCH:
            raise ValueError(f"{field} in {spec!r} must be true or false, not {value!r}")
        return {field: SWITCH[value]}
    if field in TEXTS:
        return {field: value}
    if field in ("scaled_state", *SUMS):
        return {field: _number(value, whole=field in SUMS)}
    named = {"moments": ("first_moment", "second_moment"), "every": tuple(formats)}.get(field, (field,))
    if named[0] not in formats:
        fields = ", ".join((*formats, "moments", "every", "scaled_state", *SUMS, "norms", *SWITCHES, *READERS))
        raise ValueError(f"unknown field {field!r} in {spec!r}; there are {fields}")
    changes: dict[str, Any] = {"everywhere": True} if field == "every" else {}
    for one in named:
        changes |= with_format(changes.get("roundings", roundings), one, read_format(value))
    return changes


def with_format(roundings: RoundingsByField, field: str, said: RoundedFormat) -> dict[str, Any]:
    """The fields of a precision that a format and its rounding set: one without a rounding is rounded as all is."""
    others = tuple(pair for pair in roundings if pair[0] != field)
    own = () if said.rounding is None else ((field, said.rounding),)
    return {field: said.format, "roundings": (*others, *own)}


def _rounding(word: str, spec: str) -> Any:
    if not word:
        raise ValueError(f"there is nothing between two '/', or behind the last one, in {spec!r}")
    if "*" in word or "." in word:
        raise ValueError(f"{word!r} in {spec!r} is no setting; a rule for parts of that name is {word}:weights=float32")
    try:
        return read_rounding(word)
    except ValueError as error:
        if "(" in word:
            raise ValueError(f"{word!r} in {spec!r}: {error}") from None
        there = ", ".join((*ROUNDINGS, *MODES[1:-1], *FEW_BIT_MODES, *STREAMING, *HOWS))
        raise ValueError(f"unknown word {word!r} in {spec!r}; there are {there}") from None


def _number(text: str, *, whole: bool) -> float | str:
    """The number a text says, or the text, which a Precision then refuses."""
    if not NUMBER.fullmatch(text):
        return text
    return int(text) if whole and text.isdigit() else float(text)
