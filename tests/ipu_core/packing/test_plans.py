"""Packings of histograms: published tables to the pack, and no sequence lost by any strategy."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_core import packing
from ipu_core.__main__ import main
from ipu_core.packing import Histogram, Packing, lpfhp, nnlshp, spfhp
from ipu_core.packing.histogram import LONGEST, PUBLISHED


def published(name: str) -> tuple[Histogram, int]:
    return Histogram.named(name)


# Krell et al. 2021, arXiv 2107.02027, tables 1 and 6: packs in millions to three places, or exactly.
WIKIPEDIA = [
    (1, 16.280, 49.97, 1.000),
    (2, 10.102, 80.52, 1.612),
    (3, 9.095, 89.44, 1.790),
    (4, 8.659, 93.94, 1.880),
    (8, 8.225, 98.90, 1.979),
    (None, 8.168, 99.60, 1.993),
]
SQUAD = [
    (1, 348, 88641, 34038144, 18788665, 44.801, 1.000),
    (2, 348, 45335, 17408640, 2159161, 87.597, 1.955),
    (3, 344, 40711, 15633024, 383545, 97.547, 2.177),
    (None, 344, 40711, 15633024, 383545, 97.547, 2.177),
]


@pytest.mark.parametrize(("depth", "packs", "filled", "factor"), WIKIPEDIA)
def test_wikipedias_table(depth: int | None, packs: float, filled: float, factor: float) -> None:
    made = spfhp(*published("wikipedia"), depth)
    # The published 8.168 M of any depth is of another count; its efficiency and factor are these.
    assert abs(made.packs / 1e6 - packs) < (0.0006 if depth else 0.0015)
    assert abs(100 * made.efficiency - filled) < 0.0051
    assert abs(made.factor - factor) < 0.00051


def test_any_depth_on_wikipedia_to_the_pack() -> None:
    assert spfhp(*published("wikipedia")).packs == 8_166_708


@pytest.mark.parametrize(("depth", "kinds", "packs", "tokens", "padding", "filled", "factor"), SQUAD)
def test_squads_table(
    depth: int | None, kinds: int, packs: int, tokens: int, padding: int, filled: float, factor: float
) -> None:
    made = spfhp(*published("squad"), depth)
    assert (len(made.strategies), made.packs, made.tokens, made.padding) == (kinds, packs, tokens, padding)
    assert (round(100 * made.efficiency, 3), round(made.factor, 3)) == (filled, factor)


def test_sixteen_million_sequences_are_planned_at_once() -> None:
    histogram, length = published("wikipedia")
    start = time.process_time()
    spfhp(histogram, length)
    assert time.process_time() - start < 1  # it takes a hundredth


@pytest.mark.slow
@pytest.mark.parametrize(("name", "packs", "within"), [("wikipedia", 8_155_057, 1e-4), ("squad", 40_808, 1e-3)])
def test_least_squares_as_published(name: str, packs: int, within: float) -> None:
    pytest.importorskip("scipy")
    made = nnlshp(*published(name))
    assert abs(made.packs - packs) <= within * packs
    holds_all(made)


def holds_all(made: Packing) -> None:
    """Every sequence has a place, and no pack holds more than fits."""
    places = made.places()
    assert all(there >= wanted for there, wanted in zip(places, made.histogram.counts, strict=False))
    assert all(0 < sum(lengths) <= made.length for lengths in made.strategies)
    assert all(count > 0 for count in made.counts)
    assert len(set(made.strategies)) == len(made.strategies)


COUNTS = st.dictionaries(st.integers(1, 40), st.integers(1, 50), min_size=1, max_size=12)


def histogram_of(counts: dict[int, int]) -> Histogram:
    return Histogram([counts.get(length, 0) for length in range(max(counts) + 1)])


@settings(max_examples=150, deadline=None)
@given(COUNTS, st.integers(0, 30), st.none() | st.integers(1, 6), st.sampled_from([spfhp, lpfhp]))
def test_greedy_plans_hold_every_sequence_once(counts: dict[int, int], more: int, depth: int | None, plan) -> None:  # type: ignore[no-untyped-def]
    histogram = histogram_of(counts)
    made = plan(histogram, histogram.longest + more, depth)
    holds_all(made)
    assert made.places()[: len(histogram.counts)] == list(histogram.counts)
    assert depth is None or made.depth <= depth
    # As few as the longest sequences and the tokens ask for, at the least.
    assert made.packs >= max(histogram.counts[-1] if more < 1 else 0, -(-histogram.tokens // made.length))


@settings(max_examples=25, deadline=None)
@given(COUNTS, st.integers(0, 10))
def test_least_squares_hold_every_sequence(counts: dict[int, int], more: int) -> None:
    pytest.importorskip("scipy")
    histogram = histogram_of(counts)
    made = nnlshp(histogram, histogram.longest + more)
    holds_all(made)
    assert made.depth <= 3


def test_sequences_of_one_length() -> None:
    histogram = Histogram.of([128] * 1001)
    # As published: what no open pack has room for opens a pack each.
    assert spfhp(histogram, 512).factor == 1
    assert (lpfhp(histogram, 512).packs, lpfhp(histogram, 512, 3).packs) == (251, 334)


def test_figures_and_words() -> None:
    made = lpfhp(Histogram.of([3, 3, 5, 8]), 8)
    assert (made.strategies, made.counts) == (((8,), (5, 3), (3,)), (1, 1, 1))
    assert (made.packs, made.tokens, made.padding, made.depth) == (3, 24, 5, 2)
    assert (made.efficiency, made.factor) == (19 / 24, 4 / 3)
    assert "24 tokens, 5 of padding (20.83%), 1.333 sequences a pack" in str(made)
    assert hash(made) == hash(lpfhp(Histogram.of([5, 3, 8, 3]), 8))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Histogram.of([]), "at least one sequence"),
        (lambda: Histogram.of([3, 0]), "1 sequences are empty"),
        (lambda: Histogram.of([3, -1]), "from 0 on"),
        (lambda: Histogram.of([2.5]), "whole numbers"),
        (lambda: Histogram.of([LONGEST]), "below"),
        (lambda: Histogram.of("abc"), "whole numbers"),
        (lambda: Histogram(5), "whole numbers"),  # type: ignore[arg-type]
        (lambda: Histogram.named("books"), "there are wikipedia, squad"),
        (lambda: spfhp(Histogram.of([3, 9, 9]), 8), "2 sequences are longer than 8, the longest has 9 tokens"),
        (lambda: lpfhp(Histogram.of([3]), 8, 0), "depth"),
        (lambda: spfhp([3, 4], 8), "histogram"),  # type: ignore[arg-type]
        (lambda: nnlshp(Histogram.of([3]), 2048), "use spfhp"),
    ],
)
def test_what_cannot_be_packed_is_refused(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_the_names_of_the_command_s_help_are_those_there_are() -> None:
    assert tuple(PUBLISHED) == packing.NAMES


def test_files_of_histograms(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("length,count\n3,2\n8,1\n")
    assert Histogram.read(file) == Histogram.of([3, 8, 3])
    file.write_text("3,2\n8,1\n")
    assert Histogram.read(file) == Histogram.of([3, 8, 3])
    for text in ("", "length,count\n", "a,b\nc,d\n", "1,2,3\n", "-1,2\n", "99999999999,1\n"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"histogram|from 0 on"):
            Histogram.read(file)
    with pytest.raises(ValueError, match="cannot be read"):
        Histogram.read(tmp_path / "none.csv")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packing", "wikipedia", "--depth", "3"]) == 0
    assert "9,094,695" in capsys.readouterr().out
    assert main(["packing", "squad", "--out", str(tmp_path / "squad.png")]) == 0
    told = capsys.readouterr().out
    assert "lpfhp" in told
    assert "40,711" in told
    assert (tmp_path / "squad.png").exists()
    assert main(["packing", "wikipedia", "--length", "100"]) == 2
    assert "11,378,339 sequences are longer than 100" in capsys.readouterr().err
    assert main(["packing", "squad", "--strategy", "nnlshp", "--depth", "2"]) == 2
    assert "--depth 2 is not for it" in capsys.readouterr().err


def test_the_picture(tmp_path: Path) -> None:
    figure = spfhp(*published("squad"), 3).plot().figure
    assert np.isclose(sum(bar.get_height() for bar in figure.axes[0].patches), 88_641)
    bars = [bar.get_height() for bar in figure.axes[1].patches]
    assert np.isclose(sum(bars), 15_633_024)
