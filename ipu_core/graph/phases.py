"""Copies that may pass in one exchange phase: none of them writes an element that another one reads or writes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ipu_core.graph.program import Copies, Copy, Program
from ipu_core.graph.regions import merge_runs, runs_of
from ipu_core.graph.tensor import Tensor, Variable


@dataclass
class Phase:
    """Copies of one exchange phase.

    Attributes:
        copies: so far.
    """

    copies: list[Copy] = field(default_factory=list)
    _reads: dict[Variable, list[Tensor]] = field(default_factory=dict)
    _writes: dict[Variable, list[Tensor]] = field(default_factory=dict)

    def clash(self, copy: Copy) -> Tensor | None:
        """What another copy of the phase moves that this one must not meet; None: all may pass at once."""
        others = [(copy.destination, self._reads), (copy.destination, self._writes), (copy.source, self._writes)]
        for mine, theirs in others:
            for other in theirs.get(mine.variable, ()):
                if meet(mine, other):
                    return other
        return None

    def add(self, copy: Copy) -> None:
        """Takes a copy up that clashes with none."""
        self.copies.append(copy)
        self._reads.setdefault(copy.source.variable, []).append(copy.source)
        self._writes.setdefault(copy.destination.variable, []).append(copy.destination)


def in_phases(programs: Iterable[Program]) -> list[Program]:
    """The programs in order, neighbouring copies that are independent as one phase."""
    found, phase = list[Program](), Phase()
    for program in programs:
        if phase.copies and not (isinstance(program, Copy) and phase.clash(program) is None):
            found.append(_together(phase.copies))
            phase = Phase()
        if isinstance(program, Copy):
            phase.add(program)
        else:
            found.append(program)
    return [*found, _together(phase.copies)] if phase.copies else found


def several(names: Sequence[str]) -> str:
    """The name of a step that does several things at once."""
    return names[0] if len(names) == 1 else f"{names[0]}: and {len(names) - 1} more"


def meet(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have an element in common."""
    if a.variable is not b.variable or not (a.size and b.size):
        return False
    (first, end), (other_first, other_end) = _bounds(a), _bounds(b)
    if end <= other_first or other_end <= first:
        return False
    both = [
        (starts + tensor.offset, lengths)
        for tensor in (a, b)
        for starts, lengths in [runs_of(tensor.shape, tensor.strides)]
    ]
    starts, lengths = (np.concatenate(parts) for parts in zip(*both, strict=True))
    return int(merge_runs(starts, lengths)[1].sum()) < int(lengths.sum())


def _together(copies: Sequence[Copy]) -> Program:
    return copies[0] if len(copies) == 1 else Copies(*copies)


def _bounds(tensor: Tensor) -> tuple[int, int]:
    """The first element and the one behind the last."""
    ends = [stride * (length - 1) for length, stride in zip(tensor.shape, tensor.strides, strict=True)]
    return tensor.offset + sum(min(0, end) for end in ends), tensor.offset + sum(max(0, end) for end in ends) + 1
