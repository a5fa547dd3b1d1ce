"""Runs a typed step on one of the engines: prepared calls, the state between steps, and the tiles' bill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import HardwareRandom, WorkerState
from ipu_core.chip.system import System
from ipu_core.chip.target import Target
from ipu_core.compile import bill as bills
from ipu_core.compile.bill import Bill
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import BlockPlan
from ipu_core.errors import OutOfTileMemory
from ipu_core.ir.block import Array, Block
from ipu_core.ir.passes.sharded import sharded as in_shards
from ipu_core.ir.run.execute import Executable, Observer
from ipu_core.ir.run.lockstep import executable
from ipu_core.train.pipeline import pipeline_bill
from ipu_core.train.planned import PlannedStep
from lowprec import Accumulation, Key


class Runner:
    """A typed step on one of the engines. A copy or a pickle holds step, state and bill, and prepares calls of its own.

    Both engines compute on whole arrays, and the tiles have a bill for it. The tiles' vertices run, on a `Machine`,
    where their workers draw the random bits, and where exceptions are enabled: each vertex looks at its own part of a
    sum, which is no value of the step.

    Args:
        block: The typed step.
        target: The modelled chip.
        accumulations: The order of each sum.
        control: Floating-point control.
        engine: One of `train.ENGINES`.
        overlap, steps_per_call: As `TrainLoop` takes them.
        share, parallel: Whether independent equations share compute sets, and sums of unlike sizes too.
        random: How the generators of the tiles' workers start; None: random bits are the key's.
        bill: That of the same step, made before; None: it is made here.
        system: Over whose links replicas meet; None: see `bill`.
        sharded: Names of the state that replicas share out, in the bill.
        staged: The step, where its Execution cuts it into stages, of which the slowest has the bill; None: it does not.

    Attributes:
        bill: The tiles' account; None on the direct engine.

    Raises:
        OutOfTileMemory, OutOfStreamingMemory: the step does not fit the target (engine "tiles").
    """

    def __init__(
        self,
        block: Block,
        target: Target,
        accumulations: Mapping[int, Accumulation],
        control: FloatingPointControl,
        engine: str,
        *,
        overlap: bool = False,
        share: bool = False,
        parallel: bool = False,
        steps_per_call: int = 1,
        random: HardwareRandom | None = None,
        bill: Bill | None = None,
        system: System | None = None,
        sharded: Sequence[str] = (),
        staged: PlannedStep | None = None,
    ) -> None:
        self._block, self._target, self._accumulations, self._control = block, target, accumulations, control
        self._random = random
        self._how: dict[str, Any] = {
            "overlap": overlap, "share": share, "parallel": parallel, "steps_per_call": steps_per_call
        }  # fmt: skip
        tiles = engine == "tiles"
        self._vertices = tiles and (random is not None or control.traps)
        self.bill = bill if tiles else None
        if tiles and not self._vertices:
            own = in_shards(block, sharded)
            if bill is None and staged is not None:
                self.bill = bill = pipeline_bill(own, staged, {**self._how, "system": system})
            with _without_ways():
                self.bill = bill or bills.bill(own, target, accumulations, control, system=system, **self._how)
        self._prepare()
        if self._machine is not None:
            self.bill = bill or bills.bill_of(self._machine.lowered, self._machine.engine.account, steps_per_call)

    def _prepare(self) -> None:
        # Calls are bound to the addresses of arrays: a copy or an unpickled runner has to prepare its own.
        self._machine: Machine | None = None
        if self._vertices:
            drawn = None if self._random is None else self._random.state(self._target.tiles, self._target.workers)
            with _without_ways():
                self._machine = Machine.build(
                    self._block, self._target, self._accumulations, self._control, random=drawn, **self._how
                )
        self._runs: Machine | Executable = self._machine or self.executable

    @cached_property
    def executable(self) -> Executable:
        """The step on whole arrays. Where vertices run it is made only for observers."""
        return executable(self._block, self._accumulations, self._control)

    @property
    def plan(self) -> BlockPlan | None:
        """Where the sums lie on the tiles; None on the direct engine."""
        return None if self.bill is None else self.bill.plan

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name not in ("executable", "_machine", "_runs")}
        return {**kept, "state": self.read(), "drawn": self.drawn}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        state, drawn = kept.pop("state"), kept.pop("drawn")
        vars(self).update(kept)
        self._prepare()
        self.write(state)
        self.draw_on(drawn)

    @property
    def observed(self) -> list[Array]:
        """The leaves of the state in memory; while an observer is called they still hold the values before the step."""
        return self.executable.held

    @property
    def for_host(self) -> list[Array] | None:
        """What every replica had for the host in the last step, (replicas, ...), in the order of the state.

        None: vertices ran, which leave it in the state alone.
        """
        if self._machine is not None:
            return None
        return [self.executable.for_host[number] for number in sorted(self.executable.for_host)]

    def read(self) -> list[Array]:
        """Copies of the leaves of the state."""
        return self._runs.read()

    def write(self, state: Sequence[Any]) -> None:
        """Takes copies of the leaves of a state."""
        self._runs.write(state)

    @property
    def drawn(self) -> dict[str, Array]:
        """The state of the tiles' generators by name; nothing where random bits are the key's."""
        state = None if self._machine is None else self._machine.engine.random_state
        return {} if state is None else {f"random.{name}": words for name, words in state._asdict().items()}

    def draw_on(self, drawn: Mapping[str, Array]) -> None:
        """Sets the tiles' generators to a state that `drawn` gave."""
        if self._random is not None and self._machine is not None:
            self._machine.engine.random_state = WorkerState(drawn["random.s0"], drawn["random.s1"])

    def feed(
        self, inputs: Sequence[Any], key: Key, observer: Observer | None = None, among: frozenset[int] | None = None
    ) -> list[Array]:
        """One step: updates the state, gives the outputs that are not part of it.

        An observer is told of the equations of the numbers in `among`; where vertices run, of a step on whole arrays
        beside them, with random bits of the key.
        """
        if self._machine is not None:
            # Vertices work on parts of arrays: there is no whole one that an observer could be shown.
            if observer is not None:
                self.rehearse(inputs, key, observer, among)
            return self._machine.feed(inputs, key)
        return self.executable.feed(inputs, key, observer, among)

    def feed_many(self, inputs: Sequence[Sequence[Any]], key: Key, first: int) -> list[list[Array]]:
        """Several steps in one call of the machine, step i with key.fold_in(first + i)."""
        return self._runs.feed_many(inputs, key, first)

    def rehearse(
        self, inputs: Sequence[Any], key: Key, observer: Observer, among: frozenset[int] | None = None
    ) -> None:
        """Tells an observer of these equations of the next step on whole arrays, without doing it."""
        # The executable updates the state where it lies, so it is put back. A machine's state lies elsewhere.
        state = self.read()
        try:
            self.executable.run([*state, *inputs], key, observer, among)
        finally:
            if self._machine is None:
                self.write(state)


@contextmanager
def _without_ways() -> Iterator[None]:
    """Takes from a refusal what a bill or a Machine could be given: nobody who has a Runner takes it.

    Raises:
        OutOfTileMemory: the same without `ways`.
    """
    try:
        yield
    except OutOfTileMemory as error:
        raise error.with_ways(()) from None
