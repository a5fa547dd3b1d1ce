"""Residency: which values of a Block are on the tiles at each equation, counted from their shapes before planning."""

from typing import NamedTuple

import numpy as np

from ipu_core.chip.target import Target
from ipu_core.compile.labels import value_names
from ipu_core.compile.schedule.starts import NOWHERE, WORD, fullest_tiles, ordered_stays, starts
from ipu_core.errors import OutOfTileMemory
from ipu_core.graph.streams import RemoteBuffer, check_remote_memory
from ipu_core.ir.block import Block, Equation, Var, per_block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.liveness.stays import occupancy
from ipu_core.ir.passes.schedule import schedule

LARGEST = 5  # values named in a refusal


class Peak(NamedTuple):
    """Where the fullest tile is fullest.

    Attributes:
        needed: bytes on it.
        equation: after which that is; None: before the first.
        values: those of which something lies there then, with their bytes.
        tile: its number.
    """

    needed: int
    equation: Equation | None
    values: tuple[tuple[Var, int], ...]
    tile: int = 0


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
def residency(block: Block, target: Target, apart: bool = True) -> Residency:
    """The residency of a Block on a target; made once for all who ask.

    At the peak the operands of an equation count before it and its result after it; not always both at once, since a
    product may be made in several steps. The carried state and constants live all the time, what is streamed of it from
    its load to its last use.
    """
    equations, found = equations_of(block), ordered_stays(block, target)
    count = len(equations) + 1  # place 0 is before the first equation
    # `during` counts operands beside the result of their last reader, `after` no longer.
    spans = [[(stay.first + 1, stay.last + more) for stay in found] for more in (1, 0)]
    peak, most = Peak(-1, None, ()), np.zeros(count, np.int64)
    for tiles, sizes in fullest_tiles(block, target, starts(block, target) if apart else NOWHERE):
        during, after = (occupancy(each, sizes, count) for each in spans)
        # Inputs that nobody reads are there before the first equation too.
        after[:, 0], most = during[:, 0], np.maximum(most, during.max(0))
        at, place = divmod(int(after.argmax()), count)
        if after[at, place] > peak.needed:
            alive = zip(found, sizes[at].tolist(), strict=True)
            there = [(s.var, size) for s, size in alive if size and s.first < place <= max(0, s.last)]
            peak = Peak(int(after[at, place]), equations[place - 1] if place else None, tuple(there), int(tiles[at]))
    room = target.tile_memory - most[1:]
    return Residency(peak, {equation.number: left for equation, left in zip(equations, room.tolist(), strict=True)})


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
    there = dict(peak.values)
    constants = sum(there.get(var, 0) for var in block.constants)
    kept = sum(there.get(var, 0) for var in block.inputs[: block.carried])
    shown = {"variables": kept, "constants": constants, "temporaries": peak.needed - kept - constants}
    largest = sorted(((names[var], size) for var, size in there.items()), key=lambda item: -item[1])[:LARGEST]
    step = "" if peak.equation is None else peak.equation.name
    raise OutOfTileMemory(peak.tile, peak.needed, target.tile_memory, shown, largest, step, before_planning=True)
