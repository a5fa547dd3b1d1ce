"""Loops and branches of a jaxpr: as a scan, unrolled where a constant counts, chosen where a constant chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ipu_core.frontends.jax.drawn import Drawn, is_key
from ipu_core.frontends.jax.errors import not_covered
from ipu_core.frontends.jax.operations.call import as_value, kind_of
from ipu_core.frontends.jax.reading import needed
from ipu_core.frontends.torch.operations.call import combined, is_integer
from ipu_core.ir.trace.scan import scanned
from ipu_core.ir.trace.values import Traced, Value, builder_of, concatenate, elementwise, reshape, shape_of

if TYPE_CHECKING:
    from ipu_core.frontends.jax.interpret import JaxprInterpreter, Place

MOST_ROUNDS = 4096
"""Of a `while` that is unrolled."""


class Part(NamedTuple):
    """A jaxpr of which some results alone are asked for."""

    constvars: Any
    invars: Any
    eqns: Any
    outvars: Any


class Closed(NamedTuple):
    """A jaxpr and its constants."""

    jaxpr: Any
    consts: Any


def _is_counter(value: Any) -> bool:
    """Whether it is a whole number, or a key, that is known beside the step's values."""
    if isinstance(value, Drawn):
        return is_key(value.aval.dtype)
    if isinstance(value, Traced):
        return False
    return kind_of(value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype) != "float"


def scan(inside: JaxprInterpreter, equation: Any, given: Sequence[Any], place: Place) -> list[Any]:
    """A loop of a known length: a scan; unrolled where it carries or reads whole numbers or keys that are known.

    A number that counts and that nothing else reads, as that of `fori_loop` with such a body, is left out.
    """
    params = equation.params
    fixed, carried = params["num_consts"], params["num_carry"]
    constants, state, rows = given[:fixed], list(given[fixed : fixed + carried]), list(given[fixed + carried :])
    closed, idle = _without_counters(params["jaxpr"], fixed, state)
    keys = any(isinstance(x, Drawn) and is_key(x.aval.dtype) for x in (*constants, *rows))
    counts = any(_is_counter(x) for n, x in enumerate(state) if n not in idle)
    if not counts and not keys and builder_of([x for x in given if isinstance(x, Traced)]):
        settled = [inside.settled(x, equation, place) for x in (*constants, *state, *rows)]
        constants, rows = settled[:fixed], settled[fixed + carried :]
        moving = [x for n, x in enumerate(settled[fixed : fixed + carried]) if n not in idle]
        found = iter(_as_scan(inside, equation, (closed, constants, state, idle), moving, rows, place))
        ends = _counted(inside, params, fixed, state, idle, place.inside(equation))
        return [*(ends[n] if n in idle else next(found) for n in range(carried)), *found]
    shown: list[list[Any]] = []
    steps = range(params["length"])
    for step in reversed(steps) if params["reverse"] else steps:
        parts = (row.row(step) if isinstance(row, Drawn) else row[step] for row in rows)
        results = inside.run(params["jaxpr"], [*constants, *state, *parts], place.inside(equation))
        state = results[:carried]
        shown.append([inside.settled(x, equation, place) for x in results[carried:]])
    shown = shown[::-1] if params["reverse"] else shown
    return [*state, *(_stacked([as_value(x) for x in column]) for column in zip(*shown, strict=True))]


def _as_scan(
    inside: JaxprInterpreter, equation: Any, body: tuple[Closed, Sequence[Any], Sequence[Any], set[int]],
    moving: Sequence[Any], rows: list[Any], place: Place,
) -> list[Any]:  # fmt: skip
    params, (closed, constants, whole, idle), where = equation.params, body, place.inside(equation)
    carried = len(moving)

    def at_place(before: list[Any], parts: list[Any]) -> tuple[list[Any], list[Any]]:
        own = parts if rows else []
        own_state = iter(before)
        state = [x if n in idle else next(own_state) for n, x in enumerate(whole)]
        results = [as_value(x) for x in inside.run(closed, [*constants, *state, *own], where)]
        return results[:carried], results[carried:]

    along = [as_value(row) for row in rows] or [np.zeros((params["length"], 1), np.float32)]
    start = [as_value(x) for x in moving]
    last, shown = scanned(at_place, start, along, reverse=params["reverse"], reads=[*constants])
    return [*last, *shown]


