"""The record of a study's settings: equal for equal settings however they were said, another for any that counts."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from ipu_core.study.command import recipe
from ipu_core.study.models import mlp
from ipu_core.study.settings import Settings
from ipu_core.train.data.dataset import Dataset
from ipu_core.train.execution import Execution
from ipu_core.train.loss_scale import LossScale
from ipu_core.train.optim import Group, Lamb
from ipu_core.train.schedules import Cosine
from ipu_core.train.training import Training

X, Y = np.arange(40, dtype=np.float32).reshape(10, 4), np.arange(10, dtype=np.int32) % 3
TASK = Dataset("t", X, Y, X, Y)


def test_layers_count_by_what_they_come_to() -> None:
    assert Settings().record(TASK) == Settings(layers=(4, 256, 256, 3)).record(TASK)
    assert Settings().record(TASK)["layers"] == [4, 256, 256, 3]


def test_data_count_by_name_and_contents_and_not_by_path() -> None:
    assert Settings(data="a/t.npz").record(TASK) == Settings(data="b/t.npz").record(TASK)
    for other in ({"name": "u"}, {"x_train": X + 1}, {"y_test": Y[::-1]}):
        assert Settings().record(dataclasses.replace(TASK, **other)) != Settings().record(TASK)


def basis(settings: Settings) -> dict[str, Any]:
    """What the folder of a study is of."""
    return {**settings.record(TASK), **recipe(settings).record()}


DECIDES = [
    {"layers": (4, 8, 3)}, {"steps": 10}, {"batch": 5}, {"lr": 0.25}, {"optimizer": "adam"}, {"model": "cnn"},
    {"schedule": "cosine"}, {"micro_batches": 2}, {"loss_scale": 8.0}, {"random": "hardware"}, {"target": "gc2"},
    {"groups": ("*.bias/decay=0",)}, {"unit_scaled": True}, {"mup": True, "optimizer": "adam"},
]  # fmt: skip
WHERE = [
    {"target": "bow"}, {"target": "c600"}, {"engine": "direct"}, {"streamed": ("params.*",)}, {"overlap": True},
    {"recompute": True}, {"recompute": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("change", DECIDES, ids=str)
def test_what_decides_a_bit_counts(change: dict[str, Any]) -> None:
    assert basis(Settings(**change)) != basis(Settings())


@pytest.mark.parametrize("change", WHERE, ids=str)
def test_where_it_runs_does_not_count(change: dict[str, Any]) -> None:
    assert basis(Settings(**change)) == basis(Settings())
    assert Settings(**change).execution() != Settings().execution()
    assert recipe(Settings(**change)).trainings(["fp8"]) == recipe(Settings()).trainings(["fp8"])


def test_where_it_runs_counts_where_the_tiles_draw() -> None:
    for change in ({"target": "bow"}, {"streamed": ("params.*",)}, {"overlap": True}):
        tiles = Settings(random="hardware"), Settings(random="hardware", **change)
        assert basis(tiles[0]) != basis(tiles[1])
        assert basis(tiles[0])["training"] == basis(tiles[1])["training"]
        first, second = (recipe(each).trainings(["fp16.16/stochastic"]) for each in tiles)
        assert first != second


def test_every_field_says_what_trains() -> None:
    given = Settings(
        optimizer="lamb/clip_norm=1", lr=0.5, schedule="cosine/end=0.5", groups=("*.bias/lr=2",), steps=7,
        micro_batches=4, loss_scale="automatic", target="bow", engine="direct", streamed=("params.*",), overlap=True,
        recompute=0.5,
    )  # fmt: skip
    training, execution = given.training(), given.execution()
    optimizer = Lamb(Cosine(0.5, 7, 0.25), clip_norm=1.0, groups=(Group("*.bias", 2.0),))
    assert training == Training(optimizer=optimizer, precision="fp32.32", micro_batches=4, loss_scale=LossScale())
    assert execution == Execution(
        engine="direct", target="bow", streamed=("params.*",), overlap=True, recompute=0.5
    )  # fmt: skip


def test_the_layout_of_a_unit_scaled_model_says_its_learning_rates() -> None:
    given = Settings(mup=True, optimizer="adam", batch=4)
    problem = mlp.problem(given, TASK)
    assert len(given.training(problem).optimizer.groups) > len(given.training().optimizer.groups)  # type: ignore[attr-defined]
