"""A small table of text, for terminals, logs and notebooks."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 80  # characters of a line of a printed table


@dataclass(frozen=True)
class Table:
    """A small table of text that prints in a terminal, in a log and in a notebook.

    Columns that do not fit into WIDTH characters are printed in further tables below, which repeat the left ones.

    Attributes:
        left: how many columns, from the first, are aligned to the left; the others are aligned to the right.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    left: int = 1

    def __str__(self) -> str:
        cells = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        blocks = ["\n".join(self._lines(cells, widths, chosen)) for chosen in self._folded(widths)]
        return "\n".join(part for part in (self.title, "\n\n".join(blocks), self.note) if part)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self.rows)
        caption, note = html.escape(self.title), html.escape(self.note).replace("\n", "<br>")
        head = f"<caption>{caption}</caption>{row(self.columns, 'th')}"
        return f"<table>{head}{body}</table><p><small>{note}</small></p>"

    def _lines(self, cells: Sequence[Sequence[str]], widths: Sequence[int], chosen: Sequence[int]) -> list[str]:
        """The lines of a table with these columns, with a rule below their names."""

        def line(row: Sequence[str]) -> str:
            placed = (row[i].ljust(widths[i]) if i < self.left else row[i].rjust(widths[i]) for i in chosen)
            return "  ".join(placed).rstrip()

        names, *rows = cells
        return [line(names), "  ".join("-" * widths[i] for i in chosen), *map(line, rows)]

    def _folded(self, widths: Sequence[int]) -> list[list[int]]:
        """The columns of each folded table: the left ones, and as many others as fit beside them."""
        first = list(range(self.left))
        tables = [first]
        for i in range(self.left, len(widths)):
            # Each table gets one column at least, however wide: one that never fits would else begin tables for ever.
            if tables[-1] != first and sum(widths[k] + 2 for k in tables[-1]) + widths[i] > WIDTH:
                tables.append(first)
            tables[-1] = [*tables[-1], i]
        return tables
