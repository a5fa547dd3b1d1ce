"""A captured module beside the module itself: computed here, by torch's autograd, and by the graph in float64."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ipu_core.compile.planning import choose_accumulations
from ipu_core.errors import NotCovered
from ipu_core.frontends.torch.captured import Captured
from ipu_core.frontends.torch.eager import Eager, eager
from ipu_core.frontends.torch.errors import EMULATE
from ipu_core.frontends.torch.export import dtype_of
from ipu_core.frontends.torch.fidelity import (
    ROUNDING,
    SHARE,
    Distance,
    Fidelity,
    Found,
    beside,
    by_torch,
    compared,
    drawn,
    is_float,
    largest_of,
    nodes_of,
    without_drawing,
)
from ipu_core.frontends.torch.memory import give_back, lean
from ipu_core.frontends.torch.slots import Slot
from ipu_core.ir.block import Array
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import Traced, Value
from ipu_core.placement.orders import OrderRule

NEAR = 2.0**-15
"""The share of the largest element within which results count as torch's without a run in float64."""
NEAR_WIDE = 2.0**-20
"""How much nearer results of float64 have to be: sums that cancel lose a part of 2^-29."""
PIECE = 1 << 16
"""Elements that are compared at a time."""
RUNS = 8
"""Runs of torch with inputs moved a little, where one run leaves a distance unexplained."""

COUNTED = "a call of {} changes {}: what was captured knows what the first call made of it"
"""The warning about attributes of layers that count calls."""


def ours(
    model: Captured, graph: Any, params: Mapping[str, Array], state: Mapping[str, Array], leaves: Sequence[Any],
    watched: Callable[[Any], bool] | None = None,
) -> Found:  # fmt: skip
    """What a graph gives in float32 as a loop computes it, in its order of sums; of a module of float64 in that.

    Args:
        model: what was captured.
        graph: its graph, without what draws.
        params, state: as a loop has them.
        leaves: of a batch, tensors.
        watched: of which operations the results are kept; None: of none.
    """
    nodes, kept = list[Any](), list(state)

    def run(params: Any, state: Any, given: Any) -> Any:
        made: dict[Any, Value] = {}

        def observe(node: Any, slot: Any) -> None:
            if watched is not None and isinstance(slot, Slot) and isinstance(slot.read(), Traced) and watched(node):
                made[node] = slot.read()

        result, slots = model.run(params, state, given, graph, observe)
        nodes[:] = made
        outputs = flatten(result)[0]
        return outputs[0], (outputs, [slots[name].read() for name in kept], list(made.values()))

    step = run if model.inference else value_and_grad(run, has_aux=True)
    arrays = [np.asarray(x, dtype_of(x)) for x in leaves]
    width = np.float64 if model.exported.wide else np.float32
    wide = [{name: np.asarray(x, width) for name, x in table.items()} for table in (params, state)]
    ideal = trace(step, *wide, arrays)
    given = flatten((*wide, arrays))[0]
    if model.exported.wide:
        made = evaluate_flat(ideal, given)
    else:
        # as a loop does: sums in another order are farther off, and would accuse ordinary nets
        orders = choose_accumulations(ideal, OrderRule())
        block = lean(Precision.parse("fp32.32").apply(ideal))
        # no copies: gradients of a large model take as long to be copied as a third of the products that make them
        made = Executable(block, orders).run(given, 0, copied=False)
    assert ideal.result is not None  # traced
    result = unflatten(ideal.result, made)
    (_, (outputs, fresh, values)), gradients = (result, {}) if model.inference else result
    return Found(
        dict(zip(nodes, values, strict=True)),
        {name: model.as_torch(name, x) for name, x in gradients.items()},
        list(map(np.asarray, outputs)),
        dict(zip(kept, fresh, strict=True)),
    )


