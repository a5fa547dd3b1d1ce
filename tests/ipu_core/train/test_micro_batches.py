"""Batches cut into micro-batches: gradients averaged as the precision says, on both engines."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.precision.precision import Precision
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Lamb, Sgd
from tests.ipu_core.train.test_loop import SMALL, batches, loss, params


@pytest.mark.parametrize("precision", ["fp32.32", "mlperf-bert-pod16"])
def test_micro_batches_follow_the_whole_batch_on_both_engines(precision: str) -> None:
    """Four parts average to the batch's gradient: exactly but for rounding in float32, and near it in float16."""
    states = []
    for engine, parts in (("direct", 1), ("direct", 4), ("tiles", 4)):
        loop = TrainLoop(
            loss,
            params(),
            batches(0),
            optimizer=Sgd(0.1),
            precision=precision,
            engine=engine,
            target=SMALL,
            key=3,
            micro_batches=parts,
        )
        losses = loop.run(batches, 8)
        states.append([losses, *(leaf for layer in loop.params for leaf in layer.values())])
    whole, cut, tiles = states
    for a, b in zip(cut, tiles, strict=True):
        lowprec.testing.assert_same_bits(a, b)
    tolerance = 1e-5 if precision == "fp32.32" else 2e-2
    for a, b in zip(whole, cut, strict=True):
        np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=tolerance, atol=tolerance)
    assert any((a != b).any() for a, b in zip(whole, cut, strict=True)), "the parts were not summed"


def test_the_precision_says_how_gradients_of_micro_batches_are_averaged() -> None:
    """Near float16's largest number a sum of gradients overflows where their running mean does not."""
    pod16 = Precision.parse("mlperf-bert-pod16")
    largest = []
    for precision in (pod16, replace(pod16, name="sums", running_mean=False)):
        loop = TrainLoop(
            lambda p, x: nn.mean(nn.linear(x, p["weight"], p["bias"])) * 2.0**15,
            params(widths=(20, 1))[0],
            np.ones((16, 20), np.float32),
            optimizer=Sgd(2.0**-20),
            precision=precision,
            engine="direct",
            control=FloatingPointControl(nanoo=True),
            micro_batches=4,
        )
        loop.train(np.ones((16, 20), np.float32))
        largest.append(float(np.abs(loop.params["weight"].astype(np.float64)).max()))
    assert largest[0] < 4
    assert not largest[1] < 4


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "micro_batches must be an integer of at least 1, not 0"), (3, "16 rows cannot be cut")],
)
def test_batches_that_cannot_be_cut_are_refused(count: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainLoop(loss, params(), batches(0), optimizer=Sgd(0.1), precision="fp32.32", micro_batches=count)


def test_more_micro_batches_are_not_more_program() -> None:
    """192 of them are the equations, steps and always-live bytes of 2, and 96 times the rounds."""
    built = {}
    for count in (2, 192):
        x, y = (np.concatenate([a] * 24) for a in batches(0))
        batch = x[: 2 * count], y[: 2 * count]
        built[count] = TrainLoop(
            loss,
            params(),
            batch,
            optimizer=Lamb(0.01),
            precision="mlperf-bert-pod16",
            target=SMALL,
            micro_batches=count,
        )
        assert np.isfinite(built[count].train(batch))
    few, many = built.values()
    assert len(equations_of(few.block)) == len(equations_of(many.block))
    assert few.profile is not None and many.profile is not None  # noqa: PT018
    assert len(few.profile.steps) == len(many.profile.steps)
    assert few.profile.memory.always_bytes == many.profile.memory.always_bytes
    assert few.profile.memory.peak_bytes == many.profile.memory.peak_bytes
    assert {step.count for step in few.profile.steps} == {1, 2}
    assert {step.count for step in many.profile.steps} == {1, 192}


def errors_of_means(count: int) -> dict[str, float]:
    """How far the mean gradient of many micro-batches is from that in float64, by how it is formed."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, 20)).astype(np.float16).astype(np.float32)
    weights = {"weight": np.zeros((20, 8), np.float32), "bias": np.zeros(8, np.float32)}

    def linear(p: Any, rows: Any) -> Any:  # its gradient for the weight is 1/8 x, exactly, whatever sums it
        return nn.mean(nn.linear(rows, **p))

    exact = x.astype(np.float64).mean(axis=0) / 8
    found = {}
    for name in ("gradient_sum=float32", "gradient_sum=float16", "running mean"):
        precision = Precision.parse("fp16.16/nearest/weights=float32")
        changes = {"gradient_sum": lowprec.float32 if "32" in name else lowprec.float16}
        loop = TrainLoop(
            linear, weights, x, optimizer=Sgd(1.0), engine="direct", micro_batches=count,
            precision=precision.changed(running_mean=name == "running mean", **changes),
        )  # fmt: skip
        loop.train(x)
        got = -loop.params["weight"].astype(np.float64)[:, 0]
        found[name] = float(np.abs(got - exact).max() / np.abs(exact).max())
    return found


def test_what_the_format_of_the_sum_costs_at_256_micro_batches() -> None:
    errors = errors_of_means(256)
    assert errors["gradient_sum=float32"] < 1e-6
    assert 1e-4 < errors["gradient_sum=float16"] < 2e-2
    assert 1e-4 < errors["running mean"] < 2e-2
