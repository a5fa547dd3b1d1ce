"""Modules wrapped for the machine: `trainingModel`, `inferenceModel` and what they give."""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from ipu_core.capture.batch import PLAIN, plain
from ipu_core.capture.model import TorchModel, captured
from ipu_core.control import FloatingPointControl
from ipu_core.engine.profile import Profile
from ipu_core.ir.pytree import flatten, map_leaves, paths, unflatten
from ipu_core.ir.retype import cast
from ipu_core.poptorch.options import Options
from ipu_core.poptorch.outputs import Kept, combined
from ipu_core.poptorch.settings import in_float32, precision_of, scale_of, settings_of
from ipu_core.poptorch.words import MODEL_NOT_HERE, OutputMode, ReductionType
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam, Sgd
from ipu_core.train.optim.common import Common
from ipu_core.train.predictor import Predictor
from lowprec.checks import expect, shown
from lowprec.extras import optional

NOT_COMPILED = "the model is not compiled: call it, or compile(...) with a batch"


def trainingModel(model: Any, options: Options | None = None, optimizer: Any = None) -> TrainingModel:
    """A module that trains when it is called.

    Args:
        model: a `torch.nn.Module` that gives its loss, alone or among its outputs: what `identity_loss` marked, its
            attribute `loss`, or the only number that has gradients.
        options: how it runs; None: `Options()`.
        optimizer: one of torch.optim or `poptorch.optim` over the parameters, of whichever module they were asked.

    Raises:
        TypeError: no module, options or optimiser.
    """
    return TrainingModel(model, options, optimizer)


def inferenceModel(model: Any, options: Options | None = None) -> InferenceModel:
    """A module that gives its outputs, in eval mode, when it is called; its weights are those of then.

    Raises:
        TypeError: no module or options.
        ValueError: options with gradient accumulation.
    """
    return InferenceModel(model, options)