def refuse_other(torch: Any, model: Captured, leaves: Sequence[Any]) -> None:
    """Compares one call of the module itself with the captured one on a batch: loss, gradients, buffers after it.

    Args:
        torch: the module torch.
        model: what was captured.
        leaves: of the batch, tensors.

    Raises:
        NotCovered: they differ by more than float32 rounding explains; the first parameter or operation is named.
        ValueError: the module itself cannot be called with the batch.
    """
    own = called(torch, model, leaves, {})
    give_back()
    # before numbers are compared: these have causes that can be named
    if own.written:
        raise _other(model, f"a call of the module writes to its parameter {own.written[0]}, beside the optimizer")
    if own.drifting:
        raise _other(model, f"its loss depends on {own.counting[0]}, which every call changes")
    # what a loop's optimizer leaves alone is what torch's does
    for name in () if model.inference else model.params:
        if (name in own.gradients) == (name in model.exported.idle):
            raise _other(model, f"{name} {'has a' if name in own.gradients else 'has no'} gradient in torch")
    # nothing is near to NaN
    for name in () if model.inference else model.params:
        if not np.isfinite(own.gradients.get(name, 0.0)).all():
            raise _other(model, f"torch's own gradient of {name} is NaN or infinite for this batch, which leaves "
                         "nothing to compare: give another batch")  # fmt: skip
    if own.counting:
        warnings.warn(COUNTED.format(model.__name__, ", ".join(own.counting)), stacklevel=3)
    graph, state = without_drawing(torch, model.exported.graph), model.state or {}
    found, mine = as_found(model, own), ours(model, graph, model.params, state, leaves)
    # what is so near needs no run in float64
    if near(found, mine, NEAR_WIDE if model.exported.wide else 1.0):
        return
    mine = mine.copied()  # the other runs have the memory of the step that it was read in
    if model.exported.wide:
        raise _other(model, "in float64 its loss, a gradient or a buffer is another than that of what was captured")
    # first the module beside its own graph, both by torch: what differs there left nothing in the graph
    unit, runs = _unit(torch, graph), _Runs(torch, model, graph, model.params, state, leaves)
    for row in _explained(runs, lambda singles: beside(found, singles, runs.exact, unit)):
        raise _other(model, f"the {row.operation} of the module itself is another than that of its graph: {row}; "
                     "a backward of its own, hooks and writes to tensors leave nothing in the graph")  # fmt: skip
    for row in _explained(runs, lambda singles: beside(mine, singles, runs.exact, unit)):
        # the full report names the first operation, but costs a run that keeps every result: for failures alone
        report = fidelity(torch, model, graph, model.params, state, leaves)
        raise _other(model, f"what was captured is not what torch computes: {report.first or row}")


class _Runs:
    """Runs of a graph by torch on one batch, each done when it is asked for."""

    def __init__(
        self, torch: Any, model: Captured, graph: Any, params: Mapping[str, Array], state: Mapping[str, Array],
        leaves: Sequence[Any], *, watched: bool = False,
    ) -> None:  # fmt: skip
        self.given, names = model.as_tensors(torch, params, state, leaves)
        self._places = {name: at for at, (kind, name) in enumerate(model.exported.inputs) if kind == "buffer"}
        self._run = functools.partial(by_torch, torch, graph, self.given, names, watched=watched)

    def _named(self, found: Found) -> Found:
        give_back()
        return found._replace(buffers={name: found.buffers[at] for name, at in self._places.items()})

    @cached_property
    def exact(self) -> Found:
        """In float64."""
        return self._named(self._run(double=True))

    @cached_property
    def single(self) -> list[Found]:
        """In float32."""
        return [self._named(self._run(double=False))]

    @cached_property
    def several(self) -> list[Found]:
        """In float32, and of inputs that are moved a little."""
        return [*self.single, *(self._named(self._run(double=False, moved=seed)) for seed in range(RUNS))]


def _explained(runs: _Runs, rows: Callable[[Sequence[Found]], list[Distance]]) -> list[Distance]:
    """The distances that rounding explains neither by one run of torch in float32 nor by several with moved inputs."""
    # runs with moved inputs cost eight more: only where one run leaves something unexplained
    if all(row.explained for row in rows(runs.single)):
        return []
    return [row for row in rows(runs.several) if not row.explained]


def _other(model: Captured, why: str) -> NotCovered:
    return NotCovered(f"{model.__name__} would not train as it does in torch: {why}; {EMULATE}; eager_check=False "
                      "captures it without this comparison")  # fmt: skip


