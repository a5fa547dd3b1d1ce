"""The few CuPy names that lowprec uses, on the CPU: arrays in host memory, and kernels compiled by g++.

A double, not an emulator: it has what lowprec.backends.cuda calls and nothing else, so that a call to anything new
fails loudly here. It counts allocations and copies to the host, which wait for the GPU in CuPy.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

__version__ = "14.0-double"

LAUNCHER = Path(__file__).parent / "launcher.h"
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", "-Wall", "-Werror")
FLAGS += tuple(os.environ.get("LOWPREC_SHIM_FLAGS", "").split())  # sanitizers (tests/sanitize.py)

GUARD = 64  # bytes; keeps the alignment of the host's allocator

calls: Counter[str] = Counter()


class Memory:
    """What cupy.cuda.alloc returns, between guards that no kernel may write."""

    def __init__(self, size: int) -> None:
        calls["alloc"] += 1
        self.whole = np.full(size + 2 * GUARD, 0xA5, np.uint8)
        self.bytes = self.whole[GUARD : GUARD + size]

    def check(self) -> None:
        assert np.all(self.whole[:GUARD] == 0xA5), "a kernel wrote in front of an array"
        assert np.all(self.whole[GUARD + self.bytes.size :] == 0xA5), "a kernel wrote beyond an array"


class Device:
    """A GPU with one multiprocessor, so that the kernels' grid-stride loops go round more than once."""

    def __init__(self, number: int = 0) -> None:
        self.attributes = {"MultiProcessorCount": 1}
        self.compute_capability = "00"
        self.id = number

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id


class ndarray:
    """A GPU array whose memory is the host's."""

    device = Device()

    def __init__(self, shape: tuple[int, ...], dtype: Any = float, memptr: Memory | None = None) -> None:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=int)) * dtype.itemsize
        self.memory = memptr or Memory(size)
        self.host = self.memory.bytes[:size].view(dtype).reshape(shape)

    def _like(self, host: Any) -> ndarray:
        made = object.__new__(ndarray)
        made.host, made.memory = host, self.memory
        return made

    shape = property(lambda self: self.host.shape)
    dtype = property(lambda self: self.host.dtype)
    size = property(lambda self: self.host.size)
    strides = property(lambda self: self.host.strides)
    itemsize = property(lambda self: self.host.itemsize)
    ndim = property(lambda self: self.host.ndim)
    flags = property(lambda self: self.host.flags)
    T = property(lambda self: self._like(self.host.T))
    data = property(lambda self: SimpleNamespace(ptr=self.host.ctypes.data))

    def __getitem__(self, index: Any) -> ndarray:
        if isinstance(index, ndarray):
            return asarray(self.host[index.host])
        part = self.host[index]
        # NumPy gives a number for an element, CuPy an array without axes.
        return self._like(part if isinstance(part, np.ndarray) else self.host[(*index, ...)])

    def transpose(self, *axes: int) -> ndarray:
        return self._like(self.host.transpose(*axes))

    def swapaxes(self, first: int, second: int) -> ndarray:
        return self._like(self.host.swapaxes(first, second))

    def view(self, dtype: Any) -> ndarray:
        return self._like(self.host.view(dtype))

    def reshape(self, *shape: Any) -> ndarray:
        host = self.host.reshape(*shape)
        if np.may_share_memory(host, self.host) or not host.size:
            return self._like(host)
        calls["copy"] += 1
        return asarray(host)

    def astype(self, dtype: Any) -> ndarray:
        return asarray(self.host.astype(dtype))

    def __le__(self, other: Any) -> ndarray:
        return asarray(self.host <= other)

    def __and__(self, other: Any) -> ndarray:
        return asarray(self.host & other)

    def copy(self) -> ndarray:
        calls["copy"] += 1
        return asarray(self.host)

    def min(self) -> ndarray:
        return asarray(self.host.min())

    def max(self) -> ndarray:
        return asarray(self.host.max())

    def __int__(self) -> int:
        calls["get"] += 1
        return int(self.host)

    def __lt__(self, other: Any) -> ndarray:
        return asarray(self.host < other)

    def __add__(self, other: Any) -> ndarray:
        return asarray(self.host + other)

    def get(self) -> Any:
        calls["get"] += 1
        return self.host.copy()

    def set(self, array: Any) -> None:
        self.host[...] = array

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host[index] = getattr(value, "host", value)

    def __array__(self, *_: object) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")


