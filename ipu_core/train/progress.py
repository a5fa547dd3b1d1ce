"""A run of a training loop under way: its batches, its callbacks, and what a checkpoint keeps of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ipu_core.train.batches import Batches, Feed
from ipu_core.train.callbacks import Callback, Checkpoint, Stateful, Trained
from lowprec.checks import listed, shown


class Run:
    """One call of `TrainLoop.run`.

    Args:
        batches: See `Feed`.
        callbacks: In the order in which they are called; checkpoints come last, so that they hold what the others saw.
        step: The loop's.
        kept: What `state` gave in the run that this one goes on from.
        most: Batches that are taken at a time.

    Attributes:
        over: Whether a callback ended it.

    Raises:
        TypeError, ValueError: see `Feed`.
        ValueError: callbacks that keep a state, but others than that run's.
    """

    def __init__(
        self,
        batches: Batches,
        callbacks: Iterable[Callback],
        step: int,
        kept: Mapping[str, Any] | None = None,
        most: int = 1,
    ) -> None:
        kept = kept or {}
        given = listed("callbacks", callbacks)
        for each in given:
            if not callable(each):
                raise TypeError(f"a callback is a function (loop, loss), such as an Evaluate, not {shown(each)}")
        self._callbacks = sorted(given, key=lambda each: isinstance(each, Checkpoint))
        self._feed: Feed | None = Feed(batches, step, kept.get("batches"), most)
        self._restore(kept.get("callbacks", []))
        self.over = bool(self._callbacks) and bool(kept.get("over"))

    def take(self, count: int) -> list[Any]:
        """So many batches more; fewer where they end, none where the run does."""
        return [] if self.over or self._feed is None else self._feed.take(count)

    def call(self, loop: Trained, loss: float) -> None:
        """Calls the callbacks after a step."""
        for each in self._callbacks:
            self.over = bool(each(loop, loss)) or self.over

    def finish(self) -> None:
        """Forgets where it was: the next run begins anew, with what the callbacks have seen."""
        self._feed, self.over = None, False

    def state(self, step: int) -> dict[str, Any]:
        """What another run needs to go on after that many steps of the loop, as JSON."""
        return {
            "batches": None if self._feed is None else self._feed.position(step),
            "callbacks": self._unused or [[type(each).__name__, each.state()] for each in self._stateful],
            "over": self.over,
        }

    @property
    def _stateful(self) -> list[Stateful]:
        return [each for each in self._callbacks if isinstance(each, Stateful)]

    def _restore(self, kept: list[Any]) -> None:
        """Gives the callbacks what those of the checkpoint's run had; where there are none, it is kept for later."""
        there, here = ([name for name, _ in kept], [type(each).__name__ for each in self._stateful])
        self._unused = [] if here else kept
        if not there or not here:
            return
        if there != here:
            raise ValueError(
                f"the checkpoint's run had the callbacks {', '.join(there)}, this one has {', '.join(here)}: give the "
                "same ones in the same order, or none that keep a state"
            )
        for each, (_, state) in zip(self._stateful, kept, strict=True):
            each.restore(state)
