"""Shows a study while it runs: bars and a growing table in a terminal, one cell in a notebook, lines in a log."""

from __future__ import annotations

import html
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ipu_core.study.summary import final_loss, heading, measure_in_words, measures, spread
from ipu_core.train.table import Table
from lowprec.extras import optional

if TYPE_CHECKING:
    from ipu_core.study.run import Event

ROOM = 12  # lines of a terminal that are not for the bars of waiting points
DUMB = ("dumb", "unknown")  # terminals in which nothing can be redrawn
MakeTable = Callable[[], Table]


_part: ContextVar[bool] = ContextVar("ipu_core_part_of_a_sweep", default=False)


@contextmanager
def as_a_part() -> Iterator[None]:
    """Within the context studies are parts of a sweep, which shows a table of its own: in a notebook theirs go."""
    token = _part.set(True)
    try:
        yield
    finally:
        _part.reset(token)


class View(Protocol):
    """Shows events. A context that clears its bars at the end; it may be entered again inside itself."""

    def __call__(self, event: Event) -> None: ...
    def know(self, make_table: MakeTable, points: int, done: int, waiting: Sequence[str]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def begun(steps: int, waiting: Sequence[str]) -> View:
    """The view for where this runs: a notebook's cell, a terminal with rich, or plain lines on standard error.

    Args:
        steps: Steps of each point.
        waiting: Names of the points to come, which have a bar from the first moment on; `View.know` will say later how
            many were finished before.
    """
    if _in_notebook():
        return Notebook(steps, waiting)
    if sys.stderr.isatty() and os.environ.get("TERM") not in DUMB:
        try:
            return Terminal(steps, waiting)
        # Without rich a study runs all the same.
        except ImportError:
            pass
    return Lines(len(waiting))


class Lines:
    """One line per finished point on standard error."""

    def __init__(self, points: int) -> None:
        self._points, self._done, self._start = points, 0, time.monotonic()

    def know(self, make_table: MakeTable, points: int, done: int, waiting: Sequence[str]) -> None:
        self._points, self._done = points, done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        if event.kind == "progress":
            return
        if event.kind == "warning":
            print(_words(event), file=sys.stderr, flush=True)
            return
        self._done += event.kind == "done"
        spent = time.monotonic() - self._start
        print(f"{self._done}/{self._points}  {spent:5.0f} s  {_words(event)}", file=sys.stderr, flush=True)


class Terminal:
    """The table so far and a bar per running or waiting point, as many as there is room for, redrawn with rich."""

    def __init__(self, steps: int, waiting: Sequence[str]) -> None:
        progress = optional("rich.progress", extra="study")
        self._rich = {name: optional(f"rich.{name}", extra="study") for name in ("console", "live", "table", "box")}
        self._steps = steps
        self._console = console = self._rich["console"].Console(stderr=True)
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", table_column=self._rich["table"].Column(no_wrap=True)),
            progress.BarColumn(bar_width=None),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[loss]}"),
            progress.TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self._reached: dict[str, int] = {}
        self._hang(_nothing, len(waiting), 0, waiting)
        self._live = self._rich["live"].Live(
            self._picture(), console=console, refresh_per_second=8, transient=True,
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file or pipe goes there
        )  # fmt: skip

    def _hang(self, make_table: MakeTable, points: int, done: int, waiting: Sequence[str]) -> None:
        self._make_table, steps = make_table, self._steps
        self._all = self._bars.add_task("[bold]all points", total=points * steps, completed=done * steps, loss="")
        self._tasks: dict[str, Any] = {
            name: self._bars.add_task(name, total=steps, loss="waiting")
            # rich cuts off what is higher than the terminal.
            for name in waiting[: self._console.height - ROOM]
        }

    def know(self, make_table: MakeTable, points: int, done: int, waiting: Sequence[str]) -> None:
        for task in (self._all, *self._tasks.values()):
            self._bars.remove_task(task)
        self._hang(make_table, points, done, waiting)
        self._live.update(self._picture())

    def __enter__(self) -> Self:
        self._live.start(refresh=True)  # at once, not after the first eighth of a second
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        name = str(event.item)
        if event.kind == "warning":
            self._live.console.print(_words(event), markup=False, highlight=False)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=self._steps, loss="")
        task, before = self._tasks[name], self._reached.get(name, 0)
        # A failed point counts as whole, or the bar of all points would never end.
        step = self._reached[name] = event.payload["step"] if event.kind == "progress" else self._steps
        self._bars.update(task, completed=step)
        self._bars.update(self._all, advance=step - before)
        if event.kind == "progress":
            self._bars.update(task, loss=f"loss {event.payload['loss']:.3f}")
            return
        self._bars.remove_task(task)
        del self._tasks[name]
        if event.kind == "failed":
            self._live.console.print(f"{name}: {event.payload['error']}", markup=False, highlight=False)
        self._live.update(self._picture())

    def _picture(self) -> Any:
        made = self._make_table()
        table = self._rich["table"].Table(title=made.title, box=self._rich["box"].SIMPLE, title_justify="left")
        shown = _fitting(made, self._console.width - 1)
        for index, column in enumerate(made.columns[:shown]):
            # no_wrap: a cell in two lines cannot be told from two rows.
            table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
        for row in made.rows:
            table.add_row(*row[:shown])
        parts = [table, self._bars] if made.rows else [self._bars]
        return self._rich["console"].Group(*parts)


