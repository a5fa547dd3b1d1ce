"""The checks of `out=`, the same in every call, and the copy of a result into it."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec.types import Array


def check_out(out: object, shape: tuple[int, ...], dtype: np.dtype[Any], what: str = "out") -> None:
    """Checks an array that a result is to be written to, of any strides.

    Raises:
        TypeError: no array, or one of another dtype (another byte order is another dtype).
        ValueError: another shape, or read-only.
    """
    check_out_dtype(out, dtype, what)
    # Only for the type checker: the line above has refused all else.
    assert isinstance(out, np.ndarray)
    if out.shape != shape:
        raise ValueError(f"{what} has shape {out.shape}, the result {shape}")
    if not out.flags.writeable:
        raise ValueError(f"{what} is read-only")


def check_out_dtype(out: object, dtype: np.dtype[Any], what: str = "out") -> None:
    """The part of `check_out` that can be checked before the shape is known."""
    # No conversion into out: it would be a second rounding.
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        given = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"{what} must be an array of {dtype}, not {given}")


def straight(out: object, *operands: object) -> Array | None:
    """`out` where loops that check its dtype, shape and flags themselves can write to it; None where they must not.

    They must not while they read an operand in the same memory: then the result goes through :func:`into`.

    Raises:
        TypeError: no array, or one in a foreign byte order, which is what those loops do not see.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    if not out.dtype.isnative:
        raise TypeError(f"out must be an array of {out.dtype.newbyteorder('=')}, not {out.dtype}")
    # may_share_memory compares bounds only: a false alarm costs a copy; the exact question can take exponential time.
    return None if any(np.may_share_memory(out, operand) for operand in operands) else out


def into(out: Array, result: Array) -> Array:
    """`out` with a result copied into it.

    Raises:
        TypeError, ValueError: as `check_out`.
    """
    check_out(out, result.shape, result.dtype)
    out[...] = result
    return out
