"""PopTorch's pipelines: which layers begin a chip's stage, in which schedule."""

from __future__ import annotations

import enum
import warnings
from typing import Any, NamedTuple

from ipu_core.errors import ChangesNothing
from lowprec.checks import shown

MARK = "_poptorch_block"
BEFORE = "*"
"""What stands before the first block that is marked: it is of the first stage."""


class Place(NamedTuple):
    """What `BeginBlock` said of a layer.

    Attributes:
        user_id: its block's name.
        ipu_id: its chip; None: not said.
    """

    user_id: str | None
    ipu_id: int | None


class AutoStage(enum.Enum):
    """Which stage a block is of, where no `Stage` says it: its chip's, or the next one of its own."""

    SameAsIpu = 0
    AutoIncrement = 1


class Stage:
    """A stage by the names of its blocks: ``Stage("encoder").ipu(0)``."""

    def __init__(self, *block_ids: str) -> None:
        for name in block_ids:
            if not isinstance(name, str):
                raise TypeError(f"a Stage has the names of its blocks, not {shown(name)}")
        if not block_ids:
            raise ValueError("a Stage has the name of a block at least, as BeginBlock(layer, 'name') gives it")
        self.blocks, self.chip = block_ids, -1

    def ipu(self, ipu: int) -> Stage:
        """The chip that it is on, which must be the one of its place among the stages."""
        self.chip = ipu
        return self


class Strategy:
    """How stages follow each other."""

    schedule = "grouped"

    def __init__(self, *args: AutoStage | Stage | str) -> None:
        self.auto = AutoStage.SameAsIpu
        self.stages: tuple[Stage, ...] = ()
        if len(args) == 1 and isinstance(args[0], AutoStage):
            self.auto = args[0]
            return
        for each in args:
            if not isinstance(each, Stage | str):
                raise TypeError(f"{type(self).__name__} takes an AutoStage, or stages, not {shown(each)}")
        self.stages = tuple(each if isinstance(each, Stage) else Stage(str(each)) for each in args)
        for number, stage in enumerate(self.stages):
            if stage.chip not in (-1, number):
                raise ValueError(f"stage {number} is on chip {number}, one a chip in order, not on {stage.chip}")


class PipelinedExecution(Strategy):
    """Micro-batches follow each other through the stages, as PopTorch does it: the schedule "grouped"."""


class ShardedExecution(Strategy):
    """One micro-batch at a time goes through all stages: the schedule "sequential"."""

    schedule = "sequential"


def stages_of(model: Any, strategy: Strategy | None) -> tuple[str, ...]:
    """The names with which stages of a module begin, for `TrainLoop(stages=)`; none where all is on one chip.

    Raises:
        ValueError: chips that are not numbered from 0, a layer that goes back to an earlier one, or blocks of a stage
            that nothing is called.
    """
    marked = [(name, place) for name, module in model.named_modules() if (place := vars(module).get(MARK)) is not None]
    chosen = PipelinedExecution() if strategy is None else strategy
    if chosen.stages:
        return _by_stages(marked, chosen.stages)
    if chosen.auto is AutoStage.AutoIncrement:
        numbered = list(enumerate(name for name, _ in marked))
    else:
        numbered = [(place.ipu_id, name) for name, place in marked if place.ipu_id is not None]
    begins: list[str] = []
    last = 0
    for chip, name in numbered:
        if chip == last:
            continue  # it goes on
        if chip != last + 1:
            back = "goes back to an earlier chip" if chip < last else f"leaves out chip {last + 1}"
            raise ValueError(f"BeginBlock: {name} on chip {chip} {back}: chips are 0, 1, 2 ... in the model's order")
        begins.append(name)
        last = chip
    return (BEFORE, *begins) if begins else ()


def _by_stages(marked: list[tuple[str, Place]], stages: tuple[Stage, ...]) -> tuple[str, ...]:
    names: dict[str, str] = {}
    for name, place in marked:
        if place.user_id is not None:
            names.setdefault(place.user_id, name)  # a block of several layers begins with the first
    for stage in stages:
        if unknown := [block for block in stage.blocks if block not in names]:
            there = ", ".join(names) or "none"
            raise ValueError(f"no layer begins a block {unknown[0]!r}, of a Stage; there are {there}")
    if len(stages) == 1:
        return ()
    return BEFORE, *(names[stage.blocks[0]] for stage in stages[1:])


def warn_of_inference(model: Any, strategy: Strategy | None) -> None:
    """Says that an inference model is accounted on one chip."""
    if stages_of(model, strategy):
        told = "an inferenceModel is planned on one chip, to the same bits: ipu_id is of a trainingModel"
        warnings.warn(told, ChangesNothing, stacklevel=4)
