"""Whole numbers: the type of their arrays, and division rounded up."""

from typing import Any, overload

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@overload
def ceil_div(a: int, b: int) -> int: ...
@overload
def ceil_div(a: Ints, b: int | Ints) -> Ints: ...
@overload
def ceil_div(a: Any, b: Any) -> Any: ...
def ceil_div(a: Any, b: Any) -> Any:
    """a / b rounded up, of integers or of arrays of them (numbers that hold whole ones too)."""
    return -(-a // b)
