"""A Profile by role and operation, and two profiles' figures side by side."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ipu_core.engine.profile import Profile, Step

Names = Mapping[str, tuple[str, str]]
"""The role and the operation by label: a step's whole name, or what it begins with, up to a colon."""


class Operation(NamedTuple):
    """All steps of one role and operation; cycles and bytes of one run."""

    role: str
    operation: str
    steps: int
    cycles: int
    compute: int
    exchange: int
    sync: int
    bytes: int

    @property
    def label(self) -> str:
        """Both names."""
        return self.role if self.role == self.operation else f"{self.role} {self.operation}"


def by_operation(profile: Profile, names: Names | None = None) -> list[Operation]:
    """The operations of a profile, the longest first.

    A step that does several at once (`Step.operations`) has one account, of which no share is any one's: where their
    roles or operations differ, it counts for all of these together, such as the role "forward, grad_input".

    Args:
        profile: of any program.
        names: of its steps; those without one count by their kind, such as copy. The longest label that fits counts.
    """
    sums: dict[tuple[str, str], list[int]] = {}
    for step in profile.steps:
        account, runs = step.account, step.count
        total = sums.setdefault(_key(step, names or {}), [0] * 6)
        cycles = account.compute_cycles, account.exchange_cycles, account.sync_cycles
        for i, value in enumerate((1, step.cycles, *(runs * each for each in cycles), step.exchanged)):
            total[i] += value
    found = [Operation(*key, *total) for key, total in sums.items()]
    return sorted(found, key=lambda each: -each.cycles)


def step_names(profile: Profile) -> Names:
    """Every step an operation of its own, by its name."""
    return {step.name: (step.name, step.name) for step in profile.steps}


def _key(step: Step, names: Names) -> tuple[str, str]:
    """The role and the operation of a step, or all of them that it has."""
    own = (step.name,) if step.name in names else step.operations
    found = [_named(name, names) or (step.kind, step.kind) for name in own]
    roles, operations = (", ".join(sorted(set(side))) for side in zip(*found, strict=True))
    return roles, operations


def _named(name: str, names: Names) -> tuple[str, str] | None:
    """What the longest label says that a name begins with."""
    while name not in names and ":" in name:
        name = name.rpartition(":")[0]
    return names.get(name)


def to_data(profile: Profile, names: Names | None = None) -> dict[str, Any]:
    """A profile as plain data, with its operations."""
    return {**profile.to_json(), "operations": [each._asdict() for each in by_operation(profile, names)]}


def read_data(path: str | Path) -> dict[str, Any]:
    """What `to_data` gave, from a profile.json or its folder.

    Raises:
        ValueError: there is none, or it is no profile with operations.
    """
    place = Path(path) / "profile.json" if Path(path).is_dir() else Path(path)
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        side_by_side(data, data)
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


def side_by_side(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Row]:
    """What two profiles' data say of the same: totals, the fullest tile, and the cycles of every operation."""
    rows = [(label, int(first[field]), int(second[field])) for label, field in TOTALS.items()]
    peaks = (int(max(each["memory"]["peak"])) for each in (first, second))
    rows.append(("bytes of the fullest tile", next(peaks), next(peaks)))
    here, there = ({op.label: int(op.cycles) for op in map(_operation, each["operations"])} for each in (first, second))
    longest = sorted({**here, **there}, key=lambda name: -max(here.get(name, 0), there.get(name, 0)))
    return rows + [(f"cycles of {name}", here.get(name, 0), there.get(name, 0)) for name in longest]


def ratio(row: Row) -> str:
    """The second figure as a multiple of the first."""
    return f"{row[2] / row[1]:.3f}" if row[1] else "-"


def _operation(data: Mapping[str, Any]) -> Operation:
    return Operation(**data)
