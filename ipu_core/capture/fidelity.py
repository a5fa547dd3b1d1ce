"""Whether a captured module computes what torch computes: every result and gradient beside torch's own, in float32.

Both are held against torch in float64. Float32 rounding explains a distance of several times torch's own, and of a few
units in the last place of the largest number there; what is farther is told with its layer and line.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.capture.errors import layer_of, line_of
from ipu_core.capture.interpret import CHECKS, REGIONS, name_of
from ipu_core.ir.block import Array

TIMES = 8.0
"""How much farther than torch's float32 results of ours may be."""
ROUNDING = 2.0**-19
"""What rounding explains beside it, of the largest number: sixteen units in the last place."""
SHARE = 1e-7
"""What rounding explains of a gradient, of the largest one of all parameters: where many cancel nothing is left."""
DRAWING = {"dropout": "p", "feature_dropout": "p", "alpha_dropout": "p", "feature_alpha_dropout": "p"}
"""Operations that draw, by the argument that says how much."""
INNER = ("dropout", "dropout_p")
"""Arguments of other operations that say how much they draw."""


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
    """

    results: tuple[Distance, ...]
    gradients: tuple[Distance, ...]

    @property
    def first(self) -> Distance | None:
        """The first that float32 rounding does not explain; None: it explains all."""
        return next((each for each in (*self.results, *self.gradients) if not each.explained), None)

    def __str__(self) -> str:
        count = f"{len(self.results)} results and {len(self.gradients)} gradients"
        if self.first is None:
            return f"all {count} are as near to float64 as float32 rounding explains"
        wrong = sum(not each.explained for each in (*self.results, *self.gradients))
        return f"{wrong} of {count} are farther from torch than float32 rounding explains; the first: {self.first}"


def without_drawing(graph: Any) -> Any:
    """A copy of a captured graph in which dropout leaves everything as it is."""
    quiet = copy.deepcopy(graph)
    for node in quiet.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for position, argument in enumerate(schema.arguments if schema else ()):
            if argument.name not in (*INNER, DRAWING.get(name_of(node))):
                continue
            if position < len(node.args):
                node.update_arg(position, 0.0)
            elif argument.name in node.kwargs:
                node.update_kwarg(argument.name, 0.0)
    quiet.recompile()
    return quiet


class Found(NamedTuple):
    """What a run gave: the results by operation, the gradients by parameter."""

    results: Mapping[Any, Array]
    gradients: Mapping[str, Array]


def by_torch(torch: Any, graph: Any, inputs: Sequence[Any], names: Sequence[str | None], *, double: bool) -> Found:
    """Torch's own results for a graph whose result is a loss, or of one without gradients.

    Args:
        torch: the module.
        graph: a captured graph.
        inputs: its tensors.
        names: for every input the parameter that it is; None: none that is trained.
        double: in float64 in place of float32.
    """
    wide = torch.float64 if double else torch.float32
    given = [x.detach().clone().to(wide) if x.is_floating_point() else x.detach().clone() for x in inputs]
    trained = {name: x.requires_grad_() for name, x in zip(names, given, strict=True) if name}
    given = [trained.get(name or "", x) for name, x in zip(names, given, strict=True)]  # tied ones are one tensor
    results: dict[Any, Array] = {}

    class Runner(torch.fx.Interpreter):  # type: ignore[misc]  # torch is not there when types are checked
        def run_node(self, node: Any) -> Any:
            if node.op == "call_function" and (name := name_of(node)) in (*CHECKS, *REGIONS):
                return None if name in CHECKS else self.region(name, *self.fetch_args_kwargs_from_env(node)[0])
            result = super().run_node(node)
            if double:
                result = torch.utils._pytree.tree_map_only(torch.Tensor, _widened, result)
            if node.op == "call_function" and is_float(result):
                results[node] = result.detach().double().numpy().copy()
            return result

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if double:
                args, kwargs = torch.utils._pytree.tree_map_only(torch.dtype, _wider, (args, kwargs))
            return super().call_function(target, args, kwargs)

        def region(self, name: str, *args: Any) -> Any:
            inner, *operands = args[REGIONS[name] :]
            constant = name == "wrap_with_set_grad_enabled" and not args[0]
            with torch.set_grad_enabled(torch.is_grad_enabled() and not constant):
                return Runner(inner).run(*operands)

    def _wider(dtype: Any) -> Any:
        return torch.float64 if dtype == torch.float32 else dtype

    def _widened(tensor: Any) -> Any:
        return tensor.double() if tensor.dtype == torch.float32 else tensor

    with torch.set_grad_enabled(bool(trained)):
        made = Runner(graph).run(*given)
    if trained:
        made[0].backward()
    return Found(results, {name: x.grad.double().numpy() for name, x in trained.items() if x.grad is not None})


def is_float(value: Any) -> bool:
    """Whether a result is one tensor of floats."""
    return hasattr(value, "is_floating_point") and bool(value.is_floating_point())


def compared(ours: Found, single: Found, exact: Found) -> Fidelity:
    """Our results beside torch's in float32, both held against torch's in float64."""
    size = max((_largest(gradient) for gradient in exact.gradients.values()), default=0.0)
    results = [
        _distance(*layer_of(node), f"aten.{name_of(node)}", line_of(node.meta.get("stack_trace") or ""),
                  ours.results[node], single.results[node], wanted, 0.0)
        for node, wanted in exact.results.items()
        if node in ours.results
    ]  # fmt: skip
    gradients = [
        _distance(name, "", "gradient", "", ours.gradients[name], single.gradients[name], wanted, SHARE * size)
        for name, wanted in reversed(list(exact.gradients.items()))
        if name in ours.gradients
    ]
    return Fidelity(tuple(results), tuple(gradients))


def _distance(
    name: str, kind: str, operation: str, line: str, ours: Array, single: Array, exact: Array, more: float
) -> Distance:
    finite = np.isfinite(exact)
    same = np.array_equal(ours[~finite], exact[~finite], equal_nan=True)
    size, theirs = _largest(exact[finite]), _largest((single - exact)[finite])
    far = _largest((ours - exact)[finite]) if same else np.inf
    return Distance(name, kind, operation, line, far, theirs, TIMES * theirs + ROUNDING * size + more, size)


def _largest(array: Array) -> float:
    return float(np.abs(array).max()) if array.size else 0.0
