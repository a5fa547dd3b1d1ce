"""What a step needs of the fullest tile under other optimizers: their state is most of what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ipu_core.engine.memory import MemoryAccount
from ipu_core.ir.precision.precision import Precision
from ipu_core.train.execution import Execution
from ipu_core.train.optim import AdamW, Sgd
from ipu_core.train.training import Training, named
from ipu_core.train.ways_out import MOMENTS, REFUSED, Trace, values_needed
from lowprec import float16 as FLOAT16

STREAMED = ((), ("optimizer.*",), ("optimizer.*", "params.*"))


class OptimizerNeed(NamedTuple):
    """What a step with an optimizer needs of the fullest tile.

    Attributes:
        optimizer: in words, with what is streamed and what moments are kept in.
        values: bytes of the step's values, in the layout every array gets.
        whole: bytes with what lives beside them, taken to be as much as in the step that was accounted [model].
        share: `whole` of a tile's memory.
    """

    optimizer: str
    values: int
    whole: int
    share: float


def by_optimizer(
    trace: Trace, training: Training, execution: Execution, memory: MemoryAccount
) -> tuple[OptimizerNeed, ...]:
    """The step with its own optimizer, by plain descent and by AdamW, the last with less of its state on the tiles.

    Args:
        trace: makes the step of a Training.
        training, execution: what was accounted.
        memory: of that account.
    """
    own = values_needed(trace(training), training, execution)
    beside = memory.peak_bytes - own
    found = [_need(f"{named(training.optimizer)}, as accounted", own, beside, memory)]
    for words, other, more in _others(training):
        with suppress(*REFUSED):
            where = replace(execution, streamed=(*execution.streamed, *more))
            found.append(_need(words, values_needed(trace(other), other, where), beside, memory))
    return tuple(found)


def _others(training: Training) -> Iterator[tuple[str, Training, tuple[str, ...]]]:
    """Other trainings in words, and what of each is streamed."""
    yield "Sgd", replace(training, optimizer=Sgd(1.0)), ()
    adam = replace(training, optimizer=AdamW(1e-3))
    wide = max(training.precision.first_moment, training.precision.second_moment, key=lambda fmt: fmt.bits)
    for more in STREAMED:
        streamed = f", streamed {' '.join(more)}" if more else ""
        yield f"AdamW {wide.name}{streamed}", adam, more
    if wide.bits > FLOAT16.bits:
        with suppress(*REFUSED):
            narrow = Precision.parse(f"{training.precision.name}/{MOMENTS}")
            yield f"AdamW {FLOAT16.name}", replace(adam, precision=narrow), ()


def _need(words: str, values: int, beside: int, memory: MemoryAccount) -> OptimizerNeed:
    return OptimizerNeed(words, values, values + beside, (values + beside) / memory.available)
