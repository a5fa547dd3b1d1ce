"""The steps of a Block as one call: prepared calls in turn, a loop's body several times, a branch's or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ipu_core.ir.block import Array, Var
from ipu_core.ir.bodies import EquationSpan, RegionSpan
from ipu_core.ir.regions import Branch, Loop, Scan, iteration_key
from ipu_core.ir.run.buffers import write_back
from ipu_core.ir.run.kernels import BoundCall
from lowprec import Key

Program = Callable[[Key], None]
"""What runs with the key of the step, or of the iteration around it."""

OF_STEP = -1


class PreparedCall(NamedTuple):
    """A call, and what it computes.

    Attributes:
        position: of its first equation.
        call: what is called.
        number: folded into its key; None: it draws no random bits; OF_STEP: its key is that of the step, or of the
            round.
    """

    position: int
    call: BoundCall
    number: int | None


@dataclass(frozen=True)
class StepCalls:
    """What the steps of a Block are made of.

    Attributes:
        calls: all that compute, in order.
        arrays: of every value.
        given: by input that is fed in parts, what was given for it.
        new: where a branch says whether it ran.
    """

    calls: Iterable[PreparedCall]
    arrays: Mapping[Var, Array]
    given: Mapping[Var, Array]
    new: Array

    def program(self, steps: Iterable[EquationSpan | RegionSpan], depth: int = 0) -> Program:
        """What runs some steps, one after another, in so many loops."""
        programs = [self._program(step, depth) for step in steps]

        def run(key: Key) -> None:
            for program in programs:
                program(key)

        return run

    def _program(self, step: EquationSpan | RegionSpan, depth: int) -> Program:
        if isinstance(step, EquationSpan):
            return self._calls(step)
        region = step.equation.region
        depth += isinstance(region, Loop)
        body = self.program(step.steps, depth)
        if isinstance(region, Scan):
            return self._scan(region, body, depth)
        if isinstance(region, Loop):
            return self._loop(region, body, depth)
        if isinstance(region, Branch):
            return self._branch(region, body)
        raise NotImplementedError(f"no execution of {region!r}")

    def _calls(self, step: EquationSpan) -> Program:
        calls = [(each.call, each.number) for each in self.calls if step.first <= each.position < step.last]

        def run(key: Key) -> None:
            for call, number in calls:
                call(None if number is None else key if number == OF_STEP else key.fold_in(number))

        return run

    def _loop(self, loop: Loop, body: Program, depth: int) -> Program:
        arrays, given = self.arrays, self.given
        totals = [arrays[old] for old, _ in loop.carries]
        moves = write_back(totals, [arrays[new] for _, new in loop.carries])

        def run(key: Key) -> None:
            for total in totals:
                total[...] = 0
            for number in range(loop.count):
                for whole, part in loop.fed:
                    arrays[part][...] = loop.part(part, given[whole], number)
                body(iteration_key(key, number, depth))
                for to, source in moves:
                    np.copyto(to, source)

        return run

    def _scan(self, scan: Scan, body: Program, depth: int) -> Program:
        arrays, place = self.arrays, self.arrays[scan.place]
        befores = [arrays[old] for old, _ in scan.carries]
        starts = [arrays[start] if isinstance(start, Var) else start.value for start in scan.starts]
        begin = write_back(befores, [np.asarray(start) for start in starts])
        moves = write_back(befores, [arrays[new] for _, new in scan.carries])

        def run(key: Key) -> None:
            for to, source in begin:
                np.copyto(to, source, casting="unsafe")
            for number in scan.places:
                place[...] = number
                body(iteration_key(key, number, depth))
                for to, source in moves:
                    np.copyto(to, source)

        return run

    def _branch(self, branch: Branch, body: Program) -> Program:
        flag, new = self.arrays[branch.flag], self.new

        def run(key: Key) -> None:
            new[...] = bool(flag)  # the body may write over it
            if new:
                body(key)

        return run
