"""What a study's results say: mean and spread over seeds, per precision, as a table that prints anywhere."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.ir.precision.precision import Precision
from ipu_core.train.table import Table

MACHINE = ("cycles_per_step", "microseconds_per_step", "tile_memory")
"""What a result says of the modelled machine, and of no bit."""
OWN = frozenset(MACHINE) | {
    "precision", "rounding", "seed", "skipped_steps", "not_finite_step", "accumulations", "lost_updates", "update_kept",
    "lost_updates_by_step", "seconds", "losses", "study", "sha256", "saturated_weights",
}  # fmt: skip
"""What a result says beside its measures."""
PERCENT = ("accuracy", "share")  # measures whose names end so are shares, shown in percent
ALL_LOST = 0.999  # of the updates, from which on nothing is learned
MUCH = 0.01  # of the weights, from which on their format's largest number is said beside the loss
TAIL = 20  # the final loss is the mean of the last 1/20 of the steps


class Spread(NamedTuple):
    """Mean and sample standard deviation of some seeds' values; NaN where there are too few."""

    mean: float
    deviation: float


class Summary(NamedTuple):
    """One precision of a study.

    Attributes:
        final_loss: Mean training loss of the last twentieth of the steps.
        measures: What `evaluate` gave, by name.
        not_finite: A seed and the step of its first infinite or NaN loss, for each that had one.
        skipped: A seed and how many of its steps the loss scale skipped, for each that skipped some.
        untrained: Seeds of which it skipped every step.
        diverged: Seeds whose loss rose, see `has_diverged`.
        saturated: Share of the weights that are the largest number of their format at the end.
        lost_updates: Of the weight updates that were not zero, the share that left the weight as it was; of seeds
            whose losses stay finite, as the next.
        update_kept: How much of the wanted change arrived, measured along it: 1 where rounding is unbiased.
        cycles_per_step, microseconds_per_step: On the modelled machine; None where no machine was modelled, or the
            seeds ran on several.
        tile_memory: Peak bytes on the fullest tile; None likewise.
    """

    precision: str
    seeds: int
    final_loss: Spread
    measures: dict[str, Spread]
    not_finite: tuple[tuple[int, int], ...]
    skipped: tuple[tuple[int, int], ...]
    untrained: tuple[int, ...]
    diverged: tuple[int, ...]
    saturated: Spread
    lost_updates: Spread
    update_kept: Spread
    cycles_per_step: int | None
    microseconds_per_step: float | None
    tile_memory: int | None


