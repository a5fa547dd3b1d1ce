"""Forward values made again for the gradients, as few cycles' worth as lower the peak of temporaries by so much."""

from collections.abc import Callable
from functools import partial

from ipu_core.chip import cost
from ipu_core.chip.target import Target
from ipu_core.compile.constants import held_constants
from ipu_core.compile.schedule.starts import WORD
from ipu_core.ir.block import Block, Equation, dtype_of
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.ops import COMPUTED_AS, ELEMENTWISE
from ipu_core.ir.passes.dependences import dependences
from ipu_core.ir.passes.recompute import recompute
from ipu_core.ir.passes.schedule import peak
from ipu_core.placement.layout import linear_layout
from lowprec.integers import ceil_div

TRIALS = 8  # of each bisection
HIGHEST = 2.0**18  # bytes that a cycle is worth


def temporaries(block: Block, target: Target) -> int:
    """The most bytes of values that live for a time only, in whole words of every tile."""
    known = dependences(block, WORD * target.tiles)
    return peak(known, range(len(known.reads)))


def recomputed_share(block: Block, target: Target, share: float, order: Callable[[Block], Block]) -> Block:
    """The Block, in an order, that makes again what is cheap until the peak of temporaries is a share of what it was.

    For every price of a cycle in bytes a minimum cut says what is kept. The highest price with which the peak is low
    enough is searched for, then how far back in the forward part the next higher one does too, since layers that are
    alike change at one price. Where no price is low enough, all is made again that may be.

    Args:
        block: typed, as traced.
        target: the chip, which says what an equation costs.
        share: of the peak of this Block.
        order: puts equations into the order in which they run.
    """
    goal, best = share * temporaries(block, target), order(block)
    if temporaries(best, target) <= goal:  # the order alone may do
        return best
    best, low, high = order(recompute(block)), 1.0, HIGHEST
    for _ in range(TRIALS):
        price = (low * high) ** 0.5  # the middle of the exponents: prices range over 18 powers of two
        tried = order(recompute(block, partial(_worth, block, target, price, price, 0)))
        if temporaries(tried, target) <= goal:
            low, best = price, tried
        else:
            high = price
    if low == 1.0:  # no price was low enough
        return best
    first, last = 0, len(equations_of(block))
    for _ in range(TRIALS):
        middle = (first + last) // 2
        tried = order(recompute(block, partial(_worth, block, target, low, high, middle)))
        if temporaries(tried, target) <= goal:
            first, best = middle, tried
        else:
            last = middle
    return best


def _worth(block: Block, target: Target, low: float, high: float, first: int, equation: Equation) -> float:
    """Bytes that it is worth not to make a value again: a cycle has a low price from one number on, else a high one."""
    return (low if equation.number >= first else high) * cycles_again(block, target, equation)


def cycles_again(block: Block, target: Target, equation: Equation) -> int:
    """Cycles of the superstep that computes an equation, with what it reads from other tiles at full rate."""
    views, result = lifetimes(block).views, equation.output.type
    chunk = linear_layout(target, result.shape).chunk
    held = held_constants(block)
    # A mask that lies unrepeated is read by every tile in the shape of its result.
    masks = [var for var in equation.operands if var in held and held[var].array.shape != result.shape]
    far = [var for var in equation.operands if not views[var].whole or var.type.shape != result.shape]
    least = [min(var.type.size, views[var].root.type.size) * dtype_of(var.type.format).itemsize for var in far]
    moved = [size * chunk // max(1, result.size) for size in least]
    moved += [min(chunk, held[var].array.size) * dtype_of(var.type.format).itemsize for var in masks]
    bytes_in = ceil_div(max(moved, default=0), target.exchange_bytes_per_cycle)
    exchange = target.exchange_fixed_cycles + bytes_in if moved else 0
    return target.sync_cycles + exchange + _compute(target, equation, chunk)


def _compute(target: Target, equation: Equation, chunk: int) -> int:
    """Cycles of the tile with most elements; the values that copies make are moved only."""
    size = max(dtype_of(var.type.format).itemsize for var in (equation.output, *equation.operands))
    if equation.op == "dropout_mask":
        return int(cost.dropout(target, chunk, size))
    if equation.op == "one_hot":
        return int(cost.elementwise(target, "equal", chunk, size))
    if equation.op not in ELEMENTWISE:
        return 0
    op = COMPUTED_AS[equation.op]
    return int(cost.cast(target, chunk, size) if op == "identity" else cost.elementwise(target, op, chunk, size))
