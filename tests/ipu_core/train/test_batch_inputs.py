"""What a step takes of a batch: arrays by name, and labels that are classes."""

from __future__ import annotations

import functools
from collections import UserDict
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, Target, TrainLoop, evaluate, execute, nn, trace
from tests.ipu_core.train.test_loop import batches, loop, loss, params


def named_loss(params: Any, batch: Any) -> Any:
    return loss(params, (batch["x"], batch["labels"]))


@pytest.mark.parametrize("kind", [dict, UserDict, MappingProxyType])
def test_a_mapping_is_a_batch_by_its_names(kind: Any) -> None:
    def given(step: int) -> Any:
        x, y = batches(step)
        return kind({"x": x, "labels": y})

    made = TrainLoop(named_loss, params(), given(0), precision="fp32.32", optimizer=Sgd(0.1), engine="direct", key=7)
    assert made.run(given, 3).tobytes() == loop().run(batches, 3).tobytes()
    x, y = batches(0)
    assert made.train({"labels": y, "x": x}) == loop().run([*map(batches, range(3)), (x, y)], 4)[3]
    for batch, words in (
        (
            kind({"x": x, "labels": y, "z": y}),
            "the batch holds labels, x, z; the step was traced with labels, x .*model.batch",
        ),
        (kind({"x": x}), "the batch holds x; the step was traced with labels, x"),
        (kind({"x": x, "labels": y + 1}), "array labels of the batch holds labels from 1 to 5"),
        (kind({"x": x[:3], "labels": y}), r"array x of the batch: it has shape \(3, 20\)"),
    ):
        with pytest.raises(ValueError, match=words):
            made.train(batch)


def second_half(params: Any, batch: Any) -> Any:
    x, y = batch
    return nn.softmax_cross_entropy(nn.mlp(params, x)[:8], y[8:])


def ignoring(params: Any, batch: Any) -> Any:
    return nn.cross_entropy(nn.mlp(params, batch[0]), batch[1], ignore_index=-100)


@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("own", [second_half, ignoring])
@pytest.mark.parametrize("wrong", [5, -1, 2**31 - 1])
def test_a_label_that_is_no_class_ends_the_step_wherever_the_loss_has_it_from(
    own: Any, engine: str, wrong: int
) -> None:
    x, y = batches(0)
    options: dict[str, Any] = {"precision": "fp16.16/stochastic", "optimizer": Sgd(0.1), "engine": engine, "key": 7}
    made = TrainLoop(own, params(), (x, y), target=Target("gc200", tiles=4), steps_per_call=2, **options)
    made.run([(x, y)] * 2, 2)
    before, label = made.state, y.copy()
    label[9] = wrong
    with pytest.raises(ValueError, match=r"labels from .*; the loss has the classes 0 to 4"):
        made.train((x, label))
    with pytest.raises(ValueError, match=r"labels from .*; the loss has the classes 0 to 4"):
        made.run([(x, y), (x, label)], 2)
    after = made.state
    assert after.steps == before.steps
    assert all(array.tobytes() == after.leaves[name].tobytes() for name, array in before.leaves.items())
    if own is ignoring:
        label[9] = -100
        assert np.isfinite(made.train((x, label)))


def test_labels_that_are_no_classes_are_refused_by_every_meaning_of_a_block() -> None:
    logits, labels = np.ones((4, 3), np.float32), np.array([0, 1, 2, 3], np.int32)
    block, direct = trace(nn.softmax_cross_entropy, logits, labels), functools.partial(execute, key=0)
    for run in (evaluate, lambda *given: evaluate(*given, arithmetic="declared"), direct):
        with pytest.raises(ValueError, match="labels from 0 to 3; the loss has the classes 0 to 2"):
            run(block, logits, labels)
        with pytest.raises(ValueError, match="labels from -1 to 2; the loss"):
            run(block, logits, labels - 1)
        assert np.isfinite(run(block, logits, labels % 3))
    rows = direct(trace(lambda y: nn.one_hot(y, 3), labels), labels)  # which says that others give zeros
    assert rows.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
