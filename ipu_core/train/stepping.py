"""One training step after another: each done whole or not at all, and what it says kept."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ipu_core.control import FloatingPointControl
from ipu_core.errors import FloatingPointException, NotFinite
from ipu_core.hardware_random import HardwareRandom
from ipu_core.ir.block import Array, Block
from ipu_core.ir.bodies import branch_of
from ipu_core.ir.pytree import PyTree, paths
from ipu_core.train.finite import cause, in_words
from ipu_core.train.intake import Intake
from ipu_core.train.interrupts import Hold
from ipu_core.train.optim.common import Rate, rate_of
from ipu_core.train.runner import Runner
from ipu_core.train.scaling import Scale, Skipped
from ipu_core.train.watch.watch import Watching
from lowprec import Accumulation, Key
from lowprec.processor import in_default_state


class Stepping:
    """What does the steps of a `TrainLoop`.

    Attributes:
        block: The typed step.
        accumulations: The order of each of its sums, by equation.
        step: Steps done.
        skipped: Steps that changed nothing, with what was wrong.
        not_finite: The first step whose loss was infinite or NaN, and that loss; None: there was none.
    """

    block: Block
    accumulations: Mapping[int, Accumulation]
    step: int
    skipped: tuple[Skipped, ...]
    not_finite: tuple[int, float] | None
    _cause: str
    _control: FloatingPointControl
    _hold: Hold
    _intake: Intake
    _key: Key
    _on_nonfinite: str
    _random: HardwareRandom | None
    _rate: Rate
    _runner: Runner
    _scale: Scale | None
    _steps_per_call: int
    _tree: PyTree
    _watching: Watching | None

    def train(self, batch: Any) -> float:
        """One update on one batch, or none (see `skipped`); gives its loss.

        Raises:
            ValueError, TypeError: a batch unlike the one that was traced.
            FloatingPointException: one that the control enables; it says in which step and equation.
            NotFinite: the first loss that is infinite or NaN, where `on_nonfinite` is "stop"; the step is done.
        """
        known = self.not_finite
        with self.whole_steps():
            (loss,) = self._train([batch])
        words, ends = self._news(known)
        if ends:
            raise NotFinite(words)
        if words:
            warnings.warn(words, NotFinite, stacklevel=2)
        return loss

    def _news(self, known: tuple[int, float] | None) -> tuple[str, bool]:
        """What is to be said of a loss that is not finite, if there was none before, and whether to stop there."""
        if self._on_nonfinite == "ignore" or known is not None or self.not_finite is None:
            return "", False
        skipped = self.not_finite[0] in [each.step for each in self.skipped]
        return in_words(*self.not_finite, skipped, self._cause), self._on_nonfinite == "stop" and not skipped

    def whole_steps(self) -> AbstractContextManager[None]:
        """A context for many calls of `train`, in which they need not prepare for Ctrl-C one by one."""
        return self._hold.installed()

    @in_default_state
    def _train(self, batches: Sequence[Any]) -> list[float]:
        """Updates on several batches, in one call if they are as many as one does and none is looked at."""
        count, first, known = len(batches), self.step, self.not_finite
        looked = self._watching is not None and self._watching.due(first, count)
        if count > 1 and (count < self._steps_per_call or looked):
            return [loss for batch in batches for loss in self._train([batch])]
        given = [self._inputs(batch, first + number) for number, batch in enumerate(batches)]
        before = self._runner.read() if self._on_nonfinite == "stop" and known is None else None
        with self._undone() if self._control.traps or count > 1 else self._hold:
            try:
                losses = [self._done(outputs) for outputs in self._fed(given)]
            except FloatingPointException as error:
                where = f"step {first}" if count == 1 else f"one of the steps {first} to {first + count - 1}"
                raise FloatingPointException(f"{where}: {error}") from None
        if before is not None and self.not_finite is not None and self._random is None:
            keys = [self._key.fold_in(first + number) for number in range(count)]
            state = dict(zip(paths(self._tree), before, strict=True))
            self._cause = cause(self.block, self.accumulations, self._control, state, given, keys)
        return losses

    def _fed(self, given: Sequence[list[Any]]) -> Iterable[Sequence[Array]]:
        """What the steps give that take these inputs, one after another."""
        if len(given) > 1:
            return self._runner.feed_many(given, self._key, self.step)
        key = self._key.fold_in(self.step)
        if self._watching is None or not self._watching.due(self.step):
            return [self._runner.feed(given[0], key)]
        with self._watching.look(self.step, self._runner.observed) as look:
            return [self._runner.feed(given[0], key, look, self._watching.equations)]

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Where steps end early, by an exception or Ctrl-C, everything is as before them."""
        state, drawn = self._runner.read(), self._runner.drawn
        before = self.step, self._scale, self.skipped, self.not_finite
        try:
            yield
        except BaseException:
            with self._hold:
                self._runner.write(state)
                self._runner.draw_on(drawn)
                self.step, self._scale, self.skipped, self.not_finite = before
            raise

    def _done(self, outputs: Sequence[Array]) -> float:
        """Keeps what a step that is done says; gives its loss."""
        loss = float(outputs[0])
        if not math.isfinite(loss) and self.not_finite is None:
            self.not_finite = self.step, loss
        if self._scale is not None and (branch := branch_of(self.block)) is not None:
            names = tuple(itertools.compress(branch.names, outputs[1]))
            if names:
                self.skipped = (*self.skipped, Skipped(self.step, float(self._scale.value), names))
            self._scale = self._scale.after(bool(names))
        self.step += 1
        return loss

    def _inputs(self, batch: Any, step: int) -> list[Any]:
        """What a step takes besides the state."""
        scale = [] if self._scale is None else [self._scale.value]
        return [*self._intake(batch), rate_of(self._rate, step), *scale]
