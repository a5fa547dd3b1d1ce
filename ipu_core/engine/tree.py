"""The program as a tree of step numbers: how often each step runs, and which variables live at each place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ipu_core.engine.account import StepAccount
from ipu_core.graph.tensor import Variable

__all__ = [
    "Branch",
    "Leaf",
    "Loop",
    "Place",
    "Series",
    "Tree",
    "While",
    "counts_of",
    "is_dynamic",
    "live_places",
    "reset",
]


@dataclass(frozen=True, eq=False)
class Leaf:
    """One step."""

    step: int


@dataclass(frozen=True, eq=False)
class Series:
    """Parts in order."""

    parts: tuple["Tree", ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """A body that runs a fixed number of times."""

    count: int
    body: "Tree"


@dataclass(eq=False)
class While:
    """A body that runs while a predicate holds; `rounds` counts what the last run did (-1: not run yet)."""

    condition: "Tree"
    predicate: Variable
    body: "Tree"
    rounds: int = -1


@dataclass(eq=False)
class Branch:
    """One of several options; `taken` counts how often the last run took each."""

    predicate: Variable
    options: tuple["Tree", ...]
    taken: list[int] = field(default_factory=list)


Tree = Leaf | Series | Loop | While | Branch


class Place(NamedTuple):
    """A step at one place of the program with the variables that live there, as a bit mask of their numbers."""

    step: int
    live: int


def is_dynamic(tree: Tree) -> bool:
    """Whether the number of steps depends on data."""
    match tree:
        case Leaf():
            return False
        case Series(parts):
            return any(is_dynamic(part) for part in parts)
        case Loop(_, body):
            return is_dynamic(body)
        case _:
            return True


def reset(tree: Tree) -> None:
    """Sets the counters of data-dependent parts to a run that has done nothing."""
    match tree:
        case Series(parts):
            for part in parts:
                reset(part)
        case Loop(_, body):
            reset(body)
        case While():
            tree.rounds = 0
            reset(tree.condition)
            reset(tree.body)
        case Branch():
            tree.taken = [0] * len(tree.options)
            for option in tree.options:
                reset(option)


def counts_of(tree: Tree, steps: int) -> list[int]:
    """How often each step runs in one run of the program.

    Data-dependent parts count what the last run did; before any run, one round and the first option.
    """
    counts = [0] * steps
    _count(tree, 1, counts)
    return counts


def _count(tree: Tree, times: int, counts: list[int]) -> None:
    match tree:
        case Leaf(step):
            counts[step] += times
        case Series(parts):
            for part in parts:
                _count(part, times, counts)
        case Loop(count, body):
            _count(body, times * count, counts)
        case While():
            rounds = times if tree.rounds < 0 else tree.rounds
            _count(tree.condition, times + rounds, counts)
            _count(tree.body, rounds, counts)
        case Branch():
            taken = tree.taken or [times] + [0] * (len(tree.options) - 1)
            for option, often in zip(tree.options, taken, strict=True):
                _count(option, often, counts)


def live_places(tree: Tree, steps: Sequence[StepAccount], at_end: int) -> tuple[list[Place], int]:
    """Which variables hold something that is still needed, at every place of a program.

    A variable lives where an earlier step of this run may have written it and a later one needs it (a variable written
    piece by piece lives from its first piece on). Masks have bit `variable.number` set.

    Args:
        tree: the program.
        steps: accounts by step number.
        at_end: variables that must live on after the program.

    Returns:
        The places in program order, and the variables that are read before this program wrote them.
    """
    writes = [_mask(step.writes) for step in steps]
    forgets = [~_mask(step.defines - step.writes) for step in steps]
    uses = [_mask(step.reads) for step in steps]
    defines = [_mask(step.defines) for step in steps]
    needed: list[Place] = []

    def needed_before(step: int, after: int, record: bool) -> int:
        before = (after & ~defines[step]) | uses[step]
        if record:
            needed.append(Place(step, before | after))
        return before

    _backward(tree, at_end, True, needed_before)
    first: list[Place] = []
    later: list[Place] = []

    def written_after(step: int, written: int) -> int:
        return (written | writes[step]) & forgets[step]

    _forward(tree, 0, False, written_after, first)
    _forward(tree, 0, True, written_after, later)
    early = 0
    for place in first:
        early |= uses[place.step] & ~place.live
    places = [
        Place(need.step, (need.live & held.live) | writes[need.step] | uses[need.step])
        for need, held in zip(reversed(needed), later, strict=True)
    ]
    return places, early


def _forward(tree: Tree, written: int, carry: bool, after: Callable[[int, int], int], places: list[Place]) -> int:
    """Records what may have been written before each step; with `carry`, also by earlier rounds of a loop."""
    match tree:
        case Leaf(step):
            places.append(Place(step, written))
            return after(step, written)
        case Series(parts):
            for part in parts:
                written = _forward(part, written, carry, after, places)
            return written
        case Loop(_, body):
            if carry:
                written = _forward(body, written, carry, after, [])
            return _forward(body, written, carry, after, places)
        case While():
            if carry:
                written = _forward(tree.body, _forward(tree.condition, written, carry, after, []), carry, after, [])
            return _forward(tree.body, _forward(tree.condition, written, carry, after, places), carry, after, places)
        case Branch():
            result = written
            for option in reversed(tree.options):  # the order in which the backward pass lists them
                result |= _forward(option, written, carry, after, places)
            return result


def _backward(tree: Tree, out: int, record: bool, leaf: Callable[[int, int, bool], int]) -> int:
    match tree:
        case Leaf(step):
            return leaf(step, out, record)
        case Series(parts):
            for part in reversed(parts):
                out = _backward(part, out, record, leaf)
            return out
        case Loop(count, body):
            if count > 1:  # what the next round needs lives on from this one
                out |= _backward(body, out, False, leaf)
                out |= _backward(body, out, False, leaf)
            return _backward(body, out, record, leaf)
        case While():
            bit = 1 << tree.predicate.number
            again = out
            for _ in range(2):
                again |= _backward(tree.body, _backward(tree.condition, again | bit, False, leaf), False, leaf)
            start = _backward(tree.body, _backward(tree.condition, again | bit, False, leaf), record, leaf)
            return _backward(tree.condition, again | start | bit, record, leaf)
        case Branch():
            masks = [_backward(option, out, record, leaf) for option in tree.options]
            result = 1 << tree.predicate.number
            for mask in masks:
                result |= mask
            return result


def _mask(variables: frozenset[Variable]) -> int:
    mask = 0
    for variable in variables:
        mask |= 1 << variable.number
    return mask
