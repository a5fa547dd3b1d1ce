"""Ctrl-C while the command line is being imported: one line and exit code 130; nothing changes for other programs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipu_core import interruption
from tests.ipu_core.test_kills import workers

INTERRUPT = """
import signal, sys

def interrupt(event, arguments):
    if event == "import" and not sent:
        module = sys.modules.get({module!r})
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            sent.append(True)
            signal.raise_signal(signal.SIGINT)

sent = []
sys.addaudithook(interrupt)
"""


def interrupted_at(folder: Path, module: str, *line: str) -> tuple[int, str]:
    """Runs Python, interrupted by the first import after that of a module; gives the exit code and what it said."""
    (folder / "sitecustomize.py").write_text(INTERRUPT.format(module=module))
    path = os.pathsep.join([str(folder), *sys.path])
    run = subprocess.run(
        [sys.executable, *line], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    return run.returncode, run.stderr


@pytest.mark.parametrize(
    "module", ["ipu_core.interruption", "lowprec.spec.formats", "ipu_core.ir.block", "ipu_core.errors"]
)
def test_an_interrupted_import_of_the_command_line_is_one_line(module: str, tmp_path: Path) -> None:
    code, errors = interrupted_at(tmp_path, module, "-m", "ipu_core", "profile")
    assert code == 130, errors
    assert errors.strip() == "interrupted before anything was begun"


def test_the_installed_script_too(tmp_path: Path) -> None:
    script = tmp_path / "ipu-core"
    script.write_text("from ipu_core.__main__ import main\nraise SystemExit(main())\n")
    code, errors = interrupted_at(tmp_path, "ipu_core.interruption", str(script), "profile")
    assert code == 130, errors
    assert "Traceback" not in errors


def test_other_programs_get_their_exception(tmp_path: Path) -> None:
    code, errors = interrupted_at(tmp_path, "ipu_core.interruption", "-c", "import ipu_core")
    assert code == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_an_interrupted_terminal_ends_workers_without_a_word(tmp_path: Path) -> None:
    small = ["--layers", "64-16-10", "--steps", "100000", "--batch", "32", "--engine", "direct", "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ipu_core", "study", *small, "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not workers(process.pid) and process.poll() is None:  # which import for a while
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=600)
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
