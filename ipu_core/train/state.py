"""The state of a training as a value, and what moves it on: steps, each done whole or not at all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ipu_core.compile.bill import Bill
from ipu_core.diagnose.finite import cause, in_words
from ipu_core.diagnose.watch.watch import Watching
from ipu_core.errors import FloatingPointException
from ipu_core.ir.block import Array
from ipu_core.ir.bodies import branch_of
from ipu_core.ir.precision.amax_scales import fitting
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import PyTree, flatten, paths, unflatten
from ipu_core.ir.run.execute import Observer
from ipu_core.train.arguments import check_integer
from ipu_core.train.data.batches import BatchInputs
from ipu_core.train.interrupts import Hold
from ipu_core.train.optim.common import Rate, rate_of
from ipu_core.train.options import Training
from ipu_core.train.runner import Runner
from ipu_core.train.scaling import Scale, Skipped
from ipu_core.train.step import PlannedStep, planned_step, read_random
from lowprec import Key
from lowprec.arrays import whole_array
from lowprec.checks import entries, expect, shown
from lowprec.processor import in_default_state


class Steps(NamedTuple):
    """The steps of a training that are done: what is known of them beside the arrays.

    Attributes:
        key: Of the run; step i rounds with key.fold_in(i).
        step: How many.
        scale: The loss scale of the next one; None: there is none.
        skipped: Those that changed nothing, with what was wrong.
        not_finite: The first one whose loss was infinite or NaN, and that loss; None: there was none.
    """

    key: Key
    step: int = 0
    scale: Scale | None = None
    skipped: tuple[Skipped, ...] = ()
    not_finite: tuple[int, float] | None = None

    def after(self, loss: float, overflowed: tuple[str, ...] | None) -> Steps:
        """Those with one more, that had this loss, and these gradients not to be trusted; None: nobody looked."""
        scale, skipped, not_finite = self.scale, self.skipped, self.not_finite
        if not math.isfinite(loss) and not_finite is None:
            not_finite = self.step, loss
        if scale is not None and overflowed is not None:
            if overflowed:
                skipped = (*skipped, Skipped(self.step, float(scale.value), overflowed))
            scale = scale.after(bool(overflowed))
        return Steps(self.key, self.step + 1, scale, skipped, not_finite)

    def history(self) -> dict[str, Any]:
        """Steps skipped, and a loss that was not finite, as JSON."""
        return {"skipped": [list(each) for each in self.skipped], "not_finite": self.not_finite}

    def skips(self, step: int) -> bool:
        """Whether a step was skipped."""
        return step in [each.step for each in self.skipped]


@dataclass(frozen=True, eq=False)
class State:
    """All that a training step changes, at rest: `replace` of dataclasses makes another.

    Attributes:
        steps: Those done, with the key and the loss scale.
        leaves: Parameters, the optimizer's arrays and what the model carries, by dotted name.
        drawn: The state of the tiles' generators by name; nothing where random bits are the key's.
    """

    steps: Steps
    leaves: Mapping[str, Array]
    drawn: Mapping[str, Array] = field(default_factory=dict)

    def arrays(self) -> dict[str, Array]:
        """The arrays and the loss scale by name, for a checkpoint."""
        own = {**self.leaves, **self.drawn}
        return own if self.steps.scale is None else own | self.steps.scale.arrays()

    def restored(self, arrays: Mapping[str, Array], step: int, history: Mapping[str, Any] | None = None) -> State:
        """The state of another time, of which `arrays` and `history` tell, after so many steps.

        Raises:
            TypeError: no arrays by name; masked elements.
            ValueError: the arrays are not those of this state, there is no such step, or another history.
        """
        check_integer("step", step)
        expect(Mapping, arrays=arrays)
        skipped, not_finite = self.steps[-2:] if history is None else _happened(history)
        arrays, scale = {name: whole_array(array) for name, array in arrays.items()}, self.steps.scale
        _check_alike(arrays, self.arrays())
        scale = None if scale is None else scale.restored(arrays)
        leaves, drawn = ({name: arrays[name] for name in own} for own in (self.leaves, self.drawn))
        return State(Steps(self.steps.key, int(step), scale, skipped, not_finite), leaves, drawn)


def _check_alike(given: Mapping[str, Array], own: Mapping[str, Array]) -> None:
    one, other = ({name: (array.shape, array.dtype) for name, array in each.items()} for each in (given, own))
    if one != other:
        raise ValueError("the checkpoint's arrays are not those of this training step")


def _happened(history: Mapping[str, Any]) -> tuple[tuple[Skipped, ...], tuple[int, float] | None]:
    """The steps skipped and the first loss that was not finite, of a history."""
    skipped, loss = entries("history", history, ("skipped", "not_finite"))
    try:
        steps = tuple(Skipped(int(at), float(scale), tuple(names)) for at, scale, names in skipped)
        return steps, None if loss is None else (int(loss[0]), float(loss[1]))
    except (TypeError, ValueError, IndexError, KeyError):
        raise ValueError(f"a history is what history() gave, not {shown(history)}") from None


@dataclass(frozen=True)
class Prepared:
    """What a training never changes: its planned step, and how the state and each step's inputs are brought to it.

    Attributes:
        planned: The step.
        tree: How the state's leaves are nested.
        batch_inputs: What it takes of each batch.
        rate: The learning rate.
        on_nonfinite: What is done about a loss that is infinite or NaN, one of `finite.CHOICES`.
        bill: The tiles' account, once it is made; None: it is not yet, or there is none.
    """

    planned: PlannedStep
    tree: PyTree
    batch_inputs: BatchInputs
    rate: Rate
    on_nonfinite: str
    bill: Bill | None = None


class Stepper:
    """A training under way: its arrays lie with what runs the steps, and are read where somebody asks for them.

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
            overlap=on.overlap, share=on.reorder and random is None, steps_per_call=on.steps_per_call, random=random,
            bill=prepared.bill,
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
        return State(self.steps, leaves, self.runner.drawn)

    @property
    def identity(self) -> dict[str, str]:
        """What tells runs apart that have the same state; the order of the equations does only where tiles draw."""
        planned, key = self.prepared.planned, self.steps.key
        own = {"key": repr(key), "precision": planned.training.precision.words(), "traced step": planned.digest}
        random = read_random(planned.training.random, key)
        own = own if random is None else {**own, "random": repr(random)}
        return {**own, **untraced(planned.training)}

    def put(self, state: State) -> None:
        """Goes on from a state."""
        self.runner.write([state.leaves[name] for name in self.names])
        if state.drawn:
            self.runner.draw_on(state.drawn)
        self.steps = steps = state.steps
        skipped = bool(steps.skipped) and steps.skipped[-1].step == steps.step - 1
        self.runner.renewed = None if steps.step == 0 or steps.scale is None else not skipped

    def check(self, state: State) -> None:
        """Refuses what is no state of this training."""
        expect(State, state=state)
        _check_alike(state.arrays(), self.state.arrays())

    def resume(self, state: State) -> None:
        """Goes on from a state of another time: what was seen of the steps after it is forgotten."""
        self.put(state)
        if self.watching is not None:
            self.watching.rewind(state.steps.step)

    def inputs(self, batch: Any, step: int) -> list[Any]:
        """What a step takes besides the state."""
        prepared, scale = self.prepared, self.steps.scale
        inputs = [*prepared.batch_inputs(batch), rate_of(prepared.rate, step)]
        return inputs if scale is None else [*inputs, scale.value]

    @in_default_state
    def train(self, batches: Sequence[Any]) -> list[float]:
        """Updates on several batches, in one call if they are as many as one does and none is looked at; the losses."""
        count, first, planned = len(batches), self.steps.step, self.prepared.planned
        if count > 1:
            looked = self.watching is not None and self.watching.due(first, count)
            if count < planned.execution.steps_per_call or looked:
                return [loss for batch in batches for loss in self.train([batch])]
        given = [self.inputs(batch, first + number) for number, batch in enumerate(batches)]
        before = self.runner.read() if self._stops and self.steps.not_finite is None else None
        with self._undone() if self._traps or count > 1 else self.hold:
            try:
                losses = [self._done(outputs) for outputs in self._fed(given)]
            except FloatingPointException as error:
                where = f"step {first}" if count == 1 else f"one of the steps {first} to {first + count - 1}"
                raise FloatingPointException(f"{where}: {error}") from None
        if before is not None and self.steps.not_finite is not None and not planned.training.draws_on_tiles:
            keys = [self.steps.key.fold_in(first + number) for number in range(count)]
            state = dict(zip(self.names, before, strict=True))
            self.cause = cause(planned.block, planned.accumulations, planned.training.control, state, given, keys)
        return losses

    def news(self, known: tuple[int, float] | None) -> tuple[str, bool]:
        """What is to be said of a loss that is not finite, if none was known before, and whether to stop there."""
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
        """What the steps give that take these inputs, one after another."""
        now = self.steps
        if len(given) > 1:
            return self.runner.feed_many(given, now.key, now.step)
        key = now.key.fold_in(now.step)
        if self.watching is None or not self.watching.due(now.step):
            return [self.runner.feed(given[0], key)]
        with self.watching.look(now.step, self.runner.observed) as look:
            return [self.runner.feed(given[0], key, look, self.watching.equations)]

    def _done(self, outputs: Sequence[Array]) -> float:
        """Keeps what a step that is done says; gives its loss."""
        loss = float(outputs[0])
        overflowed = None if self._branch is None else tuple(itertools.compress(self._branch.names, outputs[1]))
        self.steps = self.steps.after(loss, overflowed)
        return loss

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Where steps end early, by an exception or Ctrl-C, everything is as before them."""
        before = self.state
        try:
            yield
        except BaseException:
            with self.hold:
                self.put(before)
            raise


def in_precision(prepared: Prepared, state: State, precision: Precision) -> tuple[Prepared, State]:
    """The same training in another precision, on the direct engine, see `TrainLoop.in_precision`."""
    planned = prepared.planned
    was, drew = planned.training.precision, planned.training.draws_on_tiles
    if precision.unit_scaled != was.unit_scaled:  # which is traced
        precision = precision.changed(unit_scaled=was.unit_scaled)
    for name in ("scaled_state", "store_root", "running_mean"):
        if getattr(precision, name) != (own := getattr(was, name)):
            raise ValueError(f"this loop was traced with {name} {own}, not {getattr(precision, name)}")
    training = replace(planned.training, precision=precision, random="philox")
    execution = replace(planned.execution, engine="direct")
    if precision != was or drew:
        planned = planned_step(planned.ideal, training, replace(execution, reorder=False))
    planned = replace(planned, training=training, execution=execution)
    nested = fitting(planned.block, unflatten(prepared.tree, list(state.leaves.values())))
    leaves, tree = flatten(precision.cast_state(planned.block, nested))
    state = replace(state, leaves=dict(zip(paths(tree), leaves, strict=True)), drawn={})
    return replace(prepared, planned=planned, tree=tree), state


def untraced(training: Training) -> dict[str, str]:
    """What decides bits of a run and stands neither in its traced step nor in its precision; a rate may change."""
    scale = None if training.loss_scale is None else Scale.of(training.loss_scale)
    words = "none" if scale is None else str(scale.policy or float(scale.value))
    return {"loss scale": words, "control": repr(training.control)}


def unlike(name: str, other: str, own: str) -> str:
    """What two runs differ in, of a precision its name."""
    if name == "traced step":
        return "another traced step: another loss, optimizer, shape, order of sums or setting of the loop"
    if name == "precision" and other.partition(":")[0] != own.partition(":")[0]:
        other, own = other.partition(":")[0], own.partition(":")[0]
    return f"{name} {other}, this one has {own}"
