"""The reference backend: exact, slow Python, written to be read. It defines the answer."""

from lowprec.backends.reference.random import random_words
from lowprec.backends.reference.rounding import convert, decode

__all__ = ["convert", "decode", "random_words"]
