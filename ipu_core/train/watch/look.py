"""A look at one step: what an executable tells of its equations, added up value by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipu_core.ir.block import Array, Block, Equation
from ipu_core.ir.measure import BINADES, Measured, again, binades, ideal, looked_at, measured, single, spread, wide
from ipu_core.train.watch.values import WatchedValue
from lowprec import FloatFormat
from lowprec import float32 as FLOAT32

COUNTS = ("elements", "zeros", "infinite", "nan", "underflow", "overflow", "saturated", "wanted", "lost")
ROW = np.dtype(
    [("step", "<i8"), *((name, "<i8") for name in COUNTS), ("rms", "<f8"), ("largest", "<f8"),
     ("histogram", "<u4", (BINADES,))]
)  # fmt: skip
"""What is kept of a value of one step; see `Record`."""


LOST_OF = 2**14  # elements of a moment that are computed again
Places = Mapping[int, Sequence[tuple[int, bool]]]
"""By the number of an equation: the places among the values of what it makes, and whether it rounds."""


class Look:
    """An observer of one step (see `Observer`).

    Args:
        places, values: What it looks at.
        old: The moments before the step, by the numbers of the equations that make the new ones.
    """

    def __init__(self, places: Places, values: Sequence[WatchedValue], old: Mapping[int, Array]):
        self._places, self._values, self._old = places, values, old
        self._seen: list[list[Measured]] = [[] for _ in values]
        self._changes: list[list[tuple[int, int]]] = [[] for _ in values]

    def __call__(self, equation: Equation, operands: Sequence[Any], result: Array) -> None:
        """Looks at what an equation made."""
        for place, rounding in self._places.get(equation.number, ()):
            kind = self._values[place].kind
            if kind == "update":
                change = _change(equation, operands)
                self._seen[place].append(looked_at(change, FLOAT32))
                self._changes[place].append(_lost(change != 0, *_singles(equation, operands[0], result)))
                continue
            self._seen[place].append(measured(equation, operands, result, rounding))
            if kind == "moment":
                self._changes[place].append(_lost_moments(equation, operands, self._old[equation.number], result))

    def rows(self, step: int) -> npt.NDArray[np.void]:
        """What was seen, as a row of ROW for each value; rows of a value that was not computed hold no elements."""
        rows = np.zeros(len(self._values), ROW)
        rows["step"] = step
        some = [place for place, seen in enumerate(self._seen) if seen]
        if not some:
            return rows
        ones = [one for seen in self._seen for one in seen]
        starts = np.cumsum([0, *(len(self._seen[place]) for place in some[:-1])])
        counts = np.add.reduceat(np.array([one.counts for one in ones]), starts)
        for name, column in zip(COUNTS, counts.T, strict=False):  # the last two are those of changes
            rows[name][some] = column
        for place, changes in enumerate(self._changes):
            if changes:
                rows["wanted"][place], rows["lost"][place] = np.sum(changes, axis=0)
        finite = rows["elements"] - rows["infinite"] - rows["nan"]
        squares = np.add.reduceat([one.squares for one in ones], starts)
        rows["rms"][some] = np.sqrt(squares / np.maximum(finite[some], 1))
        rows["largest"][some] = np.maximum.reduceat([one.largest for one in ones], starts)
        rows["histogram"][some] = binades(np.add.reduceat([one.histogram for one in ones], starts))
        return rows


def _change(equation: Equation, operands: Sequence[Any]) -> Array:
    """The change that an update wants, direction times scale, in float32."""
    _, direction, scale = operands
    fmt = equation.operands[1].type.format
    assert isinstance(fmt, FloatFormat)
    with np.errstate(all="ignore"):
        return np.asarray(single(direction, fmt) * np.float32(scale))


def _lost_moments(equation: Equation, operands: Sequence[Any], old: Array, result: Array) -> tuple[int, int]:
    """The same of a moment, by elements evenly spaced where it has more than LOST_OF."""
    if result.size <= LOST_OF:
        wanted = ideal(equation, operands) != wide(old, equation.output)
        return _lost(wanted, *_singles(equation, old, result))
    at, made = again(equation, operands, spread(result.size, LOST_OF))
    before, after = _singles(equation, old.reshape(-1)[at], result.reshape(-1)[at])
    changed, kept = _lost(made != before, before, after)
    return round(changed * result.size / at.size), round(kept * result.size / at.size)


def _singles(equation: Equation, *arrays: Array) -> list[Array]:
    """Values in the format of a result in float32."""
    fmt = equation.output.type.format
    assert isinstance(fmt, FloatFormat)
    return [single(x, fmt) for x in arrays]


def _lost(wanted: Array, before: Array, after: Array) -> tuple[int, int]:
    """How many changes were wanted, and how many of those elements kept their value."""
    return int(np.count_nonzero(wanted)), int(np.count_nonzero(wanted & (before == after)))


def new_state(block: Block) -> dict[int, int]:
    """The equations that make the new state, by number, each with the position of what it replaces."""
    made = {equation.output: equation.number for equation in block.equations}
    outputs = enumerate(block.outputs[: block.carried])
    return {made[var]: position for position, var in outputs if var in made}
