"""`trainingModel`: a module that trains when it is called."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ipu_core.engine.profile import Profile
from ipu_core.frontends.torch.model import TorchModel, captured
from ipu_core.frontends.torch.optimizers import Taken
from ipu_core.ir.precision.retype import cast
from ipu_core.poptorch.executor import NOT_COMPILED, PoplarExecutor, control_of, parts_of, tensors_of
from ipu_core.poptorch.options import Options
from ipu_core.poptorch.outputs import LossWithOutputs, combined
from ipu_core.poptorch.settings import in_float32, precision_of, scale_of, settings_of
from ipu_core.poptorch.stages import stages_of
from ipu_core.poptorch.words import OutputMode, ReductionType
from ipu_core.system.account import SystemProfile
from ipu_core.train.loop import TrainLoop
from lowprec.checks import shown


def trainingModel(model: Any, options: Options | None = None, optimizer: Any = None) -> TrainingModel:
    """A module that trains when it is called.

    Args:
        model: a `torch.nn.Module` that gives its loss, alone or among its outputs: what `identity_loss` marked, its
            attribute `loss`, or the only number that has gradients.
        options: how it runs; None: `Options()`.
        optimizer: one of torch.optim or `poptorch.optim` over the parameters, of whichever module they were asked.

    Raises:
        TypeError: no module, options or optimizer.
    """
    return TrainingModel(model, options, optimizer)


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
        # weights loaded after the first call would otherwise be overwritten by the trained ones, in silence
        if self._versions() != self._written:
            raise ValueError("weights of the module were written to since the last call: copyWeightsToDevice() takes "
                             "them, copyWeightsToHost() puts the trained ones back")  # fmt: skip
        self._attached = True
        options, found = self.options, list[list[Any]]()
        mode = OutputMode.Final if options.output_mode == OutputMode.Default else options.output_mode
        # only the last outputs are asked for: one call of the loop runs all iterations, else each is read out in turn
        several = len(batches) if mode == OutputMode.Final else 1
        for first in range(0, len(batches), several):
            some = [self._kept.batch(tensors_of(batch)) for batch in batches[first : first + several]]
            self.loop.run(some, len(some))
            found += self._kept.read(self.loop.model_state, self.loop.for_host)
        # torch's schedulers warn of an optimizer that made no update before their first step: this one did
        self._optimizer._opt_called = True
        self.copyWeightsToHost()
        return self._kept.nested(combined(found, mode, options.output_return_period))

    def isCompiled(self) -> bool:
        """Whether it was captured and compiled."""
        return self.loop is not None

    def setOptimizer(self, optimizer: Any) -> None:
        """Takes the learning rates of an optimizer as they are now, after its scheduler's step.

        Raises:
            ValueError: anything else than the learning rates changed, or their ratios did.
        """
        if self.captured is not None:
            # the step is compiled with these settings; a learning rate alone is an input of it
            same = _alike(self._made, self._read(self.captured, optimizer))
            if not same or scale_of(self.options, optimizer) != scale_of(self.options, self._optimizer):
                raise ValueError("setOptimizer may change the learning rates alone, all by one factor")
        self._optimizer, self._rate = optimizer, _rate_of(optimizer)

    def copyWeightsToHost(self) -> None:
        """Writes the trained weights and statistics to the module; every call does so at its end."""
        if self.loop is None or self.captured is None:
            raise ValueError(NOT_COMPILED)
        # torch's batch norms count forward passes, of which a step has one for each micro-batch
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
            # in the format in which the loop keeps weights; the checkpoint's names, so that moments stay
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

    @property
    def system_profile(self) -> SystemProfile | None:
        """The account of a step on all chips of replicas and stages; None as `profile`."""
        return None if self.loop is None else self.loop.system_profile

    def _versions(self) -> list[int]:
        return [x._version for x in self.model.parameters()]

    def _read(self, model: TorchModel, optimizer: Any) -> Taken:
        return settings_of(model, optimizer, self._rate_of)

    def _rate_of(self, step: int) -> float:
        """The learning rate of the first group as it is now."""
        return self._rate  # whatever the step: schedulers move the optimizer, and setOptimizer reads it

    def _compile(self, batches: list[Any]) -> None:
        if self.loop is not None:
            return
        options, training = self.options, self.options.Training
        count, replicas, mode = training.gradient_accumulation, options.replication_factor, options.output_mode
        precision = precision_of(options, self.model, self._optimizer)
        with in_float32(self.model):
            model = captured(self.model, parts_of(batches[0], count * replicas)[0], kept=True, like=self._like)
            made = self._read(model, self._optimizer)
        self._kept = LossWithOutputs(model, count, replicas, mode, total=training.reduction == ReductionType.Sum)
        sizes = {name: x.size for name, x in model.params.items()}
        sharded = tuple(options.TensorLocations.sharded(sizes)) if replicas > 1 else ()
        last = mode in (OutputMode.Final, OutputMode.Default)
        stages = stages_of(self.model, options.strategy)
        schedule = "grouped" if not stages or options.strategy is None else options.strategy.schedule
        self.loop = TrainLoop(
            self._kept, model.params, self._kept.batch(tensors_of(batches[0])), optimizer=made,
            precision=precision, engine=options.engine, target=options.system or options.target,
            key=options.random_seed,
            micro_batches=count, replicas=replicas, collective=options.collective, sharded=sharded,
            loss_scale=scale_of(options, self._optimizer),
            # outputs of every step are read between steps, so a call has one step where all are asked for
            # and an account of stages is of one step
            steps_per_call=options.device_iterations if last and not stages else 1, model_state=self._kept.state(),
            stages=stages or 1, pipeline_schedule=schedule,
            streamed=tuple(options.TensorLocations.streamed(sizes)), control=control_of(options),
        )  # fmt: skip
        self.captured, self._made, self._written = model, made, self._versions()


def _rate_of(optimizer: Any) -> float:
    """The learning rate of the first group of an optimizer."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        raise TypeError(f"an optimizer is one of torch.optim or poptorch.optim, not {shown(optimizer)}")
    return float(groups[0]["lr"])


def _alike(old: Taken, new: Taken) -> bool:
    """Whether two settings are the same, up to the rounding of the ratios of learning rates."""
    if replace(old, groups=()) != replace(new, groups=()) or len(new.groups) != len(old.groups):
        return False
    pairs = list(zip(old.groups, new.groups, strict=True))
    # ratios of rates come from torch's floats by a division: equal up to rounding
    same = [replace(one, lr=1.0) == replace(other, lr=1.0) for one, other in pairs]
    rates = [(one.lr, other.lr) for one, other in pairs]
    return all(same) and all(
        old == new if callable(old) or callable(new) else math.isclose(old, new, rel_tol=1e-6) for old, new in rates
    )
