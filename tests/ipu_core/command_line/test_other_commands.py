"""`profile`, `blame`, `demo`, and help."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ipu_core.__main__ import main
from ipu_core.study.command import demo
from tests.ipu_core.command_line.commands import SMALL, TWO, exit_code


def test_profile_prints_plan_and_account_and_writes_reports(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--layers", "64-16-10", "--precision", "fp16.16/nearest", "--target", "bow"]
    assert exit_code("profile", *arguments, "--out", str(tmp_path / "p")) == 0
    printed = capfd.readouterr().out
    assert "0.weight.forward.dot.0" in printed
    assert "program 0 on bow, 1472 tiles" in printed
    assert {path.name for path in (tmp_path / "p").iterdir()} == {
        "profile.json",
        "profile.html",
        "trace.json",
    }
    assert json.loads((tmp_path / "p" / "profile.json").read_text())["target"]["name"] == "bow"
    (tmp_path / "file").write_text("")
    assert exit_code("profile", *arguments, "--out", str(tmp_path / "file" / "p")) == 2
    assert "cannot write to the output folder" in capfd.readouterr().err
    assert "<td>grad_weight</td><td>dot</td>" in (tmp_path / "p" / "profile.html").read_text()
    both = [str(tmp_path / "p"), str(tmp_path / "p" / "profile.json")]
    assert exit_code("profile", "--compare", *both, "--out", str(tmp_path / "c")) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("cycles of forward dot")] == ["1.000"]
    assert "cycles of forward dot" in (tmp_path / "c" / "comparison.html").read_text()
    assert exit_code("profile", "--compare", both[0], str(tmp_path / "file")) == 2
    assert "is no profile that `profile --out` wrote" in capfd.readouterr().err


def test_profile_of_several_chips(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["lm", "--layers", "2", "--width", "16", "--heads", "2", "--context", "8", "--micro-batches", "4"]
    arguments += ["--target", "bow-pod16/chips=4", "--replicas", "2", "--stages", "2", "--pipeline-schedule", "1f1b"]
    assert exit_code("profile", *arguments, "--out", str(tmp_path)) == 0
    printed = capfd.readouterr().out
    assert "An update on bow-pod16: 2 replicas of 2 stages, 4 chips" in printed
    assert "1f1b schedule: " in printed
    assert exit_code("profile", *arguments[:-2], "--schedule", "1f1b", "--json") == 0
    data = json.loads(capfd.readouterr().out)["system"]
    assert data == json.loads((tmp_path / "profile.json").read_text())["system"]
    assert (data["replicas"], data["stages"], data["chips"], data["schedule"]) == (2, 2, 4, "1f1b")
    assert len(data["bytes_of_fullest_tiles"]) == len(data["forward_seconds"]) == 2
    assert data["seconds_per_update"] == pytest.approx(sum(data["parts"].values()))
    assert "stage 1, backward of micro-batch 0" in (tmp_path / "system.html").read_text()
    trace = json.loads((tmp_path / "system-trace.json").read_text())
    assert {event["cat"] for event in trace["traceEvents"] if event["ph"] == "X"} == {
        "forward", "backward", "collective", "update", "host"
    }  # fmt: skip
    assert exit_code("profile", *arguments[:9], "--micro-batches", "4", "--json") == 0
    assert json.loads(capfd.readouterr().out)["system"]["chips"] == 1
    assert exit_code("profile", "bert-large", "--system", "bow-pod16", "--stages", "a,b") == 2
    assert "--stages of a workload is how many" in capfd.readouterr().err
    assert exit_code("profile", "bert-large", "--stages", "4") == 2
    assert "--stages is of many chips: --system says which" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--steps=3", "--lr=1", "--schedule=cosine", "--engine=direct"])
def test_profile_has_no_options_that_change_nothing(
    option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("profile", option) == 2
    # a pipeline of several chips has a schedule, too
    refused = "pipeline_schedule: there is no 'cosine'" if "schedule" in option else "unrecognized arguments"
    assert refused in capfd.readouterr().err
    (tmp_path / "c.toml").write_text('steps = 3\nengine = "direct"\nlayers = "64-8-10"\n')
    assert exit_code("profile", "--config", str(tmp_path / "c.toml")) == 0  # one file for all commands


def test_the_demo_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert demo(steps=20) == 0
    printed = capfd.readouterr().out
    assert "stochastic    away from zero with P" in printed
    assert "fp16.16/nearest" in printed


@pytest.mark.parametrize("words", [[], ["study"], ["train"], ["profile"], ["demo"]])
def test_help_is_there_and_nothing_else_happens(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*words, "--help") == 0
    assert "usage: ipu-core" in capfd.readouterr().out


def test_no_command_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code() == 2
    assert "study|sweep|train|profile|blame|reproduce|figures|packing|demo" in capfd.readouterr().err


def test_a_closed_pipe_is_no_error(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    line = f"{sys.executable} -m ipu_core study {' '.join([*SMALL, *TWO])} --out {folder} | head -c 20"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert len(done.stdout) == 20
    assert done.stderr == ""


def test_blame_says_why_and_what_brings_it_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--layers", "64-32-10", "--steps", "200"]
    assert main(["blame", "mlp", *small, "--precision", "fp16.16/nearest/1.*:weights=float32",
                 "--out", str(tmp_path / "out")]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert (tmp_path / "out" / "blame.txt").read_text("utf-8") == printed
    assert re.search(r"0\.weight\.update\.scaled_add\.\d+, line ", printed)
    assert "precision without it: fp16.16/nearest/1.*:weights=float32/0:weights=float32" in printed
    assert main(["blame", *small, "--precision", "fp16.16/nearest", "--by", "layer"]) == 0
    assert "it alone low" in capsys.readouterr().out
    assert main(["blame", *small, "--budget", "1"]) == 2
    assert "budget must be at least 3.5" in capsys.readouterr().err
    for setting in (["--budget", "5"], ["--tolerance", "0.05"]):
        assert main(["blame", *small, "--by", "cause", *setting]) == 2
        assert f"{setting[0]} is not for --by cause, which does two runs" in capsys.readouterr().err
