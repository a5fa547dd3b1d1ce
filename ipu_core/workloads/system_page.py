"""A workload's update on a system as a page and as a trace: chips of a replica down, time across."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ipu_core.report.page import WIDTH, box, key, page, squeezed, table
from ipu_core.system.account import SystemProfile
from ipu_core.system.schedule import Schedule
from ipu_core.workloads.logs import error_words
from ipu_core.workloads.system_run import SystemRun

_LIGHT: Final = {
    "forward": "#3a7d44", "backward": "#4a6fa5", "collective": "#e0a030", "update": "#7b4fa0", "overhead": "#b03a48",
    "host": "#8a8d92", "idle": "#e8e8e8",
}  # fmt: skip
_DARK: Final = {
    "forward": "#5aa866", "backward": "#7d9fd1", "collective": "#d9a441", "update": "#a37cc8", "overhead": "#c8505f",
    "host": "#9a9da3", "idle": "#2c2f34",
}  # fmt: skip
WORDS: Final = {
    "forward": "forward", "backward": "backward", "collective": "all-reduce of gradients", "update": "update",
    "overhead": "what no model explains", "host": "host, beside it", "idle": "waits",
}  # fmt: skip
LANE: Final = 26
MOST: Final = 64
"""Micro-batches of an update that are drawn at most: with more the pipeline's middle would repeat itself."""


class Stretch(NamedTuple):
    """What a lane does for a time: seconds from the beginning."""

    lane: int
    kind: str
    words: str
    begin: float
    end: float


def stretches(profile: SystemProfile) -> Iterator[Stretch]:
    """All that the chips of a replica do in an update, and in the lane behind them the host."""
    for work in profile.schedule.timetable:
        words = f"stage {work.stage}, {work.kind} of micro-batch {work.micro_batch}"
        yield Stretch(work.stage, work.kind, words, work.begin, work.end)
    now = profile.schedule.seconds
    after = (
        ("collective", profile.collective.seconds), ("update", profile.update_seconds),
        ("overhead", profile.update_overhead),
    )  # fmt: skip
    for kind, seconds in after:
        if seconds:
            yield from (Stretch(lane, kind, WORDS[kind], now, now + seconds) for lane in range(profile.stages))
        now += seconds
    if profile.input_seconds:
        yield Stretch(profile.stages, "host", WORDS["host"], 0.0, profile.input_seconds)


def to_chrome(profile: SystemProfile) -> dict[str, Any]:
    """The trace that chrome://tracing and Perfetto open, a row for each stage and one for the host; microseconds."""
    names = [*(f"stage {stage}" for stage in range(profile.stages)), "host"]
    rows = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": lane, "args": {"name": name}}
        for lane, name in enumerate(names)
    ]
    events = [
        {"ph": "X", "name": one.words, "cat": one.kind, "pid": 0, "tid": one.lane, "ts": 1e6 * one.begin,
         "dur": 1e6 * (one.end - one.begin)}
        for one in stretches(profile)
    ]  # fmt: skip
    return {"traceEvents": [*rows, *events], "displayTimeUnit": "ms", "otherData": {"system": profile.system.name}}


def to_html(made: SystemRun) -> str:
    """The page as text: where an update's time goes, lanes, bytes, scaling, logged runs; with its data as JSON."""
    whole = made.profile
    data = json.dumps(made.to_json()).replace("<", "\\u003c")
    title = f"{made.workload.title} on {whole.system.name}: {whole.replicas} replicas of {whole.stages} stages"
    parts = [
        table(("", ""), _totals(made)),
        "<h2>Chips of a replica down, time across</h2>",
        key(WORDS),
        _lanes(whole),
        "<h2>An update</h2>",
        table(("", "ms"), ((name, f"{1e3 * seconds:,.3f}") for name, seconds in whole.parts())),
        "<h2>Bytes of the busiest chip, in an update</h2>",
        table(("", "bytes"), ((name, round(size)) for name, size in whole.bytes_per_chip.items())),
        f"<p>{whole.collective.words()}</p>",
        "<h2>More replicas of the same stages</h2>",
        _scaling(made),
        *_logged(made),
        f'<script type="application/json" id="system">{data}</script>',
    ]
    return page(title, parts, _LIGHT, _DARK)


def _totals(made: SystemRun) -> Iterator[tuple[str, str]]:
    whole, memory = made.profile, made.stage.profile.memory
    yield "samples a second", f"{whole.samples_per_second:,.1f}"
    yield "an update", f"{1e3 * whole.seconds_per_update:,.3f} ms of {whole.samples_per_update:,.0f} samples"
    yield "bound by", "the hosts (input-bound)" if whole.input_bound else "the chips"
    yield "bubble", f"{100 * whole.bubble:.1f} %"
    yield "constant of an update", f"{1e3 * whole.update_overhead:,.3f} ms, {whole.update_overhead_from}"
    yield "fullest tile of the slowest stage", f"{memory.peak_bytes:,} of {memory.available:,} bytes"
    least, most = whole.joules_per_sample
    yield "energy", f"{least:.3g} J a sample" if least == most else f"{least:.3g} to {most:.3g} J a sample"


def _lanes(profile: SystemProfile) -> str:
    """A box for each pass; of an update with many micro-batches as many as fit are drawn, and that is said."""
    drawn, note = profile, ""
    if profile.micro_batches > MOST:
        times = profile.schedule
        few = Schedule(times.name, times.forward, times.backward, MOST)
        drawn = replace(profile, schedule=few)
        note = f"<p>Drawn with {MOST} micro-batches of {profile.micro_batches:,}; the middle is the same again.</p>"
    shown = list(stretches(drawn))
    end = max(one.end for one in shown)
    scale = WIDTH / end if end else 0.0
    boxes = [box(0, LANE * lane, WIDTH, LANE - 4, "idle") for lane in range(drawn.stages + 1)]
    boxes += [
        box(one.begin * scale, LANE * one.lane, (one.end - one.begin) * scale, LANE - 4, one.kind, _tip(one))
        for one in shown
    ]
    return squeezed(LANE * (drawn.stages + 1), boxes) + note


def _tip(one: Stretch) -> str:
    return f"{one.words}: {1e3 * (one.end - one.begin):,.3f} ms"


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
