"""One plot for each measure; each draws on the axes it is given, or on new ones, and returns them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowprec.extras import optional
from lowprec.statistics.histogram import exponent_histogram
from lowprec.statistics.measures import relative_error, signal_to_noise_ratio, ulp_distance, ulp_error
from lowprec.statistics.shares import Shares, shares
from lowprec.statistics.updates import wanted_and_lost
from lowprec.statistics.values import as_float64, real_array
from lowprec.values.formats import FloatFormat, as_format
from lowprec.values.keywords import FewBitRoundingLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which stays apart under the common kinds of colour blindness.
BLUE, ORANGE, GREEN, RED, SKY, PINK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
GREY, LIGHT = "#5a5a5a", "#d0d0d0"
SHARE_COLOURS: Mapping[str, str] = dict(
    zip(Shares._fields, (BLUE, SKY, ORANGE, RED, LIGHT, PINK, "#000000"), strict=True)
)


def plot_ulp_error(
    x: ArrayLike, exact: ArrayLike, fmt: Any = None, *, ax: Axes | None = None, label: str | None = None
) -> Axes:
    """Median and largest `ulp_error` (in ulps) of each binade of `exact`; finite errors of non-zero values only."""
    ax = _axes(ax)
    _by_binade(ax, as_float64(exact), ulp_error(x, exact, fmt), label)
    # At least half an ulp, so that a correct rounding to nearest looks like one.
    ax.set_ylim(0, 1.08 * max(float(ax.dataLim.y1), 0.5))
    ax.set_ylabel("error (ulp)")
    return _finished(ax, "distance from the exact value")


def plot_relative_error(x: ArrayLike, exact: ArrayLike, *, ax: Axes | None = None, label: str | None = None) -> Axes:
    """Median and largest `relative_error` of each binade of `exact`, on logarithmic scales of base 2."""
    ax = _axes(ax)
    _by_binade(ax, as_float64(exact), relative_error(x, exact), label)
    ax.set_yscale("log", base=2)
    ax.set_ylabel("|x - exact| / |exact|")
    return _finished(ax, "relative error")


def plot_ulp_distance(x: ArrayLike, y: ArrayLike, fmt: Any = None, *, ax: Axes | None = None, most: int = 8) -> Axes:
    """Share (in %) of pairs that are 0, 1, 2, ... steps apart; the last bar holds `most` and more, NaN has its own."""
    ax = _axes(ax)
    distance = ulp_distance(real_array(x), real_array(y), fmt).ravel()
    known = distance[~np.isnan(distance)]
    # Distances go up to 2^64: cut before they become integers.
    counts = np.bincount(np.minimum(known, most).astype(np.int64), minlength=most + 1)
    names = [*(str(i) for i in range(most)), f"{most}+"]
    if known.size < distance.size:
        counts, names = np.append(counts, distance.size - known.size), [*names, "NaN"]
    bars = ax.bar(names, 100 * counts / max(distance.size, 1), color=BLUE)
    ax.bar_label(bars, [f"{100 * c / distance.size:.3g}" if c else "" for c in counts], fontsize=8, color=GREY)
    ax.set_xlabel("steps on the grid")
    ax.set_ylabel("share of the pairs (%)")
    return _finished(ax, "ulp distance")


def plot_signal_to_noise_ratio(
    signal: ArrayLike, approximations: Mapping[str, ArrayLike], *, ax: Axes | None = None
) -> Axes:
    """One bar (in dB) for each named approximation of the same signal; without noise there is no bar but the word."""
    ax = _axes(ax)
    names = list(approximations)
    ratios = [float(signal_to_noise_ratio(signal, approximations[name])) for name in names]
    lengths = [ratio if np.isfinite(ratio) else 0.0 for ratio in ratios]
    bars = ax.barh(names, lengths, color=BLUE, height=0.6)
    ax.bar_label(bars, ["exact" if r == np.inf else f"{r:.1f} dB" for r in ratios], padding=4, color=GREY)
    ax.invert_yaxis()
    ax.margins(x=0.18)
    ax.set_xlabel("signal-to-noise ratio (dB; 6.02 dB are one bit)")
    return _finished(ax, "signal against rounding noise")


def plot_exponent_histogram(x: ArrayLike, formats: Iterable[Any] = (), *, ax: Axes | None = None) -> Axes:
    """Share (in %) of x in each binade, above the ranges of the formats: normal values dark, subnormal ones light."""
    ax = _axes(ax)
    histogram = exponent_histogram(x)
    shown = 100 * histogram.counts / max(histogram.size, 1)
    ax.bar(histogram.exponents, shown, width=0.9, color=BLUE)
    ax.axhline(0, color=GREY, linewidth=0.8)
    # The ranges are drawn below the bars, in parts of their height.
    top = float(shown.max(initial=1.0))
    low, high = (histogram.exponents[0], histogram.exponents[-1]) if shown.size else (0, 0)
    # Formats reach far beyond most data: the window is the data's.
    window = (low - 3, high + 3)
    for row, fmt in enumerate(as_format(f) for f in formats):
        _range_bar(ax, fmt, -top * 0.1 * (row + 1), top * 0.05, window)
    ax.set_xlim(*window)
    # No shares below zero, where the ranges are drawn.
    ax.set_yticks([tick for tick in ax.get_yticks() if 0 <= tick <= 1.1 * top])
    ax.set_xlabel("exponent, floor(log2 |x|)")
    ax.set_ylabel("share of the values (%)")
    without = [f"{n} {name}" for n, name in zip(histogram[2:], ("zero", "infinite", "NaN"), strict=True) if n]
    return _finished(ax, "exponents" + (f" (beside {', '.join(without)})" if without else ""))


def plot_shares(
    x: ArrayLike,
    formats: Iterable[Any],
    rounding: FewBitRoundingLike = "nearest_even",
    *,
    key: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Stacked bars (in %) of what becomes of x in each format; classes that occur nowhere are left out."""
    ax = _axes(ax)
    table = {fmt.name: shares(x, fmt, rounding, key=key) for fmt in (as_format(f) for f in formats)}
    start = np.zeros(len(table))
    for kind, colour in SHARE_COLOURS.items():
        widths = np.array([100 * getattr(row, kind) for row in table.values()])
        if widths.any():
            bars = ax.barh(list(table), widths, left=start, color=colour, height=0.65, label=kind)
            dark = kind in ("normal", "nan", "overflow")
            words = [f"{w:.1f}" if w > 6 else "" for w in widths]
            ax.bar_label(bars, words, label_type="center", color="white" if dark else "black", fontsize=8)
            start += widths
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the values (%)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(Shares._fields), frameon=False, fontsize=8)
    return _finished(ax, "")


