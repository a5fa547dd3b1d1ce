"""What was seen of a watched run: NumPy columns, a table of the worst values, and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from ipu_core.diagnose.watch import file
from ipu_core.diagnose.watch.plots import plot_exponents, plot_shares
from ipu_core.train.table import Table
from lowprec.checks import expect, integer, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = {
    "underflow": "zeros that rounding made",
    "overflow": "infinities and NaN that rounding made",
    "saturated": "at the format's largest magnitude for want of a larger one",
    "lost": "changes that left the value as it was",
    "zeros": "exact zeros",
    "infinite": "infinities",
    "nan": "NaN",
}
"""The measures in words. Each is a share of all elements; `lost` of the elements that should have changed."""
NEAR = 5  # names that a refusal offers
BAD = ("underflow", "overflow", "saturated", "lost", "nan")


@dataclass(frozen=True, eq=False, repr=False)
class Record:
    """The record of a watched run.

    Attributes:
        values: The values, a structured array with the fields of `WatchedValue`: name, kind, parameter, layer, op,
            equation, role, source, format, elements.
        rows: Of shape (looks, values), with the fields
            step: The step, from 0; elements: how many there were in all iterations, 0 where the value was not computed;
            zeros, infinite, nan: how many of them are;
            underflow: zeros whose ideal result of the same operands is finite and not zero;
            overflow: infinities and NaN whose ideal result is finite;
            saturated: elements at the format's largest magnitude whose ideal result is beyond it;
            wanted, lost: of updates and moments, elements whose ideal new value is another, and those of them that kept
            the old one: see `lowprec.statistics.lost_updates` (of moments of more than 2^16 elements, as many of them
            evenly spaced stand for all);
            rms, largest: of the finite elements;
            histogram: of 2^10 elements evenly spaced (of all where they are fewer), how many have the exponent -72 (or
            less), -71, ..., 23 (or more); zeros and float32's subnormal numbers have none.
    """

    values: npt.NDArray[np.void]
    rows: npt.NDArray[np.void]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The record in a file that `Watch` named. In NumPy alone: two calls of `np.load` on the open file.

        Raises:
            ValueError: it is no such file.
        """
        return cls(*file.read(path))

    def save(self, path: str | Path) -> None:
        """Writes a file that `read` reads, in place of one that is there."""
        file.write(path, self.values, self.rows)

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The steps that were looked at."""
        return np.asarray(self.rows["step"][:, 0]) if self.rows.shape[1] else np.zeros(0, np.int64)

    def index(self, name: str) -> int:
        """The column of a value, by its name or what that begins with up to a dot, as "0.weight.update".

        Raises:
            TypeError: no name.
            KeyError: there is none of that name, or several.
        """
        expect(str, name=name)
        names = self.values["name"].tolist()
        if name in names:
            return int(names.index(name))
        found = [place for place, each in enumerate(names) if isinstance(name, str) and each.startswith(f"{name}.")]
        # The beginning of several names must not pass for the first of them.
        if len(found) != 1:
            several = f"; there are {', '.join(names[place] for place in found[:NEAR])}" if found else ""
            raise KeyError(f"no value {shown(name)} was watched{several}")
        return found[0]

    def share(self, measure: str) -> npt.NDArray[np.float64]:
        """The share of a measure of MEASURES, of shape (looks, values); NaN where there was nothing to count.

        Raises:
            ValueError: an unknown measure.
        """
        if not isinstance(measure, str) or measure not in MEASURES:
            raise ValueError(f"unknown measure {shown(measure)}; there are {', '.join(MEASURES)}")
        # Elements that were to stay as they are cannot be lost.
        of = self.rows["wanted" if measure == "lost" else "elements"]
        return np.where(of > 0, self.rows[measure] / np.maximum(of, 1), np.nan)

    def harm(self) -> npt.NDArray[np.float64]:
        """Of every value its largest share of underflow, overflow, saturation, lost changes or NaN in any look."""
        return np.asarray(self._bad().max(axis=0, initial=0.0))

    def _bad(self) -> npt.NDArray[np.float64]:
        """The largest bad share of each value in each look."""
        return np.asarray(np.max([np.nan_to_num(self.share(measure)) for measure in BAD], axis=0))

    def worst(self, count: int = 10) -> npt.NDArray[np.intp]:
        """The values whose rounding did most harm, the worst first: by their largest bad share in any look.

        Of equals the one comes first that was bad first. Values without any bad share are not among them.

        Raises:
            ValueError: fewer than none.
        """
        integer("count", count, 0)
        bad, harm = self._bad(), self.harm()
        # What was bad first is nearer to the cause: the others may only pass it on.
        first = np.argmax(bad > 0, axis=0) if len(bad) else np.zeros(len(harm), np.intp)
        order = np.lexsort((first, -harm))
        return np.asarray(order[harm[order] > 0][:count])

    def plot(self, measure: str = "underflow", count: int = 30, *, ax: Axes | None = None) -> Axes:
        """A heat map of a measure, of so many of its worst values against steps (needs matplotlib).

        Raises:
            ValueError: an unknown measure.
        """
        return plot_shares(self, measure, count, ax)

    def plot_exponents(self, name: str, *, ax: Axes | None = None) -> Axes:
        """A value's exponents against steps, and the range of its format (needs matplotlib).

        Raises:
            KeyError: no value of that name was watched.
        """
        return plot_exponents(self, name, ax)

    def table(self, count: int = 10, title: str = "") -> Table:
        """The worst values, each with its largest share in any look, its mean, the step at which it first was bad.

        Where names say no parameter and no layer, the layer that their operands come from stands beside them.
        """
        rows = [self._row(place) for place in self.worst(count)]
        looks = f"{len(self.rows)} looks at {len(self.values)} values"
        healthy = len(self.rows) and not len(self.worst(1))
        note = "; largest share in any look (mean)." if rows else ": nothing was lost to rounding." if healthy else "."
        columns: tuple[str, ...] = ("value", "layer", "line", "format", "rms", *BAD, "first at step")
        if not any(near for _, near, *_ in rows):
            columns, rows = (columns[0], *columns[2:]), [(name, *cells) for name, _, *cells in rows]
        return Table(title, columns, tuple(rows), looks + note)

    def _row(self, place: np.intp) -> tuple[str, ...]:
        value, rows = self.values[place], self.rows[:, place]
        shares = {measure: self.share(measure)[:, place] for measure in BAD}
        bad = np.nanmax([np.nan_to_num(share) for share in shares.values()], axis=0) > 0
        cells = [_percent(share) for share in shares.values()]
        first = str(int(rows["step"][np.argmax(bad)]))
        near = value["layer"] if value["name"].startswith(f"{value['role']}.") else ""
        return value["name"], near, value["source"], value["format"], f"{rows['rms'][-1]:.2g}", *cells, first

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _percent(shares: npt.NDArray[np.float64]) -> str:
    known = shares[~np.isnan(shares)]
    return f"{100 * known.max():.3g} % ({100 * known.mean():.3g})" if known.any() else ""
