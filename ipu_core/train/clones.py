"""Clones: several trainings beside each other on one chip, each on tiles of its own, fed with the same batches."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from ipu_core.compile.clones import ClonesBill, OnTiles, clones_bill
from ipu_core.engine.profile import Profile
from ipu_core.errors import FloatingPointException, NotFinite
from ipu_core.ir.block import is_wide
from ipu_core.ir.pytree import flatten
from ipu_core.train import checkpoint
from ipu_core.train.arguments import check_integer
from ipu_core.train.callbacks import Checkpoint, Stateful
from ipu_core.train.clone import Clone, in_steps, loop_of, shares
from ipu_core.train.data.batches import Batches, Feed, check_enough
from ipu_core.train.execution import Execution
from ipu_core.train.keywords import ExecutionOptions, takes
from ipu_core.train.stepper import Hold
from ipu_core.train.units import feeder_of
from lowprec.checks import expect, expect_path, listed, shown

Losses = npt.NDArray[Any]
"""Float32, or float64 where a clone's are wider (precision="float64")."""
Called = Callable[["Clones", Losses], Any]
"""Called with the clones and their losses of the step just done; a true result ends the run."""
ALONE = ("system", "sharded", "stages", "steps_per_call", "overlap")
"""Fields of an Execution that are of one training on chips of its own."""
AS_MADE = ("loops", "names", "execution")
"""What is read alone."""


