"""A look at one step: measures the results of its equations and adds them up by watched value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.diagnose.measure import (
    BINADES,
    HISTOGRAM_OF,
    Histogram,
    Measured,
    Measuring,
    again,
    binades,
    is_rounded,
    one_number,
    spread,
    wide,
)
from ipu_core.diagnose.watch.values import WatchedValue
from ipu_core.diagnose.wide_counts import counted_wide
from ipu_core.ir.block import Array, Atom, Block, Equation, Literal, Var
from ipu_core.ir.bodies import equations_of, outputs_of
from lowprec import FloatFormat, backends
from lowprec.statistics.counts import EXPONENTS, as_counted, step_through
from lowprec.statistics.updates import UpdateCount, changes, wanted_and_lost

COUNTS = ("elements", "zeros", "infinite", "nan", "underflow", "overflow", "saturated", "wanted", "lost")
ROW = np.dtype(
    [("step", "<i8"), *((name, "<i8") for name in COUNTS), ("rms", "<f8"), ("largest", "<f8"),
     ("histogram", "<u4", (BINADES,))]
)  # fmt: skip
"""What is kept of a value of one step; see `Record`."""


LOST_OF = 2**16  # elements of a moment that are computed again
Seen = tuple[Measured, tuple[int, int]]
"""A value's statistics, how many changes were wanted, and how many of these were lost."""
NO_CHANGES = (0, 0)


class Probe(NamedTuple):
    """How a value is looked at, which does not change from look to look.

    Attributes:
        row: Its place among the values.
        kind: Its kind.
        measure: Measures it; that of a weight where the value is an update.
    """

    row: int
    kind: str
    measure: Measuring


def places(values: Sequence[WatchedValue], block: Block) -> dict[int, list[Probe]]:
    """The probes of a typed step's values, by the number of the equation that makes them."""
    equations = {equation.number: equation for equation in equations_of(block)}
    found: dict[int, list[Probe]] = {}
    for row, value in enumerate(values):
        equation = equations[value.equation]
        found.setdefault(value.equation, []).append(Probe(row, value.kind, Measuring(equation, is_rounded(equation))))
    return found


class Look:
    """An observer of one step (see `Observer`).

    Args:
        looked_at: What it looks at (see `places`).
        count: How many values there are.
        old: The moments before the step, by the numbers of the equations that make the new ones.
    """

    def __init__(self, looked_at: Mapping[int, Sequence[Probe]], count: int, old: Mapping[int, Array]):
        self._places, self._old = looked_at, old
        self._seen: list[list[Seen]] = [[] for _ in range(count)]
        self._histograms = np.zeros((count, EXPONENTS), np.int64)
        self._rows = list(self._histograms)

    def __call__(self, equation: Equation, operands: Sequence[Any], result: Array) -> None:
        """Looks at what an equation made."""
        for row, kind, measure in self._places[equation.number]:
            if kind == "update":
                look = _wide_update if measure.in_float64 else _update
                seen = look(equation, operands, result, self._rows[row])
            elif kind == "moment":
                lost = _moment(equation, operands, self._old[equation.number], result, measure.in_float64)
                seen = measure(operands, result, self._rows[row]), lost
            else:
                seen = measure(operands, result, self._rows[row]), NO_CHANGES
            self._seen[row].append(seen)

    def rows(self, step: int) -> npt.NDArray[np.void]:
        """What was seen, as a row of ROW for each value; rows of a value that was not computed hold no elements."""
        rows = np.zeros(len(self._seen), ROW)
        rows["step"] = step
        some = [place for place, seen in enumerate(self._seen) if seen]
        if not some:
            return rows
        ones = [one for seen in self._seen for one in seen]
        # A value in a loop is seen once an iteration; reduceat adds up the iterations of all values in one call.
        starts = np.cumsum([0, *(len(self._seen[place]) for place in some[:-1])])
        counts = np.add.reduceat(np.array([(*one[:7], *changes) for one, changes in ones]), starts)
        for name, column in zip(COUNTS, counts.T, strict=True):
            rows[name][some] = column
        squares, largest = np.array([(one.squares, one.largest) for one, _ in ones]).T
        elements, _, infinite, nan = counts.T[:4]
        # The mean is over finite elements: infinities are no zeros.
        rows["rms"][some] = np.sqrt(np.add.reduceat(squares, starts) / np.maximum(elements - infinite - nan, 1))
        rows["largest"][some] = np.maximum.reduceat(largest, starts)
        rows["histogram"] = binades(self._histograms)
        return rows


