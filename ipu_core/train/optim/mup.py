"""The learning rates of u-muP, the unit-scaled maximal update parametrisation (Blake and others, arXiv 2407.17465)."""

from __future__ import annotations

from typing import Any

from ipu_core.ir.unit_scaling import UnitScaled
from ipu_core.train.optim.common import Group


def mup_groups(loss: UnitScaled, params: Any, *others: Any) -> tuple[Group, ...]:
    """Learning rates by parameter for Adam and AdamW, with which the best one is the same at every width.

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
        factor = 1.0 if role.kind in ("output", "vector") else role.inputs**-0.5
        if role.branches:
            factor *= role.branches**-0.5
        if factor != 1:
            groups.append(Group(name, lr=factor))
    return tuple(groups)
