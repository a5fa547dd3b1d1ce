"""The processor's own state, set as other libraries set it: rounding direction, subnormal numbers flushed to zero."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

_X86 = platform.machine() in ("x86_64", "AMD64")
_WORDS = 8 if _X86 else 2  # of fenv_t: x87's seven, then MXCSR; FPCR, FPSR
_WORD = 7 if _X86 else 0  # of them the one with what is wanted
_ROUNDING = (
    {"nearest": 0, "down": 1, "up": 2, "toward_zero": 3}
    if _X86
    else {"nearest": 0, "up": 1, "down": 2, "toward_zero": 3}
)
_ROUNDING_SHIFT = 13 if _X86 else 22

STATES = {
    "ftz": {"flush": True},
    "daz": {"zeros": True},
    "ftz and daz": {"flush": True, "zeros": True},
    "up": {"rounding": "up"},
    "down": {"rounding": "down"},
    "toward zero": {"rounding": "toward_zero"},
    "down, ftz and daz": {"rounding": "down", "flush": True, "zeros": True},
}
"""What a caller may have set, by name: flush to zero, denormals are zero, the three other rounding directions."""

_libm = ctypes.CDLL("libm.so.6")


def _environment() -> ctypes.Array[ctypes.c_uint32]:
    words = (ctypes.c_uint32 * _WORDS)()
    assert _libm.fegetenv(words) == 0
    return words


def control() -> int:
    """The bits of this thread's state that decide results."""
    word = int(_environment()[_WORD])
    return word & ~0x3F if _X86 else word  # the lowest six only tell what has happened


@contextmanager
def processor_state(rounding: str = "nearest", flush: bool = False, zeros: bool = False) -> Iterator[int]:
    """This thread computes so while the context lasts; gives `control()`'s bits.

    Args:
        rounding: nearest, up, down or toward_zero.
        flush: subnormal results become zeros.
        zeros: subnormal operands are zeros; on aarch64 the same as `flush`.
    """
    before, words = _environment(), _environment()
    subnormal = (flush << 15) | (zeros << 6) if _X86 else (flush or zeros) << 24
    words[_WORD] |= (_ROUNDING[rounding] << _ROUNDING_SHIFT) | subnormal
    try:
        assert _libm.fesetenv(words) == 0
        yield control()
    finally:
        assert _libm.fesetenv(before) == 0
