"""The residual net: batch norm's state beside the parameters, on both engines, in rounds, evaluated."""

from pathlib import Path

import numpy as np
import pytest

from ipu_core.__main__ import main
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.study.compare import compare
from ipu_core.study.models import resnet
from ipu_core.study.models.catalogue import problem
from ipu_core.study.point import Problem, Recipe, make_loop, trained
from ipu_core.study.settings import Point, Settings
from ipu_core.train.data import dataset as data
from ipu_core.train.optim import Sgd
from tests.examples import first

SMALL = Settings(model="resnet", layers=(64, 4, 8, 10), batch=32)


@pytest.fixture(scope="module")
def small() -> Problem:
    return problem(SMALL, data.digits())


def test_parameters_are_those_of_their_stand_ins(small: Problem) -> None:
    made, shapes = flatten(small.params(1)), flatten(small.shapes)
    assert made[1] == shapes[1]
    assert [leaf.shape for leaf in made[0]] == [leaf.shape for leaf in shapes[0]]
    assert [leaf.any() for leaf in made[0]] == [leaf.any() for leaf in shapes[0]]
    assert ["short" in block for block in small.params(1)["stages"]] == [False, True]


@pytest.mark.parametrize("precision", first(1, ["fp16.16/stochastic", "fp32.32"]))
def test_both_engines_train_it_with_the_same_bits(small: Problem, precision: str) -> None:
    ends = []
    for engine in ("direct", "tiles"):
        loop = make_loop(small, Recipe.of(3, optimizer=Sgd(0.05, momentum=0.9), engine=engine), Point(precision, 0))
        losses = loop.run(small.batches(0), 3)
        ends.append((losses.tobytes(), {name: a.tobytes() for name, a in loop.arrays().items()}))
    assert ends[0] == ends[1]
    names = [name for name in ends[0][1] if name.startswith("model.")]
    assert "model.stages.1.short.variance" in names
    assert loop.model_state["stem"]["mean"].dtype == np.float32


def test_it_learns_and_is_evaluated_with_its_running_statistics(small: Problem) -> None:
    loop = make_loop(
        small, Recipe.of(60, optimizer=Sgd(0.05, momentum=0.9), engine="direct"), Point("fp16.16/stochastic", 0)
    )
    losses = loop.run(small.batches(0), 60)
    assert losses[-10:].mean() < 0.7 * losses[:5].mean()
    assert small.evaluate is not None
    precision = Precision.parse("fp16.16/stochastic")
    right = small.evaluate(trained(loop), precision)["test_accuracy"]
    fresh = small.evaluate((loop.params, small.initial_state(0)), precision)["test_accuracy"]
    assert right > max(0.5, fresh + 0.1)


def test_the_commands_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--layers", "64-4-8-10", "--batch", "16", "--steps", "6", "--engine", "direct", "--precision", "fp16.32"]
    assert main(["train", "resnet", *line, "--out", str(tmp_path)]) == 0
    assert "residual net 64-4-8-10" in capsys.readouterr().out
    (kept,) = tmp_path.glob("parameters*.npz")
    with np.load(kept) as archive:
        assert any("variance" in name for name in archive.files)
    assert main(["profile", "resnet", "--layers", "64-4-4-10", "--batch", "8"]) == 0
    assert ".grad_weight.conv2d_weight_gradient." in capsys.readouterr().out


@pytest.mark.parametrize(
    "layers, message", [((63, 4, 10), "square"), ((64, 10), "cannot have 0 stages"), ((64, *(4,) * 5, 10), "5 stages")]
)
def test_bad_layers_are_refused(layers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resnet.layout(layers)


def test_compare_takes_a_models_state(small: Problem) -> None:
    made = compare(
        small.loss, small.params, lambda seed, step: small.batches(seed)(step), ["fp32.32"], seeds=1, steps=4,
        optimizer=Sgd(0.05), evaluate=small.evaluate, engine="direct", model_state=small.state,
    )  # fmt: skip
    assert 0 <= made.results[0]["test_accuracy"] <= 1
