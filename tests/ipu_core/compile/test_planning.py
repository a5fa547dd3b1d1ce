"""The plan of a Block: one order for all precisions, words and hashes, places that can be given, refusals."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.planning import choose_accumulations, plan
from ipu_core.ir.block import Block
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.trace.tracing import trace
from ipu_core.placement.layout import linear_layout
from ipu_core.placement.matmul import Placement, plan_sum, product_of
from ipu_core.placement.orders import OrderRule
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd
from ipu_core.train.step import step_block
from lowprec import Accumulation, as_format

GC200 = Target("gc200")


def model() -> tuple[Any, Any, Any]:
    """Loss, parameters and a batch of a small network on a wide input."""
    params = {"first": np.ones((600, 32), np.float32), "second": np.ones((32, 10), np.float32)}

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        return nn.softmax_cross_entropy(nn.tanh(x @ params["first"]) @ params["second"], y)

    return loss, params, (np.ones((64, 600), np.float32), np.zeros(64, np.int32))


def ideal() -> Block:
    """A step of it."""
    loss, params, batch = model()
    return step_block(loss, Sgd(0.1), params, batch)


def test_one_choice_of_orders_serves_every_precision() -> None:
    orders = choose_accumulations(ideal(), OrderRule.of(GC200))
    assert any(order.splits > 1 for order in orders.values())
    plans = [plan(Precision.parse(name).apply(ideal()), GC200, orders) for name in ("fp32.32", "fp16.16/stochastic")]
    for number, order in orders.items():
        types = [(one.accumulations[number].accumulate.name, one.accumulations[number].out.name) for one in plans]
        assert [one.accumulations[number].with_types(order.accumulate, order.out) for one in plans] == [order, order]
        assert types[0] == ("float32", "float32")
    assert plans[0].digests() != plans[1].digests()
    assert plans[0].digests().keys() == orders.keys()


def test_orders_do_not_depend_on_formats() -> None:
    typed = Precision.parse("fp16.16/stochastic").apply(ideal())
    assert choose_accumulations(typed, OrderRule.of(GC200)) == choose_accumulations(ideal(), OrderRule.of(GC200))


@pytest.mark.parametrize("spec", ["fp8", "mxfp8", "fp16.16/nearest/operands=float8_e4m3fnuz/gradients=float8_e5m2fnuz"])
def test_products_of_8_bits_add_32_in_a_group_and_nothing_else_changes(spec: str) -> None:
    plain, typed = choose_accumulations(ideal(), OrderRule.of(GC200)), Precision.parse(spec).apply(ideal())
    dots = {equation.number for equation in ideal().equations if equation.op == "dot"}
    orders = choose_accumulations(ideal(), OrderRule.of(GC200), typed)
    assert orders == {number: replace(order, group=32 if number in dots else 16) for number, order in plain.items()}
    assert choose_accumulations(typed, OrderRule.of(GC200)).items() >= {(number, orders[number]) for number in dots}
    loop = TrainLoop(*model(), optimizer=Sgd(0.1), precision=spec, engine="direct")
    groups = {order.group for name, (e, order) in loop.sums().items() if e.op == "dot"}
    assert groups == {32}


@pytest.mark.parametrize("size", [4096, 6144, 8192])
def test_a_large_fp8_step_reaches_the_c600s_rate(size: int) -> None:
    """All three products of a layer, in the default order: 80 % of 560 TFLOP/s in compute alone."""

    def loss(params: Any, x: Any) -> Any:
        return nn.mean((x @ params["a"]) @ params["b"])

    weights = {name: np.broadcast_to(np.float32(1), (size, size)) for name in "ab"}
    block = step_block(loss, Sgd(0.1), weights, np.broadcast_to(np.float32(1), (size, size)))
    chip = Target("c600")
    spec = "fp16.16/nearest/operands=float8_e4m3fnuz/gradients=float8_e5m2fnuz"
    orders = choose_accumulations(block, OrderRule.of(chip), Precision.parse(spec).apply(block))
    products = [e for e in block.equations if e.op == "dot"]
    assert {e.role for e in products} == {"forward", "grad_input", "grad_weight"}
    for equation in products:
        order = orders[equation.number].with_types("float16")
        one = plan_sum(chip, product_of(chip, size, size, size, operands="float8_e4m3fnuz"), order)
        print(f"\nfp8, {equation.role}, n = {size}: {one.efficiency(compute_only=True):.1%} in compute alone")
        assert one.efficiency(compute_only=True) >= 0.80


def test_a_plan_prints_every_product_with_its_parameter() -> None:
    whole = plan(ideal(), GC200)
    words = whole.words()
    assert "first.forward.dot.0: 64 x 600 by 600 x 32, float32" in words
    assert "second.grad_weight.dot." in words
    assert re.search(r"^forward\.reduce_max\.\d+: maximum over 10 of 64 x 1, float32$", words, re.MULTILINE)
    assert re.search(r"reduce_sum\.\d+: sum over", words)
    assert words.count("placement: rows") == len(whole.sums)
    assert words.count("accumulation: group 16") == len(whole.sums) - len(whole.maxima)


def test_a_sum_over_all_of_a_matrix_has_the_parts_of_its_layout() -> None:
    """Not those of a vector of as many numbers, which lies otherwise."""
    block = trace(lambda x: nn.reduce_sum(x, (0, 1)), np.zeros((1000, 4096), np.float16))
    (order,) = choose_accumulations(block, OrderRule.of(GC200)).values()
    chunk = linear_layout(GC200, (1000, 4096)).chunk
    assert (order.group, order.splits) == (chunk, math.ceil(4_096_000 / chunk))
    assert chunk != linear_layout(GC200, (4_096_000,)).chunk
    assert plan(block, GC200).sums[0].exchange_cycles < 600


def test_maxima_have_a_place_but_no_order() -> None:
    one = plan(ideal(), GC200)
    assert one.maxima
    assert one.placements.keys() - one.accumulations.keys() == one.maxima
    given = plan(ideal(), GC200, {number: Accumulation(group=1, splits=3) for number in one.maxima})
    assert all(given.sums[number] == one.sums[number] for number in one.maxima)


def test_places_and_orders_can_be_given() -> None:
    number = next(equation.number for equation in ideal().equations if equation.op == "dot")
    given = plan(ideal(), GC200, {number: Accumulation(splits=3)}, {number: Placement(rows=4, parts=3)})
    assert given.placements[number] == Placement(rows=4, parts=3)
    assert given.accumulations[number].splits == 3
    others = [order for key, order in given.accumulations.items() if key != number]
    assert {order.splits for order in others} == {1}


def test_numbers_of_no_product_are_named() -> None:
    with pytest.raises(ValueError, match=r"have the numbers \[4711\]; there are \[0, "):
        plan(ideal(), GC200, {4711: Accumulation()})
    with pytest.raises(ValueError, match="4711"):
        plan(ideal(), GC200, placements={4711: Placement()})
    with pytest.raises(ValueError, match="has 8"):
        plan(ideal(), Target("gc200", tiles=8), placements={0: Placement(rows=16)})


@pytest.mark.parametrize("x, w, group", [("float8_e4m3fn", "float8_e5m2", 32), ("float8_e4m3fn", "float16", 16),
                                         ("float16", "float8_e4m3fn", 16), ("float16", "float16", 16)])  # fmt: skip
def test_both_operands_have_8_bits_where_32_are_added(x: str, w: str, group: int) -> None:
    block = trace(lambda x, w: x @ w, *(np.ones((64, 64), as_format(name).dtype) for name in (x, w)))
    (order,) = choose_accumulations(block, OrderRule.of(GC200)).values()
    assert order.group == group
