"""The search for a placement: nothing in its space is missed, more memory never costs cycles, what can fit is found."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipu_core.chip.target import Target
from ipu_core.placement.cuts import Cuts, PlacementProblem
from ipu_core.placement.matmul import Placement, Product, plan_sum, product_of, sum_plan
from ipu_core.placement.matmul.product_costs import costed, lower_bound
from ipu_core.placement.matmul.product_cuts import PRODUCTS, TURNS, every_turn, over_tiles
from ipu_core.placement.search import UNBOUNDED, BestPlacement, Candidates, Costed, Family, search
from lowprec import Accumulation
from tests.examples import examples
from tests.ipu_core.plans import plan_matmul, plan_reduction

GC200 = Target("gc200")
HALF = ("float16", "float16")


def _product(target: Target, m: int, k: int, n: int, batch: int = 1) -> Product:
    return product_of(target, m, k, n, batch=batch)


def modelled(problem: PlacementProblem[Product], memory: int) -> tuple[float, int]:
    """The modelled cycles of what the search finds, and the bytes it needs."""
    found = search(PRODUCTS, problem, memory)
    at = found.placement
    over, turns = (
        Cuts(*(np.array([n], np.int64) for n in cuts))
        for cuts in ((at.batch, at.rows, at.columns, at.parts), (1, at.serial_rows, at.serial_columns, 1))
    )
    hold = np.array([("none", "a", "b").index(at.hold)])
    costs = costed(problem, Candidates(over, turns, at.order == "rows", hold), memory)
    assert int(costs.candidates.turns.parts[0]) == at.serial_depth
    assert found.cycles == costs.cycles[0]
    return float(costs.cycles[0]), int(costs.memory[0])


sizes = st.tuples(st.integers(1, 300), st.integers(1, 400), st.integers(1, 300), st.integers(1, 3))
orders = st.builds(
    Accumulation,
    st.sampled_from([4, 16]),
    st.integers(1, 6),
    accumulate=st.sampled_from(["float16", "float32"]),
    out=st.just("float16"),
)


@examples(quick=12, slow=40)
@given(sizes, orders, st.sampled_from([4, 33, 1472]), st.integers(1, 60_000), st.floats(0.5, 0.99))
@example((121, 12, 212, 1), Accumulation(accumulate="float32", out="float16"), 4, 683, 0.7)
def test_more_memory_never_costs_modelled_cycles(
    size: tuple[int, int, int, int], order: Accumulation, tiles: int, memory: int, share: float
) -> None:
    target = Target("gc200", tiles=tiles)
    problem, smaller = PlacementProblem(target, _product(target, *size), order), int(memory * share)
    (_, least), (slow, less), (fast, more) = (modelled(problem, room) for room in (0, smaller, memory))
    assert (more <= memory) == (least <= memory)  # found whenever there is one
    assert (less <= smaller) == (least <= smaller)
    if less <= smaller:
        assert fast <= slow


@examples(quick=1, slow=8)
@given(sizes, st.integers(60_000, 638_976), st.floats(0.5, 0.99), st.sampled_from([HALF, ("float32", "float32")]))
@example((200, 200, 200, 1), 70_000, 0.6, HALF)
def test_a_tile_with_more_memory_is_not_planned_slower(
    size: tuple[int, int, int, int], tile_memory: int, share: float, types: tuple[str, str]
) -> None:
    m, k, n, batch = size
    small, large = (
        plan_matmul(Target("gc200", tile_memory=memory), 8 * m, 8 * k, 8 * n, batch=batch, types=types)
        for memory in (int(tile_memory * share), tile_memory)
    )
    assert large.cycles <= 1.05 * small.cycles  # the search's model is that near the exact account


@examples(quick=25, slow=25)
@given(
    st.integers(1, 40), st.integers(1, 90), st.integers(1, 50), st.integers(1, 2), orders, st.integers(1, 6),
    st.integers(100, 9000),
)  # fmt: skip
def test_no_candidate_at_all_is_cheaper(
    m: int, k: int, n: int, batch: int, order: Accumulation, tiles: int, memory: int
) -> None:
    target = Target("gc200", tiles=tiles)
    problem = PlacementProblem(target, _product(target, m, k, n, batch), order)
    cycles, needed = modelled(problem, memory)
    parts = len(order.parts(k))
    counts = m, -(-n // 16), parts, batch
    grid = [
        cuts
        for cuts in itertools.product(range(1, tiles + 1), range(1, tiles + 1), range(1, parts + 1), (1, 2), (0, 1))
        if np.prod(cuts[:4]) <= tiles
        and all(-(-size // -(-size // cut)) == cut for size, cut in zip(counts, cuts[:4], strict=True))  # none vanishes
    ]
    every = np.array([
        (*cuts, *serial) for cuts in grid for serial in itertools.product(TURNS, TURNS, (0, 1, 2))
    ]).T  # fmt: skip
    rows, columns, over_parts, products, rows_fastest, serial_rows, serial_columns, hold = every
    over, turns = Cuts(products, rows, columns, over_parts), Cuts(1, serial_rows, serial_columns, 1)
    candidates = Candidates(over, turns, rows_fastest, hold)
    found = costed(problem, candidates, memory)
    fits = found.memory <= memory
    assert (needed <= memory) == fits.any()
    if fits.any():
        assert cycles <= found.cycles[fits].min() * (1 + 1e-12)


@pytest.mark.parametrize("size", [(64, 256, 256), (511, 1023, 257), (100, 2000, 700), (2048, 1000, 3000)])
@pytest.mark.parametrize("memory", [600_000, 60_000, 12_000])
def test_the_model_of_the_search_is_near_the_exact_account(size: tuple[int, int, int], memory: int) -> None:
    order = Accumulation(splits=3, accumulate="float16")
    plan = plan_matmul(GC200, *size, accumulation=order, memory=memory)
    assert plan.memory <= memory
    cycles, _ = modelled(PlacementProblem(GC200, plan.product, order), memory)
    assert cycles == pytest.approx(plan.cycles, rel=0.1)


def test_pieces_in_time_are_used_wherever_a_little_memory_is_missing() -> None:
    order = Accumulation(accumulate="float16")
    ample = plan_matmul(GC200, 1024, 1024, 1024, accumulation=order)
    short = plan_matmul(GC200, 1024, 1024, 1024, accumulation=order, memory=ample.memory - 1)
    assert short.memory < ample.memory
    assert ample.cycles < short.cycles < 1.1 * ample.cycles


def test_the_parts_of_a_sum_are_taken_one_after_the_other_where_memory_is_short() -> None:
    order = Accumulation(splits=8)
    target = Target("gc200", tiles=2)
    ample = plan_reduction(target, 1, 4096, 8, operands="float32", accumulation=order, memory=300_000)
    short = plan_reduction(target, 1, 4096, 8, operands="float32", accumulation=order, memory=20_000)
    assert short.memory <= 20_000 < ample.memory
    assert short.placement.serial_depth > 1
    assert ample.cycles < short.cycles


@pytest.mark.parametrize("held, axis", [(1, "m"), (2, "n")])
def test_a_short_last_block_of_a_held_operand_is_a_copy_of_its_own_in_every_turn(held: int, axis: str) -> None:
    """As the account counts them: one copy brings whole blocks, another one the short last (see `account`)."""
    target, blocks, turns = Target("gc200", tiles=16), 4, 2

    def cycles(size: int) -> float:
        sizes = {"m": 64, "k": 4096, "n": 64} | {axis: size}
        product = product_of(target, **sizes)
        over = [1, blocks, 1, 1] if axis == "m" else [1, 1, blocks, 1]
        times = [1, turns, 1, 1] if axis == "m" else [1, 1, turns, 1]
        rows = [np.array([n], np.int64) for n in over], [np.array([n], np.int64) for n in times]
        order = Accumulation(accumulate="float16")
        candidates = Candidates(Cuts(*rows[0]), Cuts(*rows[1]), True, np.array([held]))
        return float(costed(PlacementProblem(target, product, order), candidates, 1 << 40).cycles[0])

    whole, short = 32 * blocks, 32 * blocks - 1  # the largest block is the same
    assert cycles(short) - cycles(whole) >= turns * (target.exchange_fixed_cycles + target.sync_cycles)


@examples(quick=6, slow=12)
@given(size=sizes, order=orders, memory=st.integers(0, 200_000), tiles=st.sampled_from([6, 1472]))
def test_a_plan_is_what_the_search_for_its_memory_finds(
    size: tuple[int, int, int, int], order: Accumulation, memory: int, tiles: int
) -> None:
    """Also where the plan for ample memory fits and nothing is searched again."""
    target = Target("gc200", tiles=tiles)
    product = _product(target, *size)
    order = order.with_types("float16")
    planned = plan_sum(target, product, order, memory=memory)
    assert planned.placement == search(PRODUCTS, PlacementProblem(target, product, order), memory).placement


def test_equal_sums_are_searched_for_once_whatever_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = list[int]()

    def counted(
        family: Family[Product, Placement], problem: PlacementProblem[Product], memory: int
    ) -> BestPlacement[Placement]:
        searched.append(memory)
        return search(family, problem, memory)

    monkeypatch.setattr(sum_plan, "search", counted)
    product = _product(GC200, 71, 133, 59)
    plans = [plan_sum(GC200, product, Accumulation(group=16), memory=memory) for memory in range(400_000, 400_020)]
    assert len(searched) == 1
    assert set(plans) == {plans[0]}
    assert plan_sum(GC200, product, Accumulation(group=16), memory=500) != plans[0]
    assert len(searched) == 2


def test_turns_are_not_tried_where_nothing_can_fit() -> None:
    tried = list[Candidates]()

    def counted(problem: PlacementProblem[Product], candidates: Candidates, memory: int) -> Costed:
        tried.append(candidates)
        return costed(problem, candidates, memory)

    family = replace(PRODUCTS, costs=counted)
    order = Accumulation(group=16).with_types("float16")
    problem = PlacementProblem(GC200, _product(GC200, 800, 800, 800), order)
    assert search(family, problem, 0) == search(family, problem, 100)
    assert len(tried) == 2 * 2  # in ample memory, cut as often as can be
    assert not any(np.ndim(one.turns.rows) for one in tried)
    search(family, problem, 4_000)
    assert any(np.ndim(one.turns.rows) for one in tried)


@pytest.mark.parametrize("size, order, tiles, memory", [
    ((300, 400, 300, 1), Accumulation(16, 1), 33, 8_000), ((64, 400, 130, 1), Accumulation(16, 3), 4, 12_000),
    ((7, 900, 300, 2), Accumulation(4, 2), 33, 3_000), ((200, 40, 200, 1), Accumulation(16, 1), 4, 6_000),
])  # fmt: skip
def test_no_turns_take_fewer_cycles_than_their_lower_bound(
    size: tuple[int, int, int, int], order: Accumulation, tiles: int, memory: int
) -> None:
    target = Target("gc200", tiles=tiles)
    problem = PlacementProblem(target, _product(target, *size), order.with_types("float16"))
    whole = costed(problem, over_tiles(problem), UNBOUNDED)
    crowded = whole.at(np.flatnonzero(whole.memory > memory))
    bound = lower_bound(problem, crowded, memory)
    turned = costed(problem, every_turn(problem, crowded.candidates), memory)
    cut = turned.candidates.turns.rows * turned.candidates.turns.columns > 1
    cycles = np.where(cut & (turned.memory <= memory), turned.cycles, np.inf).min(axis=1)
    assert np.isfinite(cycles).any()
    assert (bound <= cycles).all()


# A family of sums of our own, whose costs stand in tables: cuts over 200, 199, ..., 1 tiles, and up to 8 turns of each.
CUTS, MOST = 200, 8


class Tables:
    """Cycles and bytes of cuts over tiles by turns, with few different numbers, so that many cost the same."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.cycles = draw.integers(10, 15, (CUTS, 1)) + np.cumsum(draw.integers(1, 6, (CUTS, MOST)), axis=1)
        self.memory = -np.sort(-draw.integers(1, 60, (CUTS, MOST)), axis=1)
        self.family: Family[Any, tuple[int, int]] = Family(
            over_tiles=lambda _: self._candidates(np.arange(CUTS)[::-1], 1),
            costs=self._costs,
            least_memory=lambda _, some: self._costs(None, some, 0).memory,
            parts_in_time=lambda _, some: self._candidates(some.over.columns - 1, 2),
            lower_bound=lambda _, uncut, memory: self.cycles[uncut.candidates.over.columns - 1, 1],
            in_time=lambda _, some: self._candidates(
                np.repeat(some.over.columns - 1, MOST), np.tile(np.arange(1, MOST + 1), some.over.columns.size)
            ),
            smallest=lambda _, some: self._candidates(some.over.columns - 1, MOST),
            place=lambda one: (int(one.over.columns), int(one.turns.columns)),
        )

    @staticmethod
    def _candidates(which: Any, turns: Any) -> Candidates:
        one = np.ones_like(which)
        return Candidates(Cuts(one, one, 1 + which, one), Cuts(1, 1, turns * one, 1))

    def _costs(self, _: Any, some: Candidates, memory: int) -> Costed:
        at = some.over.columns - 1, some.turns.columns - 1
        return Costed(some, self.cycles[at], self.memory[at])


