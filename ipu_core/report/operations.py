"""A Profile by role and operation, and by layer."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from ipu_core.engine.profile import Profile, Step
from ipu_core.engine.work import label_of
from lowprec.checks import expect, integer

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
            None: what the profile knows of its equations.
    """
    expect(Profile, profile=profile)
    found = names_of(profile) if names is None else names
    return summed(profile, [key_of(step, found) for step in profile.steps])


def names_of(profile: Profile) -> Names:
    """Role and operation of the equations that a profile knows."""
    return {name: (work.role, work.operation) for name, work in profile.works.items()}


def by_layer(profile: Profile, depth: int | None = None) -> list[Operation]:
    """The parts of the model, the longest first; role and operation of each are its dotted name.

    A step that does something for several parts at once counts for what their names have in common, as "blocks.*".
    What belongs to no part counts by the kind of its step, such as stream.

    Args:
        profile: of a Block's step; one that knows no equations has no layers.
        depth: how many names of the dotted one count, as 1 for "blocks"; None: all.
    """
    expect(Profile, profile=profile)
    if depth is not None and integer("depth", depth) < 1:
        raise ValueError(f"depth must be at least 1, not {depth}")
    keys = []
    for step, names in zip(profile.steps, profile.equations, strict=True):
        layers = {profile.works[name].layer for name in names}
        label = _in_common([layer.split(".")[:depth] for layer in sorted(layers) if layer]) or f"no layer: {step.kind}"
        keys.append((label, label))
    return summed(profile, keys)


def _in_common(layers: Sequence[list[str]]) -> str:
    """The dotted name of layers, or what several begin with; nothing for none."""
    if not layers:
        return ""
    first = layers[0]
    if all(layer == first for layer in layers):
        return ".".join(first)
    same = takewhile(lambda parts: len(set(parts)) == 1, zip(*layers, strict=False))
    return ".".join([*(parts[0] for parts in same), "*"])


def summed(profile: Profile, keys: Sequence[tuple[str, str]]) -> list[Operation]:
    """The steps of a profile by two names, the longest first.

    Args:
        profile: of any program.
        keys: of each of its steps.
    """
    sums: dict[tuple[str, str], list[int]] = {}
    for step, key in zip(profile.steps, keys, strict=True):
        account, runs = step.account, step.count
        total = sums.setdefault(key, [0] * 6)
        cycles = account.compute_cycles, account.exchange_cycles, account.sync_cycles
        for i, value in enumerate((1, step.cycles, *(runs * each for each in cycles), step.exchanged)):
            total[i] += value
    found = [Operation(*key, *total) for key, total in sums.items()]
    return sorted(found, key=lambda each: -each.cycles)


def step_names(profile: Profile) -> Names:
    """Every step an operation of its own, by its name."""
    return {step.name: (step.name, step.name) for step in profile.steps}


def key_of(step: Step, names: Names) -> tuple[str, str]:
    """The role and the operation of a step, or all of them that it has."""
    own = (step.name,) if step.name in names else step.operations
    found = [(step.kind, step.kind) if (at := label_of(name, names)) is None else names[at] for name in own]
    roles, operations = (", ".join(sorted(set(side))) for side in zip(*found, strict=True))
    return roles, operations
