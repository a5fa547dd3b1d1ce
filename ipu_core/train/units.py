"""Training under unit scaling: functions that get its factors, parameters that begin as it wants, u-muP's rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.ir.block import Block
from ipu_core.ir.bodies import flat
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import named
from ipu_core.ir.unit_scaling import UnitScaled, unit_scale
from ipu_core.train.optim.common import Group
from lowprec import FloatFormat
from lowprec import float32 as FLOAT32

FACTOR = 2.0  # by which the deviation of a weight may miss 1
FEW = 32  # elements, of which the deviation says nothing


def in_units(function: Callable[..., Any], precision: Precision, deviation: float = 1.0) -> Callable[..., Any]:
    """A loss or a model's scores with the factors of unit scaling, if the precision asks for them.

    Args:
        function: of (parameters, ...); one that `unit_scale` gave stays.
        precision: under unit scaling or not.
        deviation: standard deviation of the data's floats.
    """
    if not precision.unit_scaled or isinstance(function, UnitScaled):
        return function
    scaled: UnitScaled = unit_scale(function, deviation=deviation)
    return scaled


def loss_in_units(loss: Callable[..., Any], params: Any, precision: Precision) -> Callable[..., Any]:
    """The loss with the factors of unit scaling, if the precision asks for them; checks the initial weights then.

    Raises:
        ValueError: weights of a loss that gets the factors here whose deviation is not near 1, with what to write.
    """
    scaled = in_units(loss, precision)
    if scaled is loss:
        return loss
    for name, leaf in named(params):
        weight = np.asarray(leaf)
        # Biases and scales of norms begin at 0 or 1 under unit scaling too.
        if weight.ndim < 2 or weight.size < FEW:
            continue
        size = float(np.sqrt(np.mean(np.square(weight, dtype=np.float64))))
        if not 1 / FACTOR <= size <= FACTOR:
            raise ValueError(
                f"{precision.name} is under unit scaling, whose weights begin with deviation 1; {name} has {size:.3g}: "
                "give nn.unit_parameters(key, params), or unit_scale(loss) to begin with these"
            )
    return scaled


def mup_groups(loss: UnitScaled, params: Any, *others: Any) -> tuple[Group, ...]:
    """Learning rates by parameter for Adam and AdamW, with which the best one is the same at every width: u-muP's, the
    unit-scaled maximal update parametrisation (Blake and others, arXiv 2407.17465).

    Beside the learning rate of the optimizer: 1 / sqrt(inputs) for the weights of products, 1 / sqrt(width) for tables
    of vectors, 1 for the last product's weights, for biases and the scales of norms; and for weights in a residual
    branch 1 / sqrt(residual branches) more (the paper's table 2 and appendix G, as its library has it).

    Args:
        loss: what `unit_scale(..., mup=True)` gave.
        params, *others: the arguments it will have, or arrays of their shapes.

    Returns:
        One `Group` for each parameter whose factor is not 1.

    Raises:
        TypeError: a loss that is not under unit scaling.
        ValueError: one without u-muP's rules.
    """
    if not isinstance(loss, UnitScaled):
        raise TypeError(f"mup_groups takes what unit_scale(loss, mup=True) gives, not {loss!r}")
    if not loss.rules.mup:
        raise ValueError("mup_groups: the loss must be unit_scale(loss, mup=True), which divides the last product too")
    groups = []
    for name, role in loss.roles(params, *others).items():
        # Adam's update has size 1 whatever the gradient's: only the rate can make it smaller for wider layers.
        factor = 1.0 if role.kind in ("output", "vector") else role.inputs**-0.5
        if role.branches:
            factor *= role.branches**-0.5
        if factor != 1:
            groups.append(Group(name, lr=factor))
    return tuple(groups)


def writer_of(loss: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function that writes parameters back into the module a loss was captured from; None if there is none."""
    own = loss.function if isinstance(loss, UnitScaled) else loss
    return getattr(own, "to_torch", None)


def host_parts_of(loss: Callable[..., Any]) -> tuple[str, ...]:
    """Names of parts of a model's state that the host reads from every replica, as a loss says in `for_host`."""
    own = loss.function if isinstance(loss, UnitScaled) else loss
    return tuple(getattr(own, "for_host", ()))


def feeder_of(loss: Callable[..., Any]) -> Callable[[Any], Any] | None:
    """What makes the arrays that a step is fed of a batch, where a loss takes batches with more than arrays."""
    own = loss.function if isinstance(loss, UnitScaled) else loss
    return getattr(own, "feeder", None)


def narrow_of(loss: Callable[..., Any]) -> str:
    """What a loss says against results finer than float32, as one captured in float32 does; "": nothing."""
    own = loss.function if isinstance(loss, UnitScaled) else loss
    return str(getattr(own, "captured_narrow", ""))


def check_finer(narrow: str, typed: Block) -> None:
    """Refuses results finer than float32 of a loss whose numbers are rounded to it.

    Raises:
        ValueError: there are some; what the loss says (`narrow_of`).
    """
    made = (var.type.format for each in flat(typed.equations) if each.role == "forward" for var in each.outputs)
    if narrow and any(isinstance(fmt, FloatFormat) and fmt.mantissa_bits > FLOAT32.mantissa_bits for fmt in made):
        raise ValueError(narrow)
