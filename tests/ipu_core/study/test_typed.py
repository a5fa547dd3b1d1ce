"""Optimizers, schedules and groups by the words of the command line, and a study trained with them."""

from pathlib import Path

import numpy as np
import pytest

import lowprec as lp
from ipu_core.__main__ import main
from ipu_core.study import axes, typed
from ipu_core.study.compare import compare
from ipu_core.study.models.catalogue import problem
from ipu_core.study.settings import Settings
from ipu_core.study.typed import optimizer, read_schedule
from ipu_core.train.data import dataset as data
from ipu_core.train.optim import (
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Asgd,
    Group,
    Lamb,
    Lars,
    Lion,
    NAdam,
    RAdam,
    RmsProp,
    Rprop,
    Sgd,
)
from ipu_core.train.schedules import Constant, Cosine, Piecewise, Polynomial, WarmUp


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("sgd", Sgd(0.5)),
        ("sgd/momentum=0.9/nesterov", Sgd(0.5, 0.9, True)),
        ("adam/bias_correction=false/store_root=true", Adam(0.5, bias_correction=False, store_root=True)),
        ("adamw/weight_decay=0.1", AdamW(0.5, weight_decay=0.1)),
        ("lamb/max_weight_norm=10/scaled_state=64", Lamb(0.5, max_weight_norm=10.0, scaled_state=64.0)),
        ("rmsprop/momentum=0.9/centered", RmsProp(0.5, momentum=0.9, centered=True)),
        ("adagrad/initial=0.1", Adagrad(0.5, initial=0.1)),
        ("nadam/momentum_decay=0.01", NAdam(0.5, momentum_decay=0.01)),
        ("radam/eps_corrected=false", RAdam(0.5, eps_corrected=False)),
        ("adamax/b2=0.9", Adamax(0.5, b2=0.9)),
        ("adadelta/eps=0.1", Adadelta(0.5, eps=0.1)),
        ("adafactor/d=2", Adafactor(0.5, d=2.0)),
        ("asgd/t0=10", Asgd(0.5, t0=10.0)),
        ("rprop/grow=1.5", Rprop(0.5, grow=1.5)),
        ("lion/b2=0.95/weight_decay=0.1", Lion(0.5, b2=0.95, weight_decay=0.1)),
        ("lars/clip_norm=1/clip_value=2", Lars(0.5, clip_norm=1.0, clip_value=2.0)),
    ],
)
def test_an_optimizer_in_words(words: str, wanted: object) -> None:
    assert optimizer(words, 0.5) == wanted


