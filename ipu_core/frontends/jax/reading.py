"""What of a jaxpr is run, and what its indices are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ipu_core.frontends.jax.operations.call import kind_of

INDEXED = {"gather", "scatter", "scatter-add", "scatter-mul", "scatter-max", "scatter-min"}
"""Primitives whose second operand is an index."""
SEEN_OTHERWISE = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "concatenate", "convert_element_type"}
"""Primitives whose result is their operands' elements."""


def wrapped(equations: Sequence[Any], made_by: Mapping[Any, Any], traced: set[Any]) -> dict[Any, Any]:
    """For each traced index that counts from the end where it is below 0, as NumPy's do, what it is made of."""
    found = {}
    for equation in equations:
        if any(var in traced for var in equation.invars if not hasattr(var, "val")):
            traced.update(equation.outvars)
        if len(equation.invars) != 3:
            continue
        below, index, more = equation.invars
        # jnp.where calls a function whose cases come the other way round than select_n's
        if equation.params.get("name") == "_where":
            more, index = index, more
        elif equation.primitive.name != "select_n":
            continue
        if hasattr(index, "val") or index not in traced or kind_of(index.aval.dtype) != "int" or not index.aval.shape:
            continue
        # JAX writes x[i] as x[where(i < 0, i + n, i)]; indices of a batch lie inside, so the i alone is kept
        first, second = made_by.get(below), made_by.get(more)
        if first is not None and second is not None:
            names = first.primitive.name, second.primitive.name
            zero = getattr(first.invars[-1], "val", None)
            if names == ("lt", "add") and first.invars[0] is second.invars[0] is index and zero == 0:
                found[equation.outvars[0]] = index
    return found


def needed(jaxpr: Any, as_given: Mapping[Any, Any]) -> list[Any]:
    """The equations that the results need, in order."""
    wanted = {as_given.get(var, var) for var in jaxpr.outvars if not hasattr(var, "val")}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if wanted.intersection(equation.outvars):
            kept.append(equation)
            wanted.update(as_given.get(var, var) for var in equation.invars if not hasattr(var, "val"))
    return kept[::-1]


def columns(equation: Any, made_by: Mapping[Any, Any], read: Callable[[Any], Any]) -> list[Any]:
    """The columns that a concatenation put together to the indices of an equation; empty where they are no such."""
    if equation.primitive.name not in INDEXED or hasattr(equation.invars[1], "val"):
        return []
    maker = made_by.get(equation.invars[1])
    if maker is None or maker.primitive.name != "concatenate":
        return []
    # x[i, j] in JAX is one index array, joined from a column for each axis
    ones = all(var.aval.shape[-1] == 1 for var in maker.invars)
    last = maker.params["dimension"] == len(maker.outvars[0].aval.shape) - 1
    return [read(var) for var in maker.invars] if ones and last else []


def origins(equation: Any, made_by: Mapping[Any, Any]) -> list[Any]:
    """The variables that the indices of an equation are put together from; none where it has no such."""
    if equation.primitive.name not in INDEXED:
        return []
    found, left = list[Any](), [equation.invars[1]]
    while left:
        maker = None if hasattr(var := left.pop(), "val") else made_by.get(var)
        if maker is not None and maker.primitive.name in SEEN_OTHERWISE:
            left += maker.invars
        else:
            found.append(var)
    return found
