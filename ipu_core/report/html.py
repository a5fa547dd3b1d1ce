"""A Profile as one self-contained HTML page: totals, the bulk-synchronous picture, steps, memory."""

import html
import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from ipu_core.engine.profile import Profile, streaming_facts
from ipu_core.report.page import WIDTH, box, key, page, squeezed, table
from ipu_core.report.trace import Span, spans

_HEIGHT: Final = 240
_ROWS: Final = 60  # bands of tiles in the picture
_EMPTY: Final = 4  # a limit this many times above all values would leave their picture empty
_LIGHT: Final = {"compute": "#3a7d44", "exchange": "#e0a030", "sync": "#b03a48", "idle": "#e8e8e8", "memory": "#4a6fa5"}
_DARK: Final = {"compute": "#5aa866", "exchange": "#d9a441", "sync": "#c8505f", "idle": "#2c2f34", "memory": "#7d9fd1"}
_PHASES: Final = ("compute", "exchange", "sync", "idle")


def to_html(profile: Profile, title: str = "profile") -> str:
    """The page as text; it needs no other file and carries the profile's data as JSON."""
    data = json.dumps(profile.to_json()).replace("<", "\\u003c")
    memory = profile.memory
    parts = [
        table(("", ""), _totals(profile)),
        "<h2>Tiles down, time across</h2>",
        key({name: name for name in _PHASES}),
        _picture(profile),
        "<h2>Steps</h2>",
        table(_STEP_COLUMNS, (_step_row(step) for step in profile.steps if step.cycles)),
        "<h2>Memory by tile</h2>",
        _bars(memory.peak, memory.available, f"tile 0 to {len(memory.peak) - 1:,}"),
        f"<p>Fullest tile {memory.tile}, {html.escape(memory.step or 'always')}:</p>",
        table(("category", "bytes"), memory.categories.items()),
        table(("largest variables", "bytes"), memory.largest),
        "<h2>Live memory along the program</h2>",
        _bars(
            np.array([place.fullest for place in memory.lifetimes], np.int64), memory.available, "first to last step"
        ),
        f'<script type="application/json" id="profile">{data}</script>',
    ]
    return page(title, parts, _LIGHT, _DARK)


def write_html(profile: Profile, path: str | Path, title: str = "profile") -> None:
    """Writes the page."""
    Path(path).write_text(to_html(profile, title), encoding="utf-8")


_STEP_COLUMNS: Final = ("step", "kind", "runs", "compute", "exchange", "sync", "bytes", "tiles", "balance")


def _step_row(step: Any) -> tuple[Any, ...]:
    account = step.account
    cycles = (account.compute_cycles, account.exchange_cycles, account.sync_cycles)
    return (step.name, step.kind, step.count, *cycles, step.exchanged, step.active_tiles, f"{step.balance:.2f}")


def _totals(profile: Profile) -> list[tuple[str, Any]]:
    return [
        ("target", f"{profile.target.name}, {profile.target.tiles} tiles"),
        ("cycles", profile.cycles),
        ("microseconds", f"{profile.microseconds:,.2f}"),
        ("compute", profile.compute_cycles),
        ("exchange", profile.exchange_cycles),
        ("sync", profile.sync_cycles),
        ("bytes exchanged", profile.exchanged),
        *streaming_facts(profile).items(),
    ]


def _picture(profile: Profile) -> str:
    """The published picture of a bulk-synchronous run: bands of tiles, coloured by phase, grey where a tile waits."""
    found = spans(profile)
    end = max((span.start + span.cycles for span in found), default=1)
    scale = WIDTH / end
    shapes = [shape for span in found for shape in _span_shapes(profile, span, scale)]
    return squeezed(_HEIGHT, shapes)


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
