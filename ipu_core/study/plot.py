"""The picture of a study: loss curves with a band over seeds, its measures, and the share of updates lost."""

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ipu_core.study.summary import band, heading, is_share, measure_in_words, measure_names, spread
from lowprec.extras import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which stays apart under the common kinds of colour blindness; black leads.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", (0, (6, 2)), "-", (0, (2, 1.2)), (0, (4, 1, 1, 1)), "-", (0, (6, 2)))
GREY = "#5a5a5a"
TITLE = 100  # characters of a line of the title
ROOM = 1.36  # the loss panel is this much wider than the curves, for their names
Results = Sequence[dict[str, Any]]
Groups = Mapping[str, Results]
Panel = tuple[str, str, Callable[[float], str]]  # a figure of the results, its heading, a value in words


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure that shows itself in a notebook, without pyplot and its global state."""

    figure: "Figure"

    def save(self, path: str | Path) -> None:
        """Writes a PNG 1664 pixels wide (784 high, more where there are many measures): sharp in a README."""
        # Without matplotlib's version in it equal results give equal bytes.
        self.figure.savefig(path, format="png", dpi=160, metadata={"Software": None})

    def savefig(self, path: str | Path, **options: Any) -> None:
        """Writes the picture as matplotlib's figures do: in the format that the name ends in, with its options."""
        self.figure.savefig(path, **{"dpi": 160, **options})

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def plot(results: Results, precisions: Sequence[str], title: str) -> Picture:
    """Draws the finished points of a study.

    Args:
        results: Objects of results.jsonl.
        precisions: In the order of their colours.
        title: A sentence above the picture.

    Raises:
        ValueError: there is no finished point.
    """
    groups = {name: [result for result in results if result["precision"] == name] for name in precisions}
    if not any(groups.values()):
        raise ValueError("nothing to draw: the study has no finished point")
    measured: list[Panel] = [(name, heading(name), partial(_shown, name)) for name in measure_names(results)]
    panels = [panel for panel in (*measured, *PANELS) if any(_values(group, panel[0]) for group in groups.values())]
    size = (10.4, max(4.9, 0.9 + len(panels) * (0.75 + 0.16 * sum(map(bool, groups.values())))))
    figure = optional("matplotlib.figure", extra="study").Figure(size, layout="constrained", facecolor="white")
    grid = figure.add_gridspec(max(1, len(panels)), 2, width_ratios=(1.75, 1) if panels else (1, 0.01))
    words = textwrap.shorten(title, 2 * TITLE, placeholder=" …")
    # parse_math: a title with two dollars would be read as a formula, and fail after the training.
    figure.suptitle(textwrap.fill(words, TITLE), x=0.008, ha="left", fontsize=12.5, fontweight="bold", parse_math=False)
    _losses(figure.add_subplot(grid[:, 0]), groups)
    for row, (field, name, show) in enumerate(panels):
        _dots(figure.add_subplot(grid[row, 1]), groups, field, name, show)
    return Picture(figure)


PANELS: tuple[Panel, ...] = (
    ("lost_updates", "single updates that rounded to nothing", lambda v: f"{100 * v:.0f} %"),
    ("update_kept", "wanted change of the weights that arrived", lambda v: f"{100 * v:.0f} %"),
)


def _values(group: Results, field: str) -> list[float]:
    values = (result.get(field) for result in group)
    return [value for value in values if value is not None and math.isfinite(value)]


def _shown(name: str, value: float) -> str:
    return measure_in_words(name, spread([value]))


def _losses(axes: "Axes", groups: Groups) -> None:
    ends: list[tuple[float, str, str]] = []
    losses = np.concatenate([result["losses"] for group in groups.values() for result in group])
    finite = losses[np.isfinite(losses)]
    for index, (name, group) in enumerate(groups.items()):
        if not group:
            continue
        # Dashes too: curves stay apart in grey print.
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
        steps, mean, low, high = band([result["losses"] for result in group])
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(steps, mean, color=colour, linestyle=dash, linewidth=2)
        # The name of a run that diverged stands at its last finite loss.
        seen = mean[np.isfinite(mean)]
        if seen.size:
            ends.append((float(seen[-1]), name if math.isfinite(mean[-1]) else f"{name}/diverged", colour))
    # A loss of 0 or below has no place on a logarithmic axis.
    if finite.size and finite.min() > 0:
        axes.set_yscale("log", subs=(2, 5))
    for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis(lambda value, _: f"{value:g}")
    axes.set_xlim(0, ROOM * (last := max(len(group[0]["losses"]) for group in groups.values() if group)))
    # The axis goes on behind the last step, for the names of the curves.
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= last])
    axes.set_xlabel("training step")
    axes.set_title("training loss (running mean; band: all seeds)", loc="left", fontsize=10, color=GREY)
    plain(axes)
    _label_ends(axes, ends)


