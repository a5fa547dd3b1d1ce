"""The account of a workload's stage: modelled beside measured, micro-batch, update, host and links apart."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ipu_core.chip.energy import UNVALIDATED_POWER, Energy, energy_of
from ipu_core.chip.target import Target
from ipu_core.compile import bill as bills
from ipu_core.engine.profile import Profile
from ipu_core.errors import UnsupportedByTarget, Unvalidated
from ipu_core.ir.block import Block, Type
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision.precision import Precision
from ipu_core.report.beside import settings_in_words
from ipu_core.report.operations import Names, by_layer, by_operation
from ipu_core.report.roofs import roofline
from ipu_core.train.execution import Execution
from ipu_core.train.optim import Sgd
from ipu_core.train.optimizer_memory import OptimizerNeed, by_optimizer
from ipu_core.train.planned import planned_step
from ipu_core.train.training import Training
from ipu_core.workloads.counts import counted
from ipu_core.workloads.published import Measured, Stage, Workload
from ipu_core.workloads.steps import block_of
from lowprec.checks import expect, integer

OF_NO_CYCLE = {"power", "energy", "adder"}
"""Figures of a chip that change no cycle."""


@dataclass(frozen=True, eq=False)
class StageAccount:
    """What a stage costs by the account, and what was measured.

    Attributes:
        workload: with the settings that were accounted.
        stage: of it.
        target: the chip.
        profile: of one update.
        names: roles and operations of its equations.
        link_bytes: in a micro-batch from or to other chips, the larger of both ways.
        planned_in: seconds that planning took.
        counts: of a micro-batch, multiply-accumulates by format and bytes of tile memory, see `counted`.
        training, execution: with which it was accounted.
    """

    workload: Workload
    stage: Stage
    target: Target
    profile: Profile
    names: Names
    link_bytes: int
    planned_in: float
    counts: Mapping[str, int]
    training: Training
    execution: Execution

    @cached_property
    def by_optimizer(self) -> tuple[OptimizerNeed, ...]:
        """What the stage needs of the fullest tile under other optimizers; nothing where nothing is trained."""
        if self.workload.optimizer is None:
            return ()

        def trace(training: Training) -> Block:
            work = replace(self.workload, optimizer=training.optimizer)
            return block_of(work, self.stage, training.precision, training.micro_batches)

        return by_optimizer(trace, self.training, self.execution, self.profile.memory)

    @property
    def settings(self) -> dict[str, str]:
        """What was accounted and how, in words by name."""
        work = self.workload
        own = {"workload": work.name, "stage": self.stage.name, "micro_batch": work.rows, "layers": work.recompute}
        return settings_in_words({**own, **self.training.record(), **self.execution.record()})

    @cached_property
    def cycles_per_micro_batch(self) -> int:
        """Cycles of a micro-batch on the tiles and its links, without the host."""
        return self._on_tiles(True) + self.cycles_of_links

    @cached_property
    def cycles_of_update(self) -> int:
        """Cycles of the update alone, without its micro-batches and the host."""
        return self._on_tiles(False)

    @cached_property
    def cycles_of_host(self) -> int:
        """Cycles of an update in which the host sends or receives."""
        return sum(step.cycles for step in self.profile.steps if step.kind == "stream")

    @cached_property
    def cycles_forward(self) -> int:
        """Cycles of a micro-batch's first pass forward; what is made again is backward's, taken as long [model]."""
        links = self.cycles_of_links // 2
        count = self.workload.micro_batches
        steps = [step for step in self.profile.steps if step.kind != "stream" and step.count % count == 0]
        forward = sum(step.cycles for step in steps if self._roles(step.operations) == {"forward"}) // count
        return links + (forward // 2 if self.workload.recompute == "layers" else forward)

    @cached_property
    def cycles_of_links(self) -> int:
        """Cycles in which a micro-batch's activations and gradients pass the links, both ways at once."""
        return 0 if not self.link_bytes else self.target.transfer_cycles(self.link_bytes, self.target.link_bandwidth)

    def _on_tiles(self, of_micro_batch: bool) -> int:
        count = self.workload.micro_batches
        steps = [step for step in self.profile.steps if step.kind != "stream"]
        if count > 1:
            # Whatever runs in the loop runs a multiple of its rounds, and what comes after it runs once.
            found = [step for step in steps if (step.count % count == 0) is of_micro_batch]
            return sum(step.cycles for step in found) // (count if of_micro_batch else 1)
        of_update = [step for step in steps if self._updates(step.operations)]
        total = sum(step.cycles for step in of_update)
        return sum(step.cycles for step in steps) - total if of_micro_batch else total

    def _updates(self, operations: tuple[str, ...]) -> bool:
        """Whether all that a step does is the optimizer's."""
        roles = self._roles(operations)
        return bool(roles) and roles <= {"optimizer", "update"}

    def _roles(self, operations: tuple[str, ...]) -> set[str]:
        labels = [name.partition(":")[0] for name in operations]
        return {self.names[label][0] for label in labels if label in self.names}

    @property
    def update_overhead(self) -> float:
        """Seconds of an update that no model here explains: those that were given, else fitted to the run."""
        return self.profile.update_overhead

    @property
    def overhead_words(self) -> str:
        """Whose they are."""
        if self.execution.update_overhead is not None:
            return "given"
        return f"fitted to {self.workload.overhead_run}" if self.workload.update_overhead else "none"

    @property
    def seconds_per_micro_batch(self) -> float:
        """Seconds of a micro-batch."""
        return self.target.seconds(self.cycles_per_micro_batch)

    @property
    def seconds_per_update(self) -> float:
        """Seconds of an update of the pipeline, whose slowest stage this is taken for.

        (G + K - 1) micro-batches of K chips, the update, the host and what is fitted to the run.
        """
        return self.seconds_of(self.workload.micro_batches)

    def seconds_of(self, micro_batches: int) -> float:
        """The same for an update of another number of micro-batches."""
        work = self.workload
        rounds = micro_batches + work.pipeline - 1
        host = self.cycles_of_host * micro_batches / work.micro_batches
        tiles = rounds * self.cycles_per_micro_batch + self.cycles_of_update + host
        return self.target.seconds(tiles) + self.update_overhead

    @property
    def samples_per_second(self) -> float:
        """Of one replica."""
        return self.rate_of(self.workload.micro_batches)

    def rate_of(self, micro_batches: int) -> float:
        """Samples a second of one replica with another number of micro-batches an update."""
        return self.workload.samples * micro_batches / self.seconds_of(micro_batches)

    @property
    def energy(self) -> Energy:
        """Of a micro-batch, by its share of an update's time: seconds times published power, and parts by counts.

        It warns with `Unvalidated` of a power that nobody measured: GC2's.
        """
        if why := UNVALIDATED_POWER.get(self.target.name):
            warnings.warn(why, Unvalidated, stacklevel=2)
        return self.modelled_energy

    @property
    def modelled_energy(self) -> Energy:
        """The same without a warning."""
        work, profile = self.workload, self.profile
        counts = {
            **self.counts,
            "exchange": profile.exchanged // work.micro_batches,
            "links": self.link_bytes,
            "streaming": (profile.loaded + profile.stored) // work.micro_batches,
        }
        seconds = self.seconds_per_update / work.micro_batches
        return energy_of(seconds, self.target.power, counts, dict(self.target.energy))

    @property
    def joules_per_sample(self) -> tuple[float, float]:
        """Of all chips of a replica, which take as long as this one, least and most."""
        work, (least, most) = self.workload, self.target.power
        share = self.seconds_per_update / work.micro_batches * work.pipeline / work.samples
        return least * share, most * share

    @property
    def measured(self) -> Measured | None:
        """What was measured of this stage, chip and micro-batch; None: nothing, as of a chip with other figures."""
        if self.target.changes.keys() - OF_NO_CYCLE:
            return None
        number = self.workload.stages.index(self.stage) + 1
        for each in self.workload.measured:
            if (each.target, each.stage, each.rows) == (self.target.name, number, self.workload.rows):
                return each
        return None

    @property
    def ratio(self) -> tuple[float, float] | None:
        """Modelled over measured, at least and at most; None: nothing was measured."""
        if (found := self.measured) is None:
            return None
        low, high = found.cycles
        return self.cycles_per_micro_batch / high, self.cycles_per_micro_batch / low

    def to_json(self) -> dict[str, Any]:
        """The figures under fixed names."""
        memory, found = self.profile.memory, self.measured
        return {
            "workload": self.workload.name,
            "stage": self.stage.name,
            "target": self.target.name,
            "precision": self.workload.precision,
            "recompute": self.workload.recompute,
            "micro_batch": self.workload.rows,
            "micro_batches": self.workload.micro_batches,
            "cycles_per_micro_batch": self.cycles_per_micro_batch,
            "cycles_of_update": self.cycles_of_update,
            "cycles_of_host": self.cycles_of_host,
            "cycles_of_links": self.cycles_of_links,
            "seconds_per_micro_batch": self.seconds_per_micro_batch,
            "seconds_per_update": self.seconds_per_update,
            "update_overhead": self.update_overhead,
            "update_overhead_from": self.overhead_words,
            "samples_per_second": self.samples_per_second,
            "joules_per_sample": list(self.joules_per_sample),
            "picojoules_of_micro_batch": dict(self.modelled_energy.parts),
            "power": list(self.target.power),
            "power_unvalidated": UNVALIDATED_POWER.get(self.target.name),
            "clock": self.target.clock,
            "chips": self.workload.pipeline,
            "samples_per_micro_batch": self.workload.samples,
            "bytes_of_fullest_tile": memory.peak_bytes,
            "bytes_of_mean_tile": float(memory.peak.mean()),
            "bytes_of_a_tile": memory.available,
            "fits": memory.peak_bytes <= memory.available,
            "measured_cycles": None if found is None else list(found.cycles),
            "measured_source": None if found is None else found.source,
            "ratio": None if self.ratio is None else list(self.ratio),
            "planned_in": self.planned_in,
            "without_gaps": int(memory.without_gaps[memory.tile]),
            "always_live": int(memory.always_live[memory.tile]),
            "not_always_live": int(memory.not_always_live[memory.tile]),
            "categories": memory.categories,
            "by_optimizer": [need._asdict() for need in self.by_optimizer],
            "operations": [each._asdict() for each in by_operation(self.profile)],
            "layers": [each._asdict() for each in by_layer(self.profile)],
            "roofline": [each.to_json() for each in roofline(self.profile)],
            "host": [each._asdict() for each in self.profile.host],
        }


