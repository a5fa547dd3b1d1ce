"""Sums beside each other: on lanes of their own where that is faster, in the memory there is, each in its order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic
from ipu_core.placement.cuts import PlacementProblem
from ipu_core.placement.matmul import Placement, SumPlan, plan_sum, product_of
from ipu_core.placement.matmul.account import account
from ipu_core.placement.matmul.beside import frontier, placed_beside
from ipu_core.placement.supersteps import MOST_SETS, Account, beside
from tests.examples import examples

GC200, FEW = Target("gc200"), Target("gc200", tiles=48)
AMPLE = 1 << 40


def planned(target: Target, m: int, k: int, n: int, **more: Any) -> SumPlan:
    return plan_sum(target, product_of(target, m, k, n, operands="float16"), **more)


def accounted(plan: SumPlan) -> Account:
    return account(PlacementProblem(plan.target, plan.product, plan.accumulation), plan.geometry)


def together(plans: Any) -> int:
    return beside([accounted(plan) for plan in plans])


def used(plan: SumPlan) -> range:
    return range(plan.placement.first, plan.placement.first + plan.geometry.tiles)


SIZES = st.tuples(st.integers(1, 70), st.integers(1, 300), st.integers(1, 90))


@examples(quick=25, slow=400)
@given(st.lists(SIZES, min_size=2, max_size=5), st.sampled_from([8, 24, 48, 49]), st.sampled_from(["gc200", "gc2"]))
def test_sums_take_no_longer_beside_each_other_whatever_they_are(
    sizes: list[tuple[int, int, int]], tiles: int, chip: str
) -> None:
    target = Target(chip, tiles=tiles)
    plans = [planned(target, *size) for size in sizes]
    apart = placed_beside(plans, AMPLE)
    alone = sum(plan.cycles for plan in plans)
    assert together(apart) <= together(plans) <= alone - (len(plans) - 1) * target.sync_cycles
    assert [plan.accumulation for plan in apart] == [plan.accumulation for plan in plans]
    assert [plan.product for plan in apart] == [plan.product for plan in plans]
    assert all(used(plan).stop <= tiles for plan in apart)
    if apart != tuple(plans):
        assert together(apart) < together(plans)
        for one in apart:  # a lane is of one width: what is not on the same is on other tiles, and in other supertiles
            for other in apart:
                same = one.placement.first == other.placement.first
                assert same or not {tile // 2 for tile in used(one)} & {tile // 2 for tile in used(other)}


def test_two_small_products_take_the_time_of_the_slower() -> None:
    one, other = planned(FEW, 16, 32, 64), planned(FEW, 16, 64, 48)
    first, second = placed_beside([one, other], AMPLE)
    assert not set(used(first)) & set(used(second))
    sets = [accounted(plan).sets for plan in (first, second)]
    cycles = 0
    for i in range(max(map(len, sets))):
        parts = [each[i] for each in sets if i < len(each)]
        compute = np.sum([part.compute for part in parts], axis=0)
        assert compute.max() == max(part.compute.max() for part in parts)  # no tile has both
        for side in ("gather", "scatter"):
            traffic = Traffic.sum([getattr(part, side) for part in parts], FEW.tiles)
            cycles += traffic.cycles(FEW) + (FEW.sync_cycles if side == "gather" or traffic.received.any() else 0)
        cycles += int(compute.max())
    assert together([first, second]) == cycles < together([one, other]) < one.cycles + other.cycles


def test_lanes_keep_to_the_memory() -> None:
    plans = [planned(FEW, *size) for size in ((18, 2, 69), (35, 36, 56))]
    as_they_are, ample = sum(plan.memory for plan in plans), placed_beside(plans, AMPLE)
    needed = max(plan.memory for plan in ample)
    assert needed > as_they_are
    assert placed_beside(plans, needed) == ample
    for memory in (0, as_they_are, needed - 1):
        assert max(plan.memory for plan in placed_beside(plans, memory)) <= as_they_are + max(0, memory - as_they_are)


def test_what_shares_a_lane_needs_its_memory_at_once() -> None:
    plans = [planned(FEW, *size) for size in ((9, 26, 30), (48, 56, 81), (23, 8, 25), (52, 40, 1))]

    def fullest(apart: Sequence[SumPlan]) -> int:
        lanes = {plan.placement.first for plan in apart}
        assert len(lanes) < len(plans)
        return max(sum(plan.memory for plan in apart if plan.placement.first == lane) for lane in lanes)

    as_they_are, needed = sum(plan.memory for plan in plans), fullest(placed_beside(plans, AMPLE))
    assert needed > as_they_are  # though no sum alone needs so much
    assert max(plan.memory for plan in placed_beside(plans, AMPLE)) < needed
    assert fullest(placed_beside(plans, needed)) == needed
    assert placed_beside(plans, needed - 1) != placed_beside(plans, needed)


def test_a_frontier_gives_fewer_cycles_for_more_tiles() -> None:
    plan = planned(GC200, 32, 1000, 1000)
    found = frontier(PlacementProblem(GC200, plan.product, plan.accumulation))
    assert (np.diff(found.tiles) > 0).all()
    assert (np.diff(found.cycles) < 0).all()
    assert found.tiles[0] < 40 < 700 < found.tiles[-1]
    for tiles in (40, 500, 1472):
        which = found.within(tiles)
        assert found.tiles[which] <= tiles
        assert which == found.tiles.size - 1 or found.tiles[which + 1] > tiles
        assert found.by(found.cycles[which]) == which
    assert found.within(int(found.tiles[0]) - 1) == -1
    assert found.by(float(found.cycles[-1]) - 1) == found.tiles.size


def test_sums_of_many_turns_stay() -> None:
    small = Target("gc200", tiles=2, tile_memory=24 * 1024)
    turns = plan_sum(small, product_of(small, 400, 400, 64, operands="float16"), memory=2048)
    assert not accounted(turns).known
    assert len(accounted(turns).sets) == MOST_SETS
    assert placed_beside([turns, planned(small, 4, 4, 16)], AMPLE)[0] is turns


@pytest.mark.parametrize("first", [1, 2, 7])
def test_a_placement_from_a_tile_on_has_the_account_of_one_from_the_first_but_for_what_lies_near(first: int) -> None:
    plan = planned(FEW, 20, 40, 64, placement=Placement(2, 2, 2))
    moved = planned(FEW, 20, 40, 64, placement=Placement(2, 2, 2, first=first))
    assert moved.geometry.tiles == plan.geometry.tiles
    assert used(moved) == range(first, first + plan.geometry.tiles)
    assert (moved.compute_cycles, moved.memory) == (plan.compute_cycles, plan.memory)
    sets = zip(accounted(plan).sets, accounted(moved).sets, strict=True)
    for before, after in sets:
        np.testing.assert_array_equal(np.roll(before.compute, first), after.compute)
    assert f"from tile {first}" in moved.placement.words()
    assert "from" not in plan.placement.words()


def test_a_placement_ends_on_the_chip() -> None:
    with pytest.raises(ValueError, match="needs 49 tiles; gc200 has 48"):
        planned(FEW, 20, 40, 64, placement=Placement(2, 2, 1, first=45))
    assert planned(FEW, 20, 40, 64, placement=Placement(2, 2, 1, first=44)).geometry.tiles == 4
    with pytest.raises(ValueError, match="first must be the number of a tile, not -1"):
        Placement(first=-1)
