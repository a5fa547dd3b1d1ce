"""Golden files: bits that no change may alter. `python -m tests.golden` writes them anew.

Each module here has `build() -> dict[file name, JSON data]`; bits are lower-case hexadecimal strings. Not written are:

- p3109_tables.json: SHA-256 of the values (as float.hex(), one per line in the order of the codes) in the value tables
  that the IEEE P3109 working group publishes (github.com/P3109/Public, Value Tables/Hexadecimal, June 2026);
- kernel_digests.txt: what tests/kernels/digest.cpp prints on every instruction set, as a slow test compares. Its line
  "decoding" was renewed when every NaN began to decode to the one positive quiet NaN; codes of negative NaNs had kept
  their sign until then, and no other bit changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).parent


def load(name: str) -> Any:
    """The data of one golden file."""
    return json.loads((FOLDER / name).read_text())


def save(name: str, data: Any) -> None:
    """Writes one golden file, stable and readable."""
    (FOLDER / name).write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


def hexadecimal(codes: npt.NDArray[Any]) -> str:
    """Unsigned codes as one string, each with its full width, big digits first."""
    digits = 2 * codes.dtype.itemsize
    return " ".join(f"{int(code):0{digits}x}" for code in np.ravel(codes))
