"""A sweep: its axes and ranges, its bisection, what it refuses, and kills in its midst."""

from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, OtherStudy, Sgd, compare, sweep
from ipu_core.study.axes import axes_of, drawn, expand, follows, grid, label, setting
from ipu_core.study.results import Study
from ipu_core.study.rows import beside
from ipu_core.study.swept import Sweep

TARGET = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def loss(params: Any, batch: Any) -> Any:
    error = batch @ params["w"] - batch @ TARGET
    return (error * error).mean()


def batches(seed: int, step: int) -> Any:
    return np.random.default_rng([seed, step]).standard_normal((8, 4), dtype=np.float32)


def swept(axes: Mapping[str, Any], *, seeds: int = 2, steps: int = 20, rate: float = 0.1, **how: Any) -> Sweep:
    start = {"w": np.zeros((4, 3), np.float32)}
    return sweep(loss, start, batches, axes, optimizer=Sgd(rate), steps=steps, seeds=seeds, engine="direct", **how)


def bits(made: Sweep | Study) -> list[dict[str, Any]]:
    """Every row but the time it took."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in made.rows()]


def test_a_range_goes_both_ways_and_stays_a_text() -> None:
    assert expand("e8m3 ... e8m1") == ["e8m3", "e8m2", "e8m1"]
    assert expand("e4m3@stochastic(bits=1) ... e4m3@stochastic(bits=3)")[1] == "e4m3@stochastic(bits=2)"
    assert expand(" e5m2 ") == ["e5m2"]


@pytest.mark.parametrize("text", ["e8m3 ... e7m1", "e8m3 ... e8m3", "e8m3 ... bfloat16", "e8m3 ... e8m2 ... e8m1"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no range"):
        expand(text)


def test_draws_are_of_the_grid_and_more_of_them_go_on() -> None:
    axes = axes_of({"weights": "e8m9 ... e8m1", "operands": "e5m9 ... e5m2"})
    few, more = drawn(axes, 5), drawn(axes, 11)
    assert more[:5] == few
    assert all(each in grid(axes) for each in more)
    assert len({tuple(each.items()) for each in more}) == 11


@pytest.mark.parametrize(
    ("axes", "how", "words"),
    [
        ({"weights": []}, {}, "has no values"),
        ({"wieghts": "e8m3"}, {}, "wieghts"),
        ({"weights": "e8m3"}, {"search": "best"}, "search is"),
        ({"weights": "e8m3"}, {"points": 3}, "points"),
        ({"weights": "e8m3"}, {"search": "random"}, "points"),
        ({"weights": "e8m3"}, {"within": 0.0}, "within"),
    ],
)
def test_wrong_calls_are_refused(axes: Any, how: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        swept(axes, **how)


@pytest.mark.parametrize(
    ("axes", "how", "words"),
    [
        ({"lr": [0.1, math.nan]}, {}, "lr must"),
        ({"lr": ["fast"]}, {}, "lr must"),
        ({"group": "4 ... 0"}, {"search": "bisect"}, "group"),
        ({"micro_batches": [1, 3]}, {}, "3 equal micro-batches"),
        ({"weights": "e8m3"}, {"by": "accuracy"}, "no measure 'accuracy'; there are final_loss, saturated_weights"),
        ({"weights": "e8m3"}, {"by": "cycles_per_step"}, "engine='direct' models no machine"),
        ({"weights": "e8m3"}, {"by": "loss", "evaluate": lambda params, precision: {"size": 1.0}}, "seconds, size"),
        ({"weights": "e8m3"}, {"evaluate": lambda params: {"size": 1.0}}, "evaluate takes"),
    ],
)
def test_what_is_wrong_with_a_later_point_is_found_before_the_first(
    axes: Any, how: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        swept(axes, folder=tmp_path / "study", **how)
    assert not (tmp_path / "study").exists()


def test_texts_say_numbers_where_an_axis_has_them() -> None:
    (axis,) = axes_of({"group": "1 ... 4"})
    assert axis.values == (1, 2, 3, 4)
    made = swept({"group": "2 ... 4"}, seeds=1, steps=2)
    assert [each.values["group"] for each in made.settings[1:]] == [2, 3, 4]


def test_a_bisection_finds_what_the_whole_line_finds() -> None:
    axes = {"weights": "e8m12 ... e8m1"}
    found, every = swept(axes, search="bisect", within=0.5, steps=40), swept(axes, search="each", within=0.5, steps=40)
    trains = [every.trains(each) for each in every.settings[1:]]
    assert trains == sorted(trains, reverse=True)
    assert 0 < trains.count(True) < 12
    assert found.fewest == {"weights": every.settings[trains.count(True)].values["weights"]}
    assert len(found.settings) < len(every.settings)
    # It tells of every point that it trained, to the bits of the whole line.
    assert all(row in bits(every) for row in bits(found))


def test_rows_are_in_the_order_of_the_call(tmp_path: Path) -> None:
    made = swept({"lr": [0.1, 0.01], "weights": ["e8m1", "e8m9"]}, folder=tmp_path)
    rows = [(row["lr"], row["weights"], row["seed"]) for row in made.rows() if row["weights"]]
    assert rows == [(lr, fmt, seed) for lr in (0.1, 0.01) for fmt in ("e8m1", "e8m9") for seed in (0, 1)]
    with open(tmp_path / "sweep.csv", newline="") as file:
        assert [float(row["final_loss"]) for row in csv.DictReader(file)] == [row["final_loss"] for row in made.rows()]


def test_a_study_has_rows_in_the_order_of_the_call(tmp_path: Path) -> None:
    names = ["fp16.16/stochastic", "fp32.32"]
    study = compare(loss, {"w": np.zeros((4, 3), np.float32)}, batches, names, optimizer=Sgd(0.1), steps=5, seeds=2)
    study.results.reverse()  # as workers might finish
    assert [(row["precision"], row["seed"]) for row in study.rows()] == [
        (name, seed) for name in names for seed in (0, 1)
    ]
    assert [(row["seed"], row["step"]) for row in study.curves()][:6] == [*((0, step) for step in range(5)), (1, 0)]
    study.to_csv(tmp_path / "curves.csv", curves=True)
    with open(tmp_path / "curves.csv", newline="") as file:
        assert [float(row["loss"]) for row in csv.DictReader(file)] == [row["loss"] for row in study.curves()]


def test_another_optimizer_is_refused_and_more_values_go_on(tmp_path: Path) -> None:
    few = swept({"weights": ["e8m9"]}, folder=tmp_path)
    before = (tmp_path / "results.jsonl").read_text()
    more = swept({"weights": ["e8m9", "e8m2"]}, folder=tmp_path)
    assert (tmp_path / "results.jsonl").read_text().startswith(before)
    assert bits(more)[: len(bits(few))] == bits(few)
    with pytest.raises(OtherStudy, match="optimizer"):
        swept({"weights": ["e8m9"]}, folder=tmp_path, rate=0.2)


def whole(folder: Path | None) -> Sweep:
    return swept({"weights": "e8m9 ... e8m2"}, steps=400, folder=folder)


def test_a_sweep_killed_twice_has_the_bits_of_one_that_never_was(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    program = "import sys, pathlib; from tests.ipu_core.study.test_sweep import whole; whole(pathlib.Path(sys.argv[1]))"
    for count in (3, 9):
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while not (results.exists() and len(results.read_text().splitlines()) >= count):
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < end
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    kept = results.read_text().splitlines()
    assert 9 <= len(kept) < 18
    resumed = whole(tmp_path)
    # What the killed ones finished was not trained again.
    assert results.read_text().splitlines()[: len(kept)] == kept
    assert bits(resumed) == bits(whole(None))


def test_what_three_seeds_say_beside_three_others() -> None:
    line = {0: 1.0, 1: 2.0, 2: 3.0}
    near = {seed: loss + each for (seed, loss), each in zip(line.items(), (0.1, 0.2, 0.3), strict=True)}
    assert beside(near, line) == "cannot be told apart"  # 3.5 standard errors, and three seeds need 4.3
    worse = {seed: loss + each for (seed, loss), each in zip(line.items(), (0.19, 0.2, 0.21), strict=True)}
    assert beside(worse, line) == "worse by 10.0%"
    assert beside(line, worse) == "better by 9.1%"
    assert beside(worse, line, more_is_better=True) == "better by 10.0%"
    assert beside({0: 3.0, 1: 4.0, 2: 5.0}, line) == "worse, 2.0 times as much"
    assert beside({**line, 1: math.nan}, line) == "diverged (1 of 3)"
    assert beside({0: 1.1}, {0: 1.0}) == "10.0% above, one seed"


def test_a_setting_is_compared_with_the_base_under_the_same_training() -> None:
    axes = axes_of({"operands": ["e5m3"], "lr": [0.1, 0.01]})
    every = [
        setting("fp32.32", axes, each) for each in ({}, {"lr": 0.1}, {"lr": 0.01}, {"operands": "e5m3", "lr": 0.01})
    ]
    made = Sweep("", axes, every[0], every)
    assert made.line_of(every[3]) is every[2]
    assert made.line_of(every[0]) is every[0]


def test_a_line_joins_neighbours_of_a_range() -> None:
    assert follows("e8m2", "e8m1")
    assert not follows("e8m1", "e5m10")
    assert follows("0.03", "0.01")


def test_batches_that_come_once_serve_every_comparison_of_a_sweep() -> None:
    start, listed = {"w": np.zeros((4, 3), np.float32)}, [batches(0, step) for step in range(4)]
    axes, how = {"lr": [0.1, 0.05], "group": [4]}, {"optimizer": Sgd(0.1), "steps": 3, "seeds": 1, "engine": "direct"}
    once, often = (sweep(loss, start, given, axes, **how) for given in (iter(listed), listed))  # type: ignore[arg-type]
    assert bits(once) == bits(often)


def test_rates_that_differ_in_a_late_digit_are_two() -> None:
    assert len({label(rate) for rate in (0.1, 0.1000001)}) == 2
    assert len(swept({"lr": [0.1, 0.1000001]}, seeds=1, steps=2).settings) == 3


def test_a_base_that_does_not_train_is_said() -> None:
    made = swept({"weights": "e8m5"}, seeds=1, steps=6, rate=1e30)
    assert "nothing can be compared with it" in str(made)


def test_rows_are_a_dataframe() -> None:
    pytest.importorskip("pandas")
    made = swept({"weights": ["e8m5", "e8m3"]}, seeds=2, steps=3)
    frame = made.to_pandas()
    assert list(frame["seed"]) == [0, 1] * 3
    assert len(made.to_pandas(curves=True)) == 3 * 2 * 3


def test_a_rate_is_of_the_optimizer_beside_it_in_either_order() -> None:
    axes: dict[str, Any] = {"lr": [0.05], "optimizer": [Sgd(0.1), Adam(0.1)]}
    one, other = (swept(dict(each), seeds=1, steps=4) for each in (axes.items(), reversed(axes.items())))
    losses = [sorted(row["final_loss"] for row in made.rows()) for made in (one, other)]
    assert losses[0] == losses[1]
    start = {"w": np.zeros((4, 3), np.float32)}
    alone = compare(loss, start, batches, ["fp32.32"], optimizer=Adam(0.05), steps=4, seeds=1, engine="direct")
    assert alone.rows()[0]["final_loss"] in losses[0]


def test_an_axis_of_optimizers_is_called_by_what_they_are_given() -> None:
    assert label(Sgd(0.1, momentum=0.9)) == "Sgd(lr=0.1, momentum=0.9)"
    with pytest.raises(TypeError, match="the axis 'optimizer' has texts, numbers or values"):
        axes_of({"optimizer": [[1]]})
