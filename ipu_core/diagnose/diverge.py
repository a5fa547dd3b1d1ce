"""`diverge`: the first equation in which two training loops give different bits, and how weights part from there."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipu_core.ir.block import Array, Equation, format_name
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.run.lockstep import executable
from ipu_core.train.loop import TrainLoop
from lowprec.checks import expect, iterable
from lowprec.processor import in_default_state
from lowprec.statistics.values import as_float64

Place = tuple[str, int]
"""The name of an equation, and how often it was computed before in the step (in a loop)."""


@dataclass(frozen=True, eq=False)
class Divergence:
    """Where two loops part.

    Attributes:
        step: the number of the step.
        name: of the equation; of a state that differs before the step, "state " and its dotted name.
        line: the line that asked for it, as "model.py:41"; None: no line of a user's.
        element: index of the first element that differs; () of a number.
        count, size: how many elements differ, of how many.
        values: that element in both loops, as float64.
        operands: what it was computed from in both loops, whole arrays; of a state none.
        casts: conversions that only one of the loops makes, up to there: "a: forward.convert.7 to float16".
        growth: distance of the weights after this step and each later one, over their norm in the first loop.
    """

    step: int
    name: str
    line: str | None
    element: tuple[int, ...]
    count: int
    size: int
    values: tuple[float, float]
    operands: tuple[tuple[Array, ...], tuple[Array, ...]]
    casts: tuple[str, ...]
    growth: tuple[float, ...]

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        at = f"element {self.element} is" if self.element else "it is"
        words = [
            f"step {self.step}, {self.name}{where}: {at} {self.values[0]!r} and {self.values[1]!r}; {self.count:,} of "
            f"{self.size:,} differ"
        ]
        if self.casts:
            shown = ", ".join(self.casts[:3])
            more = f" and {len(self.casts) - 3} more" if len(self.casts) > 3 else ""
            words.append(f"casts that one of them alone makes: {shown}{more}")
        if self.growth:
            later = f", {self.growth[-1]:.3g} after {len(self.growth) - 1} more" if len(self.growth) > 1 else ""
            words.append(f"weights {self.growth[0]:.3g} apart after the step{later}")
        return "; ".join(words)


@in_default_state
def diverge(loop_a: TrainLoop, loop_b: TrainLoop, batches: Iterable[Any]) -> Divergence | None:
    """The first equation whose bits differ between two loops of one model; None: none does in these batches.

    Steps are done on copies: the loops stay as they are. Equations are matched by name, results compared as values (any
    two NaNs are the same, +0 is not -0), so that formats may differ: between precisions the first difference is the
    first result that one of them rounds otherwise. Conversions that one loop alone makes are not compared, and told.

    Args:
        loop_a, loop_b: in any two precisions, orders, engines or states.
        batches: one for each step.

    Raises:
        TypeError: no loop; batches that are none.
        ValueError: loops of two models, or one whose tiles draw random bits, which come no second time; a batch that a
            loop refuses.
    """
    expect(TrainLoop, loop_a=loop_a, loop_b=loop_b)
    for loop in (loop_a, loop_b):
        if loop.training.draws_on_tiles:
            raise ValueError("random bits of the tiles' generators come no second time: say random='philox'")
    sides = [_Side(copy.copy(loop)) for loop in (loop_a, loop_b)]
    _check_models(*sides)
    found: Divergence | None = None
    growth: list[float] = []
    for batch in iterable("batches", batches):
        found = found or _state_apart(sides[0], sides[1]) or _step_apart(sides[0], sides[1], batch)
        for side in sides:
            side.loop.train(batch)
        if found is not None:
            growth.append(_distance(*(side.loop.arrays() for side in sides)))
    return None if found is None else replace(found, growth=tuple(growth))


class _Side:
    """One of the loops, and its step as an Executable that tells what it computes."""

    def __init__(self, loop: TrainLoop) -> None:
        self.loop = loop
        self._executable = executable(loop.block, loop.accumulations, loop.control)

    def tell(self, batch: Any, seen: Callable[[Place, Equation, Sequence[Any], Array], None]) -> None:
        """Computes the next step, without doing it, and shows every equation."""
        counts: Counter[str] = Counter()

        def observer(equation: Equation, operands: Sequence[Any], result: Array) -> None:
            place = equation.name, counts[equation.name]
            counts[equation.name] += 1
            seen(place, equation, operands, result)

        inputs, key = self.loop.next_step(batch)
        self._executable.run(inputs, key, observer)


def _check_models(a: _Side, b: _Side) -> None:
    # The loss may be scaled, and the optimizer have another rate: the forward passes are the model.
    counts = [side.loop.training.replicas for side in (a, b)]
    if counts[0] != counts[1]:
        raise ValueError(
            f"the loops are of {counts[0]} and {counts[1]} replicas, whose programs have other parts of a batch"
        )
    models = [
        [(e.op, e.output.type.shape) for e in equations_of(side.loop.ideal) if e.role == "forward" and e.region is None]
        for side in (a, b)
    ]
    if models[0] != models[1]:
        raise ValueError("the loops are of two models: their forward passes are not of the same equations")
    first, second = (side.loop.arrays() for side in (a, b))
    apart = first.keys() ^ second.keys() | {
        name for name in first.keys() & second.keys() if np.shape(first[name]) != np.shape(second[name])
    }
    # Scales of operands are of one precision alone.
    if apart := {name for name in apart if not name.startswith("scales")}:
        raise ValueError(f"the loops are of two models or optimizers: {min(apart)!r} is not the same in both")


def _state_apart(a: _Side, b: _Side) -> Divergence | None:
    """The first array of the state that differs before a step."""
    first, second = (side.loop.arrays() for side in (a, b))
    for name in first:
        if name in second and (wrong := _differing(first[name], second[name])).any():
            return _found(a.loop.step, f"state {name}", None, (first[name], second[name]), wrong, ((), ()), ())
    return None


def _step_apart(a: _Side, b: _Side, batch: Any) -> Divergence | None:
    """The first equation of a step, in the order of the first loop, whose results differ."""
    results: dict[Place, Array] = {}
    equations: dict[Place, Equation] = {}
    apart, alone, order = set[Place](), dict[Place, Equation](), list[Place]()

    def keep(place: Place, equation: Equation, operands: Sequence[Any], result: Array) -> None:
        results[place], equations[place] = result.copy(), equation

    def compare(place: Place, equation: Equation, operands: Sequence[Any], result: Array) -> None:
        order.append(place)
        if place not in results:
            alone[place] = equation
        elif results[place].shape != result.shape:
            raise ValueError(f"the loops are of two models: {place[0]} is {results[place].shape} and {result.shape}")
        elif _differing(results[place], result).any():
            apart.add(place)
        common.discard(place)

    a.tell(batch, keep)
    common = set(results)
    b.tell(batch, compare)
    places = list(results)
    first = next((place for place in places if place in apart), None)
    if first is None:
        return None
    both = [_operands(side, batch, first) for side in (a, b)]
    up_to = places[: places.index(first)]
    casts = [("a", equations[place]) for place in up_to if place in common and _is_cast(equations[place])]
    casts += [("b", alone[place]) for place in order[: order.index(first)] if place in alone and _is_cast(alone[place])]
    told = tuple(f"{side}: {each.name} to {format_name(each.output.type.format)}" for side, each in casts)
    values = both[0][1], both[1][1]
    return _found(
        a.loop.step, first[0], equations[first].source, values, _differing(*values), (both[0][0], both[1][0]), told
    )


def _operands(side: _Side, batch: Any, wanted: Place) -> tuple[tuple[Array, ...], Array]:
    """What an equation is computed from, and its result."""
    found: list[tuple[tuple[Array, ...], Array]] = []

    def seen(place: Place, equation: Equation, operands: Sequence[Any], result: Array) -> None:
        if place == wanted:
            found.append((tuple(np.array(x) for x in operands), result.copy()))

    side.tell(batch, seen)
    return found[0]


def _is_cast(equation: Equation) -> bool:
    return equation.family == "cast" or equation.op in ("convert", "to_blocks")


def _differing(x: Any, y: Any) -> Array:
    """Where two arrays have different values; any two NaNs are the same, +0 is not -0."""
    left, right = np.asarray(x), np.asarray(y)
    if left.dtype.kind in "iub":
        return np.asarray(left != right)
    a, b = as_float64(left), as_float64(right)
    different: Array = (a.view(np.uint64) != b.view(np.uint64)) & ~(np.isnan(a) & np.isnan(b))
    return different


def _found(
    step: int, name: str, line: str | None, both: tuple[Any, Any], wrong: Array,
    operands: tuple[tuple[Array, ...], tuple[Array, ...]], casts: tuple[str, ...],
) -> Divergence:  # fmt: skip
    element = tuple(int(index) for index in np.argwhere(wrong)[0])
    values = float(np.asarray(both[0])[element]), float(np.asarray(both[1])[element])
    return Divergence(step, name, line, element, int(wrong.sum()), wrong.size, values, operands, casts, ())


def _distance(a: dict[str, Array], b: dict[str, Array]) -> float:
    """Distance of the weights, over the norm of the first."""
    apart = total = 0.0
    for name in _weights(a):
        x, y = as_float64(a[name]), as_float64(b[name])
        with np.errstate(invalid="ignore", over="ignore"):
            apart, total = apart + float(np.square(x - y).sum()), total + float(np.square(x).sum())
    return float(np.sqrt(apart / total)) if total else float(np.sqrt(apart))


def _weights(arrays: dict[str, Array]) -> Iterator[str]:
    return (name for name in arrays if name.startswith("params"))
