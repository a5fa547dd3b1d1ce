"""The options of a training as two values: `Training` decides every bit, `Execution` where and at what cost it runs.

A call that trains takes both, and the keywords that are their fields as sugar (as `TrainLoop.__init__` does).
`options_of` is the one parser. It refuses unknown names, and a value beside one of its own keywords; it alone knows
that `target=` says the figures of an Execution and, where no Training is given, that one's family and adder. A call
that trains in several precisions takes `SharedOptions` (in `train.keywords`), those without `precision`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, Unpack

from ipu_core.placement.orders import OrderRule
from ipu_core.train.arguments import chip_of
from ipu_core.train.execution import Execution
from ipu_core.train.fields import refuse_unknown
from ipu_core.train.keywords import LoopOptions, PredictionOptions
from ipu_core.train.loss_scale import LossScale
from ipu_core.train.training import Arithmetic, Training
from lowprec.checks import shown

Bits = TypeVar("Bits", bound=Arithmetic)


def options_of(
    training: Training | None = None, execution: Execution | None = None, **options: Unpack[LoopOptions]
) -> tuple[Training, Execution]:
    """The Training and Execution of a call, each given as a value or by its keywords.

    Raises:
        TypeError: an unknown keyword; one beside the value that it is a field of; no optimizer or precision.
        ValueError: what the two refuse, or refuse together.
    """
    places = [field.name for field in fields(Execution)]
    training, execution = _parsed(Training, training, execution, dict(options), Execution(), places)
    # What follows is wrong in no field alone, so that neither value can refuse it.
    if execution.steps_per_call > 1 and isinstance(training.loss_scale, LossScale):
        raise ValueError("an automatic loss scale is moved by the host after each step: steps_per_call must be 1")
    if training.draws_on_tiles and execution.engine != "tiles":
        raise ValueError(
            "random='hardware' draws on every tile and worker, of which the engine "
            f"{execution.engine!r} knows nothing: take engine='tiles', or random='philox'"
        )
    if execution.sharded and training.replicas == 1:
        raise ValueError("sharded= is for the state of several replicas: replicas=2 or more")
    if execution.sharded and training.collective is not None and training.collective.algorithm == "tree":
        raise ValueError(
            "sharded: a tree leaves no replica a shard of the sum; collective= is by ring, ring_pair or two_level"
        )
    _check_chips(training, execution)
    if execution.chips > 1 and execution.steps_per_call > 1:
        raise ValueError("stages: the account of a pipeline is of one update; steps_per_call must be 1")
    if execution.chips > 1 and (training.draws_on_tiles or training.control.traps) and execution.engine == "tiles":
        raise ValueError(
            "stages: vertices, with random='hardware' or exceptions, run on one chip alone: "
            "random='philox' and no exceptions, or stages=1"
        )
    if training.replicas > 1 and training.control.traps and execution.engine == "tiles":
        raise ValueError("exceptions stop the vertices of one chip, and replicas run on whole arrays: engine='direct'")
    if training.draws_on_tiles and execution.recompute:
        raise ValueError("the tiles' generators never draw the same bits again: recompute needs random='philox'")
    return training, execution


def _check_chips(training: Training, execution: Execution) -> None:
    """Refuses a system of more or fewer chips than work."""
    system, wanted = execution.system, training.replicas * execution.chips
    if system is None or system.chips == wanted:
        return
    replicas, stages = training.replicas, execution.chips
    who = f"{replicas} replica{'s' * (replicas > 1)}" + (f" of {stages} stages" if stages > 1 else "")
    way = "" if system.chips % stages else f"replicas={system.chips // stages}, or "
    raise ValueError(f"{system.name} has {system.chips} chips for {who}: {way}System({system.name!r}, chips={wanted})")


def prediction_of(
    training: Arithmetic | None, execution: Execution | None, usual: Execution, **options: Unpack[PredictionOptions]
) -> tuple[Arithmetic, Execution]:
    """As `options_of`, for a call that predicts; `usual` is the Execution where none is given."""
    return _parsed(Arithmetic, training, execution, dict(options), usual, ["engine", "target"])


def _parsed(
    kind: type[Bits],
    value: Bits | None,
    execution: Execution | None,
    given: dict[str, Any],
    usual: Execution,
    places: Sequence[str],
) -> tuple[Bits, Execution]:
    """The value of `kind` and the Execution that a call got, each given whole or by its keywords."""
    own = [field.name for field in fields(kind)]
    refuse_unknown(given, (*own, *places))
    for what, there, wanted, names in (("training", value, kind, own), ("execution", execution, Execution, places)):
        if not isinstance(there, wanted | None):
            raise TypeError(f"{what} must be one such as {what.title()}(...), not {shown(there)}")
        if there is not None and (twice := [name for name in given if name in names]):
            raise TypeError(
                f"{twice[0]} is a field of {what}, which is given too: "
                f"{what}=dataclasses.replace({what}, {twice[0]}=...) changes it"
            )
    if value is None:
        # A family or adder that is given by its own keyword wins over the target's.
        decided = {name: given[name] for name in given if name in own}
        if "target" in given:
            chip = chip_of(given["target"])
            decided = {"family": chip.family, "adder": chip.adder, **decided}
        value = kind(**decided)
    if execution is None:
        execution = replace(usual, **{name: given[name] for name in given if name in places})
    return value, execution


def foreign(training: Arithmetic, execution: Execution) -> str:
    """The warning for a chip that runs the orders of sums of another family or adder; "": it runs its own orders."""
    own, chip = OrderRule.of(execution.target), execution.target
    # Orders that are given by number are the same on every chip.
    pinned = isinstance(training, Training) and training.accumulations is not None
    if pinned or (own.family, own.adder) == (training.family, training.adder):
        return ""
    return (
        f"the sums have the orders of {training.family} chips with a {training.adder} adder, as the Training says; "
        f"{chip.name} has those of Training(family={own.family!r}, adder={own.adder!r}), which the keyword target= "
        "says too"
    )
