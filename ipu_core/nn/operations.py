"""Elementwise operations, linear layers, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.chip.tile import dropout_mask
from ipu_core.ir.block import Array, format_name
from ipu_core.ir.ops import INT32
from ipu_core.ir.trace.array_functions import log1p
from ipu_core.ir.trace.eager import as_array, format_of
from ipu_core.ir.trace.evaluation import evaluates
from ipu_core.ir.trace.images import vector
from ipu_core.ir.trace.values import (
    Traced,
    Value,
    apply,
    axes_of,
    elementwise,
    in_format,
    matmul,
    reduce_max,
    reduce_sum,
    reshape,
    scope,
    shape_of,
    where,
)
from lowprec import FloatFormat
from lowprec import float32 as FLOAT32
from lowprec.checks import entries, integer, listed, shown, truth
from lowprec.random import KeyLike, as_key

LOWEST = -3e38  # of a masked score: its exponential is 0 beside any other's
MASK_STEPS = 2**16  # rates of dropout are multiples of 1 / this


def exp(x: Value) -> Value:
    """e to the power x."""
    return apply("exp", x)


def log(x: Value) -> Value:
    """The natural logarithm; -inf at 0, NaN below."""
    return apply("log", x)


def sqrt(x: Value) -> Value:
    """The square root; NaN below 0."""
    return apply("sqrt", x)


def rsqrt(x: Value) -> Value:
    """One over the square root."""
    return apply("rsqrt", x)


def square(x: Value) -> Value:
    """x times x."""
    return apply("square", x)


def sin(x: Value) -> Value:
    """The sine."""
    return apply("sin", x)


def cos(x: Value) -> Value:
    """The cosine."""
    return apply("cos", x)


def erf(x: Value) -> Value:
    """The error function."""
    return apply("erf", x)


def relu(x: Value) -> Value:
    """x where it is above 0, else 0. The gradient at 0 is 0."""
    return apply("relu", x)


def gelu(x: Value, approximate: str = "none") -> Value:
    """x times the normal distribution function of x.

    Args:
        x: any array.
        approximate: "none": by erf, one operation; "tanh": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), in several.

    Raises:
        ValueError: another approximation.
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise ValueError(f"gelu's approximate is 'none' or 'tanh', not {shown(approximate)}")
    if approximate == "none":
        return apply("gelu", x)
    cube = elementwise("multiply", elementwise("multiply", square(x), x), 0.044715)
    inner = elementwise("multiply", elementwise("add", x, cube), math.sqrt(2 / math.pi))
    return elementwise("multiply", elementwise("multiply", x, 0.5), elementwise("add", tanh(inner), 1.0))


def silu(x: Value) -> Value:
    """x times its sigmoid, also called swish."""
    return elementwise("multiply", x, sigmoid(x))


def softplus(x: Value) -> Value:
    """The logarithm of 1 + e^x, without overflow; its gradient is the sigmoid, at 0 too."""
    # -|x| by a choice: the gradient of abs at 0 is 0, and that of softplus there would be 0 in place of a half
    below = where(elementwise("greater", x, 0.0), elementwise("negative", x), x)
    # relu(x) + log(1 + e^-|x|): the exponential never overflows
    return elementwise("add", relu(x), log1p(exp(below)))


def leaky_relu(x: Value, slope: float = 0.01) -> Value:
    """x where it is above 0, else x times a slope."""
    return where(elementwise("greater", x, 0.0), x, elementwise("multiply", x, slope))


def tanh(x: Value) -> Value:
    """The hyperbolic tangent."""
    return apply("tanh", x)


def sigmoid(x: Value) -> Value:
    """1/(1 + e^-x)."""
    return apply("sigmoid", x)


def maximum(a: Value, b: Value) -> Value:
    """The larger of two; NaN if either is. The gradient goes to it, in equal halves where both are equal."""
    return elementwise("maximum", a, b)


def minimum(a: Value, b: Value) -> Value:
    """The smaller of two; NaN if either is. The gradient goes to it, in equal halves where both are equal."""
    return elementwise("minimum", a, b)


def stop_gradient(x: Value) -> Value:
    """x itself, taken as a constant when differentiating."""
    return apply("stop_gradient", x)


