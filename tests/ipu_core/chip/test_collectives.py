"""Collectives: closed forms against machines that send every message, and what each chip has in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from ipu_core import System, Target
from ipu_core.chip.collectives import all_gather, all_reduce, broadcast, reduce_scatter
from ipu_core.chip.system import SYSTEMS
from ipu_core.errors import UnsupportedByTarget
from lowprec.values.collective import ALGORITHMS

SIZE = 3 * 5 * 2**20
COUNTS = (2, 3, 4, 5, 8, 16, 24, 64, 128, 192, 256, 1024)
BIG = System("bow-pod1024", link_latency=1e-7, gateway_latency=2e-6)
LINK, GATEWAY = 2 * 128 * 2**30 / 8 * 0.85, 25e9 / 4


def latency(members: int, gateways: bool, hops: int = 1) -> float:
    """By hand: the planner's sync of so many chips and the hops."""
    return 15e-9 * (1 + members / 4) * 2 + (2e-6 if gateways else hops * 1e-7)


class Ring:
    """Chips in a ring, each with a link to the next that carries a message at a time: when each ends, who has what."""

    def __init__(self, sizes: Any, rates: Any, wait: float) -> None:
        self.seconds = wait + sizes / np.asarray(rates, float)  # of a message, by link
        self.count = len(self.seconds)
        self.busy, self.ready = np.zeros(self.count), np.zeros(self.count)
        self.messages = np.zeros(self.count, int)

    def step(self) -> None:
        """Every chip sends what it was given in the last step, once it has it and its link is free."""
        ends = np.maximum(self.busy, self.ready) + self.seconds
        self.busy, self.ready = ends, np.roll(ends, 1)
        self.messages += 1

    def reduce_scatter(self, contributions: Any) -> None:
        """contributions[chip, chunk]: how many chips' parts of a chunk are in what a chip has."""
        chips = np.arange(self.count)
        for step in range(self.count - 1):
            chunk = (chips - step) % self.count
            given = contributions[chips, chunk]
            contributions[(chips + 1) % self.count, chunk] += given
            self.step()

    def all_gather(self, contributions: Any) -> None:
        chips = np.arange(self.count)
        for step in range(self.count - 1):
            chunk = (chips + 1 - step) % self.count
            contributions[(chips + 1) % self.count, chunk] = contributions[chips, chunk]
            self.step()

    @property
    def end(self) -> float:
        return float(self.busy.max())


def in_ring(kind: str, count: int, size: float, rates: Any, wait: float) -> Ring:
    made = Ring(size / count, rates, wait)
    parts = np.ones((count, count), int)
    if kind != "all_gather":
        made.reduce_scatter(parts)
        chips = np.arange(count)
        assert (parts[chips, (chips + 1) % count] == count).all()
    if kind == "all_gather":
        parts = np.zeros((count, count), int)
        parts[np.arange(count), (np.arange(count) + 1) % count] = count
    if kind != "reduce_scatter":
        made.all_gather(parts)
        assert (parts == count).all()
    return made


def rates_of(count: int) -> Any:
    """By link of a ring through racks of 64: the last chip of a rack sends over gateways."""
    last = (np.arange(count) + 1) % 64 == 0
    last[-1] = True
    return np.where(last & (count > 64), GATEWAY, LINK)


KINDS: dict[str, Callable[..., Any]] = {
    "all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_ring_takes_as_long_as_its_messages(kind: str, count: int) -> None:
    made = KINDS[kind](BIG, SIZE, count, algorithm="ring")
    sent = in_ring(kind, count, SIZE, rates_of(count), latency(count, count > 64))
    assert made.seconds == pytest.approx(sent.end, rel=1e-12)
    assert made.messages == sent.messages.max() == (2 if kind == "all_reduce" else 1) * (count - 1)
    assert made.link_bytes + made.gateway_bytes == pytest.approx(made.messages * SIZE / count)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", COUNTS)
def test_two_rings_carry_half_each_at_the_same_time(kind: str, count: int) -> None:
    made = KINDS[kind](BIG, SIZE, count, algorithm="ring_pair")
    ways = [in_ring(kind, count, SIZE / 2, rates_of(count), latency(count, count > 64)) for _ in range(2)]
    assert made.seconds == pytest.approx(max(way.end for way in ways), rel=1e-12)
    busiest = sum(way.messages for way in ways).max() * SIZE / 2 / count
    assert made.link_bytes + made.gateway_bytes == pytest.approx(busiest)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [128, 192, 256, 1024])