def plot_lost_updates(
    before: ArrayLike, update: ArrayLike, after: ArrayLike, *, ax: Axes | None = None, label: str | None = None
) -> Axes:
    """Share (in %) of the wanted updates that changed nothing, against their size relative to the weight.

    Updates are grouped by floor(log2 |update|) - floor(log2 |weight|), the distance in binades: half a step of a format
    with m mantissa bits is m + 1 binades below the weight, wherever in its binade that is. Updates of zero weights are
    left out, as are zeros and values that are not finite.
    """
    ax = _axes(ax)
    w, wanted, now = np.broadcast_arrays(*(as_float64(a) for a in (before, update, after)))
    counts_at, lost_at = wanted_and_lost(w, wanted, now)
    asked = counts_at & (w != 0)
    # In binades: whether an update is lost depends on its size in steps of the weight.
    exponents = np.frexp(wanted[asked])[1] - np.frexp(w[asked])[1]
    places, which, counts = np.unique(exponents, return_inverse=True, return_counts=True)
    lost = np.bincount(which, lost_at[asked], minlength=places.size)
    ax.plot(places, 100 * lost / counts, marker="o", markersize=3.5, label=label)
    ax.set_ylim(-3, 103)
    ax.set_xlabel("binades from weight to update: floor(log2 |update|) - floor(log2 |weight|)")
    ax.set_ylabel("updates that changed nothing (%)")
    return _finished(ax, "lost updates")


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    _, new = optional("matplotlib.pyplot", extra="study").subplots(figsize=(7, 4), layout="constrained")
    axes: Axes = new
    return axes


def _finished(ax: Axes, title: str) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    if title:
        ax.set_title(title, loc="left", fontsize=10, color=GREY)
    if title and ax.get_legend_handles_labels()[1]:
        ax.legend(frameon=False)  # again for each curve that joins
    return ax


def _by_binade(ax: Axes, exact: NDArray[np.float64], error: NDArray[np.float64], label: str | None) -> None:
    """Draws the median (line) and the largest (dashes) error of each binade."""
    exact, error = (a.ravel() for a in np.broadcast_arrays(exact, error))
    usable = np.isfinite(exact) & (exact != 0) & np.isfinite(error)
    exponents, error = np.frexp(exact[usable])[1] - 1, error[usable]
    order = np.argsort(exponents, kind="stable")
    places, starts = np.unique(exponents[order], return_index=True)
    groups = np.split(error[order], starts[1:]) if places.size else []
    prefix = f"{label}: " if label else ""
    (line,) = ax.plot(places, [np.median(g) for g in groups], label=f"{prefix}median")
    ax.plot(places, [g.max() for g in groups], linestyle="--", color=line.get_color(), label=f"{prefix}largest")
    ax.set_xlabel("exponent of the exact value, floor(log2 |exact|)")


def _range_bar(ax: Axes, fmt: FloatFormat, y: float, height: float, window: tuple[int, int]) -> None:
    """One format's range of exponents, clipped to the window."""
    tiny = np.frexp(fmt.smallest_subnormal)[1] - 1
    known = ax.get_legend_handles_labels()[1]
    spans = (("normal", fmt.emin - 0.5, fmt.emax + 0.5, GREEN), ("subnormal", tiny - 0.5, fmt.emin - 0.5, SKY))
    for kind, left, right, colour in spans:
        left, right = max(left, window[0]), min(right, window[1])
        if right > left:
            label = None if kind in known else kind
            ax.barh(y, right - left, left=left, height=height, color=colour, linewidth=0, label=label)
    beside = ax.get_yaxis_transform()  # x in parts of the axes, y in data
    ax.text(1.01, y, fmt.name, transform=beside, fontsize=8, color=GREY, va="center")
