"""Watched runs: the same bits, the right numbers at the right steps, one file that survives kills and goes on."""

import copy
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, LossScale, Record, Sgd, TrainLoop, Watch, nn
from ipu_core.chip.target import Target
from ipu_core.diagnose.watch import look
from ipu_core.diagnose.watch.file import RowFile
from ipu_core.diagnose.watch.look import ROW
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.run.evaluate import evaluate_flat
from lowprec import Key

RNG = np.random.default_rng(3)
PARAMS = {
    "hidden": {"weight": RNG.normal(size=(8, 16)).astype(np.float32), "bias": np.zeros(16, np.float32)},
    "out": {"weight": RNG.normal(size=(16, 4)).astype(np.float32), "bias": np.zeros(4, np.float32)},
}
BATCHES = [{"x": RNG.normal(size=(12, 8)).astype(np.float32), "y": RNG.integers(0, 4, 12).astype(np.int32)}
           for _ in range(30)]  # fmt: skip
CHIP = Target("gc200", tiles=12)


def loss(params: Any, batch: Any) -> Any:
    hidden = nn.relu(batch["x"] @ params["hidden"]["weight"] + params["hidden"]["bias"])
    return nn.softmax_cross_entropy(hidden @ params["out"]["weight"] + params["out"]["bias"], batch["y"])


def loop(watch: Any = None, engine: str = "direct", **more: Any) -> TrainLoop:
    given = {"optimizer": Adam(0.01), "precision": "fp16.16/stochastic", "key": 5, "target": CHIP, **more}
    return TrainLoop(loss, PARAMS, BATCHES[0], engine=engine, watch=watch, **given)


def bits(made: TrainLoop) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in made.arrays().items()}


def record(made: TrainLoop) -> Record:
    assert made.watched is not None
    return made.watched


MORE: dict[str, dict[str, Any]] = {
    "plain": {},
    "nearest": {"precision": "fp16.16/nearest", "optimizer": Sgd(0.01)},
    "micro-batches": {"micro_batches": 3},
    "scaled": {"loss_scale": LossScale(init_scale=2.0**20, growth_interval=2)},
    "moments in half": {"precision": "fp16.16/stochastic/moments=float16", "loss_scale": 64.0},
    "several in a call": {"steps_per_call": 4},
    "own generators": {"random": "hardware"},
}


@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
@pytest.mark.parametrize("engine", ["direct", "tiles"])
@pytest.mark.parametrize("how", MORE)
def test_no_bit_changes(how: str, engine: str) -> None:
    if how == "own generators" and engine == "direct":
        return
    plain, watched = loop(None, engine, **MORE[how]), loop(Watch(every=3), engine, **MORE[how])
    assert plain.run(BATCHES, 8).tobytes() == watched.run(BATCHES, 8).tobytes()
    assert bits(plain) == bits(watched)
    assert plain.skipped == watched.skipped
    assert record(watched).steps.tolist() == [0, 3, 6]


def calls_of_a_step(made: TrainLoop) -> int:
    """Calls of functions, Python's and compiled ones, in a step that is done again and again."""
    events: list[str] = []
    with made.whole_steps():
        for batch in BATCHES[:3]:
            made.train(batch)
        sys.setprofile(lambda frame, event, given: events.append(event))
        try:
            made.train(BATCHES[3])
        finally:
            sys.setprofile(None)
    return events.count("call") + events.count("c_call")


def test_a_step_that_is_not_looked_at_costs_nothing_and_a_look_few_calls() -> None:
    """What a look costs beside the step is mostly calls, which can be counted; time cannot be tested."""
    plain, rarely, always = loop(), loop(100), loop(1)
    assert calls_of_a_step(rarely) <= calls_of_a_step(plain) + 2
    assert not plain._stepper.runner.executable._tellers
    values = len(record(always).values)
    looked = calls_of_a_step(always) - calls_of_a_step(plain)
    assert looked < 30 * values


def test_both_engines_see_the_same() -> None:
    seen = [loop(Watch(every=2), engine, micro_batches=2) for engine in ("direct", "tiles")]
    for made in seen:
        made.run(BATCHES, 5)
    assert record(seen[0]).rows.tobytes() == record(seen[1]).rows.tobytes()


