"""Convolutions built by hand on a graph: parts that lie anywhere, several groups, refusals."""

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core.chip.target import Target
from ipu_core.engine import Engine
from ipu_core.graph import Graph
from ipu_core.graph.program import Sequence
from ipu_core.library.convolution import ConvolutionTensors, convolve, windows_of
from ipu_core.library.elementwise import add_array
from ipu_core.placement.convolution import Convolution, ConvPlacement, ConvPlan, plan_convolution
from ipu_core.placement.convolution.conv_costs import summed_in_turn
from ipu_core.placement.cuts import PlacementProblem
from ipu_core.placement.orders import OrderRule, convolution_order
from lowprec import Accumulation

GC200 = Target("gc200")
X = np.random.default_rng(0).normal(size=(2, 6, 7, 2 * 19)).astype(np.float16)
W = np.random.default_rng(1).normal(size=(3, 2, 19, 2 * 18)).astype(np.float16)
SIZES = Convolution("image", (2, 4, 6, 2, 18), (3, 2, 19), (1, 1), (1, 1), "float16")


def built(order: Accumulation, place: ConvPlacement, sizes: Convolution = SIZES, *, stochastic: bool = False) -> Any:
    """The result of a convolution on tiles."""
    n, *count, groups, outputs = sizes.result
    kernel, channels = sizes.inner[:2], sizes.inner[2]
    drawn = (n, *np.add(count, kernel) - 1, groups * channels), (*kernel, channels, groups * outputs)
    arrays = (X, W) if sizes == SIZES else [np.random.default_rng(2).normal(size=s).astype(np.float16) for s in drawn]
    graph = Graph(GC200)
    x, w = (
        add_array(graph, "float16", one.shape, name, temporary=False) for one, name in zip(arrays, "xw", strict=True)
    )
    out = add_array(graph, order.out, (n, *count, groups * outputs), "out", temporary=False)
    split = x.reshape(*x.shape[:3], groups, channels)
    windows = windows_of(split, kernel, (1, 1), (1, 1), (count[0], count[1]))
    weight = w.reshape(*kernel, channels, groups, outputs).transpose(0, 1, 3, 2, 4)
    plan = plan_convolution(GC200, sizes, order, place)
    tensors = ConvolutionTensors(windows, weight, out.reshape(sizes.result))
    programs = convolve(graph, tensors, plan, stochastic=stochastic, operation=3)
    engine = Engine(graph, Sequence(*programs))
    engine.set_key(5)
    engine.write(x, arrays[0])
    engine.write(w, arrays[1])
    engine.run()
    return engine.read(out)


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("types", [("float16", "float16"), ("float32", "float16")])
@pytest.mark.parametrize("group, splits, stages", [(16, 1, None), (16, 5, 2), (4, 7, None), (5, 20, 3)])
def test_parts_that_begin_anywhere(
    types: tuple[str, str], group: int, splits: int, stages: int | None, stochastic: bool
) -> None:
    order = Accumulation(group, splits, stages, *types)
    found = built(order, ConvPlacement((2, 3, 2, 2, 2), 3), stochastic=stochastic)
    key = lowprec.Key(5).fold_in(3) if stochastic else None
    expected = lowprec.conv2d(
        X, W, groups=2, accumulate=types[0], out_format=types[1], group=group, splits=splits, stages=stages,
        rounding="stochastic" if stochastic else "nearest_even", key=key,
    )  # fmt: skip
    np.testing.assert_array_equal(found, expected)


def random_case(rng: random.Random) -> tuple[Convolution, ConvPlan]:
    """Any small convolution or weight gradient, planned for ample memory or for some of it."""
    target = Target("gc200", tiles=rng.choice([16, 64, 300]), tile_memory=rng.choice([638_976, 638_976, 6000]))
    n, high, wide, groups = rng.choice([1, 2, 4]), rng.randint(1, 9), rng.randint(1, 9), rng.choice([1, 1, 2, 5])
    channels, outputs = rng.choice([1, 3, 16, 19]), rng.choice([1, 3, 16, 34])
    kernel, options = (rng.randint(1, 3), rng.randint(1, 3)), ((1, 1), (1, 1), (2, 1))
    images = (n, high, wide, groups, outputs), (*kernel, channels)
    weight = (*kernel, channels, groups, outputs), (n, high, wide)
    kind: Any = rng.choice(["image", "weight"])
    sizes = Convolution(
        kind, *(images if kind == "image" else weight), rng.choice([*options, (2, 2)]), rng.choice(options), "float16"
    )
    order = convolution_order(OrderRule.of(target), sizes).with_types(rng.choice(["float16", "float32"]), "float16")
    order = rng.choice([order, replace(order, splits=rng.choice([1, 2, 3, 7]))])
    ample = plan_convolution(target, sizes, order)
    room = int(ample.memory * rng.uniform(0.1, 1)) if rng.random() < 0.6 else None
    return sizes, plan_convolution(target, sizes, order, memory=room)


