"""u-muP's learning rates: by the role of each parameter, and the best one the same at every width."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_core import Adam, TrainLoop, mup_groups, nn, unit_scale
from ipu_core.ir.pytree import flatten, paths
from ipu_core.study.models import mlp
from ipu_core.train.data import dataset as data
from tests.ipu_core.ir.unit_scaling import models

WIDTHS = (64, 128, 256)


def test_every_parameter_has_the_rate_of_its_role() -> None:
    model = models.transformer(2, 16, 2, 8, 2)
    rates = {
        group.pattern: group.lr for group in mup_groups(unit_scale(model.loss, mup=True), model.params, model.batch)
    }
    hidden, depth = 16**-0.5, 4**-0.5
    block = {
        "attention.qkv.weight": hidden * depth, "attention.out.weight": hidden * depth,
        "perceptron.up.weight": hidden * depth, "perceptron.down.weight": 64**-0.5 * depth,
    }  # fmt: skip
    wanted = {f"blocks.{i}.{name}": rate for i in range(2) for name, rate in block.items()}
    wanted |= {"embedding": hidden, "position": hidden}
    assert rates == pytest.approx(wanted)
    assert set(rates) < set(paths(flatten(model.params)[1]))  # the others have the rate itself


def test_convolutions_count_all_inputs() -> None:
    model = models.convolutional()
    groups = mup_groups(unit_scale(model.loss, mup=True), model.params, model.batch)
    assert {group.pattern: group.lr for group in groups} == pytest.approx({"0.weight": 9**-0.5, "1.weight": 144**-0.5})


def test_a_loss_without_the_rules_is_refused() -> None:
    model = models.perceptron()
    with pytest.raises(TypeError, match="takes what unit_scale"):
        mup_groups(model.loss, model.params, model.batch)  # type: ignore[arg-type]  # that is what is refused
    with pytest.raises(ValueError, match="must be unit_scale"):
        mup_groups(unit_scale(model.loss), model.params, model.batch)


def best_rate(width: int, mup: bool, seeds: int = 2, steps: int = 60) -> float:
    """Of a sweep by powers of two: with the least mean loss in the second half of a short training on digits."""
    task = data.digits()

    def loss_at(rate: float, seed: int) -> float:
        params, batches = mlp.initial((64, width, width, 10), seed), data.batches(task, 32, seed)
        loss, groups = mlp.loss, ()
        if mup:
            loss, params = unit_scale(mlp.loss, mup=True, deviation=task.deviation), nn.unit_parameters(seed, params)
            groups = mup_groups(loss, params, batches(0))
        loop = TrainLoop(loss, params, batches(0), optimizer=Adam(rate, groups=groups), precision="fp32.32",
                         engine="direct")  # fmt: skip
        return float(loop.run(batches, steps)[steps // 2 :].mean())

    rates = [2.0**k for k in (range(-5, 1) if mup else range(-10, -4))]
    return rates[int(np.argmin([np.mean([loss_at(rate, seed) for seed in range(seeds)]) for rate in rates]))]


@pytest.mark.slow
def test_the_best_rate_is_the_same_at_every_width() -> None:
    with_rules, without = ([best_rate(width, mup) for width in WIDTHS] for mup in (True, False))
    assert max(with_rules) / min(with_rules) <= 2
    assert max(without) / min(without) > 2
