"""results.jsonl: append-only, resumable, mended after a kill, one study to a folder."""

import copy
import json
import math
import os
import pickle
from pathlib import Path

import pytest

import lowprec
from ipu_core import OtherStudy
from ipu_core.study import files
from ipu_core.study import store as module
from ipu_core.study.files import is_own
from ipu_core.study.manifest import read_manifest
from ipu_core.study.store import RESULTS, Store, agree, digest, open_store, read_results
from ipu_core.study.summary import summarise, table

SETTINGS = {"steps": 10, "lr": 0.1, "layers": [4, 2]}


def point(seed: int = 0, losses: tuple[float, ...] = (2.0, 1.0)) -> dict[str, object]:
    return {"precision": "fp32.32", "seed": seed, "losses": list(losses)}


def test_appended_points_are_read_back_by_the_next_store(tmp_path: Path) -> None:
    with Store(tmp_path / "a" / "b", SETTINGS) as store:
        store.append(point(0))
    with Store(tmp_path / "a" / "b", SETTINGS) as store:
        store.append(point(1))
        assert [result["seed"] for result in store.results()] == [0, 1]
        assert {result["study"] for result in store.results()} == {store.digest}
    assert not (tmp_path / "a" / "b" / "checkpoints").exists()


def test_values_that_json_lacks_become_null_and_nan_again(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        store.append({**point(losses=(1.0, math.nan, math.inf)), "test_accuracy": math.nan})
    line = (tmp_path / RESULTS).read_text()
    assert json.loads(line)["losses"] == [1.0, None, None]
    assert math.isnan(read_results(tmp_path)[0]["losses"][1])


def test_a_point_counts_once_however_often_its_line_is_there(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        for losses in ((2.0, 1.0), (3.0,)):
            store.append(point(0, losses))
        assert [result["losses"] for result in store.results()] == [[2.0, 1.0]]


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(0))
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"precision": "fp32.32", "se')
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(1))
        assert [result["seed"] for result in store.results()] == [0, 1]


def test_a_line_that_a_full_disk_cuts_off_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(0))
        before = (tmp_path / RESULTS).read_bytes()
        with monkeypatch.context() as full:
            full.setattr(os, "write", lambda file, line: write(file, line[:20]))
            with pytest.raises(OSError, match="No space left on device"):
                store.append(point(1))
        assert (tmp_path / RESULTS).read_bytes() == before
        store.append(point(2))
        assert [result["seed"] for result in store.results()] == [0, 2]


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(0))
    with pytest.raises(ValueError, match=r"other settings \(lr 0.1 there, 0.2 here\).*another folder"):
        Store(tmp_path, {**SETTINGS, "lr": 0.2})


@pytest.mark.parametrize("left", ["nothing", "an unfinished point"])
def test_a_folder_without_a_finished_point_is_a_studys_too(left: str, tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        kept = store.checkpoint("p")
        if left != "nothing":
            kept.write_text("hours of work")
    before = (tmp_path / "manifest.json").read_bytes()
    way = "remove it" if left == "nothing" else "go on with it"
    said = rf"\(lr 0.1 there, 0.2 here\), no point of it is finished: {way}, choose another folder, or"
    for _ in range(2):  # what is refused leaves no trace
        with pytest.raises(OtherStudy, match=said):
            Store(tmp_path, {**SETTINGS, "lr": 0.2})
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert kept.exists() == (left != "nothing")
    with Store(tmp_path, SETTINGS) as again:
        assert again.checkpoint("p") == kept
    with open_store(tmp_path, {**SETTINGS, "lr": 0.2}, {}, force=True) as beside:
        assert beside.folder == tmp_path.with_name(f"{tmp_path.name}-2")


def test_what_fails_before_any_training_leaves_no_study(tmp_path: Path) -> None:
    def fail(lr: float, executions: list[str]) -> None:
        with Store(tmp_path, {**SETTINGS, "lr": lr}) as store:
            if executions:
                store.trained_by(*executions)
            raise RuntimeError

    def refused(lr: float, *executions: str) -> None:
        with pytest.raises(RuntimeError):
            fail(lr, list(executions))

    refused(0.2)
    (tmp_path / "checkpoints").touch()
    with pytest.raises(ValueError, match="File exists"):
        Store(tmp_path, SETTINGS)
    (tmp_path / "checkpoints").unlink()
    refused(0.3)
    assert not (tmp_path / "manifest.json").exists()
    refused(0.4, "here")  # from then on it is a study's
    refused(0.4)
    with pytest.raises(OtherStudy, match=r"\(lr 0.4 there, 0.1 here\)"):
        Store(tmp_path, SETTINGS)


def test_a_manifest_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "somebody\'s page"}')
    with pytest.raises(OtherStudy, match="no study's manifest: choose another folder"):
        Store(tmp_path, SETTINGS)
    assert (tmp_path / "manifest.json").read_text() == '{"name": "somebody\'s page"}'


