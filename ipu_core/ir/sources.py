"""Where in the model's code an equation is asked for: the innermost line that is neither ours nor NumPy's."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np

HOUSE = Path(__file__).parent.parent
MACHINERY = (*(f"{HOUSE / name}/" for name in ("ir", "nn", "train", "capture")), f"{Path(np.__file__).parent}/")


def calling_line() -> str | None:
    """ "file:line" of the innermost caller that is code of a model; None where there is none."""
    frame = sys._getframe(1)
    while _is_machinery(frame.f_code.co_filename):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@cache
def _is_machinery(file: str) -> bool:
    return file.startswith((*MACHINERY, "<frozen"))


def short(source: str | None) -> str:
    """The line without the folder of its file: "model.py:41"; "" for None."""
    return "" if source is None else Path(source).name
