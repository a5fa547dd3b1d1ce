"""What a sweep found: rows, a table with what can be told apart, pictures, the fewest bits that train."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipu_core.errors import refusal_in_words
from ipu_core.study.axes import RATE, Axis, Setting, label
from ipu_core.study.compare import said
from ipu_core.study.plot import Picture
from ipu_core.study.results import Study
from ipu_core.study.rows import Row, Tabular, beside, curve_rows, row
from ipu_core.study.summary import heading, is_share, measure_in_words, spread
from ipu_core.study.sweep_plot import over_one_axis, over_two_axes, pareto
from ipu_core.train.checkpoint import replacing
from ipu_core.train.table import Table

BASE = "base"


@dataclass
class Sweep(Tabular):
    """The finished points of a sweep, in the order of the call. Shows its table when printed.

    Attributes:
        title: Heads the table and the pictures.
        axes: What was varied.
        base: What the others are compared with.
        settings: The base, and every combination that was asked for or that a bisection trained.
        by: The measure that decides.
        within: How far from the base a bisection lets it be, as a share.
        search: How the combinations were chosen.
        studies: By what of the training was varied, as pairs of axis and value: the study of its precisions.
        fewest: Of a bisection, by axis: the last value that trains; None: not even the first does.
    """

    title: str
    axes: tuple[Axis, ...]
    base: Setting
    settings: list[Setting]
    by: str = "final_loss"
    within: float = 0.02
    search: str = "grid"
    studies: dict[tuple[tuple[str, Any], ...], Study] = field(default_factory=dict)
    fewest: dict[str, Any] = field(default_factory=dict)

    def take(self, recipe: tuple[tuple[str, Any], ...], study: Study) -> None:
        """Takes up a finished study; what an earlier one of the same recipe has stays."""
        if (known := self.studies.get(recipe)) is not None:
            names = dict.fromkeys((*known.precisions, *study.precisions))
            study.results = [*known.results, *study.results]
            study.precisions, study.failures = tuple(names), {**known.failures, **study.failures}
        self.studies[recipe] = study

    @property
    def failures(self) -> dict[str, str]:
        """What went wrong, by point."""
        return {
            ", ".join([*(f"{name} {label(value)}" for name, value in recipe), point]): error
            for recipe, study in self.studies.items()
            for point, error in study.failures.items()
        }

    def results(self, setting: Setting) -> list[dict[str, Any]]:
        """The finished points of a setting, seed by seed."""
        study = self.studies.get(setting.recipe)
        own = [] if study is None else [each for each in study.results if each["precision"] == setting.precision]
        return sorted(own, key=lambda each: int(each["seed"]))

    def rows(self) -> list[Row]:
        """A row for each point: the axes' values (None: as in the base), and what a row of a `Study` has."""
        return [
            {**{axis.name: setting.values.get(axis.name) for axis in self.axes}, **row(result)}
            for setting in self.settings
            for result in self.results(setting)
        ]

    def curves(self) -> list[Row]:
        """A row for each step of each point, with its loss."""
        return [
            each
            for setting in self.settings
            for result in self.results(setting)
            for each in curve_rows(result, **{axis.name: setting.values.get(axis.name) for axis in self.axes})
        ]

    def measured(self, setting: Setting) -> dict[int, float]:
        """What decides, by seed.

        Raises:
            ValueError: no such measure.
        """
        rows = [row(result) for result in self.results(setting)]
        if rows and self.by not in rows[0]:
            known = [name for name, value in rows[0].items() if isinstance(value, float)]
            raise ValueError(f"there is no measure {self.by!r} in the results; there are {', '.join(known)}")
        return {each["seed"]: math.nan if each[self.by] is None else float(each[self.by]) for each in rows}

    def trains(self, setting: Setting) -> bool:
        """Whether a setting's mean is within a share of the base's, or better."""
        own, line = (spread(self.measured(each).values()).mean for each in (setting, self.base))
        room = self.within * abs(line)
        # A NaN is within nothing.
        return own >= line - room if is_share(self.by) else own <= line + room

    def table(self) -> Table:
        """Mean and spread over seeds of every setting, and what can be said of it beside the base."""
        names = [axis.name for axis in self.axes]
        rows = []
        for setting in self.settings:
            results = self.results(setting)
            if not results:
                continue
            own = self.measured(setting)
            values = [label(setting.values[name]) if name in setting.values else BASE for name in names]
            line = self.line_of(setting)
            verdict = "" if setting is line else beside(own, self.measured(line), more_is_better=is_share(self.by))
            told = ", ".join(filter(None, [verdict, _skipped(results)]))
            rows.append((*values, str(len(results)), measure_in_words(self.by, spread(own.values())), told))
        columns = (*names, "seeds", heading(self.by), f"beside {self.base.precision}")
        return Table(self.title, columns, tuple(rows), self._notes(), len(names))

    def _notes(self) -> str:
        notes = [
            "mean ± standard deviation over seeds; 'cannot be told apart': not by Student's test of the differences, "
            "seed by seed, at 5 %"
        ]
        rates = next((axis for axis in self.axes if axis.name == RATE), None)
        if rates is None:
            notes.append("one learning rate for all: a setting that needs its own shows here as worse")
        else:
            notes += self._best_rates(rates)
        if not all(map(math.isfinite, self.measured(self.base).values())) or not self.results(self.base):
            notes.append(
                f"{self.base.precision} itself did not train or did not finish: nothing can be compared with it"
            )
        for name, value in self.fewest.items():
            said = "not even the first value trains" if value is None else f"the last that trains is {label(value)}"
            notes.append(f"{name}: {said} (within {self.within:.1%} of {self.base.precision})")
        return "\n".join(notes)

    def _best_rates(self, rates: Axis) -> list[str]:
        """The rate at which each setting is best, where the rates differ, or all have one at the end of the range."""
        best: dict[str, tuple[float, Any]] = {}
        for setting in self.settings:
            mean = spread(self.measured(setting).values()).mean
            if RATE in setting.values and math.isfinite(mean):
                others = ", ".join(label(value) for name, value in setting.values.items() if name != RATE)
                cost = -mean if is_share(self.by) else mean
                best[others or BASE] = min(best.get(others or BASE, (math.inf, None)), (cost, setting.values[RATE]))
        found = dict.fromkeys(rate for _, rate in best.values())
        if len(found) > 1:
            return ["best lr: " + ", ".join(f"{others} {label(rate)}" for others, (_, rate) in best.items())]
        edge = (
            " (the end of the range: another may be better)" if {*found} & {rates.values[0], rates.values[-1]} else ""
        )
        return [f"best lr of every setting: {label(rate)}{edge}" for rate in found]

    def line_of(self, setting: Setting) -> Setting:
        """What a setting is compared with: the base under the same training, where that was varied."""
        return next((each for each in self.settings if each.is_line and each.recipe == setting.recipe), self.base)

    def plot(self) -> Picture:
        """The measure over the values: a line for each axis that is varied alone, a map of two axes (needs matplotlib).

        Raises:
            ValueError: a grid of three axes or more: `to_pandas` has the rows.
        """
        alone = self.search in ("each", "bisect") or len(self.axes) == 1
        if not alone and len(self.axes) > 2:
            raise ValueError(f"{len(self.axes)} axes make no picture: to_pandas() has the rows, for one of your own")
        return (over_one_axis if alone else over_two_axes)(self)

    def pareto(self) -> Picture:
        """The measure over cycles and over the bytes of the fullest tile, with the settings that no other beats.

        Raises:
            ValueError: no machine was modelled: engine="direct".
        """
        return pareto(self)

    def picture_to(self, path: Path) -> None:
        """Writes the picture; that there is none, no matplotlib or a full disk costs no point, and is said."""
        try:
            with replacing(path) as draft:
                self.plot().save(draft)
        except (ImportError, ValueError, OSError) as error:
            told = refusal_in_words(error) if isinstance(error, OSError) else str(error)
            self.studies[self.base.recipe].unwritten[path.name] = told
            said(f"{path.name} was not written: {told}")

    def __str__(self) -> str:
        failures = [f"{point} failed: {error}" for point, error in self.failures.items()]
        return "\n".join([str(self.table()), *failures])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _skipped(results: Sequence[Mapping[str, Any]]) -> str:
    """How many steps changed nothing, where that is a tenth of them or more."""
    steps = sum(len(each["losses"]) for each in results)
    skipped = sum(len(each.get("skipped_steps", ())) for each in results)
    return f"{skipped / steps:.0%} of steps skipped" if steps and 10 * skipped >= steps else ""
