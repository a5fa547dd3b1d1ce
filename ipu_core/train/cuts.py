"""Where a step is cut into stages: at names, or so that the heaviest stage is as light as can be."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from ipu_core.engine.profile import Profile
from ipu_core.ir.block import Block, Var
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.passes.checkpoint_names import beginning, near_words
from ipu_core.ir.passes.pipeline import forward_numbers, passed_values
from ipu_core.ir.precision.rules import names_of
from ipu_core.train.stage_times import label, of_micro_batch


def named_cut(ideal: Block, names: Sequence[str]) -> tuple[int, ...]:
    """Where stages begin that are called by their first layers.

    Raises:
        ValueError: a name that nothing has, or one that begins no later than the one before it.
    """
    possible = set(forward_numbers(ideal))
    forward = sorted((e for e in equations_of(ideal) if e.number in possible), key=lambda e: e.number)
    begins = list[int]()
    for name in names:
        first = next((e.number for e in forward if any(beginning(own, name) for own in names_of(e))), None)
        if first is None:
            known = dict.fromkeys(own for e in forward for own in names_of(e))
            raise ValueError(f"stages: {name!r} is the name of nothing in this model; {near_words(name, known)}")
        if not begins and first > forward[0].number:
            before = next(own for own in names_of(forward[0]))
            raise ValueError(
                f"stages: the first stage begins with {name!r}, and {before!r} comes before it: name that first, or '*'"
            )
        if begins and first <= begins[-1]:
            raise ValueError(f"stages: {name!r} begins no later than the stage before it: names in the model's order")
        begins.append(first)
    return tuple(begins[1:])


def cycles_of(profile: Profile, block: Block, numbers: Sequence[int]) -> list[int]:
    """Cycles of a micro-batch by forward equation, with its gradients and what is between it and the next."""
    homes: dict[str | None, int] = {}
    for equation in equations_of(block):
        if equation.role == "forward" and equation.parameter is not None and equation.number in numbers:
            homes.setdefault(equation.parameter, equation.number)
    own: dict[str, int] = {}
    for equation in of_micro_batch(block):
        traced = equation.keyed if equation.of is None else equation.of
        if equation.of is None and equation.role != "forward":
            traced = homes.get(equation.parameter, -1)  # a sum of gradients
        own[equation.name] = bisect_right(numbers, traced) - 1
    found = [0] * len(numbers)
    for step in profile.steps:
        if (place := own.get(label(step.name), -1)) >= 0:
            found[place] += step.account.cycles
    return found


def bytes_of(block: Block, numbers: Sequence[int]) -> list[int]:
    """Bytes by forward equation: of what it makes, and of the state of a parameter that it is the first to read."""
    found = dict.fromkeys(numbers, 0)
    held = sum(var.type.nbytes for var in block.inputs[: block.carried])
    weights = {e.parameter: e.outputs[0].type.nbytes for e in equations_of(block) if e.role == "update"}
    times = held / max(1, sum(weights.values()))  # moments and all else that is kept of a weight
    for equation in equations_of(block):
        if equation.number in found:
            state = weights.pop(equation.parameter, 0) if equation.parameter else 0
            found[equation.number] += equation.outputs[0].type.nbytes + int(times * state)
    return list(found.values())


def crossing(ideal: Block, numbers: Sequence[int]) -> list[int]:
    """Bytes that pass a cut before each forward equation, in float32: what is made before it and read behind it."""
    made: dict[Var, int] = {}
    last: dict[Var, int] = {}
    passed = passed_values(ideal)
    for equation in of_micro_batch(ideal):
        if equation.role == "forward":
            at = max(0, bisect_right(numbers, equation.number) - 1)
            made |= dict.fromkeys(passed.intersection(equation.outputs), at)
            last |= dict.fromkeys(equation.operands, at)
    total = [0] * len(numbers)
    for var, at in made.items():
        for behind in range(at + 1, last.get(var, at) + 1):
            total[behind] += var.type.nbytes
    return total


def lightest_cut(
    numbers: Sequence[int], weights: Sequence[float], links: Sequence[int], stages: int
) -> tuple[int, ...]:
    """Places at which the heaviest of so many stages, with what it hands on, is as light as can be."""
    low, high = 0, math.ceil(sum(weights)) + max(links, default=0)
    best = tuple(numbers[1:stages])
    while low <= high:
        bound = (low + high) // 2
        found = _within(weights, links, stages, bound)
        if found is None:
            low = bound + 1
        else:
            best, high = tuple(numbers[at] for at in found), bound - 1
    return best


def _within(weights: Sequence[float], links: Sequence[int], stages: int, bound: int) -> list[int] | None:
    """Cuts into exactly so many stages, none heavier than a bound; None: there are none."""
    cuts, first, total = list[int](), 0, len(weights)
    for stage in range(stages):
        left = stages - 1 - stage
        if not left:
            return cuts if sum(weights[first:]) <= bound else None
        own, furthest = 0.0, None
        for end in range(first + 1, total - left + 1):
            own += weights[end - 1]
            if own > bound:
                break
            if own + links[end] <= bound:
                furthest = end
        if furthest is None:
            return None
        cuts.append(furthest)
        first = furthest
    return cuts


def corrected(
    weights: Sequence[float], numbers: Sequence[int], begins: Sequence[int], stages: Sequence[int]
) -> list[float]:
    """Weights that add up to what each stage takes by its own plan, `stages`."""
    bounds = [0, *(bisect_left(numbers, begin) for begin in begins), len(numbers)]
    result = list[float]()
    for (first, end), cycles in zip(pairwise(bounds), stages, strict=True):
        total = sum(weights[first:end])
        result += [weight * cycles / total if total else 0.0 for weight in weights[first:end]]
    return result
