"""Callbacks of a training loop: evaluation, early stopping, checkpoints, or any function of your own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ipu_core.train.arguments import check_integer
from lowprec.checks import entries, expect, expect_path, integer, listed, number, shown, truth

if TYPE_CHECKING:
    from ipu_core.train.loop import TrainLoop


Callback = Callable[[Any, float], Any]
"""Called with the loop and the loss of the step just done; a true result ends the run."""


@runtime_checkable
class Stateful(Protocol):
    """A callback whose state is part of a loop's checkpoints."""

    def __call__(self, loop: TrainLoop, loss: float, /) -> Any:
        """As every callback."""

    def state(self) -> Any:
        """JSON values."""

    def restore(self, state: Any) -> None:
        """Takes up what `state` gave."""


def due(loop: TrainLoop, every: int) -> bool:
    """Whether the steps since the callbacks were last called hold a multiple of `every`."""
    # One call of the machine may do several steps. `step % every == 0` would miss a multiple that lies within the call.
    return loop.step % every < loop.called


class Evaluate:
    """Measures the parameters every so many steps: ``Evaluate(lambda params: {"accuracy": ...}, every=100)``.

    Attributes:
        history: (steps done, measures by name), in order.

    Args:
        metric: from the parameters, as `TrainLoop.params` gives them, to a number or to numbers by name.
        every: steps from one measurement to the next.

    Raises:
        ValueError: fewer than one step.
    """

    def __init__(self, metric: Callable[[Any], float | Mapping[str, float]], every: int = 100) -> None:
        if not callable(metric):
            raise TypeError(f"metric must be a function of the parameters, not {shown(metric)}")
        self._metric, self.every = metric, check_integer("a number of steps", every, 1)
        self.history: list[tuple[int, dict[str, float]]] = []

    def __call__(self, loop: TrainLoop, loss: float) -> None:
        """Measures, if it is time."""
        if not due(loop, self.every):
            return
        found = self._metric(loop.params)
        named = found if isinstance(found, Mapping) else {"metric": found}
        self.history.append((loop.step, {name: float(value) for name, value in named.items()}))

    def state(self) -> Any:
        """The history, for a checkpoint."""
        return self.history

    def restore(self, state: Any) -> None:
        """Takes up a history.

        Raises:
            ValueError: it is none that `state` gave.
        """
        try:
            # JSON made lists of the tuples. int() of a masked element raises MaskError, which is no ValueError.
            self.history = [(int(step), dict(measures)) for step, measures in state]
        except (TypeError, ValueError, np.ma.MaskError):
            raise ValueError(f"a history is [(steps, measures by name), ..], not {shown(state)}") from None

    @property
    def latest(self) -> dict[str, float]:
        """The last measures; none before the first."""
        return self.history[-1][1] if self.history else {}


class EarlyStop:
    """Ends a run whose measure has not become better for so many evaluations.

    Attributes:
        best: the best value so far, and the steps that had been done.

    Args:
        evaluate: what measures; it stands before this among the callbacks.
        name: which of its measures; None: its only one.
        patience: evaluations without a better value after which the run ends.
        larger: whether larger is better.
        least: by how much a value must be better to count.

    Raises:
        ValueError: a patience below 1.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        name: str | None = None,
        *,
        patience: int = 5,
        larger: bool = False,
        least: float = 0.0,
    ) -> None:
        expect(Evaluate, evaluate=evaluate)
        if name is not None:
            expect(str, name=name)
        self._evaluate, self._name, self._patience = evaluate, name, check_integer("a number of steps", patience, 1)
        self._sign, self._least = (-1.0 if truth("larger", larger) else 1.0), number("least", least)
        self.best: tuple[float, int] = (self._sign * math.inf, 0)
        self._seen, self._without = 0, 0

    def __call__(self, loop: TrainLoop, loss: float) -> bool:
        """Whether the run is over."""
        # Called after every step, but each measurement counts once towards the patience.
        if len(self._evaluate.history) == self._seen:
            return False
        self._seen = len(self._evaluate.history)
        value = self._value()
        # False for NaN, which so counts as no better value.
        if self._sign * value < self._sign * self.best[0] - self._least:
            self.best, self._without = (value, loop.step), 0
        else:
            self._without += 1
        return self._without >= self._patience

    def state(self) -> Any:
        """What it has seen, for a checkpoint."""
        return {"best": self.best, "seen": self._seen, "without": self._without}

    def restore(self, state: Any) -> None:
        """Takes up what `state` gave.

        Raises:
            TypeError, ValueError: it is something else.
        """
        best, seen, without = entries("state", state, ("best", "seen", "without"))
        value, step = listed("best", best) if np.size(best) == 2 else (None, None)
        self.best = number("best", value), integer("the step of the best", step)
        self._seen, self._without = integer("seen", seen, 0), integer("without", without, 0)

    def _value(self) -> float:
        measures = self._evaluate.latest
        if self._name is None and len(measures) == 1:
            return next(iter(measures.values()))
        if self._name not in measures:
            raise ValueError(f"name one of the measures {', '.join(measures)}, not {self._name!r}")
        return measures[self._name]


class Checkpoint:
    """Saves a loop every so many steps into one file, which is whole at any time: ``Checkpoint("run.npz", every=50)``.

    It is called after the other callbacks: the file holds what they have seen.

    Args:
        path: the file, see `TrainLoop.save`.
        every: steps from one to the next.

    Raises:
        ValueError: fewer than one step.
    """

    def __init__(self, path: str | Path, every: int = 100) -> None:
        expect_path("path", path)
        self.path, self.every = Path(path), check_integer("a number of steps", every, 1)

    def __call__(self, loop: TrainLoop, loss: float) -> None:
        """Saves, if it is time."""
        if due(loop, self.every):
            loop.save(self.path)
