"""A finished study that all tests of a process look at."""

from pathlib import Path

import pytest

from tests.ipu_core.command_line.commands import SMALL, TWO, run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("study") / "out"
    done = run("study", *SMALL, *TWO, "--workers", "2", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    assert (folder / "convergence.png").read_bytes()[:4] == b"\x89PNG"  # tests that go on here describe theirs
    return folder, done.stdout
