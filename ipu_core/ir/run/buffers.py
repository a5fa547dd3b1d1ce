"""Arrays of a Block that `execute` runs: views cost nothing, results share buffers when their lifetimes do not meet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ipu_core.chip.arrays import LINE, aligned
from ipu_core.ir.block import Array, Block, Var, dtype_of
from ipu_core.ir.bodies import carries_of, equations_of, inputs_of, own_of
from ipu_core.ir.exact import exact
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.run.fusions import Fusion, only_inside, written_over
from lowprec.integers import ceil_div


@dataclass(frozen=True)
class Buffers:
    """Arrays for the values of a Block.

    Attributes:
        arrays: an array for every value, the same in every run. Of a value that only a fusion reads there is a piece in
            memory: its array begins there and goes on as if it were whole, for the fusion, not to be read.
        bytes: bytes of the buffers that results share.
        pieces: memory for the pieces of fusions.
        in_pieces: the values that only a fusion reads.
    """

    arrays: Mapping[Var, Array]
    bytes: int
    pieces: Array = field(default_factory=lambda: aligned(0, np.dtype(np.uint8)))
    in_pieces: frozenset[Var] = frozenset()


def allocate(
    block: Block,
    over: Mapping[Var, Var],
    fusions: Sequence[Fusion] = (),
    whole: Collection[Var] = (),
    held: Mapping[Var, Array] | None = None,
) -> Buffers:
    """Plans the arrays of a Block, given its order: the memory of a result is another's after its last use.

    Args:
        block: what is to be run.
        over: values that are written over an input, or over the total of the iteration before.
        fusions: neighbours that are computed together. What one of more than one piece reads and writes lives until all
            its pieces are done.
        whole: values that fusions write whole into memory, where they stay until the fusions that read them are done.
        held: arrays that there are already, of inputs and constants.
    """
    own, equations = (*inputs_of(block), *own_of(block)), equations_of(block)
    arrays = dict(held or {})
    for var in (*own, *block.constants):
        if var not in arrays:
            arrays[var] = aligned(var.type.size, dtype_of(var.type.format)).reshape(var.type.shape)
            if var in block.constants:
                arrays[var][...] = block.constants[var]
    views, (in_pieces, piece_bytes) = lifetimes(block).views, _piece_places(block, fusions, whole)
    kept = frozenset((*own, *block.constants, *over, *in_pieces, *whole, *(new for _, new in carries_of(block))))
    given = {new: old for fusion in fusions for new, old in written_over(block, fusion, kept).items()}
    homes, spans = dict[Var, Var](), dict[Var, tuple[int, int]]()  # whose memory it is, and how long
    for var, (first, last) in _spans(block, [fusion for fusion in fusions if fusion.cut or whole]):
        if var not in over and var not in in_pieces:
            home = homes[var] = homes[given[var]] if var in given else var
            spans[home] = (spans[home][0], max(spans[home][1], last)) if home in spans else (first, last)
    sizes = {home: home.type.nbytes for home in spans}
    places, total = pack([*sizes.values()], [*spans.values()])
    offsets = dict(zip(spans, places, strict=True))
    buffer, pieces = aligned(total, np.dtype(np.uint8)), aligned(piece_bytes, np.dtype(np.uint8))
    for var, home in homes.items():
        memory = buffer[offsets[home] : offsets[home] + sizes[home]]
        arrays[var] = memory.view(dtype_of(var.type.format)).reshape(var.type.shape)
    for var, offset in in_pieces.items():
        piece = pieces[offset:].view(dtype_of(var.type.format))
        arrays[var] = as_strided(piece, var.type.shape, [n * piece.itemsize for n in views[var].strides])
    arrays |= {var: arrays[old] for var, old in over.items()}
    for equation in equations:
        if views[equation.output].root is not equation.output:
            arrays[equation.output] = exact(equation.op, [arrays[equation.operands[0]]], equation.params)
    return Buffers(arrays, total + piece_bytes, pieces, frozenset(in_pieces))


def _spans(block: Block, together: Sequence[Fusion]) -> Iterator[tuple[Var, tuple[int, int]]]:
    """How long every result is needed: those that fusions read or make, from their first to their last equation."""
    known, equations = lifetimes(block), equations_of(block)
    around = {position: fusion for fusion in together for position in range(fusion.first, fusion.last)}
    for var in (equations[position].output for position in known.computing):
        first, last = known.span(var)
        begin, end = around.get(first), around.get(last)
        yield var, (begin.first if begin else first, end.last - 1 if end else last)


def _piece_places(block: Block, fusions: Sequence[Fusion], whole: Collection[Var]) -> tuple[dict[Var, int], int]:
    """Offsets of the values that only fusions read, and bytes, of the memory for pieces; each fusion has it all."""
    offsets, most = dict[Var, int](), 0
    for fusion in fusions:
        inside = [var for var in only_inside(block, fusion) if var not in whole]
        places, total = pack(
            [fusion.piece * var.type.nbytes // fusion.rows for var in inside], [*map(lifetimes(block).span, inside)]
        )
        offsets |= zip(inside, places, strict=True)
        most = max(most, total)
    return offsets, most


def write_back(state: Sequence[Array], new: Sequence[Array]) -> list[tuple[Array, Array]]:
    """Copies, to and from, that put new state over the old: first away what another copy would overwrite."""
    saved, written = [], []
    for old, array in zip(state, new, strict=False):
        if array is old:
            continue
        source = array
        if any(np.may_share_memory(array, other) for other in state):
            source = np.empty_like(array)
            saved.append((source, array))
        written.append((old, source))
    return saved + written


def pack(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Offsets of arrays in one buffer, and its bytes: no two overlap that live at a time.

    The largest first, each at the lowest offset that is free while it lives.

    Args:
        sizes: in bytes.
        spans: the first and the last equation of each life.
    """
    padded = ceil_div(np.array(sizes, np.int64), LINE) * LINE
    first, last = np.array(spans, np.int64).reshape(-1, 2).T
    offsets = np.zeros(len(sizes), np.int64)
    placed: list[int] = []
    for number in np.argsort(-padded, kind="stable").tolist():
        others = np.array(placed, np.int64)
        meet = others[(first[others] <= last[number]) & (first[number] <= last[others])]
        meet = meet[np.argsort(offsets[meet], kind="stable")]
        ends = np.maximum.accumulate(np.concatenate([[0], offsets[meet] + padded[meet]]))
        fits = np.flatnonzero(offsets[meet] - ends[:-1] >= padded[number])
        offsets[number] = ends[fits[0]] if fits.size else ends[-1]
        placed.append(number)
    return offsets.tolist(), int((offsets + padded).max(initial=0))
