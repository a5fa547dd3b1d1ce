"""Functions whose gradient is given by another function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from ipu_core.ir.block import Type, Var
from ipu_core.ir.gradient_rule import GradientRule
from ipu_core.ir.ops import CUSTOM, INT32
from ipu_core.ir.pytree import PyTree, describe, flatten, paths, unflatten
from ipu_core.ir.trace.eager import as_array, format_of, is_number
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.tracing import argument_names, interpret, traced_part
from ipu_core.ir.trace.values import Traced, TwoTraces, apply, shape_of
from lowprec.checks import shown


def custom_gradient(f: Callable[..., Any], backward: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A function whose gradient is what another function says.

        def clip(x):
            return x, None
        unchanged = custom_gradient(clip, lambda kept, dy: (np.clip(dy, -1.0, 1.0),))

    Both are traced when the function is called on traced values; on arrays f alone is computed. What `backward`
    computes is typed as other gradients are: its equations have the role grad_weight where they go into the cotangents
    of parameters alone, else grad_input, and the names of parameters and layers as derivatives have them. What
    `value_and_grad` computes forwards in it stays forward. Its random bits are its own: to use a mask of f again, keep
    it. Under a loss scale dy is of the loss times that. Under unit scaling f is computed as it is written, on what has
    the factors of what comes before, and a backward that would not pass a factor of dy on gets dy without one. A
    derivative of the gradient is that of what `backward` computes, and of what was kept.

    Args:
        f: (*x) -> (y, kept), all nested arrays: the result and what the gradient needs. A traced value that f uses must
            be one of its arguments, or its gradient would be lost.
        backward: (kept, dy) -> one cotangent for each argument of f, in a tuple, nested as that is; a single argument's
            may stand alone. None, for an argument or for an array in it: no gradient. dy is nested as y, with None for
            int32 numbers, and zeros for what the loss does not depend on.

    Returns:
        A function of x that gives y.

    Raises:
        TypeError: no functions; what f, when it is called, gives is no pair; a cotangent that is no array of floats.
        ValueError: not as many cotangents as arguments, other shapes, or traced values from outside.
    """
    for name, function in (("f", f), ("backward", backward)):
        if not callable(function):
            raise TypeError(f"custom_gradient takes two functions; {name} is {shown(function)}")

    @wraps(f)
    def given(*x: Any) -> Any:
        return with_rule(f, backward, x)

    return given


def with_rule(f: Callable[..., Any], backward: Callable[[Any, Any], Any], x: tuple[Any, ...], *,
              again: bool = False) -> Any:  # fmt: skip
    """The result of f, whose gradient `backward` gives.

    Args:
        f, backward, x: see `custom_gradient`.
        again: whether `backward` gives (cotangents, arguments made again), nested alike: what the arguments are made of
            then need not be kept by calls of this kind that make them.
    """
    name = getattr(f, "__name__", type(f).__name__)
    # Nothing to differentiate: arrays are computed with at once, unless the function has a traced value from elsewhere,
    # whose gradient would be lost.
    if not any(isinstance(leaf, Traced) for leaf in flatten(x)[0]):
        pair = _pair(name, f(*x))
        if any(isinstance(leaf, Traced) for leaf in flatten(pair)[0]):
            raise ValueError(CLOSED.format(name))
        return pair[0]
    try:
        part = traced_part(f, *x)
    except TwoTraces as error:
        raise ValueError(CLOSED.format(name)) from error
    y, kept = _pair(name, part.result)
    results, tree = flatten(y)
    stays = [leaf for leaf in flatten(kept)[0] if _is_kept(name, leaf)]
    forward = part.block([*results, *stays])
    types = tuple(var.type for var in forward.outputs[: len(results)])
    # Integers have no cotangent.
    seeds = [None if type_.format == INT32 else TracedArray(part.builder, Var("cotangent", type_)) for type_ in types]
    own = Arguments(argument_names(f, len(x)), x)
    rule = _rule(name, backward, own, kept, unflatten(tree, seeds), types, again=again)
    # The function was traced apart, to see what it uses: now its equations come to the trace of the caller.
    values = interpret(forward, part.given)
    results, operands = values[: len(results)], (*part.given, *values[len(results) :])
    marked = [apply(CUSTOM, value, *operands, rule=rule, result=number) for number, value in enumerate(results)]
    return unflatten(tree, marked)


CLOSED = (
    "custom_gradient of {0}: {0} uses a traced value that is none of its arguments, whose gradient would be lost; "
    "make it an argument"
)


