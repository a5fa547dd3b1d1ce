"""A study whose output is closed, full or read by nobody, that may open few files, or has no semaphores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import first
from tests.ipu_core.command_line.commands import SMALL, results

STUDY = " ".join(["-m ipu_core study", *SMALL, "--precisions fp32.32 fp16.16/nearest --seeds 1"])
ALL = {"results.jsonl", "manifest.json", "table.txt", "plan.txt", "convergence.png", "page.html"}


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = f"{line.replace('PYTHON', sys.executable)}"
    more = {**os.environ, "PYTHONUNBUFFERED": "", **variables}
    return subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False, env=more)


@pytest.mark.parametrize("command", [STUDY, "-m ipu_core --help", "-m ipu_core profile --layers 64-8-10"])
def test_a_full_disk_behind_standard_output_is_named(command: str, tmp_path: Path) -> None:
    out = f" --workers 1 --out {tmp_path / 'out'}" if "study" in command else ""
    done = shell(f"PYTHON {command}{out} > /dev/full")
    assert done.stderr.splitlines()[-1] == "ipu-core: standard output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("closed", first(1, [">&-", "<&- >&- 2>&-"]))
def test_a_study_whose_streams_are_closed_is_whole(closed: str, tmp_path: Path) -> None:
    done = shell(f"PYTHON {STUDY} --workers 2 --out {tmp_path} {closed}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == ALL
    assert len(results(tmp_path)) == 2


@pytest.mark.parametrize("unbuffered", first(1, ["1", ""]))
def test_a_study_whose_reader_is_gone_keeps_its_points_and_files(unbuffered: str, tmp_path: Path) -> None:
    done = shell(f"PYTHON {STUDY} --workers 1 --out {tmp_path} | head -1", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 141, done.stderr
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr
    if unbuffered:  # else the text was there at once
        assert len(results(tmp_path)) <= 2
    else:
        assert {path.name for path in tmp_path.iterdir()} == ALL


@pytest.mark.parametrize(("files", "workers"), first(3, [(16, 1), (16, 2), (8, 1), (12, 2), (20, 2), (24, 2)]))
def test_few_open_files_are_enough_or_the_limit_is_named(files: int, workers: int, tmp_path: Path) -> None:
    done = shell(f"ulimit -n {files}; PYTHON {STUDY} --workers {workers} --out {tmp_path / 'out'}")
    assert "Traceback" not in done.stderr
    if (files, workers) == (16, 1):
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2
        said = done.stderr.splitlines()[-1]
        assert f"too many open files: this process may have {files} (ulimit -n)" in said
        if (files, workers) == (16, 2):
            assert said.startswith("ipu-core study: no 2 workers: ")
            assert said.endswith("; --workers 1 trains in this process")
    assert not (tmp_path / "out" / "results.jsonl").exists() or len(results(tmp_path / "out")) in (0, 2)


WITHOUT_SEMAPHORES = """
import _multiprocessing, errno, os

class SemLock(_multiprocessing.SemLock):
    def __new__(cls, *arguments):
        raise OSError(errno.{number}, os.strerror(errno.{number}))

_multiprocessing.SemLock = SemLock
"""


@pytest.mark.parametrize("number", first(1, ["ENOSYS", "ENOENT", "EACCES"]))
def test_without_shared_memory_a_study_says_what_it_needs(number: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_SEMAPHORES.format(number=number))
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = shell(f"PYTHON {STUDY} --workers 2 --out {tmp_path / 'out'}", PYTHONPATH=path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert "ipu-core study: no 2 workers: this system gives no semaphores, which need a /dev/shm" in done.stderr
    assert done.stderr.endswith("; --workers 1 trains in this process\n")
    done = shell(f"PYTHON {STUDY} --workers 1 --out {tmp_path / 'out'}", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
