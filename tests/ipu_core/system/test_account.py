"""The account of an update on a system: its parts add up, by formulas written out anew."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ipu_core import System, Unvalidated
from ipu_core.chip.collectives import all_reduce
from ipu_core.system.account import SystemProfile
from ipu_core.system.schedule import SCHEDULES, Schedule

POD = System("bow-pod64")


def profile(system: System = POD, replicas: int = 8, stages: int = 8, schedule: str = "grouped", **more: Any) -> Any:
    """Stages of 1 and 3 ms, 96 micro-batches of 6 samples, 84 MB of gradients."""
    times = Schedule(schedule, (1e-3,) * stages, (3e-3,) * stages, 96)
    reduced = all_reduce(system, 84_000_000, max(1, min(replicas, system.chips // stages)), stride=stages)
    return SystemProfile(system, replicas, times, 6, reduced, 0.5e-3, **more)


def test_an_update_is_rounds_all_reduce_update_and_overhead() -> None:
    made = profile(update_overhead=0.15, update_overhead_from="given", host_seconds=0.01)
    rings = 2 * 7 * (15e-9 * 17 * 2 + 84e6 / 16 / (2 * 2**34 * 0.85))
    assert made.seconds_per_update == pytest.approx((96 + 7) * 4e-3 + rings + 0.5e-3 + 0.15)
    assert made.samples_per_update == 6 * 96 * 8
    assert made.samples_per_second == pytest.approx(made.samples_per_update / made.seconds_per_update)
    assert made.bubble == pytest.approx(7 / 103)
    assert made.fill_seconds == pytest.approx(7 * 4e-3)
    assert sum(seconds for _, seconds in made.parts()) == pytest.approx(made.seconds_per_update)
    assert (made.chips, made.stages, made.micro_batches, made.input_bound) == (64, 8, 96, False)
    assert made.seconds_to_train(4608) == pytest.approx(made.seconds_per_update)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_has_its_time(schedule: str) -> None:
    made = profile(schedule=schedule)
    rounds = {"grouped": 103 * 4, "1f1b": 103 * 4, "sequential": 96 * 8 * 4, "interleaved": 8 * 4 + 2 * 95 * 3}[
        schedule
    ]
    assert made.schedule.seconds == pytest.approx(rounds * 1e-3)
    assert sum(seconds for _, seconds in made.parts()) == pytest.approx(made.seconds_of_chips)


def test_what_hosts_cannot_feed_is_input_bound() -> None:
    slow = profile(dataclasses.replace(POD, host_samples_per_second=2000))
    assert slow.input_bound
    assert slow.seconds_per_update == pytest.approx(4608 / 2000)
    assert slow.samples_per_second == pytest.approx(2000)
    port = profile(host_seconds=1.0)
    assert (port.input_bound, port.seconds_per_update) == (True, 1.0)
    fast = profile(dataclasses.replace(POD, host_samples_per_second=1e6), host_seconds=0.1)
    assert not fast.input_bound
    assert fast.seconds_per_update == pytest.approx(fast.seconds_of_chips)


def test_bytes_and_joules() -> None:
    made = profile(link_bytes=1000, host_bytes=70)
    assert made.bytes_per_chip == {
        "pipeline": 96_000, "all_reduce": pytest.approx(2 * 7 / 8 * 84e6), "gateways": 0, "host": 70,
    }  # fmt: skip
    whole = 64 * 312.5 * made.seconds_per_update
    assert made.joules_per_update == (pytest.approx(whole),) * 2
    assert made.joules_per_sample[1] == pytest.approx(whole / 4608)
    two = profile(System("bow-pod128"), 16)
    assert two.bytes_per_chip["gateways"] == pytest.approx(2 * 1 / 2 * 84e6 / 8)


def test_the_json_is_what_the_figures_are() -> None:
    made = profile(update_overhead=0.1, update_overhead_from="given")
    data = made.to_json()
    assert sum(data["parts"].values()) == pytest.approx(data["seconds_per_update"])
    assert data["collective_seconds"] == made.collective.seconds
    assert (data["update_overhead"], data["update_overhead_from"]) == (0.1, "given")
    assert data["pipeline_cycles"] == 96 + 14
    assert data["stashes"] == [14, 12, 10, 8, 6, 4, 2, 0]


def test_what_is_refused_has_a_way_out() -> None:
    with pytest.raises(
        ValueError, match="9 replicas of 8 stages are 72 chips, and bow-pod64 has 64: replicas=8 at most"
    ):
        profile(replicas=9)
    with pytest.raises(ValueError, match="stages=4 at most, or a larger system"):
        profile(System("m2000"), 1, 8)
    with pytest.raises(ValueError, match="update_overhead must be 0 or more"):
        profile(update_overhead=-1.0)
    with pytest.raises(ValueError, match="samples must be 0 or more"):
        profile().seconds_to_train(-1)
    with pytest.warns(Unvalidated, match="6 replicas: the vendor's collectives are documented for powers of two"):
        profile(replicas=6)
