"""The ledger: every listed figure has a row, light rows hold or are off as they were, and it says what is wrong."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ipu_core import figures
from ipu_core.__main__ import main
from ipu_core.figures import catalogue, machines
from ipu_core.figures.catalogue import FIGURES, GROUPS, ledger, row_of, select
from ipu_core.figures.figure import AGREEMENT, Figure, read
from ipu_core.figures.models import MODELS
from ipu_core.figures.rows import Ledger, Row
from ipu_core.reproduce import NAMES as REPRODUCTIONS
from ipu_core.workloads import logs
from tests.ipu_core.figures.listed import PAGES, RUNS

OFF = {"gc2-sram-bandwidth": (0.036, 0.039), "aligned-12": (0.4, 0.6), "aligned-13": (1.2, 1.8),
       "aligned-13-promoted": (0.3, 0.55)}  # fmt: skip
"""Light rows that do not hold, and between what their errors lie."""
JSON_FIELDS = {
    "name", "group", "what", "published", "bound", "unit", "source", "model", "arguments", "precision", "weight",
    "of_published", "tolerance", "why", "ours", "error", "kind", "verdict",
}  # fmt: skip
PLAIN = Figure("one", "chips", "a figure", 100.0, "GB/s", "it", "it", model="derived")


@pytest.fixture(scope="module")
def light() -> Ledger:
    return ledger()


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_of_a_page_has_a_row(page: str, light: Ledger) -> None:
    assert set(PAGES[page]) - {row.figure.name for row in light} == set()


def test_no_row_is_unlisted_or_there_twice() -> None:
    listed = [name for names in PAGES.values() for name in names]
    names = [figure.name for figure in FIGURES]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert Counter(listed) == Counter(names)


def test_light_rows_hold_or_are_off_as_they_were(light: Ledger) -> None:
    errors = {row.figure.name: row.error for row in light if row.kind == "off"}
    assert errors.keys() == OFF.keys()
    for name, (low, high) in OFF.items():
        error = errors[name]
        assert error is not None
        assert low <= error <= high
    assert [row.figure.name for row in light.off()] == [
        "aligned-13",
        "aligned-12",
        "aligned-13-promoted",
        "gc2-sram-bandwidth",
    ]
    ran = [row for row in light if row.kind == "holds"]
    assert len(ran) > 300
    assert all(row.ours is not None and math.isfinite(row.ours) for row in ran)


def test_heavy_rows_wait_for_models(light: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    heavy = [row for row in light if row.figure.heavy]
    assert heavy
    assert {row.verdict for row in heavy} == {"not run (heavy; --models)"}
    assert all(row.kind != "not run" for row in light if not row.figure.heavy)
    stand_ins = {name: lambda **_: 1.0 for name in MODELS}
    monkeypatch.setattr(catalogue, "MODELS", stand_ins)
    every = ledger(models=True)
    assert all(row.kind != "not run" for row in every)
    assert all(row.ours == 1.0 for row in every if row.figure.model in stand_ins)


def test_a_name_alone_runs_whatever_it_takes_and_a_beginning_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MODELS", {"reproduce": lambda name: 0.5 if name == "fp8" else 0.0})
    (row,) = ledger("reproduce-fp8")
    assert (row.ours, row.verdict) == (0.5, "off by -50 %")
    assert {row.kind for row in ledger("reproduce-")} == {"not run"}
    (row,) = ledger("reproduce-fp")  # the beginning of one name alone
    assert row.kind == "not run"


def test_names_beginnings_and_lists() -> None:
    assert [figure.name for figure in select("gc200-tiles")] == ["gc200-tiles"]
    assert {figure.name.partition("-")[0] for figure in select("bow-pod")} == {"bow"}
    assert {figure.group for figure in select("energy")} == {"energy"}
    assert select("sync")[0].name == "sync"  # not sync-across-chips, which begins so
    assert len(select("sync")) == 1
    assert select(None) is FIGURES
    assert {figure.group for figure in FIGURES} == set(GROUPS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gc200-tils", "no figure 'gc200-tils': is it gc200-tiles"),
        ("xyzzy", "no figure 'xyzzy': there are the lists chips, systems"),
        ("", "no figure ''"),
        (3, "no figure 3"),
    ],
)
def test_unknown_names_are_refused_with_those_near(name: object, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        ledger(name)  # type: ignore[arg-type]


def test_models_must_be_a_truth_value() -> None:
    with pytest.raises(TypeError, match="models"):
        ledger("chips", models="yes")  # type: ignore[arg-type]


def test_every_figure_has_a_model_or_a_reason_and_every_model_is_there() -> None:
    for figure in FIGURES:
        assert (figure.model is None) == bool(figure.not_checkable), figure.name
        assert figure.model is None or figure.model in MODELS, figure.name
        assert figure.what, figure.name
        assert figure.source, figure.name
        # a wide tolerance says why
        assert figure.tolerance <= 0.021 or figure.why, figure.name
    used = {figure.model for figure in FIGURES}
    assert set(MODELS) <= used
    assert set(AGREEMENT) <= used
    assert {f"reproduce-{name}" for name in REPRODUCTIONS} <= {figure.name for figure in FIGURES}


def test_what_was_not_looked_up_says_so(light: Ledger) -> None:
    marked = {row.figure.name for row in light if "[M]" in row.figure.source}
    assert {"h800-error", "gupta-cifar", "micikevicius-ssd", "zero-bubble-forms", "wang-resnet18"} <= marked
    assert "[M] quoted from memory" in str(ledger("gupta-cifar"))
    assert "Gupta [M]" in str(ledger("gupta"))


def test_a_planted_wrong_figure_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    (figure,) = select("gc200-peak-fp16.16")
    assert row_of(figure, heavy=False).verdict == "holds"
    wrong = row_of(replace(figure, published=200.0), heavy=False)
    assert wrong.kind == "off"
    assert wrong.verdict == "off by +25 %"
    monkeypatch.setitem(machines.CHIP, "tiles", lambda chip: chip.tiles - 1)  # a wrong model
    assert ledger("gc200-tiles").rows[0].verdict == "off by -0.068 %"


@pytest.mark.parametrize(
    ("published", "bound", "ours", "error"),
    [
        (100.0, "", 110.0, 0.1),
        ((90.0, 110.0), "", 95.0, 0.0),
        ((90.0, 110.0), "", 121.0, 0.1),
        ((90.0, 110.0), "", 81.0, -0.1),
        (100.0, "least", 300.0, 0.0),
        (100.0, "least", 90.0, -0.1),
        (100.0, "most", 90.0, 0.0),
        (100.0, "most", 110.0, 0.1),
        (-100.0, "", -110.0, 0.1),
        (0.0, "", 0.0, 0.0),
        (0.0, "", 1.0, math.inf),
    ],
)
def test_errors(published: float | tuple[float, float], bound: str, ours: float, error: float) -> None:
    row = Row(replace(PLAIN, published=published, bound=bound), ours)
    assert row.error == pytest.approx(error)
    assert row.kind == ("holds" if error == 0 else "off")
    json.dumps(row.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"not_checkable": "why"}, "either a model or a reason"),
        ({"model": None}, "either a model or a reason"),
        ({"published": "many"}, "words are compared with nothing"),
        ({"weight": "heavyish"}, "not among those there are"),
        ({"bound": "about"}, "not among those there are"),
        ({"tolerance": -0.1}, "tolerance must be a share"),
        ({"tolerance": math.nan}, "tolerance must be a share"),
    ],
)
def test_a_figure_that_is_none_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(PLAIN, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            '{name = "a", what = "a", published = 1, source = "nowhere", model = "chip"}',
            "source 'nowhere' is not listed",
        ),
        ('{name = "a", what = "a", published = 1, source = "s", modle = "chip"}', "there is no field 'modle'"),
    ],
)
def test_a_list_with_a_mistake_is_refused(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(f'figures = [{line}]\n[sources]\ns = "somewhere"\n')
    with pytest.raises(ValueError, match=words):
        read(path)


def test_the_logs_are_whole_and_each_run_has_its_rows() -> None:
    with logs.CSV.open(newline="") as file:
        runs = {(row["round"], row["workload"], int(row["ipus"])) for row in csv.DictReader(file)}
    assert runs == set(RUNS)
    for release, work, chips in runs:
        (rate,) = select(f"mlperf-{release}-{work}-{chips}-rate")
        assert rate.published == logs.rows()[release, chips, work]["per_second_per_ipu"]
        (step,) = select(f"mlperf-{release}-{work}-{chips}-step")
        assert step.published == logs.rows()[release, chips, work]["step_ms"]


@pytest.mark.parametrize("chips", [1, 2, 3, 8])
@pytest.mark.parametrize("micro_batches", [1, 5, 64])
def test_a_pipeline_s_schedule_gives_the_closed_form(chips: int, micro_batches: int) -> None:
    ran = {name: machines.pipeline(chips, micro_batches, name) for name in ("cycles", "time", "efficiency")}
    assert machines.pipeline(chips, micro_batches, "stashes") == min(micro_batches - 1, 2 * (chips - 1))
    total = micro_batches + chips - 1
    assert ran == {"cycles": micro_batches + 2 * chips - 2, "time": total, "efficiency": micro_batches / total}


def test_it_prints_all_columns_and_counts(light: Ledger) -> None:
    text = str(light)
    for row in light:
        assert re.search(rf"^{re.escape(row.figure.name)} ", text, re.MULTILINE), row.figure.name
    head = "figure +published +here +error +verdict +model +precision +source"
    assert len(re.findall(rf"^{head}$", text, re.MULTILINE)) == len(GROUPS)
    assert text.endswith("compare published figures with each other")
    assert sum(light.counts.values()) == len(light) == len(FIGURES)
    assert repr(light) == text


def test_a_prediction_has_a_figure_of_ours_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MODELS", {"run": lambda **_: 357.5})
    (row,) = ledger("predicted-bert-bow-256-step")
    assert (row.kind, row.error, row.ours, row.verdict) == ("predicted", None, 357.5, "predicted")
    assert "not measured" in str(row)
    assert {each.kind for each in ledger("predicted")} == {"not run"}


def test_json_has_fixed_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "systems", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made.keys() == {"counts", "rows"}
    assert made["counts"].keys() == {"holds", "off", "predicted", "not checkable", "not run"}
    assert len(made["rows"]) == sum(made["counts"].values()) == len(select("systems"))
    assert all(row.keys() == JSON_FIELDS for row in made["rows"])
    (peak,) = (row for row in made["rows"] if row["name"] == "m2000-peak")
    assert (peak["published"], peak["unit"], peak["model"], peak["verdict"]) == (1.0, "PFLOP/s", "system", "holds")
    assert peak["arguments"] == {"system": "m2000", "figure": "peak"}


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", "gc2-sram-bandwidth"]) == 0
    printed = capsys.readouterr().out
    assert "verdict      off by +3.8 %" in printed
    assert "source       Jia et al., arXiv 1912.03413" in printed
    assert main(["figures", "talk"]) == 0
    printed = capsys.readouterr().out
    assert "talks: not checkable" in printed
    assert "a market's, which no model predicts" in printed
    assert main(["figures", "gc3-tiles"]) == 2
    assert "ipu-core figures: there is no figure 'gc3-tiles': is it" in capsys.readouterr().err


def test_public_names() -> None:
    assert figures.ledger is ledger
    assert (figures.Figure, figures.Row, figures.Ledger) == (Figure, Row, Ledger)
    assert figures.__all__ == ["Figure", "Ledger", "Row", "ledger"]


def test_rows_that_take_long_are_told_before_they_are_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = [figure for figure in select("lstm") if figure.heavy]
    assert [figure.name for figure in heavy] == ["lstm-gc2"]
    monkeypatch.setitem(MODELS, "workload", lambda **_: 11.2e6)  # type: ignore[arg-type]
    assert main(["figures", "lstm-gc2", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "making lstm-gc2, which may take minutes (1 of 1)\n"
    assert [row["name"] for row in json.loads(printed.out)["rows"]] == ["lstm-gc2"]
    assert main(["figures", "lstm"]) == 0
    assert capsys.readouterr().err == ""
