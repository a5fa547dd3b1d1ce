"""The rule of orders: pinned over 300 shapes, blind to every figure of a chip, near what a search would find."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, Target, TrainLoop, nn
from ipu_core.chip.target import CHIPS
from ipu_core.placement.convolution import Convolution, plan_convolution
from ipu_core.placement.convolution.sizes import even_splits
from ipu_core.placement.matmul import plan_sum, product_of, sum_of
from ipu_core.placement.orders import RULES, TILES, OrderRule, convolution_order, product_order, reduction_order
from lowprec import Accumulation
from tests.golden import load, orders

HALF = ("float16", "float16")


def test_golden() -> None:
    assert orders.build()["orders.json"] == load("orders.json")


def test_tiles_are_those_of_the_published_chips() -> None:
    assert TILES.keys() == orders.CHIPS.keys() == {Target(chip).family for chip in CHIPS}
    for chip in ("gc2", "gc200", "bow", "c600"):
        assert TILES[Target(chip).family] == Target(chip).tiles


CHANGES: dict[str, Any] = {
    "tiles": 64, "workers": 4, "tile_memory": 100_000, "clock": 1e9, "load_store_bytes_per_cycle": 8,
    "macs": (("float16", "float16", 8), ("float16", "float32", 8), ("float32", "float32", 8)),
    "exchange_bytes_per_cycle": 1, "exchange_bytes_per_cycle_shared": 2, "tiles_per_supertile": 1,
    "exchange_fixed_cycles": 4000, "sync_cycles": 9, "local_copy_bytes_per_cycle": 1, "reorder_cycles": 9.0,
    "link_bandwidth": 1.0,
    "host_port": 1.0, "host_share": 1.0, "streaming_share": 1.0, "streaming_memory": 7,
    "published_sram_bandwidth": 1.0, "power": (1.0, 2.0), "energy": {"exchange": 3.0},
}  # fmt: skip


def test_every_figure_is_tried() -> None:
    assert CHANGES.keys() == {field.name for field in fields(Target)} - {"name", "adder"}


@pytest.mark.parametrize("figure", CHANGES)
@pytest.mark.parametrize("chip", ["gc2", "gc200"])
def test_no_figure_of_a_chip_decides_an_order(chip: str, figure: str) -> None:
    plain, other = Target(chip), Target(chip, **{figure: CHANGES[figure]})
    assert plain != other
    for what, size in orders.shapes()[::7] + orders.LONG:
        for version in RULES:
            assert orders.parts(what, size, other, version) == orders.parts(what, size, plain, version)


def test_chips_of_a_family_have_one_order() -> None:
    some = orders.shapes()[::5] + orders.LONG
    for chip, version in itertools.product(("bow", "c600"), RULES):
        found = [orders.parts(what, size, Target(chip), version) for what, size in some]
        assert found == [orders.parts(what, size, Target("gc200"), version) for what, size in some]


def test_figures_change_no_weight() -> None:
    """Five steps on the direct engine, whose sums a search over cycles once cut otherwise for a slower exchange."""
    params = nn.mlp_parameters(1, [64, 256, 10])
    batch = nn.normal(2, (64, 64)), np.arange(64, dtype=np.int32) % 10

    def loss(params: Any, batch: Any) -> Any:
        return nn.softmax_cross_entropy(nn.mlp(params, batch[0]), batch[1])

    def weights(target: Target) -> list[bytes]:
        loop = TrainLoop(
            loss, params, batch, optimizer=Sgd(0.1), precision="fp16.16/nearest", engine="direct", target=target
        )
        for _ in range(5):
            loop.train(batch)
        return [layer[name].tobytes() for layer in loop.params for name in layer]

    assert weights(Target("gc200", exchange_fixed_cycles=400)) == weights(Target("gc200"))
    assert weights(Target("gc200", tiles=100, tile_memory=200_000)) == weights(Target("bow"))


def test_parts_are_never_empty_and_no_sum_is_too_long_for_a_tile() -> None:
    for target in (Target("gc2"), Target("gc200")):
        for m, k, n in ((0, 0, 0), (1, 17, 1), (33, 1000, 65), (4, 10**6, 4)):
            order = product_order(OrderRule.of(target), m, k, n)
            assert len(order.parts(k)) == (order.splits if k else 0)
        for terms in (10, 5_000, 10**6, 10**7):
            order = reduction_order(OrderRule.of(target), 1, terms, 1)
            assert max(last - first for first, last in order.parts(terms)) <= 2**15


def test_bounds_of_the_rule_hold_to_the_last_term() -> None:
    rule = OrderRule("mk2")
    assert 2 * 256**2 * rule.tiles == 8**3 * 1024 * 368  # eight parts are cubes, exactly
    assert product_order(rule, 1024, 256, 368).splits == 8
    assert product_order(rule, 1024, 256, 369).splits < 8
    few, more = (
        Convolution("weight", (1, 1, 65536, 1, 8192), (2, 1, n), (1, 1), (1, 1), "float16") for n in (1008, 1040)
    )
    assert [convolution_order(rule, each).splits for each in (few, more)] == [1, 2]  # 2,016 and 2,080 positions


# (m, k, n) of a transformer's step and of square products, and how much more than the best of all orders they may take.
PRODUCTS = [
    *((128, 768, 2304), (128, 768, 3072), (128, 3072, 768), (768, 128, 3072), (1024, 128, 512), (512, 512, 512)),
    *((128, 8192, 256), (1024, 1024, 1024), (64, 256, 10)),
]


def _cycles(target: Target, size: tuple[int, int, int], splits: int) -> int:
    return plan_sum(target, product_of(target, *size), Accumulation(splits=splits), types=HALF).cycles


@pytest.mark.parametrize("chip", ["gc2", "gc200"])
def test_products_are_near_the_best_order(chip: str) -> None:
    target, ratios = Target(chip), []
    for size in PRODUCTS:
        groups = math.ceil(size[1] / 16)
        tried = sorted({math.ceil(groups / math.ceil(groups / p)) for p in (1, 4, 6, 8, 10, 12, 15, 24, 64, 86)})
        best = min(_cycles(target, size, splits) for splits in tried if splits <= groups)
        ratios.append(_cycles(target, size, product_order(OrderRule.of(target), *size).splits) / best)
    print([f"{ratio:.2f}" for ratio in ratios])
    assert max(ratios) <= 1.28
    assert np.exp(np.mean(np.log(ratios))) <= 1.08


@pytest.mark.parametrize("chip", ["gc2", "gc200"])
def test_plain_sums_are_near_the_best_order(chip: str) -> None:
    """Down columns, and the long ones of a norm over all weights."""
    target, ratios = Target(chip), []
    for terms, results in ((256, 64), (768, 384), (1024, 512), (8192, 1), (65536, 1), (262144, 1), (65536, 256)):
        product, groups = sum_of(target, 1, terms, results), terms // 16
        tried = {math.ceil(groups / math.ceil(groups / p)) for p in (1, 4, 8, 15, 22, 32, 43, 64, 90, 124, 400, 1100)}
        own = reduction_order(OrderRule.of(target), 1, terms, results)
        cycles = [plan_sum(target, product, Accumulation(splits=p), types=HALF).cycles for p in tried]
        found = plan_sum(target, product, own, types=HALF).cycles
        ratios.append(found / min(*cycles, found))
    print([f"{ratio:.2f}" for ratio in ratios])
    assert max(ratios) <= 1.18
    assert np.exp(np.mean(np.log(ratios))) <= 1.06


CONVOLUTIONS = [
    Convolution("image", (4, 56, 56, 1, 64), (1, 1, 64), (1, 1), (1, 1), "float16"),
    Convolution("image", (4, 14, 14, 1, 256), (3, 3, 256), (1, 1), (1, 1), "float16"),
    Convolution("image", (64, 8, 8, 1, 16), (3, 3, 1), (1, 1), (1, 1), "float16"),
    Convolution("weight", (3, 3, 64, 1, 64), (4, 28, 28), (1, 1), (1, 1), "float16"),
    Convolution("weight", (1, 1, 256, 1, 64), (4, 28, 28), (1, 1), (1, 1), "float16"),
]


@pytest.mark.parametrize("chip", ["gc2", "gc200"])
def test_convolutions_are_near_the_best_order(chip: str) -> None:
    target, ratios = Target(chip), []
    for convolution in CONVOLUTIONS:
        order = convolution_order(OrderRule.of(target), convolution)
        plans = {
            splits: plan_convolution(target, convolution, Accumulation(splits=splits).with_types(*HALF)).cycles
            for splits in even_splits(convolution, order)
            if splits <= 128
        }
        ratios.append(plans[order.splits] / min(plans.values()))
    print([f"{ratio:.2f}" for ratio in ratios])
    assert max(ratios) <= 1.3
    assert np.exp(np.mean(np.log(ratios))) <= 1.1
