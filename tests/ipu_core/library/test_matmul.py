"""Products on tiles: bits of the contract whatever the place, and an account that equals a count one by one."""

import random
from typing import Any

import numpy as np
import pytest

from ipu_core.chip import cost
from ipu_core.chip.target import Target
from ipu_core.graph.vertices import VertexGroup
from ipu_core.placement.layout import Stored, stored
from ipu_core.placement.matmul import Placement, SumPlan
from library.conftest import Count, build, count
from lowprec import Accumulation, Key
from lowprec.sums.matmul import matmul as reference
from tests.examples import first
from tests.ipu_core.plans import plan_matmul

GC200 = Target("gc200")
HALVES = ("float16", "float16")


def operands(m: int, k: int, n: int, batch: int = 1, seed: int = 0) -> tuple[Any, Any]:
    """Random halves."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, m, k)).astype(np.float16), rng.normal(size=(batch, k, n)).astype(np.float16)


def expected(plan: SumPlan, a: Any, b: Any, key: Key | None = None) -> Any:
    """lowprec's own product in the plan's order."""
    order = plan.accumulation
    return reference(
        a, b, accumulate=order.accumulate, group=order.group, splits=order.splits, stages=order.stages,
        adder=order.adder,
        out_format=order.out, rounding="nearest_even" if key is None else "stochastic", key=key,
        overflow="saturate",
    )  # fmt: skip


def vertex_cycles(plan: SumPlan) -> Any:
    """Cycles of one vertex of a group, from the shapes it is connected to."""

    def cycles(group: VertexGroup) -> int:
        shapes = {name: op.shape[group.tiles.ndim :] for name, op in group.operands.items()}
        order = plan.accumulation
        if "a" in shapes:
            unit = cost.amp_shape(plan.target, plan.product.operands, order.accumulate.name)
            sizes, goes_on = (*shapes["a"], shapes["b"][1]), "partial" in shapes
            return int(cost.matmul(plan.target, *sizes, shape=unit, group=order.group, goes_on=goes_on))
        terms, rows, columns = shapes["parts"]
        size = group.operands["parts"].variable.dtype.itemsize
        if terms == 1:
            return int(cost.cast(plan.target, rows * columns, size))
        return int(cost.reduce(plan.target, terms, rows * columns, size))

    return cycles


def told(plan: SumPlan) -> Count:
    """The plan's own figures."""
    return Count(plan.compute_cycles, plan.exchange_cycles, plan.sync_cycles, plan.received, plan.sent)


def accounted(profile: Any) -> Count:
    """The engine's figures."""
    moved = int(profile.bytes_in.sum()), int(profile.bytes_out.sum())
    return Count(profile.compute_cycles, profile.exchange_cycles, profile.sync_cycles, *moved)


def test_a_product_over_more_than_a_thousand_tiles_costs_what_is_counted_one_by_one() -> None:
    order = Accumulation(splits=8, accumulate="float16")
    plan = plan_matmul(GC200, 64, 256, 256, accumulation=order, placement=Placement(11, 16, 8))
    assert plan.geometry.tiles > 1000
    built = build(plan)
    a, b = operands(64, 256, 256)
    np.testing.assert_array_equal(built.run(a, b), expected(plan, a, b))
    one_by_one = count(built.programs, GC200, vertex_cycles(plan))
    assert told(plan) == accounted(built.engine.profile()) == one_by_one
    print(f"\n{plan.geometry.tiles} tiles: {one_by_one}")


def random_case(rng: random.Random) -> tuple[SumPlan, str, bool]:
    """Any sizes, order and placement that fit on some tiles."""
    while True:
        target = Target("gc200", tiles=rng.choice([8, 16, 33, 64, 200]))
        m, k, n = (rng.randint(1, 70) for _ in range(3))
        batch = rng.choice([1, 1, 1, 2, 5])
        order = Accumulation(
            rng.choice([4, 16]), rng.choice([1, 2, 3, 5, 17]), rng.choice([None, None, 1, 2, 3]),
            *rng.choice([HALVES, ("float32", "float16"), ("float32", "float32")]),
        )  # fmt: skip
        cuts = [
            rng.choice(choices)
            for choices in ((1, 2, 3, 5, 9), (1, 2, 3), (1, 2, 3, 17), (1, 2, 3), (1, 2, 3), (1, 2, 3))
        ]
        hold, runs = rng.choice(["none", "a", "b"]), rng.choice(["rows", "columns"])
        placement = Placement(*cuts, hold, runs, rng.choice([1, 1, 2, 3, 4, 9]))
        transposed = rng.choice(["", "a", "b", "ab"])
        sizes = {"b": batch, "m": m, "k": k, "n": n}
        lies = [stored(target, *given) for given in (("bkm" if "a" in transposed else "bmk", sizes),
                                                      ("bnk" if "b" in transposed else "bkn", sizes))]  # fmt: skip
        try:
            plan = plan_matmul(
                target, m, k, n, batch=batch, accumulation=order, placement=placement, a=lies[0], b=lies[1]
            )
        except ValueError:
            continue
        return plan, transposed, rng.random() < 0.3


