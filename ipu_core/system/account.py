"""The account of an update on a system: the slowest stage's time in its schedule, the all-reduce, the update, the host.

What is in it: fill and flush by the schedule, forward and backward of every micro-batch, the gradients' all-reduce over
replicas, the update, and seconds that no model explains, which are given or fitted and never hidden. Transfers with the
host pass beside all that [model] where inputs are fetched ahead, as in what was published; an update that its hosts
cannot feed takes as long as they do, and says that it is input-bound.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from ipu_core.chip.collectives import CollectiveCost
from ipu_core.chip.system import System
from ipu_core.engine.profile import Profile
from ipu_core.errors import Unvalidated
from ipu_core.system.schedule import Schedule
from ipu_core.system.words import in_words
from lowprec.checks import expect, integer, number


@dataclass(frozen=True)
class SystemProfile:
    """What an update takes on a system.

    Attributes:
        system: chips and links.
        replicas: that train on parts of a batch; a number that is no power of two warns with `Unvalidated`.
        schedule: of a replica's pipeline, every stage as slow as the slowest; one stage where nothing is cut.
        samples: of a micro-batch.
        collective: the all-reduce of a stage's gradients over the replicas.
        update_seconds: of the update on every chip, streaming memory included.
        link_bytes: that a chip sends to its neighbours in the pipeline, of a micro-batch.
        host_bytes: that a chip receives and sends, of an update.
        host_seconds: that they take.
        update_overhead: seconds of an update that no model here explains.
        update_overhead_from: whose they are.
        host_waits: whether the chips wait for transfers with the host, as in the program of a training here; else
            inputs are fetched ahead, as what was published did.
        profiles: what each stage's chip does in an update, without what waits for others; nothing where one alone was
            planned.

    Raises:
        ValueError: more chips than the system has; a time below 0.
    """

    system: System
    replicas: int
    schedule: Schedule
    samples: float
    collective: CollectiveCost
    update_seconds: float
    link_bytes: int = 0
    host_bytes: int = 0
    host_seconds: float = 0.0
    update_overhead: float = 0.0
    update_overhead_from: str = "none"
    host_waits: bool = False
    profiles: tuple[Profile, ...] = ()

    def __post_init__(self) -> None:
        expect(System, system=self.system)
        expect(Schedule, schedule=self.schedule)
        expect(CollectiveCost, collective=self.collective)
        check_chips(self.system, self.replicas, self.schedule.stages)
        for name in ("samples", "update_seconds", "host_seconds", "update_overhead"):
            if not number(name, getattr(self, name)) >= 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)!r}")
        if self.replicas & (self.replicas - 1):
            warnings.warn(
                f"{self.replicas} replicas: the vendor's collectives are documented for powers of two alone",
                Unvalidated, stacklevel=2,
            )  # fmt: skip

    def __str__(self) -> str:
        return in_words(self)

    @property
    def stages(self) -> int:
        """Chips of a replica."""
        return self.schedule.stages

    @property
    def chips(self) -> int:
        """That work, of those that the system has."""
        return self.replicas * self.stages

    @property
    def micro_batches(self) -> int:
        """Of an update of one replica."""
        return self.schedule.micro_batches

    @property
    def samples_per_update(self) -> float:
        """Of all replicas: the global batch."""
        return self.samples * self.micro_batches * self.replicas

    @property
    def seconds_per_micro_batch(self) -> float:
        """Forward and backward of the slowest stage."""
        return max(map(sum, zip(self.schedule.forward, self.schedule.backward, strict=True)))

    @property
    def fill_seconds(self) -> float:
        """What the schedule takes beside the slowest stage's own work."""
        if self.stages == 1:
            return 0.0  # not what is lost in adding up
        return self.schedule.seconds - self.micro_batches * self.seconds_per_micro_batch

    @property
    def bubble(self) -> float:
        """The share of the pipeline's time in which its chips wait."""
        return self.schedule.bubble

    @property
    def seconds_of_chips(self) -> float:
        """An update as the chips can do it, however fast they are fed."""
        waits = self.host_seconds if self.host_waits else 0.0
        return self.schedule.seconds + self.collective.seconds + self.update_seconds + waits + self.update_overhead

    @property
    def input_seconds(self) -> float:
        """An update as hosts can feed it: the port's bytes, or the samples that they prepare where that is known."""
        rate = self.system.host_samples_per_second
        return max(self.host_seconds, self.samples_per_update / rate if rate else 0.0)

    @property
    def input_bound(self) -> bool:
        """Whether the hosts take longer than the chips."""
        return self.input_seconds > self.seconds_of_chips

    @property
    def seconds_per_update(self) -> float:
        """Of an update."""
        return max(self.seconds_of_chips, self.input_seconds)

    @property
    def samples_per_second(self) -> float:
        """Of all replicas."""
        return self.samples_per_update / self.seconds_per_update

    @property
    def bytes_per_chip(self) -> dict[str, float]:
        """What the busiest chip sends in an update: down its pipeline, to all-reduce, to other racks; with the host."""
        return {
            "pipeline": float(self.link_bytes * self.micro_batches),
            "all_reduce": self.collective.link_bytes,
            "gateways": self.collective.gateway_bytes,
            "host": float(self.host_bytes),
        }

    @property
    def joules_per_update(self) -> tuple[float, float]:
        """Modelled time times published power of the chips that work, least and most."""
        least, most = self.system.target.power
        return (least * self.chips * self.seconds_per_update, most * self.chips * self.seconds_per_update)

    @property
    def joules_per_sample(self) -> tuple[float, float]:
        """The same of a sample."""
        least, most = self.joules_per_update
        return least / self.samples_per_update, most / self.samples_per_update

    def seconds_to_train(self, samples: float) -> float:
        """Seconds that so many samples take, published or given.

        Raises:
            ValueError: fewer than 0, or no number.
        """
        if not number("samples", samples) >= 0:
            raise ValueError(f"samples must be 0 or more, not {samples!r}")
        return samples / self.samples_per_second

    def parts(self) -> tuple[tuple[str, float], ...]:
        """Seconds of an update by what they are spent on, which add up to `seconds_of_chips`."""
        return (
            ("forward and backward", self.micro_batches * self.seconds_per_micro_batch),
            ("fill and flush", self.fill_seconds),
            ("all-reduce of gradients", self.collective.seconds),
            ("update", self.update_seconds),
            *([("host", self.host_seconds)] if self.host_waits else []),
            ("overhead", self.update_overhead),
        )

    def to_json(self) -> dict[str, Any]:
        """The figures under fixed names; seconds, bytes and joules."""
        return {
            "system": self.system.name, "target": self.system.target.name, "chips": self.chips,
            "chips_of_system": self.system.chips, "replicas": self.replicas, "stages": self.stages,
            "schedule": self.schedule.name, "micro_batches": self.micro_batches,
            "samples_per_micro_batch": self.samples, "samples_per_update": self.samples_per_update,
            "seconds_per_update": self.seconds_per_update, "samples_per_second": self.samples_per_second,
            "seconds_per_micro_batch": self.seconds_per_micro_batch, "pipeline_cycles": self.schedule.cycles,
            "bubble": self.bubble, "fill_seconds": self.fill_seconds,
            "collective_seconds": self.collective.seconds, "collective": self.collective.algorithm,
            "collective_bytes": self.collective.size, "collective_messages": self.collective.messages,
            "racks": self.collective.racks, "update_seconds": self.update_seconds,
            "host_seconds": self.host_seconds, "input_seconds": self.input_seconds, "input_bound": self.input_bound,
            "update_overhead": self.update_overhead, "update_overhead_from": self.update_overhead_from,
            "bytes_per_chip": self.bytes_per_chip, "stashes": list(self.schedule.stashes),
            "host_waits": self.host_waits, "bytes_of_fullest_tiles": [each.memory.peak_bytes for each in self.profiles],
            "forward_seconds": list(self.schedule.forward), "backward_seconds": list(self.schedule.backward),
            "joules_per_update": list(self.joules_per_update), "joules_per_sample": list(self.joules_per_sample),
            "parts": dict(self.parts()),
        }  # fmt: skip


def check_chips(system: System, replicas: int, stages: int) -> None:
    """Refuses more replicas of so many stages than a system has chips.

    Raises:
        ValueError: it names how many replicas there can be, or a larger system's chips.
    """
    needed = integer("replicas", replicas, 1) * integer("stages", stages, 1)
    if needed <= system.chips:
        return
    most = system.chips // stages
    way = f"replicas={most} at most" if most else f"stages={system.chips} at most"
    raise ValueError(
        f"{replicas} replicas of {stages} stages are {needed:,} chips, and {system.name} has {system.chips:,}: {way}, "
        "or a larger system"
    )
