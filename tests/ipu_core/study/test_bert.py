"""BERT in small: its sentences, what is masked, packed as unpacked, the command, unit scaling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ipu_core.__main__ import main
from ipu_core.reproduce import packed
from ipu_core.study.command import recipe
from ipu_core.study.models import bert, catalogue, sentences
from ipu_core.study.models.sentences import CLS, MASK, SEP
from ipu_core.study.models.size import Size
from ipu_core.study.point import Point, make_loop
from ipu_core.study.settings import USUAL, Settings, lasting
from ipu_core.train.data import text
from ipu_core.train.optim import Adam, Lamb, Sgd

WORDS = bytes(range(32, 127)) * 60
TASK = text._cut("mine", WORDS)
SIZE = Size(16, 1, 2, 32)
SETTINGS = Settings(
    model="bert", engine="direct", pack=3, **{**USUAL["bert"], "language_model": SIZE, "batch": 4, "steps": 3}
)


def test_sequences_are_pairs_of_the_text() -> None:
    made = sentences.made(TASK.train, 32, 3)
    assert made.rows.sequences == sentences.SEQUENCES
    assert 1.4 < made.factor <= 3
    data, followed = TASK.train.tobytes(), []
    for row in range(0, len(made), 97):
        for slot, source in enumerate(made.rows.sources[row]):
            if source < 0:
                continue
            whole = made.rows.sequence(row, slot)
            first = made.first[source]
            assert whole[0] == CLS
            assert whole[first - 1] == whole[-1] == SEP
            pair = bytes(whole[1 : first - 1].tolist()), bytes(whole[first:-1].tolist())
            assert all(one in data for one in pair)
            assert not made.follows[source] or b"".join(pair) in data
            followed.append(made.follows[source])
    assert 0.3 < np.mean(followed) < 0.7


def test_all_depths_have_the_same_sequences() -> None:
    one, three = (sentences.made(TASK.train, 32, depth) for depth in (1, 3))
    assert np.array_equal(one.first, three.first)
    for row in range(0, len(one), 211):
        source = one.rows.sources[row, 0]
        place, slot = np.argwhere(three.rows.sources == source)[0]
        assert np.array_equal(one.rows.sequence(row, 0), three.rows.sequence(place, slot))


def test_what_is_masked_is_a_share_of_each_sequence_whatever_lies_beside_it() -> None:
    one, three = (sentences.made(TASK.train, 32, depth) for depth in (1, 3))
    rows = np.arange(24)
    batch = sentences.asked(three, rows, (5, 1))
    kinds = {"hidden": 0, "other": 0}
    for row in rows:
        count = int(batch["counts"][row].sum())
        places = batch["places"][row, :count]
        assert len(set(places.tolist())) == count
        before, after = three.rows.tokens[row], batch["tokens"][row]
        assert np.array_equal(before[places], batch["masked"][row, :count])
        assert (before[places] < 256).all()
        changed = np.flatnonzero(before != after)
        assert set(changed) <= set(places.tolist())
        kinds["hidden"] += int((after[places] == MASK).sum())
        kinds["other"] += int((after[places] != MASK).sum())
        for slot, source in enumerate(three.rows.sources[row]):
            if source < 0:
                continue
            where = np.flatnonzero(batch["segments"][row] == slot + 1)
            alone = sentences.asked(one, np.flatnonzero(one.rows.sources[:, 0] == source), (5, 1))
            assert np.array_equal(alone["tokens"][0, : len(where)], after[where])
            assert batch["types"][row, where].sum() == len(where) - three.first[source]
            wanted = max(1, round(0.15 * (len(where) - 3)))
            assert np.isin(places, where).sum() == wanted
    assert kinds["hidden"] > 3 * kinds["other"] > 0
    again, later = sentences.asked(three, rows, (5, 1)), sentences.asked(three, rows, (5, 2))
    assert np.array_equal(batch["tokens"], again["tokens"])
    assert not np.array_equal(batch["tokens"], later["tokens"])


def test_packed_is_unpacked_and_needs_its_mask_and_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed.text, "load", lambda: TASK)
    same = packed.equality(SIZE)
    assert same.packed < 1e-12
    assert min(same.unmasked, same.in_row) > 1e-6


def test_verdicts_are_of_their_figures() -> None:
    good = packed.Equality(1e-15, 1e-3, 1e-3)
    losses = {"unpacked": [2.0, 2.1, 2.2], "packed, beta^p": [2.01, 2.11, 2.21], "packed, beta": [2.2, 2.31, 2.4]}
    speeds = dict(zip(packed.PUBLISHED, ((1.6, 1.55), (1.8, 1.75), (1.7, 1.65)), strict=True))
    assert [f.holds for f in packed.judged(good, losses, speeds)] == [True] * 4
    for wrong in (packed.Equality(1e-9, 1e-3, 1e-3), packed.Equality(1e-15, 1e-9, 1e-3)):
        assert [f.holds for f in packed.judged(wrong, losses, speeds)].count(False) == 1
    swapped = {**losses, "packed, beta^p": losses["packed, beta"], "packed, beta": losses["packed, beta^p"]}
    assert packed.judged(good, swapped, speeds)[2].holds is False
    noise = {**losses, "packed, beta": [2.005, 2.2, 2.195]}
    assert packed.judged(good, noise, speeds)[2].holds is None
    assert packed.judged(good, losses, {**speeds, (2, "lpfhp"): (1.6, 1.2)})[3].holds is False


def test_moments_last_as_many_sequences() -> None:
    assert lasting(Lamb(0.1, b1=0.9), 2.0) == Lamb(0.1, b1=0.9, packing=2.0)
    assert lasting(Adam(0.1), 1.0) == Adam(0.1)
    assert lasting(Adam(0.1, packing=3.0), 2.0) == Adam(0.1, packing=3.0)
    assert lasting(Sgd(0.1, momentum=0.9), 2.0) == Sgd(0.1, momentum=0.9)
    problem = catalogue.problem(SETTINGS, TASK)
    own = SETTINGS.training(problem).optimizer
    assert isinstance(own, Lamb)
    assert own.packing == problem.sequences_of_a_row > 1.4
    assert "betas to that power" in catalogue.title(SETTINGS, TASK)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic", "mlperf-bert"])
def test_both_engines_train_it_to_the_same_bits(precision: str) -> None:
    made = []
    for engine in ("direct", "tiles"):
        settings = Settings(**{**vars(SETTINGS), "engine": engine})
        problem = catalogue.problem(settings, TASK)
        loop = make_loop(problem, recipe(settings, problem), Point(precision, 0))
        losses = loop.run(problem.batches(0), 3)
        made.append((losses.tobytes(), *(array.tobytes() for array in loop.arrays().values())))
    assert made[0] == made[1]


def test_micro_batches_add_up_to_the_batch() -> None:
    problem = bert.problem(SIZE, TASK, 8, 3)
    ends = []
    for parts in (1, 2):
        settings = Settings(
            **{**vars(SETTINGS), "batch": 8, "optimizer": "sgd", "micro_batches": parts, "loss_scale": None}
        )
        loop = make_loop(problem, recipe(settings, problem), Point("fp32.32", 0))
        ends.append(loop.run(problem.batches(0), 2))
    # Means of parts are weighted alike where they hold as many sequences, and nearly where not.
    assert np.allclose(ends[0], ends[1], rtol=0.02)


def test_it_learns() -> None:
    problem = bert.problem(SIZE, TASK, 16, 3)
    settings = Settings(**{**vars(SETTINGS), "batch": 16, "lr": 0.01, "optimizer": "adam"})
    loop = make_loop(problem, recipe(settings, problem), Point("fp16.16/stochastic", 0))
    losses = loop.run(problem.batches(0), 60)
    assert losses[-10:].mean() < losses[:3].mean() - 0.8
    assert problem.evaluate is not None
    measured = problem.evaluate(loop.params, loop.precision)
    assert measured.keys() == {"test_loss", "masked_accuracy", "next_accuracy"}
    assert measured["test_loss"] < 5


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.txt").write_bytes(WORDS)
    small = ["--text", str(tmp_path / "words.txt"), "--width", "16", "--layers", "1", "--heads", "2", "--context", "32"]
    how = [*small, "--batch", "4", "--steps", "2", "--engine", "direct"]
    study = ["study", "bert", *how, "--seeds", "1", "--workers", "1", "--precisions", "fp32.32"]
    assert main([*study, "--pack", "2", "--out", str(tmp_path / "a")]) == 0
    told = capsys.readouterr().out
    assert "BERT 1 layers, width 16" in told
    assert "up to 2 sequences a row" in told
    # Another number of sequences is another study.
    assert main([*study, "--pack", "3", "--out", str(tmp_path / "a")]) == 2
    assert "pack" in capsys.readouterr().err
    assert main([*study, "--unit-scaled", "--out", str(tmp_path / "b")]) == 0
    capsys.readouterr()
    assert main(["study", "lm", "--pack", "2"]) == 2
    assert "pack is for bert" in capsys.readouterr().err
    assert main([*study, "--context", "8"]) == 2
    assert "context 8 is too short" in capsys.readouterr().err
