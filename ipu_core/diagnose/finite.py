"""A loss that is infinite or NaN: the choices of what to do, and the search for the equation that made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.ir.block import Array, Block, Equation
from ipu_core.ir.run.kernels import BoundCall
from ipu_core.ir.run.lockstep import executable
from lowprec import Accumulation, Key

CHOICES = ("warn", "stop", "ignore")


class _Found(Exception):
    """The equation that made something infinite or NaN of finite numbers."""

    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        super().__init__(equation)


def check_choice(choice: Any) -> str:
    """What to do about a loss that is not finite: one of CHOICES."""
    if not isinstance(choice, str) or choice not in CHOICES:
        raise ValueError(f"on_nonfinite must be 'warn', 'stop' or 'ignore', not {choice!r}")
    return choice


def in_words(step: int, loss: float, skipped: bool, began: str = "") -> str:
    """The first loss that is not finite, in words, with what `cause` gave."""
    outcome = "that step was skipped" if skipped else "what follows is not training"
    return f"the loss of step {step} is {loss}: {outcome}{began and f'; {began}'}"


def cause(
    block: Block,
    accumulations: Mapping[int, Accumulation],
    control: FloatingPointControl,
    state: Mapping[str, Array],
    inputs: Sequence[Sequence[Any]],
    keys: Sequence[Key],
) -> str:
    """Where the first number that is not finite came from, in words, found by doing the steps again.

    Args:
        block, accumulations, control: Of the training step.
        state: Its leaves by name, before the first of the steps.
        inputs, keys: Of each of them.
    """
    batch = {f"array {number} of the batch": value for number, value in enumerate(inputs[0])}
    # An operand that is not finite already makes every equation behind it not finite: no equation is to blame.
    if there := [name for name, value in {**state, **batch}.items() if not _finite(value)]:
        return f"not finite before it: {', '.join(there)}"
    # Done again rather than checked at once: looking at every result of every step would slow a healthy run.
    again = executable(block, accumulations, control, wrap=_watched)
    again.write(list(state.values()))
    try:
        for each, key in zip(inputs, keys, strict=True):
            again.feed(each, key)
    except _Found as found:
        return f"it began in {found.equation.name}"
    return "it did not come again when the step was done again"


def _watched(call: BoundCall, equation: Equation, operands: Sequence[Any], output: Array) -> BoundCall:
    """A call after which `_Found` is raised if it made something infinite or NaN of finite numbers."""

    def watched(key: Key | None) -> Any:
        finite = all(map(_finite, operands))  # before: the output may take their place
        made = call(key)
        # The first that makes one of finite operands; those behind it only pass it on.
        if finite and not _finite(output):
            raise _Found(equation)
        return made

    return watched


def _finite(value: Any) -> bool:
    return bool(np.isfinite(value).all())