def _label_ends(axes: "Axes", ends: list[tuple[float, str, str]]) -> None:
    """Writes each curve's name at its right end, moved apart where they would overlap."""
    scale = math.log if axes.get_yscale() == "log" else float
    low, high = map(scale, axes.get_ylim())
    ends = sorted(ends)
    heights = [(scale(value) - low) / (high - low) for value, _, _ in ends]
    edge = 1 / ROOM
    names = [in_lines(name, 22, 3) for _, name, _ in ends]
    lines = [name.count("\n") + 1 for name in names]
    small = max(lines, default=1) > 1
    sizes = [(0.026 if small else 0.035) * count + 0.008 for count in lines]
    for name, (_, _, colour), start, place in zip(names, ends, heights, _apart(heights, sizes), strict=True):
        axes.plot([edge + 0.004, edge + 0.024], [start, place], color=colour, lw=0.8, transform=axes.transAxes)
        axes.text(
            edge + 0.03,
            place,
            name,
            color=colour,
            va="center",
            fontsize=7.5 if small else 9.5,
            fontweight="bold",
            transform=axes.transAxes,
            parse_math=False,
        )


def in_lines(name: str, width: int, most: int) -> str:
    """A precision's name in at most `most` lines, broken between settings; what does not fit becomes an …"""
    lines: list[str] = []
    for part in name.split("/"):
        short = part if len(part) <= width else part[: width - 1] + "…"
        if lines and len(lines[-1]) + 1 + len(short) <= width:
            lines[-1] += "/" + short
        else:
            lines.append(short)
    if len(lines) > most:
        lines[most - 1 :] = [lines[most - 1][: width - 2] + " …"]
    return "\n".join(lines)


def _apart(heights: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Places beside ascending heights for labels of these sizes, within 0 and 1 and as near as they do not overlap."""
    runs: list[tuple[float, list[int]]] = []  # where it begins, and its labels
    for index in range(len(heights)):
        members, begin = [index], _beginning([index], heights, sizes)
        # Merged runs may touch the one before them: each merge is checked again.
        while runs and runs[-1][0] + sum(sizes[i] for i in runs[-1][1]) > begin:
            members = [*runs.pop()[1], *members]
            begin = _beginning(members, heights, sizes)
        runs.append((begin, members))
    return [
        begin + sum(sizes[i] for i in members[:place]) + sizes[index] / 2
        for begin, members in runs
        for place, index in enumerate(members)
    ]


def _beginning(members: Sequence[int], heights: Sequence[float], sizes: Sequence[float]) -> float:
    """Where labels that touch begin, so that their middles are on the whole at their heights."""
    total, before = sum(sizes[i] for i in members), 0.0
    starts = []
    for i in members:
        starts.append(heights[i] - before - sizes[i] / 2)
        before += sizes[i]
    return min(max(sum(starts) / len(starts), 0.0), max(1 - total, 0.0))


def _dots(axes: "Axes", groups: Groups, field: str, title: str, show: Callable[[float], str]) -> None:
    """One row per precision: a light dot per seed, a bar at the mean, the mean in words at the right."""
    names = [name for name, group in groups.items() if group]
    for row, name in enumerate(names):
        colour = COLOURS[list(groups).index(name) % len(COLOURS)]
        values = _values(groups[name], field)
        if not values:
            continue
        mean = float(np.mean(values))
        axes.scatter(values, [row] * len(values), color=colour, s=26, alpha=0.45, linewidth=0)
        axes.plot([mean, mean], [row - 0.32, row + 0.32], color=colour, linewidth=2.4)
        axes.text(1.03, row, show(mean), color=colour, va="center", fontsize=9, transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(names)), [in_lines(name, 34, 2) for name in names], parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    fractions = {name for name, _, _ in PANELS}
    if field in fractions or is_share(field):
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    if field in fractions:
        axes.set_xlim(
            -0.03, 1.03 if max(max(_values(groups[name], field), default=0) for name in names) < 1.02 else None
        )
    else:
        axes.margins(x=0.08)
    axes.set_title(title, loc="left", fontsize=10, color=GREY, parse_math=False)
    plain(axes)
    axes.tick_params(axis="y", labelsize=8.5 if max(map(len, names)) < 28 else 6.5)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.8)


def plain(axes: "Axes") -> None:
    """Axes without a box, on a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b0b0b0")
    axes.tick_params(which="both", colors=GREY, labelsize=8.5)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#ececec", linewidth=0.8)
