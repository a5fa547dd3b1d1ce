"""A module captured by torch.export, before any decomposition: its graph, and what its inputs are."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from ipu_core.frontends.torch.batch import BatchLayout, bound
from ipu_core.frontends.torch.classes import Remake, remake_of
from ipu_core.frontends.torch.errors import Said, in_words, line_of
from ipu_core.frontends.torch.kept import in_mode, undisturbed
from ipu_core.frontends.torch.outside import PREFIX, place_of_change, refusal, refuse_hooks, refusing, sources
from ipu_core.frontends.torch.stand_ins import standing_in
from ipu_core.ir.pytree import LEAF, PyTree, flatten, paths
from lowprec.checks import shown


@dataclass(frozen=True)
class Exported:
    """A captured graph.

    Attributes:
        graph: the graph module.
        inputs: for every input of the graph what it is: ("parameter", dotted name), ("buffer", name), ("constant",
            name) or ("batch", position of the leaf).
        tensors: parameters, buffers and constants by name, as they were.
        batch: how the batch is nested, and the settings in it.
        shapes: of the batch's leaves.
        result: how what it gives is nested, plain.
        remake: makes of what the module gives, plain, its own classes.
        loss: of the output and the last input; None: the module gives it.
        training: the mode it was captured in.
        kept: whether all that the module gives stands behind its loss.
        wide: whether the module is one of float64.
        idle: parameters that the loss has no gradient for in torch, whose optimizers leave them as they are.
    """

    graph: Any
    inputs: tuple[tuple[str, Any], ...]
    tensors: Mapping[str, Any]
    batch: BatchLayout
    shapes: tuple[tuple[int, ...], ...]
    result: PyTree
    remake: Remake
    loss: Callable[..., Any] | None
    training: bool
    kept: bool = False
    wide: bool = False
    idle: frozenset[str] = frozenset()


def export(
    torch: Any, module: Any, batch: Any, loss: Callable[..., Any] | None, *, training: bool, outputs: bool,
    kept: bool = False, like: Any = None,
) -> Exported:  # fmt: skip
    """Captures a module with its loss.

    Args:
        torch: the module torch.
        module: a `torch.nn.Module`.
        batch: example inputs, see `from_torch`.
        loss: of the output and the last input; None: the module gives it.
        training: whether the module is captured as it is in training.
        outputs: whether without a loss all that the module gives is captured, not a loss that is in it.
        kept: whether all that the module gives is captured behind its loss.
        like: a batch nested alike whose classes the module is called with; None: the batch's own.

    Raises:
        ValueError: inputs that are no tensors or arrays; torch.export cannot capture the module.
        NotCovered: what takes part in training and is no operation, see `outside`.
    """
    _, whole, leaves = bound(batch, like)
    names = [name for number, name in enumerate(paths(whole.tree)) if number not in whole.settings]
    for name, value in whole.names().items():
        if name.rpartition(".")[2].isdecimal():  # settings have names
            raise ValueError(f"example input {name} must be a tensor or an array, not {value!r}")
    wide = is_wide(torch, modules_of(torch, module, loss))
    tensors = [as_tensor(torch, leaf, name, wide=wide) for leaf, name in zip(leaves, names, strict=True)]
    results, assigned, idle = list[Result](), list[Held](), set[str]()
    wrapper = with_loss(torch, module, whole, loss, results if outputs or kept else None, assigned, idle, kept=kept)
    if not outputs:
        refuse_hooks(wrapper)
    with in_mode(modules_of(torch, module, loss), training), undisturbed(torch, wrapper, numbers=False) as before:
        with contextlib.nullcontext() if outputs else refusing(torch, wrapper):
            program = _program(torch, wrapper, tensors)
        if before.drawn:
            # only now is the line looked for: tracing every line of Python is slow
            states = [source.read for source in sources(wrapper)]
            place = _line_of_change(torch, wrapper, tensors, lambda: [read() for read in states])
            raise refusal(before.drawn, "the number drawn would be the same in every step", place)
        for held in [] if outputs else assigned:
            # an attribute that nothing reads is free to change
            if held.buffer or PREFIX + held.name in program.constants:
                place = _line_of_change(torch, wrapper, tensors, functools.partial(_identity, held))
                why = "another tensor takes its place, and no step would see it; copy_() writes to a buffer"
                raise refusal(f"an assignment to {held.name}", why, place)
    kinds = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant", "USER_INPUT": "batch"}
    specs, inputs, position = program.graph_signature.input_specs, list[tuple[str, Any]](), 0
    for spec in specs:
        kind = kinds.get(spec.kind.name, "constant")
        inputs.append((kind, position if kind == "batch" else spec.target.removeprefix(PREFIX)))
        position += kind == "batch"
    known = {**program.state_dict, **program.constants}
    values = {name.removeprefix(PREFIX): tensor for name, tensor in known.items()}
    shapes = tuple(tuple(t.shape) for t in tensors)
    result, remake = results[-1] if results else Result(LEAF, remake_of(None))
    unused = frozenset() if outputs else frozenset(idle)
    return Exported(program.graph_module, tuple(inputs), values, whole, shapes, result, remake, loss, training, kept,
                    wide, unused)  # fmt: skip


class Result(NamedTuple):
    """How what a module gives is nested, and what makes of it, plain, its own classes."""

    tree: PyTree
    remake: Remake


def modules_of(torch: Any, module: Any, loss: Any) -> list[Any]:
    """A module, and its loss where that is one."""
    return [module, *([loss] if isinstance(loss, torch.nn.Module) else [])]


def _program(torch: Any, wrapper: Any, tensors: Sequence[Any]) -> Any:
    """The program that torch.export makes of a module with its loss.

    Raises:
        ValueError: it cannot capture it.
    """
    try:
        with warnings.catch_warnings(), _quiet(torch), _whole_stacks(torch), standing_in(torch):
            # torch's own of its internals, which name no line of the user's
            warnings.simplefilter("ignore")
            return torch.export.export(wrapper, tuple(tensors), strict=False)
    except Said:
        raise
    except Exception as error:
        raised = traceback.extract_tb(error.__traceback__)
        # some errors bring the stack of the user's code in their text, others in their traceback
        place = line_of(str(error)) or line_of("".join(type(raised).from_list(_within(raised)).format()))
        raise ValueError(in_words(type(wrapper.module).__name__, error, place)) from None


@contextlib.contextmanager
def _quiet(torch: Any) -> Iterator[None]:
    """Without the graph that torch prints where a capture fails, and without two faster ways of Transformer layers.

    One asks whether a mask is the causal one, and numbers have no values here; in eval mode the other does all in one
    operation.
    """
    layers = torch.backends.mha
    fast = layers.get_fastpath_enabled()
    layers.set_fastpath_enabled(False)
    transformer, name = torch.nn.modules.transformer, "_detect_is_causal_mask"
    detect, disabled = getattr(transformer, name, None), logging.root.manager.disable
    if detect is not None:
        setattr(transformer, name, lambda mask, is_causal=None, size=None: bool(is_causal))
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
        layers.set_fastpath_enabled(fast)
        if detect is not None:
            setattr(transformer, name, detect)


@contextlib.contextmanager
def _whole_stacks(torch: Any) -> Iterator[None]:
    """A context in which captured operations keep their whole stack; torch keeps frames named forward alone."""
    tracer, name = torch.fx.proxy.TracerBase, "_filter_traceback_frames"
    kept = getattr(tracer, name, None)  # older versions have it otherwise
    if kept is not None:
        setattr(tracer, name, lambda self, frames: type(frames).from_list(_within(frames)))
    try:
        yield
    finally:
        if kept is not None:
            setattr(tracer, name, kept)


def _within(frames: Sequence[Any]) -> list[Any]:
    """The frames from the one that calls the module on."""
    first = next((at for at, frame in enumerate(frames) if (frame.filename, frame.name) == (__file__, "forward")), None)
    return [] if first is None else list(frames[first + 1 :])


def is_wide(torch: Any, modules: Sequence[Any]) -> bool:
    """Whether the parameters of modules are of float64.

    Raises:
        ValueError: some are.
    """
    found = {x.dtype == torch.float64 for one in modules for x in one.parameters() if x.is_floating_point()}
    if len(found) > 1:
        raise ValueError(
            f"{type(modules[0]).__name__} has parameters of float64 and of float32: module.double() is captured whole, "
            "for precision='float64', and module.float() for all others"
        )
    return found == {True}


def as_tensor(torch: Any, leaf: Any, name: str, *, wide: bool) -> Any:
    """An example input as a tensor: floats are float32, or float64, integers int64, as torch's layers take them.

    Raises:
        ValueError: neither a tensor nor an array.
    """
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        cure = ": next(iter(loader)) is a batch" if isinstance(leaf, Iterable) and hasattr(leaf, "dataset") else ""
        raise ValueError(f"example input {name or '0'} must be a tensor or an array, not {shown(leaf)}{cure}")
    tensor = torch.as_tensor(leaf).detach()
    if tensor.layout == torch.strided:
        # an axis that the example repeats may hold different numbers in the next batch
        tensor = tensor.contiguous()
    if tensor.is_floating_point():
        return tensor.double() if wide else tensor.float()
    return tensor if tensor.dtype == torch.bool else tensor.long()


def dtype_of(tensor: Any) -> Any:
    """The NumPy dtype that a tensor of torch has here: float32 (truth values, too), float64 or int32."""
    if "float64" in str(tensor.dtype):
        return np.float64
    return np.float32 if "float" in str(tensor.dtype) or "bool" in str(tensor.dtype) else np.int32


def with_loss(
    torch: Any, module: Any, whole: BatchLayout, loss: Callable[..., Any] | None, results: list[Result] | None,
    assigned: list[Held] | None = None, idle: set[str] | None = None, *, kept: bool = False,
) -> Any:  # fmt: skip
    """The module whose output is the loss, with the leaves of the batch as its arguments.

    With a list of results and without a loss its output is the tensors of the module's own, and their tree is appended;
    behind the loss among them where they are kept.
    A list `assigned` has the tensors of layers in whose place the last call put others, a set `idle` the parameters
    that its loss has no gradient for.
    """

    class WithLoss(torch.nn.Module):  # type: ignore[misc]  # torch is not there when types are checked
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            if isinstance(loss, torch.nn.Module):
                # registered, so that its parameters and buffers are the graph's
                self.loss = loss

        def forward(self, *leaves: Any) -> Any:
            batch = whole.filled(leaves)
            given, target = (batch, None) if loss is None else _split(batch)
            # torch.export holds buffers by name: one that is replaced, not written to, would stay the first
            before = [] if assigned is None else _held(torch, module)
            output = self.module(**given) if isinstance(given, Mapping) else self.module(*given)
            if assigned is not None:
                assigned[:] = [held for held in before if held.now is not held.tensor]
            if loss is not None or results is None:
                made = _own_loss(output) if loss is None else loss(output, target)
                if idle is not None:
                    idle.update(_idle(self, made))
                return made
            found, nested = flatten(_tensors(torch, output))
            if not found:
                raise Said(f"{type(self.module).__name__} gives no tensor, alone or in tuples, mappings or dataclasses")
            nested = PyTree(tuple, (0, 1), (LEAF, nested)) if kept else nested
            results.append(Result(nested, remake_of(output)))
            if not kept:
                return tuple(found)
            made = marked_loss(output, found)
            if idle is not None:
                idle.update(_idle(self, made))
            return (made, *found)

    return WithLoss()


def _idle(wrapper: Any, loss: Any) -> set[str]:
    """The names of the trainable parameters that the graph of a loss in torch's autograd does not end in."""
    todo, met, leaves = [getattr(loss, "grad_fn", None)], set[Any](), set[int]()
    while todo:
        step = todo.pop()
        if step is None or step in met:
            continue
        met.add(step)
        leaves.add(id(getattr(step, "variable", None)))
        todo += [before for before, _ in step.next_functions]
    named = {name: x for name, x in wrapper.named_parameters(remove_duplicate=False) if x.requires_grad}
    found = {name.removeprefix(PREFIX) for name, x in named.items() if id(x) not in leaves}
    # a loss without a graph tells nothing; the comparison with the module's own gradients looks again
    return found if len(found) < len(named) else set()


