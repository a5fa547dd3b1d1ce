"""compare(): a user's own loss in several precisions, its table, picture, files and refusals."""

import inspect
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipu_core import Execution, Sgd, Training, TrainLoop, Watch, compare, nn
from ipu_core.chip.target import Target
from ipu_core.errors import OutOfTileMemory
from ipu_core.ir.precision.precision import Precision
from ipu_core.study.results import Study
from ipu_core.train.data.dataset import shuffled
from lowprec import Accumulation

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 16, 8)).astype(np.float32)
BATCHES = [(x, np.sin(x[:, :1])) for x in X]
PARAMS = {"a": RNG.normal(size=(8, 12)).astype(np.float32) / 3, "b": np.zeros((12, 1), np.float32)}
SMALL = Target("gc200", tiles=16)


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    return np.mean((nn.tanh(x @ params["a"]) @ params["b"] - y) ** 2)


def run(precisions: Any = ("fp32.32", "fp16.16/stochastic"), **more: Any) -> Study:
    settings = {"optimizer": Sgd(0.1), "steps": 8, "seeds": 2, "engine": "direct"} | more
    return compare(loss, settings.pop("params", PARAMS), settings.pop("batches", BATCHES), precisions, **settings)


@pytest.fixture(scope="module")
def study() -> Study:
    return run(steps=60, engine="tiles", target=SMALL)


def test_every_precision_is_trained_with_every_seed(study: Study) -> None:
    found = [(result["precision"], result["seed"]) for result in study.results]
    assert found == [(p, s) for s in (0, 1) for p in ("fp32.32", "fp16.16/stochastic")]
    assert all(len(result["losses"]) == 60 for result in study.results)
    assert all(result["losses"][-1] < 0.5 * result["losses"][0] for result in study.results)
    assert study.failures == {}


def test_table_and_picture_and_html(study: Study) -> None:
    made = study.table()
    assert [row[0] for row in made.rows] == ["fp32.32", "fp16.16/stochastic"]
    assert "cycles/step" in made.columns
    assert "test accuracy" not in made.columns
    assert str(study) == str(made) == repr(study)
    assert study._repr_html_().startswith("<table><caption>loss</caption>")
    assert study.plot()._repr_png_()[:4] == b"\x89PNG"


def test_every_point_is_a_training_in_its_own_precision(study: Study) -> None:
    training = Training(optimizer=Sgd(0.1), precision="fp32.32")
    order = shuffled(len(BATCHES), 1, 1)
    for name in study.precisions:
        own = replace(training, precision=Precision.parse(name))
        loop = TrainLoop(loss, PARAMS, BATCHES[0], training=own, execution=Execution(target=SMALL), key=1)
        losses = loop.run(lambda step: BATCHES[int(order(step)[0])], 60)
        (result,) = (each for each in study.results if (each["precision"], each["seed"]) == (name, 1))
        assert result["losses"] == losses.tolist()
        assert study.trainings[name] == own.digest()


@pytest.mark.filterwarnings("ignore::ipu_core.errors.OtherOrders")  # the chip's are not asked for
def test_values_and_their_keywords_are_the_same_study() -> None:
    said: dict[str, Any] = {"micro_batches": 2, "loss_scale": 8.0, "overlap": True, "streamed": ["params.*"]}
    by_keywords = run(steps=2, **said, adder="pairwise")
    training = Training(
        optimizer=Sgd(0.1), precision="fp16.16/nearest", micro_batches=2, loss_scale=8.0, adder="pairwise"
    )
    execution = Execution(engine="direct", overlap=True, streamed=("params.*",))
    by_values = compare(
        loss, PARAMS, BATCHES, ["fp32.32", "fp16.16/stochastic"], training=training, execution=execution, steps=2,
        seeds=2,
    )  # fmt: skip
    assert by_values.settings == by_keywords.settings
    assert by_values.trainings == by_keywords.trainings
    assert by_values.executions == by_keywords.executions == (str(execution),)
    assert [each["losses"] for each in by_values.results] == [each["losses"] for each in by_keywords.results]
    assert by_values.settings["training"]["micro_batches"] == 2


def test_the_signature_names_every_option() -> None:
    names = inspect.signature(compare).parameters
    fields = {*Training.__dataclass_fields__, *Execution.__dataclass_fields__} - {"precision"}
    assert fields <= names.keys()
    assert not {"options", "precision"} & names.keys()
    assert [name for name, each in names.items() if each.kind is each.POSITIONAL_OR_KEYWORD] == [
        "loss", "params", "batches", "precisions",
    ]  # fmt: skip


