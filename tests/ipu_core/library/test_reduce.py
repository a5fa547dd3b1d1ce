"""Sums and maxima on tiles: lowprec's bits for any placement, and the plan's account."""

import random
from dataclasses import replace

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.engine.engine import Engine
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Sequence
from ipu_core.library.elementwise import add_array
from ipu_core.library.matmul import reduce
from ipu_core.placement.cuts import PlacementProblem
from ipu_core.placement.layout import Stored
from ipu_core.placement.matmul import Placement, SumPlan
from ipu_core.placement.matmul.sum_plan import accounted
from ipu_core.placement.orders import OrderRule, reduction_order
from lowprec import Accumulation, Key
from lowprec.sums.reduce import reduce_sum
from tests.ipu_core.plans import plan_reduction


@pytest.mark.parametrize("seed", range(30))
def test_any_placement_gives_the_contracts_bits_and_the_plans_account(seed: int) -> None:
    rng = random.Random(seed)
    target = Target("gc200", tiles=rng.choice([27, 33, 200]))
    outer, terms, inner = rng.randint(1, 20), rng.randint(1, 300), rng.randint(1, 20)
    types = rng.choice([("float16", "float16"), ("float32", "float16"), ("float32", "float32")])
    order = Accumulation(rng.choice([4, 16]), rng.choice([1, 2, 5, 17]), rng.choice([None, 1, 2, 3]), *types)
    cuts = [rng.choice([1, 2, 3]) for _ in range(4)]
    placement = Placement(
        cuts[0],
        cuts[1],
        cuts[2],
        serial_rows=cuts[3],
        hold=rng.choice(["none", "a"]),
        order=rng.choice(["rows", "columns"]),
    )
    together = -(-len(order.parts(terms)) // cuts[2])  # parts on a tile: in time they are taken one after another
    placement = replace(placement, serial_depth=rng.randint(1, together))
    check(
        (outer, terms, inner),
        order,
        plan_reduction(target, outer, terms, inner, accumulation=order, placement=placement),
        rng,
    )


@pytest.mark.parametrize("seed", range(40))
def test_tiles_share_the_runs_of_parts_and_the_columns_of_a_single_row(seed: int) -> None:
    """As many parts as tiles or a few on each, in one to three stages; whole and short last runs, shares and blocks."""
    rng = random.Random(seed)
    target = Target("gc200", tiles=rng.choice([33, 64, 200]))
    terms, inner = rng.randint(30, 700), rng.choice([1, 3, 4, 9, 21, 40])
    types = rng.choice([("float16", "float16"), ("float32", "float16"), ("float32", "float32")])
    order = Accumulation(rng.choice([1, 3, 4]), rng.randint(2, 180), rng.choice([None, None, None, 2, 3]), *types)
    parts, columns = len(order.parts(terms)), rng.choice([1, 1, 2, 3])
    tiles = rng.choice([parts, parts, -(-parts // 3), -(-parts // 13)])
    placement = Placement(1, columns, max(1, min(tiles, target.tiles // columns)), serial_columns=rng.choice([1, 1, 2]))
    plan = plan_reduction(target, 1, terms, inner, accumulation=order, placement=placement)
    check((1, terms, inner), order, plan, rng)


def test_a_tile_that_adds_up_what_it_has_moves_no_term() -> None:
    """And its partial sums go to many tiles, not to one."""
    target = Target("gc200")
    order = reduction_order(OrderRule.of(target), 1, 62720, 64).with_types("float32", "float32")
    plan = plan_reduction(target, 1, 62720, 64, accumulation=order)
    assert (plan.placement.parts, plan.placement.columns) == (order.splits, 1)
    first, *stages = accounted(PlacementProblem(target, plan.product, plan.accumulation), plan.placement).sets
    assert first.gather.received.max() == 0
    assert [(stage.compute > 0).sum() for stage in stages] == [122 * 8, 11 * 16, 16]  # runs x shares of 64 columns
    assert plan.received < 2 * order.splits * 64 * 4


def check(size: tuple[int, int, int], order: Accumulation, plan: SumPlan, rng: random.Random) -> None:
    """Bits of the contract, the plan's account and its memory are the engine's."""
    (outer, _, inner), target = size, plan.target
    graph, types = Graph(target), (order.accumulate.name, order.out.name)
    x = add_array(graph, "float16", size, temporary=False)
    out = add_array(graph, types[1], (outer, inner), temporary=False)
    stochastic = rng.random() < 0.5
    programs = reduce(graph, x, out, plan, stochastic=stochastic, operation=4)
    engine = Engine(graph, Sequence(*programs), key=2, allow_out_of_memory=True)
    values = np.random.default_rng(rng.randint(0, 99)).normal(size=size).astype(np.float16)
    engine.write(x, values)
    engine.run()
    wanted = reduce_sum(
        values, 1, accumulate=types[0], group=order.group, splits=order.splits, stages=order.stages,
        out_format=types[1],
        rounding="stochastic" if stochastic else "nearest_even", key=Key(2).fold_in(0).fold_in(4),
    )  # fmt: skip
    np.testing.assert_array_equal(engine.read(out), wanted, err_msg=plan.words())
    profile = engine.profile()
    told = (plan.compute_cycles, plan.exchange_cycles, plan.sync_cycles, plan.received, plan.sent)
    moved = int(profile.bytes_in.sum()), int(profile.bytes_out.sum())
    assert told == (profile.compute_cycles, profile.exchange_cycles, profile.sync_cycles, *moved), plan.words()
    there = engine.memory.categories
    passing = sum(there.get(name, 0) for name in ("temporaries", "gathered operands", "exchange buffers"))
    assert passing <= plan.memory + 64, plan.words()  # each array on a tile is padded to a whole word


@pytest.mark.parametrize("rows, splits", [(1, 7), (1, 40), (3, 5), (1, 1)])
def test_a_maximum_of_parts_is_that_of_all_and_nan_wins(rows: int, splits: int) -> None:
    target = Target("gc200", tiles=48)
    graph, size = Graph(target), (rows, 400, 3)
    x = add_array(graph, "float16", size, temporary=False)
    out = add_array(graph, "float16", (rows, 3), temporary=False)
    order = Accumulation(group=1, splits=splits, accumulate="float16", out="float16")
    plan = plan_reduction(target, *size, accumulation=order, placement=Placement(parts=min(splits, 16)))
    engine = Engine(graph, Sequence(*reduce(graph, x, out, plan, maximum=True, stochastic=True, operation=4)))
    values = np.random.default_rng(0).normal(size=size).astype(np.float16)
    values[0, 399, 1] = np.nan
    engine.write(x, values)
    engine.run()
    np.testing.assert_array_equal(engine.read(out), values.max(1))
    assert engine.profile().compute_cycles == plan.compute_cycles


@pytest.mark.parametrize("stochastic", [False, True])
def test_maximum_is_exact_and_nan_wins(stochastic: bool) -> None:
    """And asks for no key, however a step rounds."""
    target, graph = Target("gc200", tiles=6), Graph(Target("gc200", tiles=6))
    x = add_array(graph, "float16", (3, 50), temporary=False)
    out = add_array(graph, "float16", (3,), temporary=False)
    plan = plan_reduction(
        target, 3, 50, 1, accumulation=Accumulation(accumulate="float16", out="float16"), x=Stored("mkn", 24)
    )
    engine = Engine(
        graph, Sequence(*reduce(graph, x.reshape(3, 50, 1), out, plan, maximum=True, stochastic=stochastic))
    )
    values = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float16)
    values[2, 7] = np.nan
    engine.write(x, values)
    engine.run()
    np.testing.assert_array_equal(engine.read(out), values.max(1))


def test_sizes_must_be_the_plans() -> None:
    target, graph = Target("gc200", tiles=6), Graph(Target("gc200", tiles=6))
    x = add_array(graph, "float16", (3, 5, 1), temporary=False)
    with pytest.raises(ValueError, match="is not the plan's sum"):
        reduce(graph, x, x, plan_reduction(target, 3, 6, 1))
