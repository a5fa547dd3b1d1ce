"""A Profile as one self-contained HTML page: totals, the bulk-synchronous picture, steps, memory."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ipu_core.engine.data import columns_of
from ipu_core.engine.memory import bytes_by_tile
from ipu_core.engine.profile import Profile
from ipu_core.engine.words import call_facts, energy_words, host_facts, lines_of, streaming_facts
from ipu_core.report import bars, charts, roof_chart, time_picture
from ipu_core.report.beside import Row, Settings, ratio, to_data
from ipu_core.report.host_chart import host_part
from ipu_core.report.operations import Names, Operation, by_layer, by_operation
from ipu_core.report.page import key, page, table
from ipu_core.report.roof_chart import roof_part, share_words
from ipu_core.report.roofs import roofline, roofs_of_steps
from lowprec.checks import expect

_LIGHT: Final = {"compute": "#3a7d44", "exchange": "#e0a030", "sync": "#b03a48", "idle": "#e8e8e8", "memory": "#4a6fa5"}
_DARK: Final = {"compute": "#5aa866", "exchange": "#d9a441", "sync": "#c8505f", "idle": "#2c2f34", "memory": "#7d9fd1"}
_RULES: Final = "summary{cursor:pointer;margin:.6em 0}" + "".join(
    (time_picture.RULES, bars.RULES, roof_chart.RULES, charts.RULES)
)


def to_html(
    profile: Profile,
    title: str = "profile",
    names: Names | None = None,
    *,
    settings: Settings | None = None,
    samples: int | None = None,
    data: Mapping[str, Any] | None = None,
) -> str:
    """The page as text; it needs no other file and carries the profile's data as JSON.

    Args:
        profile: of any program.
        title: heads the page.
        names: role and operation of steps, see `by_operation`.
        settings: of what was profiled, in words by name.
        samples: of one run, for the bytes of a sample; None: nobody said.
        data: what the page carries; None: what `to_data` gives of the others.

    Raises:
        TypeError: no Profile, such as that of a direct engine, which has none.
    """
    expect(Profile, profile=profile)
    carried = to_data(profile, names, settings=settings, samples=samples) if data is None else data
    text = json.dumps(carried).replace("<", "\\u003c")
    parts = [
        table(("", ""), _totals(profile)),
        *([_folded("Settings", table(("", ""), settings.items()))] if settings else []),
        "<h2>Tiles down, time across</h2>",
        key({name: name for name in time_picture.PHASES}),
        time_picture.time_picture(profile),
        "<h2>By role and operation</h2>",
        table(_OPERATION_COLUMNS, (_operation_row(each, profile.cycles) for each in by_operation(profile, names))),
        *_layers(profile),
        "<h2>Roofline: arithmetic against memory</h2>",
        roof_part(profile, roofline(profile, names)),
        "<h2>Steps, with figures of one run each</h2>",
        table(_STEP_COLUMNS, _step_rows(profile)),
        _folded("The program as a tree", f"<pre>{_outline(profile)}</pre>"),
        "<h2>One step by tile</h2>",
        _one_step(profile),
        "<h2>From and to the host</h2>",
        host_part(profile, samples),
        *_memory(profile),
        f'<script type="application/json" id="profile">{text}</script><script>{bars.SCRIPT}</script>',
    ]
    return page(title, parts, _LIGHT, _DARK, _RULES)


def write_html(
    profile: Profile,
    path: str | Path,
    title: str = "profile",
    names: Names | None = None,
    *,
    settings: Settings | None = None,
    samples: int | None = None,
) -> None:
    """Writes the page; the arguments are those of `to_html`."""
    Path(path).write_text(to_html(profile, title, names, settings=settings, samples=samples), encoding="utf-8")


def comparison_to_html(
    rows: Sequence[Row],
    names: tuple[str, str],
    settings: Sequence[tuple[str, str, str]] = (),
    data: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The figures of two profiles side by side (see `side_by_side`) as a page of their own.

    Args:
        rows: the figures.
        names: of both.
        settings: in which they differ, see `differing`.
        data: of both, whose memory is drawn by tile and along the program; none: no pictures.
    """
    parts = [table(("setting", *names), settings)] if settings else []
    parts.append(table(("", *names, "ratio"), ((*row, ratio(row)) for row in rows)))
    for name, each in zip(names, data, strict=False):
        parts += _memory_pictures(name, each["memory"])
    return page(f"{names[0]} and {names[1]}", parts, _LIGHT, _DARK, _RULES)


