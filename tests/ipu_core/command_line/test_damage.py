"""Files of a finished study that are not what it wrote, or that it cannot write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ipu_core.diagnose.watch import Record
from ipu_core.diagnose.watch.file import RowFile
from ipu_core.train import checkpoint
from tests.ipu_core.command_line.commands import SMALL, exit_code, results

KINDS = (("parameters", "npz"), ("state", "npz"), ("watch", "npy"))
ONE = ["--precision", "fp16.16/nearest", "--watch", "8"]
FILES = [
    f"{kind}-fp16.16-nearest-seed-0.np{end}" for kind, end in (("parameters", "z"), ("state", "z"), ("watch", "y"))
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a finished training, by name."""
    folder = tmp_path_factory.mktemp("damage")
    assert exit_code("train", *SMALL, *ONE, "--out", str(folder)) == 0
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def laid(files: dict[str, bytes], folder: Path) -> list[str]:
    """Puts the files into a folder; the command that made them."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return ["train", *SMALL, *ONE, "--out", str(folder)]


def test_a_finished_training_keeps_the_checksums_of_its_files(trained: dict[str, bytes]) -> None:
    assert json.loads(trained["manifest.json"])["files"].keys() == set(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0, 0.5, 0.9, None])
def test_a_damaged_file_is_named_and_made_again(
    name: str, place: float | None, trained: dict[str, bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = laid(trained, tmp_path)
    damaged = bytearray(trained[name])
    if place is None:
        del damaged[100:]
    else:
        damaged[int(place * len(damaged))] ^= 1
    (tmp_path / name).write_bytes(damaged)
    assert exit_code(*command) == 0
    printed = capfd.readouterr().out
    assert f"{tmp_path / name} is damaged (its checksum has changed): it is made again" in printed
    assert (tmp_path / f"{name}.damaged").read_bytes() == damaged
    assert (tmp_path / "results.jsonl").read_bytes() == trained["results.jsonl"]
    again = {path: (tmp_path / path).read_bytes() for path in FILES}
    assert again[FILES[0]] == trained[FILES[0]]
    assert again[FILES[2]] == trained[FILES[2]]
    assert checkpoint.load(tmp_path / FILES[1])[1]["losses"] == results(tmp_path)[0]["losses"]
    assert exit_code(*command) == 0
    assert "damaged (" not in capfd.readouterr().out


def test_a_damaged_watch_file_is_not_shown(
    trained: dict[str, bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    *command, out = laid(trained, tmp_path)
    command = [word for word in command if word not in ("--watch", "8")]
    assert exit_code(*command, out) == 0
    printed = capfd.readouterr().out
    assert "worst values of" in printed
    assert "What rounding did" in (tmp_path / "page.html").read_text("utf-8")
    for name, way in ((FILES[2], "it is not shown; --watch N"), (FILES[0], "it is made again")):
        damaged = bytearray(trained[name])
        damaged[-100] ^= 4
        (tmp_path / name).write_bytes(damaged)
        assert exit_code(*command, out) == 0
        printed = capfd.readouterr().out
        assert f"{tmp_path / name} is damaged (its checksum has changed): {way}" in printed
        assert "worst values of" not in printed
        assert "What rounding did" not in (tmp_path / "page.html").read_text("utf-8")


def test_a_damaged_state_is_not_gone_on_from(
    trained: dict[str, bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = laid(trained, tmp_path)
    longer = [*command, "--steps", "50"]
    (tmp_path / FILES[1]).write_bytes(trained[FILES[1]][:-1])
    assert exit_code(*longer) == 2
    assert f"{tmp_path / FILES[1]} is damaged" in (error := capfd.readouterr().err)
    assert "the same command with --steps 40 makes it again" in error
    assert exit_code(*command) == 0
    assert exit_code(*longer) == 0
    assert len(results(tmp_path)[0]["losses"]) == 50  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")  # of NumPy, about headers
def test_no_damage_to_a_watch_file_is_another_error_than_that_it_is_none(
    trained: dict[str, bytes], tmp_path: Path
) -> None:
    path, whole = tmp_path / "w.npy", trained[FILES[2]]
    path.write_bytes(whole)
    second = whole.index(b"\x93NUMPY", 1)
    places = [*range(160), *range(second - 40, second + 160), len(whole) - 1]
    refused = 0
    for place in places:
        for change in (1 << place % 8, 0xFF):
            data = bytearray(whole)
            data[place] ^= change
            refused += refusal(path, bytes(data))
    assert refused > len(places) / 2
    for length in range(0, len(whole), 997):
        assert refusal(path, whole[:length])


def refusal(path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    try:
        Record.read(path)
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017
        return True
    return False


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_what_is_watched_and_trained_may_not_be_written_and_no_point_is_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", *SMALL, *ONE, "--out", str(tmp_path)]
    with monkeypatch.context() as disk:
        disk.setattr(RowFile, "append", full)
        disk.setattr(checkpoint, "save", full)
        with pytest.warns(RuntimeWarning, match=r"watch-.*npy cannot be written: No space.*; nothing more is watched"):
            assert exit_code(*command) == 2
    error = capfd.readouterr().err
    assert f"no parameters could be written to {tmp_path / FILES[0]}: No space left" in error
    for name in FILES:
        assert f"{name} could not be written: the same command makes it again" in error
    assert " failed" not in error
    assert len(results(tmp_path)) == 1
    assert exit_code(*command) == 0
    assert all((tmp_path / name).is_file() for name in FILES)


def test_a_full_disk_costs_files_and_no_point(tmp_path: Path) -> None:
    """The size of a file is limited instead, below that of the picture and of what is watched."""
    words = [*SMALL[:2], "--steps", "20", *SMALL[4:], "--precisions", "fp32.32", "fp16.16/nearest", "--seeds", "1"]
    line = " ".join([sys.executable, "-m", "ipu_core", "study", *words, "--watch", "4", "--workers", "2"])
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 16; {line} --out {tmp_path}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert len(results(tmp_path)) == 2
    assert "convergence.png could not be written: File too large" in done.stderr
    for precision in ("fp32.32", "fp16.16-nearest"):
        assert f"watch-{precision}-seed-0.npy cannot be written: File too large; nothing more is" in done.stderr
        assert f"watch-{precision}-seed-0.npy could not be written: the same command makes it again" in done.stderr
    assert (tmp_path / "table.txt").is_file()
