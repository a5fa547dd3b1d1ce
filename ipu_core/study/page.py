"""The page of a study: its table, curves, what was watched, its plan, and a place for why it went so."""

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipu_core.diagnose.measure import LOWEST
from ipu_core.diagnose.watch import Record
from ipu_core.diagnose.watch.record import MEASURES
from ipu_core.report import charts
from ipu_core.report.charts import Curve
from ipu_core.report.page import key, page, table
from ipu_core.study.summary import band
from ipu_core.train.table import Table
from lowprec import as_format

ROWS, COLUMNS = 30, 120  # of a heat map
HISTOGRAMS = 6  # of a point
SHARES = (0.0, 0.001, 0.01, 0.05, 0.2, 0.5)
"""A share above each of these, and not above the next, has a colour of its own."""
STEPS_OF_SCALE = 8
COLOURS = [
    *(f"share{i}" for i in range(len(SHARES) + 1)),
    *(f"scale{i}" for i in range(STEPS_OF_SCALE)),
    "early",
    "late",
]
LIGHT = charts.LIGHT | dict(zip(COLOURS, (
    "#f1f1f1", "#fde9b8", "#fcc878", "#f79a4a", "#e2622f", "#b52f24", "#6e1220",
    "#e8f1f8", "#cbe0ef", "#a6cae3", "#7bb0d4", "#5293c2", "#3275aa", "#1b578b", "#0c3a66", "#c9d6e4", "#0072b2",
), strict=True))  # fmt: skip
DARK = charts.DARK | dict(zip(COLOURS, (
    "#26292e", "#4d3b1c", "#7a5217", "#ab6416", "#d97a1f", "#f49a4b", "#ffd0a3",
    "#1d2731", "#203a50", "#235073", "#296795", "#3680b3", "#529bcb", "#7fb8df", "#b5d8ef", "#3d4a58", "#56b4e9",
), strict=True))  # fmt: skip
RULES = charts.RULES + (
    "pre{overflow-x:auto;padding:.7em;border:1px solid var(--line)}summary{cursor:pointer;margin:.5em 0}"
    "caption,.note{color:var(--faint);text-align:left}p.note{white-space:pre-line}td{font-variant-numeric:tabular-nums}td+td{white-space:nowrap}"
)
Results = Sequence[dict[str, Any]]


def study_page(
    title: str,
    summary: Table,
    results: Results,
    precisions: Sequence[str],
    settings: Mapping[str, Any],
    plan: str,
    records: Mapping[str, Record],
    report: str,
) -> str:
    """The page as text; it needs no other file and no network.

    Args:
        title: Of the study.
        summary: Its table.
        results: Its finished points.
        precisions: In the order of their colours.
        settings: What all points share.
        plan: How each product is made, in words.
        records: What was watched, by point.
        report: The words of `blame`; "": there are none.
    """
    parts = [_table(summary), "<h2>Training loss</h2>", _losses(results, precisions)]
    if report:
        parts += ["<h2>Why</h2>", f'<pre id="report">{html.escape(report)}</pre>']
    if records:
        parts += ["<h2>What rounding did</h2>", _words()]
        worst = max(records, key=lambda point: records[point].harm().max(initial=0.0))
        parts += [_watched(point, record, opened=point == worst) for point, record in records.items()]
    said = table(("setting", "value"), ((name, _brief(value)) for name, value in settings.items()))
    parts += ["<h2>How it was trained</h2>", said, _folded("The plan of every sum", f"<pre>{html.escape(plan)}</pre>")]
    return page(title, parts, LIGHT, DARK, RULES)


