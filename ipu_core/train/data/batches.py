"""The batches of a run and its place in them, its callbacks' states, and batches as inputs of a step."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ipu_core.ir.block import Array, Block, Type
from ipu_core.ir.bodies import equations_of, inputs_of, replicas_of
from ipu_core.ir.pytree import flatten, makers, map_leaves, paths, plain
from ipu_core.ir.trace.eager import as_array
from ipu_core.train.arguments import feed
from ipu_core.train.callbacks import Callback, Checkpoint, Stateful
from ipu_core.train.data.dataset import shuffled
from lowprec.checks import integer, iterable, listed, shown

if TYPE_CHECKING:
    from ipu_core.train.loop import TrainLoop


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


class MapDataset(Protocol):
    """Samples by number: arrays, tensors or numbers, nested; all alike."""

    def __len__(self) -> int:
        """How many."""

    def __getitem__(self, number: int, /) -> Any:
        """One of them."""


class Samples:
    """Batches of a data set, for `compare` and for `TrainLoop.run` (with seed 0; another by `samples.seeded(1)`).

    Every pass has an order of its own, drawn from the seed; samples that do not fill a batch are dropped. A sample is
    asked for whenever its batch is.

    Args:
        dataset: such as a `torch.utils.data.Dataset` that has a length.
        rows: samples in a batch.

    Raises:
        TypeError: a data set without a length, or without samples by number.
        ValueError: an empty batch, or one that is larger than the data set.
    """

    def __init__(self, dataset: MapDataset, rows: int) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError(f"samples are drawn by number from a data set that has a length, not from {dataset!r}")
        try:
            count = len(dataset)
        except TypeError:  # such as of an array without axes
            raise TypeError(f"samples are drawn from a data set that has a length, not from {shown(dataset)}") from None
        self.dataset, self.rows = dataset, rows
        self._orders = functools.partial(shuffled, count, rows)
        # Refuses a batch that cannot be drawn now, not in the first step.
        self._orders(0)

    def seeded(self, seed: int) -> Callable[[int], Any]:
        """The batch of every step, for one seed."""
        order = self._orders(seed)
        return lambda step: self._batch(order(step))

    def __call__(self, seed: int, step: int) -> Any:
        """The batch of a step, for a seed."""
        return self._batch(self._orders(seed)(step))

    def _batch(self, numbers: Array) -> Any:
        samples = [self.dataset[int(number)] for number in numbers]
        return map_leaves(lambda *rows: np.stack([as_array(row) for row in rows]), *samples)


Batches = Callable[[int], Any] | Iterable[Any] | Epochs | Samples


def check_enough(batches: Any, steps: int) -> None:
    """Refuses a list that ends before the steps do, before any is done.

    Raises:
        ValueError: a list, or something else with a length, of fewer batches.
    """
    if callable(batches) or isinstance(batches, Epochs) or not isinstance(batches, Sized) or len(batches) >= steps:
        return
    raise ValueError(
        f"{steps} steps take {steps} batches, and there are {len(batches)}: give Epochs(batches), which passes over "
        f"them again and again, a function of the step's number, or steps={len(batches)}"
    )


class Feed:
    """The batches of one run, from the place where an earlier run stopped.

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
            # Before anything else: a Samples is callable itself, but with a seed and a step.
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
            # An iterator may have been moved on since, and its place cannot be seen.
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
        """The next `count` batches; fewer where they end."""
        some = []
        for batch in itertools.islice(self._following, count):
            self._recent.append((self._step, batch))
            self._step += 1
            some.append(batch)
        return some

    def position(self, step: int) -> dict[str, Any] | None:
        """The place in the batches after `step` steps, as JSON; None where the step's number says it."""
        if not self._ordered:
            return None
        # <, not <=: a pass that would begin with the next step has given nothing yet.
        begun = [start for start in self._starts if start[0] < step]
        first, epoch = begun[-1] if begun else self._starts[0]
        last = [_digest(batch) for number, batch in self._recent if number == step - 1]
        return {"epoch": epoch, "taken": step - first, "last": last[0] if last else None}

    def _from(self, batches: Iterator[Any], kept: Mapping[str, Any]) -> Iterator[Any]:
        """The rest of a pass, after the batches that the earlier run had taken."""
        taken, last = kept.get("taken", 0), kept.get("last")
        self._starts.append((self._step - taken, kept.get("epoch", 0)))
        # They are asked for, one by one, since only the source knows what comes next; the last one is kept to compare.
        for skipped in deque(itertools.islice(batches, taken), maxlen=1):
            self._recent.append((self._step - 1, skipped))
        # Only the last batch is compared: it shows another order or other data, and one digest fits a checkpoint.
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
                # With its first batch, since an empty pass begins at no step.
                if self._starts[-1][1] != number:
                    self._starts.append((begun, number))
                yield batch
            if self._step == begun:  # an empty pass: there is no end of them
                return


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
        # Checkpoints last, the others as given: sorted keeps the order of equals.
        self._callbacks = sorted(given, key=lambda each: isinstance(each, Checkpoint))
        self._feed: Feed | None = Feed(batches, step, kept.get("batches"), most)
        self._restore(kept.get("callbacks", []))
        self.over = bool(self._callbacks) and bool(kept.get("over"))

    def take(self, count: int) -> list[Any]:
        """The next `count` batches; fewer where they end, none where a callback has ended the run."""
        return [] if self.over or self._feed is None else self._feed.take(count)

    def call(self, loop: TrainLoop, loss: float) -> None:
        """Calls the callbacks after a step."""
        for each in self._callbacks:
            # All are called, also behind one that ends the run: checkpoints, which come last, hold its end.
            self.over = bool(each(loop, loss)) or self.over

    def finish(self) -> None:
        """Ends the run: the next one begins its batches anew; the callbacks keep their states."""
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
        """Restores the callbacks from a checkpoint's states; without callbacks the states are kept for later."""
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


