"""Plans of convolutions: parts, cuts, cycles, memory, words, refusals."""

import dataclasses
import math

import numpy as np
import pytest

from ipu_core.chip import cost
from ipu_core.chip.target import Target
from ipu_core.errors import UnsupportedByTarget
from ipu_core.placement.convolution import Convolution, ConvPlacement, plan_convolution
from ipu_core.placement.convolution.conv_costs import compute_cycles, costs, sum_block, sum_blocks, summed_in_turn
from ipu_core.placement.convolution.conv_cuts import CONVOLUTIONS, every_turn, over_tiles
from ipu_core.placement.convolution.sizes import (
    along,
    chain_cycles,
    combined,
    even_splits,
    most_pieces,
    part_spans,
    piece_length,
)
from ipu_core.placement.cuts import PlacementProblem
from ipu_core.placement.orders import OrderRule, convolution_order
from ipu_core.placement.search import search
from lowprec import Accumulation

GC200 = Target("gc200")
IMAGES = Convolution("image", (8, 56, 56, 1, 64), (3, 3, 64), (1, 1), (1, 1), "float16")
WEIGHT = Convolution("weight", (3, 3, 64, 1, 64), (8, 56, 56), (1, 1), (1, 1), "float16")
WIDE = Convolution("image", (8, 14, 14, 1, 512), (3, 3, 512), (1, 1), (1, 1), "float16")
THIN = Convolution("image", (2, 5, 6, 4, 3), (3, 2, 7), (2, 1), (1, 2), "float16")
HALF = ("float16", "float16")


def test_terms_are_groups_of_channels_of_one_position() -> None:
    assert IMAGES.terms(Accumulation()) == 9 * 4
    assert THIN.terms(Accumulation()) == 6
    assert THIN.terms(Accumulation(group=3)) == 6 * 3
    assert WEIGHT.terms(Accumulation()) == 8 * 56 * 56 / 16


@pytest.mark.parametrize("splits, spans", [(1, [(0, 18)]), (4, [(0, 5), (5, 10), (10, 15), (15, 18)]), (99, 18)])
def test_parts_are_runs_of_whole_groups(splits: int, spans: list[tuple[int, int]] | int) -> None:
    found = part_spans(THIN, Accumulation(group=3, splits=splits))
    assert found == tuple(spans) if isinstance(spans, list) else len(found) == spans


def test_parts_of_a_weight_gradient_count_positions() -> None:
    assert part_spans(WEIGHT, Accumulation(splits=2)) == ((0, 12544), (12544, 25088))
    empty = dataclasses.replace(WEIGHT, inner=(0, 56, 56))
    assert part_spans(empty, Accumulation(splits=2)) == ((0, 0),)


def test_the_footprint_counts_the_halo() -> None:
    images, weight = THIN.footprint(along((1, 2, 3, 4, 3)))
    assert images == ((2 - 1) * 2 + 3) * ((3 - 1) + (2 - 1) * 2 + 1) * 4 * 7
    assert weight == 3 * 2 * 4 * 7 * 3
    images, gradient = WEIGHT.footprint(along((1, 1, 16, 1, 16)))
    assert (images, gradient) == (8 * 56 * 56 * 16, 8 * 56 * 56 * 16)


def test_the_footprint_leaves_out_what_strides_do() -> None:
    """Windows of a stride of 2: of one row every second row, of two rows all of them, and of three all but the last."""
    for high, rows in ((1, 5), (2, 10), (3, 11)):
        strided = Convolution("image", (1, 5, 4, 1, 16), (high, 1, 8), (2, 3), (1, 1), "float16")
        seen = {2 * window + kernel for window in range(5) for kernel in range(high)}
        assert len(seen) == rows
        assert strided.footprint(along((1, 5, 4, 1, 16)))[0] == rows * 4 * 8
        gradient = Convolution("weight", (high, 1, 8, 1, 16), (1, 5, 4), (2, 3), (1, 1), "float16")
        assert gradient.footprint(along((high, 1, 8, 1, 16)))[0] == rows * 4 * 8


