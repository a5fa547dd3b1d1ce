"""Compiles CUDA sources for CuPy to load, with exactly the options of the numerics contract.

Not by CuPy's own RawModule(code=...): it appends -ftz=true to whatever options it is given (cupy issue 9576), which
turns float32 subnormals into zeros. CuPy's binding of NVRTC compiles here, and RawModule loads the machine code.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any


def machine_code(xp: Any, source: str, options: tuple[str, ...], architecture: str) -> Path:
    """The file of a source's machine code: from CuPy's folder of compiled kernels, or made and put there.

    Args:
        xp: the CuPy module.
        source: the CUDA text, without anything left to include.
        options: NVRTC's options but the architecture.
        architecture: such as sm_90.

    Raises:
        RuntimeError: it does not compile; the message is the compiler's.
    """
    # Machine code for one architecture, not PTX, which the driver would compile with options of its own.
    options = (*options, f"--gpu-architecture={architecture}")
    # The compiler's version too: another one may make other code of the same text.
    key = repr((source, options, xp.cuda.nvrtc.getVersion()))
    name = f"lowprec-{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    if not (folder / name).is_file():
        _write(_compile(xp.cuda.nvrtc, source, options), folder / name)
    return folder / name


def _compile(nvrtc: Any, source: str, options: tuple[str, ...]) -> bytes:
    program = nvrtc.createProgram(source, "lowprec.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise RuntimeError(f"NVRTC refuses lowprec's kernels ({error}) with {' '.join(options)}: {log}") from None
    finally:
        nvrtc.destroyProgram(program)


def _write(code: bytes, path: Path) -> None:
    """Writes the whole file or none, so that other processes never load a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(code)
    # In one step; of two processes that compile the same kernel the last one's file stands, and both are whole.
    Path(file.name).replace(path)
