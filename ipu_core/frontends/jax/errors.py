"""What is refused in a jaxpr, in words: the primitive, the layer and the line of the user's code."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

from ipu_core.errors import NotCovered


def layer_of(equation: Any) -> str:
    """The scopes of an equation (`jax.named_scope`, modules of flax and haiku), joined by dots."""
    return str(equation.source_info.name_stack).replace("/", ".")


def frame_of(equation: Any) -> Any:
    """The innermost call on the way to an equation that is in no package, else in none of JAX's; None if unknown."""
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    jax = str(Path(sys.modules["jax"].__file__ or "").parent)
    outside = [frame for frame in frames if not frame.file_name.startswith(jax)]
    # installed packages (flax, haiku) lie in site-packages or dist-packages
    own = [frame for frame in outside if "-packages" not in frame.file_name]
    return next(iter(own or outside), None)


def source_of(equation: Any) -> str | None:
    """The line of the user's code that asks for an equation, as "model.py:41"; None where JAX does not know it."""
    frame = frame_of(equation)
    return None if frame is None else f"{Path(frame.file_name).name}:{frame.line_num}"


def not_covered(primitive: str, equation: Any, layer: str, why: str = "it has no counterpart here") -> NotCovered:
    """The refusal of a primitive; the equation says the line, which may be that of a function that holds it."""
    frame = frame_of(equation)
    line = ""
    if frame is not None:
        code = linecache.getline(frame.file_name, frame.line_num).strip()
        line = f"{frame.file_name}:{frame.line_num}: {code}"
    place = ", ".join(filter(None, (f"layer {layer}" if layer else "the function itself", line)))
    return NotCovered(f"{primitive} of a jaxpr is not covered ({why}); it is asked for by {place}")
