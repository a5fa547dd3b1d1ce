"""Arrays of torch and JAX: in as NumPy sees them, and the result as the library that they came from has it.

Nothing is copied on the way in, nor on the way out to torch: both see the same memory, in bfloat16 and the 8-bit floats
too. A result in a dtype that the library lacks is refused in its words.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from lowprec._dlpack import from_dlpack
from lowprec.backends.owner import is_cupy, load
from lowprec.types import Array
from lowprec.values.formats import format_of_dtype, formats

P = ParamSpec("P")
R = TypeVar("R")
_SIGNED: Mapping[int, str] = MappingProxyType({1: "int8", 2: "int16", 4: "int32", 8: "int64"})
_OWN = frozenset({np.ndarray, float, int, bool, str, tuple, type(None)})  # quickly seen to be no library's


class Library(Protocol):
    """Conversions of a library's arrays to NumPy's and back."""

    @property
    def name(self) -> str:
        """The name of the library's module."""

    def input(self, x: Any) -> Array:
        """An array of the library as a NumPy array to be read."""

    def output(self, out: Any) -> Array:
        """An array of the library as a NumPy array that is written to."""

    def array(self, result: Array) -> Any:
        """A NumPy array as an array of the library."""

    def holds_doubles(self) -> bool:
        """Whether the library's arrays may have elements of 64 bits."""


@dataclass(frozen=True)
class Torch:
    """torch's tensors: on the CPU seen as NumPy's arrays, on a GPU of CUDA as CuPy's."""

    torch: Any
    name: str = "torch"

    def input(self, x: Any) -> Array:
        return self._on_device(x) if x.is_cuda else from_dlpack(x)

    def _on_device(self, x: Any) -> Any:
        """A tensor on a GPU as a CuPy array of the same memory, in order behind the work of torch's current stream."""
        if x.requires_grad:
            raise BufferError("a tensor that requires a gradient, which no call here follows, is not taken: x.detach()")
        fmt = formats.get(str(x.dtype).removeprefix("torch."))
        # As integers, which CuPy takes in whatever the format; the bytes stay where they are.
        codes = x if fmt is None else x.view(getattr(self.torch, _SIGNED[x.element_size()]))
        array = load("cuda").from_dlpack(codes)
        return array if fmt is None else array.view(fmt.dtype)

    def output(self, out: Any) -> Array:
        if isinstance(out, self.torch.Tensor) and out.requires_grad:
            # Written in place its gradient would be wrong, in silence.
            raise TypeError("out is a tensor that requires a gradient, which no call here follows: give out.detach()")
        return self._on_device(out) if out.is_cuda else from_dlpack(out, writable=True)

    def array(self, result: Array) -> Any:
        fmt = format_of_dtype(result.dtype)
        if is_cupy(result):
            dtype = None if fmt is None else getattr(self.torch, fmt.name, None)
            if fmt is not None and dtype is None:
                raise TypeError(f"torch has no dtype {fmt.name}: take round's values, or encode's codes")
            codes = result if dtype is None else result.view(_SIGNED[result.dtype.itemsize])
            tensor = self.torch.from_dlpack(codes)
            return tensor if dtype is None else tensor.view(dtype)
        # NumPy's own dtypes; torch.from_numpy refuses those of ml_dtypes.
        if fmt is None or result.dtype.isbuiltin == 1:
            return self.torch.from_numpy(result)
        dtype = getattr(self.torch, fmt.name, None)
        if dtype is None:
            raise TypeError(f"torch has no dtype {fmt.name}: take round's values, encode's codes, or a NumPy array in")
        # The codes are the same bytes in both libraries: a view, no conversion.
        return self.torch.from_numpy(result.view(fmt.code_dtype)).view(dtype)

    def holds_doubles(self) -> bool:
        return True


@dataclass(frozen=True)
class Jax:
    """JAX's arrays on the CPU."""

    jax: Any
    name: str = "jax"

    def input(self, x: Any) -> Array:
        return np.asarray(x)

    def output(self, out: Any) -> Array:
        raise TypeError("out must be an array that can be written to, and those of JAX cannot")

    def array(self, result: Array) -> Any:
        # JAX would round float64 to float32, and say nothing.
        if result.dtype.itemsize == 8 and not self.holds_doubles():
            raise TypeError(f"JAX holds no {result.dtype} unless jax_enable_x64 is set; or give a NumPy array")
        return self.jax.numpy.asarray(result)

    def holds_doubles(self) -> bool:
        return bool(self.jax.config.jax_enable_x64)


def library_of(*given: object) -> Library | None:
    """The library of the first array that is torch's or JAX's; None where there is none."""
    # Arrays of a library that was never imported cannot be here; so this costs nothing where there is none.
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is None and jax is None:
        return None
    for x in given:
        if type(x) in _OWN:
            continue
        if torch is not None and isinstance(x, torch.Tensor):
            return Torch(torch)
        if jax is not None and isinstance(x, jax.Array):
            return Jax(jax)
    return None


def as_array_of(name: str, result: Array) -> Any:
    """A NumPy array as one of the library of that name."""
    return result if name == "numpy" else _LIBRARIES[name](sys.modules.get(name) or import_module(name)).array(result)


def through(library: Library, call: Callable[..., Any], *args: Any, out: Any = None, **keywords: Any) -> Any:
    """Calls a function of NumPy arrays with arrays of a library; the result is an array of that library.

    Args:
        library: whose results they become.
        call: the function.
        args, keywords: of it; arrays of a library anywhere among them.
        out: where to put the result: an array of the library, or of NumPy.
    """
    into = library_of(out)
    if out is not None:
        keywords["out"] = out if into is None else into.output(out)
    result = call(*map(_numpy, args), **{name: _numpy(value) for name, value in keywords.items()})
    return _given_back(library, result) if out is None else out


def takes_foreign(call: Callable[P, R]) -> Callable[P, R]:
    """A function of NumPy arrays that takes those of torch and JAX too, and gives such an array for them."""

    @functools.wraps(call)
    def either(*args: P.args, **keywords: P.kwargs) -> R:
        library = library_of(*args, *keywords.values())
        return call(*args, **keywords) if library is None else through(library, call, *args, **keywords)

    return either


def measures_foreign(call: Callable[P, R]) -> Callable[P, R]:
    """`takes_foreign` for results in float64: of a library that holds none as it is set now they are NumPy's."""

    @functools.wraps(call)
    def either(*args: P.args, **keywords: P.kwargs) -> R:
        library = library_of(*args, *keywords.values())
        if library is None:
            return call(*args, **keywords)
        given = dict(zip(keywords, map(_numpy, keywords.values()), strict=True))
        result: Any = call(*map(_numpy, args), **given)
        return _given_back(library, result) if library.holds_doubles() else result  # type: ignore[no-any-return]

    return either


def _numpy(x: Any) -> Any:
    library = library_of(x)
    return x if library is None else library.input(x)


def _given_back(library: Library, result: Any) -> Any:
    if is_cupy(result):
        return library.array(result)
    if isinstance(result, (np.ndarray, np.generic)):
        return library.array(np.asarray(result))
    return result.of_library(library.name) if hasattr(result, "of_library") else result


_LIBRARIES: Mapping[str, Callable[[Any], Library]] = {"torch": Torch, "jax": Jax}
