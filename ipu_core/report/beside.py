"""A profile as a file, and two profiles' figures and settings side by side."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipu_core.engine.profile import Profile
from ipu_core.report.operations import Names, Operation, by_layer, by_operation
from ipu_core.report.roofs import roofline, roofs_of_steps

Settings = Mapping[str, Any]
"""What was profiled and how, in words by name."""


def to_data(
    profile: Profile, names: Names | None = None, *, settings: Settings | None = None, samples: int | None = None
) -> dict[str, Any]:
    """A profile as plain data, with its operations, layers and rooflines.

    Args:
        profile: of any program.
        names: as of `by_operation`.
        settings: of what was profiled, which a comparison sets beside another's.
        samples: of one run, for the bytes of a sample; None: nobody said.
    """
    return {
        **profile.to_json(),
        "operations": [each._asdict() for each in by_operation(profile, names)],
        "layers": [each._asdict() for each in by_layer(profile)],
        "roofline": [each.to_json() for each in roofline(profile, names)],
        "roofs_of_steps": [each.to_json() for each in roofs_of_steps(profile)],
        "samples": samples,
        "settings": dict(settings or {}),
    }


def settings_in_words(record: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A record such as a Training's, nested, as words by dotted name; a format by its own name."""
    found: dict[str, str] = {}
    for name, value in record.items():
        label = f"{prefix}{name}"
        if not isinstance(value, Mapping):
            found[label] = str(value)
        elif value.get("kind") == "FloatFormat":
            found[label] = str(value["name"])
        else:
            found |= settings_in_words(value, f"{label}.")
    return found


def read_data(path: str | Path) -> dict[str, Any]:
    """What `to_data` gave, from a profile.json or its folder.

    Raises:
        ValueError: there is none, or it is no profile with operations.
    """
    place = Path(path) / "profile.json" if Path(path).is_dir() else Path(path)
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        side_by_side(data, data)
        differing(data, data)
    except OSError as error:
        raise ValueError(f"{place} cannot be read: {error.strerror}; profile --out FOLDER writes one") from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{place} is no profile that `profile --out` wrote") from error
    return dict(data)


Row = tuple[str, int, int]
TOTALS = {
    "cycles": "cycles", "compute cycles": "compute_cycles", "exchange cycles": "exchange_cycles",
    "sync cycles": "sync_cycles", "bytes exchanged": "exchanged",
}  # fmt: skip
LATER = {
    "floating-point operations": "flops", "bytes of tile memory moved": "memory_bytes",
    "bytes from the host": "from_host", "bytes to the host": "to_host", "bytes loaded from streaming memory": "loaded",
    "bytes stored there": "stored",
}  # fmt: skip
SCALED = {"nanoseconds": ("microseconds", 1e3), "nanojoules, at least": ("joules", 1e9)}  # times what the data have
MEMORY = {
    "bytes of the fullest tile without gaps": "without_gaps", "always live there": "always_live",
    "not always live there": "not_always_live",
}  # fmt: skip


def side_by_side(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Row]:
    """What two profiles' data say of the same: totals, the fullest tiles by category, the cycles of every operation.

    Figures that one of them lacks, which an earlier version wrote, are left out.
    """
    both = (first, second)
    rows = [_row(label, *(each[field] for each in both)) for label, field in TOTALS.items()]
    for label, (field, times) in SCALED.items():
        if all(field in each for each in both):
            values = (each[field][0] if isinstance(each[field], list) else each[field] for each in both)
            rows.append(_row(label, *(round(times * value) for value in values)))
    rows.append(_row("bytes of the fullest tile", *(max(each["memory"]["peak"]) for each in both)))
    rows += _categories(*(each["memory"].get("categories") for each in both))
    for labels, places in ((MEMORY, [each["memory"] for each in both]), (LATER, both)):
        rows += [
            _row(label, *(place[field] for place in places))
            for label, field in labels.items()
            if all(field in place for place in places)
        ]
    here, there = ({op.label: int(op.cycles) for op in map(_operation, each["operations"])} for each in both)
    longest = sorted({**here, **there}, key=lambda name: -max(here.get(name, 0), there.get(name, 0)))
    return rows + [(f"cycles of {name}", here.get(name, 0), there.get(name, 0)) for name in longest]


def _row(label: str, first: Any, second: Any) -> Row:
    return label, int(first), int(second)


def _categories(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> list[Row]:
    """Bytes on each one's fullest tile, by category: what its row before is the sum of."""
    if first is None or second is None:
        return []
    rows = [_row(f"  {name}", first.get(name, 0), second.get(name, 0)) for name in {**first, **second}]
    return [row for row in rows if row[1] or row[2]]


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The settings in which two profiles' data differ, as (name, first, second); "-" where one has none."""
    here, there = (dict(each.get("settings") or {}) for each in (first, second))
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    return [(name, *(str(side.get(name, "-")) for side in (here, there))) for name in names]


def ratio(row: Row) -> str:
    """The second figure as a multiple of the first."""
    return f"{row[2] / row[1]:.3f}" if row[1] else "-"


def _operation(data: Mapping[str, Any]) -> Operation:
    return Operation(**data)
