"""The file of last ratios: what is compared, what is kept, and what counts as worse."""

from pathlib import Path

import pytest
from rich.console import Console

from tests.benchmarks import ratios


def test_benchmarks_note_ratios_where_a_run_collects_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ratios.COLLECTED, raising=False)
    ratios.record("alone", 1.0)
    monkeypatch.setenv(ratios.COLLECTED, str(tmp_path / "ratios"))
    ratios.record("add", 1.5)
    ratios.record("add", 1.25)
    ratios.record("exp", 2.0)
    assert ratios.collected(tmp_path / "ratios") == {"add": 1.25, "exp": 2.0}


def test_keeping_leaves_what_was_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "last" / "machine.json"
    ratios.keep(path, {"add": 1.0, "exp": 2.0})
    ratios.keep(path, {"exp": 3.0})
    assert ratios.load(path) == {"add": 1.0, "exp": 3.0}
    assert ratios.load(tmp_path / "none.json") == {}


def test_the_worst_comes_first_and_a_fifth_is_the_bound(tmp_path: Path) -> None:
    before = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "gone": 1.0}
    now = {"a": 1.19, "b": 1.3, "c": 2.0, "d": 0.5, "new": 9.0}
    assert [change.name for change in ratios.changes(before, now)] == ["c", "b", "a", "d"]
    console = Console(width=100, record=True)
    ratios.report(before, now, console)
    text = console.export_text()
    slower, faster = text.index("slower than last by 20%"), text.index("faster than last")
    assert slower < text.index("2.00") < text.index("1.30") < faster < text.index("0.50")
    assert "4 ratios compared, 2 worse; 1 were not measured before" in text


def test_the_file_is_named_by_the_machine(tmp_path: Path) -> None:
    path = ratios.file_of_machine(tmp_path)
    assert path.parent == tmp_path
    assert path.suffix == ".json"
    assert path.stem == path.stem.lower().strip("-")
