"""The training loop: one planned and compiled step, run for thousands of batches on the tiles or directly."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from ipu_core.control import FloatingPointControl
from ipu_core.engine.profile import Profile
from ipu_core.errors import NotFinite, OtherOrders
from ipu_core.ir.amax_scales import fitting
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision import Precision
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.target import Target
from ipu_core.train.arguments import check_integer, check_loss_function
from ipu_core.train.batches import Batches
from ipu_core.train.callbacks import Callback
from ipu_core.train.finite import check_choice
from ipu_core.train.intake import Intake
from ipu_core.train.interrupts import Hold
from ipu_core.train.keywords import Options, takes
from ipu_core.train.optim.common import Common, rate_of
from ipu_core.train.options import Execution, Training, foreign, options_of
from ipu_core.train.planned import planned_step
from ipu_core.train.precision_table import WIDTH, precision_table
from ipu_core.train.predictor import Predictor
from ipu_core.train.progress import Run
from ipu_core.train.random import read_random
from ipu_core.train.resumption import Resumable
from ipu_core.train.runner import Runner
from ipu_core.train.scaling import Scale, Skipped
from ipu_core.train.step import Loss, initial_state, step_block
from ipu_core.train.table import Table
from ipu_core.train.units import loss_in_units, writer_of
from ipu_core.train.updates import UpdateCount, UpdateCounter
from ipu_core.train.watch import Record, Watch
from ipu_core.train.watch.watch import Watching
from ipu_core.train.words import described, summary, sums
from lowprec import Accumulation, Key, as_key
from lowprec.processor import in_default_state


class TrainLoop(Resumable):
    """Trains a loss function in one precision, batch by batch. Both engines give the same bits.

    Args:
        loss: (params, batch) -> one number; traced once.
        params: Initial parameters, nested float arrays; rounded to nearest into the precision's weight format.
        batch: One batch, for its shapes and dtypes.
        training: What decides the bits, see `Training`; None: the options say it.
        execution: Where it runs, see `Execution`; None: the options say it.
        key: Of the run; step i rounds with key.fold_in(i).
        model_state: What the model carries from step to step beside its parameters, such as running statistics, nested
            float arrays: the loss is then (params, state, batch) -> (one number, new state). None: nothing.
        watch: What is looked at while it trains, a `Watch` or every how many steps: scale, exponents, and what rounding
            did to every value of the step (see `watched`). On tiles a step that is looked at is done on whole arrays,
            where the tiles' workers draw random bits beside them with bits of the key. No bit changes. None: nothing.
        on_nonfinite: What is done when a loss is infinite or NaN, the first time: "warn" says so at once, with the
            step; "stop" ends `run` after that step, and `train` raises the warning; it says also in which equation the
            first such number was made, for which the state is copied before each step. "ignore": nothing is said.
        **options: The fields of `Training` and of `Execution`, where those are not given: `optimizer` and `precision`
            at least. `target`, a `Target` or its name, says the family and the adder of the Training too.

    Raises:
        ValueError: an unknown engine or precision, one under unit scaling for weights of other deviations, hardware
            random bits on an engine or in a precision that has none (see `check_hardware_random`), a batch that cannot
            be cut into so many parts, a name to stream that nothing has, or what tracing refuses.
        TypeError: an argument of another kind, an unknown one, or one beside the value that it is a field of.
        OutOfTileMemory, OutOfStreamingMemory: the step does not fit the target (engine "tiles").

    Warns:
        OtherOrders: the chip is of another family, or has another adder, than the Training whose orders it runs.

    Attributes:
        block: The typed step.
        ideal: The step before its precision, in float32.
        training, execution: What decides the bits, and where they are made.
        step: Steps done.
        skipped: Steps that changed nothing, with what was wrong.
        not_finite: The first step whose loss was infinite or NaN, and that loss; None: there was none.
    """

    @takes(Options, Training, Execution)
    @in_default_state
    def __init__(
        self,
        loss: Loss,
        params: Any,
        batch: Any,
        *,
        training: Training | None = None,
        execution: Execution | None = None,
        key: Key | int = 0,
        model_state: Any = None,
        watch: Watch | int | None = None,
        on_nonfinite: str = "warn",
        **options: Unpack[Options],
    ) -> None:
        check_loss_function(loss)
        self.training, self.execution = training, execution = options_of(training, execution, **options)
        if told := foreign(training, execution):
            warnings.warn(told, OtherOrders, stacklevel=3)
        precision, optimizer = training.precision, training.optimizer
        self._to_torch, loss = writer_of(loss), loss_in_units(loss, params, precision)
        if isinstance(optimizer, Common):
            optimizer = optimizer.for_precision(precision.scaled_state, store_root=precision.store_root)
        self._scale = None if training.loss_scale is None else Scale.of(training.loss_scale)
        self.ideal = step_block(
            loss, optimizer, params, batch,
            micro_batches=training.micro_batches, running_mean=precision.running_mean, scaled=self._scale is not None,
            model_state=model_state,
        )  # fmt: skip
        self._key, self._random = as_key(key), read_random(training.random, as_key(key))
        planned = planned_step(self.ideal, training, execution)
        self.block: Block = planned.block
        self.accumulations: Mapping[int, Accumulation] = planned.accumulations
        self._traced_step = planned.digest
        self.skipped: tuple[Skipped, ...] = ()
        self.not_finite: tuple[int, float] | None = None
        self._on_nonfinite, self._cause = check_choice(on_nonfinite), ""
        self._intake = Intake(self.block, batch, numbers=1 if self._scale is None else 2)
        self._hold = Hold()
        self._run: Run | None = None
        self._resumed: tuple[int, dict[str, Any]] | None = None
        self.step = 0
        self._rate = optimizer.lr
        rate_of(self._rate, 0)
        leaves, self._tree = flatten(precision.cast_state(self.block, initial_state(params, optimizer, model_state)))
        self._runner = self._run_by()
        self._runner.write(leaves)
        self._watching = None if watch is None else Watching(Watch.of(watch), self.block)

    def _run_by(self) -> Runner:
        """What runs the steps."""
        on = self.execution
        return Runner(
            self.block, on.target, self.accumulations, self.training.control, on.engine,
            overlap=on.overlap, share=on.reorder and self._random is None, steps_per_call=on.steps_per_call,
            random=self._random,
        )  # fmt: skip

    @property
    def precision(self) -> Precision:
        """The precision of its steps."""
        return self.training.precision

    @property
    def target(self) -> Target:
        """The modelled chip."""
        return self.execution.target

    def in_precision(self, precision: Precision | str) -> TrainLoop:
        """The same training from the state it is in, in another precision, on the direct engine, not watched.

        Random bits are the key's. The state is rounded to nearest where the new formats are narrower; delayed scales
        begin anew where they are those of other tensors. Nothing is traced again, and equations stay in the order of
        the trace.

        Raises:
            ValueError: the precision keeps scaled moments or a running mean otherwise, which is traced.
        """
        precision = Precision.parse(precision)
        if precision.unit_scaled != self.precision.unit_scaled:  # which is traced
            precision = precision.changed(unit_scaled=self.precision.unit_scaled)
        for name in ("scaled_state", "store_root", "running_mean"):
            if getattr(precision, name) != (own := getattr(self.precision, name)):
                raise ValueError(f"this loop was traced with {name} {own}, not {getattr(precision, name)}")
        new = object.__new__(type(self))
        vars(new).update(self.__getstate__(), _random=None, _watching=None)
        new._to_torch = self._to_torch
        new.training = replace(self.training, precision=precision, random="philox")
        new.execution = replace(self.execution, engine="direct")
        if precision != self.precision or self._random is not None:
            planned = planned_step(self.ideal, new.training, replace(new.execution, reorder=False))
            new.block, new.accumulations, new._traced_step = planned
        new._runner = new._run_by()
        state = fitting(new.block, unflatten(self._tree, self._runner.read()))
        leaves, new._tree = flatten(precision.cast_state(new.block, state))
        new._runner.write(leaves)
        return new

    def next_step(self, batch: Any) -> tuple[list[Any], Key]:
        """What the next step takes: one array or number per input of `block`, the state first, and its key."""
        return [*self._runner.read(), *self._inputs(batch, self.step)], self._key.fold_in(self.step)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: everything but the run under way and a captured module."""
        return {**vars(self), "_run": None, "_hold": Hold(), "_to_torch": None}

    def __copy__(self) -> Self:
        new = object.__new__(type(self))
        own = {name: copy.copy(getattr(self, name)) for name in ("_runner", "_watching", "_to_torch")}
        vars(new).update(self.__getstate__(), **own)
        return new

    def run(self, batches: Batches, steps: int, *, callbacks: Iterable[Callback] = ()) -> npt.NDArray[np.float32]:
        """`steps` updates; gives their losses. See `on_nonfinite` for what one that is not finite does.

        The first run after `load` goes on where the checkpoint's run was: in its batches, which are passed over without
        training and must come in the same order again, and with what its callbacks had seen. It does nothing where a
        callback had ended that run.

        Args:
            batches: A function from the step's number to its batch; the batches in order, such as a list; or `Epochs`,
                passes over them without end, or `Samples` of a data set.
            steps: How many; fewer are done where the batches in order end before.
            callbacks: Called after each step with the loop and the step's loss, in order: `Evaluate`, `EarlyStop`,
                `Checkpoint`, or any function. Where one gives something true the run ends. Those with `state` and
                `restore` are part of checkpoints.

        Raises:
            ValueError: a number of steps below 0; a batch that `train` refuses; batches or callbacks with which the
                checkpoint's run cannot go on.
            TypeError: batches that are none of these.
        """
        check_integer("steps", steps)
        run = Run(batches, callbacks, self.step, self._kept(), self.execution.steps_per_call)
        self._run, self._resumed = run, None  # not before: one that is refused may be begun again
        known, losses = self.not_finite, list[float]()
        with self.whole_steps():
            while some := run.take(min(self.execution.steps_per_call, steps - len(losses))):
                losses += self._train(some)
                words, ends = self._news(known)
                if words:
                    warnings.warn(words, NotFinite, stacklevel=2)
                run.call(self, losses[-1])
                if ends:
                    break
                known = self.not_finite
        run.finish()
        return np.array(losses, np.float32)

    @property
    def key(self) -> Key:
        """The key of the run."""
        return self._key

    @property
    def control(self) -> FloatingPointControl:
        """The floating-point control of its steps."""
        return self.training.control

    @property
    def loss_scale(self) -> float | None:
        """What the loss of the next step is multiplied by for its gradients; None: nothing."""
        return None if self._scale is None else float(self._scale.value)

    @property
    def params(self) -> Any:
        """The parameters after the steps done, nested as given, in the precision's weight format."""
        return unflatten(self._tree, self._runner.read())["params"]

    @property
    def model_state(self) -> Any:
        """What the model carries after the steps done; None where it carries nothing."""
        return unflatten(self._tree, self._runner.read()).get("model")

    @property
    def profile(self) -> Profile | None:
        """The machine's account of one step: cycles, memory, exchange; None on the direct engine."""
        return None if self._runner.machine is None else self._runner.machine.profile

    @property
    def watched(self) -> Record | None:
        """What was seen so far of a run that is watched; printed, its ten worst values."""
        return None if self._watching is None else self._watching.record

    @in_default_state
    def predict(self, forward: Callable[..., Any], inputs: Any) -> Any:
        """What a forward function makes of inputs with the parameters after the steps done: the first prediction of a
        `Predictor` in the loop's precision, control and key, which is traced anew in every call.

        Args:
            forward: (params, inputs) -> arrays, traceable; of a model with a state (params, state, inputs) -> such.
            inputs: nested arrays, of any number of rows.

        Returns:
            Arrays nested as forward gives them, floats in float32.

        Raises:
            TypeError, ValueError: as `Predictor`.
        """
        predicted = replace(self.execution, engine="direct")
        made = Predictor(
            forward, self.params, inputs, training=self.training, execution=predicted, key=self._key,
            model_state=self.model_state, whole=False,
        )  # fmt: skip
        return made(inputs)

    def to_torch(self, module: Any = None) -> Any:
        """Writes weights and running statistics after the steps done into the module of PyTorch that is trained.

        Args:
            module: one like that which `from_torch` captured; None: that one.

        Returns:
            The module.

        Raises:
            TypeError: the loss is not what `from_torch` gave, or the loop is a deep copy or was pickled, which leave
                the module behind; no module.
            ValueError: a module of other names or shapes.
        """
        if self._to_torch is None:
            raise TypeError(
                "this loop holds no module of PyTorch: its loss is not what from_torch gave, or it was pickled; "
                "model = from_torch(...) writes with model.to_torch(loop.params, loop.model_state, steps=loop.step)"
            )
        return self._to_torch(self.params, self.model_state, steps=self.step, module=module)

    def __str__(self) -> str:
        """The loop in a few lines: what is trained, how, how far, at what cost."""
        return summary(self)

    @in_default_state
    def count_updates(self, batch: Any) -> UpdateCount:
        """What would become of the weight updates in the next step, without doing it.

        It is computed directly, with random bits of the key whichever the run takes.
        """
        counter, inputs = UpdateCounter(), self._inputs(batch, self.step)
        updates = frozenset(equation.number for equation in equations_of(self.block) if equation.role == "update")
        with self.whole_steps(), self._hold:
            self._runner.rehearse(inputs, self._key.fold_in(self.step), counter, updates)
        return counter.total

    def sums(self) -> dict[str, tuple[Equation, Accumulation]]:
        """Every product and sum of the step by name, with the order and types in which it is made."""
        return sums(self.block, self.accumulations)

    def precision_table(self, width: int = WIDTH) -> Table:
        """What every equation of the step has: its name, role, operation, formats, sums, rounding and source line.

        Args:
            width: characters of a line; long names are shortened to fit.
        """
        return precision_table(self.block, self.precision, width)

    def words(self) -> str:
        """The precision and every product and sum in words, on the tiles with its place and cost."""
        machine = self._runner.machine
        lines = described(self.sums()) if machine is None else machine.plan.words().splitlines()
        return "\n".join([f"  {self.precision.words()}", *(f"  {line}" for line in lines)])
