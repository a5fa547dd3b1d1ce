"""Steps that are alike: what one costs is worked out once for all that do the same on variables that lie alike."""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ipu_core.engine.account import StepAccount
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import VertexGroup


class Accounts:
    """The accounts of an engine's steps, by what they do."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[StepAccount, tuple[Variable, ...]]] = {}
        self._lies: dict[Variable, Hashable] = {}

    def of_groups(self, name: str, groups: Sequence[VertexGroup], make: Callable[[], StepAccount]) -> StepAccount:
        """The account of a compute set: made, or that of one alike."""
        likeness = Likeness()
        parts = tuple(likeness.group(group) for group in groups)
        return self._account(name, parts, likeness, make)

    def of_copy(self, name: str, source: Tensor, destination: Tensor, make: Callable[[], StepAccount]) -> StepAccount:
        """The account of a copy: made, or that of one alike."""
        likeness = Likeness()
        return self._account(name, (likeness.tensor(source), likeness.tensor(destination)), likeness, make)

    def _account(
        self, name: str, parts: Hashable, likeness: "Likeness", make: Callable[[], StepAccount]
    ) -> StepAccount:
        variables = tuple(likeness.numbers)
        key = parts, tuple(self._how_it_lies(variable) for variable in variables)
        try:
            known = self._known.get(key)
        except TypeError:  # a parameter of a user's codelet that has no hash
            return make()
        if known is None:
            self._known[key] = account, _ = make(), variables
            return account
        account, others = known
        mine = dict(zip(others, variables, strict=True))
        reads, writes, defines = (
            frozenset(mine[variable] for variable in those)
            for those in (account.reads, account.writes, account.defines)
        )
        return replace(account, name=name, reads=reads, writes=writes, defines=defines)

    def _how_it_lies(self, variable: Variable) -> Hashable:
        if variable not in self._lies:
            mapping = variable.mapping
            pieces = tuple(_value(array) for array in (mapping.starts, mapping.ends, mapping.tiles))
            self._lies[variable] = variable.dtype.str, pieces
        return self._lies[variable]


class Likeness:
    """Vertices and copies as values that are equal where they do the same; variables count by the order they appear."""

    def __init__(self) -> None:
        self.numbers: dict[Variable, int] = {}

    def group(self, group: VertexGroup) -> Hashable:
        """A group of vertices: codelet, tiles, operands and parameters."""
        operands = tuple(
            (name, self.tensor(operand.tensor))
            if operand.tensor is not None
            else (name, self._number(operand.variable), _value(operand.indices))
            for name, operand in group.operands.items()
        )
        params = tuple((name, _value(value)) for name, value in group.params.items())
        return group.codelet, _value(group.tiles), operands, params

    def tensor(self, tensor: Tensor) -> Hashable:
        """A view of a variable."""
        return self._number(tensor.variable), tensor.offset, tensor.shape, tensor.strides

    def _number(self, variable: Variable) -> int:
        return self.numbers.setdefault(variable, len(self.numbers))


def _value(value: Any) -> Hashable:
    """A parameter as something short that can be compared: arrays by a digest, a number by its kind too."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hashlib.blake2b(value.tobytes(), digest_size=16).digest()
    if isinstance(value, tuple):
        return type(value), tuple(_value(item) for item in value)
    return type(value), value
