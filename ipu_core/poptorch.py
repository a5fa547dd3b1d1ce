"""PopTorch's words for those who come from there: a module of PyTorch wrapped for the machine, called batch by batch.

    options = poptorch.Options(device_iterations=4, gradient_accumulation=8, precision="fp16.16/stochastic")
    model = poptorch.training_model(module, options, torch.optim.AdamW(module.parameters(), 1e-3))
    for x, y in loader:  # 4 * 8 times the rows of a micro-batch
        loss = model(x, y)
    model.copy_weights_to_host()

Names are PopTorch's, in this library's spelling; what is behind them is `from_torch`, `TrainLoop` and `Predictor`. A
model is captured and compiled at its first call. Pipelines, replicas and the placing of layers on several chips have no
counterpart.
"""

from __future__ import annotations

import functools
import inspect
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipu_core.capture.model import TorchModel, from_torch
from ipu_core.capture.optimizers import from_torch_optimizer
from ipu_core.engine.profile import Profile
from ipu_core.ir.precision import Precision
from ipu_core.ir.pytree import flatten, map_leaves
from ipu_core.target import Target
from ipu_core.train.arguments import check_engine, check_integer
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, Sgd
from ipu_core.train.optim.common import Common
from ipu_core.train.predictor import Predictor
from lowprec.checks import expect, shown
from lowprec.extras import optional


@dataclass(frozen=True)
class Options:
    """How a wrapped module runs.

    Attributes:
        device_iterations: steps of training, or batches of inference, in one call: the inputs of a call hold as many
            times the rows.
        gradient_accumulation: micro-batches of a step, whose gradients are averaged before the update: likewise.
        precision: a `Precision` or its name.
        target: the modelled chip, or its name.
        engine: "tiles", with cycles and memory in `profile`, or "direct": the same bits without them.
        seed: of everything random.
        loss_scale: as `TrainLoop` takes it; one that moves by itself needs device_iterations=1.

    Raises:
        ValueError: numbers below 1, an unknown precision, target or engine.
    """

    device_iterations: int = 1
    gradient_accumulation: int = 1
    precision: Precision | str = "fp32.32"
    target: Target | str = "gc200"
    engine: str = "tiles"
    seed: int = 0
    loss_scale: float | str | None = None

    def __post_init__(self) -> None:
        check_integer("device_iterations", self.device_iterations, least=1)
        check_integer("gradient_accumulation", self.gradient_accumulation, least=1)
        Precision.parse(self.precision)
        check_engine(self.engine)
        if not isinstance(self.target, Target):
            Target(self.target)


def training_model(module: Any, options: Options, optimizer: Any) -> TrainingModel:
    """A module that trains when it is called (PopTorch's `trainingModel`).

    Args:
        module: gives its loss, alone or among its outputs, as `from_torch` finds it.
        options: how it runs.
        optimizer: one of torch over the module's parameters, see `from_torch_optimizer`.

    Raises:
        ValueError: the optimiser has no counterpart (at the first call).
    """
    return TrainingModel(module, options, optimizer)


def inference_model(module: Any, options: Options | None = None) -> InferenceModel:
    """A module that gives its outputs, in eval mode, when it is called (PopTorch's `inferenceModel`)."""
    return InferenceModel(module, Options() if options is None else options)


