"""The steps of a training, each done whole or not at all, on a step that is prepared once."""

from __future__ import annotations

import functools
import itertools
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from ipu_core.compile.bill import Bill
from ipu_core.diagnose.finite import cause, check_choice, in_words
from ipu_core.diagnose.watch.watch import Watching
from ipu_core.engine.profile import Profile
from ipu_core.errors import FloatingPointException
from ipu_core.ir.block import Array, Block
from ipu_core.ir.bodies import branch_of
from ipu_core.ir.precision.amax_scales import fitting
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.unused import unused
from ipu_core.ir.pytree import PyTree, flatten, named, paths, unflatten
from ipu_core.ir.run.execute import Observer
from ipu_core.train.data.batches import BatchInputs
from ipu_core.train.execution import Execution
from ipu_core.train.loss_scale import Scale
from ipu_core.train.optim.common import Common, Optimizer, Rates, rate_of, rates_of
from ipu_core.train.planned import PlannedStep, planned_step, read_random
from ipu_core.train.runner import Runner
from ipu_core.train.state import State, Steps, identity_of
from ipu_core.train.step import Loss, initial_state, step_block
from ipu_core.train.training import Training
from ipu_core.train.units import check_finer, feeder_of, loss_in_units, narrow_of
from lowprec import Key
from lowprec.processor import in_default_state

# SIGTERM and SIGHUP have handlers on the command line, which would else leave a loop in the middle of a step.
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Hold:
    """Delays a Ctrl-C that comes within ``with hold:`` to the end of that block, where its usual handler is called.

    So do SIGTERM and SIGHUP where a Python function handles them. It does so while it is `installed`, which takes
    longer than a small step. Only the main thread hears of signals; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._meant: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._busy = self._installed = False
        self._came: list[tuple[int, FrameType | None]] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listens to the signals within the context."""
        # Python refuses to set handlers elsewhere.
        if self._installed or threading.current_thread() is not threading.main_thread():
            yield
            return
        mine = list[signal.Signals]()
        try:
            for number in HELD:
                meant = signal.getsignal(number)
                if callable(meant) and meant != self._hear:  # not ignored, and its handler is Python's
                    self._meant[number] = meant
                    mine.append(number)
                    signal.signal(number, self._hear)
            self._installed = True
            yield
        finally:
            self._installed = False  # first: where a signal ends this too, the next time begins anew
            for held in mine:
                if signal.getsignal(held) == self._hear:  # a handler may have put another in its place
                    signal.signal(held, self._meant[held])

    def __enter__(self) -> None:
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False
        if self._came and self._meant:
            # Forgotten first: handlers raise, and one Ctrl-C would come again after every later step.
            number, frame = self._came[0]
            self._came.clear()
            self._meant[number](number, frame)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._busy:
            self._came.append((number, frame))
        elif number in self._meant:
            self._meant[number](number, frame)


@dataclass(frozen=True)
class Prepared:
    """The constant part of a training: its planned step, the state's structure and what converts batches.

    Attributes:
        planned: The step.
        tree: How the state's leaves are nested.
        batch_inputs: Converts a batch to inputs of the step.
        rate: The learning rate, or several (`rates_of`).
        on_nonfinite: What is done about a loss that is infinite or NaN, one of `finite.CHOICES`.
        unused: Words of the precision that change nothing in the step.
        narrow: What the loss says against results finer than float32 (`narrow_of`).
        bill: The tiles' account, once it is made; None: it is not yet, or there is none.
    """

    planned: PlannedStep
    tree: PyTree
    batch_inputs: BatchInputs
    rate: Rates
    on_nonfinite: str
    unused: tuple[str, ...] = ()
    narrow: str = ""
    bill: Bill | None = None


