"""Products of matrices, and sums and maxima over axes, on tiles."""

from ipu_core.library.matmul.product import matmul
from ipu_core.library.matmul.reduce import reduce

__all__ = ["matmul", "reduce"]
