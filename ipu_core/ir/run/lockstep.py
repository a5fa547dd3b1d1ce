"""Replicas that meet in the middle of their passes: each runs in a thread of its own, and waits for its neighbours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.ir.block import Array, Block, Equation
from ipu_core.ir.bodies import equations_of, inputs_of, replicas_of
from ipu_core.ir.ops import COLLECTIVES, GROUP_SUM
from ipu_core.ir.run.collectives import meeting, replica_key
from ipu_core.ir.run.execute import Executable, Wrap
from ipu_core.ir.run.kernels import BoundCall
from ipu_core.ir.run.replicas import Replicated
from ipu_core.ir.run.steps import Program, StepCalls
from lowprec import Accumulation, Key

UNSEEN = (
    "replicas that meet in their batch norms run beside each other, and nobody can look at their values one after "
    "another: batch_norm(replicas=1), or nothing is watched"
)


def check_seen(block: Block) -> None:
    """Refuses a Block of whose passes no observer can be told.

    Raises:
        ValueError: replicas meet in them.
    """
    if any(equation.op == GROUP_SUM for equation in equations_of(block)):
        raise ValueError(UNSEEN)


class Lockstep(Replicated):
    """As `Replicated`, of a program with sums over neighbouring replicas: memory is that of all replicas.

    A group's sum is made once, ascending, with the key of its first replica, and no bit depends on how threads run. An
    observer is told of what follows the meeting of all alone, and is refused where it asks for more.

    Raises:
        ValueError: an observer asks for equations of single replicas.
    """

    def _made(self, calls: StepCalls) -> Program:
        block, (_, orders, control, wrap, _) = self.block, self._made_of
        meet = [equation for equation in block.equations if equation.op in COLLECTIVES]
        results = tuple(dict.fromkeys(var for equation in meet for var in equation.operands))
        before = Block(block.inputs, results, block.equations[: block.equations.index(meet[0])], block.constants)
        numbers = {equation.number for equation in equations_of(before)}
        if self._told is not None and any(self._told.of(equation) for equation in equations_of(before)):
            raise ValueError(UNSEEN)
        own = {number: order for number, order in (orders or {}).items() if number in numbers}
        self._meetings = _Meetings()
        self._members = [
            _Member(self._meetings, number, before, own, control, wrap) for number in range(self._replicas)
        ]
        self._met = [self._arrays[var] for var in results]
        return super()._made(calls)

    def _pass(self, number: int, before: Program, key: Key) -> None:
        if number == 0:
            self._every = self._together(key)
        for array, value in zip(self._met, self._every[number], strict=True):
            np.copyto(array, value)

    def _together(self, key: Key) -> list[list[Array]]:
        """What every replica meets all others with."""

        def one(number: int) -> list[Array]:
            inputs = [
                self._part(var, number) if var in self._shared else self._arrays[held]
                for var, held in zip(self.block.inputs, inputs_of(self.block), strict=True)
            ]
            try:
                return self._members[number].run(inputs, replica_key(key, number))
            except BaseException:
                self._meetings.abort()  # or its neighbours would wait for ever
                raise

        self._meetings.reset()
        with ThreadPoolExecutor(self._replicas) as threads:
            made = [threads.submit(one, number) for number in range(self._replicas)]
        errors = [error for each in made if (error := each.exception()) is not None]
        # What ended the others is the one that is no broken wait.
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [each.result() for each in made]


class _Member(Executable):
    """One replica's passes, up to the meeting of all."""

    def __init__(self, meetings: _Meetings, number: int, *given: Any) -> None:
        self._meetings, self._number = meetings, number
        super().__init__(*given)

    def _bound(
        self, equation: Equation, operands: list[Any], output: Array, order: Accumulation | None,
        control: FloatingPointControl,
    ) -> BoundCall:  # fmt: skip
        if equation.op != GROUP_SUM:
            return super()._bound(equation, operands, output, order, control)
        return self._meetings.bound(equation, self._number, operands[0], output, control)


class _Meetings:
    """The sums over groups, of each equation and group one."""

    def __init__(self) -> None:
        self._all: dict[tuple[int, int], _Meeting] = {}

    def bound(
        self, equation: Equation, number: int, own: Array, out: Array, control: FloatingPointControl
    ) -> BoundCall:
        """What a replica does there."""
        size = int(equation.params["replicas"])
        group, place = divmod(number, size)
        found = self._all.get((equation.number, group))
        if found is None:
            every, total = np.empty((size, *own.shape), own.dtype), np.empty_like(out)
            found = self._all[equation.number, group] = _Meeting(
                threading.Barrier(size), every, total, meeting(equation, control)
            )
        return lambda key: found.meet(place, own, out, key)

    def abort(self) -> None:
        """Ends all waits."""
        for each in self._all.values():
            each.barrier.abort()

    def reset(self) -> None:
        """Makes all as they were, after an end."""
        for each in self._all.values():
            each.barrier.reset()


@dataclass
class _Meeting:
    """One sum over a group: what each has, and the sum."""

    barrier: threading.Barrier
    every: Array
    total: Array
    call: Callable[[Array, Key | None, Array], None]

    def meet(self, place: int, own: Array, out: Array, key: Key | None) -> None:
        """Waits for all, and takes their sum; the next sum is not made before all have taken it, for which it waits."""
        self.every[place, ...] = own
        self.barrier.wait()
        if place == 0:
            self.call(self.every, key, self.total)
        self.barrier.wait()
        out[...] = self.total


def executable(
    block: Block,
    accumulations: Mapping[int, Accumulation] | None = None,
    control: FloatingPointControl = FloatingPointControl(),  # noqa: B008  # frozen
    wrap: Wrap | None = None,
) -> Executable:
    """A Block made ready to run: of replicas as all of them, see `Replicated` and `Lockstep`; else as it is."""
    if replicas_of(block) == 1:
        return Executable(block, accumulations, control, wrap)
    kind = Lockstep if any(equation.op == GROUP_SUM for equation in equations_of(block)) else Replicated
    return kind(block, accumulations, control, wrap)
