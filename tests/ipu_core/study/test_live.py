"""The three views of a running study take the same events and show what matters."""

from typing import Any

import pytest

from ipu_core.study import live
from ipu_core.study.run import Event
from ipu_core.study.summary import summarise, table
from ipu_core.train.table import Table

EVENTS = [
    Event("a seed 0", "progress", {"step": 3, "loss": 1.5}),
    Event("a seed 1", "progress", {"step": 4, "loss": 1.25}),
    Event("a seed 1", "warning", {"warning": "no [checkpoint]"}),
    Event("a seed 0", "done", {"precision": "a", "losses": [2.0] * 10, "test_accuracy": 0.75}),
    Event("a seed 1", "failed", {"error": "tile 3 is [full]"}),
]


class Board:
    """Feeds events to a view as a study does."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []

    def table(self) -> Table:
        return table(summarise(self.results, ["a"]), "title")

    def feed(self, view: live.View) -> None:
        with view:
            view.know(self.table, 3, 1, [])
            for event in EVENTS:
                if event.kind == "done":
                    self.results.append(event.payload)
                view(event)


def test_lines_go_to_standard_error_one_per_point(capsys: pytest.CaptureFixture[str]) -> None:
    Board().feed(live.Lines(3))
    printed = capsys.readouterr()
    assert printed.out == ""
    warning, *lines = printed.err.splitlines()
    assert warning == "a seed 1: no [checkpoint]"
    assert [line.split("  ", 2)[0] for line in lines] == ["2/3", "2/3"]
    assert "a seed 0: final loss 2.0000, test accuracy 75.0 %" in printed.err
    assert "a seed 1 failed: tile 3 is [full]" in printed.err


def test_terminal_shows_table_and_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich draw as in a terminal
    board = Board()
    board.feed(live.Terminal(10, []))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "75.0 %" in printed.err
    assert "a seed 1: no [checkpoint]" in printed.err
    assert "a seed 1: tile 3 is [full]" in printed.err


def test_a_narrow_terminal_shows_whole_columns_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for columns, shown in ((36, False), (60, True)):
        monkeypatch.setenv("COLUMNS", str(columns))
        board = Board()
        board.feed(live.Terminal(10, []))
        printed = capsys.readouterr().err
        assert "final loss" in printed
        assert ("test accuracy" in printed) == ("75.0 %" in printed) == shown


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for term, kind in (("dumb", live.Lines), ("xterm-256color", live.Terminal)):
        monkeypatch.setenv("TERM", term)
        assert isinstance(live.begun(1, ["a"]), kind)


def test_notebook_rewrites_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            pages.append(page.data)

    def display(page: Any, display_id: bool) -> Handle:
        assert display_id
        pages.append(page.data)
        return Handle()

    board = Board()
    view = live.Notebook(10, [])
    monkeypatch.setattr(view._display, "display", display)
    board.feed(view)
    assert "a seed 0: step 3/10, loss 1.500" in pages[2]
    assert "<td>75.0 %</td>" in pages[-1]
    assert "a seed 1: no [checkpoint]\na seed 1: tile 3 is [full]" in pages[-1]
    assert "2 of 3 points" in pages[-1]
    assert "step 4" in pages[4]  # a point that warned goes on
    assert "step" not in pages[-1]


def test_without_a_terminal_lines_are_chosen() -> None:
    assert isinstance(live.begun(1, ["a"]), live.Lines)


def test_every_point_has_a_bar_before_anything_happens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    names = [f"a seed {number}" for number in range(3)]
    with live.Terminal(10, names):
        pass
    printed = capsys.readouterr().err
    assert all(name in printed for name in names)
    assert printed.count("waiting") >= 3
    monkeypatch.setenv("LINES", str(live.ROOM + 1))
    with live.Terminal(10, names):
        pass
    assert "a seed 1" not in capsys.readouterr().err  # there is room for one


def test_bars_are_there_before_it_is_known_what_was_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    board = Board()
    with live.Terminal(10, ["a seed 0", "a seed 1"]) as view:
        assert "a seed 0" in capsys.readouterr().err
        view.know(board.table, 2, 1, ["a seed 1"])
        with view:
            view(Event("a seed 1", "progress", {"step": 5, "loss": 1.0}))
        later = capsys.readouterr().err
    assert "loss 1.000" in later
    assert "75%" in later  # one of two, and half of the other
    assert "a seed 0" not in later.rpartition("loss 1.000")[2]