def test_pieces_of_a_chain_are_whole_images_or_rows_where_they_can_be() -> None:
    order = Accumulation(16)
    images = Convolution("weight", (1, 1, 64, 1, 64), (22, 14, 14), (1, 1), (1, 1), "float16")
    assert [int(piece_length(images, order, n)) for n in (1, 2, 5, 6, 22, 39, 999)] == [
        4312, 3 * 784, 2 * 784, 784, 2 * 112, 112, 16,
    ]  # fmt: skip
    assert most_pieces(images, order) == 270
    assert most_pieces(images, Accumulation(16, splits=11)) == 11


def test_tiles_sum_in_as_few_turns_as_keep_their_partials_small() -> None:
    """Of ResNet-50's first layer at four images: a tile of GC2 sums 56 x 64 results of seven halves, 50 KB."""
    stem, gc2 = (4, 112, 112, 1, 64), Target("gc2")
    assert sum_block(gc2, stem) == (1, 1, 56, 64)
    assert [axis.turns for axis in sum_blocks(gc2, stem, 14)] == [1, 1, 4, 1]
    assert [axis.turns for axis in sum_blocks(gc2, stem, 14 * 100)] == [1, 1, 56, 6]
    assert [axis.turns for axis in sum_blocks(gc2, stem, 4)] == [1, 1, 1, 1]
    sizes = Convolution("image", stem, (7, 7, 3), (2, 2), (1, 1), "float16")
    problem = PlacementProblem(gc2, sizes, Accumulation(16, 7).with_types(*HALF))
    assert summed_in_turn(problem, 7).tolist() == [14 * 64] * 4
    plan = plan_convolution(*problem, memory=62_000)
    assert plan.memory <= 62_000
    assert plan.cycles < 110_000


def test_long_sums_are_split_until_a_part_fits() -> None:
    long = Convolution("weight", (3, 3, 64, 1, 64), (256, 112, 112), (1, 1), (1, 1), "float16")
    order = convolution_order(OrderRule.of(GC200), long)
    plan = plan_convolution(GC200, long, order.with_types(*HALF))
    assert order.splits > 64
    assert plan.memory <= GC200.tile_memory // 2
    assert convolution_order(OrderRule.of(GC200), WEIGHT).splits <= 128


def test_even_splits_cut_whole_rows_positions_or_channels() -> None:
    assert even_splits(IMAGES, Accumulation()) == [1, 3, 9, 18, 36]
    assert all(8 * 56 * 56 % n == 0 for n in even_splits(WEIGHT, Accumulation()))


@pytest.mark.parametrize("convolution", [IMAGES, WEIGHT, THIN])
def test_the_planners_choice_fits_the_chip_and_its_memory(convolution: Convolution) -> None:
    order = convolution_order(OrderRule.of(GC200), convolution)
    plan = plan_convolution(GC200, convolution, order.with_types(*HALF), memory=60_000)
    assert plan.placement.tiles <= GC200.tiles
    assert plan.memory <= 60_000
    single = plan_convolution(GC200, convolution, order.with_types(*HALF), ConvPlacement())
    assert plan.cycles < single.cycles / (20 if math.prod(convolution.result) > 1000 else 5)


def test_more_parts_need_less_memory_and_fewer_cycles() -> None:
    sizes = Convolution("weight", (3, 3, 16, 1, 32), (64, 16, 16), (1, 1), (1, 1), "float16")
    plans = [plan_convolution(GC200, sizes, Accumulation(splits=n, accumulate="float16")) for n in (1, 16, 64)]
    assert plans[0].memory > plans[1].memory > plans[2].memory
    assert plans[0].cycles > plans[1].cycles > plans[2].cycles


