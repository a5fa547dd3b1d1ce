"""A captured module as a loss function of this library, with its parameters by torch's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ipu_core.frontends.torch.batch import bound, plain
from ipu_core.frontends.torch.captured import Captured
from ipu_core.frontends.torch.comparing import fidelity, refuse_other
from ipu_core.frontends.torch.export import as_tensor, export
from ipu_core.frontends.torch.fidelity import Fidelity, without_drawing
from ipu_core.frontends.torch.weights import (
    read_weights,
    shown_module,
    tensors_of,
    write_tensors,
    write_weights,
)
from ipu_core.ir.block import Array
from ipu_core.ir.pytree import flatten
from lowprec.checks import shown
from lowprec.extras import optional


def from_torch(
    module: Any,
    example_inputs: Any,
    loss: Callable[..., Any] | None = None,
    *,
    training: bool = True,
    inference: bool = False,
    eager_check: bool = True,
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

    A module of float64 (`module.double()`) is captured in it, parameters, buffers, constants and batch, and
    `precision="float64"` trains it as torch does. One of float32 is refused in that: numbers that its code makes of
    tensors are float32's.

    Args:
        module: a `torch.nn.Module` whose parameters are floats.
        example_inputs: a batch: a tuple of tensors or arrays, or a mapping or dataclass of them (of transformers, too),
            which are given by name. True, numbers and texts in it are settings of the module and are bound; batches
            for a loop are plain and without them, as `TorchModel.batch` gives them.
        loss: (output, target) -> one number, a function or module of torch; the target is the last of the example
            inputs. None: the module gives its loss, alone, as the attribute `loss` of its output, or as the first of
            several outputs that is one number.
        training: whether the module is trained as it is in training (dropout, statistics of the batch) or as in eval.
            One that is in that mode already is captured with the modes that its layers have, else all are put into it.
        inference: the module in eval mode, for a `Predictor`: all that it gives without a loss, nested as it gives it
            (classes with names become dicts), with a loss that. Its state is all buffers of floats.
        eager_check: whether the module itself is called once with the example inputs, and its loss and gradients, or
            its outputs, are held against those captured; dropout is left out of both. The module, its gradients and
            all generators are left as they were.

    Raises:
        ImportError: torch is not installed.
        TypeError: no module.
        ValueError: inputs that are no arrays, or torch.export cannot capture the module.
        NotCovered: an operation has no counterpart, or something else takes part in training that is no operation (an
            autograd.Function's own backward, hooks on gradients, writes to parameters, numbers that Python draws); the
            message names it, the layer and the line. Or the module itself gives another loss or gradient.
    """
    torch = optional("torch", extra="torch")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch takes a torch.nn.Module, not {shown_module(module)}")
    given: Any = loss
    if isinstance(given, type):
        raise TypeError(f"loss must be a function (output, target) -> one number: {given.__name__}(), not the class")
    if given is not None and not callable(given):
        cure = f"torch.nn.functional.{given}" if hasattr(torch.nn.functional, str(given)) else "a function of torch"
        raise TypeError(f"loss must be a function (output, target) -> one number: {cure}, not {shown(given)}")
    narrow = {str(x.dtype) for x in module.parameters() if x.is_floating_point()} & {"torch.float16", "torch.bfloat16"}
    if narrow:
        raise ValueError(
            f"{type(module).__name__} has parameters of {narrow.pop()}: module.float() is captured, and the precision "
            "of a loop or a Predictor says the formats"
        )
    return captured(module, example_inputs, loss, training=training, inference=inference, eager_check=eager_check)


def captured(
    module: Any, example_inputs: Any, loss: Callable[..., Any] | None = None, *, training: bool = True,
    inference: bool = False, kept: bool = False, eager_check: bool = True, like: Any = None,
) -> TorchModel:  # fmt: skip
    """As `from_torch`.

    Args:
        kept: whether without a loss all that the module gives is captured behind its loss: `run` gives both.
        like: a batch nested alike whose classes the module is called with; None: the example's own.
    """
    torch = optional("torch", extra="torch")
    batch = example_inputs if isinstance(plain(example_inputs), tuple | list | dict) else (example_inputs,)
    exported = export(
        torch, module, batch, loss, training=training and not inference, outputs=inference, kept=kept, like=like
    )
    model = TorchModel(module, exported, inference)
    model.refuse()
    if eager_check:
        refuse_other(torch, model, [as_tensor(torch, leaf, "", wide=exported.wide) for leaf in bound(batch)[2]])
    return model