def _memory_pictures(name: str, memory: Mapping[str, Any]) -> list[str]:
    """Memory by tile, with and without gaps, and along the program, where the data have it."""
    available, peak = int(memory.get("available", 0)), np.array(memory["peak"], np.int64)
    drawn = {"by tile": (peak, "tiles")}
    if "gaps" in memory:
        drawn["by tile, without gaps"] = peak - np.array(memory["gaps"], np.int64), "tiles"
    if memory.get("lifetimes"):
        drawn["along the program, the fullest tile"] = np.array([place[2] for place in memory["lifetimes"]]), "steps"
    return [
        f"<h2>{html.escape(name)}: memory {words}</h2>" + bars.limited_bars(values, available, f"all {along}")
        for words, (values, along) in drawn.items()
        if available
    ]


def _layers(profile: Profile) -> list[str]:
    """Sums by layer, where the profile knows layers."""
    if not profile.works:
        return []
    rows = ((*_operation_row(each, profile.cycles)[1:],) for each in by_layer(profile))
    return [_folded("By layer", table(("layer", *_OPERATION_COLUMNS[2:]), rows))]


def _one_step(profile: Profile) -> str:
    """Cycles and bytes by tile of one step, the longest until another is chosen."""
    if not profile.steps:
        return "<p>The program has no steps.</p>"
    first = max(range(len(profile.steps)), key=lambda number: profile.steps[number].cycles)
    column = next((c for c in columns_of(profile.steps[first]).values() if c.any()), profile.steps[first].bytes_in)
    unit = "cycles" if profile.steps[first].account.compute.any() else "bytes"
    return f'<div data-first="{first}">{bars.chosen("step", "step", column, unit)}</div>'


def _memory(profile: Profile) -> list[str]:
    """Memory by tile, of the fullest one, of each variable, and along the program."""
    memory = profile.memory
    tile, along = memory.tile, np.array([place.fullest for place in memory.lifetimes], np.int64)
    always, gaps = int(memory.always_live[tile]), int(memory.gaps[tile])
    # The categories count the gaps of what lives always as padding, and those of temporaries with them.
    words = (
        f"Fullest tile {tile}, {memory.step or 'always'}: {memory.peak_bytes:,} bytes, {memory.share:.0%} of a tile; "
        f"always live {always:,}, not always {memory.peak_bytes - always:,}; without gaps {memory.peak_bytes - gaps:,}"
    )
    rows = ((name, size, "always" if name in memory.always else "not always")
            for name, size in memory.categories.items())  # fmt: skip
    last = f"tile 0 to {len(memory.peak) - 1:,}"
    parts = [
        "<h2>Memory by tile</h2>",
        bars.limited_bars(memory.peak, memory.available, last),
        "<p>Without the gaps between variables:</p>",
        bars.limited_bars(memory.without_gaps, memory.available, last),
        f"<p>{html.escape(words)}</p>",
        table(("category", "bytes", "lives"), rows),
        _folded(f"The {len(memory.variables)} variables there", table(("variable", "bytes"), memory.variables)),
        _folded(f"Every tile ({profile.target.tiles:,})", table(_TILE_COLUMNS, _tile_rows(profile))),
    ]
    if memory.held:
        sizes = [variable.nbytes for variable in memory.held]
        largest = sizes.index(max(sizes))
        column = bytes_by_tile(memory.held[largest], memory.peak.size)
        parts.append("<h2>One variable by tile</h2>")
        parts.append(f'<div data-first="{largest}">{bars.chosen("variable", "variable", column, "bytes")}</div>')
    live = bars.limited_bars(along, memory.available, "first to last step")
    return [*parts, "<h2>Live memory along the program</h2>", live]


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


_STEP_COLUMNS: Final = (
    "step", "kind", "runs", "compute", "exchange", "sync", "bytes", "tiles", "balance", "share of peak", "line"
)  # fmt: skip


def _step_rows(profile: Profile) -> Iterable[tuple[Any, ...]]:
    for number, (step, roof) in enumerate(zip(profile.steps, roofs_of_steps(profile), strict=True)):
        if step.cycles:
            account = step.account
            cycles = (account.compute_cycles, account.exchange_cycles, account.sync_cycles)
            known = share_words(roof), lines_of(profile, number)
            facts = account.exchanged, step.active_tiles, f"{step.balance:.2f}"
            yield (step.name, step.kind, step.count, *cycles, *facts, *known)


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
