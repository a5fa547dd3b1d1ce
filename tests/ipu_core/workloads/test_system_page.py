"""The page and the trace of a workload on a system: every pass is drawn, and what is drawn is as long as it takes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ipu_core import System, __main__, workloads
from ipu_core.system.page import MOST, stretches, to_chrome
from ipu_core.workloads import catalogue
from ipu_core.workloads.system_page import to_html
from ipu_core.workloads.system_run import SystemRun

SMALL = workloads.bert_base(micro_batch=1, places=32)


@pytest.fixture(scope="module")
def made() -> SystemRun:
    return workloads.on_system(SMALL, "bow-pod16", micro_batches=6, update_overhead=2e-3)


def test_lanes_end_when_the_update_does(made: SystemRun) -> None:
    whole = made.profile
    shown = list(stretches(whole))
    passes = [one for one in shown if one.kind in ("forward", "backward")]
    assert len(passes) == 2 * 6 * 4
    for lane in range(4):
        own = [one for one in shown if one.lane == lane]
        assert max(one.end for one in own) == pytest.approx(whole.seconds_per_update)
        worked = sum(one.end - one.begin for one in own if one in passes)
        assert worked == pytest.approx(6 * whole.seconds_per_micro_batch)
    (host,) = (one for one in shown if one.lane == 4)
    assert host.end == whole.host_seconds


def test_the_trace_has_a_row_for_each_stage_and_the_host(made: SystemRun) -> None:
    data = to_chrome(made.profile)
    names = [event["args"]["name"] for event in data["traceEvents"] if event["ph"] == "M"]
    assert names == ["stage 1", "stage 2", "stage 3", "stage 4", "host"]
    ends = [event["ts"] + event["dur"] for event in data["traceEvents"] if event["ph"] == "X"]
    assert max(ends) == pytest.approx(1e6 * made.profile.seconds_per_update)


def test_the_page_says_and_carries_all(made: SystemRun) -> None:
    text = to_html(made)
    assert text.count('class="forward"') == 1 + 6 * 4  # the key, and a box each
    carried = json.loads(text.partition('id="system">')[2].partition("</script>")[0])
    assert carried["seconds_per_update"] == made.profile.seconds_per_update
    assert [row["replicas"] for row in carried["scaling"]] == [1, 2, 4]
    many = SystemRun(made.stage, made.at(micro_batches=MOST + 1), None, 0.0)
    assert f"Drawn with {MOST} micro-batches of {MOST + 1}" in to_html(many)


def test_nothing_is_planned_anew_for_other_numbers(made: SystemRun) -> None:
    again = workloads.on_system(SMALL, "bow-pod64", replicas=16, micro_batches=3, update_overhead=2e-3).profile
    moved = made.at(System("bow-pod64"), replicas=16, micro_batches=3)
    assert moved.seconds_per_update == pytest.approx(again.seconds_per_update, rel=1e-3)
    assert moved.host_bytes == pytest.approx(again.host_bytes, rel=0.02)
    assert (moved.system, moved.collective) == (again.system, again.collective)
    rates = [one.samples_per_second for one in made.scaling()]
    assert rates == sorted(rates)
    assert [one.chips for one in made.scaling()] == [4, 8, 16]
    with pytest.raises(ValueError, match="the stage is planned for bow, and pod64 has other chips"):
        made.at(System("pod64"))
    with pytest.raises(ValueError, match="replicas=4 at most"):
        made.at(replicas=8)


def test_the_command_writes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(catalogue.WORKLOADS, "bert-base", lambda **_: SMALL)
    say = ["profile", "bert-base", "--system", "bow-pod16", "--micro-batches", "2", "--out", str(tmp_path)]
    assert __main__.main(say) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["system.html", "system.json", "trace.json"]
    data = json.loads((tmp_path / "system.json").read_text())
    assert data["micro_batches"] == 2
    assert dataclasses.asdict(System("bow-pod16"))["chips"] == data["chips_of_system"] == 16
    assert "samples a second" in capsys.readouterr().out
