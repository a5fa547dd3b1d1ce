"""Memoisation: what a step costs is worked out once for all that do the same on variables that lie the same way."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from ipu_core.chip.arrays import digest
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic
from ipu_core.engine.accesses import Access, AccessedSets, Accesses, accesses_of, joined_sets
from ipu_core.engine.exchange import Moved, copy_traffic, gather_traffic, scatter_traffic
from ipu_core.engine.steps import StepAccount
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import Operand, VertexGroup

MOST_KEPT: Final = 1024
"""Accounts that are kept for engines to come: some 40 KB each on a chip of 1472 tiles, which its profiles share."""


class MemoKey:
    """What a step does, as a value that is equal for steps that do the same on variables that lie the same way.

    Attributes:
        variables: those it accesses, each with its number in the value: they count by the order in which they appear.
        value: the key.
        lasting: whether it means the same to engines to come; what a user's codelet costs may be another function then.
    """

    def __init__(self, does: Sequence[VertexGroup | Tensor]) -> None:
        self.variables: dict[Variable, int] = {}
        parts = tuple(self._group(part) if isinstance(part, VertexGroup) else self._elements(part) for part in does)
        self.value: Hashable = parts, tuple(map(_layout, self.variables))
        self.lasting = all(isinstance(part, Tensor) or _is_ours(part) for part in does)

    def _group(self, group: VertexGroup) -> Hashable:
        operands = tuple((name, self._elements(operand)) for name, operand in group.operands.items())
        params = tuple((name, _value(param)) for name, param in group.params.items())
        return group.codelet, group.where, operands, params

    def _elements(self, where: Operand | Tensor) -> Hashable:
        return self.variables.setdefault(where.variable, len(self.variables)), _elements(where)


class _Entry(NamedTuple):
    """An account of no variables in particular, and the numbers of those that it accesses."""

    account: StepAccount
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    defines: tuple[int, ...]


@lru_cache(MOST_KEPT)
def _kept(_: Hashable) -> list[_Entry]:
    """The account of a key, once it is made: another engine's steps are often those of one before."""
    return []


class Memo:
    """What the steps of one engine access, move and cost.

    Of a training step's accesses two thirds are repetitions: compute sets differ by what they compute, and by how their
    operands are combined, more than by where each operand lies.
    """

    def __init__(self, target: Target, control: FloatingPointControl) -> None:
        self._target, self._context = target, (target, control)
        self._own: dict[Hashable, list[_Entry]] = {}
        self._sets: dict[Hashable, AccessedSets] = {}
        self._traffic: dict[Hashable, Traffic] = {}
        self._moves: dict[Hashable, Moved] = {}

    def account(
        self,
        name: str,
        does: Sequence[VertexGroup | Tensor],
        make: Callable[[], StepAccount],
        reorders: tuple[bool, ...] = (),
    ) -> StepAccount:
        """The account of a compute set, or of copies in one phase: made, or that of one with its key."""
        key = MemoKey(does)
        value = reorders, key.value
        try:
            found = _kept((self._context, value)) if key.lasting else self._own.setdefault(value, [])
        except TypeError:  # a parameter of a user's codelet that has no hash
            return make()
        if not found:
            account = make()
            found.append(_shareable(account, key.variables))
            return account
        account, *accessed = found[0]
        variables = tuple(key.variables)
        reads, writes, defines = (frozenset(variables[number] for number in side) for side in accessed)
        return replace(account, name=name, reads=reads, writes=writes, defines=defines)

    def moved(self, source: Tensor, destination: Tensor) -> Moved:
        """What a copy moves: phases of different copies have some in common."""
        key = MemoKey((source, destination)).value
        if key not in self._moves:
            self._moves[key] = copy_traffic(source, destination, self._target)
        return self._moves[key]

    def accesses(self, groups: Sequence[VertexGroup]) -> Accesses:
        """Everything that groups access. Sets of elements are one object only where variables lie the same way."""
        return accesses_of(groups, self._joined)

    def traffic(self, accesses: Accesses) -> tuple[Traffic, Traffic]:
        """What gathering operands moves, and what scattering results moves."""
        gather, scatter = (
            Traffic.sum((self._moved(of, variable, sets) for variable, sets in side.items()), self._target.tiles)
            for of, side in ((gather_traffic, accesses.reads), (scatter_traffic, accesses.writes))
        )
        return gather, scatter

    def _moved(self, of: Callable[..., Traffic], variable: Variable, sets: AccessedSets) -> Traffic:
        if (of, sets) not in self._traffic:
            self._traffic[of, sets] = of(variable, sets, self._target)
        return self._traffic[of, sets]

    def _joined(self, accesses: Sequence[Access]) -> AccessedSets:
        parts = tuple((access.group.where, access.first, _elements(access.operand)) for access in accesses)
        key = _layout(accesses[0].operand.variable), parts
        if key not in self._sets:
            self._sets[key] = joined_sets(accesses)
        return self._sets[key]


def _layout(variable: Variable) -> Hashable:
    """Equal for variables of one dtype and tile mapping."""
    return variable.dtype, variable.mapping.digest


def _elements(where: Operand | Tensor) -> Hashable:
    """Which elements of its variable an operand or a tensor is."""
    tensor = where if isinstance(where, Tensor) else where.tensor
    return _value(where.indices) if tensor is None else (tensor.offset, tensor.shape, tensor.strides)


def _value(value: Any) -> Hashable:
    """A parameter as something short that can be compared: arrays by a digest, a number by its kind too."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, digest(value)
    if isinstance(value, tuple):
        return type(value), tuple(map(_value, value))
    # 1, 1.0 and True are equal and have one hash, and mean different things to a codelet.
    return type(value), value


def _is_ours(group: VertexGroup) -> bool:
    return group.codelet.__module__.partition(".")[0] == __name__.partition(".")[0]


def _shareable(account: StepAccount, numbers: dict[Variable, int]) -> _Entry:
    """The account without its variables, which would keep a graph; nobody may write its arrays."""
    # Many steps, of other engines too, share these arrays: a change in one account would be one in all.
    for array in (account.compute, *account.gather, *account.scatter, *account.memory.values()):
        array.flags.writeable = False
    accessed = account.reads, account.writes, account.defines
    nothing = replace(account, reads=frozenset(), writes=frozenset(), defines=frozenset())
    return _Entry(nothing, *(tuple(numbers[variable] for variable in side) for side in accessed))
