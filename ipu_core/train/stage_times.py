"""What the cycles of a chip's step are spent on: passes of a micro-batch, the update, the host, replicas' meetings."""

from __future__ import annotations

from typing import NamedTuple

from ipu_core.engine.profile import Profile, Step
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of, flat
from ipu_core.ir.passes.pipeline import UPDATING, is_first, over_micro_batches


class Times(NamedTuple):
    """Cycles of one chip: of a micro-batch forward and backward, of the update, the host, and replicas' meetings."""

    forward: int
    backward: int
    update: int
    host: int
    meetings: int


def times(profile: Profile, block: Block, micro_batches: int) -> Times:
    """What the cycles of a chip's step are spent on."""
    inside = of_micro_batch(block)
    first = {e.name for e in inside if is_first(e)}
    update = {e.name for e in equations_of(block)} - {e.name for e in inside}
    total = dict.fromkeys(Times._fields, 0)
    for step in profile.steps:
        total[_spent_on(step, first, update, micro_batches)] += step.cycles
    each = {name: total[name] // micro_batches for name in ("forward", "backward")}
    return Times(each["forward"], each["backward"], total["update"], total["host"], total["meetings"])


def _spent_on(step: Step, first: set[str], update: set[str], micro_batches: int) -> str:
    if step.kind == "stream":
        return "host"
    if step.kind == "links":
        return "meetings"
    names = {label(name) for name in step.operations}
    if names <= first:
        return "forward"
    # Copies have names of their own: what is done once is no micro-batch's.
    if names <= update or (not names & first and step.count % micro_batches):
        return "update"
    return "backward"


def label(name: str) -> str:
    """The equation that a step's name begins with."""
    return name.partition(":")[0]


def of_micro_batch(block: Block) -> list[Equation]:
    """The equations that run with each micro-batch; of a step without such all but the update's."""
    if loops := over_micro_batches(block):
        return [*flat(loops[0].body.equations)]
    return [e for e in equations_of(block) if e.role not in UPDATING]