def test_groups_in_words() -> None:
    given = ("*.bias/lr=2/decay=0", "0.*/frozen")
    assert optimizer("sgd", 0.5, groups=given).groups == (  # type: ignore[attr-defined]
        Group("*.bias", lr=2.0, decay=0.0), Group("0.*", frozen=True),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("constant", 0.5),
        ("constant/warmup=10", WarmUp(Constant(0.5), 10)),
        ("linear/end=0.5", Polynomial(0.5, 0.25, 100)),
        ("cosine/warmup=10/end=0.1", WarmUp(Cosine(0.5, 90, 0.05), 10)),
        ("polynomial/power=3", Polynomial(0.5, 0.0, 100, 3.0)),
        ("piecewise/50=0.1/80=0.5", Piecewise(0.5, ((50, 0.1), (80, 0.5)))),
        ("piecewise/50=0.1/warmup=10", WarmUp(Piecewise(0.5, ((40, 0.1),)), 10)),
    ],
)
def test_a_schedule_in_words(words: str, wanted: object) -> None:
    assert read_schedule(words, 0.5, 100) == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer", "lamb/wd=1"], "unknown option 'wd' of optimizer lamb; there are clip_value, clip_norm,"),
        (["--optimizer", "adam/b1=2"], "Adam: b1 must lie in [0, 1), not 2.0"),
        (["--optimizer", "adam/b1=x"], "optimizer adam: b1 must be a number, not 'x'"),
        (["--optimizer", "sgd/nesterov=maybe"], "optimizer sgd: nesterov is true or false, not 'maybe'"),
        (["--schedule", "stairs"], "unknown schedule 'stairs': choose constant, linear, cosine"),
        (["--schedule", "cosine/warmup=5000"], "warmup must be a number of steps from 0 to 4999, not 5000"),
        (["--schedule", "piecewise/x=2"], "unknown option 'x' of schedule piecewise"),
        (["--group", "*.bias/rate=2"], "unknown option 'rate' of group *.bias; there are lr, decay, frozen"),
        (["--group", "biases/lr=2"], "no parameter is called 'biases'; there are 0.bias, 0.weight"),
        (["--precisions", "fp16.32/scaled_state=0"], "scaled_state must be a number in (0, 2^60], not 0.0"),
        (["--precisions", "fp16.32/scaled_state=x"], "scaled_state must be a number in (0, 2^60], not 'x'"),
    ],
)  # fmt: skip
def test_wrong_words_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "--engine", "direct", "--out", str(tmp_path / "out"), *arguments]) == 2
    printed = capfd.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_a_study_is_trained_as_its_words_say(tmp_path: Path) -> None:
    line = "study --layers 64-16-10 --steps 30 --lr 0.05 --engine direct --precisions mlperf-bert --seeds 1 --workers 1"
    own = ["--optimizer", "lamb/clip_norm=1", "--schedule", "cosine/warmup=5", "--group", "*.bias/lr=2"]
    assert main([*line.split(), *own, "--out", str(tmp_path / "words")]) == 0
    settings = Settings(layers=(64, 16, 10), steps=30, lr=0.05, engine="direct")
    model = problem(settings, data.digits())
    wanted = compare(
        model.loss, model.params, lambda seed, step: model.batches(seed)(step), ["mlperf-bert"], seeds=1, steps=30,
        optimizer=Lamb(WarmUp(Cosine(0.05, 25), 5), clip_norm=1.0, groups=(Group("*.bias", lr=2.0),)), engine="direct",
    )  # fmt: skip
    assert main([*line.split(), "--optimizer", "lamb", "--out", str(tmp_path / "plain")]) == 0
    ends = [(tmp_path / name / "results.jsonl").read_text() for name in ("words", "plain")]
    losses = str(wanted.results[0]["losses"])
    assert losses in ends[0]
    assert losses not in ends[1]


@pytest.mark.slow
def test_mlperf_bert_reaches_the_loss_of_float32_by_its_defaults() -> None:
    model, seeds = problem(Settings(), data.digits()), 6
    made = compare(
        model.loss, model.params, lambda seed, step: model.batches(seed)(step), ["fp32.32", "mlperf-bert"],
        optimizer=Lamb(0.01), steps=300, seeds=seeds, engine="direct",
    )  # fmt: skip
    ends: dict[str, list[float]] = {"fp32.32": [], "mlperf-bert": []}
    for result in made.results:
        ends[result["precision"]].append(float(np.mean(result["losses"][-20:])))
    full, half = ends["fp32.32"], ends["mlperf-bert"]
    error = np.sqrt((np.var(full, ddof=1) + np.var(half, ddof=1)) / seeds)
    assert np.mean(half) - np.mean(full) < 2 * error
    assert np.mean(half) < 0.05  # of 2.3 at first


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ring", "ring"),
        ("tree/first=2", "tree/first=2"),
        ("ring/first=0/wire=float32/rounding=nearest_even", "ring"),
        ("two_level/group=2/wire=float16/rounding=stochastic", "two_level/group=2/wire=float16/rounding=stochastic"),
        ("ring_pair/accumulate=bfloat16", "ring_pair/accumulate=bfloat16"),
    ],
)
def test_a_collective_is_told_as_it_is_typed(text: str, shown: str) -> None:
    assert typed.collective_words(typed.collective(text)) == shown
    assert typed.collective(shown) == typed.collective(text)
    (axis,) = axes.axes_of({"collective": [text]})
    assert axis.values == (typed.collective(text),)
    assert axes.label(axis.values[0]) == shown


def test_a_collective_that_cannot_be_typed_is_told_in_full() -> None:
    made = lp.Collective(wire="float16", rounding=lp.Rounding("stochastic", random_bits=8))
    assert typed.collective_words(made) == "ring/wire=float16/rounding=stochastic, random bits 8"
