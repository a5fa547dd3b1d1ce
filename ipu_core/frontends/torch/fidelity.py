"""Whether a captured module computes what torch computes: every result and gradient beside torch's own, in float32.

Both are held against torch in float64. Float32 rounding explains a distance of several times torch's own, and of a few
units in the last place of the largest number there. A gradient that is farther may be at a kink (an activation so near
to 0 that rounding moves it across): torch is asked again with its inputs moved a little, and its own distance is the
largest of all. What is farther still is told with its layer and line.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.frontends.torch.errors import layer_of, line_of
from ipu_core.frontends.torch.interpret import CHECKS, REGIONS, name_of
from ipu_core.frontends.torch.operations.noise import MIDDLES, middle
from ipu_core.frontends.torch.operations.recurrent import alpha_factor
from ipu_core.frontends.torch.segments import in_segments
from ipu_core.ir.block import Array

TIMES = 8.0
"""How many times as far from float64 as torch's own float32 results may be."""
ROUNDING = 2.0**-19
"""The distance that rounding explains in any case, relative to the largest number: 16 units in the last place."""
SHARE = 1e-7
"""The same of a gradient, relative to the largest of all parameters: terms that cancel leave no size of their own."""
MOVED = 2.0**-21
"""The relative change of moved inputs, which shows how far gradients jump at kinks."""
DRAWING = {"dropout": "p", "feature_dropout": "p", "alpha_dropout": "p", "feature_alpha_dropout": "p"}
"""Operations that draw, and the argument of each that is the probability."""
INNER = ("dropout", "dropout_p")
"""Arguments of other operations that are a probability to draw by."""


class Distance(NamedTuple):
    """How far a result, or a gradient, is from torch in float64.

    Attributes:
        name: of the layer, or of the parameter.
        kind: of the layer.
        operation: aten's, or "gradient".
        line: of the user's code.
        ours: the largest distance of any element, in float32.
        torch: that of torch's own float32.
        allowed: what float32 rounding explains.
        size: the largest magnitude of the result.
    """

    name: str
    kind: str
    operation: str
    line: str
    ours: float
    torch: float
    allowed: float
    size: float

    @property
    def explained(self) -> bool:
        """Whether float32 rounding explains it."""
        return self.ours <= self.allowed

    def __str__(self) -> str:
        place = f"{self.name or 'the model itself'}{f' ({self.kind})' if self.kind else ''}"
        line = f", {self.line}" if self.line else ""
        figures = f"{self.ours:.3g} from float64 (torch {self.torch:.3g}, explained {self.allowed:.3g})"
        return f"{self.operation} of {place}{line}: {figures}, largest number {self.size:.3g}"


