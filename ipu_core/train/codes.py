"""Arrays of any dtype as what files know: NumPy's own dtypes, and unsigned integers in place of ml_dtypes' formats."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt


def as_codes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, its elements as unsigned integers of their bits where its dtype is none of NumPy's."""
    array = np.asarray(array)
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a name, NumPy's or ml_dtypes'."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)
