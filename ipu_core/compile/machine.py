"""Machine: a lowered training step in an engine, its state on the tiles; runs like `execute`'s Executable."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import WorkerState
from ipu_core.chip.system import System
from ipu_core.chip.target import Target
from ipu_core.compile.fitting import fitting
from ipu_core.compile.lowering.lower import Lowered, lower
from ipu_core.compile.planning import LEAST_ROOM, ROOM_ANYWAY, BlockPlan, plan
from ipu_core.compile.schedule.residency import check_room
from ipu_core.compile.work import works_of
from ipu_core.engine.engine import Engine
from ipu_core.engine.profile import Profile
from ipu_core.engine.work import Works
from ipu_core.graph.streams import RemoteBuffer
from ipu_core.ir.block import Array, Block, Var
from ipu_core.ir.bodies import regions_of
from ipu_core.ir.regions import Loop
from lowprec import Accumulation, Key, as_key
from lowprec.checks import expect, integer, listed, truth
from lowprec.processor import in_default_state


class Machine:
    """A Block on modelled tiles, compiled once.

    Attributes:
        lowered: the graph and program.
        steps_per_call: steps of one `feed_many`.
        engine: which runs it.

    Args:
        lowered: from `lower`.
        control: floating-point control of the tiles.
        allow_out_of_memory: go on when a tile needs more memory than it has.
        steps_per_call: steps that `feed_many` runs in one call, without the host.
        random: the state of the tiles' own generators, see `Engine`; None: random bits are the key's.

    Raises:
        OutOfTileMemory: naming the tile, the bytes by category and the largest variables.
    """

    @in_default_state
    def __init__(
        self,
        lowered: Lowered,
        control: FloatingPointControl | None = None,
        *,
        allow_out_of_memory: bool = False,
        steps_per_call: int = 1,
        random: WorkerState | None = None,
    ) -> None:
        expect(Lowered, lowered=lowered)
        if control is not None:
            expect(FloatingPointControl, control=control)
        allow_out_of_memory = truth("allow_out_of_memory", allow_out_of_memory)
        self.lowered, self.steps_per_call = lowered, integer("steps_per_call", steps_per_call, 1)
        programs = lowered.programs(self.steps_per_call)
        self.engine = Engine(lowered.graph, programs, control, None, allow_out_of_memory, random=random)
        if lowered.entries is not None:
            # Variables start at zero: the old state is in entry 0, the new one has to go to entry 1.
            self.engine.write(lowered.entries[1], [1])
        self._fed: list[Iterator[Any]] = [iter(())] * len(lowered.feeds)
        self._results: list[list[Array]] = [[] for _ in lowered.results]
        # The default argument keeps this round's number: a plain closure would see the last one.
        for number, stream in enumerate(lowered.feeds):
            self.engine.connect(stream, lambda number=number: next(self._fed[number]))
        for number, stream in enumerate(lowered.results):
            self.engine.connect(stream, lambda values, number=number: self._results[number].append(values.copy()))

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Machine cannot be copied or pickled: build another, Machine.build(block, target), "
            "and give it this one's state, write(machine.read())"
        )

    @staticmethod
    def build(
        block: Block,
        target: Target,
        accumulations: Mapping[int, Accumulation] | None = None,
        control: FloatingPointControl | None = None,
        *,
        overlap: bool = False,
        share: bool = False,
        parallel: bool = False,
        allow_out_of_memory: bool = False,
        steps_per_call: int = 1,
        random: WorkerState | None = None,
    ) -> "Machine":
        """Plans, lowers and compiles a Block in one go; see `lower`, and `check_room` for what is refused before.

        Paths run one after another where a tile has no memory for parallel ones, and products in smaller pieces where
        it has none for that.

        Raises:
            TypeError: an argument of another kind.
        """

        def make(parallel: bool, spare: int) -> "Machine":
            lowered = planned(
                block, target, accumulations, control, overlap=overlap, share=share, parallel=parallel, spare=spare,
                allow_out_of_memory=allow_out_of_memory,
            )  # fmt: skip
            return Machine(
                lowered, control, allow_out_of_memory=allow_out_of_memory, steps_per_call=steps_per_call, random=random
            )

        return fitting(make, parallel=parallel, memory=lambda made: made.engine.memory)

    @property
    def plan(self) -> BlockPlan:
        """The plan of the Block's products and sums."""
        return self.lowered.plan

    @property
    def profile(self) -> Profile:
        """The account of a step, and as its `call` of a `feed_many` of several.

        It depends on the data only where a branch skips a part: then of the last `feed`, and of the last `feed_many`.
        """
        one = replace(self.engine.profile(), works=self._works)
        if self.steps_per_call == 1:
            return one
        return replace(one, call=replace(self.engine.profile(1), works=self._works, runs=self.steps_per_call))

    @cached_property
    def _works(self) -> Works:
        return works_of(self.lowered.block, self.lowered.plan)

    @in_default_state
    def write(self, state: Sequence[Any]) -> None:
        """Puts the leaves of a state on the tiles, what is streamed of it in streaming memory.

        Raises:
            ValueError: another number of leaves, or another shape.
        """
        state = listed("state", state)
        self._check("state", len(state), len(self.lowered.state))
        for place, value in zip(self.lowered.state, state, strict=True):
            if isinstance(place, RemoteBuffer):
                self.engine.write_remote(place, self._entry, value)
            else:
                self.engine.write(place, value)

    def read(self) -> list[Array]:
        """Copies of the state's leaves."""
        return [
            self.engine.read_remote(place, self._entry) if isinstance(place, RemoteBuffer) else self.engine.read(place)
            for place in self.lowered.state
        ]

    @property
    def _entry(self) -> int:
        """Where in its remote buffers the streamed state is."""
        entries = self.lowered.entries
        return 0 if entries is None else int(self.engine.read(entries[0])[0])

    @in_default_state
    def feed(self, inputs: Sequence[Any], key: Key | int | None) -> list[Array]:
        """One run of the program with the inputs that are not state; gives the outputs that are not state.

        Raises:
            ValueError: another number of inputs, or another shape.
        """
        self._send([listed("inputs", inputs)])
        self.engine.set_key(key)
        self.engine.run()
        return [made[0] for made in self._results]

    @in_default_state
    def feed_many(self, inputs: Sequence[Sequence[Any]], key: Key, first: int) -> list[list[Array]]:
        """`steps_per_call` runs in one, without the host: gives what as many calls of `feed` would.

        Args:
            inputs: of each run, those that are not state.
            key: of all runs; that of run i is key.fold_in(first + i).
            first: number of the first.

        Raises:
            ValueError: another number of runs or inputs, or another shape.
        """
        inputs = [listed("the inputs of a run", each) for each in listed("inputs", inputs)]
        self._check("runs in a call", len(inputs), self.steps_per_call)
        key, first = as_key(key), integer("first", first, 0)
        if len(inputs) == 1:  # for one step a call there is no second program
            return [self.feed(inputs[0], key.fold_in(first))]
        self._send(inputs)
        # So the engine folds first + i into the key, run by run, as calls of `feed` would.
        self.engine.set_key(None)
        self.engine.key, self.engine.step = key, first
        self.engine.run(1)
        return [list(outputs) for outputs in zip(*self._results, strict=True)]

    def _send(self, runs: Sequence[Sequence[Any]]) -> None:
        """Makes ready what the streams bring in the next runs, and forgets what they took away."""
        for inputs in runs:
            self._check("inputs", len(inputs), len(self._fed))
        for number, var in enumerate(self._inputs):
            self._fed[number] = chain.from_iterable([self._transfers(var, inputs[number]) for inputs in runs])
        for made in self._results:
            made.clear()

    @property
    def _inputs(self) -> tuple[Var, ...]:
        block = self.lowered.block
        return block.inputs[block.carried :]

    def _transfers(self, var: Var, value: Any) -> Iterator[Any]:
        """What a run sends for an input: the value, or its part for each iteration."""
        loops = regions_of(self.lowered.block, Loop)
        fed = ((loop, part) for loop, _ in loops for whole, part in loop.fed if whole is var)
        if (found := next(fed, None)) is None:
            return iter([value])
        if np.shape(value) != var.type.shape:
            raise ValueError(f"input {var} must have shape {var.type.shape}, not {np.shape(value)}")
        loop, part = found
        return (loop.part(part, value, number) for number in range(loop.count))

    def step(self, batch: Sequence[Any], lr: Any, key: Key | int | None) -> float:
        """One training step: updates the state, gives the loss.

        Args:
            batch: the leaves of the batch.
            lr: the learning rate.
            key: of this step; every equation folds its number into it.
        """
        outputs = self.feed([*listed("batch", batch), lr], key)
        if not outputs or outputs[0].size != 1:
            raise ValueError("the block is no training step: it has no output of one number that is not state")
        return float(outputs[0])

    def run(self, inputs: Sequence[Any], key: Key | int | None) -> list[Array]:
        """All outputs for all inputs, as `Executable.run`: the state goes in and comes back."""
        carried, inputs = len(self.lowered.state), listed("inputs", inputs)
        self.write(inputs[:carried])
        others = self.feed(inputs[carried:], key)
        return [*self.read(), *others]

    @staticmethod
    def _check(what: str, given: int, wanted: int) -> None:
        if given != wanted:
            raise ValueError(f"the block takes {wanted} {what}, {given} were given")


def planned(
    block: Block,
    target: Target,
    accumulations: Mapping[int, Accumulation] | None = None,
    control: FloatingPointControl | None = None,
    *,
    overlap: bool = False,
    share: bool = False,
    parallel: bool = False,
    allow_out_of_memory: bool = False,
    spare: int = 0,
    system: System | None = None,
) -> Lowered:
    """Plans and lowers a Block for which a target has room; arguments as of `Machine.build` and `plan`.

    Raises:
        TypeError: an argument of another kind.
        OutOfTileMemory, OutOfStreamingMemory: see `check_room`.
    """
    expect(Block, block=block)
    expect(Target, target=target)
    if control is not None:
        expect(FloatingPointControl, control=control)
    if not truth("allow_out_of_memory", allow_out_of_memory):
        check_room(block, target)
    traps = control is not None and bool(control.traps)
    room = ROOM_ANYWAY if allow_out_of_memory else LEAST_ROOM
    made = plan(block, target, accumulations, spare=spare, share=room)
    return lower(block, made, overlap=overlap, share=share, parallel=parallel, traps=traps, system=system)