class Fidelity(NamedTuple):
    """What `TorchModel.check` found.

    Attributes:
        results: of every operation, in the order of the module.
        gradients: of every parameter, from the last layers to the first; none for inference.
        module: what a call of the module itself gave, beside its graph: the loss or the outputs, and the gradients.
        unseen: what this did not look at, in words.
    """

    results: tuple[Distance, ...]
    gradients: tuple[Distance, ...]
    module: tuple[Distance, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def first(self) -> Distance | None:
        """The first that float32 rounding does not explain; None: it explains all."""
        return next((each for each in (*self.results, *self.gradients, *self.module) if not each.explained), None)

    def __str__(self) -> str:
        count = f"{len(self.results)} results and {len(self.gradients)} gradients"
        unseen = "".join(f"; not seen: {each}" for each in self.unseen)
        if self.first is None:
            own = f", and {len(self.module)} of the module itself" if self.module else ""
            return f"all {count}{own} are as near to float64 as float32 rounding explains{unseen}"
        every = (*self.results, *self.gradients, *self.module)
        wrong = sum(not each.explained for each in every)
        words = f"{wrong} of {len(every)} ({count}) are farther from torch than float32 rounding explains"
        return f"{words}; the first: {self.first}{unseen}"


def without_drawing(torch: Any, graph: Any) -> Any:
    """A copy of a captured graph in which dropout leaves everything as it is, and a draw gives its probability."""
    # the captured graph goes on to draw in training
    quiet = copy.deepcopy(graph)
    for node in nodes_of(quiet):
        _quieten(torch, node)
    return quiet


def nodes_of(graph: Any) -> list[Any]:
    """The nodes of a captured graph and of those within it."""
    return [node for part in graph.modules() if hasattr(part, "graph") for node in part.graph.nodes]


def drawn(node: Any) -> bool:
    """Whether an operation draws something."""
    if not hasattr(node.target, "_schema"):
        return False
    rates = [given for argument, given in _settings(node) if argument in (*INNER, DRAWING.get(name_of(node)))]
    return name_of(node) in ("bernoulli", "bernoulli_", *MIDDLES) or any(rates)


def _settings(node: Any) -> list[tuple[str, Any]]:
    """The arguments of an operation by name."""
    return [*zip((x.name for x in node.target._schema.arguments), node.args, strict=False), *node.kwargs.items()]


def _quieten(torch: Any, node: Any) -> None:
    """Changes a node so that it draws nothing."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None and name_of(node) == "bernoulli_":
        # the probability in place of the draw: a mask that is divided by it keeps all
        node.target, node.kwargs = torch.ops.aten.fill_.Scalar, {}
    elif schema is not None and name_of(node) == "bernoulli" and len(node.args) > 1:
        node.target, node.kwargs = torch.ops.aten.full_like.default, {}
    elif schema is not None and name_of(node).endswith("alpha_dropout") and 0 < node.args[1] < 1 and node.args[2]:
        # a shift by its mean: what is left of it where every mask is its probability
        node.target = torch.ops.aten.mul.Scalar
        node.args, node.kwargs = (node.args[0], (1 - node.args[1]) * alpha_factor(node.args[1])), {}
    elif schema is not None and name_of(node) in MIDDLES:
        _in_the_middle(torch, node)
    for position, argument in enumerate(schema.arguments if schema else ()):
        if argument.name not in (*INNER, DRAWING.get(name_of(node))):
            continue
        if position < len(node.args):
            node.update_arg(position, 0.0)
        elif argument.name in node.kwargs:
            node.update_kwarg(argument.name, 0.0)


def _in_the_middle(torch: Any, node: Any) -> None:
    """Changes a node that draws numbers so that it gives their mean."""
    name, aten = name_of(node), torch.ops.aten
    number = middle(name, node.args if name == "randint" else node.args[1:])
    if name.endswith("_"):
        node.target, node.args, node.kwargs = aten.fill_.Scalar, (node.args[0], number), {}
    elif name.endswith("_like"):
        node.target, node.args, node.kwargs = aten.full_like.default, (node.args[0], number), {}
    else:
        shape = next(list(x) for x in node.args if isinstance(x, list | tuple))
        node.target, node.args, node.kwargs = aten.full.default, (shape, number), {}


class Found(NamedTuple):
    """What a run gave: results by operation, gradients by parameter, outputs (or the loss), and buffers after it."""

    results: Mapping[Any, Array]
    gradients: Mapping[str, Array]
    outputs: Sequence[Array] = ()
    buffers: Mapping[Any, Array] = {}  # nothing writes to it

    def copied(self) -> Found:
        """The same in arrays of its own."""
        copies = ({name: array.copy() for name, array in table.items()} for table in (self.gradients, self.buffers))
        gradients, buffers = copies
        return Found(self.results, gradients, [array.copy() for array in self.outputs], buffers)


def by_torch(
    torch: Any, graph: Any, inputs: Sequence[Any], names: Sequence[str | None], *, double: bool, watched: bool = True,
    moved: int | None = None,
) -> Found:  # fmt: skip
    """Torch's own results for a graph whose result is a loss, or of one without gradients.

    Args:
        torch: the module.
        graph: a captured graph.
        inputs: its tensors.
        names: for every input the parameter that it is; None: none that is trained.
        double: in float64 in place of float32.
        watched: whether the results of operations are kept.
        moved: the seed of factors near 1 that all inputs are multiplied by; None: they are as they are.
    """
    wide = torch.float64 if double else torch.float32
    given = [x.detach().clone().to(wide) if x.is_floating_point() else x.detach().clone() for x in inputs]
    if moved is not None:
        generator = torch.Generator().manual_seed(moved)
        for x in given:
            if x.is_floating_point():
                x.mul_(1 + MOVED * (2 * torch.rand(x.shape, generator=generator, dtype=wide) - 1))
    # by name, so that tied parameters add up their gradients as in the module
    trained = {name: x.requires_grad_() for name, x in zip(names, given, strict=True) if name}
    given = [trained.get(name or "", x) for name, x in zip(names, given, strict=True)]  # tied ones are one tensor
    results: dict[Any, Array] = {}

    class RecordingInterpreter(torch.fx.Interpreter):  # type: ignore[misc]  # torch is not there when types are checked
        def run_node(self, node: Any) -> Any:
            if node.op == "call_function" and (name := name_of(node)) in (*CHECKS, *REGIONS):
                return None if name in CHECKS else self.region(name, *self.fetch_args_kwargs_from_env(node)[0])
            result = super().run_node(node)
            if double:
                result = torch.utils._pytree.tree_map_only(torch.Tensor, _widened, result)
            if watched and node.op == "call_function" and is_float(result):
                # copied: a later operation may write in place to the same memory
                results[node] = _numbers(result).copy()
            return result

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if double:
                # a graph holds dtypes as constants: casts to float32 would end the run in float64
                args, kwargs = torch.utils._pytree.tree_map_only(torch.dtype, _wider, (args, kwargs))
            return super().call_function(target, args, kwargs)

        def region(self, name: str, *args: Any) -> Any:
            inner, *operands = args[REGIONS[name] :]
            # no_grad within the module holds for its region alone
            constant = name == "wrap_with_set_grad_enabled" and not args[0]
            with torch.set_grad_enabled(torch.is_grad_enabled() and not constant):
                return RecordingInterpreter(inner).run(*operands)

    def _wider(dtype: Any) -> Any:
        return torch.float64 if dtype == torch.float32 else dtype

    def _widened(tensor: Any) -> Any:
        return tensor.double() if tensor.dtype == torch.float32 else tensor

    with torch.set_grad_enabled(bool(trained)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = RecordingInterpreter(graph)
        # results that are kept take the memory in any case
        made = in_segments(torch, interpreter, given) if trained and not watched else interpreter.run(*given)
        if trained and made[0].requires_grad:
            made[0].backward()
    gradients = {name: _numbers(x.grad) for name, x in trained.items() if x.grad is not None}
    left = {at: _numbers(x) for at, x in enumerate(given) if not names[at]}
    return Found(results, gradients, [*map(_numbers, made)], left)


def _numbers(tensor: Any) -> Array:
    """The numbers of a tensor, those of halves as float32 and integers as float64."""
    narrow = tensor.is_floating_point() and "float64" not in str(tensor.dtype)
    return np.asarray((tensor.float() if narrow else tensor.double()).detach().numpy())


def is_float(value: Any) -> bool:
    """Whether a result is one tensor of floats."""
    return hasattr(value, "is_floating_point") and bool(value.is_floating_point())


def compared(ours: Found, singles: Sequence[Found], exact: Found) -> Fidelity:
    """Our results beside torch's in float32, all held against torch's in float64.

    Args:
        ours: a run of ours.
        singles: of torch's: one, and more of inputs that are moved a little: how far gradients jump, where sums cancel.
        exact: torch's in float64.
    """
    size = _size(exact)
    results = [
        _distance(*layer_of(node), f"aten.{name_of(node)}", line_of(node.meta.get("stack_trace") or ""),
                  ours.results[node], [one.results[node] for one in singles], wanted, 0.0)
        for node, wanted in exact.results.items()
        if node in ours.results
    ]  # fmt: skip
    gradients = [
        _distance(
            name,
            "",
            "gradient",
            "",
            ours.gradients[name],
            [one.gradients[name] for one in singles],
            wanted,
            SHARE * size,
        )
        for name, wanted in reversed(list(exact.gradients.items()))
        if name in ours.gradients
    ]
    return Fidelity(tuple(results), tuple(gradients))


def beside(found: Found, singles: Sequence[Found], exact: Found, unit: float = ROUNDING) -> list[Distance]:
    """Outputs, gradients from the last layers to the first, and buffers of a run, as `compared` has results.

    Args:
        found: of a call of the module itself, or ours; gradients that it lacks are 0.
        singles, exact: of the graph by torch, in float32 and in float64.
        unit: what rounding explains, of the largest number.
    """
    kind = "loss" if len(exact.outputs) == 1 and not exact.outputs[0].shape else "output"
    rows = [
        _distance("", "", kind, "", own, [one.outputs[at] for one in singles], exact.outputs[at], 0.0, unit)
        for at, own in enumerate(found.outputs)
    ]
    more = SHARE * _size(exact)
    # from the last layers on: a fault in a backward shows first where gradients begin
    for name, wanted in reversed(list(exact.gradients.items())):
        own, theirs = found.gradients.get(name, np.zeros_like(wanted)), [one.gradients[name] for one in singles]
        rows.append(_distance(name, "", "gradient", "", own, theirs, wanted, more, unit))
    more = SHARE * max((largest_of(x) for x in found.buffers.values()), default=0.0)  # means are of larger numbers
    for name, own in found.buffers.items():
        rows.append(
            _distance(
                name, "", "buffer", "", own, [one.buffers[name] for one in singles], exact.buffers[name], more, unit
            )
        )
    return rows


def _size(exact: Found) -> float:
    return max((largest_of(gradient) for gradient in exact.gradients.values()), default=0.0)


def _distance(
    name: str, kind: str, operation: str, line: str, ours: Array, singles: Sequence[Array], exact: Array, more: float,
    unit: float = ROUNDING,
) -> Distance:  # fmt: skip
    finite = np.isfinite(exact)
    # infinities and NaN have no distance: they must stand in the same places
    same = np.array_equal(ours[~finite], exact[~finite], equal_nan=True)
    size = largest_of(exact)
    # the first run has the inputs as they are, the others moved ones
    theirs, *moved = (largest_of(single[finite] - exact[finite]) for single in singles)
    # results do not jump when inputs move, gradients do (relu, max): a wrong result may not hide behind moved ones
    times = TIMES if operation == "gradient" else 1.0
    explained = max(TIMES * theirs, times * max(moved, default=0.0)) + unit * size + more
    far = float(np.abs(ours[finite] - exact[finite]).max(initial=0.0)) if same else np.inf
    return Distance(name, kind, operation, line, far, theirs, explained, size)


def largest_of(array: Array) -> float:
    """The largest magnitude of the finite elements; 0 without one."""
    largest = float(max(array.max(initial=0.0), -array.min(initial=0.0)))
    # one infinite element would explain any distance of all others
    return largest if np.isfinite(largest) else float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
