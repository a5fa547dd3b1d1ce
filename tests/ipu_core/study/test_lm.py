"""The language model: its function beside PyTorch's, learning, engines, the command line."""

from pathlib import Path

import numpy as np
import pytest

from ipu_core.__main__ import main
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.study.compare import compare
from ipu_core.study.models import lm
from ipu_core.study.models.size import Size
from ipu_core.study.point import Recipe, make_loop
from ipu_core.study.settings import Point
from ipu_core.train.data import text
from ipu_core.train.optim import AdamW, Lamb
from tests.examples import first

SIZE = Size(width=16, layers=2, heads=2, context=16)
TINY = ["--width", "16", "--layers", "1", "--heads", "2", "--context", "16", "--batch", "4"]


@pytest.fixture(scope="module")
def task() -> text.Text:
    return text.load()


def test_parameters_are_those_of_their_stand_ins(task: text.Text) -> None:
    problem = lm.problem(SIZE, task, 4)
    made = problem.params(5)
    leaves, tree = flatten(made)
    shapes, same = flatten(problem.shapes)
    assert tree == same
    for leaf, shape in zip(leaves, shapes, strict=True):
        assert leaf.shape == shape.shape
        assert leaf.any() == shape.any()
    assert leaves[0].dtype == np.float32
    assert sum(leaf.size for leaf in leaves) == 2 * 256 * 16 + 16 * 16 + 2 * (12 * 16**2 + 13 * 16) + 2 * 16
    assert (problem.params(6)["embedding"] != made["embedding"]).any()


def test_it_begins_at_the_loss_of_a_guess_and_learns(task: text.Text) -> None:
    problem = lm.problem(SIZE, task, 8)
    loop = make_loop(problem, Recipe.of(60, optimizer=AdamW(0.01), engine="direct"), Point("fp16.16/stochastic", 1))
    losses = loop.run(problem.batches(1), 60)
    assert losses[0] == pytest.approx(np.log(256), rel=0.02)
    assert losses[-10:].mean() < 3.7
    assert problem.evaluate is not None
    measures = problem.evaluate(loop.params, Precision.parse("fp16.16/stochastic"))
    assert measures["test_loss"] == pytest.approx(float(losses[-10:].mean()), rel=0.15)


@pytest.mark.parametrize("precision", first(1, ["mlperf-bert", "fp32.32"]))
def test_both_engines_train_it_with_the_same_bits(task: text.Text, precision: str) -> None:
    problem, ends = lm.problem(Size(16, 1, 2, 16), task, 4), []
    for engine in ("direct", "tiles"):
        loop = make_loop(problem, Recipe.of(4, optimizer=Lamb(0.01), engine=engine), Point(precision, 0))
        losses = loop.run(problem.batches(0), 4)
        ends.append((losses.tobytes(), {name: a.tobytes() for name, a in loop.arrays().items()}))
    assert ends[0] == ends[1]


def test_no_byte_sees_what_follows_it(task: text.Text) -> None:
    params = lm.problem(SIZE, task, 4).params(0)
    x = np.arange(32, dtype=np.int32).reshape(2, 16)
    changed = x.copy()
    changed[:, 9:] = 7
    one, other = (lm.logits(SIZE.heads, params, rows) for rows in (x, changed))
    np.testing.assert_array_equal(one[:, :9], other[:, :9])
    assert (one[:, 9:] != other[:, 9:]).any()


def test_its_function_is_pytorchs(task: text.Text) -> None:
    torch = pytest.importorskip("torch")
    params = lm.problem(SIZE, task, 4).params(3)
    rng = np.random.default_rng(0)
    leaves = [np.float64(leaf + 0.1 * rng.normal(size=leaf.shape)) for leaf in flatten(params)[0]]
    params = lm.unflatten(flatten(params)[1], leaves)
    encoder = torch.nn.TransformerEncoderLayer(16, 2, 64, 0.0, "gelu", batch_first=True, norm_first=True).double()
    h = torch.tensor(params["embedding"])[torch.arange(32).reshape(2, 16)] + torch.tensor(params["position"])
    for block in params["blocks"]:
        a, p = block["attention"], block["perceptron"]
        tensors = [
            a["qkv"]["weight"].T, a["qkv"]["bias"], a["out"]["weight"].T, a["out"]["bias"], p["up"]["weight"].T,
            p["up"]["bias"], p["down"]["weight"].T, p["down"]["bias"], a["norm"]["scale"], a["norm"]["bias"],
            p["norm"]["scale"], p["norm"]["bias"],
        ]  # fmt: skip
        names = [name for name, _ in encoder.named_parameters()]
        weights = dict(zip(names, map(torch.tensor, tensors), strict=True))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(16, dtype=torch.float64)
        h = torch.func.functional_call(encoder, weights, (h, mask))
    last = torch.nn.functional.layer_norm(
        h, (16,), torch.tensor(params["norm"]["scale"]), torch.tensor(params["norm"]["bias"])
    )
    wanted = (last @ torch.tensor(params["head"])).detach().numpy()
    got = lm.logits(2, params, np.arange(32, dtype=np.int32).reshape(2, 16))
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


def test_study_train_and_profile_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("to be, or not to be. " * 200)
    own = ["--text", str(tmp_path / "mine.txt"), "--steps", "12"]
    line = ["study", "lm", *TINY, *own, "--engine", "direct", "--precisions", "fp32.32,mlperf-bert", "--seeds", "1"]
    assert main([*line, "--workers", "1", "--out", str(tmp_path / "study")]) == 0
    printed = capsys.readouterr().out
    assert "mine.txt, language model 1 layers, width 16, 2 heads, context 16, adamw lr 0.002, batch 4," in printed
    assert "test loss" in (tmp_path / "study" / "table.txt").read_text()
    train = ["train", "--model", "lm", *TINY, *own, "--optimizer", "lamb", "--engine", "direct"]
    assert main([*train, "--precision", "mlperf-bert", "--out", str(tmp_path / "train")]) == 0
    assert any(path.suffix == ".npz" for path in (tmp_path / "train").iterdir())
    capsys.readouterr()
    assert main(["profile", "lm", *TINY, *own[:2], "--precision", "fp16.16/stochastic"]) == 0
    assert "blocks.0.attention.qkv.weight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lm", "--heads", "3"], "3 heads do not divide a width of 128"),
        (["lm", "--layers", "64-10"], "layers must be an integer of at least 1, not '64-10'"),
        (["lm", "--context", "0"], "context must be an integer of at least 1, not 0"),
        (["lm", "--text", "nowhere"], "no such text: nowhere"),
        (["mlp", "--width", "3"], "--width is for lm and bert, not for mlp"),
        (["--text", "x"], "--text is for lm and bert, not for mlp"),
        (["lm", "--model", "cnn"], "two models are named, lm and cnn: give one"),
        (["gpt"], "unknown model 'gpt': choose mlp, cnn, resnet, lm, bert, gcn, gin, braggnn or uno"),
    ],
)
def test_bad_words_are_one_line(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["study", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert capfd.readouterr().err == f"ipu-core study: {message}\n"


def test_compare_trains_it(task: text.Text) -> None:
    problem = lm.problem(Size(16, 1, 2, 16), task, 4)
    made = compare(
        problem.loss, problem.params, lambda seed, step: problem.batches(seed)(step), ["fp32.32"], seeds=2,
        optimizer=AdamW(0.01), steps=5, evaluate=problem.evaluate, engine="direct",
    )  # fmt: skip
    assert "test loss" in str(made)
    assert {result["seed"] for result in made.results} == {0, 1}
