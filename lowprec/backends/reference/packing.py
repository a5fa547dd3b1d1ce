"""Packing of codes into bytes, bit by bit."""

from __future__ import annotations

import numpy as np

from lowprec.integers import ceil_div
from lowprec.types import Array


def pack(bits: int, rows: int, size: int, codes: Array, out: Array) -> bool:
    """Packs rows of so many codes into out; True where a code has more bits."""
    given = codes.reshape(rows, size).tolist()
    # Before anything is written: bits that do not fit would land in the neighbour's code.
    if any(code >> bits for row in given for code in row):
        return True
    # A row as one long integer, its first code lowest: its bytes, little-endian, are the packed row.
    streams = (sum(code << bits * i for i, code in enumerate(row)) for row in given)
    length = ceil_div(size * bits, 8)
    packed = b"".join(stream.to_bytes(length, "little") for stream in streams)
    out[...] = np.frombuffer(packed, np.uint8).reshape(out.shape)
    return False


def unpack(bits: int, rows: int, size: int, packed: Array, out: Array) -> None:
    """Unpacks rows of so many codes into out."""
    streams = [int.from_bytes(row.tobytes(), "little") for row in packed.reshape(rows, ceil_div(size * bits, 8))]
    codes = [[stream >> bits * i & (1 << bits) - 1 for i in range(size)] for stream in streams]
    out[...] = np.array(codes, np.uint8).reshape(out.shape)
