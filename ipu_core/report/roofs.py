"""A Profile against the peaks of its target: arithmetic intensity and share of peak of every operation.

The roofline model of Williams, Waterman and Patterson (2009): what a machine can do with so many floating-point
operations a byte is the lower of its peak and of what its memory feeds. A tile has its own memory, and the exchange
between tiles is a second such roof.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ipu_core.engine.profile import Profile, Step
from ipu_core.report.operations import Names, key_of, names_of
from lowprec.checks import expect


class Roof(NamedTuple):
    """What one operation does in one run of a program, and how long that would take at each peak of the target.

    Attributes:
        role, operation: as of `Operation`; of a step both are its name.
        cycles: of its steps.
        flops: floating-point operations, see `ipu_core.engine.work.Work`.
        memory_bytes: between tile memories and registers [model].
        exchange_bytes: received by tiles.
        seconds: of its steps.
        peak_seconds: of its arithmetic alone at `Target.peak_flops` of its formats; None: no figure for one of them.
        memory_seconds: of those bytes at `Target.sram_bandwidth`.
        exchange_seconds: of those at `Target.exchange_bandwidth`, but for what passes a link.
        link_seconds: of the bytes from and to the host and streaming memory at the target's rates for these.
    """

    role: str
    operation: str
    cycles: int
    flops: int
    memory_bytes: int
    exchange_bytes: int
    seconds: float
    peak_seconds: float | None
    memory_seconds: float
    exchange_seconds: float
    link_seconds: float

    @property
    def intensity(self) -> float | None:
        """Floating-point operations for each byte of tile memory; None: it moves none there."""
        return self.flops / self.memory_bytes if self.memory_bytes else None

    @property
    def exchange_intensity(self) -> float | None:
        """Floating-point operations for each byte of the exchange; None: it exchanges none."""
        return self.flops / self.exchange_bytes if self.exchange_bytes else None

    @property
    def flops_per_second(self) -> float:
        """As it ran."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def peak(self) -> float | None:
        """Floating-point operations per second at the peaks of its formats; None: no figure, or no arithmetic."""
        return self.flops / self.peak_seconds if self.peak_seconds else None

    @property
    def share(self) -> float | None:
        """Of the peak, 0 to 1; None: no figure."""
        if self.peak_seconds is None:
            return None
        return self.peak_seconds / self.seconds if self.seconds else 0.0

    @property
    def bound(self) -> str:
        """Which roof is the lowest for it: "arithmetic", "tile memory", "exchange", "link"; "": it does nothing."""
        times = {
            "arithmetic": self.peak_seconds or 0.0,
            "tile memory": self.memory_seconds,
            "exchange": self.exchange_seconds,
            "link": self.link_seconds,
        }
        longest = max(times, key=lambda name: times[name])
        return longest if times[longest] else ""

    def to_json(self) -> dict[str, Any]:
        """All figures under their names."""
        derived = ("intensity", "exchange_intensity", "flops_per_second", "peak", "share", "bound")
        return {**self._asdict(), **{name: getattr(self, name) for name in derived}}


def roofline(profile: Profile, names: Names | None = None) -> list[Roof]:
    """Every operation against the target's peaks, the longest first.

    Args:
        profile: of a Block's step; one that knows no equations has no arithmetic.
        names: as of `by_operation`, which has the same operations.
    """
    expect(Profile, profile=profile)
    found = names_of(profile) if names is None else names
    members: dict[tuple[str, str], list[int]] = {}
    for number, step in enumerate(profile.steps):
        members.setdefault(key_of(step, found), []).append(number)
    roofs = [_roof(profile, key, numbers) for key, numbers in members.items()]
    return sorted(roofs, key=lambda each: -each.cycles)


def roofs_of_steps(profile: Profile) -> list[Roof]:
    """Every step against the target's peaks, in the profile's order, with what its equations count there."""
    expect(Profile, profile=profile)
    return [_roof(profile, (step.name, step.name), [number]) for number, step in enumerate(profile.steps)]


def _roof(profile: Profile, key: tuple[str, str], numbers: Sequence[int]) -> Roof:
    target = profile.target
    steps = [profile.steps[number] for number in numbers]
    done = [
        (step, profile.works[name])
        for step, number in zip(steps, numbers, strict=True)
        for name in profile.counted[number]
    ]
    cycles, exchanged = sum(step.cycles for step in steps), sum(step.exchanged for step in steps)
    memory = sum(step.count * work.bytes for step, work in done)
    rates = {"stream": target.host_bandwidth, "remote": target.streaming_bandwidth}
    peaks = [profile.peak_seconds(number) for number in numbers]
    return Roof(
        *key,
        cycles,
        sum(step.count * work.flops for step, work in done),
        memory,
        exchanged,
        target.seconds(cycles),
        None if None in peaks else sum(peak for peak in peaks if peak is not None),
        memory / target.sram_bandwidth,
        sum(step.exchanged for step in steps if step.kind not in rates) / target.exchange_bandwidth,
        sum(step.count * _passed(step) / rates[step.kind] for step in steps if step.kind in rates),
    )


def _passed(step: Step) -> int:
    """Bytes of a transfer with the host or streaming memory, whichever way."""
    return int(step.bytes_in.sum() + step.bytes_out.sum())
