"""Models in files on the command line: FILE:NAME and torch:FILE:NAME for every command, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ipu_core.__main__ import main

FILE = """
import numpy as np
from beside import width


def loss(params, batch):
    x, y = batch
    return np.mean((np.tanh(x @ params["in"]) @ params["out"] - y) ** 2)


def make():
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(6, 8, 4)).astype(np.float32)
    params = {"in": rng.normal(size=(4, width)).astype(np.float32), "out": np.zeros((width, 1), np.float32)}
    return loss, params, [(x, np.sin(x[:, :1])) for x in xs], lambda trained, precision: {"norm": 2.0}


def seeds():
    def params(seed):
        return {"in": np.full((4, width), seed + 1, np.float32), "out": np.ones((width, 1), np.float32)}

    return loss, params, lambda seed, step: (np.full((8, 4), seed, np.float32), np.full((8, 1), step, np.float32))


def three():
    return 3


def fails():
    return 1 / 0
"""
TORCH = """
import torch


def make():
    torch.manual_seed(0)
    x, y = torch.randn(48, 6), torch.randint(0, 3, (48,))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)), loader, \\
        torch.nn.functional.cross_entropy
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "beside.py").write_text("width = 5\n")
    (tmp_path / "net.py").write_text(TORCH)
    monkeypatch.chdir(tmp_path)
    # What stands beside a file is imported once in a process, and tests share theirs.
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return tmp_path


def losses(path: Path) -> dict[str, float]:
    rows = [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()]
    return {f"{row['precision']} {row['seed']}": row["losses"][-1] for row in rows}


def test_a_study_of_a_function_in_a_file_and_where_it_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = ["study", "mine.py:make", "--steps", "5", "--seeds", "2", "--precisions", "fp32.32", "--workers", "2"]
    assert main([*study, "--out", "a"]) == 0
    first = losses(folder / "a")
    assert len(first) == 2
    assert "mine.py:make, sgd lr 0.001, 5 steps" in capsys.readouterr().out
    # Of another length: a file written again in the same second and as long is the compiled one to Python.
    (folder / "beside.py").write_text("width = 11\n")
    sys.modules.pop("beside", None)
    assert main([*study, "--out", "a"]) == 2
    assert "a holds a study with other settings" in capsys.readouterr().err
    assert losses(folder / "a") == first


def test_functions_of_the_seed_train_blame_and_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "mine.py:seeds", "--steps", "4", "--precision", "fp32.32", "--out", "t", "--seed", "3"]) == 0
    with np.load(next((folder / "t").glob("parameters*.npz"))) as kept:
        assert any(kept[name].shape == (4, 5) for name in kept)
    assert main(["profile", "mine.py:make", "--precision", "fp16.16/nearest"]) == 0
    assert "in.forward.dot.0" in capsys.readouterr().out
    assert main(["blame", "mine.py:make", "--steps", "12", "--lr", "0.01"]) == 0
    assert "of what float32 learns" in " ".join(capsys.readouterr().out.split())


def test_a_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ["sweep", "mine.py:make", "--steps", "5", "--seeds", "2", "--axis", "weights", "e8m4 ... e8m2", "e5m2"]
    assert main([*sweep, "--axis", "lr", "0.1", "0.01", "--out", "s"]) == 0
    told = capsys.readouterr().out
    assert all(f"\n{name} " in told for name in ("e8m4", "e8m3", "e8m2", "e5m2"))
    assert (folder / "s" / "sweep.csv").exists()
    assert (folder / "s" / "sweep.png").exists()
    before = (folder / "s" / "results.jsonl").read_bytes()
    assert main([*sweep, "--axis", "lr", "0.1", "0.01", "--out", "s"]) == 0
    assert (folder / "s" / "results.jsonl").read_bytes() == before
    assert main(["sweep", "mine.py:make", "--steps", "5", "--out", "s2"]) == 2
    assert "a sweep is over axes: --axis weights" in capsys.readouterr().err
    assert main(["sweep", "mlp", "--steps", "2", "--seeds", "1", "--axis", "weights", "bf16", "--out", "m"]) == 0


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("mine.py:three", "gave 3; it must be a function without arguments that gives (loss, params, batches)"),
        ("mine.py:fails", "mine.py:fails failed: ZeroDivisionError: division by zero"),
        ("mine.py:nothing", "mine.py has no function 'nothing'; there are fails, loss, make, seeds, three"),
        ("none.py:make", "there is no file none.py"),
        ("mine.py", "'mine.py' names no model: FILE.py:NAME is a function"),
        ("mine:make", "names no model: FILE.py:NAME is a function"),
        ("torch:mine.py:three", "gave 3; it must be a function without arguments that gives (module, loader, loss)"),
    ],
)
def test_what_is_no_model(folder: Path, capsys: pytest.CaptureFixture[str], model: str, says: str) -> None:
    assert main(["study", model, "--steps", "2", "--out", "x"]) == 2
    assert says in capsys.readouterr().err
    assert not (folder / "x").exists()


@pytest.mark.parametrize("option", [["--layers", "3-4"], ["--batch", "3"], ["--mup"], ["--data", "a.npz"]])
def test_options_of_other_models_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert main(["study", "mine.py:make", *option, "--out", "x"]) == 2
    assert (
        f"{option[0]} is for mlp, cnn, resnet, lm, bert, gcn, gin, braggnn, uno: mine.py:make says"
        in capsys.readouterr().err
    )


def test_a_module_of_torch(folder: Path) -> None:
    pytest.importorskip("torch")
    assert main(["study", "torch:net.py:make", "--steps", "6", "--seeds", "2", "--lr", "0.1", "--out", "n"]) == 0
    assert len(losses(folder / "n")) == 8
