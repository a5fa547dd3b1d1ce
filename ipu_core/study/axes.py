"""The axes of a sweep: what each value of one sets, ranges such as "e8m10 ... e8m1", and the points of a search."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ipu_core.ir.precision.precision import Precision
from ipu_core.study.compare import precision_text
from ipu_core.study.typed import collective, collective_words, number
from ipu_core.train.training import Training
from lowprec import Collective
from lowprec.checks import shown

RATE, GROUP, MODE, BASE, COLLECTIVE = "lr", "group", "rounding", "precision", "collective"
RECIPE = (RATE, GROUP, *(f.name for f in fields(Training) if f.name not in ("precision", "accumulations")))
"""Axes whose values are of the training, not of its precision: the rate, the products of a group, and its fields."""
NUMBERS = (RATE, GROUP, "micro_batches", "loss_scale")
"""Axes whose values are numbers, which texts say too: "1 ... 8"."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Axis:
    """One thing that a sweep varies.

    Attributes:
        name: a field of `Precision` ("weights", "moments", "every"), or several joined by "+"; "rounding"; a rule's
            left side ("layers.0:weights"); "precision" (whole ones); or one of `RECIPE`.
        values: in their order, the widest first where a search goes from wide to narrow.
    """

    name: str
    values: tuple[Any, ...]

    @property
    def of_recipe(self) -> bool:
        """Whether its values are of the training, not of its precision."""
        return self.name in RECIPE

    def words(self, value: Any) -> list[str]:
        """The words of a precision's name that a value of it adds."""
        if self.name == MODE:
            return [str(value)]
        return [f"{field}={value}" for field in self.name.split("+")]


@dataclass(frozen=True)
class Setting:
    """What one combination of values sets.

    Attributes:
        values: of each axis, by name; those that are missing are as in the base.
        precision: the whole name.
        recipe: changes of the training, by axis.
    """

    values: Mapping[str, Any]
    precision: str
    recipe: tuple[tuple[str, Any], ...] = ()

    @property
    def is_line(self) -> bool:
        """Whether its precision is the base's."""
        return set(self.values) <= set(RECIPE)

    @property
    def label(self) -> str:
        """What it sets, in words; "" for the base."""
        return ", ".join(f"{name} {label(value)}" for name, value in self.values.items())


def label(value: Any) -> str:
    """A value of an axis, as it stands in a table; of an optimizer its rate, and what is not as by default.

    A collective is spelt as `--collective` takes it.
    """
    if isinstance(value, Collective):
        return collective_words(value)
    if not is_dataclass(value) or isinstance(value, type):
        return str(value)
    said = [(each, getattr(value, each.name)) for each in fields(value)]
    own = [f"{each.name}={given}" for each, given in said if each.name == "lr" or given != each.default]
    return f"{type(value).__name__}({', '.join(own)})"


def axes_of(given: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Axes by name, each a list of values or ranges, or one text.

    Raises:
        TypeError: no mapping.
        ValueError: an axis without values, or a range that is none.
    """
    if not isinstance(given, Mapping) or not given:
        example = "{'weights': 'e8m10 ... e8m1', 'lr': [0.01, 0.001]}"
        raise TypeError(
            f"axes must be a mapping from what is varied to its values, such as {example}, not {shown(given)}"
        )
    return tuple(Axis(str(name), _values(str(name), values)) for name, values in given.items())


def _values(name: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [given]
    values = [value for each in given for value in (expand(each) if isinstance(each, str) else [each])]
    if not values:
        raise ValueError(f"the axis {name!r} has no values")
    if name in NUMBERS:
        values = [number(value) if isinstance(value, str) else value for value in values]
    if name == COLLECTIVE:
        values = [collective(value) if isinstance(value, str) else value for value in values]
    try:
        return tuple(dict.fromkeys(values))
    except TypeError:
        raise TypeError(
            f"the axis {name!r} has texts, numbers or values that can be hashed, not {shown(values)}"
        ) from None


def expand(text: str) -> list[str]:
    """The values of "A ... B", whose texts differ in one whole number; any other text is a value.

    Raises:
        ValueError: the two differ in more, or in nothing.
    """
    ends = [part.strip() for part in text.split("...")]
    if len(ends) == 1:
        return [text.strip()]
    first, last = (_NUMBER.findall(end) for end in ends[:2])
    frame = {_NUMBER.sub("#", end) for end in ends}
    places = [i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b]
    if len(ends) != 2 or len(frame) != 1 or len(places) != 1:
        raise ValueError(f"{text!r} is no range: write 'e8m10 ... e8m1', two texts that differ in one whole number")
    begin, end = int(first[places[0]]), int(last[places[0]])
    step = 1 if end > begin else -1
    parts = _NUMBER.split(ends[0])
    made = []
    for place in range(begin, end + step, step):
        numbers = [*first[: places[0]], str(place), *first[places[0] + 1 :]]
        made.append("".join(a + b for a, b in itertools.zip_longest(parts, numbers, fillvalue="")))
    return made


def follows(one: str, other: str) -> bool:
    """Whether two values, as texts, may be neighbours of a range: they differ in one number at most."""
    first, last = _NUMBER.findall(one), _NUMBER.findall(other)
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other) or "." in one + other:
        return True  # rates, or names
    return len([0 for a, b in zip(first, last, strict=True) if a != b]) <= 1


def setting(base: str, axes: Sequence[Axis], values: Mapping[str, Any]) -> Setting:
    """What values of some axes set on top of a base.

    Raises:
        ValueError: the precision is none.
    """
    words, recipe = [base], list[tuple[str, Any]]()
    for axis in axes:
        if axis.name not in values:
            continue
        value = values[axis.name]
        if axis.of_recipe:
            recipe.append((axis.name, value))
        elif axis.name == BASE:
            words[0] = precision_text(value)
        else:
            words += axis.words(value)
    name = "/".join(words)
    Precision.parse(name)
    return Setting(dict(values), name, tuple(recipe))


def grid(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Every combination, the last axis fastest."""
    names = [axis.name for axis in axes]
    return [dict(zip(names, each, strict=True)) for each in itertools.product(*(axis.values for axis in axes))]


def drawn(axes: Sequence[Axis], points: int) -> list[dict[str, Any]]:
    """So many combinations, drawn without repetition, the same every time; with more points, more of them.

    Raises:
        ValueError: fewer than one.
    """
    every = grid(axes)
    # A permutation's beginning: a later call with more points has those of an earlier one.
    random.Random(0).shuffle(every)
    return every[:points]


def one_by_one(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Every value of each axis alone, the others as in the base."""
    return [{axis.name: value} for axis in axes for value in axis.values]