def test_three_phases_across_racks(kind: str, count: int) -> None:
    """Rings in racks of 64, then rings of those who have the same shard, one after another as each chip is ready."""
    racks = count // 64
    inside = {"all_reduce": ("reduce_scatter", "all_gather")}.get(kind, (kind,))
    near = [in_ring(one, 64, SIZE, np.full(64, LINK), latency(64, False)) for one in inside]
    across = in_ring(kind, racks, SIZE / 64, np.full(racks, GATEWAY), latency(count, True))
    made = KINDS[kind](BIG, SIZE, count)
    assert (made.algorithm, made.racks, len(made.phases)) == ("two_level", racks, len(near) + 1)
    assert made.seconds == pytest.approx(sum(ring.end for ring in near) + across.end, rel=1e-12)
    assert made.gateway_bytes == pytest.approx(across.messages.max() * SIZE / 64 / racks)
    assert made.link_bytes == pytest.approx(sum(ring.messages.max() for ring in near) * SIZE / 64)


class Tree(NamedTuple):
    end: float
    has: list[int]


def in_tree(count: int, size: float, up: bool, down: bool) -> Tree:
    """Chips in a line, partners 1, 2, 4 ... apart; a message holds all links between its ends while it passes."""
    ready, links, has = [0.0] * count, [0.0] * count, [1] * count
    levels = [1 << level for level in range((count - 1).bit_length())]

    def send(source: int, to: int, apart: int) -> None:
        low, high = min(source, to), max(source, to)
        gateways = low // 64 != high // 64
        wait = latency(min(count, 2 * apart), gateways, apart)
        begin = max(ready[source], ready[to], *links[low:high])
        end = begin + wait + size / (GATEWAY if gateways else LINK)
        links[low:high] = [end] * (high - low)
        ready[source] = ready[to] = end

    for apart in levels if up else []:
        for low in range(0, count - apart, 2 * apart):
            send(low + apart, low, apart)
            has[low] += has[low + apart]
    for apart in reversed(levels) if down else []:
        for low in range(0, count - apart, 2 * apart):
            send(low, low + apart, apart)
            has[low + apart] = has[low]
    return Tree(max(ready), has)


@pytest.mark.parametrize("count", COUNTS)
def test_a_tree_takes_as_long_as_its_messages(count: int) -> None:
    both, one = in_tree(count, SIZE, True, True), in_tree(count, SIZE, False, True)
    assert both.has == [count] * count
    assert all_reduce(BIG, SIZE, count, algorithm="tree").seconds == pytest.approx(both.end, rel=1e-12)
    assert broadcast(BIG, SIZE, count, algorithm="tree").seconds == pytest.approx(one.end, rel=1e-12)


@pytest.mark.parametrize("count", COUNTS)
def test_a_broadcast_by_a_ring_passes_parts_on(count: int) -> None:
    each = latency(count, count > 64) + SIZE / count / (GATEWAY if count > 64 else LINK)
    ends = np.zeros(count)  # of each part at the chip before
    for _ in range(count - 1):
        arrived, last = np.empty(count), 0.0
        for part in range(count):
            last = arrived[part] = max(last, ends[part]) + each
        ends = arrived
    made = broadcast(BIG, SIZE, count, algorithm="ring")
    assert made.seconds == pytest.approx(ends[-1], rel=1e-9)
    assert made.link_bytes + made.gateway_bytes == pytest.approx(SIZE)


