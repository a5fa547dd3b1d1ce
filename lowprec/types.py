"""Types that stand in many signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""An array of any dtype."""

Pair: TypeAlias = tuple[int, int]
"""Two numbers along the vertical and the horizontal axis."""

Span: TypeAlias = tuple[int, int]
"""The first of a run of numbers and the one after its last."""
