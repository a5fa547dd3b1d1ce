"""CuPy, loaded when it is first needed: kernels, launches on CuPy's current stream, and results on the GPU."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

from lowprec.backends.cuda.compiler import machine_code
from lowprec.backends.cuda.layout import byte_range
from lowprec.backends.cuda.sources import OPTIONS, source
from lowprec.backends.owner import is_cupy
from lowprec.extras import optional
from lowprec.integers import ceil_div
from lowprec.types import Array

Defines = tuple[tuple[str, str], ...]
"""Names and values that a kernel is compiled with."""

THREADS = 256  # a multiple of a warp's 32 threads
BLOCKS_PER_PROCESSOR = 8


def cupy() -> Any:
    """The CuPy module.

    Raises:
        ImportError: it is not installed; one sentence says how to install it.
    """
    return optional("cupy", extra="cuda", package="CuPy")


def check() -> None:
    """Passes where there are CuPy and a GPU.

    Raises:
        ImportError: CuPy is not installed.
        RuntimeError: there is no GPU that CUDA can use; the sentence gives CUDA's own reason.
    """
    runtime = cupy().cuda.runtime
    try:
        found = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise RuntimeError(f"the cuda backend needs a GPU and CUDA finds none ({error})") from None
    if found == 0:
        raise RuntimeError("the cuda backend needs a GPU and CUDA finds none")


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A new C-contiguous array on the current device. The dtype may be one that CuPy stores but cannot compute with.

    Raises:
        TypeError: this CuPy cannot hold the dtype at all (before version 14: bfloat16 and narrower).
    """
    xp = cupy()
    memory = xp.cuda.alloc(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    try:
        return xp.ndarray(shape, dtype, memptr=memory)
    except ValueError:
        raise TypeError(
            f"CuPy {xp.__version__} cannot hold {dtype}: use encode, which gives its codes as unsigned integers"
        ) from None


def upload(array: Array) -> Any:
    """A NumPy array's copy on the current device, its dtype kept."""
    on_device = empty(array.shape, array.dtype)
    _bytes(on_device).set(_bytes(np.ascontiguousarray(array)))
    return on_device


def download(on_device: Any, array: Array) -> None:
    """Copies a C-contiguous CuPy array into a NumPy array of its shape and dtype."""
    array[...] = host_copy(on_device)


def host_copy(on_device: Any) -> Array:
    """A CuPy array as a NumPy array, its dtype kept."""
    whole = cupy().ascontiguousarray(bits(on_device))
    copy: Array = _bytes(whole).get().view(on_device.dtype).reshape(on_device.shape)
    return copy


def bits(array: Any) -> Any:
    """A CuPy array as unsigned integers of the same width: CuPy copies them, and no narrow floats."""
    return array.view(f"u{array.itemsize}")


def _bytes(array: Any) -> Any:
    """The bytes of a contiguous array, which CuPy moves whatever the dtype."""
    return array.reshape(-1).view(np.uint8)


def output_array(out: Any, like: Any, dtype: np.dtype[Any]) -> Any:
    """`output_for` of one input of the result's shape."""
    return output_for(out, like.shape, dtype, like)


def output_for(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], *inputs: Any) -> Any:
    """The array to compute into: `out` after checks (any strides), or a new one on the device of the CuPy arrays.

    Raises:
        TypeError: out is no CuPy array of that dtype.
        ValueError: out has another shape or device, or shares memory with an input without being the same elements.
    """
    device = inputs[0].device
    if out is None:
        # On the input's device, which need not be the current one.
        with device:
            return empty(shape, dtype)
    if not is_cupy(out) or out.dtype != dtype:
        given = out.dtype if is_cupy(out) else type(out).__name__
        raise TypeError(f"out must be a CuPy array of {dtype}, not {given}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, the result {shape}")
    if out.device != device:
        raise ValueError(f"out is on {out.device}, the input on {device}")
    for x in inputs:
        # Element by element in one place a thread reads before it writes; any other overlap is a race of threads.
        if overlap(out, x) and not _same_place(out, x):
            raise ValueError("out shares memory with the input; give the input itself or memory of its own")
    # Threads would write them in any order.
    if any(step == 0 and size > 1 for size, step in zip(out.shape, out.strides, strict=True)):
        raise ValueError("out has several elements in one place")
    return out


def output_of_any(out: Any, like: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """`output_for` of an input whose memory may be out's: whoever asks sees to it.

    Raises:
        TypeError, ValueError: as `output_for`, but for shared memory.
    """
    return output_for(out, shape, dtype, like[..., None][..., :0])  # nothing shares memory with no elements


def output_apart(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], *inputs: Any) -> Any:
    """`output_for` of inputs that are read more than once: where out shares their memory the result is a new array.

    Raises:
        TypeError, ValueError: as `output_for`, but for shared memory.
    """
    if out is not None:
        output_of_any(out, inputs[0], shape, dtype)
        if any(overlap(out, x) for x in inputs):
            out = None
    return output_for(out, shape, dtype, *inputs)


def copied(array: Any) -> Any:
    """A copy on the array's device, whatever the dtype."""
    with array.device:
        return bits(array).copy().view(array.dtype)


def overlap(a: Any, b: Any) -> bool:
    """Whether the ranges of memory of two GPU arrays overlap."""
    (start, end), (first, last) = byte_range(a), byte_range(b)
    return max(start, first) < min(end, last)


def _same_place(a: Any, b: Any) -> bool:
    """Whether element i of both lies at the same bytes."""
    where = [(x.data.ptr, x.shape, x.strides, x.itemsize) for x in (a, b)]
    return bool(where[0] == where[1])


@lru_cache(maxsize=4096)
def kernel(file: str, name: str, defines: Defines, device: int) -> Any:
    """A kernel compiled with these definitions for a device, which must be current."""
    xp = cupy()
    options = (*OPTIONS, *(f"-D{key}={value}" for key, value in defines))
    # By device: a loaded module belongs to one, even among two of the same kind.
    capability = xp.cuda.Device(device).compute_capability
    return xp.RawModule(path=str(machine_code(xp, source(file), options, f"sm_{capability}"))).get_function(name)


@cache
def most_blocks(device: int) -> int:
    """Blocks that keep every multiprocessor of a device busy; a thread beyond its first element strides by the grid."""
    return int(cupy().cuda.Device(device).attributes["MultiProcessorCount"]) * BLOCKS_PER_PROCESSOR


def launch(function: Any, units: int, device: int, arguments: tuple[Any, ...]) -> None:
    """Starts a kernel over `units` pieces of work on CuPy's current stream of the device, which must be current."""
    blocks = min(ceil_div(units, THREADS), most_blocks(device))
    function((blocks,), (THREADS,), arguments)
