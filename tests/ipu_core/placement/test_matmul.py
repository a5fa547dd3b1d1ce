"""Plans of products and sums: the machine's published rates, the memory bound, determinism, refusals."""

from dataclasses import replace

import pytest

from ipu_core.chip.target import Target
from ipu_core.errors import UnsupportedByTarget
from ipu_core.placement.matmul import RESERVED, Placement, plan_sum, product_of
from ipu_core.placement.orders import OrderRule, product_order
from lowprec import Accumulation, float16
from tests.ipu_core.plans import plan_matmul, plan_reduction

GC200 = Target("gc200")


def test_a_large_fp16_16_product_reaches_the_machines_rate() -> None:
    plan = plan_matmul(GC200, 6144, 6144, 6144, types=("float16", "float16"))
    compute, total = plan.efficiency(compute_only=True), plan.efficiency()
    print(f"\nFP16.16, n = 6144: {compute:.1%} of 250 TF in compute alone, {total:.1%} end to end\n{plan.words()}")
    assert compute >= 0.80
    assert total >= 0.70


@pytest.mark.parametrize(
    ("size", "least"), [(4096, 0.69), (5120, 0.75), (6144, 0.74), (7168, 0.75), (8192, 0.72), (10240, 0.70)]
)
def test_the_rate_end_to_end_of_products_worked_off_in_serial_steps(size: int, least: float) -> None:
    plan = plan_matmul(GC200, size, size, size, types=("float16", "float16"))
    compute, total = plan.efficiency(compute_only=True), plan.efficiency()
    print(f"\nFP16.16, n = {size}: {compute:.1%} in compute alone, {total:.1%} end to end; {plan.placement.words()}")
    assert total >= least
    assert plan.placement.serial_depth > 1  # without it 68, 70, 71, 71, 65 and 40 %


def test_a_large_fp16_32_product_reaches_half_of_it() -> None:
    plan = plan_matmul(GC200, 6144, 6144, 6144, types=("float32", "float16"))
    compute, total = plan.efficiency(compute_only=True), plan.efficiency()
    print(f"\nFP16.32, n = 6144: {compute:.1%} of 250 TF in compute alone, {total:.1%} end to end\n{plan.words()}")
    assert compute >= 0.40
    assert total >= 0.35


@pytest.mark.parametrize("size", [64, 1000, 3000, 6144])
def test_the_working_set_fits_beside_the_operands(size: int) -> None:
    plan = plan_matmul(GC200, size, size, size, types=("float16", "float16"))
    resident = 2 * (plan.product.a.chunk + plan.product.b.chunk + plan.product.out.chunk)  # type: ignore[union-attr]
    assert plan.memory + resident + RESERVED <= GC200.tile_memory


def test_a_depth_in_time_bounds_the_memory_and_no_bit() -> None:
    order = Accumulation(splits=2, accumulate="float16")
    plans = [
        plan_matmul(GC200, 256, 2048, 256, accumulation=order, placement=Placement(4, 4, parts, serial_depth=depth))
        for parts, depth in ((2, 1), (2, 2), (2, 8), (1, 1), (1, 2), (1, 8))
    ]
    for one in (plans[:3], plans[3:]):
        assert one[0].memory > one[1].memory > one[2].memory
        assert one[0].cycles < one[1].cycles < one[2].cycles
        assert one[0].received == one[1].received == one[2].received  # every operand still comes once
    depths = [plan.geometry.depth for plan in plans]
    assert depths == [1024, 512, 128, 1024, 1024, 256]  # two parts on a tile are first taken one after the other
    assert {plan.accumulation for plan in plans} == {order}
    assert "in 1 x 1 x 8 serial steps of rows x columns x k" in plans[5].words()
    assert "256 k's of 1 at a time" in plans[5].words()


def test_pieces_of_a_depth_are_whole_groups() -> None:
    for group, k, depth in ((16, 1000, 7), (5, 333, 4), (1, 50, 50), (64, 100, 9)):
        order = Accumulation(group=group, accumulate="float16")
        grid = plan_matmul(GC200, 8, k, 8, accumulation=order, placement=Placement(serial_depth=depth)).geometry
        assert grid.depth % group == 0
        assert grid.depths <= depth
        covered = [parts for turn in grid.turns() for parts, _ in grid.part_segments(turn)]
        assert [segment.start for segment in covered] == list(range(0, k, grid.depth))
        assert sum(segment.length for segment in covered) == k


def test_the_chains_of_a_sum_are_not_cut_in_time() -> None:
    order = Accumulation(splits=4)
    plan_reduction(GC200, 4, 256, 4, accumulation=order, placement=Placement(serial_depth=4))  # part after part
    with pytest.raises(ValueError, match="the chain of a sum's part is not cut in time: serial_depth 5"):
        plan_reduction(GC200, 4, 256, 4, accumulation=order, placement=Placement(serial_depth=5))


