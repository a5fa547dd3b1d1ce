"""An update on a system as a page and as a trace: chips of a replica down, time across."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ipu_core.report.page import WIDTH, box, key, page, squeezed, table
from ipu_core.system.account import SystemProfile
from ipu_core.system.schedule import Schedule

LIGHT: Final = {
    "forward": "#3a7d44", "backward": "#4a6fa5", "collective": "#e0a030", "update": "#7b4fa0", "overhead": "#b03a48",
    "host": "#8a8d92", "idle": "#e8e8e8",
}  # fmt: skip
DARK: Final = {
    "forward": "#5aa866", "backward": "#7d9fd1", "collective": "#d9a441", "update": "#a37cc8", "overhead": "#c8505f",
    "host": "#9a9da3", "idle": "#2c2f34",
}  # fmt: skip
WORDS: Final = {
    "forward": "forward", "backward": "backward", "collective": "all-reduce of gradients", "update": "update",
    "overhead": "what no model explains", "host": "host", "idle": "waits",
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
        words = f"stage {work.stage + 1}, {work.kind} of micro-batch {work.micro_batch}"
        yield Stretch(work.stage, work.kind, words, work.begin, work.end)
    now = profile.schedule.seconds
    after = (
        ("collective", profile.collective.seconds), ("update", profile.update_seconds),
        ("host", profile.host_seconds if profile.host_waits else 0.0), ("overhead", profile.update_overhead),
    )  # fmt: skip
    for kind, seconds in after:
        if seconds:
            yield from (Stretch(lane, kind, WORDS[kind], now, now + seconds) for lane in range(profile.stages))
        now += seconds
    if profile.input_seconds and not profile.host_waits:
        yield Stretch(profile.stages, "host", WORDS["host"], 0.0, profile.input_seconds)


def to_chrome(profile: SystemProfile) -> dict[str, Any]:
    """The trace that chrome://tracing and Perfetto open, a row for each stage and one for the host; microseconds."""
    names = [*(f"stage {stage}" for stage in range(1, profile.stages + 1)), "host"]
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


def to_html(profile: SystemProfile, title: str) -> str:
    """The page as text: where an update's time goes, lanes, stages, bytes; with its data as JSON."""
    return page(title, [*sections(profile, totals(profile)), data_of(profile.to_json())], LIGHT, DARK)


def sections(profile: SystemProfile, facts: Iterable[tuple[str, str]]) -> list[str]:
    """What every page of a system has, behind its facts."""
    return [
        table(("", ""), facts),
        "<h2>Chips of a replica down, time across</h2>",
        key(WORDS),
        _lanes(profile),
        "<h2>An update</h2>",
        table(("", "ms"), ((name, f"{1e3 * seconds:,.3f}") for name, seconds in profile.parts())),
        *_stages(profile),
        "<h2>Bytes of the busiest chip, in an update</h2>",
        table(("", "bytes"), ((name, round(size)) for name, size in profile.bytes_per_chip.items())),
        f"<p>{profile.collective.words()}</p>",
    ]


def totals(profile: SystemProfile) -> Iterator[tuple[str, str]]:
    """Facts of an update."""
    yield "samples a second", f"{profile.samples_per_second:,.1f}"
    yield "an update", f"{1e3 * profile.seconds_per_update:,.3f} ms of {profile.samples_per_update:,.0f} samples"
    yield "bound by", "the hosts (input-bound)" if profile.input_bound else "the chips"
    yield "bubble", f"{100 * profile.bubble:.1f} %"
    yield "constant of an update", f"{1e3 * profile.update_overhead:,.3f} ms, {profile.update_overhead_from}"
    least, most = profile.joules_per_sample
    yield "energy", f"{least:.3g} J a sample" if least == most else f"{least:.3g} to {most:.3g} J a sample"


def data_of(data: Mapping[str, Any]) -> str:
    """A page's data, for programs."""
    text = json.dumps(data).replace("<", "\\u003c")
    return f'<script type="application/json" id="system">{text}</script>'


def _stages(profile: SystemProfile) -> list[str]:
    """Of each stage that was planned, its time with a micro-batch and its memory."""
    if profile.stages == 1 or not profile.profiles:
        return []
    times = zip(profile.schedule.forward, profile.schedule.backward, profile.profiles, strict=True)
    rows = [
        (
            number,
            f"{1e6 * forward:,.2f}",
            f"{1e6 * backward:,.2f}",
            f"{one.memory.peak_bytes:,}",
            f"{one.memory.share:.0%}",
        )
        for number, (forward, backward, one) in enumerate(times, 1)
    ]
    columns = ("stage", "us forward", "us backward", "bytes of the fullest tile", "of a tile")
    return ["<h2>Stages, with a micro-batch</h2>", table(columns, rows)]


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
