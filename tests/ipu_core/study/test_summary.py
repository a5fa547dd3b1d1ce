"""The table of a study, in numbers and in text."""

import math
from typing import Any

import numpy as np
import pytest

from ipu_core.study.rows import differences
from ipu_core.study.summary import curve, final_loss, has_diverged, spread, summarise, table

PRECISIONS = ["fp16.16/stochastic"]


def result(precision: str, seed: int, last: float, **more: object) -> dict[str, object]:
    return {"precision": precision, "seed": seed, "losses": [9.0] * 38 + [last, last + 1], **more}


def test_final_loss_is_the_mean_of_the_last_twentieth() -> None:
    assert final_loss([9.0] * 38 + [1.0, 2.0]) == 1.5
    assert final_loss([3.0]) == 3.0


def test_spread_is_mean_and_sample_deviation() -> None:
    assert spread([1.0, 3.0]) == (2.0, math.sqrt(2))
    assert spread([1.0, None])[0] == 1.0
    assert spread([0.0, 2.0]) == (1.0, math.sqrt(2))
    assert math.isnan(spread([1.0])[1])
    assert math.isnan(spread([None])[0])


def test_table_has_a_row_per_precision_in_the_order_asked_for() -> None:
    results = [
        result("b", 0, 1.0, lost_updates=0.5),
        result("a", 0, 2.0, lost_updates=0.25),
        result("b", 1, 3.0),
    ]
    backwards = table(summarise(results, ["c", "b", "a"]), "")
    assert [row[0] for row in backwards.rows] == ["b", "a"]
    made = table(summarise(results, ["a", "b", "c"]), "title")
    assert made.columns == ("precision", "seeds", "final loss", "updates lost")
    assert made.rows == (("a", "1", "2.5000", "25.0 %"), ("b", "2", "2.5000 ± 1.4142", "50.0 %"))
    assert str(made).splitlines()[0] == "title"
    assert "b " in str(made)
    assert "<td>25.0 %</td>" in made._repr_html_()


def test_shares_are_in_percent_with_their_deviation() -> None:
    shares = [{"test_accuracy": 0.9, "lost_updates": 0.25, "update_kept": 1.0}, {"test_accuracy": 0.7}]
    made = table(summarise([result("a", seed, 1.0, **more) for seed, more in enumerate(shares)], ["a"]), "")
    assert made.columns[3:] == ("test accuracy", "updates lost", "change kept")
    assert made.rows[0][3:] == ("80.0 ± 14.1 %", "25.0 %", "100.0 %")


def test_a_machines_figures_stand_where_its_seeds_agree() -> None:
    figures = [{"cycles_per_step": 5, "tile_memory": 1024}, {}, {"cycles_per_step": 6, "tile_memory": 1024}]
    seeds = [result("a", seed, 1.0, **more) for seed, more in enumerate(figures)]
    assert table(summarise(seeds[:2], ["a"]), "").rows[0][3:] == ("5", "1.0 KiB")
    made = table(summarise(seeds, ["a"]), "", ["tiles of bow", "direct engine"])
    assert made.columns[3:] == ("tile memory",)
    assert made.note.splitlines()[-2:] == ["  tiles of bow", "  direct engine"]
    assert "several places" not in table(summarise(seeds, ["a"]), "", ["tiles of bow"]).note


def test_machine_columns_show_when_there_are_figures() -> None:
    more = {
        "cycles_per_step": 12345,
        "microseconds_per_step": 9.28,
        "tile_memory": 20480,
        "test_accuracy": 0.5,
    }
    made = table(summarise([result("a", 0, 1.0, **more)], ["a"]), "")
    assert made.rows[0][-3:] == ("12,345", "9.3", "20.0 KiB")
    assert "50.0 %" in made.rows[0]


def test_a_diverged_run_shows_as_nan() -> None:
    assert table(summarise([result("a", 0, math.nan)], ["a"]), "").rows[0][2] == "nan"


@pytest.mark.parametrize("window", [1, 4, 7, 20])
def test_curve_is_the_running_mean(window: int) -> None:
    losses = np.random.default_rng(0).normal(size=20)
    wanted = [losses[i : i + window].mean() for i in range(21 - window)]
    assert np.allclose(curve(losses.tolist(), window), wanted)


