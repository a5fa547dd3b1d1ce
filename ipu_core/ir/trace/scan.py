"""A function run along an axis: in a trace one body, on arrays as often as there are places."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.ir.block import Atom, Literal, Type, Var, format_name
from ipu_core.ir.ops import INT32, promote
from ipu_core.ir.pytree import PyTree, flatten, paths, unflatten
from ipu_core.ir.trace.array_moves import moveaxis, stack
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.eager import as_array, is_number
from ipu_core.ir.trace.loops import Carried, carried_type, loop_along, row_at, row_set, seen_as, values_of
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.tracing import example_type
from ipu_core.ir.trace.values import Traced, Value, axes_of, builder_of, lift, reshape, shape_of
from lowprec import float32 as FLOAT32
from lowprec.checks import integer, shown

Step = Callable[[Any, Any], tuple[Any, Any]]
"""From (state, x at a place) to (new state, result)."""


def scanned(
    f: Step, state: Any, x: Any, axis: int = 0, *, reverse: bool = False, unroll: bool = False, reads: Any = ()
) -> tuple[Any, Any]:
    """See `nn.scan`.

    Args:
        f, state, x, axis, reverse, unroll: Its arguments.
        reads: What f reads beside them, nested, of which a trace is known where these are arrays.
    """
    leaves, tree = flatten(x)
    if not leaves:
        raise ValueError("scan needs an array to run along")
    axes = [axes_of(leaf, integer("axis", axis))[0] for leaf in leaves]
    leaves = [leaf if isinstance(leaf, Traced) else as_array(leaf) for leaf in leaves]
    lengths = {shape_of(leaf)[at] for leaf, at in zip(leaves, axes, strict=True)}
    places = lengths.pop()
    if lengths or not places:
        given = ", ".join(str(shape_of(leaf)) for leaf in leaves)
        raise ValueError(f"scan needs one place at least along axis {axis}, and as many in every array, of {given}")
    moved = [moveaxis(leaf, at, 0) for leaf, at in zip(leaves, axes, strict=True)]
    builder = builder_of(flatten((state, x, reads))[0])
    empty = any(not math.prod(shape_of(leaf)) for leaf in (*leaves, *flatten(state)[0]))
    # one place needs no loop, and what is empty has no rows
    if builder is None or unroll or empty or places == 1:
        return _unrolled(f, state, moved, tree, range(places)[::-1] if reverse else range(places), axis)
    last, results = _Scan(builder, f, moved, tree, places).run(state, reverse)
    return last, _along(results, axis)


def _unrolled(f: Step, state: Any, moved: Sequence[Value], tree: PyTree, places: range, axis: int) -> tuple[Any, Any]:
    made, kind = list[list[Value]](), None
    for place in places:
        state, result = _checked(f(state, unflatten(tree, [leaf[place] for leaf in moved])))
        leaves, kind = flatten(result)
        made.append(leaves)
    assert kind is not None
    made = made[:: places.step]
    return state, unflatten(kind, [stack(_alike(rows), axis) for rows in zip(*made, strict=True)])


def _alike(rows: Sequence[Value]) -> list[Value]:
    """Results of all places as arrays: a Python number among them has the others' dtype."""
    dtype = next((row.dtype for row in rows if isinstance(row, np.ndarray | np.generic)), np.float32)
    return [np.asarray(row, dtype) if is_number(row) else row for row in rows]


def _along(results: Any, axis: int) -> Any:
    leaves, tree = flatten(results)
    return unflatten(tree, [moveaxis(leaf, 0, axis) for leaf in leaves])


def _checked(made: Any) -> tuple[Any, Any]:
    # a function that gives an array of two rows would be taken apart in silence
    if not isinstance(made, tuple) or len(made) != 2:
        raise TypeError(f"scan's function must give (new state, result), not {shown(made)}")
    return made


