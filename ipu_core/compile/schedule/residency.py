"""Residency: which values of a Block are on the tiles at each equation, counted from their shapes before planning."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.compile.labels import label, value_names
from ipu_core.compile.schedule.transfers import transfers
from ipu_core.errors import OutOfTileMemory
from ipu_core.graph.program import RemoteBuffer, check_remote_memory
from ipu_core.graph.tensor import element_type
from ipu_core.ir.block import Block, Equation, Type, Var, per_block
from ipu_core.ir.bodies import carries_of, equations_of, inputs_of, regions_of
from ipu_core.ir.lifetimes import in_place, lifetimes
from ipu_core.ir.passes.schedule import schedule
from ipu_core.ir.regions import Loop
from ipu_core.placement.layout import linear_layout
from lowprec.integers import ceil_div

WORD = 8  # bytes
LARGEST = 5  # values named in a refusal


class Peak(NamedTuple):
    """Where the fullest tile is fullest.

    Attributes:
        needed: bytes on it.
        tile: its number.
        equation: after which that is; None: before the first.
        values: that live there.
    """

    needed: int
    tile: int
    equation: Equation | None
    values: tuple[Var, ...]


class Residency(NamedTuple):
    """What the values of a Block need of a target, in the layout every array gets.

    Attributes:
        peak: the most that a tile needs.
        free: by equation number, the bytes left on the fullest tile while its operands and its result live both;
            negative where they do not fit.
    """

    peak: Peak
    free: dict[int, int]


class _Live:
    """Values that live at one place, and their bytes on each tile."""

    def __init__(self, target: Target, own: set[Var]) -> None:
        self.target, self.own = target, own
        self.values: dict[Var, None] = {}
        self.total = np.zeros(target.tiles, np.int64)

    def born(self, *new: Var) -> None:
        """Further values; those without memory of their own do not count."""
        for var in new:
            if var in self.own and var not in self.values:
                self.values[var] = None
                self.total = self.total + array_bytes(self.target, var.type)

    def gone(self, *dead: Var) -> None:
        """Values that are read no more."""
        for var in dead:
            if var in self.values:
                del self.values[var]
                self.total = self.total - array_bytes(self.target, var.type)

    def peak(self, equation: Equation | None) -> Peak:
        """The fullest tile now."""
        tile = int(self.total.argmax())
        return Peak(int(self.total[tile]), tile, equation, tuple(self.values))


@per_block
def residency(block: Block, target: Target) -> Residency:
    """The residency of a Block on a target; made once for all who ask.

    At the peak the operands of an equation count before it and its result after it; not always both at once, since a
    product may be made in several steps. The carried state and constants live all the time, what is streamed of it from
    its load to its last use.
    """
    views, last = lifetimes(block)
    live = _Live(target, {var for var, view in views.items() if view.root is var} - in_place(block).keys())
    inputs = inputs_of(block)
    here = (var for i, var in enumerate(inputs) if i not in block.streamed)
    live.born(*here, *block.constants, *(old for old, _ in carries_of(block)))
    peak, free = live.peak(None), dict[int, int]()
    live.gone(*(var for var in inputs[block.carried :] if var not in last))
    loads, ends = transfers(block).loads, _ends(block)
    for position, equation in enumerate(equations_of(block)):
        live.born(*loads.get(position, ()), equation.output)
        free[equation.number] = target.tile_memory - int(live.total.max())
        live.gone(*ends.get(position, ()))
        peak = max(peak, live.peak(equation), key=lambda one: one.needed)
    return Residency(peak, free)


def _ends(block: Block) -> Mapping[int, Sequence[Var]]:
    """Values in whose memory nothing is read after an equation, by its position."""
    last, over = lifetimes(block).last, in_place(block)
    always = {*block.inputs[: block.carried], *block.constants, *(old for old, _ in carries_of(block))}
    ends: dict[int, list[Var]] = {}
    for var, end in last.items():
        if var not in always:
            ends.setdefault(end, []).append(var)
    for loop, step in regions_of(block, Loop):
        for old, new in loop.carries:  # which lies there too, or is copied there after each iteration
            ends.setdefault(last[new] if over.get(new) is old else step.last - 1, []).append(old)
    for end, streamed in transfers(block).frees.items():
        ends.setdefault(end, []).extend(streamed)
    return ends


@lru_cache(maxsize=256)
def array_bytes(target: Target, kind: Type) -> Ints:
    """Bytes of an array on each tile in the layout of its shape, padded to whole words as an engine pads them."""
    layout = linear_layout(target, kind.shape)
    starts = np.arange(target.tiles, dtype=np.int64) * layout.chunk
    held = np.clip(layout.size - starts, 0, layout.chunk) * element_type(kind.format)[1].itemsize
    padded: Ints = ceil_div(held, WORD) * WORD
    return padded


def scheduled(block: Block, target: Target) -> Block:
    """The Block in an order in which its values need less of the fullest tile, see `schedule`."""
    return schedule(block, WORD * target.tiles)


def check_room(block: Block, target: Target) -> None:
    """Refuses a Block whose values alone, in the layout every array gets, need more memory than a tile has.

    What is counted is exact for the values and a lower bound for the program, which also holds gathered operands,
    partial sums, vertex state and code: nothing is refused that would fit.

    Args:
        block: typed, with its carried state, which lives all the time.
        target: the chip.

    Raises:
        OutOfTileMemory: naming the fullest tile, its bytes and the largest values.
        OutOfStreamingMemory: what is streamed does not fit streaming memory.
    """
    names = value_names(block)
    far = (*(block.inputs[i] for i in sorted(block.streamed)), *block.offloaded)
    check_remote_memory([RemoteBuffer(names[var], var.type.format, var.type.shape) for var in far], target)
    peak = residency(block, target).peak
    if peak.needed <= target.tile_memory:
        return
    there = {var: int(array_bytes(target, var.type)[peak.tile]) for var in peak.values}
    constants = sum(there[var] for var in block.constants)
    kept = sum(there.get(var, 0) for var in block.inputs[: block.carried])
    shown = {"variables": kept, "constants": constants, "temporaries": peak.needed - kept - constants}
    largest = sorted(((names[var], size) for var, size in there.items()), key=lambda item: -item[1])[:LARGEST]
    step = "" if peak.equation is None else label(peak.equation)
    raise OutOfTileMemory(peak.tile, peak.needed, target.tile_memory, shown, largest, step, before_planning=True)
