"""Training with scaled fp8 operands on a C600: whole loops have one result on tiles and directly."""

from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam

PARAMS = nn.mlp_parameters(3, (12, 40, 4))


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(step)
    return rng.normal(size=(16, 12)).astype(np.float32) * 2.0 ** (step % 5), rng.integers(0, 4, 16).astype(np.int32)


def loss(params: Any, given: Any) -> Any:
    return nn.softmax_cross_entropy(nn.mlp(params, given[0], nn.relu), given[1])


@pytest.mark.parametrize(
    "settings",
    [{"steps_per_call": 3}, {"micro_batches": 4}, {"micro_batches": 2, "loss_scale": "automatic"}],
    ids=["several steps in a call", "micro-batches", "loss scale"],
)
@pytest.mark.parametrize("spec", ["fp8.16", "fp8.16/delayed/amax_history_len=3", "fp8.16/stochastic"])
def test_both_engines_give_one_result(spec: str, settings: dict[str, Any]) -> None:
    direct, tiles = (
        TrainLoop(
            loss, PARAMS, batch(0), precision=spec, optimizer=Adam(1e-2), engine=engine, target="c600", **settings
        )
        for engine in ("direct", "tiles")
    )
    assert direct.run(batch, 6).tobytes() == tiles.run(batch, 6).tobytes()
    first, second = direct.arrays(), tiles.arrays()
    assert first.keys() == second.keys()
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    assert direct.skipped == tiles.skipped
