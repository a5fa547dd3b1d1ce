"""Fusions of a Block: neighbours that are computed together, piece by piece in the cache.

The values of a fusion are seen as so many rows, and row i of each depends on the rows i of the others: elementwise
equations do so however many rows there are, sums and maxima along rows and what is spread over these again for the rows
that are reduced. A piece of rows goes through all equations before the next piece begins. Values that only the fusion
reads are never whole in memory.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import NamedTuple

from ipu_core.ir.block import Block, Equation, Var, per_block
from ipu_core.ir.bodies import carries_of, equations_of, runs_of
from ipu_core.ir.liveness.lifetimes import in_place, lifetimes
from ipu_core.ir.liveness.views import StridedView
from ipu_core.ir.ops import ELEMENTWISE
from ipu_core.ir.run.rounded import is_rounded_apart
from ipu_core.ir.run.wide import is_computed_wide
from lowprec import FloatFormat
from lowprec.values.axes import Fold, fold, restrided

PIECE = 1 << 14
"""Elements of a piece: some values of so many fit into the second cache, and to begin with a value's next piece costs
little beside it."""
SIDE_BY_SIDE = 16
"""Rows that are summed at the price of one."""
MOST = 1 << 16
"""Elements of a piece of so few rows, which a piece of longer rows would exceed."""
EVEN = 64
"""Pieces of more rows are multiples of this: sums work on so many at a time."""
TWICE = 8
"""Bits of formats to which the machine rounds in two steps."""
REDUCTIONS = ("reduce_sum", "reduce_max")


class Fusion(NamedTuple):
    """Neighbouring equations of a Block.

    Attributes:
        first, last: positions of the first equation and of the one after the last; views may lie between.
        rows: of each of its values.
        piece: how many of them are computed together.
    """

    first: int
    last: int
    rows: int
    piece: int

    @property
    def cut(self) -> bool:
        """Whether it goes through more than one piece; else its equations are computed one after the other."""
        return self.rows > self.piece


@per_block
def runs_of_fusions(block: Block) -> tuple[tuple[Fusion, ...], ...]:
    """The fusions in order, as runs between which other equations compute something."""
    equations, runs, open_ = equations_of(block), list[list[Fusion]](), _Open(block)
    for run in runs_of(block):
        for position in lifetimes(block).between(run.first, run.last):
            if not open_.take(position, equations[position]):
                open_.end_run(runs)
        open_.end_run(runs)
    return tuple(map(tuple, runs))


def is_chained(equation: Equation) -> bool:
    """Whether an equation may be one of a fusion: floats, element by element and rounded once, or reduced."""
    result = equation.output.type.format
    floats = all(isinstance(var.type.format, FloatFormat) and var.type.size for var in equation.operands)
    if not floats or not isinstance(result, FloatFormat) or equation.output.type.size == 0:
        return False
    if is_rounded_apart(equation) or is_computed_wide(equation):
        return False
    return equation.op in REDUCTIONS or (equation.op in ELEMENTWISE and result.bits > TWICE)


def folded(equation: Equation) -> Fold:
    """How a reduction sees its operand: as (rows, terms, columns)."""
    return fold(equation.operands[0].type.shape, equation.params["axis"])


class Extent(NamedTuple):
    """Rows of the values of a fusion, and the elements of the largest one.

    Attributes:
        rows: how many there are.
        elements: of all rows of that value.
    """

    rows: int
    elements: int

    def __or__(self, other: Extent) -> Extent:
        """Of what has values of both sizes."""
        return Extent(math.gcd(self.rows, other.rows), max(self.elements, other.elements))

    @property
    def piece(self) -> int:
        """Rows of a piece."""
        own = self.elements // self.rows
        rows = PIECE if own == 1 else max(SIDE_BY_SIDE, PIECE // own)
        return rows if rows < EVEN else rows // EVEN * EVEN

    @property
    def pays(self) -> bool:
        """Whether there are several pieces, which lie in the cache; what is small need not be cut."""
        short = self.elements // self.rows * SIDE_BY_SIDE <= MOST
        return self.elements <= PIECE or (short and self.rows > self.piece)


def size_of(equation: Equation, strides: Sequence[tuple[int, ...]]) -> Extent | None:
    """The most rows that an equation's values have, and their elements; None where it can be in no fusion.

    Args:
        equation: what computes something.
        strides: of its operands.
    """
    if not is_chained(equation):
        return None
    if equation.op not in REDUCTIONS:
        return Extent(equation.output.type.size, equation.output.type.size)
    how, (x,) = folded(equation), equation.operands
    lies_so = restrided(x.type.shape, strides[0], how.shape) is not None
    return Extent(how.shape[0], x.type.size) if how.in_order and lies_so else None


class _Open:
    """The run of fusions that is being found, and its last fusion, to which equations are added."""

    def __init__(self, block: Block) -> None:
        self._views, self._over = lifetimes(block).views, in_place(block)
        self._run: list[Fusion] = []
        self._begin(0, Extent(1, 1))

    def _begin(self, position: int, size: Extent) -> None:
        self._first, self._last, self._size = position, position, size
        self._made: set[Var] = set()
        self._lengths: set[int] = set()  # elements of the values it has
        self._elsewhere: set[Var] = set()  # read of other rows than those that are computed

    def take(self, position: int, equation: Equation) -> bool:
        """Adds an equation to the last fusion, or to a new one; False: it can be in none."""
        strides = [self._views[x].strides for x in equation.operands]
        if (own := size_of(equation, strides)) is None:
            return False
        if self._made and self._joins(equation, self._size | own):
            self._size |= own
        elif own.pays:
            self._end()
            self._begin(position, own)
        else:
            return False
        self._made.add(equation.output)
        self._lengths.add(equation.output.type.size)
        self._elsewhere |= self._astray(equation, self._size)
        self._last = position + 1
        return True

    def _joins(self, equation: Equation, size: Extent) -> bool:
        astray = self._astray(equation, size)
        reads = any(self._views[x].root in self._made for x in equation.operands)
        near = (reads or equation.output.type.size in self._lengths) and not astray & self._made
        return near and size.pays and self._over.get(equation.output) not in self._elsewhere | astray

    def _astray(self, equation: Equation, size: Extent) -> set[Var]:
        """What an equation reads of other rows than that which it computes."""
        return {self._views[x].root for x in equation.operands if not in_rows(x, self._views[x], size.rows)}

    def _end(self) -> None:
        if self._made:
            self._run.append(Fusion(self._first, self._last, self._size.rows, self._size.piece))
        self._begin(0, Extent(1, 1))

    def end_run(self, runs: list[list[Fusion]]) -> None:
        self._end()
        if self._run:
            runs.append(self._run)
            self._run = []


def in_rows(var: Var, view: StridedView, rows: int) -> bool:
    """Whether row i of a value, of so many, lies in row i of its root.

    It is enough that its rows begin as far apart as those of the root: what lay beyond the end of its row would lie
    beyond the root in the last one.
    """
    if var.type.size % rows or view.root.type.size % rows:
        return False
    own, left = view.root.type.size // rows, rows
    for length, stride in zip(var.type.shape, view.strides, strict=True):
        outer = math.gcd(left, length)
        inner, left = length // outer, left // outer
        if (inner > 1 and left > 1) or (outer > 1 and stride * inner != own * left):
            return False
    return left == 1


def in_order(var: Var, view: StridedView) -> bool:
    """Whether the elements of a value are those of its root in the root's order."""
    step = 1
    for length, stride in zip(reversed(var.type.shape), reversed(view.strides), strict=True):
        if length != 1 and stride != step:
            return False
        step *= length
    return view.offset == 0 and step == view.root.type.size