def _pair(name: str, result: Any) -> tuple[Any, Any]:
    """What a function gives, which must be its result and what is kept."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"custom_gradient of {name}: {name} must give (result, what is kept), not {_words(result)}")
    return result


def _words(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, tuple) else type(value).__name__


def _is_array(value: Any) -> bool:
    return isinstance(value, Traced | np.ndarray | np.generic) or is_number(value)


def _is_kept(name: str, leaf: Any) -> bool:
    """Whether something that is kept is a value of the trace; what is no array or number is refused."""
    if not _is_array(leaf):
        raise TypeError(f"custom_gradient of {name}: arrays and numbers can be kept, not {shown(leaf)}")
    return isinstance(leaf, Traced)


class Arguments:
    """The arguments of a call, with the names of their leaves.

    Attributes:
        trees, leaves: of each argument.
        names: of all leaves.
    """

    def __init__(self, names: Sequence[str], x: Sequence[Any]) -> None:
        self.each = list(names)
        flat = [flatten(one) for one in x]
        self.trees = [tree for _, tree in flat]
        self.leaves = [leaf for leaves, _ in flat for leaf in leaves]
        self.names = [path for name, tree in zip(names, self.trees, strict=True) for path in paths(tree, name)]

    def matched(self, given: Any, what: str) -> list[Any]:
        """What is given for each leaf; None: nothing.

        Raises:
            ValueError, TypeError: it is not nested as the arguments, or of other shapes.
        """
        # A named tuple is one nested argument, a plain one a cotangent for each.
        alone = not isinstance(given, tuple) or hasattr(given, "_fields")
        if alone and len(self.trees) == 1:
            given = (given,)
        if not isinstance(given, tuple | list) or len(given) != len(self.trees):
            count = len(given) if isinstance(given, tuple | list) else 1
            raise ValueError(f"{what} for {count} of the {len(self.trees)} arguments ({', '.join(self.each)})")
        found: list[Any] = []
        for one, tree, name in zip(given, self.trees, self.each, strict=True):
            found += _nested(one, tree, f"{what} for {name}")
        for one, leaf, name in zip(found, self.leaves, self.names, strict=True):
            if one is not None:
                _check_leaf(one, leaf, f"{what} for {name}")
        return found


def _nested(given: Any, tree: PyTree, what: str) -> list[Any]:
    """The leaves of what is nested as a tree is, None where there is nothing."""
    if given is None:
        return [None] * tree.leaves
    if tree.kind is None:
        return [given]
    keys: tuple[Any, ...] | None = None
    if isinstance(given, dict) and issubclass(tree.kind, dict):
        # As `flatten` orders a dict.
        keys = tuple(sorted(given))
    elif isinstance(given, list | tuple) and not issubclass(tree.kind, dict):
        keys = tuple(range(len(given)))
    if keys != tree.keys:
        raise ValueError(f"{what} is not nested as that is ({', '.join(map(str, tree.keys))}): {describe(given)}")
    parts = [given[key] for key in tree.keys]
    return [leaf for one, child in zip(parts, tree.children, strict=True) for leaf in _nested(one, child, what)]


def _check_leaf(given: Any, leaf: Any, what: str) -> None:
    if not _is_array(given):
        raise TypeError(f"{what} must be an array of floats or None, not {shown(given)}")
    if _format(leaf) == INT32:
        raise TypeError(f"{what} must be None: that holds int32 numbers")
    if not is_number(given) and _format(given) == INT32:
        raise TypeError(f"{what} must hold floats, not int32 numbers")
    if shape_of(given) != shape_of(leaf):
        raise ValueError(f"{what} must have its shape {shape_of(leaf)}, not {shape_of(given)}")


def _format(value: Any) -> Any:
    return value.format if isinstance(value, Traced) else format_of(as_array(value))


def _rule(
    name: str, backward: Callable[[Any, Any], Any], x: Arguments, kept: Any, dy: Any, types: tuple[Type, ...], *,
    again: bool,
) -> GradientRule:  # fmt: skip
    """The gradient of a call, traced."""
    try:
        part = traced_part(backward, kept, dy, role="grad_input")
    except TwoTraces as error:
        raise ValueError(
            f"custom_gradient of {name}: its backward, or a function it differentiates, uses a traced value that is "
            f"neither kept nor an argument; let {name} keep it"
        ) from error
    given, made = part.result if again else (part.result, None)
    traced = [position for position, leaf in enumerate(x.leaves) if isinstance(leaf, Traced)]
    what = f"custom_gradient of {name}: a cotangent"
    every = x.matched(given, what) + (x.matched(made, f"{what} made again") if again else [])
    chosen = [every[position] for position in traced]
    chosen += [every[position + len(x.leaves)] for position in traced] if again else []
    values = [value for value in chosen if value is not None]
    places = iter(range(len(values)))
    found = [None if value is None else next(places) for value in chosen]
    count = len(traced)
    return GradientRule(name, part.block(values), count, types, tuple(found[:count]), tuple(found[count:]))
