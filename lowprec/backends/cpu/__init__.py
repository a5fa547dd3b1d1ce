"""The compiled backend: thin calls into lowprec._kernels."""

from typing import TYPE_CHECKING

from lowprec.backends.cpu.random import random_words
from lowprec.backends.cpu.rounding import convert, decode
from lowprec.lazy import lazy_names

if TYPE_CHECKING:
    from lowprec.backends.cpu.columns import column_sums
    from lowprec.backends.cpu.convolution import correlate, correlate_windows
    from lowprec.backends.cpu.exact import arithmetic
    from lowprec.backends.cpu.operation import elementwise
    from lowprec.backends.cpu.products import maximum, product, reduce, scatter, sum_parts
    from lowprec.backends.cpu.weight_gradient import weight_sums

__all__ = [
    "arithmetic",
    "column_sums",
    "convert",
    "correlate",
    "correlate_windows",
    "decode",
    "elementwise",
    "maximum",
    "product",
    "random_words",
    "reduce",
    "scatter",
    "sum_parts",
    "weight_sums",
]

# Rounding is all that a plain `import lowprec` needs (see lowprec/__init__.py).
__getattr__ = lazy_names(
    __name__,
    {
        "columns": "column_sums",
        "convolution": "correlate correlate_windows",
        "exact": "arithmetic",
        "operation": "elementwise",
        "products": "maximum product reduce scatter sum_parts",
        "weight_gradient": "weight_sums",
    },
)
