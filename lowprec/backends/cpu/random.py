"""Random words from the compiled Philox."""

from __future__ import annotations

from lowprec import _kernels, threads
from lowprec.types import Array

fold_in = _kernels.fold_in
split = _kernels.split
"""The 64 bits of `Key.fold_in(n)` and of the i-th key of `Key.split`, of the key's 64 bits and n or i."""


def random_words(tag: int, bits: int, key: int, offset: int, out: Array) -> None:
    """Fills out (contiguous; uint16, or uint32 beyond 16 bits) with the bits of indices offset, offset + 1, ..."""
    _kernels.random_words(tag, bits, key, offset, out, threads.current())