class Clones:
    """Trains several models or settings side by side on one chip, each on tiles of its own, with the same batches.

    A program of one small model leaves most of a chip idle: its steps are as long on an eighth of the tiles as on all
    of them. Each clone has the bits of a `TrainLoop` of its own. On the chip they go in step: what is next in each runs
    at once and takes as long as the slowest, the host sends a batch once, and loss scales' branches, or loops of
    unlike counts, run one after another (see `profile`).

    Args:
        models: what is trained, a `Clone` each, in the order of their tiles.
        batch: one batch, for its shapes and dtypes.
        execution: where they run, of all of them; None: the options say it.
        on_nonfinite: as of a `TrainLoop`, of each.
        **options: the fields of `Execution`, where that is not given.

    Attributes:
        loops: of each; none is trained on its own before others have had the same batch.
        execution: of all.

    Raises:
        ValueError: more tiles than the chip has; two of one name; replicas, stages, shards, several steps a call,
            transfers beside computation, random bits of the tiles' workers, of which clones have none; as `TrainLoop`.
        TypeError: a model that is no Clone; as `TrainLoop`.
        OutOfTileMemory, OutOfStreamingMemory: a clone does not fit its tiles (engine "tiles").

    Warns:
        As `TrainLoop`.
    """

    @takes(ExecutionOptions, Execution)
    def __init__(
        self,
        models: Sequence[Clone],
        batch: Any,
        *,
        execution: Execution | None = None,
        on_nonfinite: str = "warn",
        **options: Unpack[ExecutionOptions],
    ) -> None:
        given = _checked(models)
        self.execution = _execution(execution, **options)
        each = shares(given, self.execution)
        self.names = tuple(model.name or str(number) for number, model in enumerate(given))
        if twice := [name for name, count in Counter(map(in_steps, self.names)).items() if count > 1]:
            raise ValueError(f"two clones are called {twice[0]!r}: name= of one of them")
        self.loops = tuple(
            loop_of(model, name, batch, replace(self.execution, target=replace(self.execution.target, tiles=tiles)),
                  on_nonfinite)
            for model, name, tiles in zip(given, self.names, each, strict=True)
        )  # fmt: skip
        # What a loss draws of a batch's keys is its own: then nothing is sent once for all.
        self._leaves = 0 if any(map(feeder_of, (model.loss for model in given))) else len(flatten(batch)[0])
        self._hold = Hold()
        wide = any(is_wide(loop.block.outputs[loop.block.carried].type.format) for loop in self.loops)
        self._dtype = np.float64 if wide else np.float32
        self._traps = any(loop.control.traps for loop in self.loops)
        self._feed: Feed | None = None
        self._resumed: tuple[int, Any] = (0, None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in AS_MADE and name in vars(self):
            raise AttributeError(f"{name} of clones is what they were made with: make others")
        super().__setattr__(name, value)

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        # Loops of their own: the clones and their copy would else train each other's.
        own = {"loops": tuple(map(copy.copy, self.loops)), "_hold": Hold(), "_feed": None}
        vars(made).update({**vars(self), **own})
        return made

    @property
    def step(self) -> int:
        """Steps done.

        Raises:
            ValueError: a loop was trained on its own, and they are no more at one step.
        """
        steps = [loop.step for loop in self.loops]
        if len(set(steps)) > 1:
            words = ", ".join(f"{name} {step}" for name, step in zip(self.names, steps, strict=True))
            raise ValueError(f"clones go in step, and these have done unlike numbers of them: {words}")
        return steps[0]

    def train(self, batch: Any) -> Losses:
        """One update of each on one batch; gives their losses, in the order of the clones.

        Ctrl-C comes after the last of them.

        Raises:
            ValueError, TypeError: as `TrainLoop.train`.
            FloatingPointException: of a clone that it names; no clone has done the step.
            NotFinite: a first loss that is not finite, where `on_nonfinite` is "stop": the step of all is done.
        """
        losses, words, ends = self._train(batch)
        if ends:
            raise NotFinite("; ".join(words))
        for told in words:
            warnings.warn(told, NotFinite, stacklevel=2)
        return losses

    def run(self, batches: Batches, steps: int, *, callbacks: Iterable[Called] = ()) -> Losses:
        """`steps` updates of each; gives their losses, (clones, steps done).

        The first run after `load` goes on where the checkpoint's was in its batches, if it was saved in a run (by a
        callback); every other run begins with the first of its batches.

        Args:
            batches, steps: as of `TrainLoop.run`.
            callbacks: functions of the clones and their losses, called after each step; where one gives something true
                the run ends.

        Raises:
            ValueError, TypeError: as `TrainLoop.run`; a callback that is of one loop.
        """
        check_integer("steps", steps)
        called = [_function(each) for each in listed("callbacks", callbacks)]
        at, kept = self._resumed
        feed = Feed(batches, self.step, kept if at == self.step else None, 1)
        check_enough(batches, steps)
        self._feed, self._resumed = feed, (0, None)
        losses = list[Losses]()
        with self._hold.installed():
            while len(losses) < steps and (some := feed.take(1)):
                made, words, ends = self._train(some[0])
                losses.append(made)
                for told in words:
                    warnings.warn(told, NotFinite, stacklevel=2)
                over = [bool(each(self, made)) for each in called]
                if ends or any(over):
                    break
        self._feed = None
        return np.array(losses, self._dtype).reshape(-1, len(self.loops)).T

    def _train(self, batch: Any) -> tuple[Losses, list[str], bool]:
        """The losses of a step, and what is to be said of those that are not finite; whether that ends the run."""
        step = self.step
        losses, words, end = list[float](), list[str](), False
        # Either all do a step or none: a batch that one of them refuses is refused before the first.
        given = [loop._stepper.inputs(batch, step) for loop in self.loops]
        with self._hold.installed(), self._hold, self._whole(step):
            for name, loop, inputs in zip(self.names, self.loops, given, strict=True):
                stepper, known = loop._stepper, loop.not_finite
                try:
                    losses += stepper.train([batch], [inputs])
                except FloatingPointException as error:
                    raise FloatingPointException(f"clone {name}: {error}") from None
                told, ends = stepper.news(known)
                words += [f"clone {name}: {told}"] if told else []
                end = end or ends
        return np.array(losses, self._dtype), words, end

    @contextmanager
    def _whole(self, step: int) -> Iterator[None]:
        """Takes back a step that some have done where exceptions are enabled and another one raises one."""
        states = [loop.state for loop in self.loops] if self._traps else []
        try:
            yield
        except BaseException:
            for loop, state in zip(self.loops, states, strict=False):
                if loop.step != step:
                    loop.resume(state)
            raise

    @cached_property
    def _bill(self) -> ClonesBill | None:
        if self.execution.engine != "tiles":
            return None
        parts = [
            OnTiles(in_steps(name), loop.block, loop.accumulations, loop.control, loop.target.tiles)
            for name, loop in zip(self.names, self.loops, strict=True)
        ]
        on = self.execution
        return clones_bill(parts, on.target, self._leaves, share=on.reorder, parallel=on.parallel)

    @property
    def profile(self) -> Profile | None:
        """The account of the chip in the last step of all; before there is one, of steps that are not skipped. None on
        the direct engine. That of a clone alone on its tiles is its loop's."""
        if (bill := self._bill) is None:
            return None
        number = self.step - 1
        made = bill.profile([None if number < 0 else not loop._stepper.steps.skips(number) for loop in self.loops])
        return replace(made, update_overhead=self.execution.update_overhead or 0.0)

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint of all, from which `load` goes on; whole or not at all, see `TrainLoop.save`.

        Raises:
            OSError: the file cannot be written.
        """
        expect_path("path", path)
        step = self.step
        each = {name: loop._saved() for name, loop in zip(self.names, self.loops, strict=True)}
        arrays = {f"{name}/{key}": array for name, (own, _) in each.items() for key, array in own.items()}
        at, kept = self._resumed
        place = self._feed.position(step) if self._feed is not None else kept if at == step else None
        meta = {"step": step, "clones": {name: own for name, (_, own) in each.items()}, "batches": place}
        checkpoint.save(path, arrays, meta)

    def load(self, path: str | Path) -> None:
        """Takes up a checkpoint of clones like these, as `TrainLoop.load`.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: no checkpoint, or that of other clones.
        """
        arrays, meta = checkpoint.load(path)
        found = meta.get("clones")
        if found is None or tuple(found) != self.names:
            there = "one loop" if found is None else f"clones {', '.join(found)}"
            raise ValueError(f"{path} is the checkpoint of {there}, not of clones {', '.join(self.names)}")
        # All are looked at before the first is changed.
        for name, loop in zip(self.names, self.loops, strict=True):
            loop._check(f"{path}: clone {name}", found[name])
        for name, loop in zip(self.names, self.loops, strict=True):
            own = {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}
            loop._take_up(f"{path}: clone {name}", own, found[name])
        self._resumed = meta["step"], meta.get("batches")

    def __str__(self) -> str:
        """The clones, their tiles, and what a step takes."""
        chip = self.execution.target
        head = f"Clones: {len(self.loops)} on {chip.name}, engine {self.execution.engine}, {self.step} steps"
        lines = [
            f"  {name}: {loop.target.tiles} tiles; {loop.training}"
            for name, loop in zip(self.names, self.loops, strict=True)
        ]
        if (made := self.profile) is not None:
            alone = max(loop.profile.cycles for loop in self.loops if loop.profile is not None)
            lines.append(
                f"  {made.cycles:,} cycles = {made.microseconds:,.2f} us a step of all, {alone:,} of the slowest alone "
                f"on its tiles; fullest tile {made.memory.peak_bytes:,} of {made.memory.available:,} bytes"
            )
        return "\n".join([head, *lines])


def _checked(models: Any) -> list[Clone]:
    if isinstance(models, Clone):
        raise TypeError("models is a list of Clones: of one, which is a TrainLoop, give [clone]")
    given = listed("models", models)
    for each in given:
        if not isinstance(each, Clone):
            raise TypeError(f"a model is a Clone(loss, params, optimizer=..., precision=...), not {shown(each)}")
    if not given:
        raise ValueError("models must be one Clone at least")
    return given


def _execution(execution: Execution | None, **options: Unpack[ExecutionOptions]) -> Execution:
    """Where all run; what is of one training alone is refused."""
    if execution is None:
        made = Execution(**options)
    elif options:
        raise TypeError(f"{next(iter(options))} is a field of execution, which is given too")
    else:
        expect(Execution, execution=execution)
        made = execution
    usual = Execution()
    for name in ALONE:
        if getattr(made, name) != getattr(usual, name):
            raise ValueError(
                f"{name}={getattr(made, name)!r} is of one training on chips of its own, and clones share one chip: a "
                "TrainLoop has it"
            )
    return made


def _function(callback: Any) -> Called:
    if isinstance(callback, Checkpoint):
        raise TypeError("Checkpoint is of one loop: a function (clones, losses) may call clones.save(path)")
    if isinstance(callback, Stateful):
        raise TypeError(
            f"{type(callback).__name__} is of one loop: callbacks of clones are functions (clones, losses), which may "
            "call it with clones.loops[0] and losses[0]"
        )
    if not callable(callback):
        raise TypeError(f"a callback of clones is a function (clones, losses), not {shown(callback)}")
    made: Called = callback
    return made
