"""What a newcomer met in the first hour, a test for each thing, from public names alone."""

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipu_core
import lowprec
from ipu_core import Sgd, TrainLoop, compare, nn

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 4)).astype(np.float32), RNG.normal(size=(16, 3)).astype(np.float32)
PARAMS = {"w": RNG.normal(size=(4, 3)).astype(np.float32)}
LABELS = RNG.integers(0, 3, 16).astype(np.int32)


def made(loss: Callable[[Any, Any], Any], batch: Any = (X, Y), **options: Any) -> TrainLoop:
    settings = {"optimizer": Sgd(0.0), "precision": "fp16.16/nearest", "engine": "direct", **options}
    return TrainLoop(loss, PARAMS, batch, **settings)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "a scale": lambda p, b: 1e6 * nn.mse(b[0] @ p["w"], b[1]),
    "a penalty": lambda p, b: nn.mse(b[0] @ p["w"], b[1]) + 1e6 * np.sum(p["w"] ** 2),
    "two losses": lambda p, b: 6e4 * nn.mse(b[0] @ p["w"], b[1]) + 6e4 * nn.mse(b[0] @ p["w"], 0.0 * b[1]),
    "by hand": lambda p, b: np.mean((np.tanh(b[0] @ p["w"]) - 700 * b[1]) ** 2),
    "a norm": lambda p, b: np.mean(np.linalg.norm(b[0] @ p["w"] - 7e4 * b[1], axis=1)),
}


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_float32_to_its_end(name: str, parts: int) -> None:
    loss = LOSSES[name]
    assert made(loss, micro_batches=parts).train((X, Y)) == pytest.approx(float(loss(PARAMS, (X, Y))), rel=3e-3)


@pytest.mark.parametrize("convert", [lambda x: nn.convert(x, "float32"), lambda x: x.astype("float32")])
def test_a_conversion_is_kept_to(convert: Callable[[Any], Any]) -> None:
    def loss(params: Any, batch: Any) -> Any:
        large = convert(batch[0] @ params["w"]) * 1e6
        return nn.mse((large * 1e-6) @ np.eye(3, dtype=np.float32), batch[1])

    assert made(loss).train((X, Y)) == pytest.approx(float(loss(PARAMS, (X, Y))), rel=3e-3)


def test_the_same_study_is_saved_twice_and_another_is_told_by_what_differs(tmp_path: Path) -> None:
    def study(rate: float, scale: float) -> Any:
        return compare(
            lambda p, b: scale * nn.mse(b[0] @ p["w"], b[1]), PARAMS, [(X, Y)], ["fp32.32"],
            optimizer=Sgd(rate), seeds=1, steps=2, engine="direct",
        )  # fmt: skip

    study(0.1, 1.0).save(tmp_path / "study")
    study(0.1, 1.0).save(tmp_path / "study")
    with pytest.raises(ValueError, match=r"^\S+ holds .* \([^,]*scale 1\.0 there, 2\.0 here\)"):
        study(0.1, 2.0).save(tmp_path / "study")


def test_an_optimizer_of_ones_own_counts_in_integers_and_its_writes_are_updates() -> None:
    class Signs:
        lr = 1e-5

        def init(self, params: Any) -> Any:
            return {"steps": np.zeros((), np.int32), "sum": {name: 0 * x for name, x in params.items()}}

        def update(self, params: Any, gradients: Any, state: Any, lr: Any) -> Any:
            sums = {name: state["sum"][name] + g * 1e6 for name, g in gradients.items()}
            return {name: params[name] - lr * g * 1e-6 for name, g in sums.items()}, {**state, "sum": sums}

    loop = made(LOSSES["by hand"], optimizer=Signs())
    counted = loop.count_updates((X, Y))
    assert 0 < counted.lost <= counted.wanted <= 12
    loop.train((X, Y))
    assert np.isfinite(loop.params["w"]).all()
    assert ipu_core.Optimizer.__doc__ is not None  # with an example


