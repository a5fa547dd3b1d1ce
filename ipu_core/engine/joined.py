"""Whole computations that follow one another, as one compiled call.

The account is that of their steps, each with vertices of its own: nothing here says that the machine would fuse them.
They are not cut into pieces as the direct engine's chains, since every value of a graph has memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np

from ipu_core.engine.bind import KeyCell
from lowprec.pipeline import Pipeline, runs_here


class Joined:
    """Computations in order: one call of a pipeline where the backend in force has these, else call after call.

    Args:
        cell: holds the key of the round.
        single: each computation by itself.
        adds: what adds each to a pipeline.
        draws: whether one of them draws random bits.
    """

    def __init__(
        self,
        cell: KeyCell,
        single: Sequence[Callable[[], None]],
        adds: Sequence[Callable[[Pipeline], None]],
        draws: bool,
    ) -> None:
        self._cell, self._single, self._adds, self._draws = cell, single, adds, draws

    @cached_property
    def _pipeline(self) -> Pipeline:
        call = Pipeline(np.empty(0, np.uint8))
        for add in self._adds:
            add(call)
        return call

    def __call__(self) -> None:
        key = self._cell.key
        if runs_here() and not (self._draws and key is None):
            return self._pipeline(key)
        for call in self._single:  # which say who draws without a key
            call()

    def then(self, other: Joined) -> Joined:
        """Both, one after the other, of one engine."""
        single, adds = (*self._single, *other._single), (*self._adds, *other._adds)
        return Joined(self._cell, single, adds, self._draws or other._draws)


def joined(calls: Iterable[Callable[[], None]]) -> list[Callable[[], None]]:
    """The calls in order, of which those that can be joined are so with their neighbours."""
    found: list[Callable[[], None]] = []
    for call in calls:
        last = found[-1] if found else None
        if isinstance(last, Joined) and isinstance(call, Joined):
            found[-1] = last.then(call)
        else:
            found.append(call)
    return found
