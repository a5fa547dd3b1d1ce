"""One draw of Hamiltonian Monte Carlo as a function to be traced: leapfrog steps as a scan, and whether it is taken.

Duane et al. 1987; Neal, "MCMC using Hamiltonian dynamics", 2011, sections 2 and 3 (arXiv 1206.1901).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.loss_tail import as_loss
from ipu_core.ir.pytree import flatten, paths, unflatten
from ipu_core.ir.trace.scan import scanned
from ipu_core.ir.trace.tracing import interpret, trace
from ipu_core.ir.trace.values import Traced, Value, apply, elementwise, reduce_sum, reshape, scope, shape_of, where
from ipu_core.nn.operations import minimum
from ipu_core.train.optim.common import write

LogDensity = Callable[..., Any]
"""(positions, *data) -> (chains,): the logarithm of a density, up to a constant, of each chain's position."""


def draw_of(log_density: LogDensity, leapfrog: int) -> Callable[[Any, Any], Any]:
    """The function (positions, given) -> results of one draw of every chain.

    Given are "momentum" (standard normal numbers nested and shaped as the positions), "uniform" (chains,) in [0, 1),
    "step" (one number), "scales" (nested as the positions, without the chains: a deviation of each) and "data".
    Results are "positions", "log_density", "accept" (the probability) and "energy_error", of (chains,) each.

    Positions are written as weights are, and rounded as these; momenta are kept as the first moment of an optimizer;
    energies are those of a loss, in float32.
    """

    def total(positions: Any, data: Any) -> tuple[Value, Value]:
        each = _wide(log_density, positions, data)
        return reduce_sum(each), each

    gradient = value_and_grad(total, has_aux=True)

    def draw(positions: Any, given: Any) -> dict[str, Any]:
        data, step, scales = given["data"], given["step"], given["scales"]

        def at(place: Any) -> tuple[Any, Any]:
            (_, value), slope = gradient(place, data)
            return value, slope

        def advance(state: Any, _: Any) -> tuple[Any, Any]:
            place, momentum, _, slope = state
            momentum = kicked(momentum, slope, scales, step)
            place = moved(place, momentum, scales, step)
            value, slope = at(place)
            return (place, kicked(momentum, slope, scales, step), value, slope), ()

        value, slope = at(positions)
        begun = (positions, given["momentum"], value, slope)
        (place, momentum, after, _), _ = scanned(advance, begun, np.zeros(leapfrog, np.float32))
        with scope((value, after), role="forward", family="loss"):
            change = (after - kinetic(momentum)) - (value - kinetic(given["momentum"]))
            accept = np.exp(minimum(change, 0.0))
            taken = given["uniform"] < accept
            kept = where(taken, after, value)
        return {
            "positions": _each(lambda new, old: where(_along(taken, new), new, old), place, positions, role="update"),
            "log_density": kept,
            "accept": accept,
            "energy_error": elementwise("multiply", change, -1.0),
        }

    return draw


def _wide(log_density: LogDensity, positions: Any, data: Any) -> Value:
    """The log densities, of which all behind the last product is in float32, as of a loss.

    A half would end at 65,504 nats, and would round a difference of energies by that of their size.
    """

    def checked(place: Any, rest: Any) -> Any:
        each = log_density(place, *rest)
        check_density(each, place)
        return each

    leaves, tree = flatten((positions, data))
    block = trace(checked, *unflatten(tree, [x.node.type if isinstance(x, Traced) else x for x in leaves]))
    return interpret(as_loss(block, block.outputs[0]), leaves)[0]


def kinetic(momentum: Any) -> Value:
    """Half the sum of squares of each chain: momenta are standard normal, the scales are in the steps."""
    squares = [apply("square", leaf) for leaf in flatten(momentum)[0]]
    parts = [reduce_sum(x, tuple(range(1, len(shape_of(x))))) if len(shape_of(x)) > 1 else x for x in squares]
    whole = parts[0]
    for part in parts[1:]:
        whole = elementwise("add", whole, part)
    return elementwise("multiply", whole, 0.5)


def kicked(momentum: Any, slope: Any, scales: Any, step: Value) -> Any:
    """Momenta after half a step along the slope of the log density."""

    def one(z: Value, g: Value, scale: Value) -> Value:
        half = elementwise("multiply", step, 0.5)
        return apply("scaled_add", z, elementwise("multiply", g, scale), half)

    return _each(one, momentum, slope, scales, role="optimizer", family="first_moment")


def moved(place: Any, momentum: Any, scales: Any, step: Value) -> Any:
    """Positions after a step along the momenta."""

    def one(q: Value, z: Value, scale: Value) -> Value:
        return write(q, elementwise("multiply", z, scale), step)

    return _each(one, place, momentum, scales, role="optimizer")


def _each(f: Callable[..., Value], *nested: Any, role: str, family: str | None = None) -> Any:
    """f of the leaves of every part of a position, under its name."""
    trees = [flatten(one)[0] for one in nested]
    tree = flatten(nested[0])[1]
    made = []
    for name, *leaves in zip(paths(tree), *trees, strict=True):
        with scope(leaves, role=role, family=family, parameter=name):
            made.append(f(*leaves))
    return unflatten(tree, made)


def _along(flags: Value, like: Value) -> Value:
    """A number of each chain beside an array of each."""
    return reshape(flags, (*shape_of(flags), *(1,) * (len(shape_of(like)) - 1)))


def check_density(value: Any, positions: Any) -> None:
    """Refuses what is not one number of each chain.

    Raises:
        TypeError: in words.
    """
    chains = shape_of(flatten(positions)[0][0])[0]
    given = getattr(value, "shape", None)
    if given != (chains,):
        said = f"a {type(value).__name__}" if given is None else f"shape {tuple(given)}"
        raise TypeError(
            f"log_density must give one number of each chain, shape ({chains},), not {said}: chains are the first axis "
            "of every part of a position"
        )
