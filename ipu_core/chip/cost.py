"""Cycles of the codelets: every figure once, with its source. Formulas take ints or integer arrays (one per vertex).

Sources: [PL] the estimators of Graphcore's PopLibs repository; [model] no public figure: workers * (overhead + work /
width), with the overhead and the width given here. W is the number of workers of a tile; a vertex of this library
uses all of them, so its cycles are W times those of its slowest worker.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.errors import UnsupportedByTarget
from lowprec.integers import ceil_div

Numbers = Any  # an int or an integer array: one entry per vertex

VECTOR_BYTES: Final = 8  # [PL] 64-bit vectors: 4 halves or 2 floats a cycle
OUTPUT_GROUP: Final = 16  # [PL] output channels of one AMP group
WEIGHT_BYTES_PER_CYCLE: Final = 16  # [PL] 128-bit loads: 32 cycles for 16 units x 16 halves (64 with 64-bit loads)
AMP_RETENTION: Final = 7  # [PL] cycles a worker saves by state kept from the pass before
CONVOLUTION_SUPERVISOR: Final = 109  # [PL] cycles per vertex of a convolution with a kernel (n x 1)
ELEMENTWISE_OVERHEAD: Final = 20  # [PL] cycles per worker
CAST_OVERHEAD: Final = 26  # [PL] cycles per worker
REDUCE_OVERHEAD: Final = 20  # [PL] cycles per worker
REDUCE_SUPERVISOR: Final = 33  # [PL] cycles per vertex
DROPOUT_OVERHEAD: Final = 24  # [PL] cycles per worker
DROPOUT_SUPERVISOR: Final = 6  # [PL] cycles per vertex
TOP_TERM: Final = 3  # [model] cycles per worker and term: load, compare, branch
TOP_LEVEL: Final = 6  # [model] cycles per worker and level of a heap: load both children, compare, choose, store
REDUCE_ROW: Final = (
    12  # [PL] cycles per worker and result whose terms lie together, beside one for every vector of them
)
REDUCE_COLUMN: Final = 3  # [model] cycles per worker and vector of results: address, load, store

# Cycles per 64-bit vector beyond the memory's: [PL] 1 for what one instruction does, 6 for the roundings (2, and 4 of
# the loop), 133 for the remainders of two floats (those of four halves take 300); [model] the rest.
_VECTOR_CYCLES: Final[dict[str, int]] = {
    **dict.fromkeys(("identity", "negative", "absolute", "relu", "step", "square", "add", "subtract", "multiply"), 1),
    **dict.fromkeys(("maximum", "minimum", "greater", "equal", "select", "scaled_add"), 1),
    **dict.fromkeys(("exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "divide"), 5),
    **dict.fromkeys(("erf", "gelu", "gelu_gradient", "sin", "cos"), 25),
    **dict.fromkeys(("floor", "rint"), 6),
    "fmod": 133,
}


@dataclass(frozen=True)
class AmpShape:
    """What one pass of the AMP unit does for one output position: `inputs` products into each of `units` partials.

    Attributes:
        inputs: products added to one partial before it is rounded and stored.
        units: partials (output channels) of one pass.
        position_cycles: cycles a worker's turn takes for one output position.
        load_cycles: cycles to load the weights of one pass.
    """

    inputs: int
    units: int
    position_cycles: int
    load_cycles: int


def amp_shape(target: Target, operands: str, partials: str) -> AmpShape:
    """The AMP unit's pass for operands and partials of these formats, from the target's MACs per cycle.

    Raises:
        UnsupportedByTarget: the chip has no such mode, or too few MACs per cycle for a pass.
    """
    macs = target.macs_per_cycle(operands, partials)
    size, inputs, cycles = (4, 8, 8) if operands == "float32" else (2, 16, 4) if operands == "float16" else (1, 32, 4)
    units = macs * cycles // inputs
    if not units:
        raise UnsupportedByTarget(
            f"{target.name} with {macs} multiply-accumulates per cycle for {operands} x {operands} into {partials}: "
            f"a pass of {inputs} products in {cycles} cycles takes at least {ceil_div(inputs, cycles)}"
        )
    return AmpShape(inputs, units, cycles, units * inputs * size // WEIGHT_BYTES_PER_CYCLE)


def width(size: int) -> int:
    """Elements of `size` bytes in one 64-bit vector."""
    return VECTOR_BYTES // size


def _vectors(elements: Numbers, size: int) -> Ints:
    """64-bit vectors that so many elements fill."""
    return ceil_div(np.asarray(elements, np.int64), width(size))


def amp_worker(positions: Numbers, position_cycles: int) -> Ints:
    """Cycles of one worker for n output positions of one pass [PL: half 21, 32, 41, 38+4(n-3); float 47, 46+8(n-3)]."""
    n = np.asarray(positions, np.int64)
    if position_cycles == 4:
        return np.where(n >= 3, 26 + 4 * n, np.choose(np.minimum(n, 2), (21, 32, 41)))
    return np.where(n >= 3, 22 + 8 * n, np.where(n == 0, 21, np.where(n == 1, 47, 46)))


def matmul(
    target: Target, m: Numbers, k: Numbers, n: Numbers, *, shape: AmpShape, group: int, goes_on: bool = False
) -> Ints:
    """Cycles of the supervisor vertex that multiplies an m x k by a k x n block on one tile [PL, 1x1 convolution].

    The first pass over k zeroes the partials, the others add to them. A `group` below the unit's own number of
    products takes a pass per group. k = 0 costs the zeroing pass. A vertex that goes on from partial results has no
    zeroing pass: all its passes add.

    Args:
        target: the chip.
        m, k, n: sizes of the block, ints or arrays.
        shape: the unit's pass, see `amp_shape`.
        group: products between two roundings of the partials.
        goes_on: the chains begin with partial results, not with zero.
    """
    w = target.workers
    m, k, n = (np.asarray(size, np.int64) for size in (m, k, n))
    passes_in = np.maximum(1, ceil_div(k, min(group, shape.inputs)))
    passes_out = np.maximum(1, ceil_div(n, OUTPUT_GROUP))
    per_group = np.maximum(1, ceil_div(np.minimum(n, OUTPUT_GROUP), shape.units))
    worker = w * amp_worker(ceil_div(m, w), shape.position_cycles)
    inner, first = worker - w * AMP_RETENTION, worker
    one_more = 15 + passes_out * (19 + per_group * (6 + shape.load_cycles + inner))
    zeroing = one_more if goes_on else 11 + passes_out * (18 + per_group * (7 + shape.load_cycles + first))
    adding = (passes_in - 1) * one_more
    cycles: Ints = 50 + w * (7 + 3 * (passes_in - 1)) + 13 + adding + zeroing
    return cycles


def convolution(
    target: Target, positions: Numbers, passes: Numbers, outputs: Numbers, groups: Numbers, *, shape: AmpShape
) -> Ints:
    """Cycles of the supervisor vertex that makes a block of a convolution on one tile.

    [PL] the start of the n x 1 vertex, and for every pass the loops of the 1 x 1 vertex over convolution groups, passes
    and output channels, whose first pass zeroes the partials; [model] that a pass (one kernel position, at most 16
    input channels) costs what it does in the 1 x 1 vertex, and that workers share the positions evenly, wherever lines
    of windows begin.

    Args:
        target: the chip.
        positions: output positions of the block.
        passes: AMP passes for every output: kernel positions times groups of at most 16 input channels.
        outputs: output channels of a convolution group.
        groups: convolution groups.
        shape: the unit's pass, see `amp_shape`.
    """
    w = target.workers
    positions, passes, outputs, groups = (np.asarray(n, np.int64) for n in (positions, passes, outputs, groups))
    passes = np.maximum(1, passes)
    passes_out = np.maximum(1, ceil_div(outputs, OUTPUT_GROUP))
    per_group = np.maximum(1, ceil_div(np.minimum(outputs, OUTPUT_GROUP), shape.units))
    worker = w * amp_worker(ceil_div(positions, w), shape.position_cycles)
    adding = (passes - 1) * (15 + passes_out * (19 + per_group * (6 + shape.load_cycles + worker - w * AMP_RETENTION)))
    zeroing = 11 + passes_out * (18 + per_group * (7 + shape.load_cycles + worker))
    cycles: Ints = CONVOLUTION_SUPERVISOR + w * (7 + 3 * (passes * groups - 1)) + groups * (13 + adding + zeroing)
    return cycles


def elementwise(target: Target, op: str, elements: Numbers, size: int) -> Ints:
    """Cycles of one vertex that applies `op` to so many elements, the widest of `size` bytes: W(20 + vectors/W * c).

    Raises:
        ValueError: unknown operation.
    """
    if op not in _VECTOR_CYCLES:
        raise ValueError(f"no cycles for operation {op!r}; there are {', '.join(_VECTOR_CYCLES)}")
    vectors = _vectors(elements, size)
    return target.workers * (ELEMENTWISE_OVERHEAD + ceil_div(vectors, target.workers) * _VECTOR_CYCLES[op])


def cast(target: Target, elements: Numbers, size: int) -> Ints:
    """Cycles of one vertex that converts so many elements, the wider format of `size` bytes [PL: (n/6/vec + 26)*6]."""
    vectors = _vectors(elements, size)
    return target.workers * (CAST_OVERHEAD + ceil_div(vectors, target.workers))


def dropout(target: Target, elements: Numbers, size: int) -> Ints:
    """Cycles of one vertex that draws a mask of so many elements of `size` bytes [PL: 2n/vec + 24*6 + 6]."""
    vectors = _vectors(elements, size)
    return 2 * vectors + DROPOUT_OVERHEAD * target.workers + DROPOUT_SUPERVISOR


def reduce(
    target: Target, terms: Numbers, results: Numbers, size: int, *, together: bool | npt.NDArray[np.bool_] = False
) -> Ints:
    """Cycles of one vertex that adds so many terms of `size` bytes into each of so many results [PL: W(20 + ...) + 33].

    Workers share the results if there are enough of them, else the terms (one more pass adds their W sums).

    Args:
        target: the chip.
        terms, results: how many.
        size: bytes of a term.
        together: whether the terms of a result lie together, so that a vector holds several of one.
    """
    w = target.workers
    terms, results = np.asarray(terms, np.int64), np.asarray(results, np.int64)
    vectors, again = _vectors(results, size), _vectors(results, size) * (REDUCE_COLUMN + w)
    by_results = ceil_div(vectors, w) * (REDUCE_COLUMN + terms)
    by_terms = vectors * (REDUCE_COLUMN + ceil_div(terms, w)) + again
    least = np.minimum(by_results, by_terms)
    by_rows = ceil_div(results, w) * (REDUCE_ROW + _vectors(terms, size))
    by_parts = results * (REDUCE_ROW + _vectors(ceil_div(terms, w), size)) + again
    least = np.where(together, np.minimum(least, np.minimum(by_rows, by_parts)), least)
    cycles: Ints = w * (REDUCE_OVERHEAD + least) + REDUCE_SUPERVISOR
    return cycles


def copy_rows(target: Target, rows: Numbers, columns: Numbers, size: int) -> Ints:
    """Cycles of one vertex that moves indexed rows of so many elements [model]: W(20 + rows/W * (6 + vectors))."""
    vectors = _vectors(columns, size)
    per_worker = ceil_div(np.asarray(rows, np.int64), target.workers)
    return target.workers * (ELEMENTWISE_OVERHEAD + per_worker * (6 + vectors))


def top(target: Target, rows: Numbers, terms: Numbers, k: Numbers) -> Ints:
    """Cycles of one vertex that finds the k largest of so many terms, in so many rows [model]: W(20 + rows/W * c).

    A worker keeps the k largest so far in a heap: it reads and compares every term, and in the worst case, which is
    what is counted (cycles do not depend on data), each sinks through all levels of the heap; then the heap is emptied.
    """
    levels = np.ceil(np.log2(np.asarray(k, np.float64))).astype(np.int64)
    each = np.asarray(terms, np.int64) * (TOP_TERM + TOP_LEVEL * levels) + np.asarray(k, np.int64) * (
        REDUCE_COLUMN + TOP_LEVEL * levels
    )
    return target.workers * (ELEMENTWISE_OVERHEAD + ceil_div(np.asarray(rows, np.int64), target.workers) * each)


def local_copy(target: Target, size: Numbers) -> Ints:
    """Cycles in which a tile moves its own bytes [model]: the workers' start, then 8 bytes a cycle; 0 for none."""
    moved = np.asarray(size, np.int64)
    cycles = target.workers * ELEMENTWISE_OVERHEAD + ceil_div(moved, target.local_copy_bytes_per_cycle)
    return np.where(moved > 0, cycles, 0)


def reorder(target: Target, size: Numbers, together: int) -> Ints:
    """Cycles in which a tile moves bytes of which so many stay together to their places in another order; 0 for none.

    [PL] the planner's estimate of rearranged operands: 5/4 of the bytes over the copies' rate, which is no more than an
    element (or what stays together of several) a cycle; see `Target.reorder_cycles`.
    """
    moved = np.asarray(size, np.int64)
    pieces = ceil_div(moved, min(together, target.local_copy_bytes_per_cycle))
    cycles = target.workers * ELEMENTWISE_OVERHEAD + np.ceil(pieces * target.reorder_cycles).astype(np.int64)
    return np.where(moved > 0, cycles, 0)