@pytest.mark.parametrize("convolution", [IMAGES, WEIGHT, WIDE])
@pytest.mark.parametrize("splits", [1, 8])
def test_more_memory_never_makes_a_plan_slower(convolution: Convolution, splits: int) -> None:
    order = Accumulation(splits=splits, accumulate="float16")
    rooms = [int(600_000 * 0.7**i) for i in range(14)]
    plans = [plan_convolution(GC200, convolution, order, memory=room) for room in rooms]
    least = plan_convolution(GC200, convolution, order, memory=0).memory
    found = [plan for plan, room in zip(plans, rooms, strict=True) if plan.memory <= room]
    assert len(found) == sum(room >= least for room in rooms)  # whatever can fit is found
    assert [plan.cycles for plan in found] == sorted(plan.cycles for plan in found)
    assert all(plan.placement.tiles <= GC200.tiles for plan in plans)


def test_channels_and_positions_take_turns_where_memory_is_short() -> None:
    order = Accumulation(splits=18, accumulate="float16")
    place = ConvPlacement((8, 2, 2, 1, 8), 3)
    plans = [
        plan_convolution(GC200, WIDE, order, dataclasses.replace(place, serial_parts=turns)) for turns in (1, 2, 6, 99)
    ]
    assert plans[0].memory > plans[1].memory > plans[2].memory == plans[3].memory
    assert plans[0].cycles < plans[1].cycles < plans[2].cycles == plans[3].cycles
    assert plans[0].compute_cycles == plans[2].compute_cycles
    assert "over 768 tiles; one after the other parts 6" in plans[2].words()


def test_groups_of_few_channels_share_passes() -> None:
    depthwise = Convolution("image", (8, 56, 56, 64, 1), (3, 3, 1), (1, 1), (1, 1), "float16")
    dense = dataclasses.replace(depthwise, result=(8, 56, 56, 1, 16), inner=(3, 3, 16))
    order = Accumulation(accumulate="float16")
    thin, full = (
        chain_cycles(PlacementProblem(GC200, sizes, order), along((1, 4, 6, *ends)), 9)
        for sizes, ends in ((depthwise, (16, 1)), (dense, (1, 16)))
    )
    assert thin == full
    block = np.array([[1], [4], [6], [64], [1]])
    for channels, outputs, operands, together in (
        (1, 1, "float16", 16), (1, 1, "float32", 8), (3, 1, "float16", 5), (4, 2, "float16", 4), (1, 6, "float16", 2),
        (9, 1, "float16", 1), (1, 9, "float16", 1), (16, 16, "float16", 1),
    ):  # fmt: skip
        sizes = dataclasses.replace(depthwise, inner=(3, 3, channels), operands=operands)
        block[4] = outputs
        wide = Accumulation(accumulate="float32")
        assert combined(PlacementProblem(GC200, sizes, wide), along(block)) == together
    assert combined(PlacementProblem(GC200, dataclasses.replace(depthwise, kind="weight"), order), along(block)) == 1
    assert combined(PlacementProblem(GC200, depthwise, order), along((1, 4, 6, 3, 1))) == 3
    plan = plan_convolution(GC200, depthwise, order)
    assert plan.cycles < 8000  # a pass per group takes 48 thousand


def test_a_block_of_the_result_in_pieces_needs_less_memory() -> None:
    order = Accumulation(accumulate="float16")
    whole = plan_convolution(GC200, IMAGES, order, ConvPlacement((4, 8, 8, 1, 2)))
    pieces = plan_convolution(GC200, IMAGES, order, ConvPlacement((4, 8, 8, 1, 2), serial=(2, 1, 1, 1, 2)))
    assert pieces.memory < whole.memory / 1.5
    assert whole.cycles < pieces.cycles
    assert "one after the other images 2 x outputs 2" in pieces.words()