def test_settings_in_another_order_are_the_same_study(tmp_path: Path) -> None:
    other = {name: SETTINGS[name] for name in reversed(SETTINGS)}
    with Store(tmp_path, SETTINGS, {"a": "1", "b": "2"}) as store:
        store.append(point(0))
    with Store(tmp_path, other, {"b": "2", "a": "1"}) as again:
        assert again.digest == store.digest
        assert [result["seed"] for result in again.results()] == [0]


def test_a_refusal_says_only_what_differs(tmp_path: Path) -> None:
    settings = {"optimizer": {"kind": "Sgd", "lr": 0.1, "schedule": {"code": "a" * 40}}, "steps": 3}
    with Store(tmp_path, settings) as store:
        store.append(point(0))
    changed = {"optimizer": {"kind": "Sgd", "lr": 0.1, "schedule": {"code": "b" * 40}}, "steps": 3, "more": None}
    said = r"other settings \(optimizer.schedule.code \"a{20}\.\.\. there, \"b{20}\.\.\. here\): choose"
    with pytest.raises(ValueError, match=said):
        Store(tmp_path, changed)


def test_another_version_is_refused_with_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(lowprec, "__version__", "0.0.7")
        with Store(tmp_path, SETTINGS) as store:
            store.append(point(0))
    with pytest.raises(
        ValueError, match=rf"a study of lowprec 0\.0\.7, and this is lowprec {lowprec.__version__}: choose"
    ):
        Store(tmp_path, SETTINGS)
    (tmp_path / "manifest.json").write_text(json.dumps({"study": digest(SETTINGS), "settings": SETTINGS}))
    with pytest.raises(
        ValueError, match=rf"older lowprec, which kept no version, and this is lowprec {lowprec.__version__}"
    ):
        Store(tmp_path, SETTINGS)


