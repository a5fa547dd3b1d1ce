"""Every model's default rate is one that trains: of an optimizer of its own, and no worse than rates beside it."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_core.study.models import catalogue
from ipu_core.study.models.catalogue import load
from ipu_core.study.point import Recipe, make_loop, trained
from ipu_core.study.settings import MODELS, UNIT_RATES, USUAL, Point, Settings, tuned, unit_rate
from ipu_core.train.optim import Sgd


def test_only_the_perceptron_has_the_small_rate_of_the_first_study() -> None:
    assert {name for name in MODELS if "lr" not in USUAL.get(name, {})} == {"mlp"}
    assert all({"steps", "batch", "lr", "optimizer"} <= USUAL[name].keys() for name in USUAL)


@pytest.mark.parametrize(
    ("model", "said", "rate"),
    [
        ("resnet", {}, 0.2),
        ("resnet", {"optimizer": "sgd"}, 0.2),
        ("resnet", {"optimizer": "adam"}, None),
        ("mlp", {"optimizer": "adam"}, None),
        ("lm", {"optimizer": "sgd"}, 0.002),
    ],
)
def test_a_rate_is_for_its_optimizer(model: str, said: dict[str, str], rate: float | None) -> None:
    assert tuned(model, said).get("lr") == rate


def test_rates_under_unit_scaling_are_of_the_model_and_its_own_optimizer() -> None:
    assert unit_rate("cnn", {}, False) == UNIT_RATES["cnn"]
    assert unit_rate("cnn", {"optimizer": "adam"}, False) == unit_rate("lm", {}, False) == UNIT_RATES["unit"]
    assert unit_rate("cnn", {}, True) == UNIT_RATES["mup"]


def right(model: str, rate: float, unit_scaled: bool = False, seeds: tuple[int, ...] = (0, 1, 2)) -> float:
    """The mean share of test images that is right after the model's usual training at some rate."""
    usual = USUAL[model]
    settings = Settings(model=model, unit_scaled=unit_scaled, **{**usual, "lr": rate})
    problem, found = catalogue.problem(settings, load(settings)), []
    for seed in seeds:
        recipe = Recipe.of(settings.steps, optimizer=Sgd(rate, momentum=0.9), engine="direct")
        loop = make_loop(problem, recipe, Point("fp32.32", seed))
        loop.run(problem.batches(seed), settings.steps)
        assert problem.evaluate is not None
        found.append(problem.evaluate(trained(loop), loop.precision)["test_accuracy"])
    return float(np.mean(found))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn", "resnet"])
def test_the_default_rate_is_no_worse_than_those_beside_it(model: str) -> None:
    rate = float(USUAL[model]["lr"])
    best = right(model, rate)
    assert best > 0.975
    # the standard error of 359 test rows of which 2 % are wrong is 0.7 %
    assert best > max(right(model, each) for each in (rate / 16, rate / 2, 2 * rate)) - 0.007
    assert right(model, UNIT_RATES[model], unit_scaled=True) > 0.975