@pytest.mark.parametrize(
    "terms, box",
    [(36, (3, 3, 64)), (12, (1, 3, 64)), (24, (2, 3, 64)), (4, (1, 1, 64)), (2, (1, 1, 32)), (8, (2, 3, 64)),
     (6, (1, 3, 64)), (3, (1, 2, 64)), (5, (2, 3, 64))],
)  # fmt: skip
def test_the_box_of_a_part(terms: int, box: tuple[int, int, int]) -> None:
    found = tuple(int(n) for n in IMAGES.box(Accumulation(), terms))
    assert found == box
    positions = [np.unravel_index(np.arange(start, min(36, start + terms)), (3, 3, 4)) for start in range(0, 36, terms)]
    for rows, columns, groups in positions:
        assert (len(set(rows)), len(set(columns)), 16 * len(set(groups))) <= found


def test_fp16_32_takes_more_cycles_than_fp16_16() -> None:
    place = ConvPlacement((8, 14, 7, 1, 1))
    half = plan_convolution(GC200, IMAGES, Accumulation(accumulate="float16"), place)
    wide = plan_convolution(GC200, IMAGES, Accumulation(accumulate="float32", out="float16"), place)
    assert half.direct
    assert not wide.direct
    assert half.compute_cycles < wide.compute_cycles


def test_the_default_order_has_the_targets_adder() -> None:
    target = Target("gc200", adder="pairwise")
    assert convolution_order(OrderRule.of(target), THIN).adder == "pairwise"


def test_a_plan_in_words_names_its_axes() -> None:
    words = plan_convolution(
        GC200, WEIGHT, Accumulation(accumulate="float16"), ConvPlacement((3, 3, 4, 1, 4), 8)
    ).words()
    assert "kernel rows 3 x kernel columns 3 x channels 4 x groups 1 x outputs 4 x parts 8 over 1152 tiles" in words
    assert "summed over 8 x 56 x 56 images x rows x columns" in words


def test_convolutions_of_8_bits_add_32_products_in_a_group() -> None:
    c600, byte = Target("c600"), dataclasses.replace(THIN, operands="float8_e4m3fnuz")
    order = convolution_order(OrderRule.of(c600), THIN)
    assert order.group == 16
    assert convolution_order(OrderRule.of(c600), byte) == dataclasses.replace(order, group=32)


def test_bad_placements_and_formats_are_refused() -> None:
    with pytest.raises(ValueError, match="1472 tiles"):
        plan_convolution(GC200, IMAGES, Accumulation(accumulate="float16"), ConvPlacement((8, 56, 56, 1, 4)))
    with pytest.raises(ValueError, match="at least 1"):
        ConvPlacement((1, 0, 1, 1, 1))
    with pytest.raises(ValueError, match="at least 1"):
        ConvPlacement(serial_parts=0)
    with pytest.raises(UnsupportedByTarget):
        plan_convolution(Target("c600"), dataclasses.replace(IMAGES, operands="float32"), Accumulation())


def test_one_position_costs_what_a_product_does_but_for_the_vertexs_start() -> None:
    unit = cost.amp_shape(GC200, "float16", "float16")
    product = int(cost.matmul(GC200, 100, 64, 48, shape=unit, group=16))
    assert int(cost.convolution(GC200, 100, 4, 48, 1, shape=unit)) == product + 109 - 50


def test_a_tile_works_off_its_parts_one_after_the_other_the_last_one_may_be_shorter() -> None:
    """9 x 4 groups of products in 5 parts of 8, 8, 8, 8 and 4, on 2 tiles: three parts, or a whole one and a short."""
    order = Accumulation(splits=5, accumulate="float16")
    place = ConvPlacement((8, 8, 8, 1, 1), 2)
    problem, block = PlacementProblem(GC200, IMAGES, order), along((1, 7, 7, 1, 64))
    full, short = (int(chain_cycles(problem, block, terms)) for terms in (8, 4))
    plan = plan_convolution(GC200, IMAGES, order, dataclasses.replace(place, cuts=(4, 8, 8, 1, 1)))
    two = int(chain_cycles(problem, along((2, 7, 7, 1, 64)), 8))
    assert compute_cycles(problem, plan.placement) == plan.compute_cycles == 3 * two + stages(problem, 5)
    assert compute_cycles(problem, dataclasses.replace(place, parts=1)) == 4 * full + short + stages(problem, 5)


