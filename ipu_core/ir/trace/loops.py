"""Loops along places in a trace: a function run at each becomes the body of one region."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ipu_core.ir.block import NEAREST, Atom, Block, Equation, Literal, Params, Type, Var
from ipu_core.ir.bodies import flat, parted
from ipu_core.ir.ops import INT32, SET_ROW, VIEWS
from ipu_core.ir.regions import Scan
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.values import Value, apply, lift, reshape

COPY = "concatenate"
"""Of one operand: the same elements, whatever they are, in memory of their own."""


class Carried(NamedTuple):
    """What goes from place to place.

    Attributes:
        before: the value that a place has of the one before.
        start: what that is at the first place.
        after: what it becomes.
    """

    before: Var
    start: Atom
    after: Value


def carried_type(kind: Type) -> Type:
    """The type in which a value goes from place to place: a number is an array of one element."""
    return kind if kind.shape else Type((1,), kind.format)


def seen_as(builder: Builder, var: Var, shape: tuple[int, ...]) -> Value:
    """What is carried, in the shape that it has for those who compute with it."""
    return reshape(TracedArray(builder, var), shape)


def row_set(builder: Builder, place: Value, value: Value, table: Var) -> Value:
    """A table in which a place has left a value."""
    return apply(SET_ROW, reshape(value, (1, table.type.shape[1])), place, TracedArray(builder, table))


def row_at(place: Value, table: Value, shape: tuple[int, ...]) -> Value:
    """What a place finds in its row of a table."""
    return reshape(apply("gather", table, place), shape)


def loop_along(
    builder: Builder, count: int, body: Callable[[Value], Iterable[Carried]], *, backwards: bool = False
) -> list[Var]:
    """Adds a loop along places.

    What neither depends on the place nor draws random bits is computed once, before the loop.

    Args:
        builder: the trace.
        count: how many places.
        body: from the place, one int32 in an array, to what is carried; everything that it reads is of this trace.
        backwards: whether the last place comes first.

    Returns:
        What each carry is after the last iteration.
    """
    place = Var("place", Type((1,), INT32))
    with builder.body() as equations:
        carried = list(body(TracedArray(builder, place)))
        afters = [_array(builder, lift(builder, one.after), one.before.type) for one in carried]
        inside, outside = parted(equations, {place, *(one.before for one in carried)})
        equations[:] = inside
        made = own_results(equations)
        news = list[Var]()
        for after in afters:
            # every carry has memory of its own, which only an equation of the body gives
            news.append(after if after in made and after not in news else copied(builder, after))
        inside = list(equations)
    builder.equations += outside
    starts = tuple(_start(builder, one.start, one.before.type) for one in carried)
    carries = tuple((one.before, new) for one, new in zip(carried, news, strict=True))
    kind = Scan(Block((), (), tuple(inside)), count, (), carries, starts, place=place, backwards=backwards)
    builder.add_region(kind, "scan")
    # One of these read outside would be the last place's on some engines, and its gradient would be lost.
    builder.gone |= {place, *(one.before for one in carried), *values_of(inside)} - {*news}
    return news


def values_of(equations: Iterable[Equation]) -> set[Var]:
    """What equations make, in bodies among them too."""
    return {var for equation in flat(equations) for var in equation.outputs}


def own_results(equations: Iterable[Equation]) -> set[Var]:
    """What equations compute themselves: no views, and nothing of bodies in them."""
    return {equation.output for equation in equations if equation.region is None and equation.op not in VIEWS}


def copied(builder: Builder, var: Var) -> Var:
    """A copy of an array, made by an equation of its own."""
    return builder.append(COPY, (var,), Params({"axis": 0}), var.type, NEAREST)


def _array(builder: Builder, atom: Atom, kind: Type) -> Var:
    """A value in the type in which it is carried."""
    if isinstance(atom, Literal):
        atom = builder.constant(np.full(kind.shape, atom.value, np.float32), kind.format)
    elif atom.type.shape != kind.shape:
        atom = builder.emit("reshape", (atom,), Params({"shape": kind.shape}))
    assert isinstance(atom, Var)
    return atom


def _start(builder: Builder, start: Atom, kind: Type) -> Atom:
    """What a carry begins with; arrays are computed, so that something reads what they are made of."""
    if isinstance(start, Literal):
        return start
    start = _array(builder, start, kind)
    return start if start in own_results(builder.equations) else copied(builder, start)
