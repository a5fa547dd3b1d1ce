"""Pictures of a watched run with matplotlib, on the axes that are given, or on new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipu_core.diagnose.measure import BINADES, LOWEST
from lowprec import as_format
from lowprec.extras import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ipu_core.diagnose.watch.record import Record

SHARES = (1e-4, 1e-3, 1e-2, 0.05, 0.2, 0.5)
GREY = "#5a5a5a"


def plot_shares(record: Record, measure: str, count: int, ax: Axes | None) -> Axes:
    """A heat map of the worst values by a measure against steps, in the order of the step."""
    shares = record.share(measure)
    worst = np.argsort(-np.nan_to_num(shares).max(axis=0, initial=0.0), kind="stable")
    shown = np.sort(worst[np.nan_to_num(shares[:, worst]).max(axis=0, initial=0.0) > 0][:count])
    ax = ax or _axes(2.2 + 0.17 * len(shown))
    # Few levels with wide steps: shares of 0.01 % and of 20 % are both to be seen.
    colors = optional("matplotlib.colors", extra="study")
    norm = colors.BoundaryNorm([0, *SHARES, 1], 256)
    steps = _edges(record)
    if len(shown) and len(record.rows):
        image = ax.pcolormesh(steps, np.arange(len(shown) + 1), shares[:, shown].T, norm=norm, cmap="YlOrRd")
        bar = ax.figure.colorbar(image, ax=ax, ticks=[0, *SHARES, 1])
        bar.ax.set_yticklabels([f"{100 * share:g} %" for share in (0, *SHARES, 1)], fontsize=7)
    else:
        ax.text(0.5, 0.5, "none in any look", transform=ax.transAxes, ha="center", va="center", color=GREY)
    ax.set_yticks(np.arange(len(shown)) + 0.5, record.values["name"][shown], fontsize=7)
    ax.set_ylim(max(1, len(shown)), 0)
    ax.set_xlabel("step")
    ax.set_title(measure, loc="left", fontsize=10, color=GREY)
    return ax


def plot_exponents(record: Record, name: str, ax: Axes | None) -> Axes:
    """The histograms of a value's exponents side by side, with the ends of its format's range as lines."""
    place = record.index(name)
    counts = record.rows["histogram"][:, place].astype(np.float64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    ax = ax or _axes(3.2)
    if len(record.rows):
        edges = np.arange(BINADES + 1) + LOWEST
        ax.pcolormesh(_edges(record), edges, np.where(shares > 0, shares, np.nan).T, cmap="Blues", vmin=0)
    fmt = as_format(str(record.values["format"][place]))
    met = np.flatnonzero(counts.sum(axis=0)) + LOWEST
    low, high = (int(met[0]), int(met[-1])) if met.size else (-1, 1)
    for end, words in ((fmt.smallest_subnormal, "smallest"), (fmt.smallest_normal, "normal"), (fmt.max, "largest")):
        exponent = int(np.frexp(float(end))[1]) - 1
        if LOWEST < exponent < LOWEST + BINADES:
            ax.axhline(exponent, color=GREY, linewidth=0.8, linestyle="--")
            # Beside the panel: what saturates lies where the line does.
            ax.annotate(
                words, (1, exponent), (3, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                va="center", fontsize=7, color=GREY, annotation_clip=False,
            )  # fmt: skip
            low, high = min(low, exponent), max(high, exponent)
    ax.set_ylim(low - 2, high + 3)
    ax.yaxis.set_major_formatter(lambda value, _: f"$2^{{{value:.0f}}}$")
    ax.set_xlabel("step")
    ax.set_title(f"{name} ({fmt.name})", loc="left", fontsize=10, color=GREY)
    return ax


def _edges(record: Record) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Where the columns of the looks begin, and where the last ends."""
    steps = record.steps
    # The last look has no next one: its column is as wide as the one before.
    last = int(steps[-1] - steps[-2]) if len(steps) > 1 else 1
    return np.append(steps, steps[-1] + last) if len(steps) else np.arange(2)


def _axes(height: float) -> Axes:
    figure = optional("matplotlib.pyplot", extra="study").figure(figsize=(9, height), layout="constrained")
    axes: Axes = figure.subplots()
    return axes
