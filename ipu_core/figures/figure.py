"""A published figure, with its source, and how ours is computed or why it cannot be."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Published = float | tuple[float, float] | str
"""A number, the least and the most, or words where no number is known."""
NOT_MEASURED = "not measured"
"""What stands in the place of a published figure where ours is a prediction."""
WEIGHTS = ("light", "heavy")
BOUNDS = ("", "least", "most")
AGREEMENT = ("derived", "logs", "line", "joules", "pipeline", "ring")
"""Models that compute a figure from other published ones or by a published schedule: what holds is that they agree."""
TOLERANCE = 0.02
"""The share within which a figure holds where no other is said: data sheets give two or three digits."""
FIELDS = (
    "name", "what", "published", "unit", "source", "model", "arguments", "precision", "tolerance", "bound", "weight",
    "why", "not_checkable",
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One published figure.

    Attributes:
        name: of its row.
        group: the list it stands in: "chips", "systems", "costs", "measured", "energy", "training", "effects", "talks".
        what: in words.
        published: a number, the least and the most, or words.
        unit: of the number.
        cited: the source in short.
        source: the source in full; "[M]" in it: quoted from memory by whoever wrote the list down, not looked up.
        model: name of what computes ours, a key of `models.MODELS`; None: nothing does, see `not_checkable`.
        arguments: of the model.
        precision: where it matters.
        tolerance: the share within which ours holds.
        bound: "least" or "most" where the published number is a bound, else "".
        weight: "light", or "heavy": minutes.
        why: of a tolerance that is not the usual, or what else is to be known.
        not_checkable: why there is no figure of ours; "": there is one.
    """

    name: str
    group: str
    what: str
    published: Published
    unit: str
    cited: str
    source: str
    model: str | None = None
    arguments: tuple[tuple[str, Any], ...] = ()
    precision: str = ""
    tolerance: float = TOLERANCE
    bound: str = ""
    weight: str = "light"
    why: str = ""
    not_checkable: str = ""

    def __post_init__(self) -> None:
        if (self.model is None) == (not self.not_checkable):
            raise ValueError(f"{self.name}: a figure has either a model or a reason why there is none")
        if self.model is not None and isinstance(self.published, str) and not self.predicted:
            raise ValueError(f"{self.name}: words are compared with nothing, a model needs a published number")
        if self.weight not in WEIGHTS or self.bound not in BOUNDS:
            raise ValueError(
                f"{self.name}: weight {self.weight!r} and bound {self.bound!r} are not among those there are"
            )
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(f"{self.name}: tolerance must be a share from 0 on, not {self.tolerance}")

    @property
    def predicted(self) -> bool:
        """Whether nothing measured is known to compare ours with."""
        return self.published == NOT_MEASURED

    @property
    def heavy(self) -> bool:
        """Whether ours takes more than seconds."""
        return self.weight == "heavy"

    @property
    def of_published(self) -> bool:
        """Whether ours follows from other published figures and says nothing of this library's models."""
        return self.model in AGREEMENT

    @property
    def published_words(self) -> str:
        """The published figure with its unit."""
        if isinstance(self.published, str):
            return self.published
        if isinstance(self.published, tuple):
            return f"{shown(self.published[0])} to {shown(self.published[1])} {self.unit}".rstrip()
        sign = {"": "", "least": ">= ", "most": "<= "}[self.bound]
        return f"{sign}{shown(self.published)} {self.unit}".rstrip()


def shown(value: float) -> str:
    """A number in six digits at most; whole ones below a thousand millions in full."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.6g}"


def read(path: Path) -> tuple[Figure, ...]:
    """The figures of a file: `sources` by their short names, and `figures`.

    Raises:
        ValueError: a field that there is not, a source that is not listed.
    """
    table = tomllib.loads(path.read_text("utf-8"))
    return tuple(_figure(path.stem, each, table["sources"]) for each in table["figures"])


def _figure(group: str, table: Mapping[str, Any], sources: Mapping[str, str]) -> Figure:
    given = dict(table)
    if unknown := [key for key in given if key not in FIELDS]:
        raise ValueError(f"{given.get('name')}: there is no field {unknown[0]!r}; there are {', '.join(FIELDS)}")
    cited = given.pop("source")
    if cited not in sources:
        raise ValueError(f"{given.get('name')}: source {cited!r} is not listed; there are {', '.join(sources)}")
    published = given.pop("published")
    if isinstance(published, list):
        low, high = published
        published = float(low), float(high)
    elif not isinstance(published, str):
        published = float(published)
    arguments = tuple(given.pop("arguments", {}).items())
    return Figure(
        group=group, published=published, cited=cited, source=sources[cited], arguments=arguments,
        unit=given.pop("unit", ""), **given,
    )  # fmt: skip
