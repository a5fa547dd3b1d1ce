"""What make says when something it needs is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what `make setup` looks at first, and no .venv."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def outside_make() -> dict[str, str]:
    """The environment without what a `make test` around these tests has put there: make would print more lines."""
    return {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}


def make(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = outside_make() if path is None else {"PATH": path}
    tool = shutil.which("make")
    assert tool is not None
    return subprocess.run(
        [tool, "setup", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_missing_compiler_is_one_sentence(checkout: Path) -> None:
    found = make(checkout, "CXX=no-such-compiler")
    assert found.returncode != 0
    assert found.stdout.strip().startswith("lowprec needs a C++ compiler: install g++")
    assert not (checkout / ".venv").exists()


def test_a_missing_python_is_one_sentence(checkout: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "g++"):
        (tools / name).symlink_to(shutil.which(name) or name)
    found = make(checkout, path=str(tools))
    assert found.returncode != 0
    assert "lowprec needs Python 3.11 or later" in found.stdout
    assert not (checkout / ".venv").exists()


def test_without_a_target_make_lists_them(checkout: Path) -> None:
    found = subprocess.run(["make"], cwd=checkout, env=outside_make(), capture_output=True, text=True, check=True)
    for target in ("study", "demo", "test", "lint", "bench", "notebooks"):
        assert f"make {target}" in found.stdout
