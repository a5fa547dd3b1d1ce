"""Liveness: a program with loops against the same program written out, and what goes round a loop."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from ipu_core.engine.liveness import ProgramPoint, live_points
from ipu_core.engine.tree import Choice, Leaf, Repeated, Series, Tree, While


class Numbered:
    """A variable, as far as liveness reads it."""

    def __init__(self, number: int) -> None:
        self.number = number


VARIABLES: list[Any] = [Numbered(number) for number in range(6)]


def step(reads: str = "", writes: str = "", defines: str | None = None) -> Any:
    """The account of a step as far as liveness reads it; variables are the letters a to f, written in full if no
    `defines` say otherwise."""
    chosen = (frozenset(VARIABLES["abcdef".index(letter)] for letter in letters) for letters in
              (reads, writes, writes if defines is None else defines))  # fmt: skip
    return SimpleNamespace(**dict(zip(("reads", "writes", "defines"), chosen, strict=True)))


def letters(point: ProgramPoint) -> str:
    return "".join(letter for bit, letter in enumerate("abcdef") if point.live >> bit & 1)


def live(tree: Tree, steps: list[Any], at_end: int = 0) -> list[str]:
    return [letters(point) for point in live_points(tree, steps, at_end)[0]]


BODY = [step(writes="a"), step(reads="a", writes="b"), step(reads="b", writes="c"), step(reads="c", writes="d")]


def test_a_value_read_in_every_round_lives_all_round_the_loop() -> None:
    rounds = Series((Leaf(1), Leaf(2), Leaf(3)))
    assert live(Series((Leaf(0), rounds)), BODY) == ["a", "ab", "bc", "cd"]
    assert live(Series((Leaf(0), Repeated(2, rounds))), BODY) == ["a", "ab", "abc", "acd"]
    assert live(Series((Leaf(0), Repeated(1, rounds))), BODY) == ["a", "ab", "bc", "cd"]
    again = While(Leaf(1), VARIABLES[4], Series((Leaf(2), Leaf(3))))
    assert live(Series((Leaf(0), again)), BODY) == ["a", "ab", "abc", "acd"]


def test_a_value_carried_from_the_end_of_a_round_to_the_next_ones_start_lives_between() -> None:
    """Written last and read first: nothing inside one iteration would keep it."""
    steps = [step(writes="a"), step(reads="a", writes="b"), step(reads="b", writes="a")]
    body = Series((Leaf(1), Leaf(2)))
    assert live(Series((Leaf(0), Repeated(3, body))), steps) == ["a", "ab", "ab"]
    assert live(Series((Leaf(0), Repeated(1, body))), steps) == ["a", "ab", "ab"]
    far = [*steps, step(writes="c"), step(reads="c")]
    after = Series((Leaf(1), Leaf(2), Leaf(3), Leaf(4)))
    assert live(Series((Leaf(0), Repeated(3, after))), far) == ["a", "ab", "ab", "ac", "ac"]
    assert live(Series((Leaf(0), Repeated(1, after))), far) == ["a", "ab", "ab", "c", "c"]


def test_a_value_written_piece_by_piece_lives_on_from_an_earlier_round() -> None:
    steps = [step(writes="b"), step(reads="b"), step(writes="a", defines=""), step(reads="a")]
    once = Series(tuple(Leaf(n) for n in range(4)))
    assert live(once, steps) == ["b", "b", "a", "a"]
    assert live(Repeated(2, once), steps) == ["ab", "ab", "a", "a"]  # the pieces that this round does not write


def test_what_is_read_before_it_was_written_is_named() -> None:
    steps = [step(reads="a", writes="b"), step(reads="b", writes="a")]
    assert live_points(Repeated(2, Series((Leaf(0), Leaf(1)))), steps, 0)[1] == 0b01
    assert live_points(Series((Leaf(1), Leaf(0))), steps, 0)[1] == 0b10


def random_tree(rng: random.Random, steps: int, depth: int) -> Tree:
    kind = rng.random() if depth else 1.0
    if kind < 0.4:
        return Series(tuple(random_tree(rng, steps, depth - 1) for _ in range(rng.randint(1, 4))))
    if kind < 0.6:
        return Repeated(rng.randint(1, 3), random_tree(rng, steps, depth - 1))
    if kind < 0.75:
        return While(random_tree(rng, steps, 0), rng.choice(VARIABLES), random_tree(rng, steps, depth - 1))
    if kind < 0.85:
        return Choice(rng.choice(VARIABLES), tuple(random_tree(rng, steps, depth - 1) for _ in range(2)))
    return Leaf(rng.randrange(steps))


def written_out(rng: random.Random, tree: Tree, points: range) -> tuple[list[tuple[int, int]], int]:
    """One run of a tree, branches and rounds drawn: (step, number of the point) in the order they run, and the next
    number; -1 - v stands for the read of a predicate, the variable v."""
    first = points.start
    match tree:
        case Leaf(number):
            return [(number, first)], first + 1
        case Series(parts):
            run = []
            for part in parts:
                ran, first = written_out(rng, part, range(first, points.stop))
                run += ran
            return run, first
        case Repeated(count, body):
            runs = [written_out(rng, body, points) for _ in range(count)]
            return [item for ran, _ in runs for item in ran], runs[0][1]
        case While(condition, predicate, body):
            test, between = written_out(rng, condition, points)
            run = [*test, (-1 - predicate.number, -1)]
            for _ in range(rng.randint(0, 2)):
                ran, _ = written_out(rng, body, range(between, points.stop))
                test, _ = written_out(rng, condition, points)
                run += [*ran, *test, (-1 - predicate.number, -1)]
            return run, written_out(rng, body, range(between, points.stop))[1]
        case Choice(predicate, options):
            ran, ends = [], []
            for option in reversed(options):  # the order in which points are listed
                one, first = written_out(rng, option, range(first, points.stop))
                ran.append(one)
                ends.append(first)
            return [(-1 - predicate.number, -1), *rng.choice(ran)], ends[-1]


@pytest.mark.parametrize("seed", range(300))
def test_what_any_run_still_needs_lives_at_every_point_of_the_program(seed: int) -> None:
    """Every run is a straight line: there a variable lives from a write to the last read before it is defined anew."""
    rng = random.Random(seed)
    some = [(("".join(rng.sample("abcdef", rng.randint(0, 2)))), "".join(rng.sample("abcdef", rng.randint(0, 2))))
            for _ in range(7)]  # fmt: skip
    steps = [step(reads, writes, writes if rng.random() < 0.7 else "") for reads, writes in some]
    tree, at_end = random_tree(rng, len(steps), 4), rng.getrandbits(6)
    points, _ = live_points(tree, steps, at_end)
    for _ in range(4):
        run, number = written_out(rng, tree, range(1 << 30))
        assert number == len(points)
        assert all(points[point].step == each for each, point in run if point >= 0)
        needed, alive = at_end, []
        for each, point in reversed(run):
            reads, defines = ({-1 - each}, set()) if each < 0 else (
                {v.number for v in steps[each].reads}, {v.number for v in steps[each].defines})  # fmt: skip
            before = needed & ~sum(1 << n for n in defines) | sum(1 << n for n in reads)
            alive.append((each, point, before | needed))
            needed = before
        written = 0
        for each, point, wanted in reversed(alive):
            if each < 0:
                continue
            assert (wanted & written) & ~points[point].live == 0
            written |= sum(1 << v.number for v in steps[each].writes)
