"""A comparison's folder: written by save, or as the points are finished; the same call goes on from there."""

import copy
import json
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, Execution, FloatingPointControl, OtherStudy, Sgd, Training, compare
from ipu_core.chip.target import Target
from ipu_core.study import point
from ipu_core.study.compare import Study
from ipu_core.train.loop import TrainLoop
from lowprec import Accumulation
from tests.ipu_core.study.test_compare import BATCHES, PARAMS, SMALL, X, loss, run


@pytest.fixture(scope="module")
def study() -> Study:
    return run(steps=60, engine="tiles", target=SMALL)


def kept(made: Study) -> Any:
    """What no seconds and no machine change."""
    own = ("seconds", "study", "sha256", "cycles_per_step", "microseconds_per_step", "tile_memory")
    return {(r["precision"], r["seed"]): {k: r[k] for k in r if k not in own} for r in made.results}


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int) -> list[int]:
    """Ctrl-C at a step of all points together; gives the steps that are done."""
    train, done = TrainLoop.train, list[int]()

    def until(loop: TrainLoop, batch: object) -> float:
        if len(done) == at:
            done.append(-1)
            raise KeyboardInterrupt
        done.append(loop.step)
        return train(loop, batch)

    monkeypatch.setattr(TrainLoop, "train", until)
    monkeypatch.setattr(point, "CHECKPOINT_SECONDS", 0.0)
    return done


ELSEWHERE: dict[str, Any] = {"engine": "tiles", "target": Target("bow", tiles=16), "recompute": True}


