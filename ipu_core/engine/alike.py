"""Steps that are alike: what one costs is worked out once for all that do the same on variables that lie alike."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Final, NamedTuple

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.engine.account import StepAccount
from ipu_core.engine.likeness import Likeness, how_it_lies
from ipu_core.graph.codelet import Codelet
from ipu_core.graph.tensor import Tensor
from ipu_core.graph.vertices import VertexGroup

MOST_KNOWN: Final = 1024
"""Accounts that are kept for engines to come: some 40 KB each on a chip of 1472 tiles, which its profiles share."""


class _Known(NamedTuple):
    """An account of no variables in particular, and the places of those it accesses among all of its step."""

    account: StepAccount
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    defines: tuple[int, ...]


class _Kept:
    """The accounts made last in this process: another engine's steps are often those of one before."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Known] = {}
        self._lock = Lock()

    def find(self, key: Hashable) -> _Known | None:
        """The account of that key, which is then the last to be forgotten."""
        with self._lock:
            if (known := self._known.pop(key, None)) is not None:
                self._known[key] = known
            return known

    def keep(self, key: Hashable, known: _Known) -> None:
        """Takes an account, for one that nobody asked for the longest."""
        with self._lock:
            self._known[key] = known
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]


_KEPT: Final = _Kept()


class Accounts:
    """The accounts of an engine's steps, by what they do.

    Those of copies and of this package's codelets are kept for engines to come; what a user's codelet costs may be
    another function by then.
    """

    def __init__(self, target: Target, control: FloatingPointControl) -> None:
        self._context = target, control
        self._own: dict[Hashable, _Known] = {}

    def of_groups(self, name: str, groups: Sequence[VertexGroup], make: Callable[[], StepAccount]) -> StepAccount:
        """The account of a compute set: made, or that of one alike."""
        likeness = Likeness()
        parts = tuple(likeness.group(group) for group in groups)
        lasting = all(_is_ours(group.codelet) for group in groups)
        return self._account(name, parts, likeness, make, lasting)

    def of_copy(self, name: str, source: Tensor, destination: Tensor, make: Callable[[], StepAccount]) -> StepAccount:
        """The account of a copy: made, or that of one alike."""
        likeness = Likeness()
        return self._account(name, (likeness.tensor(source), likeness.tensor(destination)), likeness, make, True)

    def _account(
        self, name: str, parts: Hashable, likeness: Likeness, make: Callable[[], StepAccount], lasting: bool
    ) -> StepAccount:
        variables = tuple(likeness.numbers)
        key = self._context, parts, tuple(how_it_lies(variable) for variable in variables)
        try:
            known = _KEPT.find(key) if lasting else self._own.get(key)
        except TypeError:  # a parameter of a user's codelet that has no hash
            return make()
        if known is None:
            account = make()
            made = (account.reads, account.writes, account.defines)
            known = _Known(
                _shareable(account), *(tuple(likeness.numbers[variable] for variable in those) for those in made)
            )
            if lasting:
                _KEPT.keep(key, known)
            else:
                self._own[key] = known
            return account
        reads, writes, defines = (frozenset(variables[place] for place in those) for those in known[1:])
        return replace(known.account, name=name, reads=reads, writes=writes, defines=defines)


def _is_ours(codelet: type[Codelet]) -> bool:
    return codelet.__module__.partition(".")[0] == __name__.partition(".")[0]


def _shareable(account: StepAccount) -> StepAccount:
    """The account without its variables, which would keep a graph; nobody may write its arrays."""
    for array in (account.compute, *account.gather, *account.scatter, *account.memory.values()):
        array.flags.writeable = False
    return replace(account, reads=frozenset(), writes=frozenset(), defines=frozenset())