def account(
    workload: Workload,
    stage: int | None = None,
    *,
    target: Target | str | None = None,
    precision: Precision | str | None = None,
    micro_batches: int | None = None,
    recompute: str | None = None,
    update_overhead: float | None = None,
    allow_out_of_memory: bool = True,
) -> StageAccount:
    """The account of a stage, from shapes alone; what is None is as published.

    Args:
        workload: such as `bert_large()`.
        stage: its number, from 1; None: the slowest that is published.
        target: the chip, or its name.
        precision: of all of it.
        micro_batches: of an update.
        recompute: "layers" or "none".
        update_overhead: seconds of an update that no model here explains, see `Execution`; None: the workload's.
        allow_out_of_memory: account what does not fit too.

    Raises:
        ValueError: a stage, precision or way that there is not.
        OutOfTileMemory: it does not fit, where that is not allowed.
    """
    expect(Workload, workload=workload)
    began, chosen = time.perf_counter(), workload.stage(stage)
    changes: dict[str, Any] = {"recompute": recompute, "micro_batches": micro_batches}
    changes["target"] = target.name if isinstance(target, Target) else target
    changes["precision"] = precision.name or precision.words() if isinstance(precision, Precision) else precision
    if micro_batches is not None:
        integer("micro_batches", micro_batches, 1)
    of_training = {
        "micro_batches are of updates": micro_batches, "recomputation is for gradients": recompute,
        "update_overhead is of updates": update_overhead or None,  # 0 leaves out what there is none of
    }  # fmt: skip
    if workload.optimizer is None and (said := [what for what, value in of_training.items() if value is not None]):
        raise ValueError(f"{workload.name} is not trained: {said[0]}")
    workload = workload.changed(**{name: value for name, value in changes.items() if value is not None})
    chip = target if isinstance(target, Target) else Target(workload.target)
    meant = Precision.parse(precision if isinstance(precision, Precision) else workload.precision)
    passed = _link_bytes(workload, chosen, meant)
    if passed and not chip.link_bandwidth:
        raise UnsupportedByTarget(
            f"{chip.name} has no links, and {workload.name} is a pipeline of {workload.pipeline} chips: another target="
        )
    count = workload.micro_batches if workload.optimizer is not None else 1
    ideal = block_of(workload, chosen, meant, count)
    training = Training(
        optimizer=workload.optimizer or Sgd(1.0), precision=meant, micro_batches=count, family=chip.family,
        adder=chip.adder,
    )  # fmt: skip
    execution = Execution(target=chip, recompute=workload.lean_norms, update_overhead=update_overhead)
    planned = planned_step(ideal, training, execution, allow_out_of_memory=allow_out_of_memory)
    made = bills.bill(
        planned.block, chip, planned.accumulations, training.control, share=True, parallel=not allow_out_of_memory,
        allow_out_of_memory=allow_out_of_memory,
    )  # fmt: skip
    names = {equation.name: (equation.role, equation.op) for equation in equations_of(planned.block)}
    overhead = workload.update_overhead if update_overhead is None else update_overhead
    profile = replace(made.profile(None), update_overhead=overhead)
    counts = {name: number // count for name, number in counted(planned.block).items()}
    took = time.perf_counter() - began
    return StageAccount(workload, chosen, chip, profile, names, passed, took, counts, training, execution)


def _link_bytes(workload: Workload, stage: Stage, precision: Precision) -> int:
    """Bytes that a stage sends in a micro-batch: activations and gradients; as many arrive."""
    if workload.between is None or len(stage.parts) == len(workload.parts):
        return 0
    shape, total = workload.between, 0
    for run in workload.parts_of(stage):
        if run[-1] is not workload.parts[-1]:
            total += Type(shape, precision.operands).nbytes
        if run[0] is not workload.parts[0]:
            total += Type(shape, precision.gradients).nbytes
    return total