def test_every_value_is_measured_as_the_step_declares_it() -> None:
    """Every row against the values that `evaluate`, which knows no arrays prepared for a step, computes one by one."""
    made = loop(Watch(every=1))
    made.run(BATCHES, 3)
    again = loop()
    again.run(BATCHES, 2)
    block = again.block
    kept = [e.output for e in block.equations if e.op not in STRUCTURE]
    whole = type(block)(block.inputs, tuple(kept), block.equations, block.constants)
    inputs, key = again.next_step(BATCHES[2])
    assert key == Key(5).fold_in(2)
    values = evaluate_flat(whole, inputs, "declared", key=key, accumulations=again.accumulations)
    numbers = [e.number for e in block.equations if e.op not in STRUCTURE]
    by_number = dict(zip(numbers, values, strict=True))
    seen = record(made)
    for value, row in zip(seen.values, seen.rows[2], strict=True):
        if value["kind"] == "update":
            continue
        x = np.asarray(by_number[int(value["equation"])]).astype(np.float64)
        assert (row["step"], row["elements"], row["zeros"]) == (2, x.size, (x == 0).sum()), value["name"]
        assert row["largest"] == np.abs(x).max()
        assert row["rms"] == pytest.approx(np.sqrt((x**2).mean()), rel=1e-5)
        assert row["histogram"].sum() == (x != 0).sum()


@pytest.mark.parametrize("precision", ["fp16.16/nearest", "fp16.16/stochastic", "fp32.32"])
def test_lost_updates_are_those_that_are_counted(precision: str) -> None:
    made = loop(Watch(every=4), precision=precision, optimizer=Sgd(1e-4))
    counts = {}
    for step, batch in enumerate(BATCHES[:9]):
        counts[step] = made.count_updates(batch)
        made.train(batch)
    seen = record(made)
    updates = seen.values["kind"] == "update"
    assert updates.sum() == 4
    for step, rows in zip(seen.steps, seen.rows, strict=True):
        assert (rows["wanted"][updates].sum(), rows["lost"][updates].sum()) == counts[int(step)][:2]
        assert not rows["lost"][~updates].any()


def test_a_second_moment_that_stands_still_is_seen() -> None:
    how = "fp16.16/nearest/second_moment=bfloat16"
    made = loop(Watch(every=1), precision=how, optimizer=Adam(1e-3, b2=0.999))
    made.run(BATCHES, 20)
    seen = record(made)
    place = seen.index("out.weight.second_moment")
    assert seen.values["format"][place] == "bfloat16"
    assert seen.share("lost")[-1, place] > 0.2
    assert seen.share("lost")[:, seen.index("out.weight.first_moment")].max() == 0


def test_elements_of_a_large_moment_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Any:
        made = loop(1, precision="fp16.16/nearest/second_moment=bfloat16", optimizer=Adam(1e-3, b2=0.999))
        made.run(BATCHES, 20)
        seen = record(made)
        place = seen.index("hidden.weight.second_moment")
        return seen.rows["wanted"][:, place], seen.share("lost")[:, place]

    (wanted, share), _ = lost(), monkeypatch.setattr(look, "LOST_OF", 64)
    sampled_wanted, sampled_share = lost()
    assert not np.array_equal(share, sampled_share)
    assert np.abs(wanted - sampled_wanted).max() <= 128 * 0.2
    assert np.abs(share - sampled_share).max() < 4 * np.sqrt(0.25 / 64)


def test_gradients_that_underflow_are_seen_where_they_do() -> None:
    small = lambda params, batch: loss(params, batch) * 1e-6  # noqa: E731
    given: dict[str, Any] = {"optimizer": Sgd(0.1), "precision": "fp16.32/nearest", "engine": "direct"}
    made = TrainLoop(small, PARAMS, BATCHES[0], watch=1, **given)
    made.run(BATCHES, 2)
    seen = record(made)
    gradients = (seen.values["kind"] == "gradient") & (seen.values["op"] == "dot")
    under = seen.share("underflow")[:, gradients]
    assert under.max() > 0.1
    assert all(line.startswith("test_watch.py:") for line in seen.values["source"][gradients][under.max(axis=0) > 0])
    activations = (seen.values["kind"] == "activation") & (seen.values["op"] != "convert")
    assert not seen.share("underflow")[:, activations].any()
    scaled = TrainLoop(small, PARAMS, BATCHES[0], watch=1, loss_scale=2.0**20, **given)
    scaled.run(BATCHES, 2)
    products = record(scaled).values["op"] == "dot"
    assert not record(scaled).share("underflow")[:, products].any()


