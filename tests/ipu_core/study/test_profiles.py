"""`profile` of models: the account of what does not fit, all of it as JSON, settings that differ."""

import json
from pathlib import Path

import pytest

from ipu_core.__main__ import main
from ipu_core.chip.target import Target

LARGE = ("--layers", "64-7000-7000-10", "--precision", "fp32.32", "--target", "gc2")
SMALL = ("--layers", "64-16-10", "--target", "bow")


def test_what_does_not_fit_is_accounted_all_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *LARGE, "--out", str(tmp_path)]) == 0
    printed = capfd.readouterr().out
    data = json.loads((tmp_path / "profile.json").read_text())
    memory, available = data["memory"], Target("gc2").tile_memory
    peak = max(memory["peak"])
    assert peak > available
    assert memory["share"] == peak / available
    assert f"It does not fit, {peak / available:.0%} of a tile: tile " in printed
    assert "to the same bits, streamed='params.*' frees " in printed
    # By what: every byte of the fullest tile, in words and in the data.
    by = printed.split("by category: ")[-1].split("\n")[0]
    assert sum(int(part.rpartition(" ")[2].replace(",", "")) for part in by.split(", ")) == peak
    assert sum(memory["categories"].values()) == peak
    assert memory["always_live"] + memory["not_always_live"] == peak
    assert "Bytes of the fullest tile by optimizer" in printed


def test_what_is_far_too_large_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *LARGE, "--layers", "64-20000-20000-10"]) == 2
    assert "for the values of the step alone" in capfd.readouterr().err


def test_a_models_json_is_what_its_folder_holds(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *SMALL, "--json", "--out", str(tmp_path)]) == 0
    data = json.loads(capfd.readouterr().out)
    assert data == json.loads((tmp_path / "profile.json").read_text())
    assert {"roofline", "layers", "operations", "host", "by_tile", "by_optimizer", "settings", "samples"} <= data.keys()
    assert data["samples"] == 64
    assert data["by_optimizer"][0]["whole"] == max(data["memory"]["peak"])


def test_a_loss_scale_and_its_guard_are_an_item_and_a_tenth_of_a_language_models_step(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["profile", "lm", "--layers", "1", "--context", "64", "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    scaled = data["loss_scale"]
    assert scaled["cycles"] == data["cycles"]
    assert 0.02 < scaled["cycles"] / scaled["without"] - 1 <= 0.1
    assert scaled["share"] * scaled["cycles"] == pytest.approx(scaled["cycles"] - scaled["without"])
    assert "guard" in {role for row in data["operations"] for role in row["role"].split(", ")}
    # One phase for all that the guard puts side by side.
    assert sum(step["name"].split(".")[1] == "concatenate" for step in data["steps"] if step["kind"] == "copy") == 1


def test_the_loss_scales_item_is_that_of_the_step_without(capfd: pytest.CaptureFixture[str]) -> None:
    figures = []
    for scale in ("64", "none"):
        assert main(["profile", *SMALL, "--loss-scale", scale, "--json"]) == 0
        figures.append(json.loads(capfd.readouterr().out))
    assert figures[0]["loss_scale"]["without"] == figures[1]["cycles"]
    assert figures[1]["loss_scale"] is None
    assert main(["profile", *SMALL, "--loss-scale", "64"]) == 0
    more = figures[0]["cycles"] - figures[1]["cycles"]
    assert f"Loss scale, with its guard: {more:,} cycles" in capfd.readouterr().out


def test_a_comparison_says_what_was_set_otherwise(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    assert main(["profile", *SMALL, "--out", str(first)]) == 0
    assert main(["profile", *SMALL, "--micro-batches", "2", "--optimizer", "adam", "--out", str(second)]) == 0
    capfd.readouterr()
    assert main(["profile", "--compare", str(first), str(second), "--out", str(tmp_path / "c")]) == 0
    words = capfd.readouterr().out
    settings = words.split("Settings that differ")[1].split("\n\n")[0]
    assert [line.split() for line in settings.splitlines() if line.startswith("micro_batches")] == [
        ["micro_batches", "1", "2"]
    ]
    assert "optimizer.b1" in settings
    assert "target" not in settings
    assert "not always live there" in words
    assert main(["profile", "--compare", str(first), str(first)]) == 0
    assert "no setting differs" in capfd.readouterr().out
    page = (tmp_path / "c" / "comparison.html").read_text()
    assert "<td>micro_batches</td><td>1</td><td>2</td>" in page
    assert "<td>  temporaries</td>" in page
    for folder in (first, second):
        memory = json.loads((folder / "profile.json").read_text())["memory"]
        picture = page.split(f"<h2>{folder.name}: memory by tile, without gaps</h2>")[1].split("</p>")[0]
        most = max(whole - gaps for whole, gaps in zip(memory["peak"], memory["gaps"], strict=True))
        assert f"the highest bar is {most:,} bytes" in picture
        along = page.split(f"<h2>{folder.name}: memory along the program, the fullest tile</h2>")[1].split("</p>")[0]
        assert f"the highest bar is {max(place[2] for place in memory['lifetimes']):,} bytes" in along


def test_what_saves_nothing_is_a_line_of_the_profile_with_both_figures(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["mlp", "--layers", "64-8-10", "--replicas", "4", "--optimizer", "adam", "--target", "gc200/tiles=16"]
    streamed = ["--streamed", "optimizer.*", "--out", str(tmp_path)]
    peaks = []
    for more in ([], ["--sharded", "params.*"]):
        assert main(["profile", *words, *streamed, *more]) == 0
        printed, err = capfd.readouterr()
        assert err == ""
        data = json.loads((tmp_path / "profile.json").read_text())
        peaks.append(max(data["memory"]["peak"]))
        assert ("Saves nothing: " in printed) == bool(data["saves_nothing"]) == bool(more)
    said = f"sharded='params.*' makes the fullest tile fuller: {peaks[1]:,} bytes, {peaks[0]:,} without it"
    assert f"\nSaves nothing: {said}" in printed
    assert data["saves_nothing"][0].startswith(said)
    assert ", batch 64, one step, tiles of gc200" in printed
