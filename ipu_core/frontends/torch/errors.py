"""What is refused when a module is captured, in words: the operation, the layer and the line of the user's code."""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from ipu_core.errors import NotCovered

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)(?:\n +(?!File ")(?P<code>\S.*))?')
INSTALLED = ("/site-packages/", "/dist-packages/")
EMULATE = "ipu_core.emulate trains the module as torch does"
"""The end of refusals: what trains such a module."""


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
    # frames from the inside out: the user's, else a layer of another package (transformers, timm), else any
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
    # the wrapper's own frame alone: what is called there is the loss
    itself = "the loss" if len(node.meta.get("nn_module_stack", {})) == 1 else "the model itself"
    layer = f"layer {name} ({kind})" if name else itself
    place = ", ".join(filter(None, (layer, line_of(node.meta.get("stack_trace") or ""))))
    return NotCovered(f"{operation} is not covered ({why}); it is asked for by {place}; {EMULATE}")


class Said(ValueError):
    """A refusal of our own within a module's call, which is passed on as it is."""


DISTRIBUTIONS = "torch.distributions looks at the numbers that it is given: validate_args=False leaves that out"
CURES = (
    (re.compile(r"data-dependent|unbacked|guard on|GuardOn|Eq\(u\d+|u\d+ [<>=]", re.IGNORECASE),
     "it decides by numbers in tensors, which are not known then: torch.where takes the place of if, and numbers of "
     "the module's own that of x.item()"),
    (re.compile(r"positional arguments? but \d+ (?:were|was) given"),
     "its forward takes fewer arguments than the batch has: where the last is the target, give a loss such as "
     "loss=torch.nn.functional.cross_entropy"),
    (re.compile(r"unexpected keyword argument"),
     "its forward has no argument of a name that the batch has: leave that out of the batch, or give a loss= that "
     "takes it, where it is the last"),
    (re.compile(r"missing \d+ required positional argument"), "its forward takes more arguments than the batch has"),
    (re.compile(r"'dict' object has no attribute|must be Tensor, not dict"),
     "a mapping in a tuple is one of its arguments: from_torch(module, batch) and model(**batch) give its parts by "
     "name"),
    (re.compile(r"\.numpy\(\) is not supported"),
     "NumPy takes numbers, which are not known then: operations of torch take its place"),
)  # fmt: skip
"""Patterns in torch's messages, and for each what to do, in one sentence."""


def in_words(name: str, error: Exception, place: str) -> str:
    """The message for a module that torch.export refuses: one sentence with a cure, and the line of the user's code."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    # torch's words name no cause here: it is told by the file that raised
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    of_distribution = any("/torch/distributions/" in file for file in (*files, str(error)))
    known = DISTRIBUTIONS if of_distribution else next((cure for words, cure in CURES if words.search(line)), "")
    if "argument" in line and known:  # of the caller's: emulate would fail at it, too
        return f"{name} cannot be captured: {known} ({line})"
    said = f"{name} cannot be captured: {known}" if known else f"torch.export cannot capture {name}: {line}"
    return "; ".join(filter(None, (said, place, EMULATE)))