class Stepper:
    """Runs the steps of a training. The state lies in the runner and is copied out only where it is asked for.

    Args:
        prepared: What is run.
        state: From which it goes on.
        watching: What is looked at; None: nothing.
        cause: Where a loss that was not finite began, in words.

    Attributes:
        prepared, watching, cause: As given; `cause` is that of the steps done.
        steps: Those done.
        runner: What runs them.
        hold: Makes Ctrl-C wait for the end of a step.
    """

    def __init__(self, prepared: Prepared, state: State, watching: Watching | None = None, cause: str = "") -> None:
        self.watching, self.cause, self.hold = watching, cause, Hold()
        planned, on = prepared.planned, prepared.planned.execution
        random = read_random(planned.training.random, state.steps.key)
        self.runner = Runner(
            planned.block, on.target, planned.accumulations, planned.training.control, on.engine,
            overlap=on.overlap, share=on.reorder and random is None, parallel=on.parallel,
            steps_per_call=on.steps_per_call, random=random, bill=prepared.bill, system=on.system,
            sharded=on.sharded, staged=planned if on.chips > 1 else None,
        )  # fmt: skip
        self.prepared = replace(prepared, bill=self.runner.bill)  # which copies and pickles take with them
        self.names = paths(prepared.tree)
        self._stops, self._traps = prepared.on_nonfinite == "stop", planned.training.control.traps
        self._branch = None if state.steps.scale is None else branch_of(planned.block)
        self.put(state)

    @property
    def state(self) -> State:
        """A copy of the state that it is in."""
        leaves = dict(zip(self.names, self.runner.read(), strict=True))
        return State(self.steps, leaves, self.identity, self.runner.drawn)

    @property
    def identity(self) -> dict[str, str]:
        """What another training must share to take up this one's state; see `identity_of`."""
        return identity_of(self.prepared.planned, self.steps.key)

    @property
    def profile(self) -> Profile | None:
        """The tiles' account of the last step, and where a call does several, of as many last steps in one call.

        Before them, of steps that are not skipped. None on the direct engine.
        """
        if (bill := self.runner.bill) is None:
            return None
        count, calls = self.steps.step, self.prepared.planned.execution.steps_per_call
        # A skipped step takes other cycles, so the account has to be told which were.
        renewed = [not self.steps.skips(step) for step in range(max(0, count - calls), count)]
        made = bill.profile(renewed[-1] if renewed else None, sum(renewed) if len(renewed) == calls else None)
        given = self.prepared.planned.execution.update_overhead
        if not given:
            return made
        call = None if made.call is None else replace(made.call, update_overhead=given)
        return replace(made, update_overhead=given, call=call)

    def __reduce__(self) -> tuple[Any, ...]:
        return Stepper, (self.prepared, self.state, self.watching, self.cause)

    def put(self, state: State) -> None:
        """Goes on from a state."""
        self.runner.write([state.leaves[name] for name in self.names])
        if state.drawn:
            self.runner.draw_on(state.drawn)
        self.steps = state.steps

    def checked(self, state: State) -> State:
        """A state of this training at another time; see `State.resumed` for what is refused."""
        return self.state.resumed(state, functools.partial(identity_of, self.prepared.planned))

    def resume(self, state: State) -> None:
        """Goes on from a state of this training at another time; looks at later steps are dropped from the record."""
        self.put(state)
        if self.watching is not None:
            self.watching.rewind(state.steps.step)

    @in_default_state
    def inputs(self, batch: Any, step: int) -> list[Any]:
        """The inputs of a step besides the state: batch, learning rate and loss scale."""
        prepared, scale = self.prepared, self.steps.scale
        inputs = [*prepared.batch_inputs(batch), rate_of(prepared.rate, step)]
        return inputs if scale is None else [*inputs, scale.value]

    @in_default_state
    def train(self, batches: Sequence[Any], given: Sequence[list[Any]] | None = None) -> list[float]:
        """One update per batch; gives the losses. It is one call where they are steps_per_call and none is watched.

        Args:
            batches: of a step each.
            given: the `inputs` of these, where they are made already.
        """
        count, first, planned = len(batches), self.steps.step, self.prepared.planned
        if count > 1:
            looked = self.watching is not None and self.watching.due(first, count)
            # The machine's program does exactly steps_per_call steps, and an observer is told of single ones.
            if count < planned.execution.steps_per_call or looked:
                return [loss for batch in batches for loss in self.train([batch])]
        if given is None:
            given = [self.inputs(batch, first + number) for number, batch in enumerate(batches)]
        before = self.runner.read() if self._stops and self.steps.not_finite is None else None
        # A single step waits for its end. A trap ends it in the middle, and several in a call are too long to wait for:
        # these are undone instead, which costs a copy of the state.
        with self._undone() if self._traps or count > 1 else self.hold:
            try:
                losses = [self._done(outputs) for outputs in self._fed(given)]
            except FloatingPointException as error:
                where = f"step {first}" if count == 1 else f"one of the steps {first} to {first + count - 1}"
                raise FloatingPointException(f"{where}: {error}") from None
        # The step is done again to find the equation, and the tiles' generators never draw the same bits twice.
        if before is not None and self.steps.not_finite is not None and not planned.training.draws_on_tiles:
            keys = [self.steps.key.fold_in(first + number) for number in range(count)]
            state = dict(zip(self.names, before, strict=True))
            self.cause = cause(planned.block, planned.accumulations, planned.training.control, state, given, keys)
        return losses

    def news(self, known: tuple[int, float] | None) -> tuple[str, bool]:
        """The warning for a first loss that is not finite ("" if none or known before), and whether the run stops."""
        found = self.steps.not_finite
        if found is None or known is not None or self.prepared.on_nonfinite == "ignore":
            return "", False
        skipped = self.steps.skips(found[0])
        return in_words(*found, skipped, self.cause), self._stops and not skipped

    def rehearse(self, batch: Any, observer: Observer, among: frozenset[int]) -> None:
        """Tells an observer of these equations of the next step, without doing it."""
        inputs = self.inputs(batch, self.steps.step)
        with self.hold.installed(), self.hold:
            self.runner.rehearse(inputs, self.steps.key.fold_in(self.steps.step), observer, among)

    def _fed(self, given: Sequence[list[Any]]) -> Iterable[Sequence[Array]]:
        """The outputs of one step per element of `given`, in order."""
        now = self.steps
        if len(given) > 1:
            return self.runner.feed_many(given, now.key, now.step)
        # By the step's number: a run that goes on from a checkpoint draws the bits of one that never ended.
        key = now.key.fold_in(now.step)
        if self.watching is None or not self.watching.due(now.step):
            return [self.runner.feed(given[0], key)]
        with self.watching.look(now.step, self.runner.observed) as look:
            return [self.runner.feed(given[0], key, look, self.watching.equations)]

    def _done(self, outputs: Sequence[Array]) -> float:
        """Counts a step that is done, with its overflows; gives its loss."""
        loss = float(outputs[0])
        overflowed = None if self._branch is None else tuple(itertools.compress(self._branch.names, outputs[1]))
        self.steps = self.steps.after(loss, overflowed)
        return loss

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """A context that restores the state if its steps end early, by an exception or Ctrl-C."""
        before = self.state
        try:
            yield
        except BaseException:
            with self.hold:
                # Held: a second Ctrl-C must not leave half of the old state.
                self.put(before)
            raise