def test_measures_reach_the_table_and_the_picture_with_their_unit(tmp_path: Path) -> None:
    study = compare(
        LOSSES["a scale"], PARAMS, [(X, Y)], ["fp32.32"], optimizer=Sgd(0.0), seeds=2, steps=2, engine="direct",
        evaluate=lambda params, precision: {"entropy [bits]": 1.25, "largest": 3.0},
    )  # fmt: skip
    lines = str(study.table()).splitlines()
    assert any("entropy [bits]" in line for line in lines)
    assert any("largest" in line for line in lines)
    study.plot().savefig(picture := tmp_path / "first-hour.svg")
    assert "entropy" in picture.read_text()


def test_tables_fit_80_columns_and_a_picture_has_units_and_is_saved_as_matplotlib_s(tmp_path: Path) -> None:
    measures = {f"a measure with a long name, number {i}": float(i) for i in range(3)}
    study = compare(
        LOSSES["a scale"], PARAMS, [(X, Y)], ["fp32.32"], optimizer=Sgd(0.0), seeds=2, steps=2, engine="direct",
        evaluate=lambda params, precision: measures,
    )  # fmt: skip
    assert max(map(len, str(study.table()).splitlines())) <= 80
    assert "group" in (study.save(tmp_path / "study") / "plan.txt").read_text()
    study.plot().savefig(picture := tmp_path / "first-hour.svg")
    assert "step" in picture.read_text()


def test_a_loss_that_is_not_finite_is_said_at_once() -> None:
    loop = made(lambda p, b: np.mean(np.exp(1e3 * (b[0] @ p["w"]) ** 2)), precision="fp32.32", on_nonfinite="stop")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert len(loop.run([(X, Y)] * 9, 9)) == 1
    assert re.search(r"the loss of step 0 is inf: .*exp", str(said[-1].message))


def test_infinities_saturate_where_there_are_none() -> None:
    given = np.array([np.inf, -np.inf, 1e9], np.float32)
    assert lowprec.round(given, "float8_e4m3fn", overflow="saturate").tolist() == [448, -448, 448]
    kept = lowprec.round(given, "float8_e4m3fn", overflow="saturate", infinite_input="nan")
    assert np.isnan(kept[:2]).all()
    assert kept[2] == 448


def test_arrays_of_jax_come_back_and_scales_and_formats_are_as_elsewhere() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(X).astype("bfloat16")
    assert lowprec.round(x, "e4m3").dtype == x.dtype
    assert isinstance(lowprec.matmul(x, x.T, accumulate="half"), jax.Array)
    rows = lowprec.to_scaled(X, "e4m3", scale="auto", axis=0)
    product = lowprec.scaled_matmul(rows, lowprec.to_scaled(PARAMS["w"], "e4m3", scale=0.01))
    np.testing.assert_allclose(product, X @ PARAMS["w"], atol=0.1 * np.abs(X @ PARAMS["w"]).max())
    assert lowprec.as_format("e2m2").bits == 5
    assert lowprec.as_format("BF16") == lowprec.bfloat16
    with pytest.raises(ValueError, match="did you mean bfloat16"):
        lowprec.as_format("bfloat")


def test_tensors_of_torch_come_back_in_fp8_and_are_written_to() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn)
    assert lowprec.astype(x, torch.float8_e4m3fn, out=out) is out
    assert torch.equal(out.float(), lowprec.round(x, "e4m3"))