def test_a_folder_of_arguments_without_their_training_is_read_and_not_gone_on_with(tmp_path: Path) -> None:
    """As lowprecs wrote them that kept no Training."""
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(0))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["trainings"], manifest["executions"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(OtherStudy, match="an older lowprec, which kept what was asked for and not the Training that"):
        Store(tmp_path, {"steps": 10, "training": {"optimizer": {"lr": 0.1}}})
    assert [result["seed"] for result in read_results(tmp_path)] == [0]
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_the_training_of_a_precision_stays_the_same(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS, {}, {"fp32.32": "a"}) as store:
        store.append(point(0))
    with Store(tmp_path, SETTINGS, {}, {"fp16.32": "b"}):
        pass
    assert read_manifest(tmp_path).trainings == {"fp32.32": "a", "fp16.32": "b"}
    with pytest.raises(OtherStudy, match=r"holds a study with another Training in fp16\.32: choose"):
        Store(tmp_path, SETTINGS, {}, {"fp32.32": "a", "fp16.32": "c"})
    with module.open_store(tmp_path, SETTINGS, {}, {"fp16.32": "c"}, force=True) as store:
        assert store.folder != tmp_path


def test_numbers_count_by_their_value(tmp_path: Path) -> None:
    with Store(tmp_path, {**SETTINGS, "lr": 1, "kahan": False}) as store:
        store.append(point(0))
    with Store(tmp_path, {**SETTINGS, "lr": 1.0, "kahan": False}) as again:
        again.append(point(1))
        assert again.digest == store.digest
    assert [result["seed"] for result in read_results(tmp_path)] == [0, 1]


def test_where_points_were_trained_is_kept_and_refuses_nothing(tmp_path: Path) -> None:
    for words, all_of_them in (("here", ("here",)), ("there", ("here", "there")), ("here", ("here", "there"))):
        with Store(tmp_path, SETTINGS) as store:
            store.trained_by(words)
            store.append(point(0))
            assert store.executions == all_of_them
    assert read_manifest(tmp_path).executions == ("here", "there")


def test_another_order_of_sums_is_refused_and_named(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS, {"forward.dot.0": "1", "forward.reduce_sum.7": "2", "forward.dot.9": "5"}) as store:
        store.append(point(0))
    with pytest.raises(ValueError, match=r"another order of sums \(forward\.dot\.9 and 1 more\): choose"):
        Store(tmp_path, SETTINGS, {"forward.dot.0": "1", "forward.reduce_sum.7": "3"})


OLD = {"rule": "1", "0 forward dot": "a", "4 forward dot out.a name": "b", "7 forward reduce_sum": "c"}
NEW = {"rule": "1", "mix.forward.dot.0": "a", "out.a name.forward.dot.4": "b", "forward.reduce_sum.7": "c"}


def test_a_folder_with_the_names_of_an_older_lowprec_is_gone_on_with(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS, OLD) as store:
        store.append(point(0))
    words = r"gave sums: '0 forward dot' is 'mix\.forward\.dot\.0' now"
    with pytest.warns(DeprecationWarning, match=words) as said, Store(tmp_path, SETTINGS, NEW) as store:
        store.append(point(1))
    assert len(said) == 1
    assert [result["seed"] for result in read_results(tmp_path)] == [0, 1]
    assert read_manifest(tmp_path).basis["accumulations"] == OLD


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"mix.forward.dot.0": "a"}, r"\(4 forward dot out\.a name and 2 more\)"),
        ({**NEW, "forward.reduce_sum.7": "d"}, r"\(forward\.reduce_sum\.7\)"),
        ({"mix.grad_input.dot.0": "a", "out.a name.forward.dot.4": "b", "forward.reduce_sum.7": "c", "rule": "1"},
         r"\(0 forward dot and 1 more\)"),
        ({"w.forward.dot.4" if "out" in name else name: order for name, order in NEW.items()},
         r"\(4 forward dot out\.a name and 1 more\)"),
    ],
)  # fmt: skip
def test_old_names_hide_no_other_sum(other: dict[str, str], words: str, tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS, OLD) as store:
        store.append(point(0))
    with pytest.raises(OtherStudy, match=f"another order of sums {words}"):
        Store(tmp_path, SETTINGS, other)


def test_results_agree_whichever_names_their_sums_have() -> None:
    assert agree({**point(), "accumulations": NEW}, {**point(), "accumulations": OLD})
    assert not agree({**point(), "accumulations": NEW}, {**point(), "accumulations": {**OLD, "0 forward dot": "d"}})


def test_a_forced_study_begins_beside_the_others(tmp_path: Path) -> None:
    for number, (lr, name) in enumerate([(0.1, "a"), (0.2, "a-2"), (0.3, "a-3"), (0.2, "a-2"), (0.1, "a")]):
        with module.open_store(tmp_path / "a", {**SETTINGS, "lr": lr}, {}, force=True) as store:
            assert store.folder == tmp_path / name
            store.append(point(number))
    assert [result["seed"] for result in read_results(tmp_path / "a-2")] == [1, 3]
    with pytest.raises(ValueError, match="other settings"):
        module.open_store(tmp_path / "a", {**SETTINGS, "lr": 0.4}, {})
    assert not (tmp_path / "a-4").exists()
    with Store(tmp_path / "a", SETTINGS), pytest.raises(ValueError, match="another study is running"):
        module.open_store(tmp_path / "a", SETTINGS, {}, force=True)


