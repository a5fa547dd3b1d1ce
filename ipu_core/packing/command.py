"""The command `packing`: what packing saves for a histogram, by how many sequences a pack may hold."""

from __future__ import annotations

from pathlib import Path

from ipu_core.packing.histogram import PUBLISHED, Histogram
from ipu_core.packing.plan import Packing
from ipu_core.packing.strategies import lpfhp, nnlshp, spfhp
from ipu_core.train.table import Table

DEPTHS = (1, 2, 3, 4, 8, None)
STRATEGIES = {"spfhp": spfhp, "lpfhp": lpfhp}


def found(name: str, length: int | None) -> tuple[Histogram, int]:
    """The histogram of a name or file, and the length of its packs: that of its longest sequence where none is said.

    Raises:
        ValueError: there is none of the name, or the file holds none.
    """
    if name in PUBLISHED or not name.endswith(".csv"):
        histogram, usual = Histogram.named(name)
    else:
        histogram = Histogram.read(name)
        usual = histogram.longest
    return histogram, usual if length is None else length


def show(name: str, length: int | None, depth: int | None, strategy: str | None, out: Path | None) -> None:
    """Prints one packing with what its packs hold, or a row for each depth; writes its picture where it is asked for.

    Args:
        name: of a histogram, or its file.
        length: tokens of a pack; None: as usual.
        depth: most sequences of a pack; None: a row for each of `DEPTHS`, and for least squares.
        strategy: one alone; None: "spfhp" for one depth, and all for several.
        out: the picture's file; None: none.

    Raises:
        ValueError: see `found`, `spfhp`; a strategy that has no depth.
    """
    histogram, own = found(name, length)
    if strategy == "nnlshp":
        if depth not in (None, 3):
            raise ValueError(f"nnlshp makes packs of up to three: --depth {depth} is not for it")
        made = nnlshp(histogram, own)
    elif depth is not None:
        made = STRATEGIES[strategy or "spfhp"](histogram, own, depth)
    else:
        kinds = [strategy] if strategy else [*STRATEGIES]
        plans = [(kind, each, STRATEGIES[kind](histogram, own, each)) for kind in kinds for each in DEPTHS]
        title = f"{name}: {histogram.sequences:,} sequences of {histogram.tokens:,} tokens in packs of {own}"
        rows = tuple(_row(kind, each, plan) for kind, each, plan in plans)
        head = ("strategy", "depth", "kinds", "packs", "tokens", "padding", "filled", "factor")
        print(Table(title, head, rows, "factor: sequences a pack; kinds: lengths that lie together", 2))
        made = plans[-1][2]
    if depth is not None or strategy == "nnlshp":
        print(made)
    if out is not None:
        made.plot().save(out)
        print(f"written to {out}")


def _row(kind: str, depth: int | None, plan: Packing) -> tuple[str, ...]:
    numbers = (len(plan.strategies), plan.packs, plan.tokens, plan.padding)
    shares = f"{100 * plan.efficiency:.3f} %", f"{plan.factor:.3f}"
    return (kind, "any" if depth is None else str(depth), *(f"{each:,}" for each in numbers), *shares)
