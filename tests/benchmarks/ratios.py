"""The ratios of every run beside the last ones kept for the same model of machine.

A ratio is our time over that of what stands beside us (a copy, BLAS, torch), so less is better, and most of a host's
speed cancels out. Benchmarks call `record`; `python -m tests.benchmarks` collects what they say, compares it with the
file of this machine's model in the folder `last`, and `--keep` makes it the file's.
"""

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.benchmarks import machine

COLLECTED = "LOWPREC_BENCHMARK_RATIOS"
"""The environment variable that names the file which benchmarks append to."""
LAST = Path(__file__).parent / "last"
WORSE = 1.2

Ratios = dict[str, float]


class Change(NamedTuple):
    """A ratio measured before and now."""

    name: str
    before: float
    now: float

    @property
    def factor(self) -> float:
        """Above 1: slower than before."""
        return self.now / self.before


def record(name: str, ratio: float) -> None:
    """Notes a ratio of our time to another's; nothing where a benchmark runs alone."""
    path = os.environ.get(COLLECTED)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([name, ratio]) + "\n")


def collected(path: Path) -> Ratios:
    """What the benchmarks of a run noted; the last where one noted a name twice."""
    return dict(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def file_of_machine(folder: Path = LAST) -> Path:
    """The file of this model of machine."""
    return folder / (re.sub("[^a-z0-9]+", "-", machine.family().lower()).strip("-") + ".json")


def load(path: Path) -> Ratios:
    """The ratios kept in a file; none where there is no such file."""
    return dict(json.loads(path.read_text(encoding="utf-8"))["ratios"]) if path.exists() else {}


def keep(path: Path, measured: Ratios) -> None:
    """Puts these ratios in the place of those of the same names."""
    ratios = {name: float(f"{value:.4g}") for name, value in sorted((load(path) | measured).items())}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": machine.described(), "ratios": ratios}, indent=1) + "\n", encoding="utf-8")


def changes(before: Ratios, now: Ratios) -> list[Change]:
    """What both runs measured, the worst first."""
    both = [Change(name, before[name], value) for name, value in now.items() if name in before]
    return sorted(both, key=lambda change: -change.factor)


def report(before: Ratios, now: Ratios, console: Console) -> None:
    """Prints what is 20 % worse, then what is 20 % better, then how many are neither."""
    found = changes(before, now)
    worse = [change for change in found if change.factor > WORSE]
    better = [change for change in found if change.factor < 1 / WORSE]
    for title, rows in ((f"slower than last by {WORSE - 1:.0%} or more", worse), ("faster than last", better[::-1])):
        if rows:
            table = Table("", "last", "now", "now / last", title=title)
            for change in rows:
                table.add_row(change.name, f"{change.before:.3g}", f"{change.now:.3g}", f"{change.factor:.2f}")
            console.print(table)
    console.print(f"{len(found)} ratios compared, {len(worse)} worse; {len(now) - len(found)} were not measured before")
