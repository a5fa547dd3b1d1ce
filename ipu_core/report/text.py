"""A Profile as tables in a terminal or notebook (rich), and two profiles side by side."""

from typing import Any

from ipu_core.engine.profile import Profile, Step
from ipu_core.engine.words import call_facts, energy_words, host_facts, lines_of, streaming_facts
from ipu_core.report.beside import ratio, side_by_side, to_data
from ipu_core.report.host_chart import COLUMNS as HOST_COLUMNS
from ipu_core.report.host_chart import host_row
from ipu_core.report.operations import by_layer, step_names
from ipu_core.report.roof_chart import COLUMNS, roof_rows, share_words
from ipu_core.report.roofs import roofline, roofs_of_steps
from lowprec.extras import optional
from lowprec.integers import ceil_div

_MOST_PLACES = 40  # rows of the liveness table; more places are sampled evenly


def show(profile: Profile, console: Any = None) -> None:
    """Prints all tables of a profile.

    Args:
        profile: what to show.
        console: a rich Console; default a new one.

    Raises:
        ImportError: rich is not installed.
    """
    target = console or optional("rich.console", extra="study").Console()
    for table in tables(profile):
        target.print(table)


def tables(profile: Profile) -> list[Any]:
    """The tables of a profile: summary, steps, rooflines, layers, memory by category, variables, liveness, host."""
    known = [_roofline(profile), _layers(profile)] if profile.works else []
    memory = [_categories(profile), _largest(profile), _lifetimes(profile)]
    return [_summary(profile), _steps(profile), *known, *memory, *([_host(profile)] if profile.host else [])]


def compare(first: Profile, second: Profile, names: tuple[str, str] = ("first", "second")) -> Any:
    """A table of two profiles' totals and of the steps that both have by name, with the ratio second to first."""
    table = _table("comparison", ("", *names, "ratio"))
    for row in side_by_side(to_data(first, step_names(first)), to_data(second, step_names(second))):
        table.add_row(row[0], f"{row[1]:,}", f"{row[2]:,}", ratio(row))
    return table


def _table(title: str, columns: tuple[str, ...]) -> Any:
    table = optional("rich.table", extra="study").Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _summary(profile: Profile) -> Any:
    target, memory = profile.target, profile.memory
    table = _table(f"program {profile.program} on {target.name}", ("", ""))
    counted = "" if profile.measured else " (data-dependent parts: one iteration, first option)"
    table.add_row("tiles, workers", f"{target.tiles:,} x {target.workers}")
    table.add_row("runs", f"{profile.runs:,}")
    table.add_row("cycles" + counted, f"{profile.cycles:,}")
    table.add_row("time", f"{profile.microseconds:,.2f} us at {target.clock / 1e9:g} GHz")
    for name in ("compute", "exchange", "sync"):
        cycles = getattr(profile, f"{name}_cycles")
        table.add_row(f"  {name}", f"{cycles:,} ({cycles / max(1, profile.cycles):.0%})")
    table.add_row("of the mean tile", profile.mean_tile.words())
    table.add_row("energy", energy_words(profile))
    table.add_row("bytes exchanged", f"{profile.exchanged:,}")
    tile = memory.tile
    words = f"{memory.peak_bytes:,} of {memory.available:,} bytes ({memory.share:.0%})"
    table.add_row(f"fullest tile ({tile})", words)
    table.add_row("  without gaps", f"{int(memory.without_gaps[tile]):,}")
    table.add_row("  always live", f"{int(memory.always_live[tile]):,}")
    table.add_row("  not always live", f"{int(memory.not_always_live[tile]):,}")
    for name, words in (call_facts(profile) | host_facts(profile) | streaming_facts(profile)).items():
        table.add_row(name, words)
    return table


def _steps(profile: Profile) -> Any:
    columns = ("step", "kind", "runs", "cycles", "compute", "exchange", "sync", "bytes", "tiles", "balance", "vertices")
    more = ("of peak", "line") if profile.works else ()
    table = _table("steps: cycles of all runs, then figures of one run", (*columns, *more))
    for number, (step, roof) in enumerate(zip(profile.steps, roofs_of_steps(profile), strict=True)):
        if step.cycles:
            known = [share_words(roof), lines_of(profile, number)] if profile.works else []
            table.add_row(*_step_row(step), *known)
    return table


def _step_row(step: Step) -> list[str]:
    account = step.account
    cycles = [step.cycles, account.compute_cycles, account.exchange_cycles, account.sync_cycles]
    numbers = [f"{value:,}" for value in cycles]
    tail = [f"{account.exchanged:,}", str(step.active_tiles), f"{step.balance:.2f}", str(account.vertices)]
    return [step.name, step.kind, str(step.count), *numbers, *tail]


def _roofline(profile: Profile) -> Any:
    table = _table(f"roofline: against the peaks of {profile.target.name}", COLUMNS)
    for row in roof_rows(roofline(profile)):
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    return table


def _layers(profile: Profile) -> Any:
    table = _table("by layer", ("layer", "steps", "cycles", "share"))
    for each in by_layer(profile):
        share = f"{each.cycles / max(1, profile.cycles):.1%}"
        table.add_row(each.role, f"{each.steps:,}", f"{each.cycles:,}", share)
    return table


def _host(profile: Profile) -> Any:
    table = _table("from and to the host", HOST_COLUMNS)
    for each in profile.host:
        row = host_row(each, profile, None)
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    return table


def _categories(profile: Profile) -> Any:
    memory = profile.memory
    table = _table(
        f"memory of tile {memory.tile} at its peak ({memory.step or 'always'})", ("category", "bytes", "lives")
    )
    for name, size in memory.categories.items():
        table.add_row(name, f"{size:,}", "always" if name in memory.always else "now")
    return table


def _largest(profile: Profile) -> Any:
    memory = profile.memory
    table = _table(f"largest variables on tile {memory.tile} at its peak", ("variable", "bytes"))
    for name, size in memory.largest:
        table.add_row(name, f"{size:,}")
    return table


def _lifetimes(profile: Profile) -> Any:
    places = profile.memory.lifetimes
    every = ceil_div(len(places), _MOST_PLACES) if places else 1
    table = _table("live memory along the program", ("step", "all tiles", "fullest tile"))
    for place in places[::every]:
        table.add_row(place.step, f"{place.total:,}", f"{place.fullest:,}")
    return table