class BatchInputs:
    """Brings batches to the formats and shapes that a step was traced with.

    Args:
        block: The typed step.
        batch: The one it was traced with.
        numbers: How many inputs of the step come behind the batch: the learning rate, a loss scale.
        feeder: Makes the arrays that are fed of a batch; None: they are the batch's own.
    """

    def __init__(self, block: Block, batch: Any, numbers: int, feeder: Callable[[Any], Any] | None = None) -> None:
        self._feeder = feeder
        batch = batch if feeder is None else feeder(batch)
        wanted = block.inputs[block.carried : len(block.inputs) - numbers]
        classes = {e.inputs[0]: int(e.params["classes"]) for e in equations_of(block) if e.op == "one_hot"
                   and e.family == "loss"}  # fmt: skip
        self._tree = flatten(batch)[1]
        self._names = paths(self._tree)
        # With micro-batches the loss reads an iteration's part of the batch, which is a variable of its own.
        held = dict(zip(block.inputs, inputs_of(block), strict=True))
        replicas = replicas_of(block)
        self._wanted = [(_of_all(var.type, replicas), classes.get(held[var], 0)) for var in wanted]

    def __call__(self, batch: Any) -> list[Array]:
        """The arrays of a batch.

        Raises:
            ValueError, TypeError: it is unlike the one that was traced, or has labels that are no class.
        """
        batch = batch if self._feeder is None else self._feeder(batch)
        leaves, tree = flatten(batch)
        if tree != self._tree and (names := paths(tree)) != self._names:
            # The usual mistake: all batches, or a whole data set, in place of one.
            if not isinstance(batch, Mapping) and len(leaves) != len(self._wanted):
                raise ValueError(
                    f"the batch holds {len(leaves)} arrays; the step was traced with {len(self._wanted)} "
                    f"({', '.join(self._names)}). Batches are given one by one: [(x, y), (x, y), ...], or a function "
                    "of the step's number"
                )
            raise ValueError(
                f"the batch holds {', '.join(names) or 'nothing'}; the step was traced with {', '.join(self._names)} "
                "(a captured module's model.batch leaves its settings out)"
            )
        if tree != self._tree and makers(tree) != makers(self._tree):
            raise ValueError(
                "the batch holds other classes, or other things in them that are no arrays, than the one that was "
                "traced, of which these are a part: what changes from batch to batch must be an array"
            )
        return [
            feed(name or "0", leaf, *wanted)
            for name, leaf, wanted in zip(self._names, leaves, self._wanted, strict=True)
        ]


def _of_all(part: Type, replicas: int) -> Type:
    """The type of what all replicas have together, of which each has so many rows."""
    return part if replicas == 1 else Type((replicas * part.shape[0], *part.shape[1:]), part.format)


def _digest(batch: Any) -> str:
    leaves = [np.ascontiguousarray(plain(leaf)) for leaf in flatten(batch)[0]]
    # Arrays of equal bytes may differ in shape or dtype.
    total = hashlib.sha256(repr([(leaf.shape, leaf.dtype.name) for leaf in leaves]).encode())
    for leaf in leaves:
        total.update(leaf.tobytes())
    return total.hexdigest()
