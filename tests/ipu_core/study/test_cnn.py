"""The convolutional net of the command line: shapes, learning, engines, refusals."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from ipu_core.__main__ import main
from ipu_core.study.command import recipe
from ipu_core.study.models import catalogue as models
from ipu_core.study.models import cnn
from ipu_core.study.point import make_loop
from ipu_core.study.profiles import profile
from ipu_core.study.settings import Point, Settings
from ipu_core.train.data import dataset as data

SMALL = Settings(model="cnn", layers=(64, 6, 8, 10), lr=0.1, batch=32, steps=20)


def test_widths_become_kernels() -> None:
    assert cnn.kernels((64, 16, 32, 10)) == [(3, 3, 1, 16), (3, 3, 16, 32), (128, 10)]
    task = data.load("digits")
    assert Settings(model="cnn").widths(task) == (64, 16, 32, 10)
    shapes = models.problem(Settings(model="cnn"), task).shapes
    made = models.problem(Settings(model="cnn"), task).params(3)
    assert [layer["weight"].shape for layer in made] == [layer["weight"].shape for layer in shapes]


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
def test_both_engines_train_it_with_the_same_bits(precision: str) -> None:
    task = data.load("digits")
    losses = []
    for engine in ("tiles", "direct"):
        settings = dataclasses.replace(SMALL, engine=engine)
        problem = models.problem(settings, task)
        loop = make_loop(problem, recipe(settings), Point(precision, 1))
        losses.append(loop.run(problem.batches(1), 20))
    np.testing.assert_array_equal(*losses)
    assert losses[0][-5:].mean() < 0.9 * losses[0][:5].mean()


def test_the_study_runs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["study", "--model", "cnn", "--layers", "64-4-8-10", "--steps", "30", "--lr", "0.1", "--engine", "direct"]
    assert main([*given, "--precisions", "fp16.16/nearest", "--seeds", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "convolutional net 64-4-8-10" in printed
    assert "forward.conv2d." in (tmp_path / "plan.txt").read_text()
    assert main([*given[:2], "mlp", "--layers", "64-8-10", "--precisions", "fp32.32", "--out", str(tmp_path)]) == 2


def test_the_profile_names_its_convolutions(capsys: pytest.CaptureFixture[str]) -> None:
    profile(SMALL, "fp16.16/stochastic", None)
    assert ".grad_weight.conv2d_weight_gradient." in capsys.readouterr().out


@pytest.mark.parametrize(
    "layers, message", [((63, 4, 10), "square"), ((64, 4, 4, 4, 4, 10), "have 4 convolutions.*halved 3 times")]
)
def test_bad_layers_are_refused(layers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cnn.kernels(layers)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(
        ValueError, match="unknown model 'rnn': choose mlp, cnn, resnet, lm, bert, gcn, gin, braggnn or uno"
    ):
        Settings(model="rnn")
