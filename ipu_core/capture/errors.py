"""What is refused when a module is captured, in words: the operation, the layer and the line of the user's code."""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from ipu_core.errors import NotCovered

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)(?:\n +(?!File ")(?P<code>\S.*))?')
INSTALLED = ("/site-packages/", "/dist-packages/")


def line_of(trace: str) -> str:
    """The line of the user's code in a stack's text, as "file:line: code"; "" where there is none.

    Code that was made by `exec` has no lines to show: the place is told, and the function.
    """
    frame = _own_frame(trace)
    if frame is None:
        return ""
    return f"{frame['file']}:{frame['line']}: {(frame['code'] or 'in ' + frame['function']).strip()}"


def source_of(node: Any) -> str | None:
    """The line of the user's code that asks for an operation, as "model.py:41"; None where torch does not know it."""
    frame = _own_frame(node.meta.get("stack_trace") or "")
    return f"{Path(frame['file']).name}:{frame['line']}" if frame else None


def _own_frame(trace: str) -> re.Match[str] | None:
    """The innermost frame of the user's; without one that of the innermost layer of another package than torch."""
    here, torch = str(Path(__file__).parent), str(Path(sys.modules["torch"].__file__ or "").parent)
    standard = sysconfig.get_path("stdlib")
    frames = [frame for frame in FRAME.finditer(trace) if not frame["file"].startswith((here, torch, "<frozen"))]
    own = [f for f in frames if not f["file"].startswith(standard) and not any(p in f["file"] for p in INSTALLED)]
    layers = [frame for frame in frames if frame["function"] == "forward"]
    return next((group[-1] for group in (own, layers, frames) if group), None)


def layer_of(node: Any) -> tuple[str, str]:
    """The dotted name of the layer that an operation of a captured graph belongs to, and the layer's class."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    name, kind = stack[-1] if stack else ("", "")
    return name.removeprefix("module").lstrip("."), getattr(kind, "__name__", str(kind).rpartition(".")[2])


def not_covered(operation: str, node: Any, why: str = "it has no counterpart here") -> NotCovered:
    """The refusal of an operation."""
    name, kind = layer_of(node)
    itself = "the loss" if len(node.meta.get("nn_module_stack", {})) == 1 else "the model itself"
    layer = f"layer {name} ({kind})" if name else itself
    place = ", ".join(filter(None, (layer, line_of(node.meta.get("stack_trace") or ""))))
    return NotCovered(f"{operation} is not covered ({why}); it is asked for by {place}")