@pytest.mark.parametrize("seed", first(14, range(40)))
def test_any_placement_gives_the_contracts_bits_and_the_plans_account(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        plan, transposed, stochastic = random_case(rng)
        p = plan.product
        a, b = operands(p.m, p.k, p.n, p.batch, seed)
        built = build(plan, stochastic=stochastic, key=3, transposed=transposed)
        key = Key(3).fold_in(0).fold_in(7) if stochastic else None
        np.testing.assert_array_equal(built.run(a, b), expected(plan, a, b, key), err_msg=plan.words())
        assert told(plan) == accounted(built.engine.profile()), plan.words()
        at_peak = built.engine.memory.categories
        passing = sum(at_peak.get(name, 0) for name in ("temporaries", "gathered operands", "exchange buffers"))
        assert passing <= plan.memory + 64, plan.words()  # each array on a tile is padded to a whole word
        if rng.random() < 0.1:
            assert count(built.programs, plan.target, vertex_cycles(plan)) == told(plan), plan.words()


@pytest.mark.parametrize("seed", first(5, range(12)))
def test_a_plan_made_for_little_memory_keeps_within_it_and_keeps_the_bits(seed: int) -> None:
    rng = random.Random(seed)
    target = Target("gc200", tiles=rng.choice([4, 8, 33]))
    m, k, n = (rng.randint(20, 200) for _ in range(3))
    order = Accumulation(16, rng.choice([1, 2, 5])).with_types(*rng.choice([HALVES, ("float32", "float16")]))
    room = 3 * min(plan_matmul(target, m, k, n, accumulation=order, memory=0).memory, 4000)
    plan = plan_matmul(target, m, k, n, accumulation=order, memory=room)
    assert plan.memory <= room
    stochastic = seed % 2 == 1
    a, b = operands(m, k, n, 1, seed)
    built = build(plan, stochastic=stochastic, key=3)
    key = Key(3).fold_in(0).fold_in(7) if stochastic else None
    np.testing.assert_array_equal(built.run(a, b), expected(plan, a, b, key), err_msg=plan.words())
    assert told(plan) == accounted(built.engine.profile()), plan.words()
    at_peak = built.engine.memory.categories
    passing = sum(at_peak.get(name, 0) for name in ("temporaries", "gathered operands", "exchange buffers"))
    assert passing <= room + 64, plan.words()


def test_an_accumulation_is_the_bits_and_a_placement_only_the_cost() -> None:
    base = Accumulation(splits=4, accumulate="float16")
    a, b = operands(40, 400, 48)
    changed = [
        Accumulation(group=8, splits=4, accumulate="float16"),
        Accumulation(splits=2, accumulate="float16"),
        Accumulation(splits=4, stages=2, accumulate="float16"),
        Accumulation(splits=4, accumulate="float32", out="float16"),
        Accumulation(splits=4, accumulate="float16", adder="pairwise"),
    ]
    first = plan_matmul(GC200, 40, 400, 48, accumulation=base)
    bits = build(first).run(a, b)
    for order in changed:
        plan = plan_matmul(GC200, 40, 400, 48, accumulation=order)
        other = build(plan).run(a, b)
        np.testing.assert_array_equal(other, expected(plan, a, b))
        assert (other != bits).any(), order.words()
    costs = set()
    for fields in (
        {},
        {"rows": 3},
        {"columns": 2},
        {"parts": 2},
        {"serial_rows": 2},
        {"serial_depth": 3},
        {"rows": 3, "columns": 2, "order": "rows"},
    ):
        plan = plan_matmul(GC200, 40, 400, 48, accumulation=base, placement=Placement(**fields))  # type: ignore[arg-type]
        np.testing.assert_array_equal(build(plan).run(a, b), bits)
        costs.add((plan.cycles, plan.received, plan.memory))
    assert len(costs) == 7


def test_one_and_four_parts_give_different_bits_each_the_contracts() -> None:
    a, b = operands(32, 512, 32)
    results = []
    for splits in (1, 4):
        plan = plan_matmul(GC200, 32, 512, 32, accumulation=Accumulation(splits=splits, accumulate="float16"))
        results.append(build(plan).run(a, b))
        direct = reference(a, b, accumulate="float16", splits=splits, overflow="saturate")
        np.testing.assert_array_equal(results[-1], direct)
    assert (results[0] != results[1]).mean() > 0.1


def test_operands_must_be_the_plans() -> None:
    plan = plan_matmul(GC200, 8, 16, 8, accumulation=Accumulation(accumulate="float16"))
    wrong = plan_matmul(GC200, 8, 16, 9, accumulation=Accumulation(accumulate="float16"))
    built = build(plan)
    from ipu_core.library.matmul import matmul

    with pytest.raises(ValueError, match="is not the plan's product"):
        matmul(built.graph, built.a, built.b, wrong)
    elsewhere = plan_matmul(Target("gc200", tiles=4), 8, 16, 8, accumulation=Accumulation(accumulate="float16"))
    with pytest.raises(ValueError, match="the plan is for"):
        matmul(built.graph, built.a, built.b, elsewhere)


def test_layouts_are_part_of_the_product() -> None:
    plan = plan_matmul(GC200, 64, 64, 64, a=Stored("bkm", 4))
    assert plan.product.a == Stored("bkm", 4)
