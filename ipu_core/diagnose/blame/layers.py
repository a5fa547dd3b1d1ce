"""Sensitivity by layer (each alone low, all but each low), and a search for the cheapest precision of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipu_core.diagnose.blame.gap import Gap, mean_of
from ipu_core.diagnose.blame.settings import Variant
from ipu_core.diagnose.blame.switches import FIELDS, WORDS, CauseSwitch, casts, part_of, trimmed
from ipu_core.diagnose.blame.trials import Trials, check_tolerance, reference_of, taken
from ipu_core.diagnose.defaults import BY
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.role_formats import FORMATS
from ipu_core.ir.precision.rules import PrecisionRule
from ipu_core.train.data.batches import Batches
from ipu_core.train.loop import TrainLoop
from ipu_core.train.table import Table
from lowprec.checks import shown

REST = "(the rest)"
Layers = Mapping[str, tuple[str, ...]]
"""By layer the patterns of rules that are for it."""


@dataclass(frozen=True)
class Sensitivity:
    """What low precision costs in one layer, or by one cause.

    Attributes:
        precision: the low one.
        steps: of each run.
        reference, low: the loss in float32, and with all in the precision; NaN of a run that ended in one.
        rows: (name, loss with it alone in low precision, share of what float32 learns that is missing then, the same
            two with all but it in low precision).
    """

    precision: Precision
    steps: int
    reference: float
    low: float
    rows: tuple[tuple[str, float, float, float, float], ...]

    def table(self) -> Table:
        """The rows, the most harmful first."""
        ordered = sorted(self.rows, key=lambda row: -row[2])
        cells = tuple((n, f"{a:.4g}", _percent(x), f"{b:.4g}", _percent(y)) for n, a, x, b, y in ordered)
        title = f"{self.precision.name}, loss after {self.steps} steps: {self.low:.4g}, float32 {self.reference:.4g}"
        return Table(title, ("part", "it alone low", "missing", "all but it low", "missing"), cells)

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def sensitivity(loop: TrainLoop, batches: Batches, steps: int, by: str = "layer") -> Sensitivity:
    """The loss after some steps with exactly one layer (or cause) in the loop's precision, and with all but one.

    Everything else is in float32 then. It takes two runs for each layer, and two more.

    Args:
        loop: at the state from which every run begins; it stays as it is.
        batches: as `TrainLoop.run` takes them.
        steps: of each run.
        by: "layer", by the names of parameters and name scopes, or "cause": weights, moments, partial sums and so on.

    Raises:
        ValueError: an unknown `by`, no steps, or fewer batches than steps.
        TypeError: no loop.
    """
    if not isinstance(by, str) or by not in BY:
        raise ValueError(f"by must be {' or '.join(BY)}, not {shown(by)}")
    trials = Trials(loop, taken(loop, batches, steps))
    low, reference = (trials.run(Variant(each), steps) for each in (loop.precision, reference_of(loop.precision)))
    rows = []
    units = layers(loop.ideal) if by == "layer" else {WORDS[cause]: (cause,) for cause in FIELDS}

    def in_float32(precision: Precision, names: Sequence[str]) -> Precision:
        if by == "layer":
            wide = reference_of(precision)
            return _ruled(precision, {name: (wide, units[name]) for name in names}, loop.ideal)
        for name in names:
            precision = CauseSwitch(units[name][0]).off(precision, loop.ideal)
        return precision

    low_block = str(loop.precision.apply(loop.ideal))
    for name in units:
        if str(in_float32(loop.precision, [name]).apply(loop.ideal)) == low_block:
            continue  # there is nothing low in it
        others = [other for other in units if other != name]
        each = [trials.run(Variant(in_float32(loop.precision, some)), steps) for some in (others, [name])]
        alone, without = ((mean_of(losses, steps), Gap(losses, reference).size(steps)) for losses in each)
        rows.append((name, *alone, *without))
    return Sensitivity(loop.precision, steps, mean_of(reference, steps), mean_of(low, steps), tuple(rows))


@dataclass(frozen=True)
class Cheapest:
    """The cheapest precision by layer that was found.

    Attributes:
        precision: of which the name can be pasted back wherever a precision is named.
        missing: the share of what float32 learns that is missing with it.
        choices: by layer the name of what it is in.
        runs: how many runs it took.
    """

    precision: Precision
    missing: float
    choices: Mapping[str, str]
    runs: int

    def __str__(self) -> str:
        lines = [f"  {name}: {choice}" for name, choice in self.choices.items()]
        found = f"{_percent(self.missing)} of what float32 learns is missing, {self.runs} runs"
        return "\n".join([self.precision.name, *lines, f"({found})"])

    __repr__ = __str__


def cheapest(
    loop: TrainLoop, batches: Batches, steps: int, choices: Sequence[str | Precision], *, tolerance: float = 0.05
) -> Cheapest:
    """Searches for the cheapest precision of each layer with which the loss stays within a tolerance of float32's.

    As many layers as possible are in the first choice: those that it harms least alone, by bisection, and then one
    after another what else can be; the others are in the first of the later choices that is enough.

    Args:
        loop: at the state from which every run begins; it stays as it is. Its own precision does not matter.
        batches: as `TrainLoop.run` takes them.
        steps: of each run.
        choices: precisions from the cheapest to the dearest, such as ("fp16.16/stochastic", "fp32.32").
        tolerance: the share of what float32 learns that may be missing.

    Raises:
        ValueError: fewer than two choices, a tolerance that is no share, or even the last choice, everywhere, is not
            within it.
        TypeError: no loop.
    """
    check_tolerance(tolerance)
    if isinstance(choices, str) or not isinstance(choices, Sequence) or len(choices) < 2:
        raise ValueError(f"a search needs two precisions or more, from the cheapest to the dearest, not {choices!r}")
    listed = [Precision.parse(choice) for choice in choices]
    search = _Search(loop, taken(loop, batches, steps), listed, tolerance)
    levels = search.found()
    names = {name: listed[level].name for name, level in levels.items()}
    precision = trimmed(search.precision(levels), listed[0], loop.ideal)
    return Cheapest(precision, search.missing(levels), names, search.runs)


def _percent(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:.1f} %"  # no -0.0


class _Search:
    """Runs with a choice for each layer."""

    def __init__(self, loop: TrainLoop, batches: Sequence[Any], choices: Sequence[Precision], tolerance: float) -> None:
        self._trials, self._steps = Trials(loop, batches), len(batches)
        self._choices, self._tolerance = choices, tolerance
        self._layers = layers(loop.ideal)
        self._reference = self._trials.run(Variant(reference_of(loop.precision)), self._steps)
        self._known: dict[Precision, float] = {}

    @property
    def runs(self) -> int:
        """How many runs were done."""
        return 1 + len(self._known)

    def precision(self, levels: Mapping[str, int]) -> Precision:
        """The cheapest choice, with rules for the layers that have another."""
        other = {name: (self._choices[level], self._layers[name]) for name, level in levels.items() if level}
        return _ruled(self._choices[0], other, self._trials.loop.ideal)

    def missing(self, levels: Mapping[str, int]) -> float:
        """The share of what float32 learns that is missing."""
        precision = self.precision(levels)
        # Two choices of levels may make one precision, and a run is what takes the time.
        if precision not in self._known:
            self._known[precision] = Gap(self._trials.run(Variant(precision), self._steps), self._reference).size(
                self._steps
            )
        return self._known[precision]

    def found(self) -> dict[str, int]:
        """By layer the number of the choice that it gets: all together leave no more missing than the tolerance.

        Raises:
            ValueError: too much is missing with the dearest of them everywhere.
        """
        last = len(self._choices) - 1
        low, high = dict.fromkeys(self._layers, 0), dict.fromkeys(self._layers, last)
        if self._good(low):
            return low
        if not self._good(high):
            dearest = self._choices[-1].name
            raise ValueError(f"even {dearest} everywhere leaves {100 * self.missing(high):.1f} % missing")
        # Layers are taken by the harm that each does alone: bisection finds how many of them together still do.
        order = sorted(self._layers, key=lambda name: self.missing({**high, name: 0}))
        count, beyond = 0, len(order)
        while beyond - count > 1:
            middle = (count + beyond) // 2
            good = self._good({**high, **dict.fromkeys(order[:middle], 0)})
            count, beyond = (middle, beyond) if good else (count, middle)
        levels = {**high, **dict.fromkeys(order[:count], 0)}
        # Harm does not simply add up: a layer behind the first that was too much may still be within the tolerance.
        for name in order[count:]:
            levels = next(
                one for level in range(last + 1) if level == last or self._good({**levels, name: level})
                for one in [{**levels, name: level}]
            )  # fmt: skip
        return levels

    def _good(self, levels: Mapping[str, int]) -> bool:
        return self.missing(levels) <= self._tolerance


def layers(block: Block) -> dict[str, tuple[str, ...]]:
    """The layers of an ideal step by name, with the patterns of rules that are for them.

    What has neither a parameter nor a name scope is together in one that is called "(the rest)".
    """
    found: dict[str, tuple[str, ...]] = {}
    rest: dict[str, None] = {}
    for equation in equations_of(block):
        if equation.op in STRUCTURE:
            continue
        part = part_of(equation)
        if equation.parameter or equation.layer:
            found[part] = (part,)
        else:
            rest[part] = None
    return found | ({REST: tuple(rest)} if rest else {})


def _ruled(base: Precision, others: Mapping[str, tuple[Precision, tuple[str, ...]]], block: Block) -> Precision:
    """`base` with rules that put some layers into other precisions; rules that change nothing are left out."""
    rules = list[PrecisionRule]()
    for other, patterns in others.values():
        values = {field: getattr(other, field) for field in (*FORMATS, "rounding")}
        changed: dict[str, Any] = {
            field: value for field, value in values.items() if value != getattr(base, field) or base.rules
        }
        # None as a scaling is a choice too: it takes the casts of the base away.
        if other.scaling != base.scaling or casts(base):
            changed["scaling"] = other.scaling
        for pattern in patterns:
            every = (PrecisionRule(pattern, field, value) for field, value in changed.items())
            rules += [rule for rule in every if base.sets(rule, block)]
    return base.with_rules(rules)
