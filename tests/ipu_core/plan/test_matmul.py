"""Plans of products and sums: the machine's published rates, the memory bound, determinism, refusals."""

import time

import pytest

from ipu_core.errors import UnsupportedByTarget
from ipu_core.plan.accumulation import Accumulation
from ipu_core.plan.matmul import choose_accumulation, plan_matmul
from ipu_core.plan.placement import Placement
from ipu_core.plan.reduction import plan_reduction
from ipu_core.plan.sums import RESERVED
from ipu_core.target import Target

GC200 = Target("gc200")


def test_a_large_fp16_16_product_reaches_the_machines_rate() -> None:
    plan = plan_matmul(GC200, 6144, 6144, 6144, types=("float16", "float16"))
    compute, total = plan.efficiency(compute_only=True), plan.efficiency()
    print(f"\nFP16.16, n = 6144: {compute:.1%} of 250 TF in compute alone, {total:.1%} end to end\n{plan.words()}")
    assert compute >= 0.80
    assert total >= 0.70


def test_a_large_fp16_32_product_reaches_half_of_it() -> None:
    plan = plan_matmul(GC200, 6144, 6144, 6144, types=("float32", "float16"))
    compute, total = plan.efficiency(compute_only=True), plan.efficiency()
    print(f"\nFP16.32, n = 6144: {compute:.1%} of 250 TF in compute alone, {total:.1%} end to end\n{plan.words()}")
    assert compute >= 0.40
    assert total >= 0.35


@pytest.mark.parametrize("size", [64, 1000, 3000, 6144])
def test_what_is_under_way_fits_beside_the_operands(size: int) -> None:
    plan = plan_matmul(GC200, size, size, size, types=("float16", "float16"))
    resident = 2 * (plan.product.a.chunk + plan.product.b.chunk + plan.product.out.chunk)  # type: ignore[union-attr]
    assert plan.memory + resident + RESERVED <= GC200.tile_memory


def test_less_memory_means_serial_steps_and_more_cycles_but_the_same_order() -> None:
    order = choose_accumulation(GC200, 1024, 1024, 1024).with_types("float16", "float16")
    plans = [
        plan_matmul(GC200, 1024, 1024, 1024, accumulation=order, memory=room) for room in (200_000, 30_000, 12_000)
    ]
    assert all(plan.memory <= room for plan, room in zip(plans, (200_000, 30_000, 12_000), strict=True))
    assert plans[0].placement.serial_rows * plans[0].placement.serial_columns == 1
    assert plans[2].placement.serial_rows * plans[2].placement.serial_columns > 1
    assert plans[0].cycles < plans[1].cycles < plans[2].cycles
    assert {plan.accumulation for plan in plans} == {order}


def test_planning_is_deterministic_and_fast() -> None:
    sizes = [(64, 256, 256), (511, 1023, 257), (2048, 1000, 3000)]
    first = [plan_matmul(GC200, *size).placement for size in sizes]
    taken = []
    for m, k, n in sizes:
        start = time.perf_counter()
        plan_matmul(GC200, m, k + 16, n)
        taken.append(time.perf_counter() - start)
    assert [plan_matmul(Target("gc200"), *size).placement for size in sizes] == first
    assert min(taken) < 0.05


def test_the_search_beats_obvious_placements() -> None:
    order = Accumulation(splits=4, types=("float16", "float16"))
    best = plan_matmul(GC200, 512, 512, 512, accumulation=order)
    for placement in (Placement(), Placement(32, 32), Placement(16, 16, 4), Placement(8, 32, 4), Placement(64, 4, 4)):
        assert best.cycles <= plan_matmul(GC200, 512, 512, 512, accumulation=order, placement=placement).cycles


def test_any_placement_is_valid_or_refused_in_words() -> None:
    order = Accumulation(splits=2, types=("float16", "float16"))
    plan = plan_matmul(GC200, 5, 7, 3, accumulation=order, placement=Placement(9, 9, 9, 2, 4, 4, "a", "rows"))
    assert plan.geometry.tiles == 5  # cuts that would be empty vanish
    with pytest.raises(ValueError, match="needs 2048 tiles; gc200 has 1472"):
        plan_matmul(GC200, 512, 512, 512, accumulation=order, placement=Placement(64, 32))
    for fields in ({"rows": 0}, {"parts": 1.5}, {"hold": "c"}, {"order": "parts"}):
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
