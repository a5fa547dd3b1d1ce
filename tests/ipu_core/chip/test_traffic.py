"""Traffic: how long an exchange phase takes, by hand."""

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic, pairs_of, shared_weight


def traffic(received: list[int], sent: list[int], shared: list[int]) -> Traffic:
    return Traffic(*(np.array(column, np.int64) for column in (received, sent, shared)))


@pytest.mark.parametrize(
    ("received", "sent", "shared", "cycles"),
    [
        ([0, 0], [0, 0], [0, 0], 0),  # nothing moves: no fixed cycles either
        ([1, 0], [0, 0], [0, 0], 101),
        ([400, 8], [8, 400], [0, 0], 200),
        ([400, 0], [0, 404], [0, 0], 201),  # the sender is the busiest
        ([400, 400], [0, 0], [400, 400], 150),  # both receive the same at 8 bytes a cycle
        ([400, 300], [0, 0], [300, 300], 100 + 25 + 38),  # 100 alone, 300 together: 62.5 cycles
        ([0, 0], [0, 3], [0, 0], 101),
    ],
)
def test_the_busiest_tile_counts(received: list[int], sent: list[int], shared: list[int], cycles: int) -> None:
    assert traffic(received, sent, shared).cycles(Target()) == cycles


@pytest.mark.parametrize("rate", [4, 5, 12, 16])
def test_shared_bytes_arrive_at_their_own_rate(rate: int) -> None:
    both = traffic([1200, 1200], [0, 0], [1200, 1200])
    assert both.cycles(Target(exchange_bytes_per_cycle_shared=rate)) == 100 - -1200 // rate
    alone = traffic([1200, 0], [0, 0], [0, 0])
    assert alone.cycles(Target(exchange_bytes_per_cycle_shared=rate)) == 100 + 300
    assert shared_weight(Target(exchange_bytes_per_cycle_shared=rate)) == 4 / rate


def test_supertiles_of_one_tile_share_nothing() -> None:
    assert pairs_of(Target(), 6).tolist() == [1, 0, 3, 2, 5, 4]
    assert pairs_of(Target(tiles_per_supertile=1), 4).tolist() == [0, 1, 2, 3]
    assert shared_weight(Target(tiles_per_supertile=1)) == 1.0


def test_traffic_adds_up() -> None:
    one = traffic([1, 2], [3, 4], [5, 6])
    for total in (one + one, Traffic.sum([one, one], 2), Traffic.sum([one], 2) + one):
        assert [column.tolist() for column in total] == [[2, 4], [6, 8], [10, 12]]
    assert one.total == 3
    assert Traffic.none(2).cycles(Target()) == 0


def test_the_mean_tile_takes_the_mean_of_what_each_tile_takes() -> None:
    target = Target("gc200", tiles=4)
    given = traffic([40, 0, 8, 0], [0, 80, 0, 0], [8, 0, 8, 0])
    # 32 / 4 + 8 / 8 of what it receives; 80 / 4 of what it sends; 8 / 8; nothing: by hand
    assert given.mean_cycles(target) == (9 + 20 + 1 + 0) / 4
    assert given.cycles(target) == target.exchange_fixed_cycles + 20
