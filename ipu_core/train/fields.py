"""Values whose fields are keywords of calls: filled, checked and printed alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Protocol


class Fields(Protocol):
    """A frozen dataclass that checks its fields when it is made."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        """Checks and completes them."""


def fill(value: Fields, given: Mapping[str, Any]) -> None:
    """Sets and checks the fields of a value that is made."""
    # Written out, since a generated __init__ has no **options that type checkers read as a TypedDict.
    there = {field.name: field.default for field in fields(value)}
    refuse_unknown(given, tuple(there))
    for name, usual in there.items():
        chosen = given.get(name, usual)
        if chosen is MISSING:
            raise TypeError(f"{name} is missing: {type(value).__name__}({name}=...), or the keyword of that name")
        # The dataclasses are frozen.
        object.__setattr__(value, name, chosen)
    value.__post_init__()


def keep(value: Fields, **checked: Any) -> None:
    for name, each in checked.items():
        object.__setattr__(value, name, each)


def refuse_unknown(given: Mapping[str, Any], there: Sequence[str]) -> None:
    if unknown := [name for name in given if name not in there]:
        hint = HINTS.get(unknown[0])
        told = "" if hint is None else f": {hint}"
        raise TypeError(f"there is no option {unknown[0]!r}{told}; there are {', '.join(there)}")


HINTS: Mapping[str, str] = {
    "lr": "the rate is the optimizer's, Adam(lr=0.001)",
    "seed": "of compare and sweep `seeds` is how many, of a TrainLoop `key` is the seed",
    "epochs": "`steps` are counted in updates",
    "betas": "they are the optimizer's, Adam(b1=0.9, b2=0.999)",
}
"""What was meant by options that others have."""


def unusual(value: Fields, told: Mapping[str, str]) -> list[str]:
    """The words of those fields that differ from their defaults."""
    usual = {field.name: field.default for field in fields(value)}
    return [words for name, words in told.items() if words and getattr(value, name) != usual[name]]