def test_values_are_named_after_parameters_layers_and_lines() -> None:
    seen = record(loop(1))
    names = set(seen.values["name"])
    assert len(names) == len(seen.values)
    assert {"out.weight", "out.bias", "hidden.weight", "hidden.bias"} <= names
    made = {seen.values["name"][seen.index(name)].rpartition(".")[0]
            for name in ("out.weight.update", "out.weight.first_moment", "hidden.bias.second_moment")}  # fmt: skip
    assert made == {
        "out.weight.update.scaled_add", "out.weight.first_moment.scaled_add", "hidden.bias.second_moment.scaled_add",
    }  # fmt: skip
    relu = seen.values[seen.values["op"] == "relu"][0]
    assert (relu["layer"], relu["kind"], relu["format"]) == ("hidden", "activation", "float16")
    assert relu["name"] == f"forward.relu.{relu['equation']}"
    with pytest.raises(KeyError, match="no value 'nothing' was watched\""):
        seen.index("nothing")
    with pytest.raises(KeyError, match=r"no value 'hidden' was watched; there are hidden\.weight\.forward\.dot\.\d+, "):
        seen.index("hidden")


def test_some_values_can_be_watched() -> None:
    made = loop(Watch(every=1, values=("out.weight", "*relu*")))
    made.run(BATCHES, 2)
    seen = record(made)
    assert {str(name).partition(".")[0] for name in seen.values["name"]} == {"out", "forward"}
    assert seen.rows.shape == (2, len(seen.values))
    with pytest.raises(ValueError, match="no value of the step is called 'nothing'; there are "):
        loop(Watch(values=("nothing",)))


def test_a_skipped_step_shows_no_update() -> None:
    made = loop(1, loss_scale=2.0**40)
    made.run(BATCHES, 1)
    assert made.skipped
    seen = record(made)
    updates = seen.values["kind"] == "update"
    assert not seen.rows["elements"][0, updates].any()
    assert np.isnan(seen.share("lost")[0, updates]).all()
    assert seen.rows["elements"][0, seen.values["kind"] == "activation"].all()


def test_the_file_is_read_by_numpy_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.watch"
    made, kept = loop(Watch(every=3, path=path)), loop(Watch(every=3))
    for each in (made, kept):
        each.run(BATCHES, 8)
    with path.open("rb") as file:
        values, rows = np.load(file), np.load(file)
        assert not file.read()
    assert np.array_equal(values, record(kept).values)
    assert rows.tobytes() == record(kept).rows.tobytes()
    assert rows["step"][:, 0].tolist() == [0, 3, 6]
    assert Record.read(path).rows.tobytes() == rows.tobytes()


@pytest.mark.parametrize("saved", [4, 5])
def test_a_run_that_goes_on_from_a_checkpoint_goes_on_in_its_file(tmp_path: Path, saved: int) -> None:
    whole = loop(Watch(every=2, path=tmp_path / "whole"))
    whole.run(BATCHES.__getitem__, 12)
    first = loop(Watch(every=2, path=tmp_path / "parts"))
    first.run(BATCHES.__getitem__, saved)
    first.save(tmp_path / "checkpoint.npz")
    first.run(BATCHES.__getitem__, 4)  # these steps are done again
    second = loop(Watch(every=2, path=tmp_path / "parts"))
    second.load(tmp_path / "checkpoint.npz")
    assert record(second).steps.tolist() == list(range(0, saved, 2))
    second.run(BATCHES.__getitem__, 12 - saved)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_in_memory_steps_that_are_done_again_are_seen_once() -> None:
    made = loop(1)
    made.run(BATCHES, 2)
    arrays, step = made.arrays(), made.step
    made.run(BATCHES[2:], 3)
    made.restore(arrays, step)
    made.run(BATCHES[2:], 1)
    assert record(made).steps.tolist() == [0, 1, 2]


