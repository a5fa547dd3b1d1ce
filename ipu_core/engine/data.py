"""A Profile as plain data, such as JSON holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.engine.memory import MemoryAccount, bytes_by_tile
from ipu_core.graph.tensor import Variable

if TYPE_CHECKING:
    from ipu_core.engine.profile import Profile, Step

TOTALS = (
    "program", "runs", "measured", "cycles", "compute_cycles", "exchange_cycles", "sync_cycles", "microseconds",
    "exchanged", "flops", "memory_bytes", "from_host", "to_host", "loaded", "stored", "streaming_cycles",
    "hidden_cycles", "tiles_cycles", "overlap_bound", "update_overhead", "seconds_per_update",
)  # fmt: skip


def to_data(profile: Profile) -> dict[str, Any]:
    """Totals, steps, memory; arrays by tile as lists. Of a call of several runs it has the totals."""
    target, call = profile.target, profile.call
    return {
        "target": {"name": target.name, "tiles": target.tiles, "clock": target.clock},
        **{name: getattr(profile, name) for name in TOTALS},
        "joules": list(profile.joules),
        "mean_tile": profile.mean_tile._asdict(),
        "call": None if call is None else {name: getattr(call, name) for name in TOTALS},
        "steps": [_step(profile, number) for number in range(len(profile.steps))],
        "outline": [list(line) for line in profile.outline],
        "host": [each._asdict() for each in profile.host],
        "bytes_in": profile.bytes_in.tolist(),
        "bytes_out": profile.bytes_out.tolist(),
        "by_tile": _by_tile(profile.steps),
        "memory": _memory(profile.memory),
    }


def _step(profile: Profile, number: int) -> dict[str, Any]:
    step, account = profile.steps[number], profile.steps[number].account
    works = [profile.works[name] for name in profile.equations[number]]
    counted = [profile.works[name] for name in profile.counted[number]]
    return {
        "name": step.name,
        "operations": list(step.operations),
        "sources": list(profile.sources(number)),
        "layers": sorted({work.layer for work in works if work.layer}),
        "kind": step.kind,
        "count": step.count,
        "begin": step.begin,
        "every": step.every,
        "cycles": account.cycles,
        "compute_cycles": account.compute_cycles,
        "exchange_cycles": account.exchange_cycles,
        "sync_cycles": account.sync_cycles,
        "exchanged": account.exchanged,
        "flops": sum(work.flops for work in counted),
        "memory_bytes": sum(work.bytes for work in counted),
        "vertices": account.vertices,
        "active_tiles": step.active_tiles,
        "balance": step.balance,
    }


def _by_tile(steps: Sequence[Step]) -> dict[str, Any]:
    """Figures of one execution of every step by tile; equal columns, as those of equal layers, are written once.

    A column is a list of (first tile, last tile, figure) where it is not 0. "steps" has for each step the numbers of
    its columns by what they are of: "compute" (cycles), "bytes in" and "bytes out" of the exchange, and the bytes of
    tile memory that are there while it runs, such as "scratch".
    """
    known: dict[bytes, int] = {}
    columns: list[list[list[int]]] = []

    def number(column: Ints) -> int:
        found = known.setdefault(column.tobytes(), len(columns))
        if found == len(columns):
            columns.append(column_runs(column))
        return found

    found = [{name: number(column) for name, column in columns_of(step).items() if column.any()} for step in steps]
    return {"columns": columns, "steps": found}


def columns_of(step: Step) -> dict[str, Ints]:
    """Figures of one execution of a step by tile: cycles it computes, bytes that it moves and needs meanwhile."""
    moved = {"bytes in": step.bytes_in, "bytes out": step.bytes_out}
    return {"compute": step.account.compute, **moved, **step.account.memory}


def column_runs(column: Ints) -> list[list[int]]:
    """A figure by tile as (first tile, last tile, figure), neighbours of one figure together, without zeros."""
    ends = np.append(np.flatnonzero(np.diff(column)), column.size - 1) if column.size else np.zeros(0, np.int64)
    starts = np.append(0, ends[:-1] + 1) if column.size else ends
    runs = zip(starts.tolist(), ends.tolist(), column[ends].tolist(), strict=True)
    return [list(run) for run in runs if run[2]]


def _memory(memory: MemoryAccount) -> dict[str, Any]:
    tile = memory.tile
    return {
        "available": memory.available,
        "share": memory.share,
        "peak": memory.peak.tolist(),
        "gaps": memory.gaps.tolist(),
        "fullest_tile": tile,
        "without_gaps": int(memory.without_gaps[tile]),
        "always_live": int(memory.always_live[tile]),
        "not_always_live": int(memory.not_always_live[tile]),
        "step": memory.step,
        "categories": memory.categories,
        "largest": [list(item) for item in memory.largest],
        "variables": [list(item) for item in memory.variables],
        "held": _held(memory.held, memory.peak.size),
        "always": {name: by_tile.tolist() for name, by_tile in memory.always.items()},
        "remote": memory.remote,
        "remote_available": memory.remote_available,
        "unstreamed": memory.unstreamed.tolist(),
        "lifetimes": [[place.step, place.total, place.fullest] for place in memory.lifetimes],
    }


def _held(variables: Sequence[Variable], tiles: int) -> dict[str, Any]:
    """All variables, and by number the tiles that hold them: (first tile, last tile, bytes), equal lists once."""
    known: dict[str, int] = {}
    columns: list[list[list[int]]] = []
    found = []
    for variable in variables:
        runs = column_runs(bytes_by_tile(variable, tiles))
        number = known.setdefault(str(runs), len(columns))
        if number == len(columns):
            columns.append(runs)
        kind = str(variable).removeprefix(f"{variable.name}:")
        found.append({"name": variable.name, "type": kind, "temporary": variable.temporary, "column": number})
    return {"columns": columns, "variables": found}
