"""What a model needs of packed rows: losses of each sequence, though several lie in a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_core import nn
from lowprec.checks import integer


def by_sequence(values: Any, segments: Any, depth: int) -> Any:
    """Sums over the tokens of each sequence: (rows, length) -> (rows, depth).

    Works on arrays and on traced values. Nothing reaches a sum from elsewhere, no infinity or NaN either. Means are the
    sums over those of ones; a row that has fewer sequences gives 0.

    Args:
        values: (rows, length), such as the loss of each token.
        segments: (rows, length) integers as of `PackedRows`: 1, 2, ..., and 0 for padding.
        depth: Most sequences of a row.

    Raises:
        TypeError, ValueError: shapes that differ, segments that are no integers, a depth below 1.
    """
    integer("depth", depth, 1)
    if len(np.shape(values)) != 2 or np.shape(values) != np.shape(segments):
        shapes = f"{np.shape(values)} and {np.shape(segments)}"
        raise ValueError(f"values and segments have one shape, (rows, length), not {shapes}")
    own = nn.one_hot(segments, depth + 1)
    # A choice, not a product: of another sequence's NaN 0 times it would be NaN.
    return nn.reduce_sum(nn.where(own, nn.reshape(values, (*np.shape(values), 1)), 0.0), 1)[:, 1:]
