"""The training loop: one planned and compiled step, run for thousands of batches on the tiles or directly."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ipu_core.control import FloatingPointControl
from ipu_core.engine.profile import Profile
from ipu_core.errors import NotFinite
from ipu_core.hardware_random import HardwareRandom
from ipu_core.ir.amax_scales import fitting
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision import Precision
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.target import Target
from ipu_core.train.arguments import check_engine, check_integer, check_kinds, check_share, check_steps_per_call
from ipu_core.train.batches import Batches
from ipu_core.train.callbacks import Callback
from ipu_core.train.finite import check_choice
from ipu_core.train.intake import Intake
from ipu_core.train.interrupts import Hold
from ipu_core.train.optim import Optimiser
from ipu_core.train.optim.common import Common, rate_of
from ipu_core.train.planned import PlannedStep, planned_step
from ipu_core.train.precision_table import WIDTH, precision_table
from ipu_core.train.predictor import Predictor
from ipu_core.train.progress import Run
from ipu_core.train.random import read_random
from ipu_core.train.resumption import Resumable
from ipu_core.train.runner import Runner
from ipu_core.train.scaling import LossScale, Scale, Skipped
from ipu_core.train.step import Loss, initial_state, step_block
from ipu_core.train.table import Table
from ipu_core.train.units import loss_in_units, writer_of
from ipu_core.train.updates import UpdateCount, UpdateCounter
from ipu_core.train.watch import Record, Watch
from ipu_core.train.watch.watch import Watching
from ipu_core.train.words import described, named, summary, sums
from lowprec import Accumulation, Key, as_key
from lowprec.checks import truth
from lowprec.processor import in_default_state


class TrainLoop(Resumable):
    """Trains a loss function in one precision, batch by batch. Both engines give the same bits.

    Args:
        loss: (params, batch) -> one number; traced once.
        params: Initial parameters, nested float arrays; rounded to nearest into the precision's weight format.
        batch: One batch, for its shapes and dtypes.
        optimizer: Such as `Sgd(0.1)`; its `lr` may be a schedule, a function of the step's number.
        precision: A `Precision` or its name.
        engine: "tiles", planned onto the chip, in its memory and with its account, or "direct". Both compute on whole
            arrays; `Machine` runs the tiles' vertices, to the same bits, as tiles do here where exceptions are enabled.
        target: The modelled chip, or its name.
        key: Of the run; step i rounds with key.fold_in(i).
        accumulations: The order of each sum by equation number; None: the rule of the sizes, the target's family (and
            its `adder`) and whether operands have 8 bits, see `ipu_core.plan.orders`. No tile has an aligned adder,
            which the engine "direct" takes.
        control: Floating-point control of the tiles: exceptions and `nanoo`. Its `esr` is the precision's to say.
        streamed: What of the state lives in streaming memory besides what the precision says, by dotted name with * for
            anything: "params.*", "optimiser.first_moment.*.weight". Single numbers stay on the tiles. A name that is
            none of the state's is one of activations, called as in rules of a precision: "blocks.0", "*.attention.exp";
            each is stored when it is made and loaded once for the gradients. No bit changes.
        overlap: Whether transfers with streaming memory pass beside computation: a parameter is updated among the
            gradients, as soon as its own is there, while another's moments come and those of the one before go; the
            profile says how long a step takes for that. Small ones are updated at once; all that is on the tiles, or
            on its way, is no more than twice the largest parameter's. With a loss scale new moments are stored beside
            the old ones, which takes twice the streaming memory, and count where the step is not skipped. Where
            equations stay as they were traced (see `reorder`), where tiles draw random bits, and where a loss scale
            meets enabled exceptions, transfers pass beside the updates alone.
        micro_batches: Parts of each batch, equal runs of its first axis. Their gradients are averaged before the
            update, in the precision's `gradient_sum`: as a sum, or where it says `running_mean` as a running mean.
        loss_scale: What the loss is multiplied by for its gradients, which are divided by it before the optimiser has
            them: a number, or "automatic" or a `LossScale` for one that grows and backs off. A step whose gradients
            hold infinities, NaN or saturated values then changes nothing and is kept in `skipped`. The loss that is
            reported is not scaled. None: no scale, and nothing is looked at.
        steps_per_call: Steps that `run` does in one call of the machine, without the host, where so many are left. The
            same bits; callbacks are called after each call, with its last loss.
        model_state: What the model carries from step to step beside its parameters, such as running statistics, nested
            float arrays: the loss is then (params, state, batch) -> (one number, new state). None: nothing.
        random: Where the random bits come from: "philox", from the key, whatever the machine; "hardware", from the
            generators of the tiles' workers, seeded with the key; or a `HardwareRandom`, which says how these start.
            Those bits depend on the placement, and every equation then runs vertex by vertex, much slower.
        watch: What is looked at while it trains, a `Watch` or every how many steps: scale, exponents, and what rounding
            did to every value of the step (see `watched`). Where the tiles' workers draw random bits, it is looked at
            beside them, with bits of the key. No bit changes. None: nothing.
        reorder: Whether the equations are put into an order in which less memory lives at a time, and on tiles those
            that are independent and of one kind share compute sets where there is memory for them (not where the tiles
            draw the random bits), or stay as they were traced. No bit changes.
        recompute: Whether results of the forward part that are cheap to make, element by element, are made again where
            the gradients need them, instead of kept: less memory for more work (needs scipy). A share between 0 and 1:
            as few cycles' worth of them as lower the peak of temporaries to that share of the traced step's, or all
            where that is not enough. No bit changes.
        on_nonfinite: What is done when a loss is infinite or NaN, the first time: "warn" says so at once, with the
            step; "stop" ends `run` after that step, and `train` raises the warning; it says also in which equation the
            first such number was made, for which the state is copied before each step. "ignore": nothing is said.

    Raises:
        ValueError: an unknown engine or precision, one under unit scaling for weights of other deviations, hardware
            random bits on an engine or in a precision that has none (see `check_hardware_random`), a batch that cannot
            be cut into so many parts, a name to stream that nothing has, or what tracing refuses.
        TypeError: an argument of another kind.
        OutOfTileMemory, OutOfStreamingMemory: the step does not fit the target (engine "tiles").

    Attributes:
        block: The typed step.
        ideal: The step before its precision, in float32.
        step: Steps done.
        skipped: Steps that changed nothing, with what was wrong.
        not_finite: The first step whose loss was infinite or NaN, and that loss; None: there was none.
    """

    @in_default_state
    def __init__(
        self,
        loss: Loss,
        params: Any,
        batch: Any,
        *,
        optimizer: Optimiser,
        precision: Precision | str,
        engine: str = "tiles",
        target: Target | str | None = None,
        key: Key | int = 0,
        accumulations: Mapping[int, Accumulation] | None = None,
        control: FloatingPointControl | None = None,
        micro_batches: int = 1,
        streamed: str | Sequence[str] = (),
        loss_scale: float | str | LossScale | None = None,
        overlap: bool = False,
        steps_per_call: int = 1,
        model_state: Any = None,
        random: str | HardwareRandom = "philox",
        watch: Watch | int | None = None,
        reorder: bool = True,
        recompute: bool | float = False,
        on_nonfinite: str = "warn",
    ) -> None:
        check_engine(engine)
        precision = Precision.parse(precision)
        check_kinds(loss, optimizer, accumulations, control)
        check_integer("micro_batches", micro_batches, least=1)
        overlap, reorder = truth("overlap", overlap), truth("reorder", reorder)
        self._to_torch, loss = writer_of(loss), loss_in_units(loss, params, precision)
        if isinstance(optimizer, Common):
            optimizer = optimizer.for_precision(precision.scaled_state, store_root=precision.store_root)
        mean = precision.running_mean
        self._scale = None if loss_scale is None else Scale.of(loss_scale)
        check_steps_per_call(steps_per_call, automatic=self._scale is not None and self._scale.policy is not None)
        self._steps_per_call = int(steps_per_call)
        self.ideal = step_block(
            loss, optimizer, params, batch,
            micro_batches=int(micro_batches), running_mean=mean, scaled=self._scale is not None,
            model_state=model_state,
        )  # fmt: skip
        self.target = target if isinstance(target, Target) else Target("gc200" if target is None else target)
        self._key, self._random = as_key(key), read_random(random, as_key(key))
        self._planning: dict[str, Any] = {"streamed": streamed, "reorder": reorder, "recompute": check_share(recompute)}
        self._given_orders = accumulations
        planned = self._planned(precision, engine, accumulations)
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
        self.precision, self.step = precision, 0
        self._control = replace(control or FloatingPointControl(), esr=precision.stochastic)
        self._rate, self._optimiser = optimizer.lr, named(optimizer)
        rate_of(self._rate, 0)
        leaves, self._tree = flatten(precision.cast_state(self.block, initial_state(params, optimizer, model_state)))
        self._engine = engine
        self._runner = Runner(
            self.block, self.target, self.accumulations, self._control, engine,
            overlap=overlap, share=reorder and self._random is None, steps_per_call=self._steps_per_call,
            random=self._random,
        )  # fmt: skip
        self._runner.write(leaves)
        self._watching = None if watch is None else Watching(Watch.of(watch), self.block)

    def _planned(
        self, precision: Precision, engine: str, accumulations: Mapping[int, Accumulation] | None
    ) -> PlannedStep:
        return planned_step(
            self.ideal, precision, self.target, engine, accumulations=accumulations, scaled=self._scale is not None,
            random=self._random, **self._planning,
        )  # fmt: skip

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
        vars(new).update(self.__getstate__(), _random=None, _watching=None, _engine="direct", precision=precision)
        new._to_torch = self._to_torch
        if precision != self.precision or self._random is not None:
            new._planning = {**self._planning, "reorder": False}
            planned = new._planned(precision, "direct", self._given_orders)
            new.block, new.accumulations, new._traced_step = planned
        new._control = replace(self._control, esr=precision.stochastic)
        new._runner = Runner(
            new.block, self.target, new.accumulations, new._control, "direct",
            overlap=False, share=False, steps_per_call=self._steps_per_call, random=None,
        )  # fmt: skip
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
        run = Run(batches, callbacks, self.step, self._kept(), self._steps_per_call)
        self._run, self._resumed = run, None  # not before: one that is refused may be begun again
        known, losses = self.not_finite, list[float]()
        with self.whole_steps():
            while some := run.take(min(self._steps_per_call, steps - len(losses))):
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
    def control(self) -> FloatingPointControl:
        """The floating-point control of its steps."""
        return self._control

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
        return self._runner.profile

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
        made = Predictor(
            forward, self.params, inputs, precision=self.precision, target=self.target, key=self._key,
            model_state=self.model_state, control=self._control, whole=False,
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
        return summary(self, self._optimiser, self._engine, self._random)

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
        plan = self._runner.plan
        lines = described(self.sums()) if plan is None else plan.words().splitlines()
        return "\n".join([f"  {self.precision.words()}", *(f"  {line}" for line in lines)])
