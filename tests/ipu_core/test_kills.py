"""A study that is killed again and again, at random moments, ends in the bits of one that never was."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipu_core.__main__ import main

STUDY = ["--lr", "0.01", "--engine", "direct", "--workers", "2"]
STUDY += ["--precisions", "fp32.32", "fp16.16/stochastic", "mlperf-bert"]
PERCEPTRON = ["mlp", "--layers", "64-32-10"]
LANGUAGE_MODEL = ["lm", "--width", "16", "--layers", "1", "--heads", "2", "--context", "16", "--batch", "4"]
LONGEST = 4.0  # seconds until a kill; a start takes about one


def study(folder: Path, *size: str) -> subprocess.Popen[str]:
    """The real command line, as the leader of a group of its own."""
    line = [sys.executable, "-m", "ipu_core", "study", *size, *STUDY, "--out", str(folder)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def finish(folder: Path, *size: str) -> str:
    """Runs the study to its end; the kernel may take a moment to free a killed one's lock."""
    for _ in range(100):
        process = study(folder, *size)
        printed, _ = process.communicate(timeout=1200)
        if process.returncode == 0 or "another study is running" not in printed:
            break
        time.sleep(0.1)
    assert process.returncode == 0, printed
    return printed


def points(folder: Path) -> dict[tuple[str, int], dict[str, object]]:
    """Every point but the time it took and the checksum that covers it."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len({(p["precision"], p["seed"]) for p in lines}) == len(lines)
    return {(p["precision"], p["seed"]): {k: p[k] for k in p if k not in ("seconds", "sha256")} for p in lines}


def test_kills_while_it_trains_change_no_bit(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    size = (*PERCEPTRON, "--steps", "1000", "--seeds", "2")
    for whom in (os.kill, os.killpg):  # the leader alone, whose workers end by themselves; all at once
        process = study(killed, *size)
        wait_for_progress(killed, process)
        whom(process.pid, signal.SIGKILL)
        process.communicate(timeout=600)
    finish(killed, *size)
    assert main(["study", *size, *STUDY, "--workers", "1", "--out", str(whole)]) == 0
    assert_same(killed, whole, 6)


@pytest.mark.slow
@pytest.mark.parametrize("kills, steps, seeds", [(3, 1000, 2), (100, 8000, 12)], ids=["three", "a hundred"])
def test_kills_at_random_moments_change_no_bit(kills: int, steps: int, seeds: int, tmp_path: Path) -> None:
    moments = random.Random(kills)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    size = (*PERCEPTRON, "--steps", str(steps), "--seeds", str(seeds))
    for kill in range(kills):
        process = study(killed, *size)
        time.sleep(moments.uniform(0, LONGEST))
        if kill % 2:  # the leader alone: its workers end by themselves
            os.kill(process.pid, signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=600)  # which waits for the workers too: they hold the pipe
    finish(killed, *size)
    finish(whole, *size)
    assert_same(killed, whole, 3 * seeds)


def assert_same(killed: Path, whole: Path, count: int) -> None:
    assert points(killed) == points(whole)
    assert len(points(whole)) == count
    names = {path.name for path in killed.iterdir()}
    assert names == {path.name for path in whole.iterdir()}, "a kill left something behind"


def workers(leader: int) -> list[int]:
    """The processes that train points, in the order in which they were started."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one of them has just ended
        for path in Path(f"/proc/{leader}/task").glob("*/children"):
            found += [int(pid) for pid in path.read_text().split()]
        return sorted(pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return []


def wait_for_progress(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until another checkpoint is kept or another point is finished."""

    def latest() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in [*folder.glob("*.jsonl"), *folder.glob("*/[!.]*")]}

    with contextlib.suppress(FileNotFoundError):
        before = latest()
        while process.poll() is None and latest() == before:
            time.sleep(0.05)


@pytest.mark.slow
def test_twenty_kills_of_a_language_model_change_no_bit(tmp_path: Path) -> None:
    """The leader or one of its workers, at random: early, or some time after a checkpoint or a result.

    Where a worker is killed the study goes on by itself.
    """
    chance = random.Random(20)
    whole, folders = tmp_path / "whole", [tmp_path / "killed"]
    size = (*LANGUAGE_MODEL, "--steps", "20000", "--seeds", "2")  # checkpoints are 5 s apart: some in each point
    kills, resumed, begun_again, process = 0, 0, 0, None
    while kills < 20:
        folder = folders[-1]
        if process is None:
            resumed += any(folder.glob("checkpoints/[!.]*"))
            process = study(folder, *size)
        if chance.random() < 0.7:
            wait_for_progress(folder, process)
        time.sleep(chance.uniform(0, LONGEST))
        crew = workers(process.pid)
        if process.poll() is not None:  # over before it was killed often enough: the rest is another study's
            process.communicate()
            folders += [tmp_path / f"killed {kills} times"] if process.returncode == 0 else []
            process = None
        elif crew and chance.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(crew), signal.SIGKILL)
                kills, begun_again = kills + 1, begun_again + 1
        else:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=600)
            kills, process = kills + 1, None
    if process is not None:
        process.communicate(timeout=1200)
    finish(whole, *size)
    for folder in folders:
        finish(folder, *size)
        assert_same(folder, whole, 6)
    assert resumed >= 3
    assert begun_again >= 3
