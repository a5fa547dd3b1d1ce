"""A Profile as one self-contained HTML page: totals, the bulk-synchronous picture, steps, memory."""

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ipu_core.engine.profile import Profile, streaming_facts
from ipu_core.report.trace import Span, spans

_WIDTH: Final = 1000
_HEIGHT: Final = 240
_ROWS: Final = 60  # bands of tiles in the picture
_EMPTY: Final = 4  # a limit this many times above all values would leave their picture empty
_LIGHT: Final = {
    "ink": "#222", "page": "#fff", "line": "#ddd", "memory": "#4a6fa5",
    "compute": "#3a7d44", "exchange": "#e0a030", "sync": "#b03a48", "idle": "#e8e8e8",
}  # fmt: skip
_DARK: Final = {
    "ink": "#ddd", "page": "#17191c", "line": "#3a3d42", "memory": "#7d9fd1",
    "compute": "#5aa866", "exchange": "#d9a441", "sync": "#c8505f", "idle": "#2c2f34",
}  # fmt: skip
_PHASES: Final = ("compute", "exchange", "sync", "idle")


def _colours(colours: dict[str, str]) -> str:
    return ":root{" + "".join(f"--{name}:{colour};" for name, colour in colours.items()) + "}"


_STYLE: Final = (
    f"{_colours(_LIGHT)}@media(prefers-color-scheme:dark){{{_colours(_DARK)}}}:root{{color-scheme:light dark}}"
    "body{font:14px system-ui,sans-serif;margin:2em;max-width:1100px;color:var(--ink);background:var(--page)}"
    "h1{font-size:1.5em;overflow-wrap:anywhere}h2{margin-top:1.6em}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:2px 10px;text-align:right;"
    "border-bottom:1px solid var(--line)}td:first-child,th:first-child{text-align:left}"
    "td:first-child{min-width:8em;max-width:30em}td:first-child,p{overflow-wrap:anywhere}"
    "svg{max-width:100%;border:1px solid var(--line)}line{stroke:var(--ink)}"
    + "".join(f".{name}{{fill:var(--{name});background:var(--{name})}}" for name in (*_PHASES, "memory"))
    + ".key span{display:inline-block;width:1em;height:1em;margin:0 .3em 0 1em;vertical-align:-.1em}"
)


def to_html(profile: Profile, title: str = "profile") -> str:
    """The page as text; it needs no other file and carries the profile's data as JSON."""
    data = json.dumps(profile.to_json()).replace("<", "\\u003c")
    memory = profile.memory
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        _table(("", ""), _totals(profile)),
        "<h2>Tiles down, time across</h2>",
        _key(),
        _picture(profile),
        "<h2>Steps</h2>",
        _table(_STEP_COLUMNS, (_step_row(step) for step in profile.steps if step.cycles)),
        "<h2>Memory by tile</h2>",
        _bars(memory.peak, memory.available, f"tile 0 to {len(memory.peak) - 1:,}"),
        f"<p>Fullest tile {memory.tile}, {html.escape(memory.step or 'always')}:</p>",
        _table(("category", "bytes"), memory.categories.items()),
        _table(("largest variables", "bytes"), memory.largest),
        "<h2>Live memory along the program</h2>",
        _bars(
            np.array([place.fullest for place in memory.lifetimes], np.int64), memory.available, "first to last step"
        ),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}"
        f'<script type="application/json" id="profile">{data}</script></body></html>'
    )


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


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else html.escape(str(value))


def _key() -> str:
    names = "".join(f'<span class="{name}"></span>{name}' for name in _PHASES)
    return f'<p class="key">{names}</p>'


def _picture(profile: Profile) -> str:
    """The published picture of a bulk-synchronous run: bands of tiles, coloured by phase, grey where a tile waits."""
    found = spans(profile)
    end = max((span.start + span.cycles for span in found), default=1)
    scale = _WIDTH / end
    shapes = [shape for span in found for shape in _span_shapes(profile, span, scale)]
    return _svg(_HEIGHT, shapes)


def _svg(height: int, shapes: Sequence[str]) -> str:
    """A picture that is squeezed, not cut, where the page is narrow."""
    box = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none"'
    return f"<svg {box}>{''.join(shapes)}</svg>"


def _span_shapes(profile: Profile, span: Span, scale: float) -> list[str]:
    left, width = span.start * scale, span.cycles * scale
    tip = html.escape(f"{span.step}: {span.kind} {span.cycles:,} cycles")
    if span.kind != "compute":
        return [_box(left, 0, width, _HEIGHT, span.kind, tip)]
    bands = np.array_split(profile.steps[span.number].account.compute, min(_ROWS, profile.target.tiles))
    height = _HEIGHT / len(bands)
    shapes = [_box(left, 0, width, _HEIGHT, "idle", tip)]
    for row, band in enumerate(bands):
        if mean := float(band.mean()):
            shapes.append(_box(left, row * height, mean * scale, height, "compute", tip))
    return shapes


def _box(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    title = f"<title>{tip}</title>" if tip else ""
    place = f'x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.02):.2f}" height="{height:.2f}"'
    return f'<rect {place} class="{kind}">{title}</rect>'


def _bars(values: Any, limit: int, along: str) -> str:
    """Bars over an index, with the limit as a line where it is near; many values share a bar, which shows the largest.

    Args:
        values: bytes.
        limit: bytes of a tile.
        along: what the index counts, in words.
    """
    groups = np.array_split(values, min(len(values), _WIDTH)) if len(values) else []
    largest = int(values.max(initial=0))
    far = largest * _EMPTY < limit
    top = max(1, largest if far else max(limit, largest))
    width = _WIDTH / max(1, len(groups))
    height = 120
    bars = []
    for i, group in enumerate(groups):
        size = height * int(group.max()) / top
        bars.append(_box(i * width, height - size, width, size, "sync" if int(group.max()) > limit else "memory"))
    if not far:
        line = height - height * limit / top
        bars.append(f'<line x1="0" x2="{_WIDTH}" y1="{line:.1f}" y2="{line:.1f}"/>')
    shown = f"{limit:,} bytes" + (", far above the picture" if far else ", the line")
    return f"{_svg(height, bars)}<p>{along}; the highest bar is {largest:,} bytes; a tile has {shown}</p>"