class PoplarExecutor(ABC):
    """What wrapped modules have in common; attributes of the module itself are found here, too.

    Attributes:
        model: the module.
        options: how it runs; fixed.
    """

    def __init__(self, model: Any, options: Options | None) -> None:
        torch = optional("torch", extra="torch")
        model = vars(model)["model"] if isinstance(model, PoplarExecutor) else model
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {shown(model)}")
        options = Options() if options is None else options
        expect(Options, options=options)
        self.model: Any = model
        self.options = options.clone().fixed()
        self._attached, self._settings = False, dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        if name in MODEL_NOT_HERE:
            raise AttributeError(f"{name} is not here: {MODEL_NOT_HERE[name]}")
        if name.startswith("_") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    @abstractmethod
    def profile(self) -> Profile | None:
        """The account of an iteration; None before it is compiled and on the direct engine."""

    @abstractmethod
    def _compile(self, batches: list[Any]) -> None:
        """Captures and compiles, if that is not done."""

    @abstractmethod
    def isCompiled(self) -> bool:
        """Whether it was captured and compiled."""

    @abstractmethod
    def copyWeightsToDevice(self) -> None:
        """Takes the weights and buffers of the module as they are now."""

    def compile(self, *inputs: Any, **named: Any) -> None:
        """Captures and compiles it for a batch as it is called with, without running it."""
        self._compile(self._batches(inputs, named))
        self._attached = True

    def isAttachedToDevice(self) -> bool:
        """Whether it was compiled or called, and not detached since."""
        return self._attached

    def detachFromDevice(self) -> None:
        """Until it is called again; the module has the weights.

        Raises:
            ValueError: it is not compiled, or not attached.
        """
        self._attach(False)

    def attachToDevice(self) -> None:
        """Again; a call does so by itself.

        Raises:
            ValueError: it is not compiled, or attached.
        """
        self._attach(True)

    def _attach(self, wanted: bool) -> None:
        self._check_compiled()
        if self._attached == wanted:
            raise ValueError(f"the model is {'already' if wanted else 'not'} attached")
        self._attached = wanted

    def _check_compiled(self) -> None:
        if not self.isCompiled():
            raise ValueError(NOT_COMPILED)

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        """Of the module, whose weights are then taken if it is compiled."""
        found = self.model.load_state_dict(state_dict, strict=strict)
        if self.isCompiled():
            self.copyWeightsToDevice()
        return found

    def cycleCount(self) -> int:
        """Cycles of a call, of all its iterations.

        Raises:
            ValueError: it is not compiled, or runs on the direct engine, which has no account.
        """
        return self._account().cycles * self.options.device_iterations

    def getComputeLatency(self) -> tuple[float, float, float]:
        """Least, most and mean modelled seconds of an iteration, which are the same.

        Raises:
            ValueError: as `cycleCount`.
        """
        return (self._account().seconds,) * 3

    def getLatency(self) -> tuple[float, float, float]:
        """As `getComputeLatency`: the account of the machine has no transfers of the host."""
        return self.getComputeLatency()

    def _account(self) -> Profile:
        self._check_compiled()
        if self.profile is None:
            raise ValueError("the direct engine has no account: Options(engine='tiles') has")
        return self.profile

    def _batches(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """The inputs of a call, iteration by iteration, without what is no tensor."""
        by_name = bool(named) or any(isinstance(x, PLAIN) for x in inputs)
        batch = plain(
            dict(inspect.signature(self.model.forward).bind(*inputs, **named).arguments) if by_name else inputs
        )
        leaves, tree = flatten(batch)
        names = paths(tree)
        settings = {name: x for name, x in zip(names, leaves, strict=True) if isinstance(x, PLAIN)}
        if self.isCompiled() and settings != self._settings:
            raise ValueError(f"the model was compiled with {self._settings or 'no settings'}, not with "
                             f"{settings or 'none'}: destroy() it first")  # fmt: skip
        self._settings = settings
        options = self.options
        rows = {np.shape(x)[:1] for x in leaves if not isinstance(x, PLAIN)}
        if options.combined > 1 and not all(given and given[0] % options.combined == 0 for given in rows):
            raise ValueError(
                f"inputs of {sorted(rows)} rows cannot be cut into deviceIterations({options.device_iterations}) x "
                f"replicationFactor({options.replication_factor}) x gradientAccumulation"
                f"({options.Training.gradient_accumulation}) equal micro-batches"
            )
        return _parts(batch, options.device_iterations)


class TrainingModel(PoplarExecutor):
    """See `trainingModel`.

    Attributes:
        captured: what was captured; None before it is compiled.
        loop: the training loop; None before.
    """

    def __init__(self, model: Any, options: Options | None, optimizer: Any) -> None:
        super().__init__(model, options)
        self._optimizer, self._rate = optimizer, _rate_of(optimizer)
        self.captured: TorchModel | None = None
        self.loop: TrainLoop | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Trains on the rows of all iterations and micro-batches.

        Returns:
            What the module gives, nested as it nests it, as float32 tensors; which batches' is for
            `Options.outputMode` to say: the last micro-batch's if nothing was said. The module has the new weights.

        Raises:
            ValueError: rows that cannot be cut into so many parts; weights of the module that were written to since the
                last call; or what `from_torch` and `TrainLoop` refuse.
            OutOfTileMemory: the step does not fit the target.
        """
        batches = self._batches(inputs, named)
        self._compile(batches)
        assert self.loop is not None
        if self._versions() != self._written:
            raise ValueError("weights of the module were written to since the last call: copyWeightsToDevice() takes "
                             "them, copyWeightsToHost() puts the trained ones back")  # fmt: skip
        self._attached = True
        options, found = self.options, list[list[Any]]()
        mode = OutputMode.Final if options.output_mode == OutputMode.Default else options.output_mode
        several = len(batches) if mode == OutputMode.Final else 1
        for first in range(0, len(batches), several):
            some = [self._kept.batch(_without_settings(batch)) for batch in batches[first : first + several]]
            self.loop.run(some, len(some))
            found += self._kept.read(self.loop.model_state)
        self.copyWeightsToHost()
        return self._kept.nested(combined(found, mode, options.output_return_period))

    def isCompiled(self) -> bool:
        """Whether it was captured and compiled."""
        return self.loop is not None

    def setOptimizer(self, optimizer: Any) -> None:
        """Takes the learning rates of an optimiser as they are now, after its scheduler's step.

        Raises:
            ValueError: anything else than the learning rates changed, or their ratios did.
        """
        if self.captured is not None:
            same = _alike(self._made, self._read(self.captured, optimizer))
            if not same or scale_of(self.options, optimizer) != scale_of(self.options, self._optimizer):
                raise ValueError("setOptimizer may change the learning rates alone, all by one factor")
        self._optimizer, self._rate = optimizer, _rate_of(optimizer)

    def copyWeightsToHost(self) -> None:
        """Writes the trained weights and statistics to the module; every call does so at its end."""
        if self.loop is None or self.captured is None:
            raise ValueError(NOT_COMPILED)
        steps = self.loop.step * self.options.Training.gradient_accumulation
        self.captured.to_torch(self.loop.params, self.loop.model_state["buffers"], steps=steps)
        self._written = self._versions()

    def copyWeightsToDevice(self) -> None:
        """Takes the weights and buffers of the module as they are now; moments stay.

        Raises:
            ValueError: it is not compiled.
        """
        if self.loop is None or self.captured is None:
            raise ValueError(NOT_COMPILED)
        params, buffers = self.captured.from_state_dict(self.model.state_dict())
        arrays = self.loop.arrays()
        for name, x in params.items():
            arrays[f"params.{name}"] = cast(x, self.loop.precision.weights_of(name))
        for name, x in (buffers or {}).items():
            key = f"model.buffers.{name}"
            arrays[key] = x.astype(arrays[key].dtype)
        self.loop.restore(arrays, self.loop.step)
        self._written = self._versions()

    def destroy(self) -> None:
        """Lets go of what was compiled, moments too; the module has the weights."""
        self.loop = self.captured = None
        self._attached = False

    @property
    def profile(self) -> Profile | None:
        """The account of a step; None before it is compiled and on the direct engine."""
        return None if self.loop is None else self.loop.profile

    def _versions(self) -> list[int]:
        return [x._version for x in self.model.parameters()]

    def _read(self, model: TorchModel, optimizer: Any) -> Sgd | Adam:
        return settings_of(model, optimizer, self._rate_of)

    def _rate_of(self, step: int) -> float:
        """The learning rate of the first group as it is now."""
        return self._rate

    def _compile(self, batches: list[Any]) -> None:
        if self.loop is not None:
            return
        options, training = self.options, self.options.Training
        count, mode = training.gradient_accumulation, options.output_mode
        precision = precision_of(options, self.model, self._optimizer)
        with in_float32(self.model):
            model = captured(self.model, _parts(batches[0], count)[0], kept=True)
            made = self._read(model, self._optimizer)
        self._kept = Kept(model, count, mode, total=training.reduction == ReductionType.Sum)
        sizes = {name: x.size for name, x in model.params.items()}
        last = mode in (OutputMode.Final, OutputMode.Default)
        self.loop = TrainLoop(
            self._kept, model.params, self._kept.batch(_without_settings(batches[0])), optimizer=made,
            precision=precision, engine=options.engine, target=options.target, key=options.random_seed,
            micro_batches=count, loss_scale=scale_of(options, self._optimizer),
            steps_per_call=options.device_iterations if last else 1, model_state=self._kept.state(),
            streamed=tuple(options.TensorLocations.streamed(sizes)), control=_control(options),
        )  # fmt: skip
        self.captured, self._made, self._written = model, made, self._versions()


class InferenceModel(PoplarExecutor):
    """See `inferenceModel`.

    Attributes:
        predictor: what runs; None before it is compiled.
    """

    def __init__(self, model: Any, options: Options | None) -> None:
        super().__init__(model, options)
        if self.options.Training.gradient_accumulation > 1:
            raise ValueError("an inferenceModel has gradientAccumulation(1): options.clone() may be changed")
        self._calls = 0
        self._captured: TorchModel | None = None
        self.predictor: Predictor | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The module's outputs for the rows of all iterations, as tensors nested as the module nests them.

        Raises:
            ValueError: rows that cannot be cut into so many parts, or what `from_torch` and `Predictor` refuse.
            OutOfTileMemory: it does not fit the target.
        """
        batches = self._batches(inputs, named)
        self._compile(batches)
        assert self.predictor is not None
        if self._versions() != self._written:
            self.copyWeightsToDevice()
        self._attached = True
        outputs = [flatten(self.predictor(_without_settings(batch), self._calls + number))
                   for number, batch in enumerate(batches)]  # fmt: skip
        self._calls += len(batches)
        mode = OutputMode.All if self.options.output_mode == OutputMode.Default else self.options.output_mode
        found = combined([leaves for leaves, _ in outputs], mode, self.options.output_return_period)
        return unflatten(outputs[0][1], found)

    def isCompiled(self) -> bool:
        """Whether it was captured and compiled."""
        return self.predictor is not None

    def copyWeightsToDevice(self) -> None:
        """Takes the weights and buffers of the module as they are now; a call does so where they were written to.

        Raises:
            ValueError: it is not compiled.
        """
        if self.predictor is None or self._captured is None:
            raise ValueError(NOT_COMPILED)
        self.predictor.write(*self._captured.from_state_dict(self.model.state_dict()))
        self._written = self._versions()

    def destroy(self) -> None:
        """Lets go of what was compiled."""
        self.predictor, self._attached = None, False

    @property
    def profile(self) -> Profile | None:
        """The account of an iteration; None before it is compiled and on the direct engine."""
        return None if self.predictor is None else self.predictor.profile

    def _versions(self) -> list[tuple[int, int]]:
        return [(id(x), x._version) for x in (*self.model.parameters(), *self.model.buffers())]

    def _compile(self, batches: list[Any]) -> None:
        if self.predictor is not None:
            return
        options, precision = self.options, precision_of(self.options, self.model)
        with in_float32(self.model):
            model = captured(self.model, batches[0], inference=True)
        self.predictor = Predictor(
            model, model.params, _without_settings(batches[0]), precision=precision, engine=options.engine,
            target=options.target, key=options.random_seed, model_state=model.state, control=_control(options),
        )  # fmt: skip
        self._captured, self._written = model, self._versions()


def _control(options: Options) -> FloatingPointControl | None:
    traps = options.Precision.exceptions
    return FloatingPointControl(inv=True, div0=True, oflo=True) if traps else None


def _without_settings(batch: Any) -> Any:
    """The tensors of a batch in order."""
    return [x for x in flatten(batch)[0] if not isinstance(x, PLAIN)]


def _rate_of(optimizer: Any) -> float:
    """The learning rate of the first group of an optimiser."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        raise TypeError(f"an optimizer is one of torch.optim or poptorch.optim, not {shown(optimizer)}")
    return float(groups[0]["lr"])


def _parts(batch: Any, count: int) -> list[Any]:
    """Equal runs of the rows of a batch."""
    return [map_leaves(functools.partial(_part, number, count), batch) for number in range(count)]


def _part(number: int, count: int, x: Any) -> Any:
    if count == 1 or isinstance(x, PLAIN):
        return x
    size = np.shape(x)[0] // count
    return x[number * size : (number + 1) * size]


def _alike(old: Common, new: Common) -> bool:
    """Whether two settings are the same, up to the rounding of the ratios of learning rates."""
    if replace(old, groups=()) != replace(new, groups=()) or len(new.groups) != len(old.groups):
        return False
    pairs = list(zip(old.groups, new.groups, strict=True))
    same = [replace(one, lr=1.0) == replace(other, lr=1.0) for one, other in pairs]
    return all(same) and all(math.isclose(one.lr, other.lr, rel_tol=1e-6) for one, other in pairs)
