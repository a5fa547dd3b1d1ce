"""NVRTC, NVIDIA's run-time compiler, through ctypes. It needs no GPU: python -m pip install nvidia-cuda-nvrtc."""

from __future__ import annotations

import ctypes
import importlib.metadata
from functools import cache
from typing import Any, NamedTuple


class Compiled(NamedTuple):
    """What NVRTC made: PTX text, size of the machine code, and its log (with -Xptxas -v: registers and spills)."""

    ptx: str
    machine_code: int
    log: str


@cache
def library() -> Any:
    """libnvrtc.

    Raises:
        FileNotFoundError: it is not installed.
    """
    try:
        files = importlib.metadata.files("nvidia-cuda-nvrtc") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name.startswith("libnvrtc.so"):
            return ctypes.CDLL(str(file.locate()))
    raise FileNotFoundError("NVRTC is not installed: python -m pip install nvidia-cuda-nvrtc (58 MB)")


def version() -> tuple[int, int]:
    """NVRTC's own."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def compile_cuda(source: str, architecture: str, options: tuple[str, ...]) -> Compiled:
    """Compiles a CUDA source for an architecture such as sm_90.

    Raises:
        ValueError: it does not compile; the message is the compiler's.
    """
    nvrtc, program = library(), ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"source.cu", 0, None, None)
    arguments = [o.encode() for o in (f"--gpu-architecture={architecture}", "-Xptxas", "-v", *options)]
    failed = nvrtc.nvrtcCompileProgram(program, len(arguments), (ctypes.c_char_p * len(arguments))(*arguments))
    log = _text(program, "ProgramLog")
    if failed:
        raise ValueError(log)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    result = Compiled(_text(program, "PTX"), size.value, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return result


def _text(program: ctypes.c_void_p, what: str) -> str:
    nvrtc, size = library(), ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()