def _without_counters(closed: Any, fixed: int, state: Sequence[Any]) -> tuple[Closed, set[int]]:
    """A body without the numbers that it carries for themselves alone, and which these are."""
    jaxpr = closed.jaxpr
    idle = {n for n, x in enumerate(state) if _is_counter(x)}
    while True:
        own = {jaxpr.invars[fixed + n] for n in idle}
        kept = _part(jaxpr, [n for n in range(len(jaxpr.outvars)) if n not in idle])
        read = {n for n in idle if jaxpr.invars[fixed + n] in _reads(kept)}
        # nor may they count what the loop computes
        mixed = {n for n in idle if (_reads(_part(jaxpr, [n])) & set(jaxpr.invars)) - own}
        if not read | mixed:
            return Closed(kept, closed.consts), idle
        idle -= read | mixed


def _part(jaxpr: Any, results: Sequence[int]) -> Part:
    """A jaxpr with some of its results."""
    return Part(jaxpr.constvars, jaxpr.invars, jaxpr.eqns, [jaxpr.outvars[n] for n in results])


def _reads(part: Part) -> set[Any]:
    """The variables that the results need."""
    own = {var for var in part.outvars if not hasattr(var, "val")}
    return own | {var for e in needed(part, {}) for var in e.invars if not hasattr(var, "val")}


def _counted(
    inside: JaxprInterpreter, params: Any, fixed: int, state: Sequence[Any], idle: set[int], where: Place
) -> dict[int, Any]:
    """The numbers that were left out, after the last place."""
    closed, order = params["jaxpr"], sorted(idle)
    part = Part(
        closed.jaxpr.constvars, closed.jaxpr.invars, closed.jaxpr.eqns, [closed.jaxpr.outvars[n] for n in order]
    )
    now = list(state)
    for _ in range(params["length"] if order else 0):
        # what is no counter is not read
        operands = [None] * fixed + now + [None] * (len(closed.jaxpr.invars) - fixed - len(now))
        for n, made in zip(order, inside.run(Closed(part, closed.consts), operands, where), strict=True):
            now[n] = made
    return {n: now[n] for n in order}


def loop_while(inside: JaxprInterpreter, equation: Any, given: Sequence[Any], place: Place) -> list[Any]:
    """A `while` whose condition constants decide, unrolled; refuses others."""
    params = equation.params
    of_test, of_body = params["cond_nconsts"], params["body_nconsts"]
    tested, fixed, state = given[:of_test], given[of_test : of_test + of_body], list(given[of_test + of_body :])
    where = place.inside(equation)
    for _ in range(MOST_ROUNDS + 1):
        (test,) = inside.run(params["cond_jaxpr"], [*tested, *state], where)
        if isinstance(test, Traced | Drawn):
            why = "the step's values decide how often it runs"
            break
        if not bool(test):
            return state
        state = inside.run(params["body_jaxpr"], [*fixed, *state], where)
    else:
        why = f"it runs more than {MOST_ROUNDS} times"
    why += "; lax.scan over a fixed number of rounds, with jnp.where(done, old, new), has a bound and a gradient"
    raise not_covered("while", place.holder or equation, place.of(equation), why)


def branch(inside: JaxprInterpreter, equation: Any, given: Sequence[Any], place: Place) -> list[Any]:
    """The branch that a constant chooses; of those that the step's values choose from, all run and one is taken.

    So `jax.vmap` makes of it, too: what is infinite or NaN in a branch that is not taken, or in its derivative, is in
    the gradient.
    """
    branches, where = equation.params["branches"], place.inside(equation)
    which = inside.settled(given[0], equation, place)
    if not isinstance(which, Traced):
        # JAX clamps the number of a branch, too
        chosen = min(max(int(which), 0), len(branches) - 1)
        return inside.run(branches[chosen], given[1:], where)
    made = [
        [as_value(inside.settled(x, equation, place)) for x in inside.run(each, given[1:], where)] for each in branches
    ]
    with inside.standing(equation, place):
        results = made[0]
        for number, others in enumerate(made[1:]):
            later = combined("greater", which, number + 0.5)  # the first and the last also beyond the ends
            results = [_chosen(later, new, old) for new, old in zip(others, results, strict=True)]
        return list(results)


def _chosen(which: Value, new: Value, old: Value) -> Value:
    if is_integer(new) and is_integer(old):
        return elementwise("select", which, new, old)
    return combined("select", which, new, old)


def _stacked(values: Sequence[Value]) -> Value:
    if not any(isinstance(x, Traced) for x in values):
        return np.stack([np.asarray(x) for x in values])
    lines = [reshape(x if isinstance(x, Traced) else np.asarray(x), (1, *shape_of(x))) for x in values]
    return lines[0] if len(lines) == 1 else concatenate(lines, 0)
