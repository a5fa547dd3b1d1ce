"""The compiled backend: thin calls into lowprec._kernels."""

from lowprec.backends.cpu.arithmetic import arithmetic, column_sums
from lowprec.backends.cpu.convolution import correlate, correlate_windows
from lowprec.backends.cpu.elementwise import elementwise
from lowprec.backends.cpu.products import maximum, product, reduce, sum_parts
from lowprec.backends.cpu.random import random_words
from lowprec.backends.cpu.rounding import convert, decode

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
    "sum_parts",
]
