"""Whole-number arithmetic without floats."""

from __future__ import annotations


def ceil_div(a: int, b: int) -> int:
    """The smallest whole number of at least a / b, b positive."""
    return -(-a // b)
