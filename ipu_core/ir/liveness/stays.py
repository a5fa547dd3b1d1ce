"""Stays: memory of a machine that holds a value for a time, also while that waits in streaming memory in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.ir.block import Block, Equation, Var, per_block
from ipu_core.ir.bodies import equations_of, inputs_of, outputs_of, regions_of
from ipu_core.ir.liveness.lifetimes import START, in_place, lifetimes, until_chosen
from ipu_core.ir.regions import Loop

PHASES = {"forward": 0, "grad_input": 1, "grad_weight": 1, "optimizer": 2, "update": 2}
"""What is read in several of these parts of a step is loaded anew for each: it need not stay in between."""


class Stay(NamedTuple):
    """Memory that holds a value for a time, by positions of equations.

    Attributes:
        var: the value whose memory it is. Where a new value is written over it, that is what is read in the end.
        first: the equation that makes it, or before which it is loaded; START: it is there from the start.
        last: the equation after which nothing needs it; the number of equations: it lives to the end.
        readers: the equations that compute with what lies there, in order.
        maker: the equation that makes it, or what is written over it; None: it stays as it came.
        loaded: whether it comes from streaming memory.
    """

    var: Var
    first: int
    last: int
    readers: Sequence[int] = ()
    maker: int | None = None
    loaded: bool = False


def phase(equation: Equation) -> int:
    """The part of the step that an equation belongs to; a copy of a forward one is made for the gradients."""
    return PHASES["forward" if equation.drawn is None else "grad_input"] or PHASES[equation.role]


def _parts(block: Block, var: Var) -> list[list[int]]:
    """The equations that compute with what lies in a value's memory, cut where another part of the step begins."""
    equations, readers = equations_of(block), lifetimes(block).readers[var]
    return [list(group) for _, group in groupby(readers, key=lambda position: phase(equations[position]))]


@per_block
def stored(block: Block) -> Mapping[int, int]:
    """By position in the carried state of what is streamed, the equation after which its new value is stored."""
    known, outputs, chosen = lifetimes(block), outputs_of(block), until_chosen(block)
    found, latest = dict[int, int](), len(equations_of(block)) - 1
    for number in sorted(block.streamed):
        old = block.inputs[number]
        first = min(chosen.get(old, 0), latest)
        found[number] = max(known.made[outputs[number]], first, *known.readers[old])  # which read it where it is
    return found


@per_block
def stays(block: Block) -> tuple[Stay, ...]:
    """All times for which something is in memory, but for new values that are written over old ones that stay.

    What is streamed is there once for every part of the step that reads it. Of the state that comes first, then what is
    there from the start, then what equations make, each with the times for which it comes back.
    """
    return *_streamed(block), *_from_start(block), *_made(block)


def _streamed(block: Block) -> Iterator[Stay]:
    known, over, outputs = lifetimes(block), in_place(block), outputs_of(block)
    for number, store in stored(block).items():
        old, new = block.inputs[number], outputs[number]
        times = [Stay(old, part[0], part[-1], part, loaded=True) for part in _parts(block, old)]
        if times and over.get(new) is old:  # the new value lies where the old was
            last, after = times[-1], known.readers[new]
            readers = [*last.readers, *after]
            times[-1] = last._replace(last=max([store, *after]), readers=readers, maker=known.made[new])
        yield from times


def _from_start(block: Block) -> Iterator[Stay]:
    known, over, end = lifetimes(block), in_place(block), len(equations_of(block))
    for number, var in enumerate(inputs_of(block)):
        if number not in block.streamed:
            yield Stay(var, START, end if number < block.carried else known.last.get(var, START))
    yield from (Stay(var, START, end) for var in block.constants)
    for loop, step in regions_of(block, Loop):
        for old, new in loop.carries:
            if over.get(new) is old:
                readers = [*known.readers[old], *known.readers[new]]
                yield Stay(old, START, known.last[new], readers, known.made[new])
            else:  # it is copied there after each iteration
                yield Stay(old, START, step.last - 1)


def _made(block: Block) -> Iterator[Stay]:
    known, over, outputs, equations = lifetimes(block), in_place(block), outputs_of(block), equations_of(block)
    stores = {known.views[outputs[number]].root: store for number, store in stored(block).items()}
    for position in known.computing:
        var = equations[position].output
        if var in over:
            continue
        readers = known.readers[var]
        if var in block.offloaded:
            parts = _parts(block, var)
            here = parts.pop(0) if parts and not phase(equations[parts[0][0]]) else []
            yield Stay(var, position, max([position, *here]), here, position)
            yield from (Stay(var, part[0], part[-1], part, loaded=True) for part in parts)
        else:
            last = known.last.get(var, len(equations))  # of a flag: it is for regions
            yield Stay(var, position, max([stores[var], *readers]) if var in stores else last, readers, position)


def occupancy(
    spans: Iterable[tuple[int, int]], sizes: Sequence[int] | npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int64]:
    """The bytes at each of `count` places, where arrays of these sizes live each from its first to its last place.

    Args:
        spans: of each array.
        sizes: (.., arrays), such as those of the parts on several tiles.
        count: of places, which are behind the other axes of the result.
    """
    first, last = np.array(list(spans), np.int64).reshape(-1, 2).T
    begun, ended = (_until(np.asarray(sizes, np.int64), *ends, count) for ends in ((first, "right"), (last, "left")))
    return begun - ended


def _until(
    sizes: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], side: Literal["left", "right"], count: int
) -> npt.NDArray[np.int64]:
    """At each place the bytes of all whose end is before it, or there too."""
    order = ends.argsort(kind="stable")
    total = np.zeros((*sizes.shape[:-1], ends.size + 1), np.int64)
    sizes[..., order].cumsum(-1, out=total[..., 1:])
    return total[..., np.searchsorted(ends[order], np.arange(count), side)]
