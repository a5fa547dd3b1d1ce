"""The reference backend: exact, slow Python, written to be read. It defines the answer."""

from lowprec.backends.reference.arithmetic import arithmetic, column_sums, fill
from lowprec.backends.reference.convolution import correlate, correlate_windows, weight_sums
from lowprec.backends.reference.elementwise import elementwise
from lowprec.backends.reference.products import maximum, product, reduce, scatter, sum_parts
from lowprec.backends.reference.random import random_words
from lowprec.backends.reference.rounding import convert, decode

__all__ = [
    "arithmetic",
    "column_sums",
    "convert",
    "correlate",
    "correlate_windows",
    "decode",
    "elementwise",
    "fill",
    "maximum",
    "product",
    "random_words",
    "reduce",
    "scatter",
    "sum_parts",
    "weight_sums",
]
