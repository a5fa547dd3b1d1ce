"""Where a run's batches come from, and its place in them: a function of the step, batches in order, or passes."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ipu_core.ir.pytree import flatten
from ipu_core.train.samples import Samples
from lowprec.checks import integer, iterable, shown


class Epochs:
    """Batches in passes without end: ``Epochs(batches)``, or ``Epochs(lambda epoch: ...)`` where the passes differ.

    Args:
        source: What can be iterated over again and again, or a function from a pass's number, 0, 1, 2, ..., to what
            can be iterated over once, such as a generator function. Every pass gives the same batches in the same order
            whenever it is made: that is how a run goes on from its checkpoint.

    Raises:
        TypeError: neither, or an iterator, of which there is one pass only.
    """

    def __init__(self, source: Iterable[Any] | Callable[[int], Iterable[Any]]) -> None:
        if isinstance(source, Iterator) or not (callable(source) or isinstance(source, Iterable)):
            raise TypeError(
                f"Epochs are made of batches, or of a function from a pass's number to such, not {source!r}"
            )
        self._source = source

    def epoch(self, number: int) -> Iterator[Any]:
        """The batches of one pass.

        Raises:
            TypeError: the function gives nothing that can be iterated over.
        """
        given = self._source(integer("number", number, 0)) if callable(self._source) else self._source
        if not isinstance(given, Iterable):
            raise TypeError(f"a pass must be batches that can be iterated over, not {shown(given)}")
        return iter(given)


Batches = Callable[[int], Any] | Iterable[Any] | Epochs | Samples


class Feed:
    """The batches of one run, from where an earlier one was on.

    Args:
        batches: A function from the step's number to its batch, batches in order, Epochs, or Samples, of seed 0.
        step: The loop's, before the first of them.
        kept: What `position` gave in the run that this one goes on from; None: there was none.
        most: How many may be handed out before their steps are counted.

    Raises:
        TypeError: batches of another kind.
        ValueError: they cannot be taken up there, or are not those of that run.
    """

    def __init__(self, batches: Batches, step: int, kept: Mapping[str, Any] | None = None, most: int = 1) -> None:
        if isinstance(batches, Samples):
            batches = batches.seeded(0)
        self._step, self._ordered = step, not callable(batches)
        self._starts: list[tuple[int, int]] = []  # the step at which each pass began, and its number
        self._recent: deque[tuple[int, Any]] = deque(maxlen=most + 1)
        if callable(batches):
            self._following: Iterator[Any] = map(batches, itertools.count(step))
        elif isinstance(batches, Epochs):
            epoch = (kept or {}).get("epoch", 0)
            self._following = self._passes(batches, epoch, self._from(batches.epoch(epoch), kept or {}))
        elif isinstance(batches, Iterable):
            if kept and kept["taken"] and isinstance(batches, Iterator):
                raise ValueError(
                    f"the checkpoint's run had taken {kept['taken']} batches, and an iterator cannot be set to the "
                    "next one: give a list or something else that can be iterated over again, Epochs, or a function "
                    "of the step's number"
                )
            self._following = self._from(iter(iterable("batches", batches)), kept or {})
        else:
            raise TypeError(
                f"batches must be a function of the step's number, or batches in order, or Epochs, not {batches!r}"
            )

    def take(self, count: int) -> list[Any]:
        """So many batches more; fewer where they end."""
        some = []
        for batch in itertools.islice(self._following, count):
            self._recent.append((self._step, batch))
            self._step += 1
            some.append(batch)
        return some

    def position(self, step: int) -> dict[str, Any] | None:
        """The place after so many steps of the loop, as JSON; None where the step's number says it."""
        if not self._ordered:
            return None
        begun = [start for start in self._starts if start[0] < step]
        first, epoch = begun[-1] if begun else self._starts[0]
        last = [_digest(batch) for number, batch in self._recent if number == step - 1]
        return {"epoch": epoch, "taken": step - first, "last": last[0] if last else None}

    def _from(self, batches: Iterator[Any], kept: Mapping[str, Any]) -> Iterator[Any]:
        """What is left of a pass, behind what had been taken of it."""
        taken, last = kept.get("taken", 0), kept.get("last")
        self._starts.append((self._step - taken, kept.get("epoch", 0)))
        for skipped in deque(itertools.islice(batches, taken), maxlen=1):
            self._recent.append((self._step - 1, skipped))
        if last is not None and [_digest(batch) for _, batch in self._recent] != [last]:
            raise ValueError(
                f"batch {taken - 1} is not the one that the checkpoint's run took: a run goes on with the same batches "
                "in the same order"
            )
        return batches

    def _passes(self, epochs: Epochs, epoch: int, following: Iterator[Any]) -> Iterator[Any]:
        yield from following
        for number in itertools.count(epoch + 1):
            begun = self._step
            for batch in epochs.epoch(number):
                if self._starts[-1][1] != number:
                    self._starts.append((begun, number))
                yield batch
            if self._step == begun:  # an empty pass: there is no end of them
                return


def _digest(batch: Any) -> str:
    leaves = [np.ascontiguousarray(leaf) for leaf in flatten(batch)[0]]
    total = hashlib.sha256(repr([(leaf.shape, leaf.dtype.name) for leaf in leaves]).encode())
    for leaf in leaves:
        total.update(leaf.tobytes())
    return total.hexdigest()