def stages(problem: PlacementProblem[Convolution], parts: int) -> int:
    """Cycles of summing so many parts on the fullest tile."""
    target, sizes, order = problem
    results = math.prod(sum_block(target, sizes.result)) * sizes.result[3]
    return sum(int(cost.reduce(target, b - a, results, 2)) for runs in order.stage_runs(parts) for a, b in runs)


def test_tiles_share_the_outputs_where_positions_are_few() -> None:
    """49 positions on 1,472 tiles: thirty share the 512 outputs of each, in vectors of four."""
    assert sum_block(GC200, (1, 7, 7, 1, 512)) == (1, 1, 1, 20)
    assert sum_block(GC200, (20, 7, 7, 1, 512)) == (1, 1, 1, 512)
    assert sum_block(GC200, (1, 2, 2, 1, 3)) == (1, 1, 1, 3)
    assert sum_block(GC200, (0, 0, 0, 1, 0)) == (1, 1, 1, 1)


def test_the_search_models_the_compute_cycles_of_even_blocks_exactly() -> None:
    order = Accumulation(splits=6, accumulate="float16")
    problem = PlacementProblem(GC200, IMAGES, order)
    for cuts, parts, serial, turns in (
        ((8, 8, 8, 1, 1), 2, (1, 1, 1, 1, 4), 3),
        ((2, 2, 4, 1, 4), 3, (4, 7, 1, 1, 1), 1),
        ((4, 4, 8, 1, 2), 1, (2, 1, 7, 1, 1), 6),
    ):
        given = ((cuts, parts), (serial, turns))
        over, pieces = (along(np.array(numbers)[:, None], np.array([number])) for numbers, number in given)
        modelled = costs(problem, over, pieces)
        assert int(modelled.compute[0]) == compute_cycles(problem, ConvPlacement(cuts, parts, serial, turns))


@pytest.mark.parametrize("convolution, splits, tiles, memory", [
    (Convolution("weight", (3, 3, 8, 1, 16), (8, 8, 14), (1, 1), (1, 1), "float16"), 4, 4, 14_088),
    (Convolution("weight", (3, 3, 64, 2, 16), (8, 8, 14), (1, 1), (1, 1), "float16"), 4, 6, 91_638),
    (Convolution("weight", (3, 3, 8, 2, 128), (8, 14, 8), (1, 1), (1, 1), "float16"), 4, 6, 85_562),
])  # fmt: skip
def test_no_candidate_that_fits_is_cheaper_than_what_the_search_finds(
    convolution: Convolution, splits: int, tiles: int, memory: int
) -> None:
    target = Target("gc200", tiles=tiles)
    problem = PlacementProblem(target, convolution, Accumulation(group=16, splits=splits).with_types("float16"))
    found = search(CONVOLUTIONS, problem, memory)
    over, turns, *_ = every_turn(problem, over_tiles(problem))
    all_of_them = costs(problem, over, turns)
    fits = all_of_them.memory <= memory
    at = found.placement
    over, turns = (
        along(np.array([cuts]).T, np.array([parts]))
        for cuts, parts in ((at.cuts, at.parts), (at.serial, at.serial_parts))
    )
    one = costs(problem, over, turns)
    assert 0 < fits.sum() < fits.size
    assert one.memory[0] <= memory
    assert found.cycles == one.cycles[0] == all_of_them.cycles[fits].min()


def test_a_convolution_of_no_images_is_planned_in_any_memory() -> None:
    empty = dataclasses.replace(IMAGES, result=(0, 56, 56, 1, 64))
    plan = plan_convolution(GC200, empty, Accumulation(accumulate="float16"), memory=0)
    assert plan.compute_cycles == 0