def called(torch: Any, model: Captured, leaves: Sequence[Any], tensors: Mapping[str, Any]) -> Eager:
    """A call of the module itself.

    Raises:
        ValueError: it fails.
    """
    try:
        return eager(torch, model.module, model.exported, leaves, tensors, inference=model.inference)
    except Exception as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{model.__name__} itself cannot be called with the example inputs: {line}; eager_check=False captures it "
            "without a call"
        ) from error


def as_found(model: Captured, own: Eager) -> Found:
    """The results of a call of the module, for those parameters and buffers that are captured."""
    gradients = {name: own.gradients[name] for name in model.params if name in own.gradients}
    buffers = {name: own.buffers[name] for name in model.state or {} if name in own.buffers}
    return Found({}, gradients, own.outputs, {} if model.inference else buffers)


def near(found: Found, mine: Found, finer: float) -> bool:
    """Whether two runs are so near (NEAR, SHARE) that rounding explains their distance without further runs.

    Args:
        found, mine: the runs.
        finer: a factor of both bounds, for formats finer than float32.
    """
    largest = max(map(largest_of, found.gradients.values()), default=0.0)
    pairs = [(one, other, 0.0) for one, other in zip(found.outputs, mine.outputs, strict=True)]
    for name, gradient in mine.gradients.items():
        # a parameter without a gradient in torch has one of zeros here
        pairs.append((found.gradients.get(name, np.zeros_like(gradient)), gradient, SHARE * largest))
    pairs += [(one, mine.buffers[name], 0.0) for name, one in found.buffers.items()]
    return all(_all_near(one, other, more * finer, finer) for one, other, more in pairs)


def _all_near(one: Array, other: Array, more: float, finer: float) -> bool:
    if one.shape != other.shape:
        return False
    one, other = np.atleast_1d(one), np.atleast_1d(other)
    bound = NEAR * finer * largest_of(one) + more
    order = np.argsort(one.strides)[::-1]  # its rows as they lie in memory
    pieces = zip(_pieces(one.transpose(order)), _pieces(other.transpose(order)), strict=True)
    return all(_piece_near(*pair, bound) for pair in pieces)


def _pieces(array: Array) -> Iterator[Array]:
    """An array in pieces that a processor's cache holds."""
    rows = max(1, PIECE // max(1, array.size // max(1, len(array))))
    return iter([array]) if array.size <= PIECE else (array[i : i + rows] for i in range(0, len(array), rows))


def _piece_near(one: Array, other: Array, bound: float) -> bool:
    with np.errstate(invalid="ignore"):  # of infinities
        far = np.subtract(one, other)
    if bool((np.abs(far, out=far) <= bound).all()):  # neither NaN nor infinities
        return True
    finite = np.isfinite(one)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return False
    return bool((far[finite] <= bound).all())


def _unit(torch: Any, graph: Any) -> float:
    """The relative distance that rounding explains: larger where the module itself computes in halves."""
    values = [node.meta.get("val") for node in nodes_of(graph)]
    # a module that computes in halves itself is as far from float64 as halves are
    halves = [x.dtype for x in values if getattr(x, "dtype", None) in (torch.float16, torch.bfloat16)]
    return max((16 * float(torch.finfo(dtype).eps) for dtype in halves), default=ROUNDING)


def fidelity(
    torch: Any, model: Captured, graph: Any, params: Mapping[str, Array], state: Mapping[str, Array],
    leaves: Sequence[Any],
) -> Fidelity:  # fmt: skip
    """The report of `TorchModel.check`: every result and gradient in float32 beside torch's."""
    mine = ours(model, graph, params, state, leaves, lambda node: is_float(node.meta.get("val")))
    runs = _Runs(torch, model, graph, params, state, leaves, watched=True)
    kinds = zip(model.exported.inputs, runs.given, strict=True)
    tensors = {name: x for (kind, name), x in kinds if kind in ("parameter", "buffer")}
    own, unit = as_found(model, called(torch, model, leaves, tensors)), _unit(torch, graph)
    unseen = ("what is drawn (masks keep all)",) if any(map(drawn, nodes_of(model.exported.graph))) else ()

    def report(singles: Sequence[Found]) -> Fidelity:
        rows = tuple(beside(own, singles, runs.exact, unit))
        return compared(mine, singles, runs.exact)._replace(module=rows, unseen=unseen)

    first = report(runs.single)
    return first if first.first is None else report(runs.several)
