"""A captured module as a loss function of this library, with its parameters by torch's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ipu_core.capture.export import Exported, as_tensor, dtype_of, export
from ipu_core.capture.fidelity import Fidelity, Found, by_torch, compared, is_float, without_drawing
from ipu_core.capture.interpret import Interpreter, name_of
from ipu_core.capture.slots import Slot
from ipu_core.capture.weights import WEIGHTS, as_array, inverse, read_weights, tensors_of, write_tensors, write_weights
from ipu_core.ir.autodiff import value_and_grad
from ipu_core.ir.block import Array
from ipu_core.ir.execute import execute
from ipu_core.ir.precision import Precision
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.tracing import trace
from ipu_core.ir.values import Traced, Value, builder_of, shape_of, transpose
from lowprec.extras import optional


def from_torch(
    module: Any,
    example_inputs: Any,
    loss: Callable[..., Any] | None = None,
    *,
    training: bool = True,
    inference: bool = False,
) -> TorchModel:
    """Captures a module of PyTorch as a loss function for `TrainLoop`, `compare`, `trace` and `value_and_grad`.

    The module is captured by `torch.export`, once, with the shapes of the example inputs; no step of training calls
    torch. What has no counterpart here is refused now.

        model = ipu_core.from_torch(module, (x, y), loss=torch.nn.functional.cross_entropy)
        loop = TrainLoop(model, model.params, (x, y), model_state=model.state, optimizer=Sgd(0.1), precision="fp16.32")
        loop.run(batches, steps=100)
        loop.to_torch()  # the module has the trained weights and statistics

    Dropout draws its masks from the step's key, not from torch's generator. A maximum of several equal elements (in
    pooling) gives them equal shares of its gradient, torch gives all to the first.

    Args:
        module: a `torch.nn.Module` whose parameters are floats.
        example_inputs: a batch: a tuple of tensors or arrays, or a dict of them, which are given by name.
        loss: (output, target) -> one number, a function or module of torch; the target is the last of the example
            inputs. None: the module gives its loss, alone, as the attribute `loss` of its output, or as the first of
            several outputs that is one number.
        training: whether the module is trained as it is in training (dropout, statistics of the batch) or as in eval.
        inference: the module in eval mode, for a `Predictor`: all that it gives without a loss, nested as it gives it
            (classes with names become dicts), with a loss that. Its state is all buffers of floats.

    Raises:
        ImportError: torch is not installed.
        TypeError: no module.
        ValueError: inputs that are no arrays, or torch.export cannot capture the module.
        NotCovered: an operation has no counterpart; the message names it, the layer and the line.
    """
    torch = optional("torch", extra="torch")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch takes a torch.nn.Module, not {module!r}")
    batch = example_inputs if isinstance(example_inputs, tuple | list | dict) else (example_inputs,)
    exported = export(torch, module, batch, loss, training=training and not inference, outputs=inference)
    model = TorchModel(module, exported, inference)
    model.refuse()
    return model


@dataclass(frozen=True, eq=False, repr=False)
class TorchModel:
    """A loss function (params, batch) -> one number; where the module has running statistics (params, state, batch) ->
    (the number, new state). For inference (params, batch) or (params, state, batch) -> what the module gives.

    Attributes:
        module: what was captured.
        exported: the graph.
        inference: whether it gives the module's outputs, in eval mode.
        params: the trainable parameters when it was captured, float32 by dotted name; tied ones once. Weights lie
            as products here take them: (inputs, outputs) of linear layers, (kh, kw, channels, outputs) of convolutions;
            tied embeddings as torch's.
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
        names = [name for kind, name in self.exported.inputs if kind == "parameter" and self._trained(name)]
        params = {self._owners[name]: as_array(tensors[name]) for name in names}
        object.__setattr__(self, "params", {name: self._laid(name, array) for name, array in params.items()})
        carried, counters = self._changed
        object.__setattr__(self, "counts", {name: as_array(tensors[name]) for name in counters})
        if self.inference:
            buffers = [name for kind, name in self.exported.inputs if kind == "buffer"]
            carried = [name for name in buffers if tensors[name].is_floating_point()]
        object.__setattr__(self, "state", {name: as_array(tensors[name]) for name in carried} or None)

    @property
    def __name__(self) -> str:
        """The class of the module."""
        return type(self.module).__name__

    def __repr__(self) -> str:
        size, kind = sum(array.size for array in self.params.values()), "in eval mode" if self.inference else "trained"
        state = f", {len(self.state)} buffers" if self.state else ""
        return f"<TorchModel of {self.__name__}, {kind}: {len(self.params)} parameters ({size:,} numbers){state}>"

    def description(self) -> dict[str, Any]:
        """What tells it from others in a study: the class, the captured graph and the tensors that are not trained."""
        carried = {*self.params, *(self.state or {})}
        tensors, owners = self.exported.tensors.items(), self._owners
        fixed = {name: as_array(x) for name, x in tensors if owners.get(name, name) not in carried}
        code = [node.format_node() for node in self.exported.graph.graph.nodes]
        return {"module": self.__name__, "graph": "\n".join(filter(None, code)), "tensors": fixed}

    def _trained(self, name: str) -> bool:
        return bool(self.exported.tensors[name].requires_grad)

    @cached_property
    def _owners(self) -> dict[str, str]:
        """For every parameter the first name of the same tensor."""
        first: dict[int, str] = {}
        return {
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
                uses = {WEIGHTS.get(name_of(user), ()) if user.args[1:2] == (node,) else () for user in node.users}
                found.setdefault(self._owners[name], set()).update(uses)
        return {name: orders.pop() for name, orders in found.items() if len(orders) == 1 and () not in orders}

    def _laid(self, name: str, array: Array) -> Array:
        """A parameter of torch as it lies here."""
        return np.array(array.transpose(self._layouts.get(name, range(array.ndim))), order="C")

    def _as_torch(self, name: str, array: Array) -> Array:
        """A parameter as torch has it, in float32."""
        order = self._layouts.get(name, range(array.ndim))
        return np.asarray(array, np.float32).transpose(inverse(list(order)))

    @cached_property
    def _changed(self) -> tuple[list[str], list[str]]:
        """The buffers that a step writes to: of floats, and counters."""
        floats: list[str] = []
        counters: list[str] = []

        def look(params: Any, leaves: Any) -> Value:
            result, slots = self._run(params, {}, leaves)
            for name, slot in slots.items():
                if slot.written:
                    (floats if self.exported.tensors[name].is_floating_point() else counters).append(name)
            return result

        trace(look, self.params, self._zeros())
        return floats, counters

    def _zeros(self) -> list[Array]:
        """Arrays like the batch's leaves."""
        nodes = [node for node in self.exported.graph.graph.nodes if node.op == "placeholder"]
        leaves = [node for node, (kind, _) in zip(nodes, self.exported.inputs, strict=True) if kind == "batch"]
        return [np.zeros(tuple(node.meta["val"].shape), dtype_of(node.meta["val"])) for node in leaves]

    def refuse(self) -> None:
        """Refuses a loss that is not one number, and operations that have no counterpart."""
        block = trace(lambda params, leaves: self._run(params, {}, leaves)[0], self.params, self._zeros())
        if not self.inference and [var.type.shape for var in block.outputs] != [()]:
            given = ", ".join(str(var.type.shape) for var in block.outputs)
            raise ValueError(f"the loss of {self.__name__} must be one number without axes, not {given}")

    def __call__(self, params: Mapping[str, Value], *rest: Any) -> Any:
        """The loss of a batch, and the new state where there is one; for inference the outputs. To be traced.

        Raises:
            ValueError: a batch of other shapes than the example; training without the running statistics that it has.
        """
        *state, batch = rest
        if not (state or self.inference or self.state is None):
            raise ValueError(f"{self.__name__} has statistics that training updates: give model_state=model.state, too")
        leaves = flatten(batch)[0]
        self._check_shapes(leaves)
        if not state:
            return self._run(params, {}, leaves)[0]
        result, slots = self._run(params, state[0], leaves)
        if self.inference:
            return result
        return result, {name: slots[name].read() for name in state[0]}

    def check(
        self, batch: Any, params: Mapping[str, Array] | None = None, state: Mapping[str, Array] | None = None
    ) -> Fidelity:
        """Every result and gradient of a batch in float32 beside torch's, and the first that differs, if one does.

            print(model.check(batch))

        Dropout is left out in both. Gradients may differ where a maximum has several equal elements, see `from_torch`.

        Args:
            batch: tensors or arrays, like the example.
            params, state: as `TrainLoop` gives them; None: as captured.

        Raises:
            ValueError: a batch of other shapes than the example.
        """
        torch = optional("torch", extra="torch")
        params, state = params or self.params, {**(self.state or {}), **(state or {})}
        graph, results = without_drawing(self.exported.graph), list[Any]()
        leaves = [as_tensor(torch, leaf, "") for leaf in flatten(batch)[0]]
        self._check_shapes(leaves)

        def run(params: Any, given: Any) -> tuple[Any, list[Value]]:
            made: dict[Any, Value] = {}

            def observe(node: Any, slot: Any) -> None:
                if isinstance(slot, Slot) and isinstance(slot.read(), Traced) and is_float(node.meta.get("val")):
                    made[node] = slot.read()

            result = self._run(params, state, given, graph, observe)[0]
            results[:] = made
            return result, list(made.values())

        arrays = [np.asarray(x, dtype_of(x)) for x in leaves]
        step = run if self.inference else value_and_grad(run, has_aux=True)
        wide = {name: np.asarray(array, np.float32) for name, array in params.items()}
        made = execute(Precision.parse("fp32.32").apply(trace(step, wide, arrays)), wide, arrays, key=0)
        values, gradients = (made[1], {}) if self.inference else (made[0][1], made[1])
        ours = Found(
            {node: np.asarray(x, np.float64) for node, x in zip(results, values, strict=True)},
            {name: np.asarray(self._as_torch(name, x), np.float64) for name, x in gradients.items()},
        )
        given, names = self._as_tensors(torch, wide, state, leaves)
        single, exact = (by_torch(torch, graph, given, names, double=double) for double in (False, True))
        return compared(ours, single, exact)

    def _as_tensors(self, torch: Any, params: Any, state: Any, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The inputs of the graph as torch has them, and for each the parameter that it is, if it is trained."""
        tensors, names = [], list[str | None]()
        for kind, name in self.exported.inputs:
            trained = kind == "parameter" and self._trained(name) and not self.inference
            owner = self._owners.get(name, name)
            array = params.get(owner) if kind == "parameter" else state.get(name)
            known = leaves[name] if kind == "batch" else self.exported.tensors[name]
            tensors.append(known if array is None else torch.tensor(self._as_torch(owner, array)))
            names.append(owner if trained else None)
        return tensors, names

    def _check_shapes(self, leaves: Sequence[Any]) -> None:
        shapes = tuple(tuple(shape_of(x)) for x in leaves)
        if shapes != self.exported.shapes:
            raise ValueError(f"{self.__name__} was captured for arrays of {self.exported.shapes}, not {shapes}")

    def _run(
        self, params: Any, state: Any, leaves: Any, graph: Any = None, observe: Callable[[Any, Any], None] | None = None
    ) -> tuple[Any, dict[str, Slot]]:
        """The loss, or the outputs as they are nested, and the slots of the buffers."""
        builder = builder_of([*flatten(params)[0], *leaves])
        if builder is None:
            raise TypeError("a captured module is traced: use trace(model, ...) and execute, or TrainLoop")
        inputs, buffers = [], {}
        for kind, name in self.exported.inputs:
            if kind == "batch":
                inputs.append(Slot(leaves[name]))
            elif kind == "parameter" and self._trained(name):
                owner = self._owners[name]
                order = self._layouts.get(owner)
                inputs.append(Slot(params[owner] if order is None else transpose(params[owner], inverse(order))))
            else:
                inputs.append(Slot(state[name] if name in state else self.exported.tensors[name].detach().clone()))
                if kind == "buffer":
                    buffers[name] = inputs[-1]
        torch = optional("torch", extra="torch")
        results = Interpreter(torch, builder, observe).run(graph or self.exported.graph, inputs)
        return unflatten(self.exported.result, [slot.read() for slot in results]), buffers

    @cached_property
    def _tied(self) -> dict[str, str]:
        """For every name in the module's `state_dict` the name that it has here."""
        names = {id(tensor): name for name, tensor in self.exported.tensors.items()}
        own = self.module.state_dict(keep_vars=True)
        return {name: self._owners.get(names.get(id(x), name), name) for name, x in own.items()}

    def state_dict(
        self, params: Mapping[str, Array], state: Mapping[str, Array] | None = None, *, steps: int = 0
    ) -> dict[str, Array]:
        """Parameters and buffers by torch's names, as arrays that `load_state_dict` takes; tied ones under each.

        Args:
            params: as `TrainLoop.params` gives them.
            state: as `TrainLoop.model_state` gives it; None: the buffers as they were captured.
            steps: training steps done, which counters of batches go on by.
        """
        own, trained = self.module.state_dict(keep_vars=True), self._after(params, state, steps)
        return {name: trained[owner] if owner in trained else as_array(own[name]) for name, owner in self._tied.items()}

    def _after(self, params: Mapping[str, Array], state: Mapping[str, Array] | None, steps: int) -> dict[str, Array]:
        """What training has changed, as torch has it, by name; tied parameters once."""
        floats = {name: self._as_torch(name, array) for name, array in {**params, **(state or {})}.items()}
        return {**floats, **{name: np.asarray(count + steps) for name, count in self.counts.items()}}

    def from_state_dict(self, arrays: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Array] | None]:
        """Parameters and state, for `TrainLoop`, from tensors or arrays by torch's names; other names are left out.

        Args:
            arrays: such as a module's `state_dict()`, in any format; tied ones under one name or several.

        Raises:
            KeyError: a parameter or buffer that is missing.
            ValueError: one of another shape.
        """

        def found(name: str, shape: Sequence[int]) -> Array:
            names = [name, *(other for other, owner in self._tied.items() if owner == name)]
            given = next((arrays[each] for each in names if each in arrays), None)
            if given is None:
                raise KeyError(f"the weights hold no {name} of {self.__name__}")
            if tuple(given.shape) != tuple(shape):
                raise ValueError(f"{name} of {self.__name__} has the shape {tuple(shape)}, not {tuple(given.shape)}")
            return as_array(given)

        shapes = {name: x.shape for name, x in self.exported.tensors.items()}
        params = {name: self._laid(name, found(name, shapes[name])) for name in self.params}
        return params, None if self.state is None else {name: found(name, shapes[name]) for name in self.state}

    def save_weights(
        self, path: str | Path, params: Mapping[str, Array], state: Mapping[str, Array] | None = None, *, steps: int = 0
    ) -> None:
        """Writes a safetensors file that torch's users load: what `state_dict` gives, in float32.

        Args:
            path: the file, which is there whole or not at all.
            params, state, steps: as `state_dict` takes them.

        Raises:
            ImportError: the package safetensors is not installed.
            OSError: the file cannot be written.
        """
        write_weights(path, self.state_dict(params, state, steps=steps))

    def load_weights(self, path: str | Path) -> tuple[dict[str, Array], dict[str, Array] | None]:
        """Parameters and state, for `TrainLoop`, from a safetensors file such as packages of models publish.

        Raises:
            ImportError: the package safetensors is not installed.
            KeyError, ValueError: what the file holds does not fit, see `from_state_dict`, or is no such file.
        """
        return self.from_state_dict(read_weights(path))

    def to_torch(
        self,
        params: Mapping[str, Array],
        state: Mapping[str, Array] | None = None,
        *,
        steps: int = 0,
        module: Any = None,
    ) -> Any:
        """Writes trained parameters and state back; `TrainLoop.to_torch` does it with its own.

        Args:
            params: as `TrainLoop.params` gives them, in any format.
            state: as `TrainLoop.model_state` gives it.
            steps: training steps done, by which counters of batches are farther than when it was captured.
            module: one of the same names and shapes, which is given what is not trained, too; None: that which was
                captured.

        Returns:
            The module.

        Raises:
            TypeError: no module.
            ValueError: a module of other names or shapes, which is left as it was.
        """
        torch = optional("torch", extra="torch")
        to = self.module if module is None else module
        arrays, own = self._after(params, state, steps), tensors_of(torch, self.module)
        if to is self.module:
            write_tensors(torch, to, {**self.exported.tensors, **own}, arrays)  # those of the loss, too
            return to
        owners = {name: self._owners.get(name, name) for _, name in self.exported.inputs if name in own}
        every = {name: arrays.get(owner, as_array(self.exported.tensors[owner])) for name, owner in owners.items()}
        write_tensors(torch, to, tensors_of(torch, to), every)
        return to
