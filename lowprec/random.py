"""Explicit random keys and counter-based random bits (Philox4x32-10; Salmon et al., SC 2011).

Bits are a pure function of key, purpose and index: never of threads, chunks, instruction set, device or earlier calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowprec import backends
from lowprec.spec.keys import TAGS, first_index, key_value
from lowprec.spec.keys import Key as Key
from lowprec.spec.keys import KeyLike as KeyLike
from lowprec.spec.keys import as_key as as_key


def random_bits(
    key: KeyLike, shape: int | tuple[int, ...], bits: int = 16, *, use: str = "user", offset: int = 0
) -> npt.NDArray[Any]:
    """Uniform integers in [0, 2^bits): uint16 up to 16 bits, else uint32.

    Element i (C order) takes its bits from index offset + i, so any chunking gives the same bits.

    Raises:
        TypeError: bits is no integer.
        ValueError: bits outside 1..32, or an unknown use (allowed are "user" and "dropout").
    """
    if not isinstance(bits, (int, np.integer)):
        raise TypeError(f"bits must be an integer of 1 to 32, not {bits!r}")
    if not 1 <= bits <= 32:
        raise ValueError(f"bits must be 1 to 32, not {bits}")
    if use not in ("user", "dropout"):
        raise ValueError(f"unknown use {use!r}; allowed are user, dropout")
    out = np.empty(shape, np.uint16 if bits <= 16 else np.uint32)
    backends.current().random_words(TAGS[use], int(bits), key_value(key), first_index(offset, out.size), out)
    return out