class Notebook:
    """One cell that is rewritten: the table so far and a line per running point."""

    def __init__(self, steps: int, waiting: Sequence[str]) -> None:
        self._display = optional("IPython.display", extra="notebooks")
        self._steps, self._said = steps, list[str]()
        self._handle: Any = None
        self._hang(_nothing, len(waiting), 0, waiting)

    def _hang(self, make_table: MakeTable, points: int, done: int, waiting: Sequence[str]) -> None:
        self._make_table, self._points, self._done = make_table, points, done
        self._running: dict[str, str] = dict.fromkeys(waiting, "waiting")

    def know(self, make_table: MakeTable, points: int, done: int, waiting: Sequence[str]) -> None:
        self._hang(make_table, points, done, waiting)
        self._handle.update(self._page())

    def __enter__(self) -> Self:
        # Entered a second time, it goes on in the same cell.
        self._handle = self._handle or self._display.display(self._page(), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.clear()
        # What is part of a larger whole leaves the table to that.
        self._handle.update(self._display.HTML("") if _part.get() else self._page())

    def __call__(self, event: Event) -> None:
        name = str(event.item)
        if event.kind == "progress":
            self._running[name] = f"step {event.payload['step']}/{self._steps}, loss {event.payload['loss']:.3f}"
        elif event.kind == "warning":
            self._said.append(_words(event))
        else:
            self._running.pop(name, None)
            self._done += event.kind == "done"
            self._said += [f"{name}: {event.payload['error']}"] if event.kind == "failed" else []
        self._handle.update(self._page())

    def _page(self) -> Any:
        made = self._make_table()
        state = "".join(f"{name}: {text}\n" for name, text in self._running.items())
        said = "".join(f"{line}\n" for line in self._said)
        head = f"{self._done} of {self._points} points\n" if self._done < self._points else ""
        text = html.escape(head + state + said)
        return self._display.HTML((made._repr_html_() if made.rows else "") + (f"<pre>{text}</pre>" if text else ""))


def _nothing() -> Table:
    """The empty table that is shown before the study's own is known."""
    return Table("", (), ())


def _fitting(made: Table, width: int) -> int:
    """How many columns of a table, from the left, can be read whole in so many characters; at least one."""
    widths = [max(map(len, column)) + 3 for column in zip(made.columns, *made.rows, strict=True)]
    return max(1, sum(total <= width for total in itertools.accumulate(widths)))


def _words(event: Event) -> str:
    if event.kind == "warning":
        return f"{event.item}: {event.payload['warning']}"
    if event.kind == "failed":
        return f"{event.item} failed: {event.payload['error']}"
    result = event.payload
    found = (f", {heading(name)} {measure_in_words(name, spread([value]))}" for name, value in measures(result).items())
    return f"{event.item}: final loss {final_loss(result['losses']):.4f}{''.join(found)}"


def _in_notebook() -> bool:
    # Not imported here: in a notebook it is loaded already, and elsewhere it takes long.
    ipython = sys.modules.get("IPython")
    # A terminal's IPython has a shell too, but no kernel.
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
