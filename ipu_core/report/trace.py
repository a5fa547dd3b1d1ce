"""A Profile as a trace that chrome://tracing and Perfetto open: tiles down, time across, one colour per span."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ipu_core.engine.profile import Profile

_TILES_SHOWN: Final = 32
_LONGEST: Final = 2000  # spans shown; a step that runs many times is repeated until then


class Span(NamedTuple):
    """A stretch of time in which all tiles do the same kind of thing.

    Attributes:
        step: name of the step.
        kind: compute, exchange or sync.
        start, cycles: in cycles from the beginning of the program.
        number: index of the step in the profile.
    """

    step: str
    kind: str
    start: int
    cycles: int
    number: int


def spans(profile: Profile) -> list[Span]:
    """The spans of the steps in their order, each step as often as it runs, up to a limit."""
    found: list[Span] = []
    now = 0
    for number, step in enumerate(profile.steps):
        account = step.account
        for _ in range(min(step.count, max(1, _LONGEST // (3 * len(profile.steps))))):
            for kind, cycles in (
                ("sync", account.sync_cycles),
                ("exchange", account.exchange_cycles),
                ("compute", account.compute_cycles),
            ):
                if cycles:
                    found.append(Span(step.name, kind, now, cycles, number))
                    now += cycles
    return found


def to_chrome(profile: Profile, tiles: int = _TILES_SHOWN) -> dict[str, Any]:
    """The trace as plain data: one row for the chip and one for each of some evenly chosen tiles; microseconds.

    Args:
        profile: of any program.
        tiles: how many tiles to show.
    """
    scale = 1e6 / profile.target.clock
    shown = np.unique(np.linspace(0, profile.target.tiles - 1, max(1, tiles)).astype(int))
    events: list[dict[str, Any]] = [_row_name(0, "chip"), *(_row_name(int(t) + 1, f"tile {t}") for t in shown)]
    for span in spans(profile):
        events.append(_event(0, span, span.cycles, scale))
        busy = profile.steps[span.number].account.compute
        for tile in shown:
            cycles = int(busy[tile]) if span.kind == "compute" else span.cycles
            if cycles:
                events.append(_event(int(tile) + 1, span, cycles, scale))
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"target": profile.target.name}}


def write_chrome(profile: Profile, path: str | Path) -> None:
    """Writes the trace file."""
    Path(path).write_text(json.dumps(to_chrome(profile)), encoding="utf-8")


def _row_name(row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": name}}


_COLOURS: Final = {"compute": "good", "exchange": "thread_state_iowait", "sync": "terrible"}


def _event(row: int, span: Span, cycles: int, scale: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.step if span.kind == "compute" else span.kind,
        "cat": span.kind,
        "cname": _COLOURS[span.kind],
        "pid": 0,
        "tid": row,
        "ts": span.start * scale,
        "dur": cycles * scale,
        "args": {"step": span.step, "cycles": cycles},
    }
