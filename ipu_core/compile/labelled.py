"""One-hot rows that only choose: their labels are compared where they are needed, and no array of them is made.

The loss over classes picks a row's element at its label, and its gradient adds a number there: popops has
`selectScalarFromRows` and `updateScalarInRows` for the two, which PopART takes for the loss (`Nll`) and its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ipu_core.chip.target import Target
from ipu_core.ir.block import Block, Equation, Literal, Type, Var, per_block
from ipu_core.ir.bodies import equations_of, outputs_of
from ipu_core.ir.liveness.lifetimes import Lifetimes, in_place, lifetimes
from ipu_core.placement.layout import linear_layout
from lowprec import float32 as FLOAT32


class Labelled(NamedTuple):
    """What is made of labels without one-hot rows.

    Attributes:
        rows: by value that is not made, the one-hot rows and what is chosen by them, the equation that would make it.
        used: by position of an equation that reads these, the values in whose memory lies what it reads instead.
    """

    rows: Mapping[Var, Equation]
    used: Mapping[int, tuple[Var, ...]]

    def labels(self, chosen: Var) -> Var:
        """The labels of what is chosen by one-hot rows."""
        (labels,) = self.rows[self.rows[chosen].operands[0]].operands
        return labels


SMALL: Final = 4096  # bytes of a tile: rows that take fewer are seldom at a peak, and their equations share supersteps
NONE: Final = Labelled({}, {})


@per_block
def labelled(block: Block, target: Target) -> Labelled:
    """The one-hot rows of float32 that nothing reads but choices, each for one sum along rows or one sum of two arrays.

    A sum of zeros and one number is that number in every order, but for the sign of zero; so it is picked. Small
    arrays of such rows are made.
    """
    known, equations = lifetimes(block), equations_of(block)
    readers: dict[Var, list[int]] = {}
    for position, equation in enumerate(equations):
        for var in dict.fromkeys(equation.operands):
            readers.setdefault(var, []).append(position)
    # State may be written over before all that reads it has run, and what streams is there for a time.
    state = in_place(block)
    held = {*block.inputs[: block.carried], *state, *state.values(), *block.offloaded, *outputs_of(block)}
    rows, used = dict[Var, Equation](), dict[int, tuple[Var, ...]]()
    for equation in equations:
        if equation.op != "one_hot" or not _is_between(equation.output, known, readers) or equation.output in held:
            continue
        *rest, classes = equation.output.type.shape
        # A single row lies as a vector does, cut anywhere; of a single class -0 stays what it is.
        if math.prod(rest) < 2 or classes < 2 or _on_a_tile(target, equation.output.type) <= SMALL:
            continue
        choices = [equations[at] for at in readers[equation.output]]
        ends = [_end(choice, equation.output, known, readers, equations) for choice in choices]
        sources = [known.roots(*equation.operands, *_others(choice)) for choice in choices]
        if None in ends or any(held & some for some in sources):
            continue
        rows |= {equation.output: equation} | {choice.output: choice for choice in choices}
        for end, some in zip(ends, sources, strict=True):
            assert end is not None
            used[end] = tuple(some)
    return Labelled(rows, used)


def _on_a_tile(target: Target, kind: Type) -> int:
    """Bytes of a float32 array on the tile where it begins."""
    return min(kind.size, linear_layout(target, kind.shape).chunk) * FLOAT32.bits // 8


def _others(choice: Equation) -> Iterator[Var]:
    """The values among which is chosen."""
    return (var for var in choice.inputs[1:] if isinstance(var, Var))


def _is_between(var: Var, known: Lifetimes, readers: Mapping[Var, Sequence[int]]) -> bool:
    """Whether a float32 value of memory of its own is needed by its readers alone, in the body that makes it."""
    at = readers.get(var, ())
    own = var.type.format == FLOAT32 and known.views[var].root is var
    return own and bool(at) and known.last.get(var) == at[-1]


def _end(
    choice: Equation, rows: Var, known: Lifetimes, readers: Mapping[Var, Sequence[int]], equations: Sequence[Equation]
) -> int | None:
    """The position of the one equation that reads what is chosen, if it can do without; None: it cannot."""
    made = choice.output
    if choice.op != "select" or choice.inputs[0] is not rows or rows in choice.inputs[1:]:
        return None
    if not _is_between(made, known, readers) or made.type != rows.type or len(readers[made]) != 1:
        return None
    (at,) = readers[made]
    end, (first, other) = equations[at], choice.inputs[1:]
    if end.output.type.format != FLOAT32 or end.arithmetic.stochastic:
        return None
    if end.op == "reduce_sum":
        along = end.params["axis"] == (len(made.type.shape) - 1,) and end.arithmetic.accumulate == FLOAT32
        zero = isinstance(other, Literal) and str(other.value) == "0.0"
        whole = isinstance(first, Var) and first.type == made.type and known.views[first].whole
        return at if along and zero and whole else None
    if end.op != "add" or not all(isinstance(one, Var) and one.type == made.type for one in end.inputs):
        return None
    numbers = all(isinstance(one, Literal) or one.type.format == FLOAT32 for one in (first, other))
    return at if numbers and end.inputs.count(made) == 1 else None
