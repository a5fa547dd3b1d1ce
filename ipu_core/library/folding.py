"""Array views of vertex groups, folded: vertex axes that continue a field's own axis join it, so one call does all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

Array = npt.NDArray[Any]


def _view(array: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
    return as_strided(array, tuple(shape), tuple(strides), writeable=array.flags.writeable)


def join_axes(arrays: Sequence[Array]) -> list[Array]:
    """Views of arrays of one shape with as few axes as all of them allow; elements keep their C order.

    Axes of length 1 vanish, neighbours join where they continue each other in every array.
    """
    shape = arrays[0].shape
    kept: list[tuple[int, list[int]]] = []
    # from the innermost axis outwards, so that an axis is compared with all that already joined within it
    for axis in reversed(range(len(shape))):
        strides = [array.strides[axis] for array in arrays]
        if shape[axis] == 1:
            continue
        # axes that an array repeats (stride 0) join too: 0 == n * 0
        if kept and all(s == kept[-1][0] * inner for s, inner in zip(strides, kept[-1][1], strict=True)):
            kept[-1] = (kept[-1][0] * shape[axis], kept[-1][1])
        else:
            kept.append((shape[axis], strides))
    kept.reverse()
    return [_view(a, [n for n, _ in kept], [s[i] for _, s in kept]) for i, a in enumerate(arrays)]


def broadcast_scalars(arrays: Sequence[Array]) -> list[Array]:
    """The arrays, those that repeat a single element replaced by that element alone (0-d)."""
    return [_view(a, (), ()) if a.size and not any(s for s, n in zip(a.strides, a.shape, strict=True) if n > 1) else a
            for a in arrays]  # fmt: skip


def drop_axis(array: Array, axis: int) -> Array:
    """The view at index 0 of an axis."""
    return array[(slice(None),) * axis + (0,)]


def fold_axis(array: Array, axis: int, into: int | None) -> Array | None:
    """The view with a leading axis joined to another one, `into` (negative), which it must continue.

    None where the memory does not allow it. `into` None means that the array must be the same all along the axis.
    """
    if array.shape[axis] == 1:  # its stride may be any number, and must not decide
        return drop_axis(array, axis)
    if into is None:
        return drop_axis(array, axis) if array.strides[axis] == 0 else None
    if array.strides[axis] != array.shape[into] * array.strides[into]:  # other elements lie between the blocks
        return None
    shape, strides = list(array.shape), list(array.strides)
    shape[into] *= shape.pop(axis)
    strides.pop(axis)
    return _view(array, shape, strides)


def fold_all(arrays: Sequence[Array], axis: int, into: Sequence[int | None]) -> list[Array] | None:
    """`fold_axis` for several arrays at once; None unless all of them allow it."""
    folded = [fold_axis(array, axis, target) for array, target in zip(arrays, into, strict=True)]
    return None if any(view is None for view in folded) else [view for view in folded if view is not None]


def first_along(values: Any, axis: int, axes: int) -> Any:
    """Numbers by vertex, which broadcast to `axes` vertex axes, at index 0 of one axis, which is dropped."""
    if np.ndim(values) == 0:
        return values
    array = np.asarray(values)
    left = drop_axis(array.reshape((1,) * (axes - array.ndim) + array.shape), axis)
    return left if left.ndim else int(left)


def continues(values: Any, axis: int, axes: int, length: int) -> bool:
    """Whether numbers per vertex go up by `length` from one vertex to the next along an axis (or there is only one)."""
    array = np.asarray(values)
    array = array.reshape((1,) * (axes - array.ndim) + array.shape)
    return array.shape[axis] == 1 or bool((np.diff(array, axis=axis) == length).all())