def scale(x: Value, forward: float = 1.0, backward: float = 1.0) -> Value:
    """x times one factor, with a gradient that is multiplied by another.

    Differentiating refuses factors that would make a gradient wrong: where `backward` is not `forward`, this must be
    the only way to the loss of all that is before it, or every other way must have as much of a difference.

    Args:
        x: an array of floats.
        forward, backward: finite numbers above 0.

    Raises:
        ValueError: another factor.
    """
    for name, factor in (("forward", forward), ("backward", backward)):
        if not isinstance(factor, int | float | np.floating | np.integer) or not 0 < factor < math.inf:
            raise ValueError(f"scale: {name} must be a finite number above 0, not {factor!r}")
    # a gradient that keeps its size leaves no equation to check
    x = x if backward == 1 else apply("scale_gradient", x, factor=float(backward))
    return elementwise("scale", x, float(forward))


def one_hot(labels: Value, classes: int) -> Value:
    """1 where the last, new axis equals the label, else 0 (float32). Labels outside [0, classes) give zeros.

    Raises:
        TypeError: classes that are no integer.
        ValueError: less than 0 of them, or more than labels can name.
    """
    return apply("one_hot", labels, classes=integer("classes", classes, 0, (1 << 31) - 1))


def dropout(x: Value, rate: float | None = None, *, p: float | None = None, key: KeyLike | None = None) -> Value:
    """Sets a share of the elements to 0 and scales the others, so that the mean stays.

    Traced, the mask is drawn anew in every step, from the step's key and a number that this call gets when it is
    traced; the gradient uses the same mask, and both engines draw the same. A prediction (`Predictor`,
    `TrainLoop.predict`) keeps all elements as they are; of arrays, leave the call out to evaluate a model.

    Args:
        x: an array.
        rate: share set to 0, in [0, 1); rounded to a multiple of 2^-16, and the scale is 1 / (1 - that).
        p: PyTorch's name of the rate.
        key: of the mask, for arrays only.

    Raises:
        TypeError: a rate that is no number, or given by both names; masked elements.
        ValueError: a rate outside [0, 1); arrays without a key, or a key for a traced value.
    """
    if p is not None and rate is not None:
        raise TypeError(f"dropout takes one rate, not rate={rate!r} and p={p!r}")
    rate = p if rate is None else rate
    if not isinstance(rate, int | float | np.floating | np.integer):
        raise TypeError(f"a dropout rate must be a number in [0, 1), not {rate!r}")
    if not 0 <= rate < 1:
        raise ValueError(f"a dropout rate must be in [0, 1), not {rate}")
    if isinstance(x, Traced) != (key is None):
        raise ValueError("dropout takes its bits from the step's key where it is traced, else from key=")
    return x if evaluates() and isinstance(x, Traced) else drawn_out(x, float(rate), key)


def drawn_out(x: Value, rate: float, key: KeyLike | None = None) -> Value:
    """`dropout` in predictions too: for those to whom its mask is what they want."""
    # a mask compares 16 random bits; a rate just below 1 must keep something, or its scale would be infinite
    share = min(round(rate * MASK_STEPS), MASK_STEPS - 1) / MASK_STEPS
    if isinstance(x, Traced):
        # the number tells this call's bits from another's in the same step
        mask = apply("dropout_mask", x, rate=share, operation=x.builder.number)
    else:
        x = as_array(x)
        mask = dropout_mask(share)(as_key(0 if key is None else key), 0, np.empty(x.shape, x.dtype))
    # a choice, not a product with the mask: an infinity that is dropped would be NaN
    return where(mask, elementwise("multiply", x, 1 / (1 - share)), 0.0)


