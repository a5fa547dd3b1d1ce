"""Batches cut into micro-batches: gradients averaged as the precision says, on both engines."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import nn
from ipu_core.control import FloatingPointControl
from ipu_core.ir.precision import Precision
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd
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
    [(0, "micro_batches must be an integer of at least 1, not 0"), (1.5, "not 1.5"), (3, "16 rows cannot be cut")],
)
def test_batches_that_cannot_be_cut_are_refused(count: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainLoop(loss, params(), batches(0), optimizer=Sgd(0.1), precision="fp32.32", micro_batches=count)
