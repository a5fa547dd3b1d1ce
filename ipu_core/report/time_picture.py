"""The published picture of a bulk-synchronous run: tiles down, time across, coloured by phase."""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ipu_core.engine.profile import Profile
from ipu_core.report.page import WIDTH, box, squeezed
from ipu_core.report.trace import Span, spans

PHASES: Final = ("compute", "exchange", "sync", "idle")
_HEIGHT: Final = 240
_ROWS: Final = 60  # bands of tiles in the picture
_APART: Final = 2.2  # percent of the width between numbers of steps
_NAMED: Final = 30  # steps
RULES: Final = (
    ".time{max-width:1000px}.time svg{display:block}"
    ".numbers,.ticks{position:relative;font-size:11px;white-space:nowrap;height:1.5em}"
    ".numbers span,.ticks span{position:absolute}.numbers span{transform:translateX(-50%)}"
    ".ticks span{border-left:1px solid var(--ink);padding-left:3px}"
    ".named{columns:2 24em;font-size:12px;overflow-wrap:anywhere}"
)


def time_picture(profile: Profile) -> str:
    """The published picture of a bulk-synchronous run: bands of tiles, coloured by phase, grey where a tile waits."""
    found = spans(profile)
    end = max((span.start + span.cycles for span in found), default=1)
    scale = WIDTH / end
    shapes = [shape for span in found for shape in _span_shapes(profile, span, scale)]
    named = _labels(found, end)
    # A step that runs several times has one number.
    names = list(dict.fromkeys(name for _, name in named))
    numbers = _placed("numbers", [(at, str(names.index(name) + 1)) for at, name in named])
    # Names stand below, whole: across the picture they would lie over one another or have to be cut.
    below = "".join(f"<li>{html.escape(name)}</li>" for name in names)
    drawn = f"{numbers}{squeezed(_HEIGHT, shapes)}{_axis(profile, end)}"
    return (
        f'<div class="time">{drawn}</div><p>The longest steps, by the numbers above:</p><ol class="named">{below}</ol>'
    )


def _labels(found: Sequence[Span], end: int) -> list[tuple[float, str]]:
    """The longest steps, as many as find a place, in order of time: where the middle is, in percent, and the name."""
    steps: list[tuple[int, int, str]] = []  # first and last cycle, name
    for span in found:
        if steps and steps[-1][2] == span.step and span.kind != "sync":
            steps[-1] = (steps[-1][0], span.start + span.cycles, span.step)
        else:
            steps.append((span.start, span.start + span.cycles, span.step))
    placed: list[tuple[float, str]] = []
    for first, last, name in sorted(steps, key=lambda each: each[0] - each[1]):
        middle = 50 * (first + last) / end
        if len(placed) < _NAMED and all(abs(middle - other) >= _APART for other, _ in placed):
            placed.append((middle, name))
    return sorted(placed)


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
