"""A workload's update on a system as a page: what every system's has, scaling, and what was logged."""

from __future__ import annotations

from collections.abc import Iterator

from ipu_core.report.page import page, table
from ipu_core.system.page import DARK, LIGHT, data_of, sections, totals
from ipu_core.workloads.logs import error_words
from ipu_core.workloads.system_run import SystemRun


def to_html(made: SystemRun) -> str:
    """The page as text: where an update's time goes, lanes, bytes, scaling, logged runs; with its data as JSON."""
    whole = made.profile
    title = f"{made.workload.title} on {whole.system.name}: {whole.replicas} replicas of {whole.stages} stages"
    parts = [
        *sections(whole, _facts(made)),
        "<h2>More replicas of the same stages</h2>",
        _scaling(made),
        *_logged(made),
        data_of(made.to_json()),
    ]
    return page(title, parts, LIGHT, DARK)


def _facts(made: SystemRun) -> Iterator[tuple[str, str]]:
    memory = made.stage.profile.memory
    yield from totals(made.profile)
    yield "fullest tile of the slowest stage", f"{memory.peak_bytes:,} of {memory.available:,} bytes"


def _scaling(made: SystemRun) -> str:
    found = made.scaling()
    rows = [
        (one.replicas, one.chips, f"{one.samples_per_second:,.1f}", f"{one.samples_per_second / one.chips:,.1f}")
        for one in found
    ]
    return table(("replicas", "chips", "samples a second", "a chip"), rows)


def _logged(made: SystemRun) -> list[str]:
    here = 1e3 * made.profile.seconds_per_update
    rows = [
        (run.words(), f"{run.step_ms:,.2f}", f"{here:,.2f}", error_words(here / run.step_ms - 1)) for run in made.logged
    ]
    return ["<h2>Beside what was logged</h2>", table(("run", "ms", "here", "error"), rows)] if rows else []