def test_the_published_closed_form() -> None:
    """Latency + 2(n - 1)/n S / bandwidth, as Calculon's; and half of that for its two halves."""
    for count in COUNTS[:8]:
        made = all_reduce(BIG, SIZE, count, algorithm="ring")
        fixed = 2 * (count - 1) * latency(count, False)
        assert made.seconds == pytest.approx(fixed + 2 * (count - 1) / count * SIZE / LINK)
        parts = [one(BIG, SIZE, count, algorithm="ring").seconds for one in (reduce_scatter, all_gather)]
        assert made.seconds == pytest.approx(sum(parts))


def test_what_is_chosen_where_nothing_is_said() -> None:
    assert all_reduce(BIG, SIZE, 64).algorithm == "ring_pair"
    assert all_reduce(BIG, SIZE, 65).algorithm == "two_level"
    # 16 stages of 8 chips each: eight replicas of a stage are in a rack
    made = all_reduce(System("bow-pod128"), SIZE, 16, stride=8)
    assert (made.racks, [phase.messages for phase in made.phases]) == (2, [7, 2, 7])
    # 96 members in racks of 64: two of 48 are even
    assert all_reduce(BIG, SIZE, 96).racks == 2
    assert all_reduce(BIG, SIZE, 100, stride=2).racks == 4
    assert all_reduce(BIG, SIZE, 4, stride=100).racks == 4


def test_one_chip_sends_nothing() -> None:
    made = all_reduce(System(Target("c600")), SIZE)
    assert (made.seconds, made.messages, made.link_bytes, made.phases) == (0, 0, 0, ())
    assert "nothing to send" in made.words()
    assert "across racks" in all_reduce(BIG, SIZE).words()


@pytest.mark.filterwarnings("ignore::ipu_core.Unvalidated")
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_system_has_every_algorithm(name: str, algorithm: str) -> None:
    assert all_reduce(System(name), SIZE, algorithm=algorithm).seconds > 0
    assert broadcast(System(name), SIZE, algorithm=algorithm).seconds > 0


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="no algorithm 'star'; there are ring, ring_pair, tree, two_level"):
        all_reduce(BIG, SIZE, algorithm="star")
    with pytest.raises(ValueError, match="a tree leaves nobody a part: all_gather is by ring"):
        all_gather(BIG, SIZE, algorithm="tree")
    with pytest.raises(ValueError, match="17 chips, each 4 from the next, are more than bow-pod64's 64"):
        all_reduce(System("bow-pod64"), SIZE, 17, stride=4)
    with pytest.raises(UnsupportedByTarget, match="have no links"):
        all_reduce(System("c600", chips=2), SIZE)
    with pytest.raises(ValueError, match="size must be"):
        all_reduce(BIG, -1)


def test_two_levels_have_the_rings_that_are_said() -> None:
    # 16 chips of one rack in groups of 4: rings of 4 with the whole, one of 4 groups with a quarter, rings of 4 again.
    cost = all_reduce(BIG, SIZE, 16, algorithm="two_level", members=4)
    wait, quarter = latency(4, False), SIZE / 4
    inner = 3 * (wait + quarter / LINK)
    outer = 6 * (latency(16, False) + quarter / 4 / LINK)
    assert cost.seconds == pytest.approx(2 * inner + outer)
    assert cost.gateway_bytes == 0
    # Over racks the outer rings take gateways, and inner ones of a rack are what is usual there.
    usual, said = (all_reduce(BIG, SIZE, 256, algorithm="two_level", members=each) for each in (None, 64))
    assert said == usual
    smaller = all_reduce(BIG, SIZE, 256, algorithm="two_level", members=16)
    assert smaller.gateway_bytes > usual.gateway_bytes > 0
    with pytest.raises(ValueError, match="inner rings of 3 do not divide 16 chips"):
        all_reduce(BIG, SIZE, 16, algorithm="two_level", members=3)