def test_a_large_loss_spoils_the_running_mean_only_where_it_is_in_it() -> None:
    assert np.allclose(curve([1e30, *[1e-9] * 9], 3)[1:], 1e-9, rtol=1e-12, atol=0)
    assert curve([1.0, math.inf, 1.0, 1.0, 1.0], 2).tolist() == [math.inf, math.inf, 1.0, 1.0]
    assert np.isnan(curve([1.0, math.nan, 1.0, 1.0, 1.0], 2)).tolist() == [True, True, False, False]


def test_a_study_without_a_finished_point_has_an_empty_table() -> None:
    assert str(table([], "title")).splitlines()[:2] == ["title", "precision  seeds"]


def test_every_measure_has_a_column_with_its_unit_and_the_digits_of_its_size() -> None:
    more = {"distance [m]": 123.456, "error_share": 0.125, "perplexity": 2.5, "tiny": 1e-7, "hits": 3, "gone": None}
    made = table(summarise([result("a", 0, 1.0, **more), result("b", 0, 1.0)], ["a", "b"]), "")
    assert made.columns[3:] == ("distance [m]", "error share", "perplexity", "tiny", "hits", "gone")
    assert made.rows[0][3:] == ("123.5", "12.5 %", "2.5000", "1.000e-07", "3.0000", "nan")
    assert made.rows[1][3:] == ("",) * 6


def test_a_table_fits_80_columns() -> None:
    more = {f"measure_{i}": 1.0 for i in range(12)}
    made = table(summarise([result("fp16.16/stochastic", seed, 1.0, **more) for seed in range(2)], PRECISIONS), "")
    lines = str(made).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(f"measure {i}" in str(made) for i in range(12))
    assert sum(line.startswith("fp16.16/stochastic") for line in lines) > 1


def test_a_loss_that_is_not_finite_is_said_below_the_table() -> None:
    made = table(summarise([result("a", 3, math.inf, not_finite_step=7), result("b", 0, 1.0)], ["a", "b"]), "")
    assert "a: a loss that is not finite from step 7 of seed 3" in str(made).splitlines()


def test_batches_that_differ_by_chance_are_no_loss_that_rose() -> None:
    """Of a thousand runs of noise nine may be called so, at three standard errors of ten steps and ten."""
    rng = np.random.default_rng(1)
    noise = [has_diverged(rng.normal(2.3, 0.1, 40).tolist()) for _ in range(1000)]
    assert sum(noise) <= 9
    assert all(has_diverged((rng.normal(2.3, 0.1, 40) + np.arange(40) / 40).tolist()) for _ in range(100))
    assert not has_diverged([1.0] * 19)
    lost = result("a", 0, 1.0) | {"lost_updates": 1.0, "update_kept": 0.0}
    assert "updates lost  " in next(
        line for line in str(table(summarise([lost], ["a"]), "")).splitlines() if line[0] == "a"
    )


def test_what_became_of_a_row_is_said_below_the_table() -> None:
    rising, falling = [1.0] * 20 + [2.0] * 20, [2.0] * 20 + [1.0] * 20
    rows = [
        result("a", 0, 1.0) | {"losses": rising, "skipped_steps": [3, 4], "saturated_weights": 0.25},
        result("a", 1, 1.0) | {"losses": falling, "skipped_steps": [], "saturated_weights": 0.0},
        result("b", 0, 1.0) | {"losses": falling, "saturated_weights": 0.0},
    ]
    told = str(table(summarise(rows, ["a", "b"]), "")).splitlines()
    assert "a: steps without an update (overflow under the loss scale): 2 of seed 0" in told
    assert "a: the loss rose, from the first steps to the last (seed 0)" in told
    assert "a: 12 % of the weights are their format's largest number" in told
    assert "one learning rate for all rows: one that needs its own shows here as worse" in told
    assert not any(line.startswith("b:") for line in told)
    alone = str(table(summarise(rows[2:], ["b"]), ""))
    assert "learning rate" not in alone
    assert "but" not in alone.splitlines()[0]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ([{}, {}], None),
        ([{"skipped_steps": [*range(40)]}] * 2, "no update"),
        ([{"skipped_steps": [*range(40)]}, {"skipped_steps": [*range(39)]}], "no update (1 of 2)"),
        ([{"not_finite_step": 7}, {}], "not finite (1 of 2)"),
        ([{"saturated_weights": 0.9}, {"saturated_weights": 1.0}], "saturated"),
        ([{"saturated_weights": 0.001}, {}], None),
        ([{"losses": [1.0] * 20 + [2.0] * 20}] * 2, "rose"),
        ([{"losses": [1.0] * 20 + [2.0] * 20}, {}], None),
    ],
)
def test_what_a_loss_is_not_to_be_read_without_stands_beside_it(
    changed: list[dict[str, Any]], words: str | None
) -> None:
    rows = [result("a", seed, 1.0) | more for seed, more in enumerate(changed)]
    made = table(summarise([*rows, result("b", 0, 1.0)], ["a", "b"]), "")
    assert ("but" in made.columns) == (words is not None)
    if words is not None:
        assert [row[made.columns.index("but")] for row in made.rows] == [words, ""]