def _update(equation: Equation, operands: Sequence[Any], result: Array, histogram: Histogram) -> Seen:
    """Statistics of the change that an update wants, direction times scale in float32, and how much of it was lost."""
    weight, direction = (_counted(x, atom, result) for x, atom in zip(operands[:2], equation.inputs, strict=False))
    size, factor = result.size, float(np.float32(operands[2]))
    most = min(HISTOGRAM_OF, size)
    step = step_through(size, most)
    zeros, infinite, nan, squares, largest = backends.current().magnitudes(direction, most, step, histogram, factor)
    lost = changes(None, direction, factor, weight, _counted(result, equation.output, result), size, 1)
    return Measured(size, zeros, infinite, nan, 0, 0, 0, squares, largest, histogram), lost


def _wide_update(equation: Equation, operands: Sequence[Any], result: Array, histogram: Histogram) -> Seen:
    """As `_update`, in float64."""
    atoms = (*equation.inputs[:2], equation.output)
    weight, direction, new = (wide(x, atom) for x, atom in zip((*operands[:2], result), atoms, strict=True))
    change = np.broadcast_to(direction * float(operands[2]), result.shape)
    size, most = result.size, min(HISTOGRAM_OF, result.size)
    zeros, infinite, nan, squares, largest = counted_wide(change, most, step_through(size, most), histogram)
    count = UpdateCount.of(weight, change, new)
    return Measured(size, zeros, infinite, nan, 0, 0, 0, squares, largest, histogram), (count.wanted, count.lost)


def _moment(
    equation: Equation, operands: Sequence[Any], old: Array, result: Array, in_float64: bool
) -> tuple[int, int]:
    """How many changes a moment wanted, and lost; by elements evenly spaced where it has more than LOST_OF."""
    before, after = (
        wide(x, equation.output) if in_float64 else _counted(x, equation.output, result) for x in (old, result)
    )
    size, most = result.size, min(result.size, LOST_OF)
    # Most moments are such a sum, which the compiled pass takes; any other equation is computed again.
    sums = [atom for atom in equation.inputs[:2] if isinstance(atom, Var) and atom.type.size == size]
    if equation.op == "scaled_add" and not in_float64 and len(sums) == 2 and one_number(equation.inputs[2]):
        base, direction = (_counted(x, atom, result) for x, atom in zip(operands, sums, strict=False))
        step = step_through(size, most)
        wanted, lost = changes(base, direction, float(operands[2]), before, after, most, step)
    else:
        at, made = again(equation, operands, np.arange(size) if most == size else spread(size, most))
        there = before.flat[at].astype(np.float64)
        # A run that diverged has infinities.
        with np.errstate(invalid="ignore"):
            masks = wanted_and_lost(there, made - there, after.flat[at])
        most, (wanted, lost) = at.size, map(int, map(np.count_nonzero, masks))
    # Counts of a sample stand for all elements.
    return round(wanted * size / max(1, most)), round(lost * size / max(1, most))


def _counted(x: Any, atom: Atom, like: Array) -> Array:
    """Values in a format that the compiled counts take, broadcast to the shape of `like`."""
    if isinstance(atom, Literal):
        return np.full(like.shape, x, np.float32)
    assert isinstance(atom.type.format, FloatFormat)
    array = as_counted(x, atom.type.format)
    return array if array.shape == like.shape else np.broadcast_to(array, like.shape)


def new_state(block: Block) -> dict[int, int]:
    """The equations that make the new state, by number, each with the position of what it replaces."""
    made = {equation.output: equation.number for equation in equations_of(block)}
    outputs = enumerate(outputs_of(block)[: block.carried])
    return {made[var]: position for position, var in outputs if var in made}