@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
@pytest.mark.parametrize("there", [{}, ELSEWHERE], ids=["here", "elsewhere"])
def test_ctrl_c_costs_a_point_what_came_after_its_last_checkpoint(
    there: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run()
    done = interrupt(monkeypatch, 19)  # in the third of four points of 8 steps
    with pytest.raises(KeyboardInterrupt):
        run(folder=tmp_path)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2
    done.clear()
    done.append(0)
    again = run(folder=tmp_path, **there)
    assert done == [0, *range(3, 8), *range(8)]
    assert kept(again) == kept(whole)
    assert "2 of 4 points were finished before; 2 to go" in capsys.readouterr().err
    assert len(again.executions) == 1 + bool(there)
    assert not (tmp_path / "checkpoints").exists()
    assert (tmp_path / "table.txt").read_text() == f"{again.table()}\n"
    done.clear()
    assert kept(run(folder=tmp_path)) == kept(whole)
    assert done == []


def test_an_interrupt_before_the_first_point_is_finished_keeps_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        interrupt(patched, 0)
        with pytest.raises(KeyboardInterrupt):
            run(folder=tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes() == b""
    with pytest.raises(OtherStudy, match=r"\(steps 8 there, 9 here\), no point of it is finished: remove it, choose"):
        run(folder=tmp_path, steps=9)
    assert kept(run(folder=tmp_path)) == kept(run())


def test_a_call_that_is_refused_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    tiny = Target("gc200", tiles=2, tile_memory=4096)
    for wrong in ({"evaluate": lambda params, precision: 3}, {"engine": "tiles", "target": tiny}):
        with pytest.raises((TypeError, MemoryError)):
            run(folder=tmp_path, steps=9, **wrong)
    (tmp_path / "table.txt").mkdir()
    with pytest.raises(ValueError, match=r"cannot write to the output folder .*table.txt: Is a directory"):
        run(folder=tmp_path, steps=7)
    (tmp_path / "table.txt").rmdir()
    assert kept(run(folder=tmp_path)) == kept(run())


@pytest.mark.parametrize("name", ["two words", "größer 漢字", "$\\foo$", b"\xff".decode("utf-8", "surrogateescape")])
def test_any_name_of_a_folder_or_title_or_measure_is_taken(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run(["fp32.32"], folder=tmp_path / name, title=name, evaluate=lambda params, precision: {name: 1.0})
    assert not made.unwritten
    shown = name.encode("utf-8", "backslashreplace").decode()
    assert (tmp_path / name / "table.txt").read_text().startswith(f"{shown}\n")
    assert made.results[0][shown] == 1.0
    assert kept(run(["fp32.32"], folder=tmp_path / name, title=name, evaluate=lambda params, precision: {name: 1.0}))
    assert "2 of 2 points were finished before; 0 to go" in capsys.readouterr().err


def test_without_matplotlib_the_picture_alone_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    made = run(["fp32.32"], folder=tmp_path)
    assert made.unwritten.keys() == {"convergence.png"}
    assert "convergence.png could not be written: matplotlib is needed here" in capsys.readouterr().err
    assert (tmp_path / "table.txt").read_text() == f"{made.table()}\n"
    with pytest.raises(ValueError, match=r"cannot write convergence.png: matplotlib is needed"):
        made.save(tmp_path / "other")
    assert (tmp_path / "other" / "page.html").is_file()


def test_a_pool_of_processes_goes_on_in_the_folder(tmp_path: Path) -> None:
    first = run(["fp32.32"], folder=tmp_path, seeds=1)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        made = run(folder=tmp_path, executor=pool, watch=4)
    assert not made.failures
    assert kept(made) == kept(run())
    assert kept(first).items() <= kept(made).items()
    assert made.records.keys() == {str(point.Point(r["precision"], r["seed"])) for r in made.results}
    assert len(list(tmp_path.glob("watch-*.npy"))) == 4
    assert kept(made.records and run(["fp32.32"], folder=tmp_path)) == kept(run(["fp32.32"]))


def test_what_is_watched_of_a_point_that_stops_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        made = run(
            ["fp32.32"], seeds=1, optimizer=Sgd(1e18), on_nonfinite="stop", watch=1, folder=tmp_path,
        )  # fmt: skip
        assert made.results[0]["not_finite_step"] < 7
        assert not made.unwritten
        monkeypatch.setattr(TrainLoop, "train", None)  # nothing is trained again


OTHER: dict[str, dict[str, Any]] = {
    "training.optimizer.b1": {"optimizer": Adam(0.1)},
    "training.optimizer.lr": {"optimizer": Sgd(0.2)},
    "steps": {"steps": 9},
    "training.micro_batches": {"micro_batches": 2},
    "training.loss_scale": {"loss_scale": "automatic"},
    "training.family": {"target": "gc2"},
    "training.adder": {"adder": "dot4"},
    "training.control.nanoo": {"control": FloatingPointControl(nanoo=True)},
    "execution": {"random": "hardware", "engine": "tiles"},
    "training.accumulations": {"accumulations": {0: Accumulation(group=1)}},
    "on_nonfinite": {"on_nonfinite": "stop"},
    "batches.sha256": {"batches": [(x, 2 * y) for x, y in BATCHES]},
    "params.a.sha256": {"params": {**PARAMS, "a": 2 * PARAMS["a"]}},
    "evaluate": {"evaluate": lambda params, precision: {"one": 1}},
}


@pytest.mark.parametrize("name", OTHER)
def test_what_decides_a_bit_is_another_study(name: str, tmp_path: Path) -> None:
    run(["fp32.32"], folder=tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    with pytest.raises(ValueError, match=rf"holds a study with other settings \({name} "):
        run(["fp32.32"], folder=tmp_path, **OTHER[name])
    assert (tmp_path / "results.jsonl").read_bytes() == before


@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
def test_where_the_tiles_draw_the_place_decides_too(tmp_path: Path) -> None:
    more: dict[str, Any] = {"optimizer": Sgd(0.1), "random": "hardware", "engine": "tiles", "steps": 2, "seeds": 1}
    run(["fp16.16/stochastic"], **more, target=SMALL, folder=tmp_path)
    with pytest.raises(ValueError, match=r"other settings \(execution.target.tiles 16 there, 8 here\)"):
        run(["fp16.16/stochastic"], **more, target=Target("gc200", tiles=8), folder=tmp_path)


def test_equal_numbers_are_the_same_study_however_they_are_written(tmp_path: Path) -> None:
    first = run(["fp32.32"], optimizer=Sgd(1), folder=tmp_path)
    for again in (run(["fp32.32"], optimizer=Sgd(1.0), folder=tmp_path), run(["fp32.32"], optimizer=Sgd(1.0))):
        again.save(tmp_path)
        assert kept(again) == kept(first)


def test_several_places_are_said_and_their_figures_kept_apart(tmp_path: Path, study: Study) -> None:
    run(steps=60, seeds=1, engine="tiles", target=SMALL, folder=tmp_path)
    fast = Target("gc200", tiles=16, clock=2 * SMALL.clock, host_share=2 * SMALL.host_share)
    made = run(steps=60, engine="tiles", target=fast, folder=tmp_path)
    row = dict(zip(made.table().columns, made.table().rows[0], strict=True))
    assert "us/step" not in row  # each seed has its own
    assert row["cycles/step"] == dict(zip(study.table().columns, study.table().rows[0], strict=True))["cycles/step"]
    assert str(made.table()).splitlines()[-3:] == [
        "trained in several places, which changes no bit: figures of a machine stand where its seeds agree",
        *(f"  {words}" for words in made.executions),
    ]
    assert len(set(made.executions)) == 2
    study.save(tmp_path)  # which was trained in the first of them alone
    assert json.loads((tmp_path / "manifest.json").read_text())["executions"] == list(made.executions)


def test_a_manifest_keeps_the_training_and_its_digests(tmp_path: Path) -> None:
    training = Training(optimizer=Sgd(0.1), precision="fp16.16/nearest", micro_batches=2)
    names = ["fp32.32", "fp16.16/nearest"]
    for own in (names[:1], names):
        compare(
            loss, PARAMS, BATCHES, own, training=training, execution=Execution(engine="direct"), steps=2, seeds=1,
            folder=tmp_path,
        )  # fmt: skip
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    record = training.record()
    del record["precision"]
    assert manifest["settings"]["training"] == record
    assert manifest["trainings"]["fp16.16/nearest"] == training.digest()
    assert manifest["trainings"].keys() == set(names)
    assert manifest["executions"] == ["direct engine, for gc200"]


def test_save_writes_what_the_command_line_writes(study: Study, tmp_path: Path) -> None:
    folder = study.save(tmp_path / "mine")
    names = {path.name for path in folder.iterdir()}
    assert names == {"results.jsonl", "manifest.json", "table.txt", "plan.txt", "convergence.png", "page.html"}
    study.save(folder)
    lines = (folder / "results.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert json.loads(lines[0])["precision"] == "fp32.32"
    with pytest.raises(ValueError, match="holds a study with other settings"):
        run(steps=3).save(folder)


def test_the_same_again_is_saved_and_another_study_is_not_mixed_with_it(tmp_path: Path) -> None:
    run(["fp32.32"]).save(tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    run(["fp32.32"]).save(tmp_path)
    for name, change in {
        "batches.sha256": {"batches": [(x, 2 * y) for x, y in BATCHES]},
        "params.a.sha256": {"params": {**PARAMS, "a": 2 * PARAMS["a"]}},
        "training.optimizer.lr": {"optimizer": Sgd(0.2)},
        "training.adder": {"target": Target("gc200", adder="pairwise")},
        "evaluate": {"evaluate": lambda params, precision: {"one": 1}},
    }.items():
        with pytest.raises(ValueError, match=rf"other settings \({name} "):
            run(["fp32.32"], **change).save(tmp_path)
    with pytest.raises(ValueError, match=r"other settings \(training.accumulations not said there, "):
        run(["fp32.32"], accumulations={0: Accumulation(group=1)}).save(tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert run(["fp32.32"], steps=3).save(tmp_path, force=True) == tmp_path.with_name(f"{tmp_path.name}-2")
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_functions_are_compared_by_what_they_do(tmp_path: Path) -> None:
    def made(factor: float) -> Study:
        optimizer = Sgd(0.1, weight_decay=0.1, exclude=lambda name, shape: name == "b")
        return run(["fp32.32"], optimizer=optimizer, batches=lambda seed, step: (X[step % 6] * factor, BATCHES[0][1]))

    made(1.0).save(tmp_path)
    made(1.0).save(tmp_path)
    with pytest.raises(ValueError, match=r"other settings \(batches.encloses.factor 1.0 there, 2.0 here\): choose"):
        made(2.0).save(tmp_path)


def test_results_that_differ_though_the_settings_agree_are_refused(tmp_path: Path) -> None:
    made = run(["fp32.32"])
    made.save(tmp_path)
    made.results[1]["losses"][3] += 0.1  # as by a global value that the loss reads
    with pytest.raises(ValueError, match=r"holds another result of fp32.32 seed 1 \(another loss or data\)"):
        made.save(tmp_path)


def test_a_study_is_copied_and_pickled() -> None:
    made = run(["fp32.32"])
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert again == made
        again.results[0]["losses"].clear()
    assert len(made.results[0]["losses"]) == 8


def test_numpys_numbers_are_taken_and_can_be_saved(tmp_path: Path) -> None:
    made = run(steps=np.int64(2), evaluate=lambda params, precision: {"test_accuracy": np.float32(0.5)})
    made.save(tmp_path)
    assert made.results[0]["test_accuracy"] == 0.5