REFUSED: dict[str, dict[str, Any]] = {
    "compare takes precisions, a list of names, and no precision": {"precision": "fp32.32"},
    "there is no option 'micro_batch'; there are precision, ": {"micro_batch": 2},
    "optimizer is a field of training": {"training": Training(optimizer=Sgd(0.1), precision="fp32.32")},
    "engine is a field of execution": {"execution": Execution()},
    "folder must be a path, not 3": {"folder": 3},
    "a study trains step by step, and tells of each: steps_per_call must be 1, not 4": {"steps_per_call": 4},
    "several points cannot be kept in one file: compare.folder=...": {"watch": Watch(1, path="w.npy")},
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_that_are_none_are_refused(message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        run(**REFUSED[message])


def test_both_engines_give_the_same_losses(study: Study) -> None:
    direct = run(steps=60, target=SMALL)
    assert [result["losses"] for result in direct.results] == [result["losses"] for result in study.results]
    assert "cycles/step" not in direct.table().columns


def test_precisions_share_the_order_of_every_sum(study: Study) -> None:
    def orders(words: str) -> list[str]:
        lines = [line for line in words.splitlines() if "accumulation:" in line]
        return [line.split("accumulate")[0] for line in lines]

    wide, narrow = study.plan.split("\n\n")
    assert orders(wide) == orders(narrow) != []


def test_an_accumulation_of_ones_own_is_used() -> None:
    number = 0  # the first product of the loss
    plain, other = (run(["fp16.16/nearest"], accumulations=a) for a in ({}, {number: Accumulation(group=1)}))
    assert plain.results[0]["losses"] != other.results[0]["losses"]
    digests = [next(iter(s.results[0]["accumulations"].values())) for s in (plain, other)]
    assert digests[0] != digests[1]


def test_seeds_draw_the_order_of_listed_batches_and_may_draw_parameters() -> None:
    first, second = run(["fp32.32"]).results
    assert first["losses"] != second["losses"]
    still = [result["losses"][: len(BATCHES)] for result in run(["fp32.32"], optimizer=Sgd(0.0)).results]
    assert still[0] != still[1]
    assert sorted(still[0]) == sorted(still[1])  # a pass visits every batch once, whatever the order
    drawn = run(["fp32.32"], params=lambda seed: {**PARAMS, "a": PARAMS["a"] * (1 + seed)}, batches=BATCHES[:1])
    same = run(["fp32.32"], batches=BATCHES[:1])
    assert same.results[0]["losses"] == same.results[1]["losses"] == drawn.results[0]["losses"]
    assert drawn.results[1]["losses"] != drawn.results[0]["losses"]


def test_batches_may_be_a_function_of_seed_and_step() -> None:
    asked: list[tuple[int, int]] = []

    def batches(seed: int, step: int) -> Any:
        asked.append((seed, step))
        return BATCHES[(seed + step) % 6]

    run(["fp32.32"], batches=batches, steps=3)
    assert {(s, t) for s in (0, 1) for t in (0, 1, 2)} <= set(asked)


def test_evaluate_adds_measures() -> None:
    made = run(evaluate=lambda params, precision: {"test_accuracy": float(params["b"].dtype == np.float16)})
    assert [row[3] for row in made.table().rows] == ["0.0 ± 0.0 %", "100.0 ± 0.0 %"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precisions": ["fp12.7"]}, "unknown precision 'fp12.7'.*; there are fp32.32"),
        ({"precisions": ["fp16.16"]}, "must say how it rounds"),
        ({"precisions": "fp32.32"}, "must be a list of names"),
        ({"precisions": []}, "must be a list of names"),
        ({"steps": 0}, "steps must be an integer of at least 1, not 0"),
        ({"seeds": 0}, "seeds must be an integer of at least 1, not 0"),
        ({"threads": 0}, "threads must be an integer of at least 1, not 0"),
        ({"engine": "steam"}, "unknown engine 'steam': choose tiles or direct"),
        ({"target": "gc3"}, "unknown target 'gc3'"),
        ({"batches": []}, "at least one batch"),
        ({"batches": 3}, "batches must be a list of batches, or a function"),
        ({"batches": [BATCHES[0], (X[0][:5], X[0][:5, :1])]}, r"equal shapes; batch 0 has .*, batch 1 "),
        ({"precisions": None}, "must be a list of names"),
        ({"precisions": [16]}, "must be a list of names"),
        ({"steps": True}, "steps must be an integer, not True"),
        ({"batches": [(X[0][:, :5], X[0][:, :1])]}, "inner sizes 5 and 8 differ"),
        ({"batches": {"x": X}}, "batches must be a list of batches"),
        ({"batches": "digits"}, "batches must be a list of batches"),
        ({"batches": iter(())}, "at least one batch"),
        ({"batches": [BATCHES[0], (X[0].astype(str), X[0][:, :1])]}, "batch 1, array 0: an array of <U"),
        ({"batches": [dict(zip(names, BATCHES[0], strict=True)) for names in ("xy", "xz")]},
         r"the same arrays: batch 0 has \['x', 'y'\], batch 1 \['x', 'z'\]"),
        ({"threads": 1025}, "threads must be an integer from 1 to 1,024, not 1025"),
        ({"title": 3}, "title must be a str, not 3"),
        ({"title": None}, "title must be a str, not None"),
        ({"executor": 2}, "executor must be one of concurrent.futures' kind, not 2"),
        ({"executor": ""}, "executor must be one of concurrent.futures' kind, not ''"),
        ({"executor": ThreadPoolExecutor}, "executor must be one of concurrent.futures' kind, not <class"),
        ({"evaluate": 3}, "evaluate takes .params, precision."),
        ({"watch": 0}, "every must be an integer of at least 1, not 0"),
        ({"on_nonfinite": None}, "on_nonfinite must be 'warn' or 'stop', not None"),
        ({"folder": ""}, "folder must be the path of a file, not ''"),
        ({"folder": b"mine"}, "folder must be a path, not b'mine'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_training(
    change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainLoop, "train", None)
    with pytest.raises((ValueError, TypeError), match=message):
        run(**change)


def test_batches_may_come_from_a_generator_and_precisions_twice() -> None:
    made = run(["fp32.32", "fp32.32"], batches=(batch for batch in BATCHES))
    assert [r["losses"] for r in made.results] == [r["losses"] for r in run(["fp32.32"]).results]


def test_a_mistake_in_evaluate_shows_before_training() -> None:
    asked: list[int] = []

    def batches(seed: int, step: int) -> Any:
        asked.append(step)
        return BATCHES[0]

    with pytest.raises(TypeError, match=r"evaluate must give named numbers .*, not 3"):
        run(batches=batches, evaluate=lambda params, precision: 3)
    assert set(asked) == {0}  # the example that is traced


def test_an_error_of_the_users_own_functions_fails_its_point_only() -> None:
    made = run(["fp32.32"], batches=lambda seed, step: {0: BATCHES}[seed][step % 6])
    assert len(made.results) == 1
    assert made.failures == {"fp32.32 seed 1": "KeyError: 1"}
    assert "final loss" in str(made)


def test_where_all_points_fail_no_empty_table_is_shown() -> None:
    made = run(["fp32.32"], batches=lambda seed, step: {0: BATCHES[0]}[step + seed])
    assert not made.results
    said = str(made).splitlines()
    assert said[0].endswith(f": no point was finished, all {len(made.failures)} failed")
    assert [line for line in said[1:] if " failed: KeyError" in line] == said[1:]
    assert "<table" not in made._repr_html_()
    assert "no point was finished" in made._repr_html_()


def test_a_model_that_does_not_fit_is_refused_before_training() -> None:
    tiny = Target("gc200", tiles=2, tile_memory=4096)
    with pytest.raises(OutOfTileMemory, match=r"tile \d+ needs"):
        run(engine="tiles", target=tiny)


@pytest.mark.parametrize("choice", ["warn", "stop"])
def test_a_point_whose_loss_is_not_finite_says_so_at_once(choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    def batches(seed: int, step: int) -> Any:
        seen.append(step)
        x, y = BATCHES[0]
        return (np.full_like(x, np.nan), y) if step == 3 else (x, y)

    made = run(["fp32.32"], seeds=1, batches=batches, on_nonfinite=choice, evaluate=lambda params, _: {"size [m]": 2.5})
    said = capsys.readouterr().err
    assert said.startswith("fp32.32 seed 0: the loss of step 3 is nan: what follows is not training")
    assert ("not finite before it: array 0 of the batch; it ends here" in said) == (choice == "stop")
    assert max(seen) == (3 if choice == "stop" else 7)
    (result,) = made.results
    assert (len(result["losses"]), result["not_finite_step"]) == (8, 3)
    assert np.isnan(result["losses"][3:]).all()
    assert made.table().rows[0][2:5] == ("nan", "not finite", "2.5000")
    assert "size [m]" in made.table().columns


def test_a_measure_with_the_name_of_another_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="a measure named 'seconds', which every result has: give it another name"):
        run(evaluate=lambda params, _: {"seconds": 1.0})
    with pytest.raises(ValueError, match="on_nonfinite must be 'warn' or 'stop', not 'ignore'"):
        run(on_nonfinite="ignore")
