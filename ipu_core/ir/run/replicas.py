"""Replicas of a program as one on whole arrays: each runs until all meet, then what follows runs once for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.ir.block import Array, Block, Equation, Var
from ipu_core.ir.bodies import EquationSpan, RegionSpan, equations_of, inputs_of, replicas_of, steps_of
from ipu_core.ir.ops import COLLECTIVES, EACH_REPLICA
from ipu_core.ir.run.collectives import around_meetings, batch_inputs, meeting, replica_key
from ipu_core.ir.run.execute import Executable, checked
from ipu_core.ir.run.kernels import BoundCall
from ipu_core.ir.run.steps import Program, StepCalls
from lowprec import Accumulation, Key


class Replicated(Executable):
    """The program of R replicas on whole arrays: it takes a batch of all of them, whose rows they share equally.

    Each replica runs what comes before they meet with its part and its own key (`replica_key`); what follows, the
    update, is the same on all and runs once, with the step's key. An observer is told of what each replica computes.
    Numbers are those of R programs that run beside each other; memory is that of one, and what they meet with.

    Args:
        block: One replica's program; `around_meetings` says what of it may meet where.
        given, options: As of `Executable`.

    Raises:
        InvalidBlock: see `around_meetings`.
    """

    def __init__(self, block: Block, *given: Any, **options: Any) -> None:
        self._replicas = replicas_of(block)
        self._shared = frozenset(batch_inputs(block))
        self._bring: list[Callable[[int], None]] = []  # a replica's number -> takes a copy of what it has
        self._whole: dict[Var, Any] = {}
        super().__init__(around_meetings(block), *given, **options)
        held = dict(zip(self.block.inputs, inputs_of(self.block), strict=True))
        self._parts = [(var, self._arrays[held[var]]) for var in self.block.inputs if var in self._shared]

    def _made(self, calls: StepCalls) -> Program:
        positions = [place for place, each in enumerate(equations_of(self.block)) if each.op in COLLECTIVES]
        first, end = positions[0], len(equations_of(self.block))
        before = calls.program(_within(steps_of(self.block), 0, first))
        after = calls.program(_within(steps_of(self.block), first, end))

        def run(key: Key) -> None:
            for number in range(self._replicas):
                self._pass(number, before, key)
                for bring in self._bring:
                    bring(number)
            after(key)

        return run

    def _pass(self, number: int, before: Program, key: Key) -> None:
        """What a replica makes before all meet."""
        self._take_part(number)
        before(replica_key(key, number))

    def _bound(
        self, equation: Equation, operands: list[Any], output: Array, order: Accumulation | None,
        control: FloatingPointControl,
    ) -> BoundCall:  # fmt: skip
        if equation.op not in COLLECTIVES:
            return super()._bound(equation, operands, output, order, control)
        if equation.op in ("reduce_scatter", "all_gather"):
            raise NotImplementedError(f"{equation.name}: shards are for the account; numbers are made of whole arrays")
        (own,) = operands
        if equation.op == EACH_REPLICA:
            return self._for_host(equation, own, output)
        needed = 1 if equation.op == "first_replica" else self._replicas
        every = np.empty((needed, *own.shape), own.dtype)

        def bring(number: int) -> None:
            if number < needed:
                every[number, ...] = own

        self._bring.append(bring)
        if needed == 1:
            return lambda key: np.copyto(output, every[0, ...])
        if equation.op == "all_reduce_max":
            return lambda key: np.max(every, 0, out=output)
        call = meeting(equation, control)
        return lambda key: call(every, key, output)

    def _for_host(self, equation: Equation, own: Array, output: Array) -> BoundCall:
        self.for_host[equation.number] = np.empty((self._replicas, *own.shape), own.dtype)

        def bring(number: int) -> None:
            self.for_host[equation.number][number, ...] = own

        self._bring.append(bring)
        return lambda key: np.copyto(output, self.for_host[equation.number][0, ...])

    def _fill(self, places: Sequence[tuple[Var, Array]], values: Sequence[Any]) -> None:
        if len(values) != len(places):
            super()._fill(places, values)  # which refuses them
        alike = list[tuple[tuple[Var, Array], Any]]()
        for place, value in zip(places, values, strict=True):
            var, array = place
            if var not in self._shared:
                alike.append((place, value))
                continue
            shape = (self._replicas * var.type.shape[0], *var.type.shape[1:])
            self._whole[var] = np.asarray(checked(var, shape, array.dtype, value))
        super()._fill([place for place, _ in alike], [value for _, value in alike])

    def _part(self, var: Var, number: int) -> Any:
        """A replica's rows of an input."""
        rows = var.type.shape[0]
        return self._whole[var][number * rows : (number + 1) * rows]

    def _take_part(self, number: int) -> None:
        """Puts a replica's part of the batch where the program reads it."""
        for var, array in self._parts:
            part = self._part(var, number)
            if var in self._given:
                self._given[var] = part
            else:
                array[...] = part


def _within(steps: Sequence[EquationSpan | RegionSpan], first: int, last: int) -> list[EquationSpan | RegionSpan]:
    """The steps between two positions, runs of equations cut there."""
    found = list[EquationSpan | RegionSpan]()
    for step in steps:
        if isinstance(step, EquationSpan):
            found.append(step._replace(first=max(step.first, first), last=max(first, min(step.last, last))))
        elif first <= step.first and step.last <= last:
            found.append(step)
    return found
