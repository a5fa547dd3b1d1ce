"""What should save memory and does not is said, with the fullest tile of a step with and without it."""

from __future__ import annotations

import re
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, Target, TrainLoop, nn
from ipu_core.errors import NothingSaved
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size

SIZE = Size(width=32, layers=2, heads=2, context=32)


def loop(rows: int, tiles: int, **settings: Any) -> TrainLoop:
    text = np.random.default_rng(0).integers(0, 256, (rows, SIZE.context)).astype(np.int32)
    params = lm.initial(lm.layout(SIZE), 0)
    given = {"optimizer": Sgd(0.1), "precision": "fp16.16/stochastic", "target": Target("gc200", tiles=tiles)}
    return TrainLoop(partial(lm.loss, SIZE.heads), params, (text, text), **{**given, **settings})


def fullest(made: TrainLoop) -> int:
    assert made.profile is not None
    return made.profile.memory.peak_bytes


def small(**settings: Any) -> TrainLoop:
    """Four layers of few values on few tiles."""

    def loss(params: Any, batch: Any) -> Any:
        h = batch
        for number, weight in enumerate(params):
            with nn.name_scope(f"layers.{number}", h):
                h = nn.gelu(nn.matmul(h, weight)) * nn.sigmoid(h)
        return nn.mean(h)

    params, rows = [np.ones((16, 16), np.float32)] * 4, np.ones((2, 16), np.float32)
    how = {"optimizer": Sgd(0.1), "precision": "fp16.16/stochastic", "target": Target("gc200", tiles=16)}
    return TrainLoop(loss, params, rows, **how, **settings)


@pytest.mark.parametrize("recompute", [True, "layers.*"])
def test_a_fuller_tile_is_said_with_both_figures(recompute: Any) -> None:
    """Where values are few, the vertices of copies need more than they free."""
    with pytest.warns(NothingSaved) as said:
        again = small(recompute=recompute)
    (words,) = [str(one.message) for one in said]
    assert "makes the fullest tile fuller" in words
    plain = small()
    assert [int(n.replace(",", "")) for n in re.findall(r"[\d,]+(?= bytes| without)", words)] == [
        fullest(again), fullest(plain),
    ]  # fmt: skip
    assert fullest(again) > fullest(plain)


def test_nothing_is_said_of_what_saves_or_has_no_tiles() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fullest(loop(32, 64, recompute="blocks.*")) < fullest(loop(32, 64))
        loop(1, 1472, recompute=True, engine="direct")
        loop(32, 64, streamed="params.blocks.*")


def test_a_step_that_does_not_fit_without_is_none_to_compare_with() -> None:
    most = (fullest(loop(32, 64)) + fullest(loop(32, 64, recompute="blocks.*"))) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = Target("gc200", tiles=64, tile_memory=most)
        assert fullest(loop(32, 64, recompute="blocks.*", target=small)) <= most


def test_streamed_activations_that_free_next_to_nothing_are_said() -> None:
    with pytest.warns(NothingSaved) as said:
        far = loop(1, 1472, streamed=["*.gelu", "params.blocks.*"])
    (words,) = [str(one.message) for one in said]
    near = loop(1, 1472, streamed="params.blocks.*")
    assert words == (
        "streaming '*.gelu' frees less than 1% of the fullest tile: "
        f"it needs {fullest(far):,} bytes, {fullest(near):,} without it"
    )
