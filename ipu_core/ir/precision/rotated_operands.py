"""Operands of products rotated by Hadamard's matrix before they are cast, with random signs or without."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ipu_core.ir.block import Array, Equation, Literal, Type, Var
from ipu_core.ir.passes.appended import Appended
from ipu_core.ir.precision.operand_scaling import OperandScaling
from lowprec import float32 as FLOAT32


class Rotations:
    """Adds rotations to equations under construction, each once.

    Args:
        to: what equations are added to.
        constants: the Block's, which grow.
    """

    def __init__(self, to: Appended, constants: dict[Var, Array]) -> None:
        self._to, self._constants = to, constants
        self._made: dict[tuple[Any, ...], Var] = {}
        self._signs: dict[int, Var] = {}

    def rotated(self, var: Var, axis: int, product: Equation, scaling: OperandScaling, about: Mapping[str, Any]) -> Var:
        """An operand in float32, rotated along an axis in blocks: the last equation, or an earlier one."""
        shape, signed = var.type.shape, scaling.rotation == "random"
        block = math.gcd(shape[axis], scaling.rotation_block)
        key = (var, axis, block, product.number if signed else None)
        if key not in self._made:
            values = var
            if signed:
                column = tuple(n if place == axis else 1 for place, n in enumerate(shape))
                signs = self._to.emit("reshape", self._random(shape[axis], product), shape=column, **about)
                signs = self._to.emit("broadcast", signs, shape=shape, **about)
                values = self._to.emit("multiply", var, signs, fmt=FLOAT32, **about)
            self._made[key] = self._to.emit("hadamard", values, fmt=FLOAT32, axis=axis, block=block, **about)
        return self._made[key]

    def _random(self, length: int, product: Equation) -> Var:
        """1 or -1 for every place along the axis that a product sums, the same for both operands, new in every step."""
        if product.number not in self._signs:
            about: dict[str, Any] = {"role": product.role, "parameter": product.parameter, "family": "scaling"}
            places = Var(f"{product.number}.places", Type((length,), FLOAT32))
            self._constants[places] = np.ones(length, np.float32)
            mask = self._to.emit("dropout_mask", places, fmt=FLOAT32, rate=0.5, operation=product.number, **about)
            twice = self._to.emit("multiply", mask, Literal(2.0), fmt=FLOAT32, **about)
            self._signs[product.number] = self._to.emit("subtract", twice, Literal(1.0), fmt=FLOAT32, **about)
        return self._signs[product.number]