def run_case(sizes: Convolution, plan: ConvPlan, *, stochastic: bool = False) -> tuple[Any, Any, Engine]:
    """The result on tiles, lowprec's, and the engine."""
    image, order = sizes.kind == "image", plan.accumulation
    kernel, channels = (sizes.inner[:2], sizes.inner[2]) if image else (sizes.result[:2], sizes.result[2])
    n, high, wide = sizes.result[:3] if image else sizes.inner
    groups, outputs = sizes.result[3:]
    graph, rng = Graph(plan.target), np.random.default_rng(0)
    weight, result = (*kernel, channels, groups * outputs), (n, high, wide, groups * outputs)
    arrays = [rng.normal(size=shape).astype(np.float16) for shape in (sizes.seen(), weight if image else result)]
    x, other = (add_array(graph, "float16", array.shape, str(array.shape), temporary=False) for array in arrays)
    out = add_array(graph, "float16", result if image else weight, "out", temporary=False)
    windows = windows_of(x.reshape(*x.shape[:3], groups, channels), kernel, sizes.stride, sizes.dilation, (high, wide))
    split, whole = (tensor.reshape(*tensor.shape[:3], groups, outputs) for tensor in (other, out))
    split = split.transpose(0, 1, 3, 2, 4) if image else split
    programs = convolve(graph, ConvolutionTensors(windows, split, whole), plan, stochastic=stochastic, operation=3)
    engine = Engine(graph, Sequence(*programs), allow_out_of_memory=True)
    engine.set_key(5)
    engine.write(x, arrays[0])
    engine.write(other, arrays[1])
    engine.run()
    options: dict[str, Any] = {
        "groups": groups, "stride": sizes.stride, "dilation": sizes.dilation, "accumulate": order.accumulate,
        "out_format": "float16", "splits": order.splits, "group": order.group, "stages": order.stages,
        "rounding": "stochastic" if stochastic else "nearest_even",
        "key": lowprec.Key(5).fold_in(3) if stochastic else None,
    }  # fmt: skip
    if image:
        return engine.read(out), lowprec.conv2d(*arrays, **options), engine
    return engine.read(out), lowprec.conv2d_weight_gradient(*arrays, kernel=kernel, **options), engine


def test_plans_of_random_convolutions_give_the_contracts_bits_and_say_what_they_cost() -> None:
    rng, exchange, cycles, turns, chains, sums = random.Random(4), [], [], 0, 0, 0
    for _ in range(60):
        sizes, plan = random_case(rng)
        found, expected, engine = run_case(sizes, plan, stochastic=rng.random() < 0.5)
        np.testing.assert_array_equal(found, expected, err_msg=plan.words())
        profile, at_peak = engine.profile(), engine.memory.categories
        assert profile.compute_cycles == plan.compute_cycles, plan.words()
        assert profile.sync_cycles <= plan.sync_cycles, plan.words()
        passing = sum(at_peak.get(name, 0) for name in ("temporaries", "gathered operands", "exchange buffers"))
        assert passing <= plan.memory + 64, plan.words()  # each array on a tile is padded to a whole word
        exchange.append(profile.exchange_cycles / plan.exchange_cycles)
        cycles.append(profile.cycles / plan.cycles)
        turns += max(*plan.placement.serial, plan.placement.serial_parts) > 1
        problem = PlacementProblem(plan.target, plan.convolution, plan.accumulation)
        chains += len(plan.chain) > 1
        sums += not plan.direct and summed_in_turn(problem, len(plan.parts)).size > 1
    print(f"\nengine / plan: exchange {np.percentile(exchange, [0, 5, 50, 95, 100])}, all {np.median(cycles)}")
    assert turns > 10
    assert min(chains, sums) > 2
    assert 0.2 < min(exchange) < 0.8 < np.median(exchange) < np.percentile(exchange, 95) < 1.05
    assert max(exchange) < 1.5
    assert 0.95 < np.median(cycles) < 1.01


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("serial", [(2, 1, 1, 1, 1), (1, 2, 3, 1, 1), (1, 1, 1, 2, 2)])
def test_pieces_and_parts_in_turns_keep_the_bits(serial: Any, stochastic: bool) -> None:
    order = Accumulation(16, 5, 2, ("float16", "float16"))
    plain = built(order, ConvPlacement((1, 2, 2, 1, 1), 2), stochastic=stochastic)
    for turns in (1, 2, 3):
        place = ConvPlacement((1, 2, 2, 1, 1), 2, serial, turns)
        np.testing.assert_array_equal(built(order, place, stochastic=stochastic), plain)


