"""The bill of a step on tiles: where its sums lie and what it costs, as data, without anything that runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.compile.machine import planned
from ipu_core.compile.planning import BlockPlan
from ipu_core.engine.accountant import account
from ipu_core.engine.profile import Profile
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
        done: the account of a step.
        skipped: that of a step whose branch chooses the old state; None: it has no branch.
    """

    plan: BlockPlan
    done: Profile
    skipped: Profile | None

    def profile(self, renewed: bool | None) -> Profile:
        """The account of a step that renewed the state (True), skipped that (False), or has not run yet (None)."""
        if self.skipped is None or renewed is None:
            return self.done
        return replace(self.done if renewed else self.skipped, measured=True)

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
    allow_out_of_memory: bool = False,
    steps_per_call: int = 1,
) -> Bill:
    """What `Machine.build` of the same arguments accounts or refuses; nothing is stored and nothing runs.

    Raises:
        TypeError, OutOfTileMemory, OutOfStreamingMemory: as `Machine.build`.
    """
    lowered = planned(
        block, target, accumulations, control, overlap=overlap, share=share, allow_out_of_memory=allow_out_of_memory
    )
    programs = lowered.programs(integer("steps_per_call", steps_per_call, 1))
    made = account(lowered.graph, programs, control or FloatingPointControl(), allow_out_of_memory=allow_out_of_memory)
    branch = branch_of(lowered.block)
    # The flag of the branch is all the data that a step's cost depends on: both accounts are made without a run.
    skipped = None if branch is None else made.profile(holds={lowered.tensors[branch.flag].variable: False})
    return Bill(lowered.plan, made.profile(), skipped)
