"""Partial sums that are added to float32 ones after so many products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, TrainLoop, UnsupportedByTarget
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.evaluate import evaluate
from ipu_core.ir.run.execute import execute
from ipu_core.ir.run.kernels import order_of
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from lowprec import Accumulation, astype, float16, matmul
from lowprec.identification.arithmetic import Arithmetic
from lowprec.testing import assert_same_bits
from tests.ipu_core.ir.scaling.models import products


@pytest.mark.parametrize("accumulate, worst", [("tfloat32", 0.007), ("bfloat16", 0.1)])
def test_promotion_cures_a_narrow_accumulator(accumulate: str, worst: float) -> None:
    """4,096 products of uniform numbers: a sum that a narrow accumulator keeps is too small, parts of 128 are not."""
    rng = np.random.default_rng(4)
    x, w = rng.uniform(size=(64, 4096)).astype(np.float32), rng.uniform(size=(4096, 64)).astype(np.float32)
    error = {}
    for spec in ("fp8", f"fp8/partials={accumulate}", f"fp8/partials={accumulate}/promote=128"):
        precision = Precision.parse(spec + "/output=float32/operands=float32")
        block = verify(precision.apply(trace(lambda x, w: x @ w, x, w)))
        error[spec] = np.asarray(execute(block, x, w, key=0), np.float64)
        assert error[spec].tobytes() == np.asarray(evaluate(block, x, w, arithmetic="declared"), np.float64).tobytes()
    exact, plain, promoted = error.values()
    alone, cured = (np.abs(one / exact - 1).max() for one in (plain, promoted))
    print(f"\n{accumulate}: {alone:.2%} alone, {cured:.2%} with promotion")
    assert alone > worst
    assert cured < alone / 4


def test_promotion_is_the_order_with_parts_of_so_many_products() -> None:
    x = np.ones((3, 300), np.float32)
    block = Precision.parse("fp16.16/nearest/promote=64").apply(trace(lambda x: x @ x.T, x))
    (product,) = products(block)
    order = order_of(product, Accumulation(group=16, splits=2))
    assert (order.splits, order.stages, order.accumulate) == (5, 1, float16)
    assert [end - start for start, end in order.parts(300)] == [64, 64, 64, 64, 44]
    assert "promoted every 64" in str(block)
    assert Precision.parse("fp16.16/nearest/promote=64").words().endswith("promoted every 64")


@pytest.mark.parametrize("promote", [1, 2, 15, 16, 24, 100, 299, 1000])
@pytest.mark.parametrize("group", [None, 1, 16])
def test_no_part_is_longer_than_promotion_allows(promote: int, group: int | None) -> None:
    x = np.ones((3, 300), np.float32)
    block = Precision.parse(f"fp16.16/nearest/promote={promote}").apply(trace(lambda x: x @ x.T, x))
    order = order_of(products(block)[0], Accumulation(group=group, splits=2))
    parts = order.parts(300)
    assert max(end - start for start, end in parts) <= promote
    assert sum(end - start for start, end in parts) == 300


@pytest.mark.parametrize("spec", ["fp16.32/promote=0", "fp16.32/promote=many", "fp16.32/promote=1.5"])
def test_promotion_takes_a_number_of_products(spec: str) -> None:
    with pytest.raises(ValueError, match="promote must be a number of products"):
        Precision.parse(spec)


def test_the_order_of_products_is_said_in_a_precision() -> None:
    """Of products alone, by the Accumulation that it says, and on tiles as without them."""
    rng = np.random.default_rng(5)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 96), (96, 8)))
    spec = "fp16.16/nearest/group=8/splits=3/adder=dot4"
    block = Precision.parse(spec).apply(trace(lambda a, b: (a @ b).sum(axis=1), x, w))
    assert str(block).count("summed in group 8, splits 3, stages by number of parts, adder dot4") == 1
    product = verify(Precision.parse(spec).apply(trace(lambda a, b: a @ b, x, w)))
    wanted = matmul(
        astype(x, "float16"), astype(w, "float16"), accumulation=Accumulation(8, 3, None, float16, float16, "dot4")
    )
    assert_same_bits(execute(product, x, w, key=0), wanted)
    assert_same_bits(evaluate(product, x, w, arithmetic="declared"), wanted)


def test_tiles_add_in_the_order_that_a_precision_says() -> None:
    losses = {}
    rng = np.random.default_rng(6)
    batch = rng.normal(size=(16, 64)).astype(np.float32)
    params = {"w": rng.normal(size=(64, 8)).astype(np.float32)}

    def loss(own: Any, x: Any) -> Any:
        return ((x @ own["w"]) ** 2).mean()

    for engine in ("tiles", "direct"):
        for spec in ("fp16.16/nearest", "fp16.16/nearest/group=4/splits=2"):
            loop = TrainLoop(loss, params, batch, optimizer=Sgd(0.1), precision=spec, engine=engine)
            losses[engine, spec] = loop.run(lambda step: batch, 5).tolist()
    assert losses["tiles", "fp16.16/nearest"] == losses["direct", "fp16.16/nearest"]
    assert losses["tiles", spec] == losses["direct", spec] != losses["direct", "fp16.16/nearest"]
    with pytest.raises(ValueError, match="adder='pairwise' would do nothing"):
        TrainLoop(
            loss, params, batch, optimizer=Sgd(0.1), precision="fp32.32/adder=dot4", engine="direct", adder="pairwise"
        )
    with pytest.raises(UnsupportedByTarget, match="no aligned adder"):
        TrainLoop(loss, params, batch, optimizer=Sgd(0.1), precision="fp32.32/adder=aligned24")


@pytest.mark.parametrize("mode", ["toward_zero", "odd", "stochastic"])
def test_a_rounding_of_everything_is_of_partial_sums_under_a_float32_result_too(mode: str) -> None:
    x = np.random.default_rng(3).normal(size=(4, 64)).astype(np.float32)
    said = [f"fp32.32/partials=e5m2@{mode}", f"fp32.32/partials=e5m2/{mode}", "fp32.32/partials=e5m2"]
    results = [
        np.asarray(execute(Precision.parse(spec).apply(trace(lambda x: x @ x.T, x)), x, key=1)).tobytes()
        for spec in said
    ]
    assert results[0] == results[1] != results[2]


def test_a_promotion_within_a_group_ends_the_group() -> None:
    """In a precision and in what `identify` found alike: one formula says both."""
    x, w = np.random.default_rng(7).normal(size=(2, 4, 96)).astype(np.float32)
    order = Accumulation(32, accumulate=float16, out="float32")
    assert order.promoted(96, 16) == Accumulation(16, 6, 1, float16, "float32")
    assert order.promoted(96, 50) == Accumulation(32, 3, 1, float16, "float32")
    block = Precision.parse("fp32.32/partials=float16/group=32/promote=16").apply(trace(lambda a, b: a @ b.T, x, w))
    assert_same_bits(execute(block, x, w, key=0), Arithmetic(order, promote=16)(x, w.T.copy()))