WEIGHTS = Convolution("weight", (2, 3, 19, 2, 18), (5, 4, 12), (1, 1), (1, 1), "float16")


@pytest.mark.parametrize("types", [("float16", "float16"), ("float32", "float16")])
@pytest.mark.parametrize("serial", [(1, 1, 1, 1, 1), (1, 2, 2, 1, 2)])
def test_a_chain_in_pieces_keeps_the_bits_and_needs_less_memory(types: tuple[str, str], serial: Any) -> None:
    """240 positions in groups of 16: as one piece, two of three images and two, and every group for itself."""
    order, memory = Accumulation(16, 1, None, *types), []
    for turns, spans in ((1, [0, 240]), (2, [0, 144, 240]), (99, list(range(0, 241, 16)))):
        plan = plan_convolution(GC200, WEIGHTS, order, ConvPlacement((2, 1, 3, 2, 1), 1, serial, turns))
        assert plan.chain == tuple(itertools.pairwise(spans))
        assert (f"positions {turns}" in plan.words()) == (turns > 1)
        found, expected, engine = run_case(WEIGHTS, plan, stochastic=True)
        np.testing.assert_array_equal(found, expected)
        assert engine.profile().compute_cycles == plan.compute_cycles
        memory.append(engine.memory.peak_bytes)
    assert memory[0] > memory[1] > memory[2]


def test_a_chain_that_is_rounded_nowhere_or_summed_in_parts_is_not_cut() -> None:
    for order in (Accumulation(None, 1), Accumulation(16, 5), Accumulation(240, 1)):
        plan = plan_convolution(GC200, WEIGHTS, order, ConvPlacement(serial_parts=4))
        assert len(plan.chain) == 1
    plan = plan_convolution(GC200, SIZES, Accumulation(16, 1), ConvPlacement(serial_parts=4))
    assert len(plan.chain) == 1


@pytest.mark.parametrize("stages", [1, 2])
def test_sums_in_turns_keep_the_bits_and_need_less_memory(stages: int) -> None:
    order, memory = Accumulation(16, 7, stages, "float16", "float16"), []
    for tile_memory, turns in ((600_000, 1), (8000, 4), (4000, 6)):
        target = Target("gc200", tiles=24, tile_memory=tile_memory)
        plan = plan_convolution(target, SIZES, order, ConvPlacement((2, 2, 3, 1, 2), 1, (1, 2, 2, 2, 1), 7))
        assert summed_in_turn(PlacementProblem(target, SIZES, order), 7).size == turns
        found, expected, engine = run_case(SIZES, plan, stochastic=True)
        np.testing.assert_array_equal(found, expected)
        assert engine.profile().compute_cycles == plan.compute_cycles
        memory.append(plan.memory)
    assert memory[0] > memory[1] >= memory[2]


@pytest.mark.parametrize("axis", range(5))
def test_pieces_of_blocks_side_by_side_draw_the_bits_of_their_own_places(axis: int) -> None:
    # Pieces of neighbouring blocks have the rest of the blocks between them: along every axis of the result.
    sizes = Convolution("image", (4, 4, 6, 4, 128), (3, 2, 8), (1, 1), (1, 1), "float16")
    order = Accumulation(16, 1, None, ("float16", "float16"))
    plain = built(order, ConvPlacement((1, 1, 1, 1, 1), 1), sizes, stochastic=True)
    serial: Any = tuple(2 if number == axis else 1 for number in range(5))
    found = built(order, ConvPlacement((2, 2, 2, 2, 2), 1, serial), sizes, stochastic=True)
    np.testing.assert_array_equal(found, plain)


def test_other_sizes_and_targets_are_refused() -> None:
    order = Accumulation(accumulate="float16")
    graph = Graph(GC200)
    x = add_array(graph, "float16", (2, 6, 7, 2, 19))
    w = add_array(graph, "float16", (3, 2, 2, 19, 18))
    windows = windows_of(x, (3, 2), (1, 1), (1, 1), (4, 6))
    other = add_array(graph, "float16", (2, 4, 5, 2, 18))
    with pytest.raises(ValueError, match="not the plan's"):
        convolve(graph, ConvolutionTensors(windows, w, other), plan_convolution(GC200, SIZES, order))
    out = add_array(graph, "float16", (2, 4, 6, 2, 18))
    with pytest.raises(ValueError, match="the plan is for bow"):
        convolve(graph, ConvolutionTensors(windows, w, out), plan_convolution(Target("bow"), SIZES, order))
