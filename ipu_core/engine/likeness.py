"""What steps do as values, equal where they do the same."""

from collections.abc import Hashable
from typing import Any

import numpy as np

from ipu_core.chip.arrays import digest
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import Operand, VertexGroup


class Likeness:
    """Vertices and copies as values that are equal where they do the same; variables count by the order they appear."""

    def __init__(self) -> None:
        self.numbers: dict[Variable, int] = {}

    def group(self, group: VertexGroup) -> Hashable:
        """A group of vertices: codelet, tiles, operands and parameters."""
        operands = tuple(
            (name, self._number(operand.variable), place_of(operand)) for name, operand in group.operands.items()
        )
        params = tuple((name, value_of(value)) for name, value in group.params.items())
        return group.codelet, group.where, operands, params

    def tensor(self, tensor: Tensor) -> Hashable:
        """A view of a variable."""
        return self._number(tensor.variable), tensor.offset, tensor.shape, tensor.strides

    def _number(self, variable: Variable) -> int:
        return self.numbers.setdefault(variable, len(self.numbers))


def how_it_lies(variable: Variable) -> Hashable:
    """A value that is equal for variables of one dtype and tile mapping."""
    return variable.dtype, variable.mapping.digest


def place_of(operand: Operand) -> Hashable:
    """Which elements of its variable an operand is, as a value."""
    tensor = operand.tensor
    return value_of(operand.indices) if tensor is None else (tensor.offset, tensor.shape, tensor.strides)


def value_of(value: Any) -> Hashable:
    """A parameter as something short that can be compared: arrays by a digest, a number by its kind too."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, digest(value)
    if isinstance(value, tuple):
        return type(value), tuple(value_of(item) for item in value)
    return type(value), value
