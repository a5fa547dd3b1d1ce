"""Unit scaling from the command line, in `compare` and in a training loop: any model, any precision, the same bits."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from ipu_core import Adam, TrainLoop, compare, nn, unit_scale
from ipu_core.__main__ import main
from ipu_core.study.command import recipe
from ipu_core.study.models import catalogue as models
from ipu_core.study.models import mlp
from ipu_core.study.models.size import Size
from ipu_core.study.point import make_loop
from ipu_core.study.settings import Point, Settings
from ipu_core.train.data import dataset as data
from ipu_core.train.data import text
from tests.examples import first

SMALL = {
    "mlp": Settings(layers=(64, 8, 10), batch=4, steps=3, unit_scaled=True),
    "cnn": Settings(model="cnn", layers=(64, 4, 10), batch=4, steps=3, unit_scaled=True),
    "resnet": Settings(model="resnet", layers=(64, 4, 10), batch=4, steps=3, unit_scaled=True),
    "lm": Settings(model="lm", language_model=Size(8, 1, 2, 8), batch=2, steps=3, unit_scaled=True),
}


def task_of(settings: Settings):
    return text.load(None) if settings.model == "lm" else data.digits()


@pytest.mark.parametrize("precision", first(1, ["fp16.16/stochastic", "fp32.32"]))
@pytest.mark.parametrize("name", SMALL)
def test_every_model_trains_to_the_same_bits_on_both_engines(name: str, precision: str) -> None:
    settings = SMALL[name]
    task = task_of(settings)
    problem = models.problem(settings, task)
    loops = [
        make_loop(problem, recipe(replace(settings, engine=engine), problem), Point(precision, 1))
        for engine in ("tiles", "direct")
    ]
    batches = problem.batches(1)
    one, other = ([loop.train(batches(step)) for step in range(3)] for loop in loops)
    assert one == other
    assert np.isfinite(one).all()
    weights = [leaf for leaf in nn_leaves(loops[0].params) if leaf.ndim > 1]
    assert all(0.3 < float(np.std(leaf.astype(np.float64))) < 2 for leaf in weights)


def nn_leaves(tree):
    if isinstance(tree, dict):
        return [leaf for each in tree.values() for leaf in nn_leaves(each)]
    return [leaf for each in tree for leaf in nn_leaves(each)] if isinstance(tree, list) else [tree]


def test_the_command_line_trains_and_says_so(tmp_path, capsys) -> None:
    words = ["train", "mlp", "--layers=64-16-10", "--steps=20", "--batch=16", "--engine=direct", "--optimizer=adam"]
    assert main([*words, "--unit-scaled", "--precision=fp16.16/stochastic", f"--out={tmp_path / 'a'}"]) == 0
    assert "perceptron 64-16-10, unit-scaled, adam lr 0.03" in capsys.readouterr().out
    assert main([*words, "--mup", "--precision=fp16.16/stochastic", f"--out={tmp_path / 'b'}"]) == 0
    assert "perceptron 64-16-10, u-muP, adam lr 0.5" in capsys.readouterr().out
    assert (tmp_path / "a" / "results.jsonl").read_text() != (tmp_path / "b" / "results.jsonl").read_text()


def test_mup_has_rules_for_adam_alone(capsys, tmp_path) -> None:
    assert main(["train", "mlp", "--mup", "--optimizer=sgd", f"--out={tmp_path}"]) == 2
    assert "u-muP's learning rates are those of adam or adamw, not of Sgd" in capsys.readouterr().err


def test_what_is_not_asked_for_is_not_in_the_record() -> None:
    task = data.digits()
    plain, scaled = Settings().record(task), Settings(unit_scaled=True, mup=True).record(task)
    assert {"mup", "unit_scaled"}.isdisjoint(plain)
    assert (scaled["mup"], scaled["unit_scaled"]) == (True, True)


def test_compare_and_pickles_take_a_scaled_loss() -> None:
    task = data.digits()
    loss = unit_scale(mlp.loss, deviation=task.deviation)
    batches = data.batches(task, 8, 0)
    params = nn.unit_parameters(0, mlp.initial((64, 8, 10), 0))
    study = compare(loss, params, [batches(i) for i in range(3)], ["fp32.32", "fp16.16/nearest"],
                    optimizer=Adam(0.03), steps=4, seeds=1, engine="direct")  # fmt: skip
    assert len(study.results) == 2
    assert study.settings["loss"] != compare(mlp.loss, params, [batches(0)], ["fp32.32"], optimizer=Adam(0.03), steps=1,
                                             seeds=1, engine="direct").settings["loss"]  # fmt: skip
    again = pickle.loads(pickle.dumps(loss))  # our own
    loops = [TrainLoop(f, params, batches(0), optimizer=Adam(0.03), precision="fp16.32", engine="direct")
             for f in (loss, again)]  # fmt: skip
    assert loops[0].train(batches(0)) == loops[1].train(batches(0))


def test_a_batch_in_parts_and_a_loss_scale_go_with_it() -> None:
    task = data.digits()
    loss, batches = unit_scale(mlp.loss, deviation=task.deviation), data.batches(task, 8, 0)
    params = nn.unit_parameters(0, mlp.initial((64, 8, 10), 0))
    common = {"optimizer": Adam(0.03), "precision": "fp32.32", "engine": "direct"}
    plain = TrainLoop(loss, params, batches(0), **common).train(batches(0))
    parts = TrainLoop(loss, params, batches(0), micro_batches=2, **common).train(batches(0))
    scaled = TrainLoop(loss, params, batches(0), loss_scale=8.0, **common).train(batches(0))
    assert parts == pytest.approx(plain, rel=1e-5)
    assert scaled == plain
