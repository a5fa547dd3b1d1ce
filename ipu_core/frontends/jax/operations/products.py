"""Primitives that add: products, convolutions, reductions, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ipu_core.frontends.jax.operations.call import EquationCall
from ipu_core.frontends.jax.operations.moves import surrounded
from ipu_core.frontends.torch.operations.call import numbers
from ipu_core.frontends.torch.operations.images import LOWEST, avg_pool, max_pool
from ipu_core.ir.trace.array_formulas import prod
from ipu_core.ir.trace.array_functions import all_of, any_of, cumsum, reduce_min
from ipu_core.ir.trace.array_moves import flip
from ipu_core.ir.trace.array_products import einsum
from ipu_core.ir.trace.values import Value, reduce_max, reduce_sum, reshape, shape_of, transpose
from ipu_core.nn import conv2d


def product(call: EquationCall, a: Value, b: Value) -> Value:
    """A sum of products: axes of both that stay, then the first's own, then the second's."""
    (summed_a, summed_b), (batch_a, batch_b) = call.params["dimension_numbers"]
    letters = [chr(ord("a") + i) for i in range(len(shape_of(a)) + len(shape_of(b)))]
    of_a, of_b = letters[: len(shape_of(a))], letters[len(shape_of(a)) :]
    for i, j in zip((*summed_a, *batch_a), (*summed_b, *batch_b), strict=True):
        of_b[j] = of_a[i]
    batch, summed = [of_a[i] for i in batch_a], [of_a[i] for i in summed_a]
    own = [c for c in of_a if c not in (*batch, *summed)], [c for c in of_b if c not in (*batch, *summed)]
    return einsum(f"{''.join(of_a)},{''.join(of_b)}->{''.join((*batch, *own[0], *own[1]))}", numbers(a), numbers(b))


def convolution(call: EquationCall, x: Value, weight: Value) -> Value:
    """A convolution of images or signals with axes in any order; a signal is an image of one line."""
    given, places = call.params, call.params["dimension_numbers"]
    lines = len(shape_of(x)) == 3
    if not lines and len(shape_of(x)) != 4:
        raise NotImplementedError("a convolution of volumes")
    if given["batch_group_count"] != 1 or min(map(min, given["padding"])) < 0:
        raise NotImplementedError("groups of a batch, or borders left out")
    (n, channels, *around), (outputs, inputs, *within) = places.lhs_spec, places.rhs_spec
    x, weight = transpose(x, (n, *around, channels)), transpose(weight, (*within, inputs, outputs))
    if lines:
        x, weight = reshape(x, (shape_of(x)[0], 1, *shape_of(x)[1:])), reshape(weight, (1, *shape_of(weight)))
    between = _pair(given["lhs_dilation"])
    if max(between) > 1:
        # a convolution of a transposed kind: JAX spreads its input by zeros, and so is it here
        x = surrounded(x, (0,) * 4, (0,) * 4, (0, between[0] - 1, between[1] - 1, 0), 0.0)
    low, high = (_pair([side[end] for side in given["padding"]], neutral=0) for end in (0, 1))
    made = conv2d(
        x, weight, stride=_pair(given["window_strides"]), padding=((low[0], high[0]), (low[1], high[1])),
        dilation=_pair(given["rhs_dilation"]), groups=int(given["feature_group_count"]),
    )  # fmt: skip
    made = reshape(made, (shape_of(made)[0], *shape_of(made)[2:])) if lines else made
    lies = (places.out_spec[0], *places.out_spec[2:], places.out_spec[1])  # where the axes of ours are in the result
    return transpose(made, [lies.index(i) for i in range(len(lies))])


def _pair(numbers_of: Sequence[int], neutral: int = 1) -> tuple[int, int]:
    """A number for each axis of an image, the first of which a signal does not have."""
    first, second = (neutral, *numbers_of) if len(numbers_of) == 1 else numbers_of
    return int(first), int(second)


def windows(take: Callable[..., Value], around: float) -> Callable[..., Value]:
    """A reduction of windows over one or two axes by a function of images; what surrounds them has a number."""

    def reduced(call: EquationCall, x: Value) -> Value:
        sizes, steps, sides = (call.params[name] for name in ("window_dimensions", "window_strides", "padding"))
        if {*call.params["base_dilation"], *call.params["window_dilation"]} != {1}:
            raise NotImplementedError("windows with gaps")
        ndim = len(shape_of(x))
        # axes whose window is one element are rows of the images
        wide = [i for i in range(ndim) if (sizes[i], steps[i], *sides[i]) != (1, 1, 0, 0)]
        if len(wide) > 2 or ndim < 2:
            raise NotImplementedError("windows over more than two axes, or of a vector")
        order = [*(i for i in range(ndim) if i not in wide), *wide]
        images = reshape(transpose(x, order), (-1, *(shape_of(x)[i] for i in order[-2:]), 1))
        low, high = ((0, *(int(sides[i][end]) for i in order[-2:]), 0) for end in (0, 1))
        if any((*low, *high)):
            images = surrounded(images, low, high, (0,) * 4, around)
        kernel, stride = ([int(given[i]) for i in order[-2:]] for given in (sizes, steps))
        made = reshape(take(images, kernel, stride), [call.shape[i] for i in order])
        return transpose(made, [order.index(i) for i in range(ndim)])

    return reduced


def maxima(x: Value, kernel: Any, stride: Any) -> Value:
    return max_pool(x, kernel, stride, (0, 0))


def sums(x: Value, kernel: Any, stride: Any) -> Value:
    return avg_pool(x, kernel, stride, (0, 0), divisor=1)


def running(call: EquationCall, x: Value) -> Value:
    """The cumulative sum along an axis."""
    place = int(call.params["axis"])
    if call.params["reverse"]:
        return flip(cumsum(flip(numbers(x), place), place), place)
    return cumsum(numbers(x), place)


def over(function: Callable[..., Value]) -> Callable[..., Value]:
    """A reduction over the axes of the equation."""
    return lambda call, x: function(numbers(x), [int(i) for i in call.params["axes"]])


TABLE: dict[str, Callable[..., Any]] = {
    "dot_general": product, "conv_general_dilated": convolution,
    "reduce_sum": over(reduce_sum), "reduce_max": over(reduce_max), "reduce_min": over(reduce_min),
    "reduce_prod": over(prod), "reduce_and": over(all_of), "reduce_or": over(any_of),
    "cumsum": running, "reduce_window_max": windows(maxima, LOWEST), "reduce_window_sum": windows(sums, 0.0),
}  # fmt: skip
