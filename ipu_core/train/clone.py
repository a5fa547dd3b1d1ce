"""A Clone: one of several trainings that share a chip, the tiles that it has, and the loop that trains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from ipu_core.train.execution import Execution
from ipu_core.train.keywords import TrainingOptions, takes
from ipu_core.train.loop import TrainLoop
from ipu_core.train.step import Loss
from ipu_core.train.training import Training
from lowprec import Key
from lowprec.checks import expect, integer


@dataclass(frozen=True, init=False)
class Clone:
    """One of several trainings on a chip: ``Clone(loss, params, optimizer=Sgd(0.1), precision="fp16.16/stochastic")``.

    Attributes:
        loss, params, training, key, model_state: as of a `TrainLoop`.
        tiles: how many it has; None: an equal part of what the others leave.
        name: before the names of its steps in the profile, where its dots are "_"; "": its number.
        options: the fields of its Training, where that is not given: those of another Clone in `dataclasses.replace`.

    Raises:
        TypeError, ValueError: no name, or no number of tiles; as of `Training`.
    """

    loss: Loss
    params: Any
    training: Training | None = None
    key: Key | int = 0
    model_state: Any = None
    tiles: int | None = None
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @takes(TrainingOptions, Training)
    def __init__(
        self,
        loss: Loss,
        params: Any,
        *,
        training: Training | None = None,
        key: Key | int = 0,
        model_state: Any = None,
        tiles: int | None = None,
        name: str = "",
        options: Mapping[str, Any] | None = None,
        **more: Unpack[TrainingOptions],
    ) -> None:
        expect(str, name=name)
        options = {**(options or {}), **more}
        if tiles is not None:
            integer("tiles", tiles, 1)
        if training is None:
            Training(**options)
        elif options:
            raise TypeError(f"{next(iter(options))} is a field of training, which is given too")
        given = (loss, params, training, key, model_state, tiles, name, options)
        for own, value in zip(self.__dataclass_fields__, given, strict=True):
            object.__setattr__(self, own, value)  # frozen


def shares(models: Sequence[Clone], execution: Execution) -> list[int]:
    """Tiles of each, whole pairs of neighbours where the chip has such.

    Raises:
        ValueError: the chip has too few.
    """
    target, pair = execution.target, execution.target.tiles_per_supertile
    for model in models:
        if model.tiles is not None and model.tiles % pair:
            raise ValueError(f"tiles={model.tiles}: neighbours on {target.name} share a port, so give whole pairs")
    taken, free = sum(model.tiles or 0 for model in models), sum(model.tiles is None for model in models)
    each = (target.tiles - taken) // free // pair * pair if free else 0
    if taken > target.tiles or (free and each < pair):
        raise ValueError(
            f"{len(models)} clones do not share {target.tiles} tiles of {target.name}: {taken} are given to some, and "
            f"{free} more need {pair} at least each"
        )
    return [each if model.tiles is None else model.tiles for model in models]


def loop_of(model: Clone, name: str, batch: Any, execution: Execution, on_nonfinite: str) -> TrainLoop:
    """The training of a clone on its tiles, with the clone's name in what refuses it."""
    try:
        # The family and the adder as target= says them for a TrainLoop.
        chip = execution.target
        training = model.training or Training(**{"family": chip.family, "adder": chip.adder, **model.options})
        if training.replicas > 1:
            raise ValueError(f"replicas={training.replicas} are chips, and clones share one: a TrainLoop has them")
        if training.draws_on_tiles:
            raise ValueError(
                "random='hardware' draws on the tiles where a clone lies, and no clone would have the bits of a run of "
                "its own: random='philox'"
            )
        return TrainLoop(
            model.loss, model.params, batch, training=training, execution=execution, key=model.key,
            model_state=model.model_state, on_nonfinite=on_nonfinite,
        )  # fmt: skip
    except Exception as error:
        error.add_note(f"this is of clone {name}")
        raise


def in_steps(name: str) -> str:
    """A clone's name before those of its steps, of which the dots part layers."""
    return name.replace(".", "_")
