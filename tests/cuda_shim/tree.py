"""The CUDA sources of this checkout (the installed copies may be older)."""

from __future__ import annotations

from pathlib import Path

from lowprec.backends.cuda.sources import expand

KERNELS = Path(__file__).parents[2] / "kernels"
HEADERS = sorted((KERNELS / "include" / "lowprec").glob("*.h"))


def tree_source(name: str) -> str:
    """The whole text of kernels/cuda/<name>."""
    return expand(KERNELS / "cuda" / name, (KERNELS / "include",))
