"""Residency: which values of a Block are on the tiles at each equation, counted from their shapes before planning."""

from functools import lru_cache
from typing import NamedTuple

from ipu_core.chip.target import Target
from ipu_core.compile.constants import Held, held_constants
from ipu_core.compile.labels import value_names
from ipu_core.errors import OutOfTileMemory
from ipu_core.graph.program import RemoteBuffer, check_remote_memory
from ipu_core.ir.block import Block, Equation, Type, Var, dtype_of, per_block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.liveness.occupancy import occupancy
from ipu_core.ir.liveness.stays import stays
from ipu_core.ir.passes.schedule import schedule
from ipu_core.placement.layout import linear_layout
from lowprec.integers import ceil_div

WORD = 8  # bytes
FULLEST = 0  # the tile that has most of every array
LARGEST = 5  # values named in a refusal


class Peak(NamedTuple):
    """Where the fullest tile is fullest.

    Attributes:
        needed: bytes on it.
        equation: after which that is; None: before the first.
        values: that live there.
    """

    needed: int
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


@per_block
def residency(block: Block, target: Target) -> Residency:
    """The residency of a Block on a target; made once for all who ask.

    At the peak the operands of an equation count before it and its result after it; not always both at once, since a
    product may be made in several steps. The carried state and constants live all the time, what is streamed of it from
    its load to its last use.
    """
    equations, found = equations_of(block), sorted(stays(block), key=lambda stay: stay.first)
    held = held_constants(block)
    sizes = [
        tile_bytes(target, stay.var.type) if stay.var not in held else _constant_bytes(target, held[stay.var], stay.var)
        for stay in found
    ]
    # `during` counts operands beside the result of their last reader, `after` no longer.
    during, after = (
        occupancy([(stay.first + 1, stay.last + more) for stay in found], sizes, len(equations) + 1) for more in (1, 0)
    )  # place 0 is before the first equation
    # Inputs that nobody reads are there before the first equation too.
    after[0] = during[0]
    place = int(after.argmax())
    there = tuple(stay.var for stay in found if stay.first < place <= max(0, stay.last))
    peak = Peak(int(after[place]), equations[place - 1] if place else None, there)
    room = target.tile_memory - during[1:]
    return Residency(peak, {equation.number: left for equation, left in zip(equations, room.tolist(), strict=True)})


def _constant_bytes(target: Target, held: Held, var: Var) -> int:
    """Bytes of a constant on the fullest tile; 0 where an equal one is there already."""
    return tile_bytes(target, held.type) if held.first is var else 0


@lru_cache(maxsize=256)
def tile_bytes(target: Target, kind: Type) -> int:
    """Bytes of an array on the fullest tile in the layout of its shape, in whole words as an engine pads them."""
    most = min(kind.size, linear_layout(target, kind.shape).chunk) * dtype_of(kind.format).itemsize
    return ceil_div(most, WORD) * WORD


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
    there, held = {var: tile_bytes(target, var.type) for var in peak.values}, held_constants(block)
    there |= {var: _constant_bytes(target, held[var], var) for var in block.constants}
    constants = sum(there[var] for var in block.constants)
    kept = sum(there.get(var, 0) for var in block.inputs[: block.carried])
    shown = {"variables": kept, "constants": constants, "temporaries": peak.needed - kept - constants}
    largest = sorted(((names[var], size) for var, size in there.items()), key=lambda item: -item[1])[:LARGEST]
    step = "" if peak.equation is None else peak.equation.name
    raise OutOfTileMemory(FULLEST, peak.needed, target.tile_memory, shown, largest, step, before_planning=True)
