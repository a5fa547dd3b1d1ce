"""The record of a study's settings: equal for equal settings however they were said, another for any that counts."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from ipu_core.study.settings import Settings
from ipu_core.train.data import Dataset

X, Y = np.arange(40, dtype=np.float32).reshape(10, 4), np.arange(10, dtype=np.int32) % 3
TASK = Dataset("t", X, Y, X, Y)


def test_layers_count_by_what_they_come_to() -> None:
    assert Settings().record(TASK) == Settings(layers=(4, 256, 256, 3)).record(TASK)
    assert Settings().record(TASK)["layers"] == [4, 256, 256, 3]


def test_data_count_by_name_and_contents_and_not_by_path() -> None:
    assert Settings(data="a/t.npz").record(TASK) == Settings(data="b/t.npz").record(TASK)
    for other in ({"name": "u"}, {"x_train": X + 1}, {"y_test": Y[::-1]}):
        assert Settings().record(dataclasses.replace(TASK, **other)) != Settings().record(TASK)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": (4, 8, 3)},
        {"steps": 10},
        {"batch": 5},
        {"lr": 0.25},
        {"optimizer": "adam"},
        {"target": "bow"},
        {"engine": "direct"},
        {"model": "cnn"},
        {"schedule": "cosine"},
        {"micro_batches": 2},
        {"loss_scale": 8.0},
        {"streamed": ("params.*",)},
        {"overlap": True},
        {"random": "hardware"},
        {"groups": ("*.bias/decay=0",)},
    ],
)
def test_every_other_field_counts(change: dict[str, Any]) -> None:
    assert Settings(**change).record(TASK) != Settings().record(TASK)