def _table(given: Table) -> str:
    note = f'<p class="note">{html.escape(given.note)}</p>' if given.note else ""
    return table(given.columns, given.rows) + note


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _folded(words: str, inner: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{html.escape(words)}</summary>{inner}</details>"


def _losses(results: Results, precisions: Sequence[str]) -> str:
    """A running mean for each precision, with a band over its seeds."""
    drawn, named = list[Curve](), dict[str, str]()
    for name in precisions:
        if losses := [result["losses"] for result in results if result["precision"] == name]:
            named[f"curve{len(drawn) % charts.CURVES}"] = name
            drawn.append(Curve(name, *band(losses)))
    return f'{key(named)}{charts.line_chart(drawn)}<p class="note">running mean; band: all seeds</p>'


def _words() -> str:
    shown = "".join(f"<li><b>{name}</b>: {html.escape(words)}</li>" for name, words in MEASURES.items())
    levels = {"share0": "none", **{f"share{i + 1}": f"over {100 * share:g} %" for i, share in enumerate(SHARES)}}
    return f'<ul class="note">{shown}</ul>{key(levels)}'


def _watched(point: str, record: Record, *, opened: bool) -> str:
    """A point's worst values, heat maps of what went wrong anywhere, scales, and histograms."""
    parts = [_table(record.table())]
    for measure in MEASURES:
        # NaN stands for a value that was not computed in that look.
        shares = np.nan_to_num(record.share(measure))
        worst = np.argsort(-shares.max(axis=0, initial=0.0), kind="stable")[:ROWS]
        worst = worst[shares[:, worst].max(axis=0, initial=0.0) > 0]
        if worst.size:
            parts += [f"<h3>{measure}</h3>", _shares(record, measure, np.sort(worst))]
    parts += ["<h3>scale</h3>", _scales(record), "<h3>exponents</h3>", _histograms(record)]
    return _folded(point, "".join(parts), opened=opened)


def _columns(record: Record) -> list[npt.NDArray[np.intp]]:
    """The looks that share a column."""
    # As many columns as can be told apart, however many looks there are.
    return np.array_split(np.arange(len(record.rows)), max(1, min(COLUMNS, len(record.rows))))


def _starts(record: Record) -> list[int]:
    return [int(record.steps[looks[0]]) for looks in _columns(record)]


def _shares(record: Record, measure: str, places: npt.NDArray[np.intp]) -> str:
    """The largest share in the looks of each column."""
    shares = np.stack([_largest(record.share(measure)[looks][:, places]) for looks in _columns(record)], axis=1)
    levels = np.where(np.isnan(shares), -1, np.searchsorted(SHARES, np.nan_to_num(shares), side="left"))
    kinds = [f"share{i}" for i in range(len(SHARES) + 1)]
    names = record.values["name"][places].tolist()
    return charts.heat_map(names, _starts(record), levels, kinds, shares, lambda share: f"{100 * share:.2g} %")


def _largest(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The largest value of each column; NaN where all are NaN."""
    known = np.where(np.isnan(values), -1.0, values).max(axis=0)
    return np.where(known < 0, np.nan, known)


def _shown(record: Record) -> npt.NDArray[np.intp]:
    """Values whose scale is worth a row: the worst, then products, weights and moments, in the step's order."""
    worst = record.worst(ROWS)
    plain = np.isin(record.values["op"], ("dot", "conv2d", "scaled_add"))
    others = np.setdiff1d(np.flatnonzero(plain), worst)
    return np.sort(np.concatenate([worst, others])[:ROWS]).astype(np.intp)


def _scales(record: Record) -> str:
    """The binade of the root mean square, eight colours from the smallest to the largest."""
    places = _shown(record)
    rms = record.rows["rms"][:, places]
    # A mean square of 0 has the binade -inf, which is drawn as unknown.
    with np.errstate(divide="ignore"):
        binades = np.log2(np.stack([rms[looks].mean(axis=0) for looks in _columns(record)], axis=1))
    known = binades[np.isfinite(binades)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    # All values may be in one binade.
    width = max(high - low, 1e-9) / STEPS_OF_SCALE
    with np.errstate(invalid="ignore"):
        levels = np.clip((binades - low) // width, 0, STEPS_OF_SCALE - 1)
    levels = np.where(np.isfinite(binades), levels, -1).astype(np.int64)
    ends = {f"scale{i}": f"2^{low + i * width:.0f}" for i in (0, STEPS_OF_SCALE // 2, STEPS_OF_SCALE - 1)}
    names = record.values["name"][places].tolist()
    kinds = [f"scale{i}" for i in range(STEPS_OF_SCALE)]
    return key(ends) + charts.heat_map(names, _starts(record), levels, kinds, binades, lambda e: f"2^{e:.1f}")


def _histograms(record: Record) -> str:
    """Exponent histograms of the worst values, or of the first products where nothing went wrong."""
    worst = record.worst(HISTOGRAMS)
    places = worst if worst.size else np.flatnonzero(record.values["op"] == "dot")[:HISTOGRAMS]
    shown = []
    for place in places:
        value, counts = record.values[place], record.rows["histogram"][:, place]
        fmt = as_format(str(value["format"]))
        ends = [(fmt.smallest_subnormal, "smallest"), (fmt.smallest_normal, "normal"), (fmt.max, "largest")]
        marks = [(int(np.frexp(float(end))[1]) - 1, words) for end, words in ends]
        inside = [(e, words) for e, words in marks if LOWEST <= e < LOWEST + counts.shape[1]]
        name = f"{value['name']}, {fmt.name}"
        shown.append(charts.exponent_bars(counts[0], counts[-1], LOWEST, inside, name))
    first, last = (f"{step:,}" for step in record.steps[[0, -1]]) if len(record.rows) else ("0", "0")
    return key({"early": f"step {first}", "late": f"step {last}"}) + "".join(shown)
