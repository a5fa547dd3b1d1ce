"""A test that hangs fails, and the others go on: on one core, on several, in every environment of the suite."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import aarch64, versions
from tests.conftest import SLOW_SECONDS, pytest_collection_modifyitems

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TESTS = """
import threading

def test_hangs():
    threading.Event().wait()

def test_passes():
    pass
"""


@pytest.mark.parametrize("more", [("-p", "no:xdist"), ("-n", "2")], ids=["alone", "several"])
def test_a_test_that_hangs_fails(more: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    line = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    line += ["-p", "no:cacheprovider", "--timeout", "1", *more, str(tmp_path / "test_it.py")]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout (>1.0s)" in done.stdout


def test_every_test_has_a_limit(request: pytest.FixtureRequest) -> None:
    assert float(request.config.getini("timeout")) == PYPROJECT["tool"]["pytest"]["ini_options"]["timeout"] > 60


class Item:
    def __init__(self, *marks: pytest.MarkDecorator) -> None:
        self.marks = {mark.name: mark.args for mark in marks}

    def get_closest_marker(self, name: str) -> tuple[object, ...] | None:
        return (name,) if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.args


def test_slow_tests_have_a_limit_of_their_own() -> None:
    items = Item(), Item(pytest.mark.slow), Item(pytest.mark.slow, pytest.mark.timeout(5))
    pytest_collection_modifyitems(list(items))  # type: ignore[arg-type]
    assert [item.marks.get("timeout") for item in items] == [None, (SLOW_SECONDS,), (5,)]


def test_every_environment_has_what_sets_it() -> None:
    declared = PYPROJECT["project"]["optional-dependencies"]["test"]
    for listed in (declared, versions.TOOLS, aarch64.TESTERS):
        assert any(name.partition(">")[0] == "pytest-timeout" for name in listed)
