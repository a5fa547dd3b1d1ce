"""A workload on a system: its slowest stage planned, the rest by forms; modelled beside what was logged."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ipu_core.chip.collectives import all_reduce
from ipu_core.chip.system import System, read_system
from ipu_core.errors import UnsupportedByTarget
from ipu_core.ir.block import Type
from ipu_core.ir.precision.precision import Precision
from ipu_core.system.account import SystemProfile, check_chips
from ipu_core.system.schedule import SCHEDULES, Schedule
from ipu_core.workloads.catalogue import workload as published
from ipu_core.workloads.cuts import cut, parameters_of
from ipu_core.workloads.logs import LoggedRun, logged_runs
from ipu_core.workloads.published import Stage, Workload
from ipu_core.workloads.stage_account import OF_NO_CYCLE, StageAccount, account
from lowprec import Collective, FloatFormat
from lowprec.checks import expect, integer, shown


@dataclass(frozen=True, eq=False)
class SystemRun:
    """A workload's update on a system.

    Attributes:
        stage: the account of the slowest stage.
        profile: of the whole.
        collective: what was asked for; None: the usual one.
        planned_in: seconds that it took.
    """

    stage: StageAccount
    profile: SystemProfile
    collective: Collective | str | None
    planned_in: float

    @property
    def workload(self) -> Workload:
        """With the settings that were accounted."""
        return self.stage.workload

    @property
    def logged(self) -> tuple[LoggedRun, ...]:
        """Runs of the logs that this account can stand beside: with these numbers, and settings as they ran."""
        found = self.logged_of_numbers
        return () if found and self.unlike_logged else found

    @property
    def unlike_logged(self) -> tuple[str, ...]:
        """Settings of the published runs that this account does not have, in words."""
        work, profile = self.workload, self.profile
        ran = published(work.name, target=profile.system.target.name, stages=profile.stages)
        settings = (
            ("a grouped schedule", profile.schedule.name == "grouped" or profile.stages == 1),
            (f"chips as published: {ran.target}", not profile.system.target.changes.keys() - OF_NO_CYCLE),
            (f"precision {ran.precision}", work.precision == ran.precision),
            (f"recomputation: {ran.recompute}", work.recompute == ran.recompute),
        )
        return tuple(words for words, alike in settings if not alike)

    @property
    def logged_of_numbers(self) -> tuple[LoggedRun, ...]:
        """Runs of the logs with this chip, number of chips, accumulation and global batch."""
        work, made = self.workload, self.profile
        key = (work.logged, made.system.target.name, made.chips, made.replicas, made.micro_batches)
        return tuple(
            run for run in logged_runs()
            if key == (run.workload, run.target, run.chips, run.replicas, run.micro_batches)
            and run.global_batch == made.samples_per_update
        )  # fmt: skip

    def at(
        self, system: System | None = None, *, replicas: int | None = None, micro_batches: int | None = None
    ) -> SystemProfile:
        """The same stages on another system, in other numbers: nothing is planned anew.

        Args:
            system: of the same chips; None, here and below: as it is.
            replicas: how many.
            micro_batches: of an update of one replica.

        Raises:
            ValueError: a system of other chips, or one that is too small.
        """
        where = self.profile.system if system is None else system
        expect(System, system=where)
        if where.target != self.stage.target:
            raise ValueError(f"the stage is planned for {self.stage.target.name}, and {where.name} has other chips")
        return profile_of(
            self.stage, where, self.profile.replicas if replicas is None else replicas, self.profile.schedule.name,
            collective=self.collective, overhead_from=self.profile.update_overhead_from,
            micro_batches=self.profile.micro_batches if micro_batches is None else micro_batches,
        )  # fmt: skip

    def scaling(self) -> tuple[SystemProfile, ...]:
        """1, 2, 4 and more replicas up to what the system holds, each with as many micro-batches an update."""
        most = self.profile.system.chips // self.profile.stages
        return tuple(self.at(replicas=1 << power) for power in range(most.bit_length()))

    def fits(self, run: LoggedRun) -> float:
        """The overhead in seconds with which the account would be what was logged; below 0: it is above already."""
        return run.step_ms / 1e3 - (self.profile.seconds_of_chips - self.profile.update_overhead)

    def to_json(self) -> dict[str, Any]:
        """The figures under fixed names; "logged": runs with these settings, their step and ours over it, less 1."""
        work, memory = self.workload, self.stage.profile.memory
        seconds = self.profile.seconds_per_update
        return {
            "workload": work.name, "stage": self.stage.stage.name, "precision": work.precision,
            "micro_batch": work.rows, "recompute": work.recompute,
            "cycles_per_micro_batch": self.stage.cycles_per_micro_batch,
            "cycles_of_update": self.stage.cycles_of_update,
            "stage_ratio": None if self.stage.ratio is None else list(self.stage.ratio),
            **self.profile.to_json(),
            "bytes_of_fullest_tile": memory.peak_bytes, "bytes_of_a_tile": memory.available,
            "fits": memory.peak_bytes <= memory.available,
            "logged": [
                {"run": run.words(), "step_ms": run.step_ms, "per_second": run.per_second,
                 "error": 1e3 * seconds / run.step_ms - 1, "overhead_that_fits": self.fits(run),
                 "minutes_to_train": run.minutes,
                 "modelled_minutes": self.profile.seconds_to_train(run.samples_to_target) / 60}
                for run in self.logged
            ],
            "scaling": [
                {"replicas": one.replicas, "chips": one.chips, "samples_per_second": one.samples_per_second}
                for one in self.scaling()
            ],
            "planned_in": self.planned_in,
        }  # fmt: skip


def on_system(
    workload: Workload | str,
    system: System | str,
    *,
    stages: int | None = None,
    replicas: int | None = None,
    micro_batches: int | None = None,
    global_batch: int | None = None,
    schedule: str = "grouped",
    collective: Collective | str | None = None,
    precision: Precision | str | None = None,
    recompute: str | None = None,
    update_overhead: float | None = None,
) -> SystemRun:
    """The account of a workload's update on a system; what is None is as published, but for `replicas`.

    The slowest stage is planned from shapes alone, which takes 10 to 40 seconds; all stages are taken as slow.

    Args:
        workload: such as `bert_large()`, or its name: that is it as published on the system's chips.
        system: a System, or its name and figures as of `read_system`.
        stages: chips of a replica, see `cut`.
        replicas: None: as many as the system has room for.
        micro_batches: of an update of one replica.
        global_batch: samples of an update, instead of `micro_batches`.
        schedule: one of SCHEDULES.
        collective: how the gradients are added up, of which the algorithm and the format on the wire are billed; or the
            algorithm alone, see `ipu_core.chip.collectives`, in the format of the gradients' sum.
        precision, recompute: as of `account`.
        update_overhead: seconds of an update that no model here explains; None: the workload's on its own chip, else 0.

    Raises:
        ValueError: more chips than there are, a batch that does not divide, what is never cut or not trained, no such
            workload.
        UnsupportedByTarget: several chips without links.
    """
    began = time.perf_counter()
    where = system if isinstance(system, System) else read_system(system)
    if isinstance(workload, str):
        workload = published(workload, target=where.target.name, stages=stages)
    expect(Workload, workload=workload)
    if workload.optimizer is None:
        raise ValueError(f"{workload.name} is not trained: a system's account is of updates")
    count = workload.pipeline if stages is None else stages
    copies = max(1, where.chips // integer("stages", count, 1)) if replicas is None else replicas
    _check(where, copies, count, schedule, collective)
    chip = where.target
    meant = as_scheduled(cut(workload, count), schedule)
    if global_batch is not None:
        if micro_batches is not None:
            raise ValueError("global_batch says micro_batches: give one of them")
        micro_batches = _divided(meant, copies, global_batch)
    own = workload.update_overhead if workload.target == chip.name else 0.0
    overhead = own if update_overhead is None else update_overhead
    made = account(
        meant, target=chip, precision=precision, micro_batches=micro_batches, recompute=recompute,
        update_overhead=overhead,
    )  # fmt: skip
    words = "given" if update_overhead is not None else f"fitted to {workload.overhead_run}" if own else "none"
    profile = profile_of(made, where, copies, schedule, collective=collective, overhead_from=words)
    return SystemRun(made, profile, collective, time.perf_counter() - began)


def _check(system: System, replicas: int, stages: int, schedule: str, collective: Any) -> None:
    """Refuses before anything is planned what would be refused after it."""
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise ValueError(f"there is no schedule {shown(schedule)}; there are {', '.join(SCHEDULES)}")
    check_chips(system, replicas, stages)
    if replicas * stages > 1 and not system.neighbour_bandwidth:
        words = f"the chips of {system.name} ({system.target.name}) have no links"
        raise UnsupportedByTarget(f"{words}: one chip, or another system")
    all_reduce(system, 0, replicas, stride=stages, algorithm=_algorithm(collective), members=_members(collective))


def profile_of(
    made: StageAccount,
    system: System,
    replicas: int,
    schedule: str = "grouped",
    *,
    collective: Collective | str | None = None,
    overhead_from: str | None = None,
    micro_batches: int | None = None,
) -> SystemProfile:
    """The profile of a system whose slowest stage is accounted.

    Args:
        made: of the stage.
        system, replicas, schedule, collective: as of `on_system`.
        overhead_from: words on its constant; None: the stage's own.
        micro_batches: of an update of one replica, which change no cycle of one; None: those of the account.
    """
    work, chip, stages = made.workload, made.target, made.workload.pipeline
    check_chips(system, replicas, stages)
    count = work.micro_batches if micro_batches is None else micro_batches
    share = count / work.micro_batches
    size = gradient_bytes(made, collective.wire if isinstance(collective, Collective) else None)
    forward = chip.seconds(made.cycles_forward)
    backward = made.seconds_per_micro_batch - forward
    moved = sum(each.bytes * each.runs for each in made.profile.host)
    return SystemProfile(
        system=system,
        replicas=replicas,
        schedule=Schedule(schedule, (forward,) * stages, (backward,) * stages, count),
        samples=work.samples,
        collective=all_reduce(
            system, size, replicas, stride=stages, algorithm=_algorithm(collective), members=_members(collective)
        ),
        update_seconds=chip.seconds(made.cycles_of_update),
        link_bytes=made.link_bytes,
        host_bytes=round(moved * share),
        host_seconds=chip.seconds(made.cycles_of_host * share),
        update_overhead=made.update_overhead,
        update_overhead_from=made.overhead_words if overhead_from is None else overhead_from,
    )


def _members(collective: Collective | str | None) -> int | None:
    return collective.group if isinstance(collective, Collective) else None


def _algorithm(collective: Collective | str | None) -> str | None:
    return collective.algorithm if isinstance(collective, Collective) else collective


def gradient_bytes(made: StageAccount, wire: FloatFormat | None = None) -> int:
    """Bytes of a stage's gradients in a format on the wire; None: in that of their sum."""
    count = parameters_of([part for run in made.workload.parts_of(made.stage) for part in run])
    return Type((count,), made.training.precision.gradient_sum if wire is None else wire).nbytes


def as_scheduled(workload: Workload, schedule: str) -> Workload:
    """With the stashes of each stage's place in a schedule: published ones are those of a grouped one."""
    kept = Schedule(schedule, (1.0,) * workload.pipeline, (1.0,) * workload.pipeline, 2 * workload.pipeline).stashes

    def one(stage: Stage) -> Stage:
        behind = stage.stashes // 2  # stages behind it, in a grouped schedule two stashes for each
        return Stage(stage.name, stage.parts, kept[workload.pipeline - 1 - behind])

    return workload.changed(stages=tuple(map(one, workload.stages)))


def _divided(workload: Workload, replicas: int, global_batch: int) -> int:
    """Micro-batches of an update.

    Raises:
        ValueError: they are no whole number; the nearest batch that is one is named.
    """
    one = workload.samples * replicas
    count, left = divmod(integer("global_batch", global_batch, 1), one)
    if left or not count:
        near = max(1, round(global_batch / one)) * one
        raise ValueError(
            f"a batch of {global_batch:,} is no whole number of micro-batches: {replicas} replicas take {one:,} "
            f"samples a micro-batch; global_batch={near:,} is near"
        )
    return count