class TrainingModel:
    """See `training_model`.

    Attributes:
        options: how it runs.
        model: what was captured; None before the first call.
        loop: the training loop; None before the first call.
    """

    def __init__(self, module: Any, options: Options, optimizer: Any) -> None:
        expect(Options, options=options)
        self._module, self.options, self._optimizer = module, options, optimizer
        self._rate = _rate_of(optimizer)
        self.model: TorchModel | None = None
        self.loop: TrainLoop | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Trains on a batch.

        Args:
            inputs: of the module; their first axis has the rows of all iterations and micro-batches.
            named: likewise, by name.

        Returns:
            The loss of the last iteration, the mean over its micro-batches, as a tensor. Other outputs of the module
            are not given: an inference model gives them.

        Raises:
            ValueError: rows that cannot be cut into so many parts, or what `from_torch` and `TrainLoop` refuse.
            OutOfTileMemory: the step does not fit the target.
        """
        batches = _parts(_bound(self._module, inputs, named), self.options.device_iterations)
        losses = self._compiled(batches[0]).run(batches, len(batches))
        return optional("torch", extra="torch").tensor(losses[-1])

    def set_optimizer(self, optimizer: Any) -> None:
        """Takes the learning rates of an optimiser as they are now, after its scheduler's step (`setOptimizer`).

        Raises:
            ValueError: anything else than the learning rates changed, or their ratios did.
        """
        if self.model is not None and not _alike(self._settings, self._read(self.model, optimizer)):
            raise ValueError("set_optimizer may change the learning rates alone, all by one factor")
        self._optimizer, self._rate = optimizer, _rate_of(optimizer)

    def copy_weights_to_host(self) -> None:
        """Writes the trained weights and statistics to the module (`copyWeightsToHost`)."""
        if self.loop is not None:
            self.loop.to_torch()

    @property
    def profile(self) -> Profile | None:
        """The account of a step; None before the first call and on the direct engine."""
        return None if self.loop is None else self.loop.profile

    def _read(self, model: TorchModel, optimizer: Any) -> Sgd | Adam:
        return from_torch_optimizer(model, optimizer, lr=self._rate_of)

    def _rate_of(self, step: int) -> float:
        """The learning rate of the first group as it is now."""
        return self._rate

    def _compiled(self, batch: Any) -> TrainLoop:
        if self.loop is None:
            options = self.options
            model = from_torch(self._module, _parts(batch, options.gradient_accumulation)[0])
            settings = self._read(model, self._optimizer)
            self.loop = TrainLoop(
                model, model.params, batch, optimizer=settings, precision=options.precision, engine=options.engine,
                target=options.target, key=options.seed, micro_batches=options.gradient_accumulation,
                loss_scale=options.loss_scale, steps_per_call=options.device_iterations, model_state=model.state,
            )  # fmt: skip
            self.model, self._settings = model, settings
        return self.loop


class InferenceModel:
    """See `inference_model`.

    Attributes:
        options: how it runs.
        predictor: what runs; None before the first call.
    """

    def __init__(self, module: Any, options: Options) -> None:
        expect(Options, options=options)
        self._module, self.options, self._calls = module, options, 0
        self.predictor: Predictor | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The module's outputs for a batch, as tensors nested as the module nests them.

        Args:
            inputs: of the module; their first axis has the rows of all iterations.
            named: likewise, by name.

        Raises:
            ValueError: rows that cannot be cut into so many parts, or what `from_torch` and `Predictor` refuse.
            OutOfTileMemory: it does not fit the target.
        """
        torch = optional("torch", extra="torch")
        batches = _parts(_bound(self._module, inputs, named), self.options.device_iterations)
        predictor = self._compiled(batches[0])
        outputs = [predictor(batch, self._calls + number) for number, batch in enumerate(batches)]
        self._calls += len(batches)
        return map_leaves(lambda *parts: torch.tensor(_joined(parts)), *outputs)

    def copy_weights_to_device(self) -> None:
        """Takes the module's weights as they are now (`copyWeightsToDevice`)."""
        if self.predictor is not None:
            self.predictor.write(*self._model.from_state_dict(self._module.state_dict()))

    @property
    def profile(self) -> Profile | None:
        """The account of one iteration; None before the first call and on the direct engine."""
        return None if self.predictor is None else self.predictor.profile

    def _compiled(self, batch: Any) -> Predictor:
        if self.predictor is None:
            options, model = self.options, from_torch(self._module, batch, inference=True)
            self._model = model
            self.predictor = Predictor(
                model, model.params, batch, precision=options.precision, engine=options.engine, target=options.target,
                key=options.seed, model_state=model.state,
            )  # fmt: skip
        return self.predictor


def _bound(module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The inputs of a call as a batch: in order, or all by name where some are."""
    if not named:
        return inputs
    return dict(inspect.signature(module.forward).bind(*inputs, **named).arguments)


def _rate_of(optimizer: Any) -> float:
    """The learning rate of the first group of an optimiser."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        raise TypeError(f"an optimizer is one of torch.optim, not {shown(optimizer)}")
    return float(groups[0]["lr"])


def _parts(batch: Any, count: int) -> list[Any]:
    """Equal runs of the rows of a batch.

    Raises:
        ValueError: there are none.
    """
    rows = {np.shape(leaf)[:1] for leaf in flatten(batch)[0]}
    if count > 1 and not all(given and given[0] % count == 0 for given in rows):
        raise ValueError(f"inputs of {sorted(rows)} rows cannot be cut into {count} equal parts")
    return [map_leaves(functools.partial(_part, number, count), batch) for number in range(count)]


def _part(number: int, count: int, x: Any) -> Any:
    if count == 1:
        return x
    size = np.shape(x)[0] // count
    return x[number * size : (number + 1) * size]


def _joined(parts: tuple[Any, ...]) -> Any:
    """The outputs of all iterations one after another; numbers as a row of them."""
    return parts[0] if len(parts) == 1 else np.concatenate([np.atleast_1d(part) for part in parts])


def _alike(old: Common, new: Common) -> bool:
    """Whether two settings are the same, up to the rounding of the ratios of learning rates."""
    if replace(old, groups=()) != replace(new, groups=()) or len(new.groups) != len(old.groups):
        return False
    pairs = list(zip(old.groups, new.groups, strict=True))
    same = [replace(one, lr=1.0) == replace(other, lr=1.0) for one, other in pairs]
    return all(same) and all(math.isclose(one.lr, other.lr, rel_tol=1e-6) for one, other in pairs)
