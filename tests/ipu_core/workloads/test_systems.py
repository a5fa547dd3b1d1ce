"""Workloads on systems: what is planned, cut and printed; the logged runs beside."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from typing import Any

import pytest

from ipu_core import System, Target, __main__, workloads
from ipu_core.errors import UnsupportedByTarget
from ipu_core.figures.systems import _planned
from ipu_core.system.account import SystemProfile
from ipu_core.system.schedule import Schedule
from ipu_core.workloads import catalogue, system_command
from ipu_core.workloads.cuts import cut, parameters_of
from ipu_core.workloads.logs import error_words, logged_runs
from ipu_core.workloads.system_page import to_html
from ipu_core.workloads.system_run import SystemRun, gradient_bytes, profile_of
from lowprec import Collective
from tests.ipu_core.workloads.test_workloads import small

SMALL = workloads.bert_base(micro_batch=1, places=32)


@pytest.fixture(scope="module")
def made() -> SystemRun:
    return workloads.on_system(SMALL, "bow-pod16", micro_batches=8, update_overhead=0.25)


def test_an_update_is_the_planned_stage_in_its_schedule(made: SystemRun) -> None:
    stage, whole = workloads.account(SMALL, micro_batches=8), made.profile
    assert (whole.replicas, whole.stages, whole.micro_batches) == (4, 4, 8)
    assert whole.seconds_per_micro_batch == pytest.approx(stage.seconds_per_micro_batch)
    rounds = (8 + 3) * stage.cycles_per_micro_batch + stage.cycles_of_update
    wanted = rounds / 1.85e9 + whole.collective.seconds + 0.25
    assert whole.seconds_per_update == pytest.approx(wanted)
    # three layers of 12 width^2 + 13 width in FP16, as the running mean is
    assert gradient_bytes(made.stage) == whole.collective.size == 2 * 3 * (12 * 768**2 + 13 * 768)
    assert (whole.update_overhead, whole.update_overhead_from) == (0.25, "given")
    assert whole.link_bytes == stage.link_bytes == 2 * 2 * 32 * 768
    forward, backward = whole.schedule.forward[0], whole.schedule.backward[0]
    assert 1.5 < backward / forward < 4  # with the layers made again, about three times as long


def test_a_stage_alone_on_a_system_is_its_own_account() -> None:
    one = workloads.on_system(SMALL, "bow-pod16", micro_batches=8, replicas=1).profile
    stage = workloads.account(SMALL, micro_batches=8)
    host = stage.target.seconds(stage.cycles_of_host)
    assert one.seconds_per_update == pytest.approx(stage.seconds_per_update - host)
    assert one.host_seconds == pytest.approx(host)
    assert one.collective.seconds == 0


def test_a_collective_says_the_format_on_the_wire(made: SystemRun) -> None:
    wide = profile_of(made.stage, made.profile.system, 4, collective=Collective("ring", wire="float32")).collective
    assert (wide.algorithm, wide.size) == ("ring", 2 * made.profile.collective.size)
    grouped = Collective("two_level", group=2, wire="float16")
    assert profile_of(made.stage, System("bow-pod16"), 4, collective=grouped).collective.algorithm == "two_level"


def test_fewer_stashes_take_less_memory() -> None:
    def peak(schedule: str) -> int:
        run = workloads.on_system(SMALL, "bow-pod16", micro_batches=2, schedule=schedule)
        return run.stage.profile.memory.peak_bytes

    assert peak("sequential") < peak("interleaved") < peak("grouped")


def test_a_batch_is_divided_or_refused_with_one_that_is_near() -> None:
    run = workloads.on_system(SMALL, "bow-pod16", global_batch=32)
    assert (run.profile.micro_batches, run.profile.samples_per_update) == (4, 32)
    with pytest.raises(
        ValueError, match=r"a batch of 30 is no whole number .* 4 replicas take 8 samples .*=32 is near"
    ):
        workloads.on_system(SMALL, "bow-pod16", global_batch=30)
    with pytest.raises(ValueError, match="global_batch says micro_batches"):
        workloads.on_system(SMALL, "bow-pod16", global_batch=32, micro_batches=4)


def test_what_is_refused() -> None:
    with pytest.raises(
        ValueError, match="5 replicas of 4 stages are 20 chips, and bow-pod16 has 16: replicas=4 at most"
    ):
        workloads.on_system(SMALL, "bow-pod16", replicas=5)
    with pytest.raises(ValueError, match="wavenet is not trained"):
        workloads.on_system(workloads.wavenet(), "c2")
    with pytest.raises(ValueError, match="resnet50 is never cut: it is one chip a replica, stages=1"):
        workloads.on_system(workloads.resnet50(), "pod16", stages=2)
    with pytest.raises(UnsupportedByTarget, match="have no links: one chip, or another system"):
        workloads.on_system(SMALL, System("c600", chips=4))
    with pytest.raises(ValueError, match="no schedule 'zigzag'"):
        workloads.on_system(SMALL, "bow-pod16", schedule="zigzag")
    with pytest.raises(ValueError, match="no algorithm 'star'; there are ring"):
        workloads.on_system(SMALL, "bow-pod16", collective="star")
    with pytest.raises(ValueError, match="unknown system 'pod17'"):
        workloads.on_system(SMALL, "pod17")


def test_cuts() -> None:
    bert = workloads.bert_large()
    assert cut(bert, 8) is bert
    four = cut(bert, 4)
    names = [name for stage in four.stages for name in stage.parts]
    assert sorted(names) == sorted(part.name for part in bert.parts)
    assert four.stages[0].name == "7 attention, 7 feed_forward"
    ends = next(stage for stage in four.stages if "embeddings" in stage.parts)
    assert "head" in ends.parts  # which shares its table
    assert ends.stashes == 2 * 3
    # by hand: 24 layers and the ends over four chips, no chip with more than 7 layers
    sizes = [parameters_of([part for part in bert.parts if part.name in stage.parts]) for stage in four.stages]
    assert max(sizes) < 7.1 * (12 * 1024**2 + 13 * 1024)
    assert sum(sizes) == parameters_of(bert.parts)
    whole = cut(bert, 1)
    assert (whole.pipeline, len(whole.stages[0].parts)) == (1, len(bert.parts))
    with pytest.raises(ValueError, match="has 2 parts that can be cut: stages=2 at most"):
        cut(small("none").changed(parts=small("none").parts[1:3]), 5)


def test_published_settings_by_chip() -> None:
    v2, v1 = workloads.workload("bert-large"), workloads.workload("bert-large", target="gc200")
    assert (v2.rows, v2.target, v1.rows, v1.target, v1.micro_batches) == (3, "bow", 2, "gc200", 96)
    few = workloads.workload("bert-large", target="gc200", stages=4)
    assert (few.pipeline, few.micro_batches) == (4, 192)
    assert "streamed" in few.precision
    assert workloads.workload("bert-large", target="gc2").update_overhead == 0
    assert workloads.workload("bert-large", stages=4).pipeline == 4
    assert {work.logged for work in (v1, v2)} == {"bert"}


def test_a_constant_stays_with_the_chip_that_it_was_fitted_on() -> None:
    fitted = SMALL.changed(update_overhead=0.1, overhead_run="a run on Bow")
    own = workloads.on_system(fitted, "bow-pod16", micro_batches=2).profile
    assert (own.update_overhead, own.update_overhead_from) == (0.1, "fitted to a run on Bow")
    other = workloads.on_system(fitted, "pod16", micro_batches=2).profile
    assert (other.update_overhead, other.update_overhead_from) == (0.0, "none")


def logged(made: SystemRun, **changes: Any) -> SystemRun:
    profile = made.profile
    system = System("bow-pod64")
    changes = {"replicas": 8, "samples": 6, "system": system, **changes}
    schedule = type(profile.schedule)("grouped", (1e-3,) * 8, (2e-3,) * 8, 96)
    new = SystemProfile(**{
        **{name: getattr(profile, name) for name in profile.__dataclass_fields__}, "schedule": schedule, **changes,
    })  # fmt: skip
    work = made.workload.changed(logged="bert")
    stage = type(made.stage)(**{
        **{name: getattr(made.stage, name) for name in made.stage.__dataclass_fields__}, "workload": work,
    })  # fmt: skip
    return SystemRun(stage, new, None, 0.0)


def test_runs_of_the_logs_with_the_same_settings_are_found(made: SystemRun) -> None:
    (run,) = logged(made).logged
    assert (run.round, run.chips, run.step_ms) == ("v2.0", 64, 621.23)
    assert logged(made, samples=7).logged == ()
    assert logged(made, replicas=4).logged == ()
    found = logged(made)
    (row,) = found.to_json()["logged"]
    assert row["error"] == pytest.approx(found.profile.seconds_per_update / 0.62123 - 1)
    assert found.profile.seconds_per_update - found.profile.update_overhead + row[
        "overhead_that_fits"
    ] == pytest.approx(0.62123)


def test_a_run_stands_beside_an_account_of_its_own_settings_alone(made: SystemRun) -> None:
    found = logged(made)
    assert found.unlike_logged == ()
    slow = System("bow-pod64", clock=1.8e9)
    other = {
        "a grouped schedule": replace(
            found, profile=replace(found.profile, schedule=replace(found.profile.schedule, name="interleaved"))
        ),
        "chips as published: bow": replace(
            found, stage=replace(found.stage, target=slow.target), profile=replace(found.profile, system=slow)
        ),
        f"precision {SMALL.precision}": replace(
            found, stage=replace(found.stage, workload=found.workload.changed(precision="fp32.32"))
        ),
        "recomputation: layers": replace(
            found, stage=replace(found.stage, workload=found.workload.changed(recompute="none"))
        ),
    }
    for words, run in other.items():
        assert run.logged == ()
        assert run.to_json()["logged"] == []
        assert run.unlike_logged == (words,)
        told = system_command.words(run)
        assert (
            f"not beside MLPerf v2.0, 64 Bow chips, of as many chips and micro-batches, which ran with {words}" in told
        )
        assert "621.23" not in told
        assert "Beside what was logged" not in to_html(run)
    assert "an update, ms, beside the run with these settings\n" in system_command.words(found)
    assert replace(found, profile=replace(found.profile, system=System("bow-pod64", power=100.0))).unlike_logged == ()
    # one chip a replica has no order of stages
    assert (
        "a grouped schedule"
        not in replace(
            found, profile=replace(found.profile, schedule=Schedule("sequential", (1.0,), (1.0,), 8))
        ).unlike_logged
    )


@pytest.mark.parametrize(
    ("error", "digits", "words"),
    [
        (-1e-5, 1, "0.0 %"),
        (1e-5, 1, "0.0 %"),
        (0.0, 0, "0 %"),
        (-0.004, 0, "0 %"),
        (-0.0006, 1, "-0.1 %"),
        (0.2, 1, "+20.0 %"),
    ],
)
def test_an_error_that_rounds_to_nothing_has_no_sign(error: float, digits: int, words: str) -> None:
    assert error_words(error, digits) == words


def test_logged_batches_are_what_ran() -> None:
    for run in logged_runs():
        rows = {"bert": 6 if run.round == "v2.0" else 4}.get(run.workload, 20)
        if (run.round, run.workload, run.chips) == ("v2.0", "resnet", 16):
            rows = 22
        assert run.global_batch == run.replicas * run.micro_batches * rows


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue.WORKLOADS, "bert-base", lambda **_: SMALL)
    say = ["profile", "bert-base", "--system", "bow-pod16"]
    options = [
        "--replicas",
        "2",
        "--micro-batches",
        "4",
        "--schedule",
        "interleaved",
        "--collective",
        "ring/wire=float32",
    ]
    assert __main__.main([*say, *options, "--update-overhead", "0", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    fixed = {"seconds_per_update", "samples_per_second", "cycles_per_micro_batch", "bubble", "collective_seconds",
             "bytes_per_chip", "update_overhead", "update_overhead_from", "joules_per_sample"}  # fmt: skip
    assert fixed <= data.keys()
    assert (data["replicas"], data["micro_batches"], data["schedule"], data["collective"]) == (
        2,
        4,
        "interleaved",
        "ring",
    )
    assert data["update_overhead"] == 0
    assert (
        __main__.main(["profile", "bert-base", "--system", "bow-pod64/chips=8/clock=1e9", "--micro-batches", "4"]) == 0
    )
    printed = capsys.readouterr().out
    assert "2 replicas of 4 stages on bow-pod64, 8 chips of bow with clock 1000000000.0" in printed
    assert __main__.main([*say, "--micro-batches", "4", "--host-samples-per-second", "10"]) == 0
    printed = capsys.readouterr().out
    assert "input-bound: the hosts take 3,200.000 ms to feed an update" in printed
    assert "nothing is logged with these settings" in printed
    assert "fill and flush, 3 rounds" in printed


def test_the_command_lists_what_fits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue.WORKLOADS, "bert-base", lambda **_: SMALL)
    say = ["profile", "bert-base", "--system", "m2000", "--configurations", "--global-batch", "16"]
    assert __main__.main([*say, "--stages", "4", "--micro-batch", "1"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == ["planning 1 replicas of 4 stages, micro-batch 1"]
    assert "an update, the fastest that fits first" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bert-large", "--stages", "8"], "--stages is of many chips: --system says which"),
        (["bert-large", "--schedule", "grouped"], "--pipeline-schedule is of many chips"),
        (["bert-large", "--system", "pod64", "--configurations"], "--configurations are of a batch: --global-batch"),
        (["bert-large", "--system", "pod64", "--configurations", "--replicas", "2"], "--replicas is not for"),
        (["bert-large", "--configurations"], "--configurations is of many chips"),
        (["bert-large", "--system", "pod64", "--target", "bow"], "--target is of one chip, which --system says"),
        (["bert-large", "--system", "pod63"], "unknown system 'pod63'"),
        (["bert-large", "--system", "pod64/chips=many"], "pod64/chips=many: chips must be an integer, not 'many'"),
        (
            ["bert-large", "--target", "pod16/chips=8"],
            "--target is of one chip, and pod16/chips=8 is a system: --system",
        ),
        (["bert-large", "--system", "bow-pod16", "--replicas", "4"], "replicas=2 at most, or a larger system"),
        (["mlp", "--system", "pod64"], "--system is for workloads"),
    ],
)
def test_the_command_refuses(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["profile", *words]) == 2
    assert said in capsys.readouterr().err


def test_one_chip_is_a_system_too() -> None:
    whole = workloads.on_system(
        small("none").changed(pipeline=1, stages=cut(small("none"), 1).stages), System(Target("gc200"))
    )
    assert (whole.profile.chips, whole.profile.collective.seconds, whole.profile.bubble) == (1, 0, 0)


def test_configurations_are_those_that_divide_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(micro_batch: int = 1, **_: Any) -> Any:
        return workloads.bert_base(micro_batch=micro_batch, places=32)

    monkeypatch.setitem(catalogue.WORKLOADS, "bert-base", tiny)
    told: list[str] = []
    found = workloads.configurations(
        "bert-base", "m2000", global_batch=16, stages=(2, 3, 4), micro_batch=(1, 3, 4), most=3, progress=told.append
    )
    ways = {(one.profile.stages, one.profile.replicas, one.micro_batch, one.profile.micro_batches) for one in found}
    assert ways == {(4, 1, 1, 8), (2, 2, 1, 4), (4, 1, 4, 2)}  # the nearest to 4 stages of 1 row
    assert len(told) == len(found) == 3
    seconds = [one.profile.seconds_per_update for one in found if one.fits]
    assert seconds == sorted(seconds)
    assert all(one.profile.samples_per_update == 16 for one in found)
    why = {(stages, rows): words for stages, rows, words in found.left_out}
    assert why[3, 1] == "4 chips are no whole number of replicas"
    assert why[2, 3] == "2 replicas take 12 samples a micro-batch"
    assert why[2, 4] == "3 are planned (most=)"
    assert "not planned: 2 stages, micro-batch 4" in str(found)
    with pytest.raises(ValueError, match="no way to train bert-base on m2000 with a batch of 7: 4 stages"):
        workloads.configurations("bert-base", "m2000", global_batch=7, stages=(4,), micro_batch=(1,))


def test_a_workload_may_be_named_or_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue.WORKLOADS, "bert-base", lambda **_: SMALL)
    given, named = (workloads.on_system(one, "bow-pod16", micro_batches=2) for one in (SMALL, "bert-base"))
    assert named.profile == given.profile
    (one,) = workloads.configurations(SMALL, "m2000", global_batch=16, stages=(4,))
    (other,) = workloads.configurations("bert-base", "m2000", global_batch=16, stages=(4,), micro_batch=(1,))
    assert (one.micro_batch, one.profile) == (1, other.profile)
    assert len(workloads.configurations(SMALL, "m2000", global_batch=16, stages=(4,), micro_batch=(1,))) == 1
    with pytest.raises(ValueError, match="a Workload has its micro-batch, 1: micro_batch= is for a name, as 'bert-bas"):
        workloads.configurations(SMALL, "m2000", global_batch=16, micro_batch=(2,))
    for call in (workloads.on_system, workloads.configurations):
        with pytest.raises(ValueError, match="there is no workload 'bert-huge'; there are bert-large"):
            call("bert-huge", "m2000", global_batch=16)
        with pytest.raises(TypeError, match="workload must be a Workload"):
            call(3, "m2000", global_batch=16)


def test_what_cannot_fit_is_not_planned() -> None:
    with pytest.raises(ValueError, match="at least 1,345 MB of memory, and a chip has 941"):
        workloads.configurations("bert-large", "m2000", global_batch=8, stages=(1,), micro_batch=(1,))


def error(name: str, system: str, run: str, **settings: Any) -> float:
    """A planned update over the logged one, less 1."""
    where = System(system)
    key = (name, where.target.name, settings.pop("stages", None), settings.pop("micro_batch", None))
    gc.collect()  # gigabytes of the plan before, which nobody collects while tests run
    profile = profile_of(_planned(*key), where, **settings)
    (logged,) = (
        each for each in logged_runs() if each.words() == run and each.workload == _planned(*key).workload.logged
    )
    return 1e3 * profile.seconds_per_update / logged.step_ms - 1


@pytest.mark.slow  # beside logs: the planner and the account that it takes a large stage through are those above
def test_bert_on_16_and_128_bow_chips_with_the_constant_of_64() -> None:
    """The issue's bounds: 3 and 6 %; on 64 chips the constant is fitted."""
    assert abs(error("bert-large", "bow-pod64", "MLPerf v2.0, 64 Bow chips", replicas=8, micro_batches=96)) < 0.005
    assert abs(error("bert-large", "bow-pod128", "MLPerf v2.0, 128 Bow chips", replicas=16, micro_batches=64)) < 0.03
    assert abs(error("bert-large", "bow-pod16", "MLPerf v2.0, 16 Bow chips", replicas=2, micro_batches=256)) < 0.06