@pytest.mark.parametrize("seed", range(40))
def test_the_search_finds_what_every_candidate_tried_would_give(seed: int) -> None:
    tables = Tables(seed)
    problem = PlacementProblem(GC200, None, Accumulation())
    for memory in range(0, 61, 3):
        found, (cycles, needed) = search(tables.family, problem, memory), (tables.cycles, tables.memory)
        tiles, turns = found.placement
        assert found.cycles == cycles[tiles - 1, turns - 1]
        if (needed <= memory).any():
            assert needed[tiles - 1, turns - 1] <= memory
            assert found.cycles == cycles[needed <= memory].min()
        else:
            assert needed[tiles - 1, turns - 1] == needed[:, -1].min()
            assert found.cycles == cycles[:, -1][needed[:, -1] == needed[:, -1].min()].min()


@pytest.mark.parametrize("seed", range(10))
def test_of_equal_cuts_over_tiles_the_one_of_the_fewest_tiles_wins(seed: int) -> None:
    tables = Tables(seed)
    everything = search(tables.family, PlacementProblem(GC200, None, Accumulation()), 60)
    cheapest = np.flatnonzero(tables.cycles[:, 0] == tables.cycles[:, 0].min())
    assert cheapest.size > 1
    assert everything.placement == (cheapest[0] + 1, 1)
