"""Every setting from the command line and from a file: the same results, and one line for what is wrong."""

import json
from pathlib import Path

import pytest

from ipu_core.__main__ import main
from ipu_core.study import profiles
from ipu_core.study.compare import compare
from ipu_core.study.models.catalogue import problem
from ipu_core.study.settings import Settings
from ipu_core.train.data import dataset as data
from ipu_core.train.execution import Execution
from ipu_core.train.optim import Sgd

WORDS = ["--layers", "64-12-10", "--steps", "8", "--batch", "16", "--lr", "0.02", "--engine", "direct"]
WORDS += ["--optimizer", "lamb/clip_norm=1", "--schedule", "cosine/warmup=2", "--group", "*.bias/lr=2"]
WORDS += ["--micro-batches", "2", "--loss-scale", "automatic", "--streamed", "params.*.weight", "--overlap"]
WORDS += ["--precisions", "fp16.32,mlperf-bert", "--seeds", "1", "--workers", "1"]
FILE = """
model = "mlp"
layers = "64-12-10"
steps = 8
batch = 16
lr = 0.02
engine = "direct"
optimizer = "lamb/clip_norm=1"
schedule = "cosine/warmup=2"
group = ["*.bias/lr=2"]
micro-batches = 2
loss-scale = "automatic"
streamed = ["params.*.weight"]
overlap = true
precisions = ["fp16.32", "mlperf-bert"]
seeds = 1
workers = 1
"""


def losses(folder: Path) -> list[object]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [[json.loads(line)[name] for name in ("precision", "losses", "skipped_steps")] for line in lines]


def test_a_file_says_what_the_words_say(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(FILE)
    config = ["--config", str(tmp_path / "study.toml")]
    assert main(["study", *WORDS, "--out", str(tmp_path / "words")]) == 0
    assert main(["study", *config, "--out", str(tmp_path / "file")]) == 0
    assert losses(tmp_path / "words") == losses(tmp_path / "file")
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("words", "file")]
    assert manifests[0]["settings"] == manifests[1]["settings"]
    assert manifests[0]["settings"]["training"]["micro_batches"] == 2
    assert manifests[0]["executions"] == manifests[1]["executions"]
    assert manifests[0]["executions"] == [
        "direct engine, for gc200; streamed params.*.weight; transfers beside computation"
    ]
    assert main(["study", "mlp", *config, "--loss-scale", "8", "--out", str(tmp_path / "other")]) == 0
    assert json.loads((tmp_path / "other" / "manifest.json").read_text())["settings"]["training"]["loss_scale"] == 8.0


