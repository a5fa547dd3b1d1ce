"""A small table of text, for terminals, logs and notebooks."""

import html
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A small table of text that prints in a terminal, in a log and in a notebook.

    Attributes:
        left: how many of the columns, from the first, begin at one margin; the others end at one.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    left: int = 1

    def __str__(self) -> str:
        cells = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [self._line(row, widths) for row in cells]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(part for part in (self.title, *lines, self.note) if part)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self.rows)
        caption, note = html.escape(self.title), html.escape(self.note)
        head = f"<caption>{caption}</caption>{row(self.columns, 'th')}"
        return f"<table>{head}{body}</table><p><small>{note}</small></p>"

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        first = [cell.ljust(width) for cell, width in zip(row[: self.left], widths, strict=False)]
        rest = [cell.rjust(width) for cell, width in zip(row[self.left :], widths[self.left :], strict=True)]
        return "  ".join([*first, *rest]).rstrip()
