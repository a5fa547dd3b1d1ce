"""A Profile as one self-contained HTML page: totals, the bulk-synchronous picture, steps, memory."""

import html
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ipu_core.engine.profile import Profile
from ipu_core.engine.words import call_facts, energy_words, host_facts, streaming_facts
from ipu_core.report.operations import Names, Operation, Row, by_operation, ratio, to_data
from ipu_core.report.page import WIDTH, box, key, page, squeezed, table
from ipu_core.report.trace import Span, spans

_HEIGHT: Final = 240
_ROWS: Final = 60  # bands of tiles in the picture
_NAME: Final = 30  # characters of a step's name above the picture
_APART: Final = 2.2  # percent of the width between names of steps
_EMPTY: Final = 4  # a limit this many times above all values would leave their picture empty
_LIGHT: Final = {"compute": "#3a7d44", "exchange": "#e0a030", "sync": "#b03a48", "idle": "#e8e8e8", "memory": "#4a6fa5"}
_DARK: Final = {"compute": "#5aa866", "exchange": "#d9a441", "sync": "#c8505f", "idle": "#2c2f34", "memory": "#7d9fd1"}
_PHASES: Final = ("compute", "exchange", "sync", "idle")


_RULES: Final = (
    ".time{max-width:1000px}.time svg{display:block}"
    ".steps,.ticks{position:relative;font-size:11px;white-space:nowrap}.steps{height:12em}"
    ".ticks{height:1.5em}.steps span,.ticks span{position:absolute}"
    ".steps span{bottom:0;transform-origin:0 100%;transform:rotate(-50deg)}"
    ".ticks span{border-left:1px solid var(--ink);padding-left:3px}summary{cursor:pointer;margin:.6em 0}"
)


def to_html(profile: Profile, title: str = "profile", names: Names | None = None) -> str:
    """The page as text; it needs no other file and carries the profile's data as JSON.

    Args:
        profile: of any program.
        title: heads the page.
        names: role and operation of steps, see `by_operation`.
    """
    data = json.dumps(to_data(profile, names)).replace("<", "\\u003c")
    memory = profile.memory
    parts = [
        table(("", ""), _totals(profile)),
        "<h2>Tiles down, time across</h2>",
        key({name: name for name in _PHASES}),
        _picture(profile),
        "<h2>By role and operation</h2>",
        table(_OPERATION_COLUMNS, (_operation_row(each, profile.cycles) for each in by_operation(profile, names))),
        "<h2>Steps, with figures of one run each</h2>",
        table(_STEP_COLUMNS, (_step_row(step) for step in profile.steps if step.cycles)),
        _folded("The program as a tree", f"<pre>{_outline(profile)}</pre>"),
        "<h2>Memory by tile</h2>",
        _bars(memory.peak, memory.available, f"tile 0 to {len(memory.peak) - 1:,}"),
        f"<p>Fullest tile {memory.tile}, {html.escape(memory.step or 'always')}:</p>",
        table(("category", "bytes"), memory.categories.items()),
        _folded(f"The {len(memory.variables)} variables there", table(("variable", "bytes"), memory.variables)),
        _folded(f"Every tile ({profile.target.tiles:,})", table(_TILE_COLUMNS, _tile_rows(profile))),
        "<h2>Live memory along the program</h2>",
        _bars(
            np.array([place.fullest for place in memory.lifetimes], np.int64), memory.available, "first to last step"
        ),
        f'<script type="application/json" id="profile">{data}</script>',
    ]
    return page(title, parts, _LIGHT, _DARK, _RULES)


def write_html(profile: Profile, path: str | Path, title: str = "profile", names: Names | None = None) -> None:
    """Writes the page."""
    Path(path).write_text(to_html(profile, title, names), encoding="utf-8")


def comparison_to_html(rows: Sequence[Row], names: tuple[str, str]) -> str:
    """The figures of two profiles side by side (see `side_by_side`) as a page of their own."""
    shown = table(("", *names, "ratio"), ((*row, ratio(row)) for row in rows))
    return page(f"{names[0]} and {names[1]}", [shown], _LIGHT, _DARK, _RULES)


def _folded(title: str, body: str) -> str:
    """A part that opens when its title is clicked."""
    return f"<details><summary>{html.escape(title)}</summary>{body}</details>"


def _outline(profile: Profile) -> str:
    return html.escape("\n".join("  " * depth + words for depth, words in profile.outline))


_TILE_COLUMNS: Final = ("tile", "compute cycles", "bytes in", "bytes out", "bytes at its peak")


def _tile_rows(profile: Profile) -> Iterable[tuple[Any, ...]]:
    columns = profile.compute_by_tile, profile.bytes_in, profile.bytes_out, profile.memory.peak
    return ((str(tile), *map(int, values)) for tile, values in enumerate(zip(*columns, strict=True)))


_OPERATION_COLUMNS: Final = ("role", "operation", "steps", "cycles", "share", "compute", "exchange", "sync", "bytes")


def _operation_row(each: Operation, cycles: int) -> tuple[Any, ...]:
    share = f"{100 * each.cycles / max(1, cycles):.1f} %"
    times = each.compute, each.exchange, each.sync
    return (each.role, each.operation, each.steps, each.cycles, share, *times, each.bytes)


