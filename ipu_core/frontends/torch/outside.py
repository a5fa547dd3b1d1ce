"""What a module does beside its operations and no captured graph holds: seen while it is captured, and refused.

Backwards of its own, hooks on gradients, saved tensors that are packed, numbers that Python or NumPy draw.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from ipu_core.errors import NotCovered
from ipu_core.frontends.torch.derivative import is_derivative
from ipu_core.frontends.torch.errors import EMULATE, INSTALLED, line_of

PREFIX = "module."
"""The prefix that the wrapper with the loss puts before a module's own names."""
POST = "register_post_accumulate_grad_hook"


def refusal(what: str, why: str, place: str) -> NotCovered:
    """The refusal of something that is no operation."""
    return NotCovered(f"{what} is not covered ({why}); {place}; {EMULATE}")


def refuse_hooks(module: Any) -> None:
    """Refuses hooks on gradients that layers or parameters have.

    Raises:
        NotCovered: the first of them, with its layer and where it is written.
    """
    for name, part in module.named_modules():
        for kind, hooks in (("backward", part._backward_hooks), ("backward pre", part._backward_pre_hooks)):
            for hook in hooks.values():
                raise _of_hook(f"a {kind} hook", hook, _layer(name, part))
    for name, parameter in module.named_parameters():
        # older versions of torch have no hooks after accumulation
        for hooks in (parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None)):
            for hook in (hooks or {}).values():
                raise _of_hook("a gradient's hook", hook, f"the parameter {name.removeprefix(PREFIX)}")


def _layer(name: str, part: Any) -> str:
    own = name.removeprefix(PREFIX)
    return f"layer {own} ({type(part).__name__})" if own != PREFIX[:-1] else "the model itself"


def _of_hook(what: str, hook: Any, owner: str) -> NotCovered:
    # functools.partial has no code of its own
    function = getattr(hook, "func", hook)
    code = getattr(function, "__code__", None)
    place = f", {code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""
    return refusal(what, "gradients would pass it unseen", f"{owner} has it{place}")


@contextlib.contextmanager
def refusing(torch: Any, module: Any) -> Iterator[None]:
    """While a module is captured: what takes part in the backward pass and leaves nothing in the graph is refused.

    Checkpoints that run their function without gradients (`use_reentrant=True`) run it with them. An autograd.Function
    whose backward is the derivative of its forward, for random inputs and gradients of several sizes, is captured.

    Raises:
        NotCovered: the first such thing, at the end, with its layer and line.
    """
    found: list[NotCovered] = []
    own: dict[Any, tuple[Sequence[Any], str]] = {}
    base, tensor = torch.autograd.Function, torch.Tensor
    saved = torch.autograd.graph.saved_tensors_hooks
    apply, init = base.__dict__["apply"], saved.__init__

    def note(what: str, why: str) -> None:
        if not found:
            found.append(refusal(what, why, f"it is asked for by {_place(module, _stack())}"))

    def applied(kind: Any, *args: Any, **kwargs: Any) -> Any:
        if kind is torch.utils.checkpoint.CheckpointFunction:
            function, _, *given = args
            if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in given):
                note("a checkpoint with use_reentrant=True", "no input has a gradient: torch gives what is in it none")
            # run at once: what a reentrant checkpoint holds would have no gradient in the graph
            return function(*given)
        if not kind.__module__.startswith("torch."):
            # judged at the end, outside of the capture, where operations run on numbers
            own.setdefault(kind, (args, _place(module, _stack())))
        return apply.__get__(None, kind)(*args, **kwargs)

    def hooked(original: Callable[..., Any]) -> Callable[..., Any]:
        def register(x: Any, hook: Any) -> Any:
            note("a gradient's hook", "gradients would pass it unseen")
            return original(x, hook)

        return register

    def packing(self: Any, *args: Any, **kwargs: Any) -> None:
        # torch's own checkpoints use such hooks for memory alone, and change no gradient
        if type(self) is saved or not type(self).__module__.startswith("torch."):
            note("a hook on saved tensors", "gradients would take them as they are")
        init(self, *args, **kwargs)

    # hooks on tensors are set while the module runs, so only the call itself shows them
    hooks = {name: getattr(tensor, name) for name in ("register_hook", POST)}
    base.apply, saved.__init__ = classmethod(applied), packing
    for name, original in hooks.items():
        setattr(tensor, name, hooked(original))
    try:
        yield
    finally:
        base.apply, saved.__init__ = apply, init
        for name, original in hooks.items():
            setattr(tensor, name, original)
        for kind, (args, place) in own.items():
            if not found and not is_derivative(torch, kind, args):
                what, why = f"the backward of {kind.__qualname__}", "it is not the derivative of its forward"
                found.append(refusal(what, why, f"it is asked for by {place}"))
        if found:
            raise found[0] from None


