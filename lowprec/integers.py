"""Whole-number arithmetic without floats."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import numpy.typing as npt


@overload
def ceil_div(a: int, b: int) -> int: ...
@overload
def ceil_div(a: npt.NDArray[np.int64], b: int | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
@overload
def ceil_div(a: Any, b: Any) -> Any: ...
def ceil_div(a: Any, b: Any) -> Any:
    """The smallest whole number of at least a / b, b positive; of arrays, element by element."""
    return -(-a // b)
