"""Pictures for a page: curves over steps, heat maps of named rows against steps, and bars over exponents."""

import html
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.report.page import WIDTH, box

CURVES: Final = 7
"""Classes of curves, curve0, curve1, ...; more of them share colours."""
LIGHT: Final = dict(
    zip((f"curve{i}" for i in range(CURVES)),
        ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b77e00", "#56b4e9"), strict=True)
)  # fmt: skip
DARK: Final = dict(
    zip((f"curve{i}" for i in range(CURVES)),
        ("#ffffff", "#4fa8e0", "#f08a4b", "#2fc59a", "#e3a3c6", "#e6b03c", "#8ecbf2"), strict=True)
)  # fmt: skip
RULES: Final = (
    "svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg text.faint{fill:var(--faint);background:none}"
    "polyline{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}.band{opacity:.15;stroke:none}"
    ".chart{border:none;min-width:640px;width:100%;height:auto}"
    "svg .grid{stroke:var(--line)}svg .mark{stroke-dasharray:4 3}"
    "polyline.curve1{stroke-dasharray:9 3}polyline.curve2{stroke-dasharray:3 3}"
    "polyline.curve4{stroke-dasharray:9 3 3 3}"
    + "".join(f"polyline.{name}{{stroke:var(--{name});fill:none;background:none}}" for name in LIGHT)
)
"""What a page with these pictures needs besides their colours."""
POINTS = 400  # of a curve; more are thinned out
LABELS = 330  # units of the width for the names of a heat map's rows
ROW = 15
LONGEST = 46  # characters of a name

Floats = npt.NDArray[np.float64]


class Curve(NamedTuple):
    """A mean over steps with a band.

    Attributes:
        name: In words.
        steps, mean, low, high: Of equal lengths.
    """

    name: str
    steps: npt.NDArray[np.int64]
    mean: Floats
    low: Floats
    high: Floats


def chart(height: float, shapes: Sequence[str]) -> str:
    """A picture with words, which keeps its proportions; where the page is narrow it is moved sideways."""
    return f'<div class="wide"><svg class="chart" viewBox="0 0 {WIDTH} {height:g}">{"".join(shapes)}</svg></div>'


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{html.escape(words)}</text>'


def line_chart(curves: Sequence[Curve], height: int = 320) -> str:
    """Curves over steps, on a logarithmic scale where all is positive; what is not finite is a gap."""
    left, right, top, bottom = 60.0, WIDTH - 20.0, 10.0, height - 30.0
    seen = np.concatenate([np.concatenate([c.low, c.high]) for c in curves]) if curves else np.zeros(0)
    seen = seen[np.isfinite(seen)]
    low, high = (float(seen.min()), float(seen.max())) if seen.size else (0.0, 1.0)
    scale: Callable[[float], float] = math.log if low > 0 else float
    span = scale(high) - scale(low) or 1.0
    last = max((int(c.steps[-1]) for c in curves if c.steps.size), default=1)

    def place(step: float, value: float) -> tuple[float, float]:
        return left + (right - left) * step / max(last, 1), bottom - (bottom - top) * (scale(value) - scale(low)) / span

    shapes = []
    for share in np.linspace(0, 1, 5):
        value = math.exp(math.log(low) + share * span) if low > 0 else low + share * span
        y = place(0, value)[1]
        shapes.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(text(left - 6, y + 4, f"{value:.3g}", "end"))
        shapes.append(text(place(last * share, value)[0], height - 10, f"{round(last * share):,}", "middle"))
    for number, curve in enumerate(curves):
        shapes += _curve(curve, f"curve{number % CURVES}", place)
    return chart(height, shapes)


def _curve(curve: Curve, kind: str, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    """The band of a curve, and the curve, in as many pieces as there are gaps."""
    chosen = np.unique(np.linspace(0, len(curve.steps) - 1, min(POINTS, len(curve.steps))).round().astype(int))
    finite = np.isfinite(curve.mean) & np.isfinite(curve.low) & np.isfinite(curve.high)
    pieces = np.split(chosen, np.flatnonzero(np.diff(finite[chosen])) + 1) if chosen.size else []
    shapes = []
    for piece in (piece for piece in pieces if piece.size and finite[piece[0]]):
        lower = [place(float(curve.steps[i]), float(curve.low[i])) for i in piece]
        upper = [place(float(curve.steps[i]), float(curve.high[i])) for i in piece]
        mean = [place(float(curve.steps[i]), float(curve.mean[i])) for i in piece]
        shapes.append(f'<polygon class="{kind} band" points="{_points(lower + upper[::-1])}"/>')
        title = f"<title>{html.escape(curve.name)}</title>"
        shapes.append(f'<polyline class="{kind}" points="{_points(mean)}">{title}</polyline>')
    return shapes


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def heat_map(
    names: Sequence[str],
    starts: Sequence[int],
    levels: npt.NDArray[np.int64],
    kinds: Sequence[str],
    values: Floats,
    words: Callable[[float], str],
) -> str:
    """Rows of coloured cells; neighbours of one colour are one shape, which says what it holds.

    Args:
        names: Of the rows.
        starts: The step with which each column begins.
        levels: (rows, columns): a colour's number; -1: none.
        kinds: The colours' classes.
        values: (rows, columns): what the colours stand for.
        words: A value in words.
    """
    width = (WIDTH - LABELS - 5) / max(1, len(starts))
    shapes = []
    for row, name in enumerate(names):
        y = row * ROW
        short = name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[1 - LONGEST // 2 :]}"
        shapes.append(f"<g><title>{html.escape(name)}</title>{text(LABELS - 6, y + 12, short, 'end')}</g>")
        for first, end in itertools.pairwise([0, *(np.flatnonzero(np.diff(levels[row])) + 1), len(starts)]):
            if levels[row, first] >= 0:
                low, high = words(float(values[row, first:end].min())), words(float(values[row, first:end].max()))
                held = low if low == high else f"{low} to {high}"
                tip = html.escape(f"{name}, from step {starts[first]:,}: {held}")
                kind = kinds[int(levels[row, first])]
                shapes.append(box(LABELS + first * width, y, (end - first) * width, ROW - 1, kind, tip))
    bottom = len(names) * ROW + 14
    for share, anchor, before in ((0.0, "start", "step "), (0.5, "middle", ""), (1.0, "end", "")):
        start = starts[round(share * (len(starts) - 1))]
        x = LABELS + share * (WIDTH - LABELS - 5)
        shapes.append(text(x, bottom, f"{before}{start:,}", anchor, "faint"))
    return chart(bottom + 6, shapes)


def exponent_bars(
    first: npt.ArrayLike, last: npt.ArrayLike, lowest: int, marks: Sequence[tuple[int, str]], name: str
) -> str:
    """Two histograms over the same exponents, one behind the other, with places marked below.

    Args:
        first, last: Counts; what is drawn is their share of the larger sum.
        lowest: Exponent of the first count.
        marks: Exponents and what is there, in words.
        name: Above the picture.
    """
    before, after = np.asarray(first, np.float64), np.asarray(last, np.float64)
    seen = np.flatnonzero(before + after)
    near = [exponent - lowest for exponent, _ in marks]
    low = max(0, int(min([*seen, *near], default=0)) - 2)
    high = min(len(before), int(max([*seen, *near], default=1)) + 3)
    width = (WIDTH - 20) / max(1, high - low)
    top = max(float(before.max(initial=0)), float(after.max(initial=0)), 1.0)
    shapes = [text(10, 16, name)]
    for counts, kind, inset in ((before, "early", 0.0), (after, "late", 0.25)):
        for i in range(low, high):
            if counts[i]:
                size = 100 * counts[i] / top
                share = f"2^{lowest + i}: {100 * counts[i] / max(1.0, counts.sum()):.2g} %"
                x = 10 + (i - low + inset) * width
                shapes.append(box(x, 130 - size, width * (1 - 2 * inset), size, kind, share))
    for exponent, words in marks:
        x = 10 + (exponent - lowest - low) * width
        shapes.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="34" y2="134"/>')
        shapes.append(text(min(max(x, 40), WIDTH - 40), 30, words, "middle", "faint"))
    for i in range(low, high, max(1, (high - low) // 8)):
        shapes.append(text(10 + (i - low + 0.5) * width, 146, f"2^{lowest + i}", "middle", "faint"))
    return chart(158, shapes)