class TorchModel(Captured):
    """A captured module as `from_torch` gives it: checked, saved, and written back.

    Its attributes are those of `Captured`.
    """

    def __repr__(self) -> str:
        size, kind = sum(array.size for array in self.params.values()), "in eval mode" if self.inference else "trained"
        state = f", {len(self.state)} buffers" if self.state else ""
        return f"<TorchModel of {self.__name__}, {kind}: {len(self.params)} parameters ({size:,} numbers){state}>"

    def description(self) -> dict[str, Any]:
        """What tells it from others in a study: the class, the captured graph and the tensors that are not trained."""
        carried = {*self.params, *(self.state or {})}
        tensors, owners = self.exported.tensors.items(), self.owners
        fixed = {name: self.as_numbers(x) for name, x in tensors if owners.get(name, name) not in carried}
        # the graph itself, not the module's source: what was captured decides the bits
        code = [node.format_node() for node in self.exported.graph.graph.nodes]
        return {"module": self.__name__, "graph": "\n".join(filter(None, code)), "tensors": fixed}

    def batch(self, given: Any) -> Any:
        """A batch as a loop takes it: any mapping or dataclass as a dict, without the settings that are bound.

        Raises:
            ValueError: a setting that was not bound when the module was captured, or as another value.
        """
        return self.exported.batch.without_settings(given)

    def check(
        self, batch: Any, params: Mapping[str, Array] | None = None, state: Mapping[str, Array] | None = None
    ) -> Fidelity:
        """Every result and gradient of a batch in float32 beside torch's, and the first that differs, if one does.

            print(model.check(batch))

        Sums are in the order that a loop chooses. Beside the graph it calls the module itself, with these parameters.
        Dropout is left out of all. Gradients may differ where a maximum has several equal elements, see `from_torch`.

        Args:
            batch: tensors or arrays, like the example.
            params, state: as `TrainLoop` gives them; None: as captured.

        Raises:
            ValueError: a batch of other shapes than the example, a module of float64.
        """
        torch = optional("torch", extra="torch")
        if self.exported.wide:
            raise ValueError(
                f"{self.__name__} is a module of float64, which was compared with torch when it was captured: check "
                "compares float32, from_torch(module.float(), ...).check(batch)"
            )
        leaves = [as_tensor(torch, leaf, "", wide=False) for leaf in flatten(self.batch(batch))[0]]
        self.check_shapes(leaves)
        graph = without_drawing(torch, self.exported.graph)
        return fidelity(torch, self, graph, params or self.params, {**(self.state or {}), **(state or {})}, leaves)

    @cached_property
    def _tied(self) -> dict[str, str]:
        """For every name in the module's `state_dict` the name that it has here."""
        # load_state_dict knows a tied tensor under each of its names
        names = {id(tensor): name for name, tensor in self.exported.tensors.items()}
        own = self.module.state_dict(keep_vars=True)
        return {name: self.owners.get(names.get(id(x), name), name) for name, x in own.items()}

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
        return {
            name: trained[owner] if owner in trained else self.as_numbers(own[name])
            for name, owner in self._tied.items()
        }

    def _after(self, params: Mapping[str, Array], state: Mapping[str, Array] | None, steps: int) -> dict[str, Array]:
        """The arrays that training changed, in torch's order of axes, by name; tied parameters once."""
        floats = {name: self.as_torch(name, array) for name, array in {**params, **(state or {})}.items()}
        return {
            **floats,
            **{name: np.asarray(count + steps * self.increments[name]) for name, count in self.counts.items()},
        }

    def from_state_dict(self, arrays: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Array] | None]:
        """Parameters and state, for `TrainLoop`, from tensors or arrays by torch's names; other names are left out.

        Args:
            arrays: such as a module's `state_dict()`, in any format; tied ones under one name or several.

        Raises:
            KeyError: a parameter or buffer that is missing.
            ValueError: one of another shape.
        """

        def found(name: str, shape: Sequence[int]) -> Array:
            # files of packages keep tied weights under any one of their names
            names = [name, *(other for other, owner in self._tied.items() if owner == name)]
            given = next((arrays[each] for each in names if each in arrays), None)
            if given is None:
                raise KeyError(f"the weights hold no {name} of {self.__name__}")
            if tuple(given.shape) != tuple(shape):
                raise ValueError(f"{name} of {self.__name__} has the shape {tuple(shape)}, not {tuple(given.shape)}")
            return self.as_numbers(given)

        shapes = {name: x.shape for name, x in self.exported.tensors.items()}
        params = {name: self.laid(name, found(name, shapes[name])) for name in self.params}
        return params, None if self.state is None else {name: found(name, shapes[name]) for name in self.state}

    def save_weights(
        self, path: str | Path, params: Mapping[str, Array], state: Mapping[str, Array] | None = None, *, steps: int = 0
    ) -> None:
        """Writes a safetensors file that torch's users load: what `state_dict` gives.

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
        owners = {name: self.owners.get(name, name) for _, name in self.exported.inputs if name in own}
        every = {
            name: arrays.get(owner, self.as_numbers(self.exported.tensors[owner])) for name, owner in owners.items()
        }
        write_tensors(torch, to, tensors_of(torch, to), every)
        return to
