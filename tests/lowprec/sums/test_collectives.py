"""all_reduce: what chips that pass messages to their neighbours end with, one rounding after the other."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from lowprec import Collective, Key
from lowprec.sums.collectives import LAST, SECOND
from lowprec.types import Array
from lowprec.values.collective import ALGORITHMS

FORMATS = ["float32", "float16", "bfloat16", "float8_e5m2", "e6m5"]
ROUNDINGS = ["nearest_even", "stochastic", "toward_zero"]


class Chips:
    """Chips that add and send single numbers, with a rounding at a time."""

    def __init__(self, how: Collective, key: Key) -> None:
        self.how, self.key = how, key

    def sent(self, x: Any, number: int, index: int) -> float:
        key = self.key.fold_in(number)
        return float(lp.round(np.array([x], np.float64), self.how.wire, self.how.rounding, key=key, offset=index)[0])

    def added(self, own: Any, arrived: float, number: int, index: int) -> float:
        """The exact sum of two floats that are no wider than float32 is rounded once, from two numbers."""
        key = self.key.fold_in(number)
        return float(lp.add(np.float64(own), arrived, self.how.partial, self.how.rounding, key=key, offset=index))


def ring(chips: Chips, held: Array, indices: Array, places: list[int], base: int) -> dict[int, float]:
    """Elements of some indices round a ring of chips, by messages: the partial sum of each where it ends.

    Args:
        chips: how they add.
        held: what each chip holds (chips, n).
        indices: the elements, in as many chunks as there are chips.
        places: the chips in the order in which a message passes them, the first that of chunk 0.
        base: added to an element's index among the random bits.
    """
    count = len(places)
    length = -(-len(indices) // count)
    sums: dict[int, float] = {}
    inboxes: list[deque[tuple[int, int, float]]] = [deque() for _ in places]
    for position, place in enumerate(places):
        # Chunk c begins at chip `first` + c of the ring, whatever way it then goes.
        chunk = next(c for c in range(count) if _begins(places, c) == place)
        for i in map(int, indices[chunk * length : (chunk + 1) * length]):
            sums[i] = float(held[place, i])
            if count > 1:
                inboxes[(position + 1) % count].append((i, 1, chips.sent(held[place, i], 1, base + i)))
    while any(inboxes):
        waiting = [list(box) for box in inboxes]
        for box in inboxes:
            box.clear()
        for position, (place, arrived) in enumerate(zip(places, waiting, strict=True)):
            for i, hop, number in arrived:
                sums[i] = chips.added(held[place, i], number, 2 * hop, base + i)
                if hop < count - 1:
                    inboxes[(position + 1) % count].append((i, hop + 1, chips.sent(sums[i], 2 * hop + 1, base + i)))
    return sums


def _begins(places: list[int], chunk: int) -> int:
    """The chip at which a chunk begins: ascending from the first, also where messages go the other way."""
    ring_of = sorted(places)
    return ring_of[(ring_of.index(places[0]) + chunk) % len(places)]


def tree(chips: Chips, held: Array, first: int) -> list[float]:
    """Every pair's sum, level by level, in a binary tree."""
    count, n = held.shape
    level = {i: [float(x) for x in held[(first + i) % count]] for i in range(count)}
    number = 0
    while len(level) > 1:
        number += 1
        above = {}
        for i in range(0, len(level), 2):
            if i + 1 < len(level):
                at = [i // 2 * n + e for e in range(n)]
                sent = [chips.sent(level[i + 1][e], 2 * number - 1, at[e]) for e in range(n)]
                above[i // 2] = [chips.added(level[i][e], sent[e], 2 * number, at[e]) for e in range(n)]
            else:
                above[i // 2] = level[i]
        level = above
    return level[0]


def by_messages(held: Array, how: Collective, key: Key) -> list[float]:
    """The result of all chips."""
    count, n = held.shape
    chips, every = Chips(how, key), np.arange(n)

    def around(some: list[int], first: int, step: int = 1) -> list[int]:
        return [some[(first + step * t) % len(some)] for t in range(len(some))]

    if how.algorithm == "tree":
        total = dict(enumerate(tree(chips, held, how.first)))
    elif how.algorithm == "ring_pair":
        half, all_chips = -(-n // 2), list(range(count))
        total = ring(chips, held, every[:half], around(all_chips, how.first), 0)
        total |= ring(chips, held, every[half:], around(all_chips, how.first, -1), 0)
    elif how.group is None:
        total = ring(chips, held, every, around(list(range(count)), how.first), 0)
    else:
        groups = [list(range(i, i + how.group)) for i in range(0, count, how.group)]
        partial = np.zeros((len(groups), n))
        for number, group in enumerate(groups):
            found = ring(chips, held, every, around(group, how.first), number * n)
            partial[number] = [found[i] for i in range(n)]
        across, length = Chips(how, key.fold_in(SECOND)), -(-n // how.group)
        total = {}
        for start in range(0, n, max(1, length)):
            some = every[start : start + length]
            total |= ring(across, partial, some, around(list(range(len(groups))), how.first), 0)
        return [across.sent(total[i], LAST, i) for i in range(n)]
    return [chips.sent(total[i], LAST, i) for i in range(n)]


@st.composite
def collectives(draw: st.DrawFn) -> tuple[Collective, int]:
    """A Collective and a number of chips."""
    algorithm = draw(st.sampled_from(ALGORITHMS))
    group = draw(st.integers(1, 4)) if algorithm == "two_level" else None
    chips = draw(st.integers(1, 4)) * group if group else draw(st.integers(1, 9))
    how = Collective(
        algorithm, draw(st.sampled_from([*range(11), 2**70])), group, draw(st.sampled_from(FORMATS)),
        draw(st.sampled_from([None, *FORMATS])), draw(st.sampled_from(ROUNDINGS)),
    )  # fmt: skip
    return how, chips


@settings(max_examples=200, derandomize=True, deadline=None)
@given(collectives(), st.integers(0, 20), st.sampled_from([np.float32, np.float16]), st.integers(0, 2**32))
def test_it_is_what_chips_end_with_that_pass_messages(
    given_how: tuple[Collective, int], n: int, dtype: type, seed: int
) -> None:
    how, count = given_how
    held = np.random.default_rng(seed).normal(size=(count, n)).astype(dtype)
    want = by_messages(held, how, Key(seed))
    got = lp.all_reduce(held, how, key=seed)
    assert got.shape == (n,)
    np.testing.assert_array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_on_every_backend(algorithm: Any, host_backend: str) -> None:
    held = np.random.default_rng(3).normal(size=(6, 2, 7)).astype(np.float32)
    group = 3 if algorithm == "two_level" else None
    how = Collective(algorithm, 1, group, "float16", "float32", "stochastic")
    got = lp.all_reduce(held, how, key=5)
    assert got.dtype == np.float16
    want = by_messages(held.reshape(6, 14), how, Key(5))
    np.testing.assert_array_equal(got.reshape(14).astype(np.float64), want)


def test_by_hand() -> None:
    # Three chips, three chunks of one element: chunk c begins at chip c. In halves 2048 + 1 is 2048, and 1 + 1 is 2.
    held = np.array([[2048, 1, 1], [1, 2048, 1], [1, 1, 2048]], np.float32)
    np.testing.assert_array_equal(lp.all_reduce(held, Collective(wire="float16")), [2048, 2048, 2048])
    # One chip further every chunk begins with a 1 and meets the other before, or the 2048 in between.
    np.testing.assert_array_equal(lp.all_reduce(held, Collective(first=1, wire="float16")), [2050, 2050, 2050])
    np.testing.assert_array_equal(lp.all_reduce(held, Collective("tree", wire="float16")), [2048, 2048, 2050])
    np.testing.assert_array_equal(lp.all_reduce(held), [2050, 2050, 2050])


def test_a_stochastic_ring_is_right_on_average() -> None:
    # 64 chips with 1 and one with 2048: every step rounds 1 to 0 or 2, with equal chance.
    held = np.ones((65, 20_000), np.float32)
    held[0] = 2048
    chain = Collective("two_level", group=1, wire="float16", rounding="stochastic")
    # A ring of groups of one is a ring; its chunks begin at every chip, so the mean error depends on the chunk.
    got = lp.all_reduce(held, chain, key=1).astype(np.float64)
    # The variance of 64 steps of +-1 is at most 64; five standard deviations of the mean of 20,000.
    assert abs(got.mean() - 2112) < 5 * 8 / np.sqrt(20_000)
    nearest = lp.all_reduce(held, Collective(wire="float16")).astype(np.float64)
    assert nearest.mean() < 2112 - 20


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "unknown algorithm 'star'", lambda: Collective("star")),  # type: ignore[arg-type]
        (ValueError, "ring has no groups", lambda: Collective(group=2)),
        (ValueError, "two_level needs group=", lambda: Collective("two_level")),
        (ValueError, "no negative numbers", lambda: Collective(wire="float8_e8m0fnu")),
        (TypeError, "first must be an integer", lambda: Collective(first=1.0)),  # type: ignore[arg-type]
        (ValueError, "first must be at least 0", lambda: Collective(first=-1)),
        (ValueError, "do not divide 6 chips", lambda: lp.all_reduce(np.ones((6, 2)), Collective("two_level", group=4))),
        (ValueError, "needs key=", lambda: lp.all_reduce(np.ones((6, 2)), Collective(rounding="stochastic"))),
        (ValueError, "the first axis is the chips", lambda: lp.all_reduce(np.float32(1))),
        (ValueError, "the first axis is the chips", lambda: lp.all_reduce(np.ones((0, 3)))),
        (TypeError, "must be a float array", lambda: lp.all_reduce(np.ones((2, 3), int))),
        (TypeError, "must be a lowprec.Collective", lambda: lp.all_reduce(np.ones((2, 3)), "ring")),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_refusals(error: type[Exception], message: str, call: Any) -> None:
    with pytest.raises(error, match=message):
        call()


def test_words_and_digests() -> None:
    how = Collective("two_level", 1, 16, "float16", "float32", "stochastic")
    said = "two_level in groups of 16 from chip 1, float16, partial sums float32, stochastic, random bits 16"
    assert how.words() == said
    fields = [dict(first=2), dict(wire="bfloat16"), dict(accumulate="float16"), dict(rounding="up"), dict(group=8)]
    plain: dict[str, Any] = dict(algorithm="two_level", group=4)
    assert len({Collective(**(plain | each)).digest() for each in [{}, *fields]}) == 1 + len(fields)