def test_less_memory_means_serial_steps_and_more_cycles_but_the_same_order() -> None:
    order = product_order(OrderRule.of(GC200), 1024, 1024, 1024).with_types("float16", "float16")
    plans = [
        plan_matmul(GC200, 1024, 1024, 1024, accumulation=order, memory=room) for room in (200_000, 30_000, 12_000)
    ]
    assert all(plan.memory <= room for plan, room in zip(plans, (200_000, 30_000, 12_000), strict=True))
    assert plans[0].placement.serial_rows * plans[0].placement.serial_columns == 1
    assert plans[2].placement.serial_rows * plans[2].placement.serial_columns > 1
    assert plans[0].cycles < plans[1].cycles < plans[2].cycles
    assert {plan.accumulation for plan in plans} == {order}


@pytest.mark.parametrize("operands", ["float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_products_of_8_bits_are_planned_at_their_own_rate(operands: str) -> None:
    c600 = Target("c600")
    sizes = product_of(c600, 2048, 2048, 2048, operands=operands)
    one, halves = plan_sum(c600, sizes), plan_sum(c600, product_of(c600, 2048, 2048, 2048))
    assert (one.accumulation.group, halves.accumulation.group) == (32, 16)
    assert (one.accumulation.accumulate, one.accumulation.out) == (float16, float16)  # no unit adds up in 8 bits
    assert one == plan_sum(c600, sizes, types=("float16", "float16"))
    assert one.compute_cycles < 0.6 * halves.compute_cycles
    assert plan_sum(c600, sizes, Accumulation(accumulate="float16")).accumulation.group == 16  # what is said stays


def test_the_order_that_is_chosen_depends_on_operands_by_their_bits_alone() -> None:
    usual = product_order(OrderRule.of(GC200), 64, 2048, 64)
    for operands, group in (("float32", 16), ("bfloat16", 16), ("float8_e5m2", 32), ("float4_e2m1fn", 32)):
        assert product_order(OrderRule.of(GC200), 64, 2048, 64, operands=operands) == replace(usual, group=group)
    assert product_order(OrderRule.of(GC200), 64, 2048, 64, group=8, operands="float8_e5m2").group == 16


def test_planning_is_deterministic() -> None:
    sizes = [(64, 256, 256), (511, 1023, 257), (2048, 1000, 3000)]
    first = [plan_matmul(GC200, *size).placement for size in sizes]
    assert [plan_matmul(Target("gc200"), *size).placement for size in sizes] == first


def test_the_search_beats_obvious_placements() -> None:
    order = Accumulation(splits=4, accumulate="float16")
    best = plan_matmul(GC200, 512, 512, 512, accumulation=order)
    for placement in (Placement(), Placement(32, 32), Placement(16, 16, 4), Placement(8, 32, 4), Placement(64, 4, 4)):
        assert best.cycles <= plan_matmul(GC200, 512, 512, 512, accumulation=order, placement=placement).cycles


def test_any_placement_is_valid_or_refused_in_words() -> None:
    order = Accumulation(splits=2, accumulate="float16")
    plan = plan_matmul(GC200, 5, 7, 3, accumulation=order, placement=Placement(9, 9, 9, 2, 4, 4, "a", "rows"))
    assert plan.geometry.tiles == 5  # cuts that would be empty vanish
    with pytest.raises(ValueError, match="needs 2048 tiles; gc200 has 1472"):
        plan_matmul(GC200, 512, 512, 512, accumulation=order, placement=Placement(64, 32))
    for fields in ({"rows": 0}, {"parts": 1.5}, {"serial_depth": 0}, {"hold": "c"}, {"order": "parts"}):
        with pytest.raises(ValueError, match="Placement"):
            Placement(**fields)  # type: ignore[arg-type]


def test_what_the_chip_cannot_do_is_refused() -> None:
    with pytest.raises(UnsupportedByTarget, match="c600"):
        plan_matmul(Target("c600"), 64, 64, 64, operands="float32", types=("float32", "float32"))
    with pytest.raises(UnsupportedByTarget, match="bfloat16"):
        plan_matmul(GC200, 64, 64, 64, operands="bfloat16", types=("float32", "float32"))
    with pytest.raises(ValueError, match="negative"):
        plan_matmul(GC200, -1, 64, 64)


def test_plans_print_and_sums_of_one_result_split() -> None:
    plan = plan_reduction(GC200, 1, 100_000, 1, types=("float32", "float32"))
    assert plan.accumulation.splits > 15
    assert "sum over 100000 of 1 x 1" in plan.words()
    assert "placement: rows 1 x columns 1 x parts" in plan.words()


def test_fp32_takes_up_to_four_times_the_cycles_of_fp16_16() -> None:
    order = Accumulation(splits=4)
    place = Placement(16, 16, 4)
    half = plan_matmul(GC200, 1024, 1024, 1024, accumulation=order, types=("float16", "float16"), placement=place)
    single = plan_matmul(
        GC200, 1024, 1024, 1024, operands="float32", accumulation=order, types=("float32", "float32"), placement=place
    )
    assert 2.5 < single.compute_cycles / half.compute_cycles < 4