@pytest.mark.slow
def test_other_runs_with_the_constant_of_64_chips() -> None:
    """Within 10 %, but for ResNet-50 with 22 images, of which fewer tiles share the sums of a weight's gradient."""
    bert: dict[str, Any] = {"name": "bert-large", "micro_batches": 96}
    assert abs(error(system="pod64", run="MLPerf v1.1, 64 GC200 chips", replicas=8, **bert)) < 0.005
    assert abs(error(system="pod128", run="MLPerf v1.1, 128 GC200 chips", replicas=16, **bert)) < 0.1
    few = {"stages": 4, "replicas": 4, "micro_batches": 192}
    assert abs(error("bert-large", "pod16", "MLPerf v1.1, 16 GC200 chips", **few)) < 0.1
    assert abs(error("resnet50", "bow-pod64", "MLPerf v2.0, 64 Bow chips", replicas=64, micro_batches=4)) < 0.02
    assert abs(error("resnet50", "bow-pod128", "MLPerf v2.0, 128 Bow chips", replicas=128, micro_batches=2)) < 0.08
    assert abs(error("resnet50", "pod16", "MLPerf v1.1, 16 GC200 chips", replicas=16, micro_batches=10)) < 0.06
    assert abs(error("resnet50", "pod64", "MLPerf v1.1, 64 GC200 chips", replicas=64, micro_batches=3)) < 0.005
    off = error("resnet50", "bow-pod16", "MLPerf v2.0, 16 Bow chips", replicas=16, micro_batches=10, micro_batch=22)
    assert 0.1 < off < 0.2
