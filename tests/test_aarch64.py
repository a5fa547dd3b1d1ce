"""The job on aarch64 says what is missing before it begins, and installs what is declared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import aarch64


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(aarch64, "make", lambda: pytest.fail("it began"))
    assert aarch64.main([]) == 1
    said = capsys.readouterr().out
    assert "apt-get install qemu-user g++-aarch64-linux-gnu cmake" in said
    assert said.count("\n") == 1


def test_only_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cmake").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert aarch64.missing() == ["qemu-user", "g++-aarch64-linux-gnu", "apt", "dpkg"]


def test_every_tester_is_declared() -> None:
    wanted = aarch64.requirements()
    assert len(wanted) == len({each.partition(">=")[0] for each in wanted}) + 1  # numpy is built with and used
    for name in ("nanobind", "ml_dtypes", *aarch64.TESTERS):
        assert any(each.partition(">=")[0] == name for each in wanted)


def test_its_parts_exist() -> None:
    assert all((aarch64.ROOT / part).exists() for part in aarch64.PARTS)
