"""Parameters that differ from vertex to vertex, as arrays whose vertex axes meet those of fields."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PerVertex(np.ndarray[Any, Any]):
    """An array whose first axes are vertex axes: elementwise functions take them as those of fields.

    NumPy alone would join the last axes: with as many vertices as a vector has elements, the wrong ones. What is made
    of it is a plain array.
    """

    axes: int

    @classmethod
    def of(cls, values: NDArray[Any], axes: int) -> "PerVertex":
        """An array whose first `axes` axes are vertex axes; numbers of 64 bits, which Python's are, become 32."""
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        elif values.dtype == np.int64 and np.array_equal(values, values.astype(np.int32)):
            values = values.astype(np.int32)
        found = np.asarray(values).view(cls)
        found.axes = axes
        return found

    def beside(self, ndim: int) -> NDArray[Any]:
        """The plain array with axes of length 1 behind the vertex axes, so that it has `ndim` at least."""
        plain = np.asarray(self)
        missing = (1,) * max(0, ndim - plain.ndim)
        return plain.reshape(plain.shape[: self.axes] + missing + plain.shape[self.axes :])

    def __array_finalize__(self, made_from: Any) -> None:
        self.axes = getattr(made_from, "axes", 0)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        options = {name: _plain(value) for name, value in options.items()}
        return getattr(ufunc, method)(*_beside_each_other(inputs), **options)

    def __array_function__(
        self, function: Callable[..., Any], _: Iterable[type], args: Iterable[Any], options: Mapping[str, Any]
    ) -> Any:
        args = _beside_each_other(args) if function in (np.where, np.clip) else [_plain(item) for item in args]
        return function(*args, **{name: _plain(value) for name, value in options.items()})

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]


def _beside_each_other(items: Iterable[Any]) -> list[Any]:
    items = tuple(items)
    most = max(np.ndim(_plain(item)) for item in items)
    return [item.beside(most) if isinstance(item, PerVertex) else item for item in items]


def _plain(item: Any) -> Any:
    if isinstance(item, PerVertex):
        return np.asarray(item)
    return type(item)(map(_plain, item)) if type(item) in (tuple, list) else item
