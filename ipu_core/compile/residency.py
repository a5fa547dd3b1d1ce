"""Whether the values of a Block can fit the tiles at all: counted from their shapes, before anything is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.compile.aliasing import homes, in_place, label, state_name
from ipu_core.errors import OutOfTileMemory
from ipu_core.graph.tensor import element_type
from ipu_core.ir.block import Block, Equation, Var
from ipu_core.plan.layout import linear_layout
from ipu_core.target import Target

__all__ = ["check_room", "free_bytes"]

Ints = npt.NDArray[np.int64]
Sizes = Mapping[Var, Ints]
LARGEST = 5  # values named in a refusal


class _Live(NamedTuple):
    """Values that live at one place, and their bytes on each tile."""

    values: frozenset[Var]
    total: Ints

    def born(self, new: Iterable[Var], sizes: Sizes) -> _Live:
        """With further values; those without memory of their own do not count."""
        mine = {var for var in new if var in sizes} - self.values
        return _Live(self.values | mine, sum((sizes[var] for var in mine), self.total))

    def gone(self, dead: Iterable[Var], sizes: Sizes) -> _Live:
        """Without some of them."""
        mine = self.values & set(dead)
        return _Live(self.values - mine, self.total - sum((sizes[var] for var in mine), np.zeros_like(self.total)))


class _Peak(NamedTuple):
    """The place of a program at which the fullest tile is fullest."""

    needed: int
    tile: int
    step: str
    live: frozenset[Var]


def check_room(block: Block, target: Target) -> None:
    """Refuses a Block whose values alone, in the layout every array gets, need more memory than a tile has.

    What is counted is exact for the values and a lower bound for the program, which also holds gathered operands,
    partial sums, vertex state and code: nothing is refused that would fit.

    Args:
        block: typed, with its carried state, which lives all the time.
        target: the chip.

    Raises:
        OutOfTileMemory: naming the fullest tile, its bytes and the largest values.
    """
    always = frozenset([*block.inputs[: block.carried], *block.constants])
    sizes = {var: _bytes(var, target) for var in _stored(block)}
    peak = max(_places(block, sizes, target), key=lambda place: place.needed)
    if peak.needed <= target.tile_memory:
        return
    there = {var: int(sizes[var][peak.tile]) for var in peak.live}
    constants = sum(there[var] for var in block.constants)
    kept = sum(there[var] for var in always) - constants
    shown = {"variables": kept, "constants": constants, "temporaries": peak.needed - kept - constants}
    names = _names(block)
    largest = sorted(((names[var], size) for var, size in there.items()), key=lambda item: -item[1])[:LARGEST]
    raise OutOfTileMemory(
        peak.tile, peak.needed, target.tile_memory, shown, largest, peak.step, before_planning=True
    )  # fmt: skip


def _stored(block: Block) -> Iterator[Var]:
    """The values that have memory of their own: no views, and no new state computed over the old one."""
    where = homes(block)
    over = in_place(block, where)
    for var in [*block.inputs, *block.constants, *(equation.output for equation in block.equations)]:
        if where.roots[var] is var and var not in over:
            yield var


def _bytes(var: Var, target: Target) -> Ints:
    """Bytes of a value on each tile in the layout of its shape, padded to whole words as an engine pads them."""
    layout = linear_layout(target, var.type.shape)
    starts = np.arange(target.tiles, dtype=np.int64) * layout.chunk
    held = np.clip(layout.size - starts, 0, layout.chunk) * np.dtype(element_type(var.type.format)[1]).itemsize
    padded: Ints = -(-held // 8) * 8
    return padded


def free_bytes(block: Block, target: Target) -> dict[int, int]:
    """Bytes that the values of a Block leave free on the fullest tile while each equation runs, by its number.

    Operands and result of the equation count as living both. Negative where the values do not fit.
    """
    sizes = {var: _bytes(var, target) for var in _stored(block)}
    none = np.zeros(target.tiles, np.int64)
    return {
        equation.number: target.tile_memory - int((before.total + sizes.get(equation.output, none)).max())
        for equation, before, _ in _lives(block, sizes, target)
    }


def _places(block: Block, sizes: Sizes, target: Target) -> Iterator[_Peak]:
    """The fullest tile before the step, and before and after every equation.

    Before an equation its operands live, after it its result; not always both at once, since a product may be made in
    several steps.
    """
    start = _Live(frozenset(), np.zeros(target.tiles, np.int64)).born([*block.inputs, *block.constants], sizes)
    yield _peak("", start)
    for equation, before, after in _lives(block, sizes, target):
        yield _peak(label(equation), before)
        yield _peak(label(equation), after)


def _lives(block: Block, sizes: Sizes, target: Target) -> Iterator[tuple[Equation, _Live, _Live]]:
    """Every equation with the values that live before and after it."""
    roots, end = homes(block).roots, len(block.equations)
    last = dict.fromkeys([*block.inputs[: block.carried], *block.constants, *(roots[v] for v in block.outputs)], end)
    for position, equation in enumerate(block.equations):
        for var in equation.operands:
            last[roots[var]] = max(last.get(roots[var], -1), position)
    used = [var for var in [*block.inputs, *block.constants] if var in last]
    live = _Live(frozenset(), np.zeros(target.tiles, np.int64)).born(used, sizes)
    for position, equation in enumerate(block.equations):
        before = live
        live = live.gone([roots[var] for var in equation.operands if last[roots[var]] == position], sizes)
        live = live.born([equation.output], sizes)
        yield equation, before, live


def _peak(step: str, live: _Live) -> _Peak:
    tile = int(live.total.argmax())
    return _Peak(int(live.total[tile]), tile, step, live.values)


def _names(block: Block) -> dict[Var, str]:
    names = {var: state_name(block, var) for var in block.inputs[: block.carried]}
    names |= {var: f"input.{var.name}" for var in block.inputs[block.carried :]}
    names |= {var: f"constant.{var.name}" for var in block.constants}
    return names | {equation.output: label(equation) for equation in block.equations}