def test_a_folder_without_a_name_has_one_beside_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path(RESULTS).write_text("not ours\n")
    (tmp_path / "here" / "below").mkdir()
    for folder, name in ((".", "here-2"), ("below/..", "here-2")):
        with module.open_store(folder, SETTINGS, {}, force=True) as store:
            assert store.folder == tmp_path / name
    assert Path(RESULTS).read_text() == "not ours\n"


def finished_table(folder: Path) -> str:
    """The table of a study of two seeds after what is missing in its folder has been run."""
    with Store(folder, SETTINGS) as store:
        for seed in {0, 1} - {result["seed"] for result in store.results()}:
            store.append(point(seed, (2.0, 1.0 + seed)))
        return str(table(summarise(store.results(), ["fp32.32"]), "t"))


@pytest.mark.parametrize("name", [RESULTS, "manifest.json"])
def test_no_flipped_byte_changes_a_table_in_silence(name: str, tmp_path: Path) -> None:
    wanted = finished_table(tmp_path)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refused = 0
    for place in range(len(whole[name])):
        change = (1 << place % 8, 0x20, 0xFF)[place % 3]
        damaged = bytearray(whole[name])
        damaged[place] ^= change
        for file, data in {**whole, name: bytes(damaged)}.items():
            (tmp_path / file).write_bytes(data)
        try:
            assert finished_table(tmp_path) == wanted, (place, change)
        except ValueError as error:
            refused += 1
            assert str(tmp_path) in str(error)  # noqa: PT017
    spaces = whole[name].count(b" ") + whole[name].count(b"\n")  # of a manifest; some flips of them are spaces again
    assert refused > len(whole[name]) - spaces


@pytest.mark.parametrize("name", [RESULTS, "manifest.json"])
def test_no_truncation_changes_a_table_in_silence(name: str, tmp_path: Path) -> None:
    wanted = finished_table(tmp_path)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for length in range(len(whole[name])):
        for file, data in {**whole, name: whole[name][:length]}.items():
            (tmp_path / file).write_bytes(data)
        if name == RESULTS:
            assert finished_table(tmp_path) == wanted  # what was lost is run again
        elif length < len(whole[name]) - 1:
            with pytest.raises(ValueError, match=r"manifest.json is damaged"):
                finished_table(tmp_path)


def test_a_line_of_another_study_is_refused(tmp_path: Path) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2)):
        with Store(tmp_path / name, {**SETTINGS, "lr": lr}) as store:
            store.append(point(0))
    with (tmp_path / "a" / RESULTS).open("ab") as file:
        file.write((tmp_path / "b" / RESULTS).read_bytes())
    with pytest.raises(ValueError, match="line 2, is of another study"):
        Store(tmp_path / "a", SETTINGS)


def test_a_reader_leaves_out_the_line_that_is_being_written(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(0))
        with (tmp_path / RESULTS).open("ab") as file:
            file.write(b'{"precision": "fp')
        assert [result["seed"] for result in read_results(tmp_path)] == [0]


