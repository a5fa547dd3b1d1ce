"""What is refused when a module is captured, in words: the operation, the layer and the line of the user's code."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from ipu_core.errors import NotCovered

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \S+\n +(?P<code>.*)')


def line_of(trace: str) -> str:
    """The last line of a stack's text that is not torch's own, as "file:line: code"; "" where there is none."""
    frame = _own_frame(trace)
    return f"{frame['file']}:{frame['line']}: {frame['code'].strip()}" if frame else ""


def source_of(node: Any) -> str | None:
    """The line of the user's code that asks for an operation, as "model.py:41"; None where torch does not know it."""
    frame = _own_frame(node.meta.get("stack_trace") or "")
    return f"{Path(frame['file']).name}:{frame['line']}" if frame else None


def _own_frame(trace: str) -> re.Match[str] | None:
    torch = str(Path(sys.modules["torch"].__file__ or "").parent)
    frames = list(FRAME.finditer(trace))
    own = [frame for frame in frames if not frame["file"].startswith(torch)] or frames
    return own[-1] if own else None


def layer_of(node: Any) -> tuple[str, str]:
    """The dotted name of the layer that an operation of a captured graph belongs to, and the layer's class."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    name, kind = stack[-1] if stack else ("", "")
    return name.removeprefix("module").lstrip("."), getattr(kind, "__name__", str(kind).rpartition(".")[2])


def not_covered(operation: str, node: Any, why: str = "it has no counterpart here") -> NotCovered:
    """The refusal of an operation."""
    name, kind = layer_of(node)
    layer = f"layer {name} ({kind})" if name else "the model itself"
    place = ", ".join(filter(None, (layer, line_of(node.meta.get("stack_trace") or ""))))
    return NotCovered(f"{operation} is not covered ({why}); it is asked for by {place}")
