"""The bill of a step on tiles: where its sums lie and what it costs, as data, without anything that runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.system import System
from ipu_core.chip.target import Target
from ipu_core.compile.fitting import fitting
from ipu_core.compile.lowering.lower import Lowered
from ipu_core.compile.machine import planned
from ipu_core.compile.planning import BlockPlan
from ipu_core.compile.work import works_of
from ipu_core.engine.accountant import ProgramAccount, account
from ipu_core.engine.profile import Profile
from ipu_core.graph.tensor import Variable
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import branch_of
from lowprec import Accumulation
from lowprec.checks import integer
from lowprec.processor import in_default_state


@dataclass(frozen=True, eq=False)
class Bill:
    """What a Block's step costs on tiles, compiled once for all its runs. Nothing changes it: copies share it.

    Attributes:
        plan: of the products and sums.
        done: the account of a step; where a call does several, of one in a call of such.
        skipped: the same of steps whose branch chooses the old state; None: it has no branch.
    """

    plan: BlockPlan
    done: Profile
    skipped: Profile | None

    def profile(self, renewed: bool | None, in_call: int | None = None) -> Profile:
        """The account of a step.

        Args:
            renewed: whether it made the state new; None: it may still do either.
            in_call: how many steps of a call of several did; None: all still may.
        """
        if self.skipped is None:
            return self.done
        one = self.done if renewed is None else replace(self.done if renewed else self.skipped, measured=True)
        return replace(one, call=self._call(in_call))

    def _call(self, renewed: int | None) -> Profile | None:
        """The account of a call: so many steps that made the state new, the others skipped."""
        assert self.skipped is not None
        all_done, none_done = self.done.call, self.skipped.call
        if all_done is None or none_done is None or renewed is None:
            return all_done
        idle = {id(step.account): step for step in none_done.steps}
        steps = []
        for step in all_done.steps:
            other = idle.get(id(step.account))
            count = renewed * step.count + (all_done.runs - renewed) * (0 if other is None else other.count)
            # A round that is skipped is shorter: steps begin as if none were, but where all are.
            when = other if other is not None and not renewed else step
            made = replace(step, count=count // all_done.runs, begin=when.begin, every=when.every)
            steps += [made] if count else []
        return replace(all_done, steps=tuple(steps), measured=True)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self


@in_default_state
def bill(
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
    system: System | None = None,
) -> Bill:
    """What `Machine.build` of the same arguments accounts or refuses; nothing is stored and nothing runs.

    Replicas meet over the links of a `system`; None: of one of so many chips like the target.

    Raises:
        TypeError, OutOfTileMemory, OutOfStreamingMemory: as `Machine.build`.
    """
    integer("steps_per_call", steps_per_call, 1)

    def make(parallel: bool, spare: int) -> Bill:
        lowered = planned(
            block, target, accumulations, control, overlap=overlap, share=share, parallel=parallel, spare=spare,
            allow_out_of_memory=allow_out_of_memory, system=system,
        )  # fmt: skip
        programs = lowered.programs(steps_per_call)
        made = account(
            lowered.graph, programs, control or FloatingPointControl(), allow_out_of_memory=allow_out_of_memory
        )
        return bill_of(lowered, made, steps_per_call)

    return fitting(make, parallel=parallel, memory=lambda made: made.done.memory)


def bill_of(lowered: Lowered, made: ProgramAccount, steps_per_call: int) -> Bill:
    """The bill of a step whose programs are accounted already."""

    works = works_of(lowered.block, lowered.plan)

    def profile(holds: Mapping[Variable, bool]) -> Profile:
        one = replace(made.profile(0, holds), works=works)
        if steps_per_call == 1:
            return one
        return replace(one, call=replace(made.profile(1, holds), works=works, runs=steps_per_call))

    branch = branch_of(lowered.block)
    # The flag of the branch is all the data that a step's cost depends on: both accounts are made without a run.
    flag = None if branch is None else lowered.tensors[branch.flag].variable
    return Bill(lowered.plan, profile({}), None if flag is None else profile({flag: False}))
