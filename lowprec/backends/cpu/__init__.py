"""The compiled backend: thin calls into lowprec._kernels."""

from lowprec.backends.cpu.random import random_words
from lowprec.backends.cpu.rounding import convert, decode

__all__ = ["convert", "decode", "random_words"]