def test_a_profile_knows_streaming_and_micro_batches(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["profile", "mlp", "--layers", "64-12-10", "--batch", "16", "--precision", "fp32.32", "--optimizer", "adam"]
    assert main(line) == 0
    plain = capsys.readouterr().out
    assert main([*line, "--micro-batches", "4", "--streamed", "optimizer.*_moment.*"]) == 0
    assert capsys.readouterr().out != plain


def test_a_profile_knows_replicas_and_shards(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["profile", "mlp", "--layers", "64-12-10", "--precision", "fp16.16/nearest", "--optimizer", "adam"]
    printed = []
    for more in ([], ["--collective", "tree/wire=bfloat16"], ["--sharded", "optimizer.*"]):
        assert main([*line, "--replicas", "16", "--target", "bow-pod16", *more]) == 0
        printed.append(capsys.readouterr().out)
    assert len({*printed}) == 3
    assert "all_reduce" in printed[0]
    assert "reduce_scatter" in printed[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--micro-batches", "3"], "64 rows cannot be cut into 3 equal micro-batches"),
        (["--replicas", "3"], "64 rows cannot be cut into 3 equal replicas"),
        (["--replicas", "4", "--collective", "star"], "unknown collective 'star': choose ring, ring_pair, tree or"),
        (["--replicas", "4", "--collective", "ring/speed=2"], "unknown option 'speed' of collective ring; there are"),
        (["--replicas", "4", "--collective", "ring/wire=float5"], "collective ring/wire=float5: unknown format"),
        (["--replicas", "4", "--collective", "two_level/group=x"], "group must be a whole number, not 'x'"),
        (["--collective", "tree"], "collective= would do nothing"),
        (["--target", "bow-pod16"], "bow-pod16 has 16 chips for 1 replica"),
        (["--sharded", "optimizer.*"], "sharded= is for the state of several replicas"),
        (["--micro-batches", "0"], "micro_batches must be an integer of at least 1, not 0"),
        (["--loss-scale", "-1"], "loss_scale must be a positive float32, not -1.0"),
        (["--streamed", "moments"], "no activation that can be streamed is called 'moments'"),
        (["--random", "hardware", "--engine", "direct"], "draws on every tile and worker"),
        (["--random", "dice"], "unknown random 'dice': choose philox or hardware"),
        (["--config", "nowhere.toml"], "the configuration nowhere.toml cannot be read"),
    ],
)
def test_bad_words_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", *arguments, "--out", str(tmp_path / "out")]) == 2
    printed = capfd.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_bad_files_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for text, message in (
        ("colour = 1", "unknown option 'colour'; there are batch, collective, context,"),
        ("a = ", "study.toml: "),
    ):
        (tmp_path / "study.toml").write_text(text)
        assert main(["study", "--config", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out")]) == 2
        printed = capfd.readouterr().err
        assert message in printed
        assert printed.count("\n") == 1


@pytest.mark.filterwarnings("ignore::ipu_core.errors.Unvalidated")
def test_random_bits_of_the_tiles_from_the_command_line(tmp_path: Path) -> None:
    line = ["train", "mlp", "--layers", "64-12-10", "--steps", "6", "--batch", "8", "--lr", "0.02"]
    line += ["--precision", "fp16.16/stochastic", "--random", "hardware"]
    for name in ("once", "again"):
        assert main([*line, "--out", str(tmp_path / name)]) == 0
    assert main([*line[:-2], "--out", str(tmp_path / "philox")]) == 0
    results = {
        name: json.loads((tmp_path / name / "results.jsonl").read_text())["losses"]
        for name in ("once", "again", "philox")
    }
    assert results["once"] == results["again"] != results["philox"]
    settings = json.loads((tmp_path / "once" / "manifest.json").read_text())["settings"]
    assert settings["training"]["random"] == "hardware"
    assert settings["execution"] == Execution().record()


def test_compare_takes_the_same_settings() -> None:
    model = problem(Settings(layers=(64, 12, 10), batch=16), data.digits())
    given = {"micro_batches": 2, "loss_scale": "automatic", "streamed": ["params.*.weight"], "overlap": True}
    made = compare(
        model.loss, model.params, lambda seed, step: model.batches(seed)(step), ["fp16.32"], seeds=1, steps=4,
        optimizer=Sgd(0.1), engine="direct", **given,
    )  # fmt: skip
    assert made.settings["training"]["micro_batches"] == 2
    assert made.settings["training"]["loss_scale"]["kind"] == "LossScale"
    said = "direct engine, for gc200; streamed params.*.weight; transfers beside computation"
    assert made.executions == (said,)
    assert made.results[0]["skipped_steps"] == []
    plain = compare(
        model.loss, model.params, lambda seed, step: model.batches(seed)(step), ["fp16.32"], seeds=1, steps=4,
        optimizer=Sgd(0.1), engine="direct",
    )  # fmt: skip
    assert made.results[0]["losses"] != plain.results[0]["losses"]
    assert made.settings.keys() == plain.settings.keys()


def test_recompute_is_said_with_a_share_or_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Settings] = []
    monkeypatch.setattr(profiles, "profile", lambda settings, *rest, **more: given.append(settings))
    parts = ["--recompute", "blocks.*,layers"]
    for words, value in (
        ([], "false"), (["--recompute", "0.9"], "0.9"), (["--recompute"], "true"), (parts, '["blocks.*", "layers"]')
    ):  # fmt: skip
        (tmp_path / "own.toml").write_text(f"recompute = {value}\n")
        assert main(["profile", "lm", *words]) == main(["profile", "--config", str(tmp_path / "own.toml"), "lm"]) == 0
    assert [settings.recompute for settings in given[:6]] == [False, False, 0.9, 0.9, True, True]
    assert [settings.execution().recompute for settings in given[6:]] == [("blocks.*", "layers")] * 2
    with pytest.raises(SystemExit, match="2"):
        main(["profile", "--recompute", "lm"])
    said = "must be a number between 0 and 1, or parts such as 'blocks.*' or 'layers', not 'lm'; MODEL stands before it"
    assert said in capsys.readouterr().err
