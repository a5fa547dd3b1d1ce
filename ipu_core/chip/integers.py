"""Arrays of int64, such as a number for each tile or vertex, and their distinct values."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def distinct(values: Ints) -> Ints:
    """The values in ascending order, each once; faster than np.unique, which hashes what a sort puts in order."""
    if ascends(values):  # found in one pass, without a sort or a copy
        return values
    ordered = np.sort(values)
    first: Ints = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return first


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """The distinct values in ascending order, and for each value its place among them."""
    if ascends(values):
        return values, np.arange(values.size)
    found, which = np.unique(values, return_inverse=True)
    return found, which.astype(np.int64, copy=False)


def ascends(values: Ints) -> bool:
    """Whether each of the values, on one axis, is larger than the one before."""
    return bool((values[1:] > values[:-1]).all())
