"""What a model makes of inputs in a precision: its forward function traced, typed and run on whole arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.control import FloatingPointControl
from ipu_core.ir.eager import as_array
from ipu_core.ir.execute import execute
from ipu_core.ir.precision import Precision
from ipu_core.ir.pytree import map_leaves
from ipu_core.ir.tracing import trace
from ipu_core.train.units import in_units
from lowprec import Key

PREDICTED = 2**63  # folded into a run's key, apart from its steps


def predict(
    forward: Callable[..., Any],
    state: tuple[Any, ...],
    inputs: Any,
    precision: Precision,
    control: FloatingPointControl,
    key: Key,
) -> Any:
    """A forward function of (parameters[, state of the model], inputs), in a precision.

    Raises:
        TypeError: forward is no function, or gives what is no array.
        ValueError: shapes that do not fit.
    """
    if not callable(forward):
        raise TypeError(f"forward must be a function (params, inputs) -> arrays, not {forward!r}")
    arguments = (*state, map_leaves(_single, inputs))
    block = precision.apply(trace(in_units(forward, precision), *arguments))
    return execute(block, *arguments, key=key, control=control)


def _single(x: Any) -> Any:
    """float64, NumPy's default, as float32."""
    array = as_array(x)
    return array.astype(np.float32) if array.dtype == np.float64 else array