def linear(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x @ weight + bias.

    Args:
        x: (..., inputs).
        weight: (inputs, outputs).
        bias: (outputs,) or None.

    Raises:
        ValueError: shapes that do not fit.
    """
    product = matmul(x, weight)
    return product if bias is None else elementwise("add", product, vector("bias", bias, shape_of(weight)[-1]))


def mlp(layers: Sequence[dict[str, Value]], x: Value, activation: Callable[[Value], Value] = relu) -> Value:
    """A multi-layer perceptron: linear layers with an activation between them (none after the last).

    Args:
        layers: {"weight": (n, m), "bias": (m,)} per layer, see `mlp_parameters`.
        x: (rows, n of the first layer).
        activation: a function of one value.

    Raises:
        ValueError: no layers.
    """
    parts = [entries(f"layers[{i}]", one, ("weight", "bias")) for i, one in enumerate(listed("layers", layers))]
    if not parts:
        raise ValueError("a perceptron needs at least one layer")
    if not callable(activation):
        raise TypeError(f"activation must be a function of one value, not {shown(activation)}")
    for weight, bias in parts[:-1]:
        x = activation(linear(x, weight, bias))
    return linear(x, *parts[-1])


def embedding(table: Value, indices: Value) -> Value:
    """Rows of a table.

    Args:
        table: (entries, ...).
        indices: int32 in [0, entries), any shape.

    Raises:
        TypeError: indices that are no integers.
    """
    if element_format(indices) != INT32:
        swapped = "; are the arguments swapped? The table comes first" if element_format(table) == INT32 else ""
        given = format_name(element_format(indices))
        raise TypeError(f"indices must be integers, the numbers of rows, not {given}{swapped}")
    return apply("gather", table, indices)


def element_format(x: Value) -> Any:
    return x.format if isinstance(x, Traced) else format_of(as_array(x))


def widen(x: Value) -> Value:
    """x in at least float32: half and narrower formats are converted, exactly."""
    fmt = element_format(x)
    return in_format(x, FLOAT32) if isinstance(fmt, FloatFormat) and fmt.mantissa_bits < FLOAT32.mantissa_bits else x


def narrow(x: Value, like: Value) -> Value:
    """x in the format of another value."""
    return in_format(x, element_format(like))


def table_like(table: Array, x: Value) -> Array:
    """A table in the dtype of an array; where a value is traced, in float32.

    Raises:
        TypeError: an array that is no floats.
    """
    # a format that is text is one of integers
    if isinstance(element_format(x), str):
        raise TypeError("an array of integers cannot be multiplied by a table of numbers: x.astype(np.float32)")
    # in the dtype of x: NumPy would widen halves that are multiplied by a float32 table
    return table.astype(x.dtype if isinstance(x, np.ndarray) else np.float32)


def softmax(x: Value, axis: int = -1, *, mask: Value | None = None) -> Value:
    """e^x over its sum along an axis, shifted by the maximum; exponentials and sums are float32.

    Args:
        x: any array.
        axis: of the sums.
        mask: fits x: 0 where an element does not count (its result and gradient are 0), else 1; None: all count. Where
            none counts, all results are equal.
    """
    with scope(x, family="softmax"):
        # a finite number, not -inf: a row of which nothing counts would be NaN
        wide = widen(x) if mask is None else where(mask, widen(x), LOWEST)
        # the shift cancels in the quotient, so no gradient need pass it
        powers = exp(elementwise("subtract", wide, stop_gradient(reduce_max(wide, axis, keepdims=True))))
        total = reduce_sum(powers, axis, keepdims=True)
    # the only rounding to the format of x: exponentials and their sum would lose small probabilities in halves
    return narrow(elementwise("divide", powers, total), x)


def log_softmax(x: Value, axis: int = -1) -> Value:
    """The logarithm of softmax, without leaving float32 on the way."""
    with scope(x, family="softmax"):
        shifted, total = shifted_log_sum_exp(widen(x), axis)
    return narrow(elementwise("subtract", shifted, total), x)


def shifted_log_sum_exp(x: Value, axis: int) -> tuple[Value, Value]:
    """x minus its maximum along an axis, and the logarithm of the sum of the exponentials of those differences."""
    shifted = elementwise("subtract", x, stop_gradient(reduce_max(x, axis, keepdims=True)))
    return shifted, log(reduce_sum(exp(shifted), axis, keepdims=True))


def log_sum_exp(x: Value, axis: int = -1, keepdims: bool = False) -> Value:
    """The logarithm of the sum of e^x along an axis, shifted by the maximum; in float32."""
    with scope(x, family="softmax"):
        wide = widen(x)
        top = stop_gradient(reduce_max(wide, axis, keepdims=True))
        total = reduce_sum(exp(elementwise("subtract", wide, top)), axis, keepdims=True)
        result = elementwise("add", top, log(total))
    (axis,) = axes_of(x, integer("axis", axis))
    kept = [n for i, n in enumerate(shape_of(x)) if i != axis]
    return result if truth("keepdims", keepdims) else reshape(result, kept)


logsumexp = log_sum_exp  # under PyTorch's name