@pytest.mark.parametrize("torn", [1, ROW.itemsize, 5 * ROW.itemsize + 3])
def test_what_a_kill_left_behind_the_last_look_does_not_count(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "run.watch"
    made = loop(Watch(every=1, path=path))
    made.run(BATCHES, 3)
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(os.urandom(torn))
    assert Record.read(path).steps.tolist() == [0, 1, 2]
    made.run(BATCHES[3:], 1)
    seen = path.read_bytes()
    assert len(seen) == len(whole) + len(record(made).values) * ROW.itemsize
    assert Record.read(path).steps.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("work", ["append", "rewind"])
def test_a_file_that_cannot_be_written_costs_no_step(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, nothing more is watched, and state and step stay those of a run that is not."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    made, whole = loop(Watch(every=1, path=tmp_path / "w")), loop()
    made.run(BATCHES, 2)
    whole.run(BATCHES, 2)
    monkeypatch.setattr(RowFile, work, full)
    fails = {"append": lambda: made.run(BATCHES[2:], 1), "rewind": lambda: made.restore(made.arrays(), made.step)}
    with pytest.warns(RuntimeWarning, match="w cannot be written: No space left on device; nothing more is watched"):
        fails[work]()
    made.run(BATCHES[made.step :], 5 - made.step)  # without a word
    whole.run(BATCHES[2:], 3)
    assert (made.step, bits(made)) == (whole.step, bits(whole))
    assert record(made).steps.tolist() == [0, 1]


def test_a_file_of_another_step_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.watch"
    loop(Watch(every=1, path=path)).run(BATCHES, 1)
    with pytest.raises(ValueError, match="is the record of another step: choose another file"):
        loop(Watch(every=1, path=path), precision="fp32.32")
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="is no record of a watched run"):
        loop(Watch(every=1, path=path))
    assert path.read_bytes() == b"something else"


def test_a_file_with_the_names_of_an_older_lowprec_is_gone_on_in(tmp_path: Path) -> None:
    path, older = tmp_path / "run.watch", tmp_path / "older.watch"
    made = loop(Watch(every=1, path=path))
    made.run(BATCHES, 2)
    made.save(tmp_path / "checkpoint.npz")
    fields = dict(record(made).values.dtype.fields or {})
    kinds = [(name, "<U9" if name == "name" else kind) for name, (kind, *_) in fields.items()]
    values = record(made).values.astype(kinds)
    values["name"] = [f"old {place}" for place in range(len(values))]
    Record(values, record(made).rows).save(older)
    with pytest.warns(DeprecationWarning, match=r"older\.watch has names .*: 'old \d+' is '[\w.]+\.\d+' now") as said:
        again = loop(Watch(every=1, path=older))
    assert len(said) == 1
    again.load(tmp_path / "checkpoint.npz")
    for each in (made, again):
        each.run(BATCHES[2:], 2)
    assert Record.read(older).values["name"].tolist() == values["name"].tolist()
    assert Record.read(older).rows.tobytes() == Record.read(path).rows.tobytes()
    assert record(again).values["name"].tolist() == record(made).values["name"].tolist()


def test_the_table_shows_layers_that_names_do_not_say() -> None:
    small = lambda params, batch: loss(params, batch) * 1e-6  # noqa: E731
    made = TrainLoop(
        small, PARAMS, BATCHES[0], optimizer=Sgd(0.1), precision="fp16.32/nearest", engine="direct", watch=1
    )
    made.run(BATCHES, 2)
    table = record(made).table(len(record(made).values))
    assert table.columns[1] == "layer"
    layers = {row[0].rpartition(".")[0]: row[1] for row in table.rows}
    assert (layers["grad_input.convert"], layers["hidden.weight.grad_weight.dot"]) == ("out", "")


def test_a_pattern_is_for_what_it_is_for_in_rules() -> None:
    def watched(*patterns: str) -> set[str]:
        made = loop(Watch(values=patterns))
        made.run(BATCHES, 1)
        return set(record(made).values["name"].tolist())

    everything = watched("*")
    assert watched("out") == watched("out.*") | {name for name in watched("out") if not name.startswith("out.")}
    gradients = {name for name in everything if name.startswith("out.weight.grad_weight.")}
    assert watched("out.weight.grad_weight") == gradients != set()
    assert watched("relu") == {name for name in everything if ".relu." in name}  # by its name in rules
    assert watched("hidden") >= watched("relu")  # by its layer


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_a_copy_goes_on_looking_by_itself(again: Any) -> None:
    made = loop(2)
    made.run(BATCHES, 3)
    other = again(made)
    other.run(BATCHES[3:], 3)
    assert record(made).steps.tolist() == [0, 2]
    assert record(other).steps.tolist() == [0, 2, 4]


def test_a_run_that_ends_within_a_step_keeps_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = loop(1)
    made.run(BATCHES, 1)
    monkeypatch.setattr(made._stepper.runner, "feed", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        made.run(BATCHES[1:], 1)
    monkeypatch.undo()
    assert record(made).steps.tolist() == [0]


@pytest.mark.parametrize(
    "watch, error, words",
    [
        (0, ValueError, "watch: every must be an integer of at least 1, not 0"),
        (True, TypeError, "watch: every must be an integer"),
        ("often", TypeError, r"does not say how often: give Watch\(every=10, path='often'\)"),
        (2.5, TypeError, "watch: every must be an integer"),
        ({"path": "no/such/folder/run.watch"}, FileNotFoundError, "no folder no/such/folder for the record run.watch"),
        ({"every": 0}, ValueError, "at least 1"),
        ({"path": 3}, TypeError, "watch: path must name a file, not 3"),
        ({"values": "*"}, TypeError, "watch: values must be patterns"),
        ({"values": ()}, TypeError, "watch: values must be patterns"),
    ],
)
def test_refusals(watch: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        loop(Watch(**watch) if isinstance(watch, dict) else watch)


def test_the_table_says_which_where_and_how_much() -> None:
    made = loop(Watch(every=2), precision="fp16.16/nearest", optimizer=Sgd(1e-5))
    made.run(BATCHES, 5)
    text = str(record(made))
    first = [line for line in text.splitlines() if line.startswith("out.weight.update.")]
    assert any("%" in line for line in first)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.splitlines()[-1].startswith("3 looks at ")
    assert "layer" not in record(made).table(1).columns  # which the name says
    healthy = loop(1, precision="fp32.32")
    healthy.run(BATCHES, 2)
    assert "nothing was lost to rounding" in str(record(healthy))
    assert "<table>" in record(made)._repr_html_()
    with pytest.raises(ValueError, match="unknown measure 'speed'; there are underflow"):
        record(made).share("speed")


def test_what_was_not_looked_at_is_not_called_healthy() -> None:
    made = loop(Watch(every=2), precision="fp16.16/nearest", optimizer=Sgd(1e-5))
    values = len(record(made).values)
    assert str(record(made)).endswith(f"0 looks at {values} values.")
    made.run(BATCHES, 3)
    assert str(record(made).table(0)).endswith(f"2 looks at {values} values.")
    for wrong in (-1, 2.5):
        with pytest.raises((TypeError, ValueError), match="count must be an integer"):
            record(made).table(wrong)  # type: ignore[arg-type]


def test_a_picture_of_nothing_says_so() -> None:
    pytest.importorskip("matplotlib").use("agg")
    for looks in (0, 2):
        made = loop(1, precision="fp32.32")
        made.run(BATCHES, looks)
        axes = record(made).plot("nan")
        assert [text.get_text() for text in axes.texts] == ["none in any look"]


def test_the_worst_come_first_and_of_equals_the_first_in_time() -> None:
    made = loop(1)
    made.run(BATCHES, 4)
    seen = record(made)
    for name in ("underflow", "overflow", "saturated", "lost", "nan"):
        seen.rows[name] = 0
    elements = seen.rows["elements"][0]
    seen.rows["saturated"][2:, 3] = elements[3]
    seen.rows["nan"][1:, 5] = elements[5]
    seen.rows["underflow"][0, 2] = elements[2] // 2
    assert seen.worst().tolist() == [5, 3, 2]
    assert seen.worst(1).tolist() == [5]
    assert [row[-1] for row in seen.table().rows] == ["1", "2", "0"]


def test_pictures_hold_the_shares_and_exponents() -> None:
    pytest.importorskip("matplotlib").use("agg")
    made = loop(Watch(every=3), precision="fp16.16/nearest", optimizer=Sgd(1e-5))
    made.run(BATCHES, 7)
    seen = record(made)
    axes = seen.plot("lost", count=2)
    assert len(axes.get_yticks()) == 2
    names = [label.get_text() for label in axes.get_yticklabels()]
    drawn = np.asarray(axes.collections[0].get_array())
    assert np.array_equal(drawn, seen.share("lost")[:, [seen.index(name) for name in names]].T)
    axes = seen.plot_exponents("out.weight")
    drawn = np.ma.filled(axes.collections[0].get_array(), 0.0)
    counts = seen.rows["histogram"][:, seen.index("out.weight")]
    assert np.allclose(np.nan_to_num(drawn), (counts / counts.sum(axis=1, keepdims=True)).T)
    assert [text.get_text() for text in axes.texts] == ["smallest", "normal", "largest"]
    with pytest.raises(KeyError, match="no value 'nothing'"):
        seen.plot_exponents("nothing")


def test_micro_batches_are_added_up() -> None:
    made = loop(1, micro_batches=3)
    made.run(BATCHES, 1)
    seen = record(made)
    products = (seen.values["op"] == "dot") & (seen.values["role"] == "forward")
    rows, sizes = seen.rows[0, products], seen.values["elements"][products]
    assert sizes.tolist() == [4 * 16, 4 * 4]
    assert rows["elements"].tolist() == (3 * sizes).tolist()
    assert np.array_equal(rows["histogram"].sum(axis=1), rows["elements"] - rows["zeros"])


def test_a_share_is_of_what_was_wanted_or_of_all_there_is() -> None:
    made = loop(1)
    made.run(BATCHES, 1)
    seen = record(made)
    seen.rows["elements"], seen.rows["zeros"], seen.rows["wanted"], seen.rows["lost"] = 100, 20, 10, 5
    assert (seen.share("zeros") == 0.2).all()
    assert (seen.share("lost") == 0.5).all()
    seen.rows["wanted"] = 0
    assert np.isnan(seen.share("lost")).all()
