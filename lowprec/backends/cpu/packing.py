"""Packing of codes into bytes by the compiled loops."""

from __future__ import annotations

from lowprec import _kernels, threads
from lowprec.types import Array


def pack(bits: int, rows: int, size: int, codes: Array, out: Array) -> bool:
    """Packs rows of so many codes (any strides) into out; True where a code has more bits."""
    return _kernels.pack(bits, rows, size, codes, out, threads.current())


def unpack(bits: int, rows: int, size: int, packed: Array, out: Array) -> None:
    """Unpacks rows of so many codes into out."""
    _kernels.unpack(bits, rows, size, packed, out, threads.current())