def zeros(shape: tuple[int, ...], dtype: Any) -> ndarray:
    made = ndarray(shape, dtype)
    made.set(0)
    return made


def asarray(host: Any) -> ndarray:
    """A copy of a NumPy array, any dtype (for tests; CuPy's own refuses ml_dtypes' narrow ones)."""
    made = ndarray(np.shape(host), np.asarray(host).dtype)
    made.set(host)
    return made


def arange(stop: int) -> ndarray:
    return asarray(np.arange(stop))


def concatenate(arrays: list[ndarray], axis: int) -> ndarray:
    return asarray(np.concatenate([x.host for x in arrays], axis=axis))


def broadcast_arrays(*arrays: ndarray) -> list[ndarray]:
    hosts = np.broadcast_arrays(*(x.host for x in arrays))
    return [x._like(host) for x, host in zip(arrays, hosts, strict=True)]


def where(condition: ndarray, x: ndarray, y: Any) -> ndarray:
    return asarray(np.where(condition.host, x.host, getattr(y, "host", y)))


def argsort(x: ndarray, kind: str) -> ndarray:
    return asarray(np.argsort(x.host, kind=kind))  # type: ignore[call-overload]


def searchsorted(x: ndarray, values: ndarray) -> ndarray:
    return asarray(np.searchsorted(x.host, values.host))


def ascontiguousarray(x: ndarray) -> ndarray:
    return x if x.host.flags.c_contiguous else asarray(x.host)


class RawModule:
    """A shared object that stands for machine code."""

    def __init__(self, *, path: str) -> None:
        self.library = ctypes.CDLL(path)

    def get_function(self, name: str) -> Any:
        function = getattr(self.library, f"shim_{name}")

        def kernel(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            calls["launch"] += 1
            kept = [_argument(a) for a in arguments]
            pointers = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(k) for k in kept))
            function(grid[0], block[0], pointers)
            for argument in arguments:
                if isinstance(argument, ndarray):
                    argument.memory.check()

        return kernel


def _argument(value: Any) -> Any:
    """A ctypes buffer with the bytes that a kernel's parameter has."""
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, ndarray):
        return ctypes.c_void_p(value.data.ptr)
    assert isinstance(value, np.generic) or value.size == 1, "CuPy passes NumPy arrays of one element only"
    return ctypes.create_string_buffer(value.tobytes(), value.nbytes)


class NVRTCError(RuntimeError):
    """g++ refused a source."""


class Program:
    """cupy.cuda.nvrtc, with g++ in NVRTC's place: the definitions among the options, and FLAGS."""

    NVRTCError = NVRTCError
    log = ""
    code = b""

    def __init__(self, source: str) -> None:
        kernels = re.findall(r'extern "C" __global__ void (?:LP_BOUNDS |__launch_bounds__\(\d+\)\s+)?(\w+)\(', source)
        parameters = "unsigned grid, unsigned block, void **arguments"
        shims = "".join(
            f'extern "C" void shim_{name}({parameters}) {{ launch({name}, grid, block, arguments); }}\n'
            for name in dict.fromkeys(kernels)
        )
        barriers = "#define SHIM_BARRIERS\n" if "__syncthreads" in source else ""
        self.text = f'{barriers}#include "{LAUNCHER}"\n{source}\n{shims}'

    @staticmethod
    def getVersion() -> tuple[int, int]:
        return 0, 0

    @classmethod
    def createProgram(cls, source: str, name: str, headers: tuple[str, ...], include_names: tuple[str, ...]) -> Program:
        return cls(source)

    def compileProgram(self, options: tuple[str, ...]) -> None:
        definitions = [option for option in options if option.startswith("-D")]
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
            source.write_text(self.text)
            command = ["g++", *FLAGS, *definitions, str(source), "-o", str(library)]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            self.log = run.stderr
            if run.returncode:
                raise NVRTCError("NVRTC_ERROR_COMPILATION (6)")
            self.code = library.read_bytes()

    def getCUBIN(self) -> bytes:
        return self.code

    def getProgramLog(self) -> str:
        return self.log

    def destroyProgram(self) -> None:
        pass


class CUDARuntimeError(RuntimeError):
    pass


cuda = SimpleNamespace(
    alloc=Memory,
    Device=Device,
    nvrtc=Program,
    runtime=SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=CUDARuntimeError),
)