class _Scan:
    """A function that becomes the body of a loop.

    Attributes:
        builder: the trace.
        f: the function.
        tables: what it is given of each array: a row for each place.
        shapes: of the array that such a row is.
        tree: how these are nested.
        places: how many.
    """

    def __init__(self, builder: Builder, f: Step, moved: Sequence[Value], tree: PyTree, places: int) -> None:
        self.builder, self.f, self.tree, self.places = builder, f, tree, places
        self.shapes = [shape_of(leaf)[1:] for leaf in moved]
        rows = [reshape(leaf, (places, math.prod(shape))) for leaf, shape in zip(moved, self.shapes, strict=True)]
        self.tables = [self._traced(lift(builder, leaf)) for leaf in rows]

    def _traced(self, atom: Atom) -> Traced:
        assert isinstance(atom, Var)
        return TracedArray(self.builder, atom)

    def run(self, state: Any, reverse: bool) -> tuple[Any, Any]:
        """The last state, and the results with a first axis of places."""
        leaves, tree = flatten(state)
        starts = [_start(self.builder, leaf) for leaf in leaves]
        types = [_type(leaf, start) for leaf, start in zip(leaves, starts, strict=True)]
        found = self._types(tree, types)
        if found != types:  # a state that starts as a half and goes on as float32 is the latter from the start
            types = found
            if (other := self._types(tree, types)) != types:
                raise TypeError(f"the state of a scan must keep its formats; it has {types}, then {other}")
        shapes, result = list[tuple[int, ...]](), list[PyTree]()

        def body(place: Value) -> list[Carried]:
            befores = [Var(f"before.{name}", carried_type(kind)) for name, kind in zip(paths(tree), types, strict=True)]
            old = [seen_as(self.builder, var, kind.shape) for var, kind in zip(befores, types, strict=True)]
            new, made = self._call(tree, old, place)
            values, kind = flatten(made)
            result.append(kind)
            carried = [Carried(*each) for each in zip(befores, starts, new, strict=True)]
            for name, value in zip(paths(kind), values, strict=True):
                shape, fmt = shape_of(value), _kind(lift(self.builder, value))
                table = Var(f"results.{name}", Type((self.places, math.prod(shape)), fmt))
                shapes.append(shape)
                row = row_set(self.builder, place, _lifted(self.builder, value, shape), table)
                carried.append(Carried(table, Literal(0.0), row))
            return carried

        last = loop_along(self.builder, self.places, body, backwards=reverse)
        ends = [seen_as(self.builder, var, kind.shape) for var, kind in zip(last, types, strict=False)]
        rows = [
            reshape(TracedArray(self.builder, var), (self.places, *shape))
            for var, shape in zip(last[len(types) :], shapes, strict=True)
        ]
        return unflatten(tree, ends), unflatten(result[0], rows)

    def _call(self, tree: PyTree, state: list[Value], place: Value) -> tuple[list[Value], Any]:
        """The leaves of the new state, and the result."""
        parts = [row_at(place, table, shape) for table, shape in zip(self.tables, self.shapes, strict=True)]
        new, result = _checked(self.f(unflatten(tree, state), unflatten(self.tree, parts)))
        leaves, kind = flatten(new)
        if kind != tree:
            raise ValueError(f"scan's function must nest its new state as the old one is nested: {tree}, not {kind}")
        for name, old, leaf in zip(paths(tree, "state"), state, leaves, strict=True):
            if shape_of(leaf) != shape_of(old):
                raise ValueError(f"scan's function makes {name} of shape {shape_of(leaf)}, it has {shape_of(old)}")
        return leaves, result

    def _types(self, tree: PyTree, types: list[Type]) -> list[Type]:
        """The types of a state of these types after a place; nothing of this stays in the trace."""
        place = TracedArray(self.builder, Var("place", Type((1,), INT32)))
        number = self.builder.number
        with self.builder.body() as equations:
            old: list[Value] = [TracedArray(self.builder, Var(f"old{i}", kind)) for i, kind in enumerate(types)]
            new, _ = self._call(tree, old, place)
            formats = [_kind(lift(self.builder, leaf)) for leaf in new]
            self.builder.gone |= {place.node, *(x.node for x in old), *values_of(equations)}
        self.builder.number = number
        found = []
        for name, kind, fmt in zip(paths(tree, "state"), types, formats, strict=True):
            if isinstance(kind.format, str) != isinstance(fmt, str):
                was, is_now = format_name(kind.format), format_name(fmt)
                raise TypeError(
                    f"scan's function makes {name} {is_now}, it is {was}: whole numbers or floats throughout"
                )
            found.append(Type(kind.shape, kind.format if isinstance(fmt, str) else promote([kind.format, fmt])))
        return found


def _kind(atom: Atom) -> Any:
    return FLOAT32 if isinstance(atom, Literal) else atom.type.format


def _lifted(builder: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    """A result as an array of the trace: a row needs one."""
    atom = lift(builder, value)
    if isinstance(atom, Literal):
        atom = builder.constant(np.full(shape or (1,), atom.value, np.float32), FLOAT32)
    assert isinstance(atom, Var)
    return TracedArray(builder, atom)


def _start(builder: Builder, leaf: Value) -> Atom:
    """A leaf of the first state; of an array that is full of one number, that."""
    if not isinstance(leaf, Traced) and (array := as_array(leaf)).dtype.kind == "f" and array.size:
        first = float(array.flat[0])
        if (array == first).all() and math.copysign(1, first) == 1:
            return Literal(first)
    return lift(builder, leaf)


def _type(leaf: Value, start: Atom) -> Type:
    """The type of a leaf of the first state; a Python number is a float."""
    return start.type if isinstance(start, Var) else Type((), FLOAT32) if is_number(leaf) else example_type(leaf)
