"""Ctrl-C while the command line is being imported: one line and exit code 130; nothing changes for other programs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipu_core import interruption


def interrupted_at(module: str, *line: str) -> tuple[int, str]:
    """Runs Python until it has imported a module, interrupts it there; gives the exit code and what it said itself."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for text in process.stderr:
        if text.rstrip().endswith(f" {module}"):
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    return process.returncode, "".join(x for x in errors.splitlines(True) if not x.startswith("import time:"))


@pytest.mark.parametrize(
    "module", ["ipu_core.interruption", "lowprec.spec.formats", "ipu_core.ir.block", "ipu_core.errors"]
)
def test_an_interrupted_import_of_the_command_line_is_one_line(module: str) -> None:
    code, errors = interrupted_at(module, "-m", "ipu_core", "profile")
    assert code == 130, errors
    assert errors.strip() == "interrupted before anything was begun"


def test_the_installed_script_too(tmp_path: Path) -> None:
    script = tmp_path / "ipu-core"
    script.write_text("from ipu_core.__main__ import main\nraise SystemExit(main())\n")
    code, errors = interrupted_at("ipu_core.interruption", str(script), "profile")
    assert code == 130, errors
    assert "Traceback" not in errors


def test_other_programs_get_their_exception() -> None:
    code, errors = interrupted_at("ipu_core.interruption", "-c", "import ipu_core")
    assert code == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_an_interrupted_terminal_ends_workers_without_a_word(tmp_path: Path) -> None:
    small = ["--layers", "64-16-10", "--steps", "100000", "--batch", "32", "--engine", "direct", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ipu_core", "study", *small, "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (tmp_path / "plan.txt").exists():  # the workers are started right after it is written
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.15)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "script", "whether"),
    [
        (["python", "-m", "ipu_core", "study"], "-m", True),
        (["python", "-X", "dev", "-mipu_core"], "-m", True),
        (["/usr/bin/ipu-core", "study"], "/usr/bin/ipu-core", True),
        (["ipu-core.exe"], "ipu-core.exe", True),
        (["python", "-m", "pytest"], "-m", False),
        (["python", "mine.py", "-m", "ipu_core"], "mine.py", False),
        (["python"], "", False),
    ],
)
def test_which_processes_are_the_command_line(arguments: list[str], script: str, whether: bool) -> None:
    assert interruption.is_command_line(arguments, script) is whether
