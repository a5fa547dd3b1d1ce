"""The points of a study as rows: plain values by name, for pandas, a CSV file or a loop."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ipu_core.study.summary import MACHINE, PERCENT, final_loss, heading, measures
from ipu_core.train.checkpoint import replacing
from lowprec.checks import expect_path
from lowprec.extras import optional

Row = dict[str, Any]
MEASURED = ("final_loss", "saturated_weights", "lost_updates", "update_kept", *MACHINE, "seconds")
"""What every row has that one setting can have more of than another; beside it what `evaluate` measures."""


def row(result: Mapping[str, Any]) -> Row:
    """One finished point without its curves: precision, seed, final loss, measures, what became of its steps."""
    losses = result["losses"]
    machine = {name: result.get(name) for name in MACHINE}
    return {
        "precision": result["precision"],
        "seed": result["seed"],
        "final_loss": final_loss(losses),
        **measures(result),
        "steps": len(losses),
        "not_finite_step": result.get("not_finite_step"),
        "skipped_steps": len(result.get("skipped_steps", ())),
        "saturated_weights": result.get("saturated_weights"),
        "lost_updates": result.get("lost_updates"),
        "update_kept": result.get("update_kept"),
        **machine,
        "seconds": result.get("seconds"),
    }


def curve_rows(result: Mapping[str, Any], **about: Any) -> list[Row]:
    """The losses of a point, a row for each step."""
    who = {**about, "precision": result["precision"], "seed": result["seed"]}
    return [{**who, "step": step, "loss": loss} for step, loss in enumerate(result["losses"])]


def write_csv(rows: Iterable[Row], path: str | Path) -> None:
    """Rows as a CSV file, with the names of their columns; what was not measured is empty."""
    expect_path("path", path)
    listed = list(rows)
    names = dict.fromkeys(name for each in listed for name in each)
    with replacing(Path(path)) as draft, open(draft, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if value is None else value for name, value in each.items()} for each in listed)


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def student(freedom: int) -> float:
    """Standard errors that a mean stays within 95 times in 100, by degrees of freedom (two-sided Student)."""
    # Three seeds need 4.3 where many need 2: with 2 every sixth pair of equal settings would be told apart.
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.4 / freedom


class Tabular:
    """What has rows and curves, as a DataFrame and as a file."""

    def rows(self) -> list[Row]:
        """A row for each finished point, without its curve."""
        raise NotImplementedError

    def curves(self) -> list[Row]:
        """A row for each step of each finished point, with its loss; in the order of `rows`."""
        raise NotImplementedError

    def to_pandas(self, *, curves: bool = False) -> Any:
        """The rows as a pandas DataFrame, or those of the curves.

        Raises:
            ImportError: no pandas.
        """
        return optional("pandas", extra="pandas").DataFrame(self.curves() if curves else self.rows())

    def to_csv(self, path: str | Path, *, curves: bool = False) -> None:
        """Writes the rows, or those of the curves, as a CSV file; what was not measured is empty."""
        write_csv(self.curves() if curves else self.rows(), path)


def differences(results: Sequence[Mapping[str, Any]], precisions: Sequence[str]) -> list[str]:
    """Every precision's losses and measures beside the first one's, seed by seed, in lines: the mean and its error.

    What Student's test at 5 % does not tell from none is said to be so, as `beside` has it; nothing of a single seed.
    """
    by_name = {name: {int(r["seed"]): r for r in results if r["precision"] == name} for name in precisions}
    first, *others = by_name
    told = []
    for name in others:
        seeds = sorted(by_name[name].keys() & by_name[first].keys())
        pairs = [(_figures(by_name[name][seed]), _figures(by_name[first][seed])) for seed in seeds]
        said = [_difference(what, [a[what] - b[what] for a, b in pairs if what in a and what in b])
                for what in (pairs[0][1] if pairs else ())]  # fmt: skip
        if words := "; ".join(filter(None, said)):
            told.append(f"{name} beside {first}, seed by seed: {words}")
    return told


def _figures(result: Mapping[str, Any]) -> dict[str, float]:
    return {"final_loss": final_loss(result["losses"]), **measures(result)}


def _difference(what: str, each: Sequence[float]) -> str:
    """A mean difference and its standard error in words; nothing where there are fewer than two, or no numbers."""
    if len(each) < 2 or not all(map(math.isfinite, each)):
        return ""
    mean = math.fsum(each) / len(each)
    error = math.sqrt(math.fsum((one - mean) ** 2 for one in each) / (len(each) - 1) / len(each))
    scale, unit = (100, " %") if what.endswith(PERCENT) else (1, "")
    apart = "" if abs(mean) > student(len(each) - 1) * error else ", cannot be told apart"
    return f"{heading(what)} {scale * mean:+.3g}{unit} (standard error {scale * error:.2g}{apart})"


def beside(values: Mapping[int, float], others: Mapping[int, float], *, more_is_better: bool = False) -> str:
    """What one setting's results over seeds say beside another's, in words.

    The differences of the seeds that both have are taken pairwise: what Student's test on them does not tell from none
    at 5 % cannot be told apart.

    Args:
        values, others: final losses or measures, by seed.
        more_is_better: whether larger ones are better.
    """
    seeds = sorted(values.keys() & others.keys())
    broken = sum(not math.isfinite(values[seed]) for seed in values)
    if broken:
        return f"diverged ({broken} of {len(values)})"
    differences = [values[seed] - others[seed] for seed in seeds if math.isfinite(others[seed])]
    if not differences:
        return ""
    mean = math.fsum(differences) / len(differences)
    scale = abs(math.fsum(others[seed] for seed in seeds) / len(seeds)) or 1.0
    said = f"{abs(mean) / scale:.1%}"
    if len(differences) == 1:
        return f"{said} {'above' if mean > 0 else 'below'}, one seed" if mean else "the same, one seed"
    variance = math.fsum((each - mean) ** 2 for each in differences) / (len(differences) - 1)
    if abs(mean) <= student(len(differences) - 1) * math.sqrt(variance / len(differences)):
        return "cannot be told apart"
    if abs(mean) >= scale and not more_is_better and mean > 0:
        return f"worse, {1 + mean / scale:.1f} times as much"
    return f"{'better' if (mean > 0) == more_is_better else 'worse'} by {said}"
