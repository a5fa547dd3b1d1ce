"""The text of a CUDA kernel with the headers it includes, as one source: what NVRTC compiles.

The headers are written out in place of their #include lines, not left to an include path: compiled kernels are kept
under a key made of the text, so that a new version of a header is a new key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from lowprec import _kernels

OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
"""Compiler options that are part of the numerics: no product is fused with a sum unless the source says so."""

_INCLUDE = re.compile(r'^#include "([^"]+)".*$', re.MULTILINE)


@cache
def source(name: str) -> str:
    """The whole text of an installed kernel file, such as "convert.cu"."""
    include = Path(_kernels.__file__).parent / "include"
    return expand(include / "cuda" / name, (include,))


def expand(path: Path, folders: Sequence[Path]) -> str:
    """The text of `path`, every file it includes written out once, at the first place it is included.

    Args:
        path: the file.
        folders: where included files are looked for after the including file's own folder.

    Raises:
        FileNotFoundError: an included file is in none of those folders.
    """
    seen: set[Path] = set()

    def text_of(file: Path) -> str:
        if file in seen:
            # As #pragma once would have it.
            return ""
        seen.add(file)
        text = _INCLUDE.sub(lambda line: text_of(_find(line[1], (file.parent, *folders))), file.read_text("utf-8"))
        return f'#line 1 "{file.name}"\n{text}'

    return text_of(path)


def _find(name: str, folders: Sequence[Path]) -> Path:
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).resolve()
    raise FileNotFoundError(f"{name} is in none of {', '.join(map(str, folders))}; reinstall lowprec")
