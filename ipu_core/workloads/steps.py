"""The step of a stage as a Block: what comes from other chips and goes to them lies on its tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipu_core.ir.block import Block, Type, dtype_of
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.passes.schedule import as_it_runs
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import map_leaves
from ipu_core.ir.trace.custom import custom_gradient
from ipu_core.ir.trace.tracing import accumulated_over, trace
from ipu_core.ir.trace.values import apply, elementwise, scope
from ipu_core.train.optim import Optimizer
from ipu_core.train.step import accumulate, each_gradient, initial_state, step_block, updated
from ipu_core.workloads.published import Part, Stage, Workload

given = custom_gradient(lambda y, dy: (y[(0,) * len(y.shape)], dy), lambda dy, _: (dy, None))
"""(y, dy) -> one number whose gradient of y is dy: so a stage begins its backward pass with what arrives."""


def block_of(workload: Workload, stage: Stage, precision: Precision, micro_batches: int) -> Block:
    """The step of a stage, as traced: all micro-batches of an update and the update; of what is not trained, one.

    A stage keeps on its tiles, as state, what arrives by links ("arrives": the activations of the chip before and the
    gradients of the chip behind) and the stashes of its pipeline.
    """
    runs = workload.parts_of(stage)
    optimizer = workload.optimizer
    if optimizer is None:
        return _forward(workload, precision)
    if len(runs) == 1 and len(runs[0]) == len(workload.parts):
        whole = map_leaves(lambda kind: _stand_in(kind, micro_batches), workload.batch)
        return step_block(
            _whole(workload), optimizer, workload.params, whole, micro_batches=micro_batches,
            running_mean=precision.running_mean, model_state=workload.model_state,
        )  # fmt: skip
    return _StageStep(workload, stage, optimizer, precision, micro_batches).block()


def _whole(workload: Workload) -> Any:
    if workload.model_state is None:
        return lambda params, batch: workload.loss(params, batch)
    return lambda params, state, batch: workload.loss(params, state, batch)


def _stand_in(kind: Type, micro_batches: int) -> Any:
    """An array of the shape of all micro-batches that takes no memory."""
    dtype = np.dtype(np.int32) if kind.format == "int32" else dtype_of(kind.format)
    return np.broadcast_to(np.zeros((), dtype), (kind.shape[0] * micro_batches, *kind.shape[1:]))


def _forward(workload: Workload, precision: Precision) -> Block:
    """Where nothing is trained: the batch lies on the tiles, and so does the result."""
    kinds = map_leaves(lambda kind: _typed(kind, precision.operands), workload.batch)
    state = {"params": workload.params, "batch": kinds}

    def step(state: Any, lr: Any) -> Any:
        made = workload.loss(state["params"], state["batch"])
        return state, made

    return as_it_runs(trace(step, state, np.float32(0), carry=True))


def _typed(kind: Type, fmt: Any) -> Type:
    return kind if kind.format == "int32" else Type(kind.shape, fmt)


class _StageStep:
    """A stage that is cut off from others."""

    def __init__(
        self, workload: Workload, stage: Stage, optimizer: Optimizer, precision: Precision, micro_batches: int
    ) -> None:
        self.workload, self.optimizer, self.precision, self.count = workload, optimizer, precision, micro_batches
        self.runs = workload.parts_of(stage)
        reads = {name for run in self.runs for part in run for name in part.reads}
        self.batch = {name: kind for name, kind in workload.batch.items() if name in reads}
        names = {name for run in self.runs for part in run for name in (part.name, *part.shares)}
        self.params = {name: tree for name, tree in workload.params.items() if name in names}
        shape = workload.between
        assert shape is not None, "a workload that is cut says what its parts hand on"
        self.comes = [f"x{number}" for number, run in enumerate(self.runs) if not self._first(run)]
        self.goes = [f"dy{number}" for number, run in enumerate(self.runs) if not self._last(run)]
        kinds = {"x": precision.operands, "d": precision.gradients}
        self.arrives = {name: Type(shape, kinds[name[0]]) for name in (*self.comes, *self.goes)}
        kept = Type((stage.stashes, *shape), precision.operands)
        self.state: dict[str, Any] = {**initial_state(self.params, optimizer), "arrives": self.arrives}
        if stage.stashes and self.comes:
            self.state["stashes"] = kept

    def _first(self, run: list[Part]) -> bool:
        return run[0] is self.workload.parts[0]

    def _last(self, run: list[Part]) -> bool:
        return run[-1] is self.workload.parts[-1]

    def block(self) -> Block:
        return as_it_runs(trace(self.step, self.state, self.batch, np.float32(0), carry=True))

    def step(self, state: Any, batch: Any, lr: Any) -> Any:
        """One update: (new state, a number for the host)."""
        made = self._one(state, state["params"], batch) if self.count == 1 else self._looped(state, batch)
        params, inner = updated(self.optimizer, state["params"], made["gradients"], state["optimizer"], lr)
        new = {**state, "params": params, "optimizer": inner, "arrives": {**state["arrives"], **made["leaves"]}}
        return new, made["value"]

    def _looped(self, state: Any, batch: Any) -> dict[str, Any]:
        mean = self.precision.running_mean

        def one(totals: dict[str, Any]) -> dict[str, Any]:
            made = self._one(state, state["params"], batch)
            with scope(totals, family="loss"):
                value = totals["value"] + made["value"]
            new = {"value": value, "leaves": made["leaves"]}
            share = None
            if mean:
                with scope(totals, role="optimizer"):
                    new["parts"] = totals["parts"] + 1.0
                    share = apply("reciprocal", new["parts"])
            return {**new, "gradients": accumulate(totals["gradients"], made["gradients"], share)}

        leaves = {name: self.arrives[name] for name in self.arrives}
        like = {"value": np.float32(0), "gradients": self.params, "leaves": map_leaves(_shape_only, leaves)}
        totals = accumulated_over(one, batch, like | ({"parts": np.float32(0)} if mean else {}), self.count, state)
        if mean:
            return dict(totals)
        gradients = each_gradient(lambda g: elementwise("multiply", g, 1 / self.count), totals["gradients"])
        return {**totals, "gradients": gradients}

    def _one(self, state: Any, params: Any, batch: Any) -> dict[str, Any]:
        """The gradients of a micro-batch and what leaves: results in the place of the gradients that arrive for them,
        gradients in the place of the activations that arrived."""
        arrives = state["arrives"]
        xs = {name: arrives[name] for name in self.comes}

        def objective(inputs: Mapping[str, Any], dys: Mapping[str, Any], batch: Any) -> Any:
            total, results = None, {}
            for number, run in enumerate(self.runs):
                y = self.workload.run(run, inputs["params"], inputs["x"].get(f"x{number}"), batch)
                if not self._last(run):
                    results[f"dy{number}"] = y
                    y = given(y, dys[f"dy{number}"])
                total = y if total is None else total + y
            return total, results

        dys = {name: arrives[name] for name in self.goes}
        (value, results), gradients = value_and_grad(objective, None, has_aux=True)(
            {"params": params, "x": xs}, dys, batch
        )
        return {"value": value, "gradients": gradients["params"], "leaves": {**results, **gradients["x"]}}


def _shape_only(kind: Type) -> Any:
    return np.broadcast_to(np.float32(0), kind.shape)
