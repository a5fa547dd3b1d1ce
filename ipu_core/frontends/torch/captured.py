"""A captured graph as a function to be traced, with its parameters and buffers by torch's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ipu_core.frontends.torch.counters import refuse_counters
from ipu_core.frontends.torch.export import Exported, dtype_of
from ipu_core.frontends.torch.interpret import Interpreter, name_of
from ipu_core.frontends.torch.slots import Slot
from ipu_core.frontends.torch.weights import WEIGHTS, as_array, as_floats, inverse
from ipu_core.ir.block import Array, Block
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import Value, builder_of, shape_of, transpose
from lowprec.extras import optional

WRITTEN = {
    "parameter": "it writes to a parameter, beside the optimizer",
    "constant": "it writes to a tensor that is no buffer, which nothing carries to the next step",
    "inference": "it writes to a buffer, which nothing carries to the next batch in eval mode",
    "buffer": "",
}
"""By kind of input, why operations in place may not write to it; "": they may."""


@dataclass(frozen=True, eq=False, repr=False)
class Captured:
    """A loss function (params, batch) -> one number; where the module has running statistics (params, state, batch) ->
    (the number, new state). For inference (params, batch) or (params, state, batch) -> what the module gives.

    Attributes:
        module: what was captured.
        exported: the graph.
        inference: whether it gives the module's outputs, in eval mode.
        params: the trainable parameters when it was captured, float32 (float64 of a module of that) by dotted name;
            tied ones once. Weights lie as products here take them: (inputs, outputs) of linear layers, (kh, kw,
            channels, outputs) of convolutions; tied embeddings as torch's.
        state: buffers that a step changes, likewise, for inference all of floats; None: there are none.
        counts: counters of batches by name, as they were when it was captured.
    """

    module: Any
    exported: Exported
    inference: bool = False
    params: dict[str, Array] = field(init=False)
    state: dict[str, Array] | None = field(init=False)
    counts: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        tensors = self.exported.tensors
        # frozen parameters are constants of the trace: no gradient is computed for them
        names = [name for kind, name in self.exported.inputs if kind == "parameter" and self.trained(name)]
        params = {self.owners[name]: as_floats(tensors[name], wide=self.exported.wide) for name in names}
        object.__setattr__(self, "params", {name: self.laid(name, array) for name, array in params.items()})
        _, carried, counters = self._traced
        object.__setattr__(self, "counts", {name: as_array(tensors[name]) for name in counters})
        if self.inference:
            buffers = [name for kind, name in self.exported.inputs if kind == "buffer"]
            # in eval mode all statistics are read, and a Predictor takes trained ones
            carried = [name for name in buffers if tensors[name].is_floating_point()]
        object.__setattr__(self, "state", {name: self.as_numbers(tensors[name]) for name in carried} or None)

    @property
    def __name__(self) -> str:
        """The class of the module."""
        return type(self.module).__name__

    @property
    def captured_narrow(self) -> str:
        """What is to be said of it in float64; "": its module is one of float64."""
        if self.exported.wide:
            return ""
        return (
            f"{self.__name__} was captured in float32, tensors that its code makes too, and a finer precision has not "
            "those of the module in float64: capture module.double()"
        )

    def as_numbers(self, tensor: Any) -> Array:
        """A tensor, or array, as this model has it: copied, floats in float32, or float64."""
        return as_array(tensor, wide=self.exported.wide)

    def trained(self, name: str) -> bool:
        return bool(self.exported.tensors[name].requires_grad)

    @property
    def increments(self) -> dict[str, Array]:
        """By how much a step counts up its counters."""
        return self._traced[2]

    @cached_property
    def owners(self) -> dict[str, str]:
        """For every parameter the first name of the same tensor."""
        first: dict[int, str] = {}
        return {
            # tied weights are one tensor under several names; trained apart they would drift
            name: first.setdefault(id(self.exported.tensors[name]), name)
            for kind, name in self.exported.inputs
            if kind == "parameter"
        }

    @cached_property
    def _layouts(self) -> dict[str, tuple[int, ...]]:
        """The order of axes of the parameters that lie otherwise than torch's: weights of one kind of product alone."""
        nodes = [node for node in self.exported.graph.graph.nodes if node.op == "placeholder"]
        found: dict[str, set[tuple[int, ...]]] = {}
        for node, (kind, name) in zip(nodes, self.exported.inputs, strict=True):
            if kind == "parameter":
                # an embedding tied to a linear layer has two uses, and stays as torch has it
                uses = {WEIGHTS.get(name_of(user), ()) if user.args[1:2] == (node,) else () for user in node.users}
                found.setdefault(self.owners[name], set()).update(uses)
        return {name: orders.pop() for name, orders in found.items() if len(orders) == 1 and () not in orders}

    def laid(self, name: str, array: Array) -> Array:
        """A parameter of torch with its axes in the order that products here take."""
        return np.array(array.transpose(self._layouts.get(name, range(array.ndim))), order="C")

    def places(self, name: str) -> list[int]:
        """Where each axis that a parameter has in torch lies here."""
        return inverse(list(self._layouts.get(name, range(self.params[name].ndim))))

    def as_torch(self, name: str, array: Array) -> Array:
        """A parameter with torch's order of axes, in float32, or float64 of a module of that."""
        order = self._layouts.get(name, range(array.ndim))
        return np.asarray(array, np.float64 if self.exported.wide else np.float32).transpose(inverse(list(order)))

    @cached_property
    def _traced(self) -> tuple[Block, list[str], dict[str, Array]]:
        """The traced loss, the names of the float buffers that a step writes to, and the increments of integer ones.

        Raises:
            NotCovered: operations that have no counterpart, and integers that a step changes otherwise.
        """
        # which buffers a step writes to is known once it ran: it is traced once without a state
        floats, counters = list[str](), dict[str, Array]()

        def look(params: Any, leaves: Any) -> Value:
            result, slots = self.run(params, {}, leaves)
            for name, slot in slots.items():
                if slot.written and self.exported.tensors[name].is_floating_point():
                    floats.append(name)
                elif slot.written:
                    new = slot.read()
                    # traced once, an integer is a constant of the step: right only where it counts
                    refuse_counters(self.exported.graph, [own for _, own in self.exported.inputs], [name])
                    counters[name] = as_array(new) - as_array(self.exported.tensors[name])
            return result

        return trace(look, self.params, self.zeros()), floats, counters

    def zeros(self) -> list[Array]:
        """Arrays like the batch's leaves."""
        nodes = [node for node in self.exported.graph.graph.nodes if node.op == "placeholder"]
        leaves = [node for node, (kind, _) in zip(nodes, self.exported.inputs, strict=True) if kind == "batch"]
        return [np.zeros(tuple(node.meta["val"].shape), dtype_of(node.meta["val"])) for node in leaves]

    def refuse(self) -> None:
        """Refuses a loss that is not one number."""
        outputs = self._traced[0].outputs[: 1 if self.exported.kept else None]
        if not self.inference and [var.type.shape for var in outputs] != [()]:
            given = ", ".join(str(var.type.shape) for var in outputs)
            cure = " (reduction='mean')" if self.exported.loss is not None else (
                ": give a loss, loss=torch.nn.functional.cross_entropy, and batches whose last part is the target, or "
                "inference=True for what the module gives")  # fmt: skip
            raise ValueError(f"the loss of {self.__name__} must be one number without axes, not {given}{cure}")

    def __call__(self, params: Mapping[str, Value], *rest: Any) -> Any:
        """The loss of a batch, and the new state where there is one; for inference the outputs. To be traced.

        Raises:
            ValueError: a batch of other shapes than the example; training without the running statistics that it has.
        """
        *state, batch = rest
        # without a state the statistics would stay as they were, in silence
        if not (state or self.inference or self.state is None):
            raise ValueError(f"{self.__name__} has statistics that training updates: give model_state=model.state, too")
        leaves = flatten(batch)[0]
        self.check_shapes(leaves)
        result, slots = self.run(params, state[0] if state else {}, leaves)
        if self.exported.kept:
            result = result[0]
        if not state or self.inference:
            return result
        return result, {name: slots[name].read() for name in state[0]}

    def as_tensors(self, torch: Any, params: Any, state: Any, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Tensors for the graph's inputs, and for each the name of the trained parameter that it is, or None."""
        tensors, names = [], list[str | None]()
        for kind, name in self.exported.inputs:
            trained = kind == "parameter" and self.trained(name) and not self.inference
            owner = self.owners.get(name, name)
            array = params.get(owner) if kind == "parameter" else state.get(name)
            known = leaves[name] if kind == "batch" else self.exported.tensors[name]
            tensors.append(known if array is None else torch.tensor(self.as_torch(owner, array)))
            names.append(owner if trained else None)
        return tensors, names

    def check_shapes(self, leaves: Sequence[Any]) -> None:
        shapes = tuple(tuple(shape_of(x)) for x in leaves)
        if shapes != self.exported.shapes:
            names = ", ".join(f"{name}={value!r}" for name, value in self.exported.batch.names().items())
            leave = f"; {names} was bound then: model.batch(batch) gives batches without it" if names else ""
            raise ValueError(f"{self.__name__} was captured for arrays of {self.exported.shapes}, not {shapes}{leave}")

    def run(
        self, params: Any, state: Any, leaves: Any, graph: Any = None, observe: Callable[[Any, Any], None] | None = None
    ) -> tuple[Any, dict[str, Slot]]:
        """The loss, or the outputs nested as the module nests them, and the buffers' slots, of a run in a trace."""
        builder = builder_of([*flatten(params)[0], *leaves])
        if builder is None:
            raise TypeError("a captured module is traced: use trace(model, ...) and execute, or TrainLoop")
        inputs, buffers = [], {}
        for kind, name in self.exported.inputs:
            if kind == "batch":
                inputs.append(Slot(leaves[name]))
            elif kind == "parameter" and self.trained(name):
                owner = self.owners[name]
                order = self._layouts.get(owner)
                # torch's operations see torch's axes; the transposition cancels with the one that linear layers make
                weight = params[owner] if order is None else transpose(params[owner], inverse(order))
                inputs.append(Slot(weight, fixed=WRITTEN[kind]))
            else:
                tensor = self.exported.tensors[name]
                fixed = WRITTEN["inference" if self.inference and tensor.is_floating_point() else kind]
                # a clone: operations in place on constants are done by torch, and would write to the module
                inputs.append(Slot(state[name] if name in state else tensor.detach().clone(), fixed=fixed))
                if kind == "buffer":
                    buffers[name] = inputs[-1]
        torch = optional("torch", extra="torch")
        results = Interpreter(torch, builder, observe, wide=self.exported.wide).run(
            graph or self.exported.graph, inputs
        )
        return unflatten(self.exported.result, [slot.read() for slot in results]), buffers