class Where(NamedTuple):
    """A frame of Python, the line it was at when it was noted, and the id of its `self`."""

    frame: FrameType
    line: int
    owner: int


def _stack() -> list[Where]:
    """The frames of Python now, outermost first, without those of this file."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            found.append(Where(frame, frame.f_lineno, id(frame.f_locals.get("self"))))
        frame = frame.f_back
    return found[::-1]


def _place(module: Any, stack: Sequence[Where]) -> str:
    """The innermost layer of a stack, and the line of the user's code."""
    names = {id(part): _layer(name, part) for name, part in module.named_modules() if name}
    layers = [names[where.owner] for where in stack if where.owner in names]
    lines = traceback.StackSummary.extract((where.frame, where.line) for where in stack)
    return ", ".join(filter(None, (layers[-1] if layers else "the model itself", line_of("".join(lines.format())))))


class Source(NamedTuple):
    """A generator of random numbers that torch does not know."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


def sources(module: Any) -> list[Source]:
    """Python's and NumPy's generators, and those that layers hold."""
    found = [
        Source("Python's random", random.getstate, random.setstate),
        Source("NumPy's random", functools.partial(np.random.get_state, legacy=False), np.random.set_state),
    ]
    for part in module.modules():
        for value in list(vars(part).values()):
            if isinstance(value, random.Random):
                found.append(Source("Python's random", value.getstate, value.setstate))
            elif isinstance(value, np.random.Generator):
                found.append(_of_bits(value.bit_generator))
            elif isinstance(value, np.random.RandomState):
                found.append(
                    Source("NumPy's random", functools.partial(value.get_state, legacy=False), value.set_state)
                )
    return found


def _of_bits(bits: Any) -> Source:
    return Source("NumPy's random", lambda: copy.deepcopy(bits.state), lambda state: setattr(bits, "state", state))


def same_state(one: Any, other: Any) -> bool:
    """Whether two states of a generator are the same."""
    if isinstance(one, dict):
        return all(same_state(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return all(map(same_state, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def place_of_change(module: Any, call: Callable[[], Any], read: Callable[[], Any]) -> str:
    """The layer and line of the first line of Python, in a call of a module, after which something is another.

    Args:
        module: whose layers are named.
        call: runs the module; what it raises is left out.
        read: what is looked at.
    """
    begin, before, found = read(), list[Where](), list[str]()

    def at_line(frame: FrameType, event: str, _: Any) -> Any:
        # told at the next line: the change happened on the one before
        if not found and not same_state(begin, read()):
            found.append(_place(module, before))
        before[:] = _stack()
        return at_line

    def at_call(frame: FrameType, event: str, _: Any) -> Any:
        return at_line if not found and _is_own(frame.f_code.co_filename) else None

    # a debugger's or coverage's, which is put back
    tracer = sys.gettrace()
    sys.settrace(at_call)
    try:
        # the line is wanted, not the result; the refusal that follows says what happened
        with contextlib.suppress(Exception):
            call()
    finally:
        sys.settrace(tracer)
    return found[0] if found else "the model itself"


def _is_own(file: str) -> bool:
    """Whether a file is neither torch's, nor Python's, nor of this package."""
    torch = str(Path(sys.modules["torch"].__file__ or "").parent)
    if file.startswith((torch, str(Path(__file__).parent), "<frozen")):
        return False
    return any(p in file for p in INSTALLED) or not file.startswith(sysconfig.get_path("stdlib"))
