"""What a word of a precision's name says: the fields that it sets, whatever earlier words set them to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipu_core.ir.precision.operand_scaling import HOWS, NUMBER, READERS, OperandScaling, is_said, overridden
from ipu_core.ir.precision.rules import ROUNDINGS, PrecisionRule, rules_of
from lowprec import as_format

SWITCHES = ("store_root", "running_mean", "unit_scaled")
SWITCH: Mapping[str, bool] = {"true": True, "false": False}
STREAMING: Mapping[str, bool] = {"streamed": True, "unstreamed": False}
"""What a name says of where the moments live."""


def overrides(
    word: str, spec: str, scaling: OperandScaling | None, rules: Sequence[PrecisionRule], formats: Sequence[str]
) -> dict[str, Any]:
    """The fields of a precision that a word sets, with their values.

    Args:
        word: "stochastic", "weights=float16", "layers.0:weights=float32", ...
        spec: the whole name, for messages.
        scaling, rules: what the words before it said.
        formats: the fields of a precision that are formats.

    Raises:
        ValueError: an unknown word, field or value.
    """
    word = "nearest" if word == "nearest_even" else word
    field, equals, value = word.partition("=")
    if ":" in word:
        return {"rules": (*rules, *rules_of(word, formats))}
    if word in STREAMING:
        return {"streamed": STREAMING[word]}
    if is_said(word):
        return {"scaling": overridden(scaling, word, spec)}
    if not equals:
        return {"rounding": _rounding(word, spec)}
    if field == "moments":
        return dict.fromkeys(("first_moment", "second_moment"), as_format(value))
    if field in SWITCHES:
        if value not in SWITCH:
            raise ValueError(f"{field} in {spec!r} must be true or false, not {value!r}")
        return {field: SWITCH[value]}
    if field in ("scaled_state", "promote"):
        return {field: _number(value, whole=field == "promote")}
    if field not in formats:
        fields = ", ".join((*formats, "moments", "scaled_state", "promote", *SWITCHES, *READERS))
        raise ValueError(f"unknown field {field!r} in {spec!r}; there are {fields}")
    return {field: as_format(value)}


def _rounding(word: str, spec: str) -> Any:
    if not word:
        raise ValueError(f"there is nothing between two '/', or behind the last one, in {spec!r}")
    if "*" in word or "." in word:
        raise ValueError(f"{word!r} in {spec!r} is no setting; a rule for parts of that name is {word}:weights=float32")
    if word not in ROUNDINGS:
        there = ", ".join((*ROUNDINGS, *STREAMING, *HOWS))
        raise ValueError(f"unknown word {word!r} in {spec!r}; there are {there}")
    return ROUNDINGS[word]


def _number(text: str, *, whole: bool) -> float | str:
    """The number a text says, or the text, which a Precision then refuses."""
    if not NUMBER.fullmatch(text):
        return text
    return int(text) if whole and text.isdigit() else float(text)