def _identity(held: Held) -> int:
    return id(held.now)


class Held(NamedTuple):
    """A tensor that a layer holds, as a buffer or as an attribute."""

    name: str
    table: dict[str, Any]
    tensor: Any
    buffer: bool

    @property
    def now(self) -> Any:
        """The tensor that the layer holds under this name now."""
        return self.table.get(self.name.rpartition(".")[2])


def _held(torch: Any, module: Any) -> list[Held]:
    return [
        Held(".".join(filter(None, (layer, name))), table, tensor, table is part._buffers)
        for layer, part in module.named_modules()
        for table in (part._buffers, vars(part))
        for name, tensor in table.items()
        if isinstance(tensor, torch.Tensor)
    ]


def _line_of_change(torch: Any, wrapper: Any, tensors: Sequence[Any], read: Callable[[], Any]) -> str:
    """Where in a call of the module itself something becomes another, see `place_of_change`."""
    with undisturbed(torch, wrapper, numbers=True):
        return f"it is asked for by {place_of_change(wrapper, lambda: wrapper(*tensors), read)}"


def _split(batch: Any) -> tuple[Any, Any]:
    """All inputs but the last, and the last."""
    if isinstance(batch, Mapping):
        *names, last = batch
        return {name: batch[name] for name in names}, batch[last]
    if not isinstance(batch, Sequence) or len(batch) < 2:
        raise Said("with a loss the example inputs are those of the module and the target: (x, y)")
    return tuple(batch[:-1]), batch[-1]


