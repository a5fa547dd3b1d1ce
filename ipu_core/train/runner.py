"""What runs a step, on modelled tiles or on whole arrays: prepared once, with the state that it goes on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ipu_core.compile.machine import Machine
from ipu_core.control import FloatingPointControl
from ipu_core.hardware_random import HardwareRandom, WorkerState
from ipu_core.ir.block import Array, Block
from ipu_core.ir.execute import Executable, Observer
from ipu_core.target import Target
from lowprec import Accumulation, Key


class Runner:
    """A typed step on one of the engines. A copy or a pickle holds step and state, and prepares calls of its own.

    Args:
        block: The typed step.
        target: The modelled chip.
        accumulations: The order of each sum.
        control: Floating-point control.
        engine: One of `train.ENGINES`.
        overlap, steps_per_call: As `TrainLoop` takes them.
        share: Whether independent equations share compute sets.
        random: How the generators of the tiles' workers start; None: random bits are the key's.

    Attributes:
        machine: The step on tiles; None on the direct engine.
    """

    def __init__(
        self,
        block: Block,
        target: Target,
        accumulations: Mapping[int, Accumulation],
        control: FloatingPointControl,
        engine: str,
        *,
        overlap: bool,
        share: bool,
        steps_per_call: int,
        random: HardwareRandom | None,
    ) -> None:
        self._block, self._target, self._accumulations, self._control = block, target, accumulations, control
        self._engine, self._overlap, self._share = engine, overlap, share
        self._steps_per_call, self._random = steps_per_call, random
        self._prepare()

    def _prepare(self) -> None:
        self.machine: Machine | None = None
        if self._engine == "tiles":
            drawn = None if self._random is None else self._random.state(self._target.tiles, self._target.workers)
            self.machine = Machine.build(
                self._block, self._target, self._accumulations, self._control,
                overlap=self._overlap, share=self._share, steps_per_call=self._steps_per_call, whole=drawn is None,
                random=drawn,
            )  # fmt: skip
        self._runs: Machine | Executable = self.machine or self.executable

    @cached_property
    def executable(self) -> Executable:
        """The step on whole arrays; beside the tiles only where somebody looks into it."""
        return Executable(self._block, self._accumulations, self._control)

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name not in ("executable", "machine", "_runs")}
        return {**kept, "state": self.read(), "drawn": self.drawn}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        state, drawn = kept.pop("state"), kept.pop("drawn")
        vars(self).update(kept)
        self._prepare()
        self.write(state)
        self.draw_on(drawn)

    @property
    def observed(self) -> list[Array]:
        """Where the leaves of the state lie, as they are before the step, while an observer is told of it."""
        return self.executable.held

    def read(self) -> list[Array]:
        """Copies of the leaves of the state."""
        return self._runs.read()

    def write(self, state: Sequence[Any]) -> None:
        """Takes copies of the leaves of a state."""
        self._runs.write(state)

    @property
    def drawn(self) -> dict[str, Array]:
        """The state of the tiles' generators by name; nothing where random bits are the key's."""
        state = None if self.machine is None else self.machine.engine.random_state
        return {} if state is None else {f"random.{name}": words for name, words in state._asdict().items()}

    def draw_on(self, drawn: Mapping[str, Array]) -> None:
        """Goes on from what `drawn` was."""
        if self._random is not None and self.machine is not None:
            self.machine.engine.random_state = WorkerState(drawn["random.s0"], drawn["random.s1"])

    def feed(self, inputs: Sequence[Any], key: Key) -> list[Array]:
        """One step: updates the state, gives the outputs that are none."""
        return self._runs.feed(inputs, key)

    def feed_many(self, inputs: Sequence[Sequence[Any]], key: Key, first: int) -> list[list[Array]]:
        """Several steps in one call of the machine, step i with key.fold_in(first + i)."""
        return self._runs.feed_many(inputs, key, first)

    def feed_observed(self, inputs: Sequence[Any], key: Key, observer: Observer, among: frozenset[int]) -> list[Array]:
        """As `feed`, and an observer is told of the equations of these numbers.

        In place of tiles whole arrays do the step, to the same bits. Where the tiles' workers draw random bits, which
        whole arrays cannot, both do it, and the observer is told of one with bits of the key.
        """
        if self.machine is None:
            return self.executable.feed(inputs, key, observer, among)
        if self._random is not None:
            self.rehearse(inputs, key, observer, among)
            return self.machine.feed(inputs, key)
        self.executable.write(self.machine.read())
        outputs = self.executable.feed(inputs, key, observer, among)
        self.machine.write(self.executable.read())
        return outputs

    def rehearse(self, inputs: Sequence[Any], key: Key, observer: Observer, among: frozenset[int]) -> None:
        """Tells an observer of these equations of the next step on whole arrays, without doing it."""
        state = self.read()
        try:
            self.executable.run([*state, *inputs], key, observer, among)
        finally:
            if self.machine is None:
                self.write(state)