_STEP_COLUMNS: Final = ("step", "kind", "runs", "compute", "exchange", "sync", "bytes", "tiles", "balance")


def _step_row(step: Any) -> tuple[Any, ...]:
    account = step.account
    cycles = (account.compute_cycles, account.exchange_cycles, account.sync_cycles)
    return (step.name, step.kind, step.count, *cycles, account.exchanged, step.active_tiles, f"{step.balance:.2f}")


def _totals(profile: Profile) -> list[tuple[str, Any]]:
    return [
        ("target", f"{profile.target.name}, {profile.target.tiles} tiles"),
        ("runs", profile.runs),
        ("cycles", profile.cycles),
        ("microseconds", f"{profile.microseconds:,.2f}"),
        ("compute", profile.compute_cycles),
        ("exchange", profile.exchange_cycles),
        ("sync", profile.sync_cycles),
        ("of the mean tile", profile.mean_tile.words()),
        ("energy", energy_words(profile)),
        ("bytes exchanged", profile.exchanged),
        *call_facts(profile).items(),
        *host_facts(profile).items(),
        *streaming_facts(profile).items(),
    ]


def _picture(profile: Profile) -> str:
    """The published picture of a bulk-synchronous run: bands of tiles, coloured by phase, grey where a tile waits."""
    found = spans(profile)
    end = max((span.start + span.cycles for span in found), default=1)
    scale = WIDTH / end
    shapes = [shape for span in found for shape in _span_shapes(profile, span, scale)]
    return f'<div class="time">{_labels(found, end)}{squeezed(_HEIGHT, shapes)}{_axis(profile, end)}</div>'


def _labels(found: Sequence[Span], end: int) -> str:
    """The names of the longest steps, above the middle of each, as many as find a place."""
    steps: list[tuple[int, int, str]] = []  # first and last cycle, name
    for span in found:
        if steps and steps[-1][2] == span.step and span.kind != "sync":
            steps[-1] = (steps[-1][0], span.start + span.cycles, span.step)
        else:
            steps.append((span.start, span.start + span.cycles, span.step))
    placed: list[tuple[float, str]] = []
    for first, last, name in sorted(steps, key=lambda each: each[0] - each[1]):
        middle = 50 * (first + last) / end
        if all(abs(middle - other) >= _APART for other, _ in placed):
            placed.append((middle, name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[1 - _NAME // 2 :]}"))
    return _placed("steps", placed)


def _axis(profile: Profile, end: int) -> str:
    """Cycles along the bottom, at round numbers, and the time of the last."""
    rough = max(1, end / 10)
    power = 10 ** int(math.log10(rough))
    each = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    ticks = [(100 * at / end, f"{at:,}") for at in range(0, end, each) if at <= 0.94 * end]
    words = f"cycles; in all {end:,}, {1e6 * profile.target.seconds(end):,.2f} us"
    return f"{_placed('ticks', ticks)}<p>{words}</p>"


def _placed(kind: str, words: Iterable[tuple[float, str]]) -> str:
    """Words at places along the picture, in percent of its width."""
    spans = "".join(f'<span style="left:{at:.2f}%">{html.escape(each)}</span>' for at, each in words)
    return f'<div class="{kind}">{spans}</div>'


def _span_shapes(profile: Profile, span: Span, scale: float) -> list[str]:
    left, width = span.start * scale, span.cycles * scale
    tip = html.escape(f"{span.step}: {span.kind} {span.cycles:,} cycles")
    if span.kind != "compute":
        return [box(left, 0, width, _HEIGHT, span.kind, tip)]
    bands = np.array_split(profile.steps[span.number].account.compute, min(_ROWS, profile.target.tiles))
    height = _HEIGHT / len(bands)
    shapes = [box(left, 0, width, _HEIGHT, "idle", tip)]
    for row, band in enumerate(bands):
        if mean := float(band.mean()):
            shapes.append(box(left, row * height, mean * scale, height, "compute", tip))
    return shapes


def _bars(values: Any, limit: int, along: str) -> str:
    """Bars over an index, with the limit as a line where it is near; many values share a bar, which shows the largest.

    Args:
        values: bytes.
        limit: bytes of a tile.
        along: what the index counts, in words.
    """
    groups = np.array_split(values, min(len(values), WIDTH)) if len(values) else []
    largest = int(values.max(initial=0))
    far = largest * _EMPTY < limit
    top = max(1, largest if far else max(limit, largest))
    width = WIDTH / max(1, len(groups))
    height = 120
    bars = []
    for i, group in enumerate(groups):
        size = height * int(group.max()) / top
        bars.append(box(i * width, height - size, width, size, "sync" if int(group.max()) > limit else "memory"))
    if not far:
        line = height - height * limit / top
        bars.append(f'<line x1="0" x2="{WIDTH}" y1="{line:.1f}" y2="{line:.1f}"/>')
    shown = f"{limit:,} bytes" + (", far above the picture" if far else ", the line")
    return f"{squeezed(height, bars)}<p>{along}; the highest bar is {largest:,} bytes; a tile has {shown}</p>"