def test_all_steps_that_were_skipped_are_said_to_be_all() -> None:
    rows = [result("a", 0, 1.0, skipped_steps=[*range(40)]), result("a", 1, 1.0, skipped_steps=[0])]
    told = str(table(summarise(rows, ["a"]), ""))
    assert "(overflow under the loss scale): all 40 of seed 0, 1 of seed 1" in told


def test_updates_of_a_run_that_is_not_finite_are_neither_lost_nor_kept() -> None:
    broken = result("a", 0, math.nan, not_finite_step=2, lost_updates=0.0, update_kept=1.0)
    (alone,) = summarise([broken], ["a"])
    assert math.isnan(alone.lost_updates.mean)
    assert math.isnan(alone.update_kept.mean)
    assert not {"updates lost", "change kept"} & set(table([alone], "").columns)
    (beside,) = summarise([broken, result("a", 1, 1.0, lost_updates=0.5, update_kept=0.25)], ["a"])
    assert (beside.lost_updates.mean, beside.update_kept.mean) == (0.5, 0.25)


def test_weights_that_are_all_saturated_are_100_percent() -> None:
    told = str(table(summarise([result("a", 0, 1.0, saturated_weights=0.9999)], ["a"]), ""))
    assert "a: 100 % of the weights are their format's largest number" in told


def test_rows_under_unit_scaling_beside_others_want_a_rate_of_their_own() -> None:
    words = "fp32.32/unit_scaled=true, unit-fp16: unit scaling wants weights that begin with deviation 1"
    names = ["fp32.32", "fp32.32/unit_scaled=true", "unit-fp16"]
    rows = [result(name, 0, 1.0) for name in names]
    assert words in str(table(summarise(rows, names), ""))
    assert "unit scaling" not in str(table(summarise(rows[:1], names), ""))
    assert "unit scaling" not in str(table(summarise(rows[1:], names), ""))


def test_rows_are_set_beside_the_first_seed_by_seed() -> None:
    def result(precision: str, seed: int, loss: float, accuracy: float) -> dict[str, Any]:
        return {"precision": precision, "seed": seed, "losses": [loss] * 20, "accuracy": accuracy}

    base = [result("a", seed, 1.0 + seed, 0.5) for seed in range(3)]
    close = [result("b", seed, 1.0 + seed + off, 0.5) for seed, off in enumerate((0.1, -0.1, 0.03))]
    worse = [result("c", seed, 1.5 + seed + off, 0.4) for seed, off in enumerate((0.01, -0.01, 0.0))]
    first, second = differences([*base, *close, *worse], ("a", "b", "c"))
    # by hand: mean of (.1, -.1, .03) is .01, their sample deviation .1015, over root 3
    assert first.startswith("b beside a, seed by seed: final loss +0.01 (standard error 0.059, cannot be told apart)")
    assert "final loss +0.5 (standard error 0.0058)" in second
    assert "accuracy -10 %" in second
    broken = [result("d", seed, math.nan, 0.5) for seed in range(3)]
    assert "final loss" not in differences([*base, *broken], ("a", "d"))[0]
    assert differences([base[0], close[0]], ("a", "b")) == []
    assert differences(base, ("a",)) == []
