"""Arrays in and out, as numpy treats them: scalars, lists, subclasses, read-only and foreign arrays, `out=`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowprec import backends
from lowprec._dlpack import from_dlpack
from lowprec.backends.owner import is_cupy
from lowprec.checks import shown
from lowprec.types import Array
from lowprec.values.keys import native
from lowprec.values.outputs import check_out


def input_array(x: object) -> tuple[Array, bool]:
    """x as a plain native-endian ndarray, and whether it was a scalar. CuPy arrays are returned as they are.

    Anything with `__array__` or `__dlpack__` (torch CPU tensors, JAX arrays) is accepted.

    Raises:
        TypeError: nothing that makes a numeric array.
    """
    if type(x) is np.ndarray:
        array = x
        if array.dtype.isnative:
            return array, False
        return array.astype(array.dtype.newbyteorder("=")), False
    if is_cupy(x):
        return x, False  # type: ignore[return-value]  # same attributes, another library
    scalar = (not hasattr(x, "__len__") and not hasattr(x, "shape")) or isinstance(x, np.generic)
    if hasattr(x, "__dlpack__") and not isinstance(getattr(x, "dtype", None), np.dtype):
        array = from_dlpack(x)  # before __array__, because torch's knows no bfloat16 and no 8-bit floats
    else:
        array = _as_array(x)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array, scalar


def _as_array(x: Any) -> Array:
    try:
        return np.asarray(x)
    except (TypeError, ValueError) as error:  # rows of different lengths, an array within a list of numbers, ..
        raise type(error)(f"no array can be made of {shown(x)}: {error}") from None


def whole_array(x: object) -> Array:
    """x as a plain native-endian ndarray, for results that combine several elements: masked elements are refused.

    Raises:
        TypeError: nothing that makes a numeric array; masked elements.
    """
    if type(x) is np.ndarray and x.dtype.isnative:  # most calls, quickly
        return x
    if isinstance(x, np.ndarray) and isinstance(x, np.ma.MaskedArray):  # in this order, for looking for np.ma loads it
        masked = np.count_nonzero(np.ma.getmaskarray(x))
        if masked:
            raise TypeError(f"no masked elements ({masked} here) can be part of this: fill them first, as x.filled(0)")
    return input_array(x)[0]


def only_arrays(**given: object) -> tuple[Array, ...]:
    """Arguments that must be arrays, in the machine's byte order.

    Raises:
        TypeError: one of them is no array; it is named.
    """
    for what, value in given.items():
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{what} must be an array, not {value!r}")
    return tuple(native(value) for value in given.values())


def output_array(out: Array | None, like: Array, dtype: np.dtype[Any], given: object = None) -> Array:
    """A C-contiguous array to compute into: `out` itself where that is possible, else a new one.

    Args:
        out, like, dtype: where the result is to go, the input in the machine's byte order, and the result's dtype.
        given: the input as it came, whose own byte order `out` may have; None: it may not.

    Raises:
        TypeError: out is no array of that dtype.
        ValueError: out has another shape or is read-only.
    """
    if is_cupy(like):
        return backends.load("cuda").output_array(out, like, dtype)  # type: ignore[no-any-return]
    if out is None:
        return np.empty(like.shape, dtype)
    if isinstance(given, np.ndarray) and isinstance(out, np.ndarray) and not out.dtype.isnative:
        # round(x, out=x) of a big-endian x: computed in the machine's byte order, then copied into out (`finish`).
        check_out(out, like.shape, given.dtype)
        return np.empty(like.shape, dtype)
    check_out(out, like.shape, dtype)
    same = out is like or not np.may_share_memory(out, like) or _same_place(out, like)
    return out if out.flags.carray and same else np.empty(like.shape, dtype)


def new_array(like: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new C-contiguous array of the kind of another one: NumPy's, or CuPy's on the same device."""
    return backends.load("cuda").new_array(like, shape, dtype) if is_cupy(like) else np.empty(shape, dtype)


def apart(x: Any, out: Array) -> Any:
    """x, or a copy where writing `out` element by element would change what is still to be read of x."""
    if not isinstance(x, np.ndarray) or not isinstance(out, np.ndarray) or not np.may_share_memory(x, out):
        return x
    # Where element i of both is in one place it is read before it is written; shapes differ where x is broadcast.
    return x if x.shape == out.shape and _same_place(x, out) else x.copy()


def _same_place(a: Array, b: Array) -> bool:
    """Whether element i of both begins and ends at the same bytes."""
    return a.itemsize == b.itemsize and a.strides == b.strides and a.ctypes.data == b.ctypes.data


def finish(target: Array, out: Array | None, x: object, scalar: bool) -> Any:
    """The result as the caller expects it: `out`, a scalar for a scalar, a subclass for a subclass."""
    if out is not None:
        if target is not out:
            out[...] = target
        return out
    if scalar:
        return target[()]
    return as_subclass(target, (x,))


def as_subclass(target: Array, operands: Sequence[object]) -> Array:
    """The result as NumPy's functions would return it: a matrix from a matrix, masked where an operand is masked."""
    special = [x for x in operands if type(x) is not np.ndarray and isinstance(x, np.ndarray)]
    if not special:
        return target
    # NumPy's own rule for which subclass the result has.
    leader = max(special, key=lambda x: float(x.__array_priority__))
    wrapped = np.empty_like(leader, dtype=target.dtype, shape=target.shape)
    # Around the subclass's own assignment, which could mask or convert.
    np.asarray(wrapped)[...] = target
    if isinstance(wrapped, np.ma.MaskedArray):
        masks = [np.ma.getmask(x) for x in special]
        wrapped.mask = np.logical_or.reduce([np.broadcast_to(mask, target.shape) for mask in masks])
    return wrapped
