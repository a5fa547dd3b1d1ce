"""The operations of `float32_op` and one prepared application of them, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from lowprec.values.conversion import Conversion

_UNARY = (
    *("identity", "negative", "absolute", "relu", "step", "square", "reciprocal", "sqrt", "rsqrt", "exp", "log"),
    *("tanh", "erf", "sigmoid", "sin", "cos", "gelu", "gelu_gradient"),
)
_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "greater", "equal")
_TERNARY = ("select", "scaled_add")
_WHOLE = {"floor": 1, "rint": 1, "fmod": 2}

OPERATIONS: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(_UNARY, 1) | dict.fromkeys(_BINARY, 2) | dict.fromkeys(_TERNARY, 3) | _WHOLE
)
"""Name -> number of operands. The order is the kernels' (LP_OPERATIONS in kernels/include/lowprec/elementwise.h)."""


@dataclass(frozen=True, eq=False)  # compared by identity: made once per set of arguments, by a cache
class ElementwiseOp:
    """One operation on operands of given dtypes, and the conversion of its float32 result.

    Attributes:
        operation: one of OPERATIONS.
        in_dtypes: the operands' dtypes; None for a Python number.
        conversion: from float32 to the result.
    """

    operation: str
    in_dtypes: tuple[np.dtype[Any] | None, ...]
    conversion: Conversion
