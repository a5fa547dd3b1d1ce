"""The published recipes: their numbers, what they do not know, and that they train packed BERT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import Lamb, Precision, TrainLoop, recipe
from ipu_core.study.models import bert
from ipu_core.study.models.size import Size
from ipu_core.train.data import text

MOMENTS = ("first_moment", "second_moment")


def test_v2_is_as_published() -> None:
    for chips, beta1, beta2, clip, parts in ((16, 0.55, 0.885, 1000, 256), (64, 0.51, 0.72, 1000, 96),
                                             (128, 0.62, 0.885, 100, 64)):  # fmt: skip
        made = recipe("mlperf-bert-v2", chips=chips, learning_rate=0.003, gradient_sum="float32")
        optimizer, precision = made.optimizer, made.precision
        assert isinstance(optimizer, Lamb)
        assert (optimizer.lr, optimizer.b1, optimizer.b2) == (0.003, beta1, beta2)
        assert (optimizer.weight_decay, optimizer.clip_norm, optimizer.bias_correction) == (1e-3, clip, False)
        assert (made.micro_batches, made.loss_scale) == (parts, 10.0)
        assert made.stash == (lowprec.stash143 if chips == 16 else None)
        assert [getattr(precision, each).name for each in MOMENTS] == ["float16", "float16"]
        # m times 10 and v times 100, on the chip.
        assert (precision.scaled_state, precision.store_root, precision.streamed) == (10.0, False, False)
        assert (precision.weights.name, precision.partials.name, precision.stochastic) == ("float16", "float16", True)


def test_v1_is_as_published() -> None:
    known: dict[str, Any] = {"learning_rate": 0.003, "beta1": 0.9, "weight_decay": 0.01}
    pod16 = recipe("mlperf-bert-v1.1", chips=16, **known)
    assert pod16.precision.changed() == Precision.parse("mlperf-bert-pod16").changed()
    assert (pod16.micro_batches, pod16.loss_scale, pod16.stash) == (192, None, None)
    others = {n: recipe("mlperf-bert-v1.1", chips=n, gradient_sum="float32", **known) for n in (64, 128)}
    formats = {n: [getattr(each.precision, name).name for name in MOMENTS] for n, each in others.items()}
    assert formats == {64: ["float32", "float32"], 128: ["float16", "float32"]}
    assert all(isinstance(each.optimizer, Lamb) and each.optimizer.b2 == 0.996 for each in (pod16, *others.values()))


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("bert", {"chips": 16}, "there are mlperf-bert-v1.1, mlperf-bert-v2"),
        ("mlperf-bert-v2", {"chips": [16]}, "ran on 16, 64, 128 chips"),
        ("mlperf-bert-v2", {"chips": 32}, "ran on 16, 64, 128 chips, not on 32"),
        ("mlperf-bert-v2", {"chips": 16}, "say gradient_sum="),
        ("mlperf-bert-v2", {"chips": 16, "gradient_sum": "sum"}, "float32 or running_mean"),
        ("mlperf-bert-v2", {"chips": 16, "beta1": 0.9, "gradient_sum": "float32"}, "is published: 0.55"),
        ("mlperf-bert-v1.1", {"chips": 16, "weight_decay": 0.1}, "beta1 of mlperf-bert-v1.1 on 16 chips is not known"),
        ("mlperf-bert-v1.1", {"chips": 16, "beta1": 0.9}, "weight_decay of mlperf-bert-v1.1 on 16 chips is not known"),
        ("mlperf-bert-v1.1", {"chips": 64, "beta1": 0.9, "weight_decay": 0.1}, "gradient_sum of .* is not known"),
    ],
)
def test_what_is_not_known_or_known_already_is_refused_by_its_name(name: str, given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        recipe(name, learning_rate=0.1, **given)
    with pytest.raises(TypeError, match="learning_rate"):
        recipe("mlperf-bert-v2", chips=16, gradient_sum="float32")  # type: ignore[call-arg]


def test_stashes_of_three_exponent_bits_taken_literally() -> None:
    fmt = lowprec.stash143
    assert lowprec.round(np.array([0.03, 0.07, 3.94, 4.1, 300.0, -1e9], np.float32), fmt).tolist() == [
        0.0, 0.125, 4.0, 4.0, 248.0, -248.0,
    ]  # fmt: skip
    assert (fmt.smallest_subnormal, fmt.max, fmt.bias, fmt.infinities) == (0.125, 248.0, 0, False)
    values = lowprec.decode(np.arange(128, dtype=np.uint8), fmt)
    # Steps of 1/8 below 4, and every finite code a number.
    assert np.array_equal(np.diff(values[:33]), np.full(32, 0.125))
    assert np.isfinite(values).all()
    with pytest.raises(ValueError, match="NaN"):
        lowprec.encode(np.float32(np.nan), fmt)


def test_it_trains_packed_bert() -> None:
    words = text._cut("words", bytes(range(32, 127)) * 60)
    problem = bert.problem(Size(16, 1, 2, 32), words, 12, 3)
    made = recipe("mlperf-bert-v2", chips=16, learning_rate=0.01, gradient_sum="running_mean")
    # Its stashes are of parts under nn.checkpoint, which this model has none of.
    lasting: Any = made.optimizer
    lasting = replace(lasting, packing=problem.sequences_of_a_row)
    made = replace(made, micro_batches=4, stash=None, optimizer=lasting)
    batches = problem.batches(0)
    loop = TrainLoop(problem.loss, problem.params(0), batches(0), training=made)
    losses = loop.run(batches, 40)
    assert losses[-5:].mean() < losses[:3].mean() - 0.3
