"""Keywords of public functions, parsed here and nowhere else into an Accumulation and a Rounding.

The keywords are the values' fields under the names that read well in a call. A call that gives a value gives none of
the keywords it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from lowprec._caching import cached
from lowprec.values.accumulation import Accumulation, Adder, Stages
from lowprec.values.formats import FormatLike
from lowprec.values.rounding import FewBitMode, InfiniteInput, Mode, Overflow, Rounding

# Few-bit modes are apart: sums and products do not take them (`Rounding.refuse`).
RoundingLike = Mode | Literal["nearest"] | Rounding
"""How to round; "nearest" is nearest_even, as precisions call it."""
FewBitRoundingLike = Mode | FewBitMode | Literal["nearest"] | Rounding


class PolicyKeywords(TypedDict, total=False):
    """Keywords of every rounding: random_bits (16), overflow and infinite_input (the format's), as in `round`."""

    random_bits: int | Literal["exact"]
    overflow: Overflow | None
    infinite_input: InfiniteInput | None


class RoundingKeywords(PolicyKeywords, total=False):
    """Keywords of roundings that can flush subnormal results: those of every rounding, and flush (False)."""

    flush: bool


class ChainKeywords(PolicyKeywords, total=False):
    """Keywords of one chain of a sum: those of its rounding, accumulate ("float32") and group."""

    accumulate: FormatLike
    group: int | None


class ProductChainKeywords(ChainKeywords, total=False):
    """Keywords of one chain of a product: those of a sum's, adder ("sequential"), and aligned_bits for "aligned"."""

    adder: Adder
    aligned_bits: int | None


class RowKeywords(ChainKeywords, total=False):
    """Keywords of sums in one part: those of a chain, and out_format (`accumulate`)."""

    out_format: FormatLike | None


class SumKeywords(RowKeywords, total=False):
    """Keywords of whole sums: those of one part, splits (1) and stages (by the number of parts)."""

    splits: int
    stages: Stages | None


class ProductKeywords(SumKeywords, total=False):
    """Keywords of whole products: those of a sum, adder ("sequential"), and aligned_bits for "aligned"."""

    adder: Adder
    aligned_bits: int | None


_ROUNDING = frozenset(RoundingKeywords.__annotations__)
_FIELDS = {"out_format": "out"}
"""Keyword -> field, where they differ."""


@cached
def as_rounding(rounding: FewBitRoundingLike = "nearest_even", **keywords: Any) -> Rounding:
    """The Rounding that a name and keywords describe; a Rounding is returned as it is.

    Raises:
        TypeError: keywords that are none of a rounding's, or beside a Rounding.
        ValueError: as `Rounding`.
    """
    # Before Rounding(**keywords), whose complaint would name its __init__.
    refuse_unknown(keywords, RoundingKeywords)
    if isinstance(rounding, Rounding):
        _refuse_both("rounding", keywords)
        return rounding
    return Rounding(rounding if rounding != "nearest" else "nearest_even", **keywords)


@cached
def as_sum(
    allowed: type,
    group: int | None,
    accumulation: Accumulation | None,
    rounding: RoundingLike,
    /,
    **keywords: Any,
) -> tuple[Accumulation, Rounding]:
    """The Accumulation and the Rounding that a sum's arguments describe.

    Args:
        allowed: the TypedDict of the function's keywords.
        group: the function's own, where nothing else is said.
        accumulation: given, or None for what the keywords say.
        rounding: a name or a Rounding.
        keywords: as given.

    Raises:
        TypeError: unknown keywords; keywords beside the value that they stand for; something else than these values.
        ValueError: as `Accumulation` and `Rounding`.
    """
    refuse_unknown(keywords, allowed)
    policies = {name: value for name, value in keywords.items() if name in _ROUNDING}
    # The rounding's keywords may stand beside an Accumulation, the order's may not.
    order = {_FIELDS.get(name, name): value for name, value in keywords.items() if name not in _ROUNDING}
    if accumulation is None:
        return Accumulation(**{"group": group, **order}), as_rounding(rounding, **policies)
    if not isinstance(accumulation, Accumulation):
        raise TypeError(f"accumulation must be a lowprec.Accumulation, not {accumulation!r}")
    # Else one of two statements about the same sum would win in silence.
    _refuse_both("accumulation", [name for name in keywords if name not in _ROUNDING])
    return accumulation, as_rounding(rounding, **policies)


def refuse_unhashable(**given: object) -> None:
    """Says which argument is no name or number, where a cache could only say that something is unhashable.

    Raises:
        TypeError: one of them cannot be hashed.
    """
    for what, value in given.items():
        try:
            hash(value)
        except TypeError:
            raise TypeError(f"{what} must be a name, a number, a bool or None, not {value!r}") from None


def refuse_unknown(keywords: Mapping[str, Any], allowed: type) -> None:
    """Raises TypeError for keywords that are not among those of a TypedDict."""
    if unknown := keywords.keys() - allowed.__annotations__.keys():
        named = "a result's format is fmt=, a product's out_format=; " if "dtype" in unknown else ""
        raise TypeError(f"unknown keywords {sorted(unknown)}; {named}allowed are {', '.join(allowed.__annotations__)}")


def _refuse_both(value: str, keywords: Any) -> None:
    if keywords:
        raise TypeError(f"{value}= says it all: give it without {', '.join(keywords)}")