def test_manifest_and_results_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync, replace = os.fsync, os.replace

    def follow(number: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
        fsync(number)

    def rename(draft: Path, path: Path) -> None:
        synced.append(f"-> {path.name}")
        replace(draft, path)

    monkeypatch.setattr(os, "fsync", follow)
    monkeypatch.setattr(os, "replace", rename)
    with Store(tmp_path / "a", SETTINGS) as store:
        assert synced[:3] == [f".manifest.json.{os.getpid()}.draft", "-> manifest.json", "a"]
        del synced[:]
        store.append(point(0))
        assert synced == [RESULTS]


def test_what_a_kill_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        done, todo, again = (store.checkpoint(f"fp32.32 seed {seed}") for seed in range(3))
        store.append(point(0))
    done.parent.mkdir()
    for path in (done, todo, again):
        path.write_text("state")
    for draft in (".parameters-fp32.32-seed-0.npz.4711", ".watch-a.npy.1", ".table.txt.12", "checkpoints/.p.npz.123"):
        (tmp_path / f"{draft}.draft").write_text("half")
    with Store(tmp_path, SETTINGS) as store:
        store.sweep(["fp32.32 seed 0", "fp32.32 seed 2"], {again})
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["manifest.json", RESULTS]
        assert sorted(done.parent.iterdir()) == sorted([todo, again])


def test_what_is_not_the_stores_own_stays(tmp_path: Path) -> None:
    """A user's hidden files, folders of any name, and the drafts of what is no file of a study."""
    names = [
        ".gitignore",
        ".notes.2024",
        ".table.txt.12",
        ".table.txt.12x.draft",
        ".notes.12.draft",
        ".mine.npz.7.draft",
    ]
    folders = [".backup.2023", ".table.txt.12.draft"]
    for name in names:
        (tmp_path / name).write_text("the user's own")
    for name in folders:
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").touch()
    with Store(tmp_path, SETTINGS) as store:
        store.append(point(0))
    with Store(tmp_path, SETTINGS):
        assert sorted(path.name for path in tmp_path.glob(".*")) == sorted([*names, *folders])


def test_results_agree_wherever_they_were_made() -> None:
    assert agree({**point(), "cycles_per_step": 3, "seconds": 2}, {**point(), "cycles_per_step": 4})
    assert agree({**point(), "microseconds_per_step": 3, "tile_memory": 2}, {**point(), "microseconds_per_step": 4})
    assert not agree({**point(), "lost_updates": 0.5}, {**point(), "lost_updates": 0.25})


def test_results_agree_but_for_the_time_they_took() -> None:
    one = {**point(0), "seconds": 1.0, "study": "a", "test_accuracy": math.nan}
    assert agree(one, {**one, "seconds": 2.0, "study": "b", "more": 1})
    assert not agree(one, {**one, "losses": [2.0, 1.5]})


def test_an_open_folder_is_not_copied(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="open another one"):
                make(store)


def kept(folder: Path, names: tuple[str, ...] = ("parameters", "watch")) -> list[Path]:
    """A finished point with files of these kinds, whose checksums are kept."""
    paths = [files.point_file(folder, kind, "fp32.32 seed 0") for kind in names]
    with Store(folder, SETTINGS) as store:
        for path in paths:
            path.write_bytes(bytes(range(256)))
        store.keep([*paths, folder / "not there"])
        store.append(point(0))
    return paths


def test_no_flipped_bit_of_a_kept_file_goes_unseen(tmp_path: Path) -> None:
    parameters, watch = kept(tmp_path)
    for place in (0, 100, 255):
        for bit in range(8):
            damaged = bytearray(range(256))
            damaged[place] ^= 1 << bit
            watch.write_bytes(damaged)
            with Store(tmp_path, SETTINGS) as store:
                store.inspect()
                assert store.damaged == {watch.name}
                assert [store.whole(path) for path in (parameters, watch)] == [True, False]
    watch.write_bytes(bytes(range(256)))
    with Store(tmp_path, SETTINGS) as store:
        store.inspect()
        assert not store.damaged
        assert store.whole(watch)


def test_a_damaged_file_is_set_aside_and_made_again(tmp_path: Path) -> None:
    _, watch = kept(tmp_path)
    watch.write_bytes(b"rubbish")
    with Store(tmp_path, SETTINGS) as store:
        store.inspect()
        store.set_aside(watch)
        store.forget([watch])
        assert not store.damaged
        assert not store.whole(watch)
    assert (tmp_path / f"{watch.name}.damaged").read_bytes() == b"rubbish"
    with Store(tmp_path, SETTINGS) as store:  # a kill before it is made again: nothing is known of it
        watch.write_bytes(b"half")
        store.inspect()
        assert not store.whole(watch)
        store.keep([watch])
        assert store.whole(watch)


def test_a_file_that_somebody_removed_is_not_damaged(tmp_path: Path) -> None:
    parameters, watch = kept(tmp_path)
    watch.unlink()
    with Store(tmp_path, SETTINGS) as store:
        store.inspect()
        assert not store.damaged
        assert [store.whole(path) for path in (parameters, watch)] == [True, False]


def test_a_file_without_a_checksum_is_not_taken_for_whole(tmp_path: Path) -> None:
    parameters, state = kept(tmp_path, ("parameters", "state"))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    del manifest["files"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with Store(tmp_path, SETTINGS) as store:
        store.inspect()
        assert len(store.results()) == 1
        assert not any(map(store.whole, (parameters, state)))


def test_what_a_kill_left_unfinished_is_not_taken_for_what_was_written(tmp_path: Path) -> None:
    """In a folder that keeps checksums, though there is none yet: a point finished, and then it was to be watched."""
    kept(tmp_path, ())
    watch = files.point_file(tmp_path, "watch", "fp32.32 seed 0")
    watch.write_bytes(b"half")
    with Store(tmp_path, SETTINGS) as store:
        store.inspect()
        assert not store.whole(watch)
        assert not store.damaged


def test_one_study_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS), pytest.raises(ValueError, match="another study is running"):
        Store(tmp_path, SETTINGS)
    Store(tmp_path, SETTINGS).close()


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match=r"cannot write to the output folder .*file"):
        Store(tmp_path / where, SETTINGS)


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text("{}\n")
    with pytest.raises(ValueError, match="without a manifest"):
        Store(tmp_path, SETTINGS)
    for text in ("[]", "{}", "3", '{"study": 1, "lowprec": "0.1.0"}', "\xff"):
        (tmp_path / "manifest.json").write_text(text, "latin-1")
        with pytest.raises(ValueError, match="no study's manifest"):
            Store(tmp_path, SETTINGS)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(ValueError, match=r"manifest.json cannot be read: Is a directory"):
        Store(tmp_path, SETTINGS)
    (tmp_path / "manifest.json").rmdir()
    (tmp_path / RESULTS).unlink()
    Store(tmp_path, SETTINGS).close()
    for line in (b"{}", b'{"losses": [1], "seed": 0}', b"\xff", b""):
        (tmp_path / RESULTS).write_bytes(line + b"\n")
        with pytest.raises(ValueError, match="line 1, is damaged: remove the line"):
            read_results(tmp_path)
    with pytest.raises(ValueError, match="no results"):
        read_results(tmp_path / "nowhere")


def test_drafts_that_a_kill_left_do_not_stay(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        (store.checkpoint("a").parent / ".a.npz.123.draft").write_text("half a checkpoint")
    assert not (tmp_path / "checkpoints").exists()


def test_checkpoints_are_named_after_their_point(tmp_path: Path) -> None:
    with Store(tmp_path, SETTINGS) as store:
        path = store.checkpoint("fp16.16/nearest seed 2")
        assert path.parent.is_dir()
        assert path.name == f"fp16.16-nearest-seed-2-{store.digest[:12]}.npz"
        path.write_text("x")
    assert path.exists()


def test_a_study_knows_the_names_of_its_own_files() -> None:
    assert all(map(is_own, ("results.jsonl", "manifest.json", "plan.txt", "watch-fp8-0.npy", "parameters-fp8-1.npz")))
    assert not any(map(is_own, ("notes.txt", "tmp123.tmp", ".notes.2024", "results.jsonl.old", "plan.txt~")))