def only_inside(block: Block, fusion: Fusion) -> list[Var]:
    """The values that lie in pieces: what nothing but a fusion reads."""
    if not fusion.cut:
        return []
    last, kept = lifetimes(block).last, {*in_place(block), *(new for _, new in carries_of(block))}
    made = [equation.output for _, equation in computed(block, fusion)]
    return [var for var in made if last.get(var, -1) < fusion.last and var not in kept]


def written_over(block: Block, fusion: Fusion, inside: Container[Var]) -> dict[Var, Var]:
    """Results of a fusion that are written over values that are dead by then: piece by piece, where they lay.

    Args:
        block: in which the fusion is.
        fusion: the fusion.
        inside: what has no memory of its own, or memory that is not to be given away.
    """
    known = lifetimes(block)
    views, last = known.views, known.last
    equations, read = computed(block, fusion), dict[Var, bool]()  # whether only as its elements lie
    for _, equation in equations:
        for var in equation.operands:
            root = views[var].root
            read[root] = read.get(root, True) and in_order(var, views[var])
    free = [root for root, same in read.items() if same and root not in inside and last[root] < fusion.last]
    found: dict[Var, Var] = {}
    for position, equation in equations:
        if (new := equation.output) in inside:
            continue
        stop = position + (equation.op in ELEMENTWISE)  # which reads an element before it writes there
        fitting = (old for old in free if last[old] < stop and lie_alike(old, new))
        if (old := next(fitting, None)) is not None:
            found[new] = old
            free.remove(old)
    return found


def lie_alike(old: Var, new: Var) -> bool:
    """Whether two values have elements of the same number and bytes."""
    return old.type.size == new.type.size and old.type.nbytes == new.type.nbytes


def computed(block: Block, fusion: Fusion) -> list[tuple[int, Equation]]:
    """The equations of a fusion that compute something, with their positions."""
    equations = equations_of(block)
    return [(position, equations[position]) for position in lifetimes(block).between(fusion.first, fusion.last)]
