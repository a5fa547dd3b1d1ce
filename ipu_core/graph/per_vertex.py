"""Arrays as a codelet sees them: their first axes count vertices, and stay apart from the vertices' own axes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from inspect import Signature, signature
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_ALIGNED: Final = (np.where, np.clip)
"""Elementwise functions of NumPy that are no ufuncs."""
_OF_ALL: Final = (np.logical_and, np.logical_or, np.all, np.any)
"""What may be asked of all vertices together, as whether to go on."""
_KEPT: Final = ("__call__", "reduce", "accumulate")
"""Methods of ufuncs whose results have the vertex axes of what they are made of."""


def _along(name: str, axis: int | None) -> Callable[..., Any]:
    """A method along an axis, which is `axis` where none is given."""

    def method(self: "PerVertex", axis: Any = axis, **options: Any) -> Any:
        self._check_axes(name, axis)
        return self._wrapped(getattr(np.asarray(self), name)(axis, **options))

    return method


class PerVertex(np.ndarray[Any, Any]):
    """An array whose first axes are vertex axes, in NumPy's elementwise functions and sums.

    NumPy alone joins last axes: a number of each vertex (V,) and a vector of each (V, n) give an error, or with V = n
    the wrong vertices' numbers. Here vertex axes meet vertex axes. Sums and the like over them, which would take
    vertices together, are refused. What other functions give is a plain array.

    Attributes:
        axes: how many axes are vertex axes.
    """

    axes: int

    @classmethod
    def of(cls, values: NDArray[Any], axes: int) -> "PerVertex":
        """A view of an array."""
        found = values.view(cls)
        found.axes = axes
        return found

    def beside(self, ndim: int) -> NDArray[Any]:
        """The plain array with axes of length 1 behind the vertex axes, so that it has `ndim` at least."""
        plain = self.view(np.ndarray)
        if ndim <= plain.ndim:
            return plain
        missing = (1,) * (ndim - plain.ndim)
        return plain.reshape(plain.shape[: self.axes] + missing + plain.shape[self.axes :])

    def __array_finalize__(self, made_from: Any) -> None:
        axes = getattr(made_from, "axes", 0)
        # NumPy calls this for every view and copy: one whose first axes are others has no vertex axes.
        self.axes = axes if axes and self.shape[:axes] == made_from.shape[:axes] else 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        into = options.get("out", ())
        # One there is, or NumPy would not have asked.
        like = next(item for item in (*inputs, *into) if isinstance(item, PerVertex))
        options = {name: _plain(value) for name, value in options.items()} if options else options
        # Its signature names the last axes alone, so that vertices would pass for rows.
        if ufunc is np.matmul:
            _check_matrices(inputs)
        if ufunc.signature is not None or method not in _KEPT:
            found = getattr(ufunc, method)(*map(_plain, inputs), **options)
        elif method == "__call__":
            found = ufunc(*_beside_each_other(inputs), **options)
        else:
            if ufunc not in _OF_ALL:
                like._check_axes(ufunc.__name__, options.get("axis", 0))
            found = getattr(ufunc, method)(*map(_plain, inputs), **options)
        if into:
            return into[0] if len(into) == 1 else into
        if method not in _KEPT or (ufunc.signature is not None and ufunc is not np.matmul):
            return found
        return tuple(map(like._wrapped, found)) if type(found) is tuple else like._wrapped(found)

    def __array_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Iterable[Any], options: Mapping[str, Any]
    ) -> Any:
        args = tuple(args)
        called = _along_an_axis(function) if args and args[0] is self else None
        if called is not None and function not in _OF_ALL:
            axis = called.bind(*args, **options).arguments.get("axis", called.parameters["axis"].default)
            self._check_axes(function.__name__, axis)
        given = _beside_each_other(args) if function in _ALIGNED else map(_plain, args)
        found = function(*given, **{name: _plain(value) for name, value in options.items()})
        return self._wrapped(found) if called is not None or function in _ALIGNED else found

    def __getitem__(self, key: Any) -> Any:
        found = np.asarray(self)[key]
        keys = key if isinstance(key, tuple) else (key,)
        used = sum(item is not None and item is not Ellipsis for item in keys)
        behind = keys[0] is Ellipsis and used <= self.ndim - self.axes if keys else True
        whole = all(isinstance(item, slice) and item == slice(None) for item in keys[: self.axes])
        return self._wrapped(found) if behind or (whole and len(keys) >= self.axes) else found

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))

    def transpose(self, *axes: Any) -> NDArray[Any]:  # type: ignore[override]
        """The plain array with its axes in another order."""
        return np.asarray(self).transpose(*axes)

    @property
    def T(self) -> NDArray[Any]:  # type: ignore[override]
        """The plain array with its axes reversed."""
        return np.asarray(self).T

    def swapaxes(self, axis1: Any, axis2: Any) -> NDArray[Any]:  # type: ignore[override]
        """The plain array with two axes exchanged."""
        return np.asarray(self).swapaxes(axis1, axis2)

    argmax, argmin = _along("argmax", None), _along("argmin", None)
    argsort, sort = _along("argsort", -1), _along("sort", -1)

    def _wrapped(self, found: Any) -> Any:
        """A result that has the vertex axes as such."""
        if not isinstance(found, np.ndarray) or found.shape[: self.axes] != self.shape[: self.axes]:
            return found
        return PerVertex.of(found, self.axes)

    def _check_axes(self, name: str, axis: Any) -> None:
        """Refuses to reduce over vertex axes.

        Raises:
            ValueError: one of the axes is a vertex axis, as without `axis` where an array has them.
        """
        over = range(self.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        if any(place % max(1, self.ndim) < self.axes for place in over):
            raise ValueError(
                f"{name} over axis {axis} of shape {self.shape} takes vertices together, of which the first "
                f"{self.axes} axes are: give the vertices' own axes, as axis=-1; np.asarray(...) is the array without "
                "this check"
            )


def parameter(values: NDArray[Any], axes: int) -> PerVertex:
    """A parameter of the vertices' own; numbers of 64 bits, which Python's are, become 32."""
    # A vertex's state has 32 bits a number: with float64 arithmetic would be wider than the tile's.
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    elif values.dtype == np.int64 and np.array_equal(values, values.astype(np.int32)):
        values = values.astype(np.int32)
    return PerVertex.of(values, axes)


@lru_cache(maxsize=256)
def _along_an_axis(function: Callable[..., Any]) -> Signature | None:
    """How a function of NumPy is called that works along an axis, or without one on all elements; None: another one."""
    try:
        found = signature(function)
    except (TypeError, ValueError):  # written in C, and silent
        return None
    return found if "axis" in found.parameters else None


def _check_matrices(operands: Iterable[Any]) -> None:
    """Refuses a product of matrices that would take vertices for a matrix' rows and add over them.

    Raises:
        ValueError: the second operand has fewer than two axes of its own, or the first none.
    """
    for least, operand in zip((1, 2), operands, strict=True):
        if isinstance(operand, PerVertex) and operand.axes and operand.ndim - operand.axes < least:
            raise ValueError(
                f"matmul would add over the vertices of shape {operand.shape}, of which the first {operand.axes} axes "
                "are: give a vector an axis more, as self.x[..., None]"
            )


def _beside_each_other(items: Iterable[Any]) -> list[Any]:
    items = tuple(items)
    most = max(item.ndim if isinstance(item, np.ndarray) else np.ndim(item) for item in items)
    return [item.beside(most) if isinstance(item, PerVertex) else item for item in items]


def _plain(item: Any) -> Any:
    if isinstance(item, PerVertex):
        return item.view(np.ndarray)
    return type(item)(map(_plain, item)) if type(item) in (tuple, list) else item
