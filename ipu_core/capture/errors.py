"""What is refused when a module is captured, in words: the operation, the layer and the line of the user's code."""

from __future__ import annotations

import re
from typing import Any

from ipu_core.errors import NotCovered

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \w+\n +(?P<code>.*)')


def layer_of(node: Any) -> tuple[str, str]:
    """The dotted name of the layer that an operation of a captured graph belongs to, and the layer's class."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    name, kind = stack[-1] if stack else ("", "")
    return name.removeprefix("module").lstrip("."), getattr(kind, "__name__", str(kind).rpartition(".")[2])


def place_of(node: Any) -> str:
    """Where in the user's model an operation comes from: the layer, and the last line that is not torch's own."""
    name, kind = layer_of(node)
    where = f"layer {name} ({kind})" if name else "the model itself"
    frames = list(FRAME.finditer(node.meta.get("stack_trace") or ""))
    own = [frame for frame in frames if "/torch/" not in frame["file"]] or frames
    return f"{where}, {own[-1]['file']}:{own[-1]['line']}: {own[-1]['code'].strip()}" if own else where


def not_covered(operation: str, node: Any, why: str = "it has no counterpart here") -> NotCovered:
    """The refusal of an operation."""
    return NotCovered(f"{operation} is not covered ({why}); it is asked for by {place_of(node)}")
