"""What version 0.1.0 spelt "optimiser" is read, and said once: names in code, in words, in checkpoints and in files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipu_core
from ipu_core import Adam, Execution, TrainLoop, nn
from ipu_core.__main__ import main
from ipu_core.ir.block import text
from ipu_core.ir.spelling import older_lines, respelled
from ipu_core.train import checkpoint

PARAMS = {"w": np.full((4, 2), 0.5, np.float32)}
BATCH = np.ones((2, 4), np.float32)


def loss(params: Any, x: Any) -> Any:
    return (nn.tanh(x @ params["w"]) ** 2).mean()


def loop(**more: Any) -> TrainLoop:
    return TrainLoop(loss, PARAMS, BATCH, optimizer=Adam(0.01), precision="fp16.16/stochastic", key=3, **more)


def test_names_are_warned_of_once() -> None:
    with pytest.warns(DeprecationWarning, match="here") as said:
        found = respelled(["optimiser.a", "params.b", "optimiser.c"], "here")
    assert [str(each.message) for each in said] == ["here: 'optimiser.a' and 1 more is spelt 'optimizer.a' now"]
    assert found == {"optimiser.a": "optimizer.a", "params.b": "params.b", "optimiser.c": "optimizer.c"}


def test_the_protocol_has_its_older_name() -> None:
    with pytest.warns(DeprecationWarning, match=r"ipu_core\.Optimizer now"):
        assert ipu_core.Optimiser is ipu_core.Optimizer
    with pytest.raises(AttributeError, match="Optimist"):
        ipu_core.Optimist  # noqa: B018


def test_what_is_streamed_may_be_spelt_so() -> None:
    with pytest.warns(DeprecationWarning, match=r"streamed: 'optimiser\.\*' is spelt 'optimizer\.\*' now"):
        older = Execution(streamed="optimiser.*")
    assert older == Execution(streamed="optimizer.*")


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_checkpoints_of_0_1_0_are_taken_up(engine: str, tmp_path: Path) -> None:
    trained, path = loop(engine=engine, micro_batches=2), tmp_path / "older.npz"
    trained.train(BATCH)
    trained.save(path)
    arrays, meta = checkpoint.load(path)
    assert any(name.startswith("optimizer.") for name in arrays)
    meta["traced step"] = trained._stepper.prepared.planned.older_digest
    checkpoint.save(path, {name.replace("optimizer", "optimiser"): array for name, array in arrays.items()}, meta)
    fresh = loop(engine=engine, micro_batches=2)
    with pytest.warns(DeprecationWarning, match="the arrays of a state") as said:
        fresh.load(path)
    assert len([each for each in said if each.category is DeprecationWarning]) == 1
    assert fresh.train(BATCH) == trained.train(BATCH)


def test_printed_steps_are_told_as_they_were() -> None:
    told = older_lines(text(loop(micro_batches=2).block))
    assert "2 rounds, each with its part of" in told
    assert "%state.optimiser.first_moment.w" in told
    assert "optimizer" not in told
    assert "iterations" not in told


def test_the_command_and_its_files_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["profile", "mlp", "--layers", "64-12-10", "--batch", "16", "--precision", "fp32.32"]
    outputs = []
    config = tmp_path / "older.toml"
    config.write_text('optimiser = "adam"\n')
    for more in (["--optimizer", "adam"], ["--optimiser=adam"], ["--optimiser", "adam"], ["--config", str(config)]):
        assert main([*line, *more]) == 0
        outputs.append(capsys.readouterr().out)
    assert len(set(outputs)) == 1