NAMES = ["log1p", "expm1", "std", "var", "cumsum", "argmax", "sort", "tril", "flip", "arctan", "cumprod", "isfinite"]
STANDARD: dict[str, Callable[[Any], Any]] = {
    "swapaxes": lambda x: np.swapaxes(x, 0, 1), "stack": lambda x: np.stack([x, x]),
    "split": lambda x: np.split(x, 2), "moveaxis": lambda x: np.moveaxis(x, 0, 1),
    "einsum": lambda x: np.einsum("ij,ik->jk", x, x), "clip": lambda x: np.clip(x, -1, 1),
    "norm": lambda x: np.linalg.norm(x), "pad": lambda x: np.pad(x, 1), "repeat": lambda x: np.repeat(x, 2, axis=0),
    "take": lambda x: np.take(x, [0, 2], 1),
    "rows": lambda x: sum(x), "astype": lambda x: x.astype("float32"), "layer_norm": nn.layer_norm,
    "silu": lambda x: nn.silu(x), "gelu": lambda x: nn.gelu(x, approximate="tanh"),
    "dropout": lambda x: nn.dropout(x, p=0.5), "attention": lambda x: nn.attention(x, x, x),
    "conv1d": lambda x: nn.conv1d(x[None], np.ones((3, 4, 2), np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, *STANDARD])
def test_what_numpy_and_torch_call_so_is_traced(name: str) -> None:
    assert ipu_core.trace(STANDARD.get(name) or getattr(np, name), X).outputs


def test_conventions_are_numpy_s() -> None:
    assert lowprec.sum(X, 1).shape == (16,)
    assert lowprec.sum(X, 0, fmt="float16").dtype == np.float16
    assert (lowprec.round(X, "float16", "nearest") == lowprec.round(X, "float16", "nearest_even")).all()
    assert lowprec.add(X, X).dtype == lowprec.mean(X).dtype == np.float32
    for module in (lowprec, lowprec.statistics, lowprec.testing, ipu_core, nn):
        assert dir(module) == sorted(module.__all__)


def test_a_loop_predicts_in_its_precision() -> None:
    loop = made(LOSSES["by hand"], optimizer=Sgd(0.1))
    loop.train((X, Y))
    half = X[:5].astype(np.float16)
    found = loop.predict(lambda params, x: x @ params["w"], X[:5])
    assert np.array_equal(found, lowprec.matmul(half, loop.params["w"], accumulate="float16"))


def test_a_loop_is_saved_and_goes_on(tmp_path: Path) -> None:
    loop = made(LOSSES["by hand"], optimizer=Sgd(0.1))
    loop.train((X, Y))
    loop.save(tmp_path / "loop.npz")
    again = made(LOSSES["by hand"], optimizer=Sgd(0.1))
    again.load(tmp_path / "loop.npz")
    assert again.train((X, Y)) == loop.train((X, Y))


def test_profiles_are_compared() -> None:
    command = [sys.executable, "-m", "ipu_core", "profile", "--help"]
    assert "--compare" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "lists": (lambda: TrainLoop(LOSSES["a scale"], {"w": [[1.0]]}, (X, Y), optimizer=Sgd(0.1), precision="fp32.32"),
              r"params: w.*np\.array"),
    "labels": (lambda: made(lambda p, b: nn.cross_entropy(b[0] @ p["w"], b[1]), (X, LABELS.astype(np.float32))),
               "labels must be integers"),
    "swapped": (lambda: made(lambda p, b: nn.cross_entropy(b[1], b[0] @ p["w"]), (X, LABELS)), "swapped"),
    "batches": (lambda: made(LOSSES["a scale"]).run((X, Y), 2), r"one by one: \[\(x, y\)"),
    "empty": (lambda: made(LOSSES["a scale"], (X[:0], Y[:0])), "is empty"),
    "nchw": (lambda: nn.conv2d(np.ones((2, 3, 8, 8), np.float32), np.ones((3, 3, 3, 4), np.float32)), "channels first"),
    "explain": (lambda: lowprec.explain(X, "float16"), "not an array of shape"),
    "product": (lambda: lowprec.matmul(X, X), r"b\.T would fit"),
    "format": (lambda: made(LOSSES["a scale"], precision="fp16"), "that is a format"),
    "comma": (lambda: made(LOSSES["a scale"], precision="fp16.16/stochastic,weights=float32"), "joined by '/'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_what_to_write(name: str) -> None:
    call, words = MISTAKES[name]
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_there_is_a_site_and_the_readme_is_short() -> None:
    pages = ROOT / "notebooks" / "docs" / "pages"
    assert len(list((pages / "tutorial").glob("*.md"))) == 13
    assert len(list((pages / "how-to").glob("*.md"))) >= 11
    assert len((ROOT / "README.md").read_text().splitlines()) <= 140


def test_a_study_installs_what_it_needs_alone() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (light,) = re.findall(r"^study: (\w+)$", makefile, re.MULTILINE)
    assert light != "setup"
