"""The pictures of a sweep: a measure over values with its spread and the base's line, a map of two axes, a front."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ipu_core.study.axes import follows, label
from ipu_core.study.plot import COLOURS, GREY, Picture, in_lines, plain
from ipu_core.study.summary import heading, is_share, spread
from lowprec.extras import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ipu_core.study.swept import Sweep

MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def _figure(width: float, height: float, title: str) -> Figure:
    make = optional("matplotlib.figure", extra="study").Figure
    figure: Figure = make((width, height), layout="constrained", facecolor="white")
    figure.suptitle(title, x=0.008, ha="left", fontsize=12.5, fontweight="bold", parse_math=False)
    return figure


def _groups(sweep: Sweep) -> list[tuple[str, list[tuple[str, dict[int, float]]]]]:
    """For each axis, its values with what was measured; the base stands in none."""
    found = []
    for axis in sweep.axes:
        own = [each for each in sweep.settings if list(each.values) == [axis.name]]
        order = {value: number for number, value in enumerate(axis.values)}
        own.sort(key=lambda each: order[each.values[axis.name]])
        found.append((axis.name, [(label(each.values[axis.name]), sweep.measured(each)) for each in own]))
    return found


def over_one_axis(sweep: Sweep) -> Picture:
    """The measure over the values of each axis, which are in the panel of their names; diverged runs at its top."""
    groups = [(name, points) for name, points in _groups(sweep) if points]
    panels: dict[tuple[str, ...], list[tuple[str, list[tuple[str, dict[int, float]]]]]] = {}
    for name, points in groups:
        # Axes of the same values share a panel: that is what one wants to compare.
        panels.setdefault(tuple(text for text, _ in points) if sweep.search != "bisect" else (name,), []).append(
            (name, points)
        )
    most = max((len(points) for _, points in groups), default=1)
    figure = _figure(max(6.4, 1.6 + 0.62 * most * len(panels)), 4.6, sweep.title)
    for number, lines in enumerate(panels.values()):
        axes = figure.add_subplot(1, len(panels), number + 1)
        _lines(axes, lines, sweep)
    return Picture(figure)


def _lines(axes: Axes, lines: list[tuple[str, list[tuple[str, dict[int, float]]]]], sweep: Sweep) -> None:
    line = [value for value in sweep.measured(sweep.base).values() if math.isfinite(value)]
    if line:
        axes.axhspan(min(line), max(line), color="#000000", alpha=0.10, linewidth=0, label="its seeds")
        axes.axhline(float(np.mean(line)), color="#000000", linewidth=1.4, label=sweep.base.precision)
    texts: list[str] = []
    for number, (name, points) in enumerate(lines):
        colour = COLOURS[1 + number % (len(COLOURS) - 1)]
        texts = [text for text, _ in points] if len(points) > len(texts) else texts
        places = np.arange(len(points))
        means = np.array([spread(own.values()).mean for _, own in points])
        for place, (_, own) in zip(places, points, strict=True):
            seen = [value for value in own.values() if math.isfinite(value)]
            axes.scatter([place] * len(seen), seen, color=colour, s=16, alpha=0.4, linewidth=0)
        # A line joins values that follow one another, not the ends of two ranges.
        ends = [n for n in range(1, len(points)) if not follows(points[n - 1][0], points[n][0])]
        for first, last in pairwise([0, *ends, len(points)]):
            style: dict[str, Any] = {"marker": MARKERS[number % len(MARKERS)], "markersize": 5}
            axes.plot(places[first:last], means[first:last], color=colour, label=None if first else name, **style)
        broken = places[~np.isfinite(means)]
        # A mean that is none has no height: a cross at the top says that the runs ended.
        axes.plot(
            broken, np.full(broken.size, 0.97 - 0.04 * number), "x", color=colour, transform=axes.get_xaxis_transform()
        )
    values = [value for _, points in lines for _, own in points for value in own.values() if math.isfinite(value)]
    if values and min(values) > 0 and not is_share(sweep.by) and max(values) > 8 * min([*values, *line]):
        axes.set_yscale("log", subs=(1, 2, 5))
        for formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            formatter(lambda value, _: f"{value:g}")
    axes.set_xticks(
        range(len(texts)), texts, rotation=40 if len(texts) > 5 else 0, ha="right" if len(texts) > 5 else "center"
    )
    axes.set_title(f"{heading(sweep.by)}; dots: seeds, x: diverged", loc="left", fontsize=10, color=GREY)
    axes.legend(frameon=False, fontsize=8.5)
    plain(axes)


def over_two_axes(sweep: Sweep) -> Picture:
    """A map of the mean over two axes, each square with its number."""
    down, across = sweep.axes
    found = {
        (each.values[down.name], each.values[across.name]): spread(sweep.measured(each).values()).mean
        for each in sweep.settings
        if len(each.values) == 2 and sweep.results(each)
    }
    grid = np.array([[found.get((a, b), math.nan) for b in across.values] for a in down.values])
    figure = _figure(2.6 + 0.85 * len(across.values), 1.9 + 0.5 * len(down.values), sweep.title)
    axes = figure.add_subplot()
    finite = grid[np.isfinite(grid)]
    logarithmic = finite.size > 0 and finite.min() > 0 and not is_share(sweep.by)
    shown = np.log(grid) if logarithmic else grid
    axes.set_facecolor("#dddddd")  # of what is not there, or no number
    axes.imshow(shown, cmap="viridis" if is_share(sweep.by) else "viridis_r", aspect="auto")
    middle = float(np.nanmean([np.nanmin(shown), np.nanmax(shown)])) if finite.size else 0.0
    for (i, j), value in np.ndenumerate(grid):
        if (down.values[i], across.values[j]) not in found:
            continue
        dark = math.isfinite(value) and (shown[i, j] > middle) != is_share(sweep.by)
        text = f"{value:.3g}" if math.isfinite(value) else "diverged"
        axes.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(across.values)), list(map(label, across.values)), rotation=30, ha="right")
    axes.set_yticks(range(len(down.values)), list(map(label, down.values)))
    axes.set_xlabel(across.name)
    axes.set_ylabel(down.name)
    line = spread(sweep.measured(sweep.base).values()).mean
    axes.set_title(f"{heading(sweep.by)} ({sweep.base.precision}: {line:.3g})", loc="left", fontsize=10, color=GREY)
    axes.tick_params(labelsize=8.5)
    return Picture(figure)


def pareto(sweep: Sweep) -> Picture:
    """The mean over cycles and over tile memory: what no other setting beats in both is joined by a line.

    Raises:
        ValueError: no point has figures of a machine.
    """
    points: list[tuple[str, float, dict[str, float]]] = []
    for setting in sweep.settings:
        results = sweep.results(setting)
        costs = {name: results[0].get(name) for name, _ in COSTS} if results else {}
        if costs and all(value is not None for value in costs.values()):
            mean = spread(sweep.measured(setting).values()).mean
            points.append(
                (
                    setting.label.removeprefix("precision ") or sweep.base.precision,
                    mean,
                    {name: float(v) for name, v in costs.items() if v},
                )
            )
    if not points:
        raise ValueError("no cycles and no memory are known of the direct engine: a sweep on the tiles has them")
    figure = _figure(10.4, 4.8, sweep.title)
    for number, (name, words) in enumerate(COSTS):
        _front(figure.add_subplot(1, len(COSTS), number + 1), points, name, words, sweep.by)
    return Picture(figure)


COSTS = (("cycles_per_step", "cycles per step"), ("tile_memory", "bytes on the fullest tile"))


def _front(axes: Axes, points: list[tuple[str, float, dict[str, float]]], cost: str, words: str, by: str) -> None:
    seen = sorted(((each[cost], value, text) for text, value, each in points if math.isfinite(value)))
    sign = -1 if is_share(by) else 1
    front: list[tuple[float, float, str]] = []
    for each in seen:
        if not front or sign * each[1] < sign * front[-1][1]:
            front.append(each)
    axes.scatter([x for x, _, _ in seen], [y for _, y, _ in seen], color=GREY, s=18, alpha=0.6, linewidth=0)
    axes.plot([x for x, _, _ in front], [y for _, y, _ in front], color=COLOURS[1], marker="o", markersize=5)
    for x, y, text in front:
        axes.annotate(in_lines(text, 26, 3), (x, y), (5, 4), textcoords="offset points", fontsize=7.5, color=COLOURS[1],
                      parse_math=False)  # fmt: skip
    axes.set_xlabel(words)
    axes.set_title(f"{heading(by)}; the line: what no other beats", loc="left", fontsize=10, color=GREY)
    axes.margins(0.14)
    plain(axes)
