"""A tile's integers: int32 numbers compared, chosen and made floats; indices of the largest, and what lies there."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowprec import Key, astype

Array = NDArray[Any]
Elementwise = Callable[[tuple[Any, ...], Key | None, int, Array], Array]

_OF_INTEGERS: dict[str, Callable[..., Any]] = {
    "equal": np.equal,
    "greater": np.greater,
    "maximum": lambda a, b: np.where(np.greater(b, a), b, a),
    "minimum": lambda a, b: np.where(np.greater(a, b), b, a),
    "select": lambda c, a, b: np.where(np.not_equal(c, 0), a, b),
    "identity": lambda x: astype(x, "float32"),
}
"""What can be done with int32 numbers, beside which Python numbers are compared by their exact value."""


def has_integers(formats: Sequence[Any]) -> bool:
    """Whether one of the operands' dtypes (None for a Python number) is an integer one."""
    return any(isinstance(spec, np.dtype) and spec.kind in "iu" for spec in formats)


def advance(counters: Array, step: int) -> None:
    """Moves counters on, in place."""
    counters += step


def of_integers(op: str) -> Elementwise:
    """An elementwise operation on int32 numbers, prepared as those on floats are; nothing of it is rounded.

    Args:
        op: equal or greater (1 or 0), maximum, minimum, select, or identity: to float32, to nearest even.
    """
    rule = _OF_INTEGERS[op]

    def call(operands: tuple[Any, ...], key: Key | None, offset: int, out: Array) -> Array:
        np.copyto(out, rule(*operands), casting="unsafe")  # of one kind already, or 0 and 1
        return out

    return call


def top_indices(x: Array, k: int, out: Array) -> None:
    """Indices of the k largest of every row, the largest first; of equal ones the lowest index first, NaN before all.

    Args:
        x: (.., n) floats.
        k: at most n.
        out: (.., k) int32.
    """
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)  # exact
    if k == 1:
        out[...] = np.argmax(wide, -1, keepdims=True)
        return
    back = np.argsort(wide[..., ::-1], axis=-1, kind="stable")  # ascending, so that read backwards the first come first
    out[...] = x.shape[-1] - 1 - back[..., ::-1][..., :k]


def take_along(x: Array, indices: Array, out: Array) -> None:
    """The elements of every row (.., n) at its indices (.., k), to (.., k) of the same dtype.

    Raises:
        IndexError: an index outside [-n, n).
    """
    words = f"u{x.itemsize}"
    out.view(words)[...] = np.take_along_axis(x.view(words), indices, -1)


def pick(x: Array, labels: Array, first: Any, out: Array) -> None:
    """The element of every row (.., n) of float32 in the column of its label, to (..); 0 where that is none of them.

    A sum of zeros and -0 is 0, and one with a NaN the NaN without a sign: so is what is picked.

    Args:
        x: columns from `first` on.
        labels: int32 (..).
        first: the number of the first column, or an array of them that broadcasts to labels.
        out: float32.
    """
    at = labels.astype(np.int64) - first
    inside = (at >= 0) & (at < x.shape[-1])
    found = np.take_along_axis(x, np.where(inside, at, 0)[..., None], -1)[..., 0]
    found = np.where(np.isnan(found), np.float32(np.nan), found)
    out[...] = np.where(inside & (found != 0), found, np.float32(0))


def picked(parts: Array, out: Array) -> None:
    """Of every row (.., n) of zeros and at most one other number that one, to (..)."""
    out[...] = np.take_along_axis(parts, np.argmax(parts != 0, -1, keepdims=True), -1)[..., 0]


def flat_indices(indices: Array, size: int) -> Array:
    """Indices into rows of so many elements as indices into all rows one after another.

    Raises:
        IndexError: an index outside [0, size).
    """
    if indices.size and not 0 <= indices.min() <= indices.max() < size:
        raise IndexError(f"indices from {indices.min()} to {indices.max()} are out of bounds for rows of {size}")
    rows = indices.reshape(-1, indices.shape[-1]).astype(np.int64)
    return rows + np.arange(len(rows))[:, None] * size