def final_loss(losses: Sequence[float]) -> float:
    """Mean of the last twentieth of the losses (at least one)."""
    return float(np.mean(losses[-max(1, len(losses) // TAIL) :]))


def has_diverged(losses: Sequence[float]) -> bool:
    """Whether the loss rose, from the first quarter of the steps to the last, by more than batches differ by chance.

    By three standard errors of the two means. Of losses that are not finite that is said.
    """
    if len(losses) < TAIL:
        return False
    count = len(losses) // 4
    first, last = np.asarray(losses[:count], np.float64), np.asarray(losses[-count:], np.float64)
    if not (np.isfinite(first).all() and np.isfinite(last).all()):
        return False
    chance = math.sqrt((first.var(ddof=1) + last.var(ddof=1)) / count)
    return float(last.mean() - first.mean()) > 3 * chance


def spread(values: Iterable[float | None]) -> Spread:
    """Mean and standard deviation (n - 1) of the values that are not None."""
    present = [value for value in values if value is not None]
    if not present:
        return Spread(math.nan, math.nan)
    # np.std of an infinity warns and gives NaN.
    several = len(present) > 1 and all(map(math.isfinite, present))
    deviation = float(np.std(present, ddof=1)) if several else math.nan
    return Spread(float(np.mean(present)), deviation)


def summarise(results: Sequence[dict[str, Any]], precisions: Sequence[str]) -> list[Summary]:
    """One Summary per precision that has at least one finished point, in the order given."""
    groups = {name: [result for result in results if result["precision"] == name] for name in precisions}
    return [_summary(name, group) for name, group in groups.items() if group]


def measures(result: Mapping[str, Any]) -> dict[str, float]:
    """What `evaluate` measured of a point; a null in the file was an infinity or NaN."""
    return {name: math.nan if value is None else float(value) for name, value in result.items() if name not in OWN}


def measure_names(results: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of all measures, in the order in which they were given."""
    return tuple(dict.fromkeys(name for result in results for name in measures(result)))


def encodable(text: str) -> str:
    """Text in which what UTF-8 cannot encode is escaped: surrogates, as of a file's name that is not UTF-8."""
    # Such a name could be neither printed nor written, which would show after the training.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def heading(measure: str) -> str:
    """A measure's name as it heads a column or a picture: "test_accuracy" is "test accuracy"."""
    return measure.replace("_", " ")


def is_share(measure: str) -> bool:
    """Whether a measure is shown in percent."""
    return measure.endswith(PERCENT)


def _summary(precision: str, group: Sequence[dict[str, Any]]) -> Summary:
    # updates of weights that are NaN are neither lost nor kept
    trained = [result for result in group if "not_finite_step" not in result]
    return Summary(
        precision,
        len(group),
        spread(final_loss(result["losses"]) for result in group),
        {name: spread(measures(result).get(name) for result in group) for name in measure_names(group)},
        tuple((result["seed"], result["not_finite_step"]) for result in group if "not_finite_step" in result),
        tuple((result["seed"], len(steps)) for result in group if (steps := result.get("skipped_steps"))),
        tuple(r["seed"] for r in group if r["losses"] and len(r.get("skipped_steps") or ()) == len(r["losses"])),
        tuple(result["seed"] for result in group if has_diverged(result["losses"])),
        spread(result.get("saturated_weights") for result in group),
        spread(result.get("lost_updates") for result in trained),
        spread(result.get("update_kept") for result in trained),
        *(_common(group, figure) for figure in MACHINE),
    )


def _common(group: Sequence[dict[str, Any]], figure: str) -> Any:
    """A figure of the modelled machine that all seeds share; None where they ran on several, or on none."""
    found = {result[figure] for result in group if figure in result}
    # Seeds that ran on two machines have no common time.
    return found.pop() if len(found) == 1 else None


def table(summaries: Sequence[Summary], title: str, executions: Sequence[str] = (), told: Sequence[str] = ()) -> Table:
    """The study's table; columns for which nothing was measured are left out.

    Args:
        summaries: A row each.
        title: Heads it.
        executions: Where the points were trained, in words.
        told: Further lines.
    """
    names = dict.fromkeys(name for summary in summaries for name in summary.measures)
    columns: dict[str, list[str]] = {
        "precision": [s.precision for s in summaries],
        "seeds": [str(s.seeds) for s in summaries],
        "final loss": [_general(s.final_loss) for s in summaries],
        "but": [_but(s) for s in summaries],
        **{heading(name): [measure_in_words(name, s.measures.get(name)) for s in summaries] for name in names},
        "updates lost": [_percent(s.lost_updates) for s in summaries],
        "change kept": [_percent(s.update_kept) for s in summaries],
        "cycles/step": ["" if s.cycles_per_step is None else f"{s.cycles_per_step:,}" for s in summaries],
        "us/step": ["" if s.microseconds_per_step is None else f"{s.microseconds_per_step:.1f}" for s in summaries],
        "tile memory": ["" if s.tile_memory is None else f"{s.tile_memory / 1024:.1f} KiB" for s in summaries],
    }
    kept = {name: cells for name, cells in columns.items() if any(cells) or name in ("precision", "seeds")}
    notes = [NOTE, *_not_finite(summaries), *_said(summaries), *told]
    if len(executions) > 1:
        notes += ["trained in several places, which changes no bit: figures of a machine stand where its seeds agree"]
        notes += [f"  {words}" for words in executions]
    elif executions and "cycles/step" in kept:
        notes += [f"cycles, time and memory: {executions[0]}"]
    return Table(title, tuple(kept), tuple(zip(*kept.values(), strict=True)), "\n".join(notes))


def _not_finite(summaries: Sequence[Summary]) -> list[str]:
    return [
        f"{s.precision}: a loss that is not finite from "
        + ", ".join(f"step {n} of seed {seed}" for seed, n in s.not_finite)
        for s in summaries
        if s.not_finite
    ]


def _said(summaries: Sequence[Summary]) -> list[str]:
    """What the columns do not show of a row: steps that were skipped, losses that rose, weights at their largest."""
    told = []
    for s in summaries:
        if s.skipped:
            seeds = ", ".join(
                f"{'all ' if seed in s.untrained else ''}{count} of seed {seed}" for seed, count in s.skipped
            )
            told.append(f"{s.precision}: steps without an update (overflow under the loss scale): {seeds}")
        if s.diverged:
            seeds = ", ".join(map(str, s.diverged))
            told.append(f"{s.precision}: the loss rose, from the first steps to the last (seed {seeds})")
        if s.saturated.mean > 0:
            share = f"{100 * s.saturated.mean:.2g}" if s.saturated.mean < 0.995 else "100"
            told.append(f"{s.precision}: {share} % of the weights are their format's largest number")
    if len({s.final_loss.mean for s in summaries}) > 1:
        told.append("one learning rate for all rows: one that needs its own shows here as worse")
    if other := _of_other_rates(summaries):
        told.append(
            f"{', '.join(other)}: unit scaling wants weights that begin with deviation 1 and a learning rate of its own"
            "; such rows are compared apart"
        )
    return told


def _of_other_rates(summaries: Sequence[Summary]) -> list[str]:
    """The rows under unit scaling, where others are not."""
    scaled = [s.precision for s in summaries if _unit_scaled(s.precision)]
    return scaled if len(scaled) < len(summaries) else []


def _unit_scaled(precision: str) -> bool:
    try:
        return Precision.parse(precision).unit_scaled
    except ValueError:  # a file of another version's names
        return False


def _but(s: Summary) -> str:
    """What a final loss is not to be read without, in a word or three; "": nothing."""
    for seeds, words in ((len(s.untrained), "no update"), (len(s.not_finite), "not finite")):
        if seeds:
            return words if seeds == s.seeds else f"{words} ({seeds} of {s.seeds})"
    if s.lost_updates.mean >= ALL_LOST:
        return "updates lost"
    if s.saturated.mean >= MUCH:
        return "saturated"
    return "rose" if len(s.diverged) == s.seeds else ""


def measure_in_words(name: str, value: Spread | None) -> str:
    """A measure with its spread; None: it was not measured."""
    if value is None:
        return ""
    return _percent(value) if is_share(name) and math.isfinite(value.mean) else _general(value)


def _general(value: Spread) -> str:
    """A number of any size: as many decimals as its mean has to four significant digits, four at most."""
    if not math.isfinite(value.mean):
        return str(value.mean)
    if value.mean and not 1e-3 <= abs(value.mean) < 1e6:
        return f"{value.mean:.3e}" + ("" if math.isnan(value.deviation) else f" ± {value.deviation:.1e}")
    digits = 4 if abs(value.mean) < 10 else max(0, 4 - len(str(int(abs(value.mean)))))
    return _number(value, digits)


NOTE = (
    "mean ± standard deviation over seeds\n"
    "updates lost: updates, not zero, that left the weight as it was\n"
    "change kept: how much of the wanted change arrived (100 % = unbiased)"
)


def _number(value: Spread, digits: int) -> str:
    deviation = "" if math.isnan(value.deviation) else f" ± {value.deviation:.{digits}f}"
    return f"{value.mean:.{digits}f}{deviation}"


def _percent(value: Spread) -> str:
    if math.isnan(value.mean):
        return ""
    deviation = "" if math.isnan(value.deviation) else f" ± {100 * value.deviation:.1f}"
    return f"{100 * value.mean:.1f}{deviation} %"


class Band(NamedTuple):
    """A precision's losses as they are drawn: running means at some steps, over its seeds."""

    steps: npt.NDArray[np.int64]
    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def band(losses: Sequence[Sequence[float]]) -> Band:
    """The running means of some runs, over a fortieth of the steps that all of them have."""
    steps = min(map(len, losses))
    window = max(1, steps // 40)
    means = np.stack([curve(each[:steps], window) for each in losses])
    return Band(np.arange(window, steps + 1), means.mean(axis=0), means.min(axis=0), means.max(axis=0))


def curve(losses: Sequence[float], window: int) -> npt.NDArray[np.float64]:
    """Running mean over `window` steps, the first window - 1 steps left out.

    Each sum is the end of one block of `window` losses and the beginning of the next: nothing is subtracted, so small
    losses survive large ones before them, and so do those after an infinite one.
    """
    values = np.asarray(losses, np.float64)
    blocks = np.append(values, np.zeros(-len(values) % window)).reshape(-1, window)
    beginnings, ends = blocks.cumsum(axis=1).ravel(), blocks[:, ::-1].cumsum(axis=1)[:, ::-1].ravel()
    starts = np.arange(len(values) - window + 1)
    sums = ends[starts] + np.where(starts % window, beginnings[starts + window - 1], 0.0)
    return np.asarray(sums / window)
