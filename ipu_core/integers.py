"""Whole numbers by tile, by vertex, by candidate."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