def _tensors(torch: Any, output: Any) -> Any:
    """What a module gives in plain dicts, tuples and lists of tensors; what is none of these (caches) is left out.

    A class with names, as those of transformers, becomes a dict.
    """
    if is_dataclass(output) and not isinstance(output, type | Mapping):
        output = {field.name: getattr(output, field.name) for field in fields(output)}
    if isinstance(output, Mapping):
        parts = {str(name): _tensors(torch, part) for name, part in output.items()}
        return {name: part for name, part in parts.items() if part is not None}
    if isinstance(output, tuple) and (names := getattr(output, "_fields", None)):
        return _tensors(torch, dict(zip(names, output, strict=True)))
    if isinstance(output, tuple | list):
        return type(output)(_tensors(torch, part) for part in output)
    return output if isinstance(output, torch.Tensor) else None


def _own_loss(output: Any) -> Any:
    """The loss that a module gives: its output, the output's attribute `loss`, or the first of several without axes."""
    if getattr(output, "loss", None) is not None:
        return output.loss
    if not isinstance(output, list | tuple):
        return output
    return next((part for part in output if getattr(part, "shape", None) == ()), output[0])


MARK = "_ipu_core_loss"
"""The attribute of the tensor that a user says is the loss."""


def marked_loss(output: Any, tensors: Sequence[Any]) -> Any:
    """The loss among what a module gives: what is marked, its attribute `loss`, or the only number with gradients.

    Raises:
        Said: there is none, or several.
    """
    marked = [x for x in tensors if getattr(x, MARK, False)]
    if not marked and getattr(output, "loss", None) is not None:
        return output.loss
    found = marked or [x for x in tensors if x.shape == () and x.requires_grad]
    if len(found) == 1:
        return found[0]
    many = f"{len(found)} numbers that have gradients" if found else "no number that has gradients"
    raise Said(f"a module that trains gives one loss, alone or among its outputs, and this one gives {many}: "
               "poptorch.identity_loss(x, reduction) marks the one that is the loss")  # fmt: skip
