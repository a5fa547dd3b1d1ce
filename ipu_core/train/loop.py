"""The training loop: one planned and compiled step, run for thousands of batches on the tiles or directly."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from ipu_core.diagnose.watch import Watch
from ipu_core.diagnose.watch.watch import Watching
from ipu_core.errors import ChangesNothing, NotFinite, NothingSaved, OtherOrders, Unvalidated
from ipu_core.ir.block import Array, is_wide
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.lockstep import check_seen
from ipu_core.train import checkpoint
from ipu_core.train.arguments import check_integer, check_loss_function
from ipu_core.train.callbacks import Callback
from ipu_core.train.data.batches import Batches, Run, check_enough
from ipu_core.train.describe import Reports
from ipu_core.train.execution import Execution
from ipu_core.train.fullest import unsaved
from ipu_core.train.keywords import LoopOptions, takes
from ipu_core.train.options import foreign, options_of
from ipu_core.train.predictor import Predictor
from ipu_core.train.state import State, check_identity
from ipu_core.train.step import Loss
from ipu_core.train.stepper import Stepper, begun, in_precision, traced
from ipu_core.train.training import Training
from ipu_core.train.units import writer_of
from ipu_core.train.ways_out import advised
from lowprec import Key, as_key
from lowprec.checks import expect_path
from lowprec.processor import in_default_state

Resumed = tuple[int, dict[str, Any]]
"""The step of a checkpoint that was loaded, and the state of its run."""
AS_MADE = ("training", "execution", "target", "precision", "control", "ideal", "block", "accumulations")
"""What is read alone: to set one would change what is said and not what is done."""


class TrainLoop(Reports):
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
            did to every value of the step (see `watched`). Where the tiles' workers draw random bits, it is looked at
            beside them, with bits of the key. No bit changes. None: nothing.
        on_nonfinite: What is done when a loss is infinite or NaN, the first time: "warn" says so at once, with the
            step; "stop" ends `run` after that step, and `train` raises the warning; it says also in which equation the
            first such number was made, for which the state is copied before each step. "ignore": nothing is said.
        **options: The fields of `Training` and of `Execution`, where those are not given: `optimizer` and `precision`
            at least. `target`, a `Target` or its name, says the family and the adder of the Training too.

    Raises:
        ValueError: an unknown engine or precision, one under unit scaling for weights of other deviations, hardware
            random bits on an engine or in a precision that has none (see `check_hardware_random`), a batch that cannot
            be cut into so many parts, a name to stream that nothing has, what tracing refuses, or results finer than
            float32 of a loss that `from_jax` captured in it.
        TypeError: an argument of another kind, an unknown one, or one beside the value that it is a field of.
        OutOfTileMemory, OutOfStreamingMemory: the step does not fit the target (engine "tiles"). Of tile memory it is
            said what streaming, recomputation, more micro-batches and narrow moments would free.

    Warns:
        OtherOrders: the chip is of another family, or has another adder, than the Training whose orders it runs.
        Unvalidated: a number of replicas that is no power of two, which no machine has.
        ChangesNothing: what the precision says beside its preset changes nothing in the step, such as moments that the
            optimizer does not keep.
        NothingSaved: what is made again makes the fullest tile fuller, what is streamed of activations frees less than
            1 % of it (engine "tiles", for which the step is compiled once more); no gradient reads anything of a part
            that is to be made again.

    Attributes:
        training, execution: What decides the bits, and where they are made.
        precision, control, target: Of these.
        ideal: The step before its precision, in float32.
        block: The typed step.
        accumulations: The order of each of its sums, in the types in which it is made, by equation number: those of
            `sums`.
        called: Steps of the last call, after which callbacks are called: several where the machine does so many.
    """

    called: int

    @takes(LoopOptions, Training, Execution)
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
        **options: Unpack[LoopOptions],
    ) -> None:
        check_loss_function(loss)
        training, execution = options_of(training, execution, **options)
        if told := foreign(training, execution):
            # 3: the caller's line lies behind the wrapper of in_default_state.
            warnings.warn(told, OtherOrders, stacklevel=3)
        if (count := training.replicas) & (count - 1):
            told = f"{count} replicas are no power of two, and Graphcore's collectives are of such numbers alone"
            warnings.warn(told, Unvalidated, stacklevel=3)
        with advised(lambda own: traced(loss, params, batch, own, model_state), training, execution):
            prepared, state = begun(loss, params, batch, training, execution, as_key(key), model_state, on_nonfinite)
            if watch is not None:
                check_seen(prepared.planned.block)
            watching = None if watch is None else Watching(Watch.of(watch), prepared.planned.block)
            self._begin(Stepper(prepared, state, watching), writer_of(loss))
        if prepared.unused:
            told = f"{training.precision.name}: {' and '.join(prepared.unused)} changes nothing in this step"
            warnings.warn(told, ChangesNothing, stacklevel=3)
        for told in unsaved(prepared.planned, self._stepper.prepared.bill):
            warnings.warn(told, NothingSaved, stacklevel=3)

    def _begin(self, stepper: Stepper, to_torch: Any = None, resumed: Resumed | None = None) -> None:
        self._stepper, self._to_torch, self._resumed = stepper, to_torch, resumed
        self._run: Run | None = None
        self.called = 1
        planned = stepper.prepared.planned
        self.training, self.execution, self.target = planned.training, planned.execution, planned.execution.target
        self.precision, self.control = planned.training.precision, planned.training.control
        self.ideal, self.block = planned.ideal, planned.block
        self.accumulations = MappingProxyType(planned.accumulations)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in AS_MADE and name in vars(self):
            raise AttributeError(f"a loop's {name} is what it was made with: make another loop, or see in_precision")
        super().__setattr__(name, value)

    @classmethod
    def _of(cls, stepper: Stepper, to_torch: Any, resumed: Resumed | None) -> Self:
        """A loop on the present state of a stepper."""
        made = cls.__new__(cls)
        made._begin(stepper, to_torch, resumed)
        return made

    def in_precision(self, precision: Precision | str) -> TrainLoop:
        """The same training from the state it is in, in another precision, on the direct engine, not watched.

        Random bits are the key's. The state is rounded to nearest where the new formats are narrower; delayed scales
        begin anew where they are those of other tensors. Nothing is traced again, and equations stay in the order of
        the trace.

        Raises:
            ValueError: the precision scales units, keeps scaled moments or roots or a running mean otherwise than this
                loop does, which is traced; it says what to give instead, "fp32.32/unit_scaled=true" for example.
        """
        own = self._stepper
        prepared, state = in_precision(own.prepared, own.state, Precision.parse(precision))
        # Not watched: a record is of the values of one typed step, and this is another.
        return self._of(Stepper(prepared, state, cause=own.cause), self._to_torch, self._resumed)

    def next_step(self, batch: Any) -> tuple[list[Any], Key]:
        """What the next step takes: one array or number per input of `block`, the state first, and its key."""
        step = self.step
        return [*self._stepper.runner.read(), *self._stepper.inputs(batch, step)], self.key.fold_in(step)

    def __copy__(self) -> Self:
        own = self._stepper
        # A record of its own: the loop and its copy would else write their looks into one.
        stepper = Stepper(own.prepared, own.state, copy.copy(own.watching), own.cause)
        return self._of(stepper, copy.copy(self._to_torch), self._resumed)

    def __reduce__(self) -> tuple[Any, ...]:
        """What a pickle or a deep copy holds: everything but the run under way and a captured module."""
        return type(self)._of, (self._stepper, None, self._resumed)

    def train(self, batch: Any) -> float:
        """One update on one batch, or none (see `skipped`); gives its loss.

        Raises:
            ValueError, TypeError: a batch unlike the one that was traced.
            FloatingPointException: one that the control enables; it says in which step and equation.
            NotFinite: the first loss that is infinite or NaN, where `on_nonfinite` is "stop"; the step is done.
        """
        known = self.not_finite
        with self.whole_steps():
            (loss,) = self._stepper.train([batch])
        self.called = 1  # a callback called by hand is due by this step alone
        # The step is done whatever is said of it: NotFinite leaves the loop behind this step.
        words, ends = self._stepper.news(known)
        if ends:
            raise NotFinite(words)
        if words:
            warnings.warn(words, NotFinite, stacklevel=2)
        return loss

    def whole_steps(self) -> AbstractContextManager[None]:
        """A context for many calls of `train`, in which they need not prepare for Ctrl-C one by one."""
        return self._stepper.hold.installed()

    def run(self, batches: Batches, steps: int, *, callbacks: Iterable[Callback] = ()) -> npt.NDArray[Any]:
        """`steps` updates; gives their losses, in float32, or in float64 where they are wider (precision="float64").

        See `on_nonfinite` for what one that is not finite does.

        The first run after `load` goes on where the checkpoint's run was: in its batches, which are passed over without
        training and must come in the same order again, and with what its callbacks had seen. It does nothing where a
        callback had ended that run.

        Args:
            batches: A function from the step's number to its batch; the batches in order, such as a list; or `Epochs`,
                passes over them without end, or `Samples` of a data set.
            steps: How many; fewer are done where an iterator ends before. A list that is too short is refused.
            callbacks: Called after each step with the loop and the step's loss, in order: `Evaluate`, `EarlyStop`,
                `Checkpoint`, or any function. Where one gives something true the run ends. Those with `state` and
                `restore` are part of checkpoints.

        Raises:
            ValueError: fewer steps than 0, or more than a list's batches; a batch that `train` refuses; batches or
                callbacks with which the checkpoint's run cannot go on.
            TypeError: batches that are none of these.
        """
        check_integer("steps", steps)
        stepper, most = self._stepper, self.execution.steps_per_call
        run = Run(batches, callbacks, self.step, self._kept(), most)
        check_enough(batches, steps)
        self._run, self._resumed = run, None  # not before: one that is refused may be begun again
        known, losses = self.not_finite, list[float]()
        with self.whole_steps():
            while some := run.take(min(most, steps - len(losses))):
                losses += stepper.train(some)
                self.called = len(some)
                words, ends = stepper.news(known)
                if words:
                    warnings.warn(words, NotFinite, stacklevel=2)
                run.call(self, losses[-1])
                if ends:
                    break
                known = stepper.steps.not_finite
        run.finish()
        fmt = self.block.outputs[self.block.carried].type.format
        return np.array(losses, np.float64 if is_wide(fmt) else np.float32)

    @property
    def for_host(self) -> list[Array] | None:
        """What a loss that has parts of its state `for_host` gave of them in the last step on every replica,
        (replicas, ...) each, in order and also where the step was skipped; None where vertices ran."""
        return self._stepper.runner.for_host

    @property
    def state(self) -> State:
        """A copy of everything that a step changes: parameters, moments, loss scale, steps done, generators."""
        return self._stepper.state

    def resume(self, state: State) -> None:
        """Goes on from a state that `state` gave, of this loop or of one whose steps have the same bits; a run that is
        under way is over.

        The loops may differ in their key, which the state brings along, their learning rate, their Execution and how
        far they are.

        Raises:
            TypeError: no such state.
            ValueError: one of another traced step, precision (its name aside), order of sums, loss scale or control, or
                other arrays than this loop has; it says what differs. See `in_precision` and `restore`.
        """
        self._resume(self._stepper.checked(state))

    def _resume(self, state: State) -> None:
        self._stepper.resume(state)
        self._run = None

    def arrays(self) -> dict[str, Array]:
        """The whole state by dotted name, for a checkpoint."""
        return self.state.arrays()

    def history(self) -> dict[str, Any]:
        """Steps skipped, and the first loss that was not finite, as JSON for a checkpoint."""
        return self._stepper.steps.history()

    def restore(self, arrays: Mapping[str, Array], step: int, history: Mapping[str, Any] | None = None) -> None:
        """Sets the state to arrays by name, as after `step` steps, and to the `history` of that time.

        They may be of any run, or changed: names, shapes and dtypes alone are looked at, not whose they are.

        Raises:
            TypeError: no arrays by name; masked elements.
            ValueError: not the arrays of this loop's state, no such step, or another history.
        """
        self._resume(self.state.restored(arrays, step, history))

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint that `load` goes on from: weights, moments, loss scale, the step, the key of the run, and
        the state of the tiles' random generators where it draws from them.

        With the key and the step the random bits of every later step are known. In a run it holds also what callbacks
        have seen and the place in the batches. The file is there whole or not at all; a name that ends in .safetensors
        makes one of that format, any other an .npz.

        Raises:
            OSError: the file cannot be written.
            TypeError: the state of a callback is not made of JSON values.
        """
        expect_path("path", path)
        checkpoint.save(path, *self._saved())

    def _saved(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """What a checkpoint holds: arrays by name, and JSON values."""
        run = self._kept() if self._run is None else self._run.state(self.step)
        state = self.state
        meta = {"step": self.step, "key": repr(self.key), **state.identity, "history": self.history(), "run": run}
        return state.arrays(), meta

    def load(self, path: str | Path) -> None:
        """Takes up a checkpoint of a loop like this one: what follows has the bits of a run that never ended.

        Of one that a callback saved the next run goes on in its batches too; any other begins with the first of them.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: no checkpoint, or that of a loop with another key, precision, loss scale, control, step or
                state. The learning rate may be another.
        """
        self._take_up(str(path), *checkpoint.load(path))

    def _check(self, where: str, meta: dict[str, Any]) -> None:
        """Refuses a checkpoint of another training."""
        if (several := meta.get("clones")) is not None:
            raise ValueError(f"{where} is the checkpoint of clones {', '.join(several)}, which Clones.load takes up")
        planned = self._stepper.prepared.planned
        # Version 0.1.0 hashed the same step in its own spelling.
        if meta.get("traced step") == planned.older_digest:
            meta["traced step"] = planned.digest
        check_identity(where, meta, {"key": repr(self.key), **self._stepper.identity})

    def _take_up(self, where: str, arrays: Mapping[str, Array], meta: dict[str, Any]) -> None:
        """Takes up what a checkpoint holds."""
        self._check(where, meta)
        self.restore(arrays, meta["step"], meta.get("history"))
        self._resumed = self.step, meta.get("run") or {}

    def _kept(self) -> dict[str, Any]:
        """The state of a checkpoint's run, if the next run begins at the checkpoint's step; else {}."""
        step, run = self._resumed or (self.step, {})
        # Steps done since by `train` have left the checkpoint's place in the batches behind.
        return run if step == self.step else {}

    @in_default_state
    def predict(self, forward: Callable[..., Any], inputs: Any) -> Any:
        """Runs a forward function with the present parameters: the first prediction of a `Predictor` with the loop's
        precision, control and key. It is traced anew in every call.

        Args:
            forward: (params, inputs) -> arrays, traceable; of a model with a state (params, state, inputs) -> such.
            inputs: nested arrays, of any number of rows.

        Returns:
            Arrays nested as forward gives them, floats in float32.

        Raises:
            TypeError, ValueError: as `Predictor`.
        """
        # The same bits, and no plan of the tiles for a function that is run once.
        predicted = replace(self.execution, engine="direct")
        made = Predictor(
            forward, self.params, inputs, training=self.training, execution=predicted, key=self.key,
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
