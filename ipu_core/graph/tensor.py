"""Variables and tensors: a tensor is an affine view of one variable (offset, shape, strides in elements)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ipu_core.chip.integers import Ints
from ipu_core.graph.mapping import TileMapping, build_mapping
from lowprec import FloatFormat, as_format
from lowprec.checks import integer, listed, shown
from lowprec.values.axes import restrided

INTEGERS = ("int32", "uint32", "bool")

_Key = int | slice | EllipsisType | None


def element_type(spec: Any) -> tuple[FloatFormat | str, np.dtype[Any]]:
    """The format (a FloatFormat, or the name of an integer type) and storage dtype that `spec` names.

    Raises:
        ValueError: unknown name, or a format without a storage dtype.
        TypeError: something that names no format.
    """
    if isinstance(spec, str) and spec in INTEGERS:
        return spec, np.dtype(spec)
    try:
        fmt = as_format(spec)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{error}; integer element types are the names {', '.join(INTEGERS)}") from None
    if fmt.dtype is None:
        raise ValueError(f"format {fmt.name} has no storage dtype: a variable cannot hold it")
    return fmt, np.dtype(fmt.dtype)


@dataclass(eq=False)
class Variable:
    """An array of elements spread over tiles, made by `Graph.add_variable` or `Graph.add_constant`.

    Attributes:
        number: position in the graph.
        name: as given, for messages and profiles.
        format: a FloatFormat, or "int32", "uint32", "bool".
        dtype: NumPy dtype of an element.
        shape: its shape; elements are numbered in C order.
        temporary: its memory may be shared with other temporaries outside its lifetime.
        initial: the values it starts with; constants have them, and variables start at zero.
        constant: whether the program may not write it.
    """

    number: int
    name: str
    format: FloatFormat | str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    temporary: bool = False
    initial: NDArray[Any] | None = None
    constant: bool = False
    pieces: list[tuple[Ints, Ints, Ints]] = field(default_factory=list, repr=False)
    _mapping: TileMapping | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def mapping(self) -> TileMapping:
        """The complete tile mapping.

        Raises:
            UnmappedTensor, MappedTwice: not every element was mapped exactly once.
        """
        if self._mapping is None:
            self._mapping = build_mapping(self.name, self.size, self.pieces)
        return self._mapping

    def add_piece(self, starts: Ints, ends: Ints, tiles: Ints) -> None:
        """Maps the intervals [starts, ends) to tiles."""
        self.pieces.append((starts, ends, tiles))
        self._mapping = None

    def map_as(self, mapping: TileMapping) -> None:
        """Maps all elements as a complete mapping says, which other variables may share."""
        alone = not self.pieces
        self.add_piece(mapping.starts, mapping.ends, mapping.tiles)
        if alone:
            self._mapping = mapping

    def move(self, tiles: Ints) -> None:
        """Puts on tiles[t] all that lay on tile t."""
        self.pieces = [(starts, ends, tiles[where]) for starts, ends, where in self.pieces]
        self._mapping = None

    def __str__(self) -> str:
        name = self.format if isinstance(self.format, str) else self.format.name
        return f"{self.name}:{name}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Tensor:
    """An affine view of a variable: element (i, j, ..) is flat element offset + i*strides[0] + j*strides[1] + ...

    Slicing, transposing, broadcasting and (where the view stays affine) reshaping cost nothing.
    """

    variable: Variable
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements of the view (broadcast elements count each time)."""
        return math.prod(self.shape)

    @property
    def format(self) -> FloatFormat | str:
        """Format of the variable's elements."""
        return self.variable.format

    @property
    def dtype(self) -> np.dtype[Any]:
        """Storage dtype of the variable's elements."""
        return self.variable.dtype

    @property
    def T(self) -> "Tensor":
        """The view with its axes reversed."""
        return self.transpose()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __getitem__(self, key: _Key | tuple[_Key, ...]) -> "Tensor":
        """NumPy's basic indexing: integers, slices, ``...`` and None. 0-d results stay tensors.

        Raises:
            TypeError: another kind of index (an index array makes no affine view: pass it as a vertex field).
            IndexError: out of range.
        """
        keys = key if isinstance(key, tuple) else (key,)
        for item in keys:
            known = item is None or item is Ellipsis or isinstance(item, int | np.integer | slice)
            if not known or isinstance(item, bool):  # which Python counts among the integers
                raise TypeError(f"tensors are indexed by integers, slices, ... and None, not {type(item).__name__}")
        if not any(item is Ellipsis for item in keys):
            keys = (*keys, Ellipsis)  # keeps NumPy from reading a scalar out of the ghost
        ghost = _ghost(self.shape, self.strides)
        try:
            return self._from_ghost(ghost, ghost[keys])
        except (IndexError, ValueError, TypeError) as error:  # also slices by 0 or by what is no number
            raise type(error)(f"{self}: {error}") from None

    def transpose(self, *axes: int) -> "Tensor":
        """The view with its axes in another order (reversed without arguments).

        Raises:
            ValueError, TypeError: not every axis once.
        """
        ghost = _ghost(self.shape, self.strides)
        try:
            return self._from_ghost(ghost, ghost.transpose(*axes))
        except (ValueError, TypeError) as error:
            raise type(error)(f"{self} cannot be transposed by {shown(axes)}: {error}") from None

    def reshape(self, *shape: int | Sequence[int]) -> "Tensor":
        """The view with another shape, elements in C order of the view.

        Raises:
            ValueError: the sizes differ, or the result is no affine view (copy into a new variable instead).
        """
        wanted = _as_shape(shape)
        if wanted.count(-1) == 1 and (rest := -math.prod(wanted)):
            wanted = tuple(self.size // rest if length == -1 else length for length in wanted)
        if math.prod(wanted) != self.size or min(wanted, default=0) < 0:
            raise ValueError(f"{self} has {self.size} elements: it cannot be viewed as shape {_as_shape(shape)}")
        strides = restrided(self.shape, self.strides, wanted)
        if strides is None:
            raise ValueError(f"{self} cannot be viewed as shape {wanted}: its elements do not lie evenly in that order")
        return Tensor(self.variable, self.offset, wanted, strides)

    def flatten(self) -> "Tensor":
        """The view as one axis."""
        return self.reshape(-1)

    def broadcast_to(self, *shape: int | Sequence[int]) -> "Tensor":
        """The view repeated along new or length-1 axes (stride 0), by NumPy's rules.

        Raises:
            ValueError: another axis would have another length.
        """
        wanted = _as_shape(shape)
        added = len(wanted) - self.ndim
        fits = added >= 0 and all(n in (1, want) for n, want in zip(self.shape, wanted[added:], strict=True))
        if not fits or min(wanted, default=0) < 0:
            raise ValueError(f"{self} cannot be broadcast to shape {wanted}")
        strides = (0 if n == 1 else stride for n, stride in zip(self.shape, self.strides, strict=True))
        return Tensor(self.variable, self.offset, wanted, (*(0,) * added, *strides))

    def blocks(self, *parts: int) -> "Tensor":
        """Splits each axis evenly: a (m, n) view with blocks(gm, gn) becomes (gm, gn, m/gm, n/gn).

        Raises:
            ValueError: an axis is not a multiple of its number of parts.
        """
        parts = tuple(integer("a number of blocks", p) for p in parts)
        if len(parts) != self.ndim or any(p < 1 or n % p for n, p in zip(self.shape, parts, strict=True)):
            raise ValueError(f"shape {self.shape} does not split evenly into {parts} blocks")
        shape = parts + tuple(n // p for n, p in zip(self.shape, parts, strict=True))
        strides = tuple(s * (n // p) for s, n, p in zip(self.strides, self.shape, parts, strict=True))
        return Tensor(self.variable, self.offset, shape, strides + self.strides)

    def indices(self) -> Ints:
        """Flat element indices of the variable, in the view's shape."""
        index = np.full(self.shape, self.offset, np.int64)
        for axis, (length, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            steps = np.arange(length, dtype=np.int64) * stride
            index += steps.reshape((length,) + (1,) * (self.ndim - axis - 1))
        return index

    def of(self, storage: NDArray[Any]) -> NDArray[Any]:
        """The view on the variable's flat storage array.

        Raises:
            TypeError: no array of the variable's dtype.
            ValueError: one of another size.
        """
        if not isinstance(storage, np.ndarray) or storage.dtype != self.dtype:
            raise TypeError(f"the storage of {self.variable} is an array of {self.dtype}, not {shown(storage)}")
        if storage.shape != (self.variable.size,) or not storage.flags.c_contiguous:
            raise ValueError(f"the storage of {self.variable} is flat and whole, not of shape {storage.shape}")
        # An empty view may begin behind the last element, where NumPy refuses to let an array begin.
        item, start = storage.itemsize, self.offset if self.size else 0
        return np.ndarray(self.shape, storage.dtype, storage, start * item, [s * item for s in self.strides])

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError(
            f"{self.variable} is a tensor of a graph and holds no values: an engine reads them (engine.read), and a "
            "function for add_traced takes it as an argument, an entry of `tensors`"
        )

    def __str__(self) -> str:
        return f"{self.variable.name}[offset {self.offset}, shape {self.shape}, strides {self.strides}]"

    def __repr__(self) -> str:
        return f"Tensor({self})"

    def _from_ghost(self, ghost: NDArray[Any], view: NDArray[Any]) -> "Tensor":
        moved = view.__array_interface__["data"][0] - ghost.__array_interface__["data"][0] if view.size else 0
        return Tensor(self.variable, self.offset + moved, view.shape, view.strides)


@lru_cache(maxsize=1024)
def _ghost(shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    """A NumPy view with this geometry over memory that is never read: NumPy then does the view arithmetic."""
    return as_strided(np.empty(1, np.int8), shape, strides)


def whole(variable: Variable) -> Tensor:
    """The tensor of all elements of a variable in its own shape."""
    strides = [1]
    for length in reversed(variable.shape[1:]):
        strides.append(strides[-1] * max(1, length))
    return Tensor(variable, 0, variable.shape, tuple(reversed(strides)) if variable.shape else ())


def _as_shape(given: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    """(2, 3) from ``f(2, 3)`` and from ``f((2, 3))``."""
    if all(type(item) is int for item in given):
        return given  # type: ignore[return-value]
    parts = [[item] if isinstance(item, int | np.integer) else listed("a shape", item) for item in given]
    return tuple(integer("a shape's length", length) for part in parts for length in part)
