"""Traced values as arrays: Python's operators, indexing, the usual methods and NumPy's functions append equations."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ipu_core.ir.block import dtype_of
from ipu_core.ir.trace.array_functions import FUNCTIONS, INSTEAD, UFUNCS, greater_equal, not_equal
from ipu_core.ir.trace.values import (
    Traced,
    Value,
    convert,
    elementwise,
    index_basic,
    logical_and,
    logical_not,
    logical_or,
    matmul,
    mean,
    power,
    reduce_max,
    reduce_sum,
    reshape,
    swap,
    transpose,
)
from ipu_core.ir.trace.whole_numbers import (
    ceil,
    divmod_of,
    floor,
    floor_divide,
    remainder,
    round_decimals,
    trunc,
)


def _method(name: str) -> Callable[..., Any]:
    """The array method that one of NumPy's functions is too."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _call(FUNCTIONS, name, (self, *args), kwargs)

    return method


def _call(table: Mapping[str, Callable[..., Any]], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One of NumPy's functions with what NumPy was given.

    Raises:
        TypeError: there is no rule for it, with what to write instead, or it takes no such arguments.
    """
    f = table.get(name)
    if f is None:
        known = f"these can: {', '.join(sorted(table))}"
        raise TypeError(f"np.{name} cannot be traced; {INSTEAD.get(name, known)}")
    try:
        given = inspect.signature(f).bind(*args, **kwargs)
    except TypeError as error:
        takes = ", ".join(inspect.signature(f).parameters)
        raise TypeError(f"np.{name} of a traced value takes ({takes}): {error}") from None
    return f(*given.args, **given.kwargs)


class TracedArray(Traced):
    """A traced value that is computed with as with an array.

    Python's operators, `@`, basic indexing, comparisons, the usual array methods and NumPy's own functions
    (`np.exp(x)`, `np.sum(x, 0)`) all append equations to the Block. Comparisons, of floats or of int32 numbers, give 1
    and 0; `&`, `|` and `~` combine such truth values.
    """

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its format as it is traced, which a precision may make another."""
        return dtype_of(self.format)

    @property
    def T(self) -> Value:
        """The axes in reverse order."""
        return transpose(self)

    @property
    def mT(self) -> Value:
        """The last two axes exchanged."""
        return swap(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a traced value without axes has no len()")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no numbers yet: use where(condition, a, b) instead of if, and, or, not")

    def __float__(self) -> float:
        raise TypeError(f"{self!r} has no numbers yet: it cannot become a Python number while a function is traced")

    __int__ = __index__ = __float__

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self!r} has no numbers yet: it cannot become a NumPy array while a function is traced. In place of "
            "lowprec.round and astype there are nn.round, nn.quantize and nn.convert; from_jax captures those of JAX"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            raise TypeError(f"np.{ufunc.__name__}.{method} cannot be traced; np.sum, np.max and np.cumsum can")
        return _call(UFUNCS, ufunc.__name__, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        module = function.__module__.removeprefix("numpy").removeprefix(".")
        return _call(FUNCTIONS, f"{module}.{function.__name__}".removeprefix("."), args, kwargs)

    def __add__(self, other: Value) -> Value:
        return elementwise("add", self, other)

    def __radd__(self, other: Value) -> Value:
        return elementwise("add", other, self)

    def __sub__(self, other: Value) -> Value:
        return elementwise("subtract", self, other)

    def __rsub__(self, other: Value) -> Value:
        return elementwise("subtract", other, self)

    def __mul__(self, other: Value) -> Value:
        return elementwise("multiply", self, other)

    def __rmul__(self, other: Value) -> Value:
        return elementwise("multiply", other, self)

    def __truediv__(self, other: Value) -> Value:
        return elementwise("divide", self, other)

    def __rtruediv__(self, other: Value) -> Value:
        return elementwise("divide", other, self)

    def __floordiv__(self, other: Value) -> Value:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Value) -> Value:
        return floor_divide(other, self)

    def __mod__(self, other: Value) -> Value:
        return remainder(self, other)

    def __rmod__(self, other: Value) -> Value:
        return remainder(other, self)

    def __divmod__(self, other: Value) -> tuple[Value, Value]:
        return divmod_of(self, other)

    def __rdivmod__(self, other: Value) -> tuple[Value, Value]:
        return divmod_of(other, self)

    def __round__(self, decimals: int = 0) -> Value:
        return round_decimals(self, decimals)

    def __floor__(self) -> Value:
        return floor(self)

    def __ceil__(self) -> Value:
        return ceil(self)

    def __trunc__(self) -> Value:
        return trunc(self)

    def __neg__(self) -> Value:
        return elementwise("negative", self)

    def __abs__(self) -> Value:
        return elementwise("absolute", self)

    def __pow__(self, exponent: float) -> Value:
        return power(self, exponent)

    def __rpow__(self, base: float) -> Value:
        return elementwise("exp", elementwise("multiply", self, math.log(base))) if base > 0 else NotImplemented

    def __matmul__(self, other: Value) -> Value:
        return matmul(self, other)

    def __rmatmul__(self, other: Value) -> Value:
        return matmul(other, self)

    def __gt__(self, other: Value) -> Value:
        return elementwise("greater", self, other)

    def __lt__(self, other: Value) -> Value:
        return elementwise("greater", other, self)

    def __ge__(self, other: Value) -> Value:
        return greater_equal(self, other)

    def __le__(self, other: Value) -> Value:
        return greater_equal(other, self)

    def __eq__(self, other: object) -> Any:
        return elementwise("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return not_equal(self, other)

    def __and__(self, other: Value) -> Value:
        return logical_and(self, other)

    def __rand__(self, other: Value) -> Value:
        return logical_and(other, self)

    def __or__(self, other: Value) -> Value:
        return logical_or(self, other)

    def __ror__(self, other: Value) -> Value:
        return logical_or(other, self)

    def __invert__(self) -> Value:
        return logical_not(self)

    # `==` gives an array of truth values: no dict or set could find a value by it.
    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Value:
        return index_basic(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(f"{self!r} cannot be written to: np.where(mask, value, x) or np.concatenate make another value")

    def __iter__(self) -> Iterator[Value]:
        return iter([self[row] for row in range(len(self))])

    def reshape(self, *shape: Any) -> Value:
        """The same elements in C order in another shape; one size may be -1."""
        return reshape(self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def transpose(self, *perm: Any) -> Value:
        """The axes in another order (reversed if none is given)."""
        return transpose(self, perm[0] if len(perm) == 1 and not isinstance(perm[0], int) else perm or None)

    def astype(self, dtype: Any) -> Value:
        """The value in the format of a dtype or name (see `nn.convert`), which every precision keeps to."""
        return convert(self, dtype)

    argmax, argmin, min, var, std = (_method(name) for name in ("argmax", "argmin", "min", "var", "std"))
    any, all, cumsum, clip, trace = (_method(name) for name in ("any", "all", "cumsum", "clip", "trace"))
    prod, cumprod, argsort, copy, round = (_method(name) for name in ("prod", "cumprod", "argsort", "copy", "round"))
    dot, take, repeat, squeeze = (_method(name) for name in ("dot", "take", "repeat", "squeeze"))
    ravel, flatten, swapaxes = (_method(name) for name in ("ravel", "ravel", "swapaxes"))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Value:
        """The sum over axes."""
        return reduce_sum(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Value:
        """The mean over axes."""
        return mean(self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Value:
        """The maximum over axes; NaN if there is one."""
        return reduce_max(self, axis, keepdims)
