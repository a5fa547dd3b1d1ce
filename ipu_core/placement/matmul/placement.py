"""Placement: the half of a plan that says where; it decides cycles, exchange and memory and never a bit."""

from dataclasses import dataclass
from typing import Final

ORDERS: Final = ("columns", "rows")
HOLDS: Final = ("none", "a", "b")


@dataclass(frozen=True)
class Placement:
    """Where a product lies: its m x k by k x n work is cut over tiles along every axis, and on a tile in time.

    Args:
        rows: cuts of the m axis over tiles.
        columns: cuts of the n axis over tiles (whole groups of 16).
        parts: cuts of the Accumulation's parts over tiles; a tile with several parts has a vertex for each.
        batch: cuts of the batch axis over tiles; a tile with several products has a vertex for each.
        serial_rows, serial_columns: pieces in which a tile works off its rows and columns, to save memory.
        hold: the operand whose piece stays on the tile while the other's pieces pass by: "none", "a" or "b".
        order: the axis along which tile numbers run fastest, "columns" (neighbours share rows of a) or "rows"
            (neighbours share columns of b); neighbours of one supertile receive what they share at the double rate.
        serial_depth: pieces in which a tile works off its k's for every piece of rows and columns: its parts one
            after another while that is enough, else every part's chain in whole groups, each going on from the
            partial results of the one before. Only the k's of one piece are on the tile at a time; no bit changes.
        first: the tile of the first block; the others follow it.

    Cuts that would be empty vanish.

    Raises:
        ValueError: a field out of range.
    """

    rows: int = 1
    columns: int = 1
    parts: int = 1
    batch: int = 1
    serial_rows: int = 1
    serial_columns: int = 1
    hold: str = "none"
    order: str = "columns"
    serial_depth: int = 1
    first: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "parts", "batch", "serial_rows", "serial_columns", "serial_depth"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Placement: {name} must be an int of at least 1, not {value!r}")
        if not isinstance(self.first, int) or self.first < 0:
            raise ValueError(f"Placement: first must be the number of a tile, not {self.first!r}")
        if self.hold not in HOLDS:
            raise ValueError(f"Placement: unknown hold {self.hold!r}; it is one of {', '.join(HOLDS)}")
        if self.order not in ORDERS:
            raise ValueError(f"Placement: unknown order {self.order!r}; it is one of {', '.join(ORDERS)}")

    @property
    def tiles(self) -> int:
        """Tiles the cuts ask for (fewer where cuts vanish)."""
        return self.rows * self.columns * self.parts * self.batch

    def words(self) -> str:
        """The Placement in one printed line."""
        cuts = f"rows {self.rows} x columns {self.columns} x parts {self.parts}"
        batch = "" if self.batch == 1 else f" x batch {self.batch}"
        steps = f"{self.serial_rows} x {self.serial_columns}" + (
            f" x {self.serial_depth}" if self.serial_depth > 1 else ""
        )
        serial = ""
        if self.serial_rows * self.serial_columns * self.serial_depth > 1:
            held = "" if self.hold == "none" else f", holding {self.hold}"
            serial = f"; in {steps} serial steps of rows x columns{' x k' if self.serial_depth > 1 else ''}{held}"
        first = f" from tile {self.first}" if self.first else ""
        return f"{cuts}{batch} over {self.tiles} tiles{first}, {self.order} fastest{serial}"
