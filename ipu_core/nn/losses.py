"""Losses: float32 inside, one number over all rows."""

from __future__ import annotations

from ipu_core.ir.trace.eager import as_array, check_labels, format_of
from ipu_core.ir.trace.values import Traced, Value, elementwise, mean, reduce_sum, reshape, scope, shape_of, where
from ipu_core.nn.operations import one_hot, shifted_log_sum_exp, softplus, square, widen
from lowprec import FloatFormat
from lowprec.checks import integer, number, shown


def cross_entropy_rows(logits: Value, labels: Value) -> Value:
    """Minus the logarithm of the probability that softmax gives the label, per row, in float32.

    Args:
        logits: (..., classes). A class of logit -inf has the probability 0 and the gradient 0.
        labels: int32 (...), in [0, classes).

    Raises:
        ValueError: labels of another shape than the rows of logits; a label that is no class, of a traced loss when it
            runs on whole arrays.
        TypeError: labels that are no integers.
    """
    _check(logits, labels)
    with scope(logits, family="loss"):
        shifted, total = shifted_log_sum_exp(widen(logits), -1)
        # a choice, not a product with the one-hot row: of a class of logit -inf 0 * -inf would be NaN
        picked = reduce_sum(where(one_hot(labels, shape_of(logits)[-1]), shifted, 0.0), -1, keepdims=True)
        return reshape(elementwise("subtract", total, picked), shape_of(logits)[:-1])


def _check(logits: Value, labels: Value) -> None:
    """Refuses labels that do not fit the logits, in words for who wrote the loss."""
    if not shape_of(logits):
        raise ValueError("logits have an axis of classes, (..., classes), not the shape ()")
    rows, given = shape_of(logits)[:-1], shape_of(labels)
    if given != rows:
        hint = "; one class number for each row, such as labels.argmax(-1)" if given == shape_of(logits) != () else ""
        swapped = given != () and given[:-1] == shape_of(logits)
        hint = "; are the arguments swapped? The logits, (rows, classes), come first" if swapped else hint
        raise ValueError(f"labels must have the shape {rows} of the rows, not {given}{hint}")
    # probabilities as labels would pass as class numbers 0 and 1
    found = labels.format if isinstance(labels, Traced) else format_of(as_array(labels))
    if found != "int32":
        name = found.name if isinstance(found, FloatFormat) else found
        raise TypeError(f"labels must be integers, the numbers of classes, not {name}: labels.astype(np.int32)")
    # of a traced loss the numbers are not known yet: the batch is looked at when it runs
    if not isinstance(labels, Traced):
        check_labels(labels, shape_of(logits)[-1])


def softmax_cross_entropy(logits: Value, labels: Value, weights: Value | None = None) -> Value:
    """The mean over all rows of `cross_entropy_rows`: one float32 number.

    Args:
        logits, labels: see `cross_entropy_rows`.
        weights: (...), of the rows, such as 0 for padding and 1 elsewhere: the mean is weighted by them; None: all 1.

    Raises:
        ValueError: see `cross_entropy_rows`; weights of another shape than the labels.
    """
    with scope(logits, family="loss"):
        rows = cross_entropy_rows(logits, labels)
        if weights is None:
            return mean(rows)
        if shape_of(weights) != shape_of(labels):
            raise ValueError(f"weights must have the shape {shape_of(labels)} of the labels, not {shape_of(weights)}")
        return elementwise("divide", reduce_sum(elementwise("multiply", rows, weights)), reduce_sum(weights))


def cross_entropy(
    logits: Value,
    labels: Value,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Value:
    """Minus the logarithm of the probability that softmax gives the labels, in float32, under PyTorch's name.

    Args:
        logits: (..., classes): the classes come last, where PyTorch has them second.
        labels: int32 (...), in [0, classes) or the one that is ignored.
        ignore_index: rows of this label count for nothing, PyTorch's default being -100; None: all rows count.
        label_smoothing: share of the loss that is the mean over all classes instead of the label's.
        reduction: "mean" over the rows that count, "sum", or "none": (...), 0 for rows that do not.

    Raises:
        ValueError: see `cross_entropy_rows`; another reduction, a smoothing outside [0, 1].
    """
    if not isinstance(reduction, str) or reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is 'mean', 'sum' or 'none', not {shown(reduction)}")
    if ignore_index is not None:
        integer("ignore_index", ignore_index)
    if not 0 <= number("label_smoothing", label_smoothing) <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], not {label_smoothing}")
    with scope(logits, family="loss"):
        counts = None if ignore_index is None else elementwise("equal", elementwise("equal", labels, ignore_index), 0.0)
        # the ignored label (-100) is no class: it is made one, and its row is cleared afterwards
        known = labels if counts is None else where(counts, labels, 0)
        rows = cross_entropy_rows(logits, known)
        if label_smoothing:
            shifted, total = shifted_log_sum_exp(widen(logits), -1)
            # the mean of -log p over all classes, out of the same shifted logits
            every = reshape(elementwise("subtract", total, mean(shifted, -1, keepdims=True)), shape_of(rows))
            rows = elementwise("multiply", rows, 1 - label_smoothing) + elementwise("multiply", every, label_smoothing)
        if counts is not None:
            # after all else, so that what an ignored row holds (NaN too) counts for nothing
            rows = where(counts, rows, 0.0)
        if reduction == "none":
            return rows
        if reduction == "sum":
            return reduce_sum(rows)
        # over the rows that count, as PyTorch does, not over all
        return mean(rows) if counts is None else elementwise("divide", reduce_sum(rows), reduce_sum(counts))


def binary_cross_entropy_with_logits(logits: Value, target: Value) -> Value:
    """The mean of minus the logarithms of the probabilities of truth values, in float32.

    Args:
        logits: any shape; the probability of 1 is their sigmoid.
        target: of that shape, from 0 to 1.

    Raises:
        ValueError: two shapes.
    """
    if shape_of(logits) != shape_of(target):
        raise ValueError(f"a target must have the shape {shape_of(logits)} of the logits, not {shape_of(target)}")
    with scope((logits, target), family="loss"):
        # softplus(x) - x y is the same function without a logarithm of a probability that underflows
        wide = widen(logits)
        return mean(elementwise("subtract", softplus(wide), elementwise("multiply", wide, widen(target))))


def mse(prediction: Value, target: Value) -> Value:
    """The mean squared difference of arrays of one shape: one float32 number.

    Raises:
        ValueError: two shapes, which broadcast would compare every row with every other: (n, 1) with (n,).
    """
    if shape_of(prediction) != shape_of(target):
        raise ValueError(
            f"mse: a prediction of shape {shape_of(prediction)} needs a target of the same shape, "
            f"not {shape_of(target)}"
        )
    with scope((prediction, target), family="loss"):
        return mean(square(elementwise("subtract", widen(prediction), widen(target))))


mse_loss = mse  # under PyTorch's name