def begun(
    loss: Loss,
    params: Any,
    batch: Any,
    training: Training,
    execution: Execution,
    key: Key,
    model_state: Any,
    on_nonfinite: str,
) -> tuple[Prepared, State]:
    """A training before its first step; arguments and errors as of `TrainLoop`."""
    precision = training.precision
    scale = None if training.loss_scale is None else Scale.of(training.loss_scale)

    def ideal(own: Precision) -> Block:
        return traced(loss, params, batch, replace(training, precision=own), model_state)

    optimizer, first_traced = _optimizer_of(training), ideal(precision)
    planned = planned_step(first_traced, training, execution)
    check_finer(narrow := narrow_of(loss), planned.block)
    first = precision.cast_state(planned.block, initial_state(params, optimizer, model_state))
    batch_inputs = BatchInputs(planned.block, batch, numbers=1 if scale is None else 2, feeder=feeder_of(loss))
    # A schedule that gives no rate is refused before the first step.
    rate_of(rates := rates_of(optimizer), 0)
    idle = unused(precision, lambda own: first_traced if _traced_alike(own, precision) else ideal(own))
    prepared = Prepared(planned, flatten(first)[1], batch_inputs, rates, check_choice(on_nonfinite), idle, narrow)
    return prepared, State(Steps(key, scale=scale), dict(named(first)), identity_of(planned, key))


def traced(loss: Loss, params: Any, batch: Any, training: Training, model_state: Any = None) -> Block:
    """The step of a training as traced, in float32; arguments as of `TrainLoop`."""
    precision = training.precision
    return step_block(
        loss_in_units(loss, params, precision), _optimizer_of(training), params, batch,
        micro_batches=training.micro_batches, running_mean=precision.running_mean,
        scaled=training.loss_scale is not None, model_state=model_state, replicas=training.replicas,
        collective=training.collective,
    )  # fmt: skip


def _optimizer_of(training: Training) -> Optimizer:
    """The optimizer as the precision keeps its state."""
    given, own = training.optimizer, training.precision
    return given.for_precision(own.scaled_state, store_root=own.store_root) if isinstance(given, Common) else given


TRACED = ("unit_scaled", "scaled_state", "store_root", "running_mean")
"""Fields of a precision that decide what is traced, not only its types."""


def _traced_alike(one: Precision, other: Precision) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in TRACED)


def in_precision(prepared: Prepared, state: State, precision: Precision) -> tuple[Prepared, State]:
    """The same training in another precision, on the direct engine, see `TrainLoop.in_precision`."""
    planned = prepared.planned
    was, drew = planned.training.precision, planned.training.draws_on_tiles
    traced = {name: getattr(was, name) for name in TRACED}  # nothing is traced again here
    for name, own in traced.items():
        if (other := getattr(precision, name)) != own:
            instead = precision.changed(**traced)
            raise ValueError(f"this loop was traced with {name} {own}, not {other}: {str(instead)!r} goes on with it")
    training = replace(planned.training, precision=precision, random="philox")
    execution = replace(planned.execution, engine="direct")
    if precision != was or drew:
        # As traced: a search for an order would take its time in every trial of `blame`.
        planned = planned_step(planned.ideal, training, replace(execution, reorder=False))
        check_finer(prepared.narrow, planned.block)
    planned = replace(planned, training=training, execution=execution)
    nested = fitting(planned.block, unflatten(prepared.tree, list(state.leaves.values())))
    nested = precision.cast_state(planned.block, nested)
    state = State(state.steps, dict(named(nested)), identity_of(planned, state.steps.key))
    return replace(prepared, planned=planned, tree=flatten(nested)[1]), state
