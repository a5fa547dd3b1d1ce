"""Chains of a Block: elementwise neighbours of one size, to be computed together, piece by piece in the cache.

Element i of every value of a chain depends on the elements i of the others, so that a piece goes through all its
equations before the next piece begins. Values that only the chain reads are never whole in memory.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from ipu_core.ir.block import Block, Equation, Var, dtype_of, per_block
from ipu_core.ir.lifetimes import StridedView, in_place, lifetimes
from ipu_core.ir.ops import ELEMENTWISE
from lowprec import FloatFormat

PIECE = 1 << 14
"""Elements of a piece: some values of so many fit into the second cache, and to begin with a value's next piece costs
little beside it."""
TWICE = 8
"""Bits of formats to which the machine rounds in two steps."""


class Chain(NamedTuple):
    """Neighbouring equations of a Block.

    Attributes:
        first, last: positions of the first equation and of the one after the last; views may lie between.
        size: elements of each of its values.
        piece: how many of them are computed together.
    """

    first: int
    last: int
    size: int
    piece: int

    @property
    def cut(self) -> bool:
        """Whether it goes through more than one piece; else its equations are computed one after the other."""
        return self.size > self.piece


@per_block
def runs_of_chains(block: Block) -> tuple[tuple[Chain, ...], ...]:
    """The chains in order, as runs between which other equations compute something."""
    views, runs, open_ = lifetimes(block).views, list[list[Chain]](), _Open(block)
    for position, equation in enumerate(block.equations):
        if position in (block.looped, block.unguarded):
            open_.end_run(runs)
        if views[equation.output].root is not equation.output:
            continue
        if is_chained(equation):
            open_.take(position, equation)
        else:
            open_.end_run(runs)
    open_.end_run(runs)
    return tuple(map(tuple, runs))


def is_chained(equation: Equation) -> bool:
    """Whether an equation that computes something is one of a chain: floats, element by element, rounded once."""
    floats = all(isinstance(var.type.format, FloatFormat) for var in equation.operands)
    result = equation.output.type.format
    once = isinstance(result, FloatFormat) and result.bits > TWICE
    return equation.op in ELEMENTWISE and floats and once and equation.output.type.size > 0


class _Open:
    """The run of chains that is being found, and its last chain, to which equations are added."""

    def __init__(self, block: Block) -> None:
        self._views, self._over = lifetimes(block).views, in_place(block)
        self._run: list[Chain] = []
        self._begin(0, 0)

    def _begin(self, position: int, size: int) -> None:
        self._first, self._last, self._size = position, position, size
        self._made: set[Var] = set()
        self._elsewhere: set[Var] = set()  # read of other elements than those that are computed

    def take(self, position: int, equation: Equation) -> None:
        output = equation.output
        astray = {self._views[x].root for x in equation.operands if not in_order(x, self._views[x])}
        fits = output.type.size == self._size and not astray & self._made
        if not fits or self._over.get(output) in self._elsewhere | astray:
            self._end()
            self._begin(position, output.type.size)
        self._made.add(output)
        self._elsewhere |= astray
        self._last = position + 1

    def _end(self) -> None:
        if self._made:
            self._run.append(Chain(self._first, self._last, self._size, PIECE))
        self._begin(0, 0)

    def end_run(self, runs: list[list[Chain]]) -> None:
        self._end()
        if self._run:
            runs.append(self._run)
            self._run = []


def in_order(var: Var, view: StridedView) -> bool:
    """Whether the elements of a value are those of its root in the root's order."""
    step = 1
    for length, stride in zip(reversed(var.type.shape), reversed(view.strides), strict=True):
        if length != 1 and stride != step:
            return False
        step *= length
    return view.offset == 0 and step == view.root.type.size


def only_inside(block: Block, chain: Chain) -> list[tuple[int, Var]]:
    """The values that lie in pieces: what nothing but a chain reads, each with the position of its equation."""
    if not chain.cut:
        return []
    last, over, after = lifetimes(block).last, in_place(block), {new for _, new in block.totals}
    made = [(position, equation.output) for position, equation in computed(block, chain)]
    return [(i, var) for i, var in made if last.get(var, -1) < chain.last and var not in after and var not in over]


def written_over(block: Block, chain: Chain, inside: Container[Var]) -> dict[Var, Var]:
    """Results of a chain that are written over values that are dead by then: piece by piece, where they lay.

    Args:
        block: in which the chain is.
        chain: the chain.
        inside: what has no memory of its own, or memory that is not to be given away.
    """
    views, last = lifetimes(block).views, lifetimes(block).last
    equations, read = computed(block, chain), dict[Var, bool]()  # whether only as its elements lie
    for _, equation in equations:
        for var in equation.operands:
            root = views[var].root
            same = in_order(var, views[var]) and var.type.size == chain.size
            read[root] = read.get(root, True) and same
    free = [root for root, same in read.items() if same and root not in inside and last[root] < chain.last]
    found: dict[Var, Var] = {}
    for position, equation in equations:
        if (new := equation.output) in inside:
            continue
        fitting = (old for old in free if last[old] <= position and item_bytes(old) == item_bytes(new))
        if (old := next(fitting, None)) is not None:
            found[new] = old
            free.remove(old)
    return found


def item_bytes(var: Var) -> int:
    """Bytes of an element in memory."""
    return dtype_of(var.type.format).itemsize


def computed(block: Block, chain: Chain) -> list[tuple[int, Equation]]:
    """The equations of a chain that compute something, with their positions."""
    views, between = lifetimes(block).views, range(chain.first, chain.last)
    there = [(position, block.equations[position]) for position in between]
    return [(position, e) for position, e in there if views[e.output].root is e.output]
