"""What a newcomer writes wrongly, and that the refusal names the argument, what it holds and what to write."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import Sgd, TrainLoop, compare, nn, trace
from ipu_core.ir.precision.precision import Precision
from ipu_core.study.models.cnn import kernels
from ipu_core.study.settings import Settings
from ipu_core.train.data import dataset as data

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 8).astype(np.int32)
PARAMS = {"w": RNG.normal(size=(4, 3)).astype(np.float32)}
IMAGES = np.ones((8, 3, 6, 6), np.float32)


def loss(params: Any, batch: Any) -> Any:
    x, labels = batch
    return nn.softmax_cross_entropy(x @ params["w"], labels)


def swapped(params: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy(batch[1], batch[0] @ params["w"])


def loop(loss: Any = loss, params: Any = PARAMS, batch: Any = (X, LABELS), precision: str = "fp32.32") -> TrainLoop:
    return TrainLoop(loss, params, batch, optimizer=Sgd(0.1), precision=precision, engine="direct")


def study(batches: Any, precisions: Any = ("fp32.32",)) -> Any:
    return compare(loss, PARAMS, batches, precisions, optimizer=Sgd(0.1), steps=2, engine="direct")


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "lists as parameters": (
        lambda: loop(params={"w": [[1.0, 2.0, 3.0]] * 4}), TypeError,
        r"params: w\.0\.0 is the number 1\.0 in a list.*give arrays, np\.array\(\[\.\.\.\], np\.float32\)",
    ),
    "integer parameters": (
        lambda: loop(params={"w": np.ones((4, 3), np.int64)}), TypeError,
        r"params: w holds int64; parameters are floats: x\.astype\(np\.float32\)",
    ),
    "float labels": (
        lambda: loop(batch=(X, LABELS.astype(np.float32))), TypeError,
        r"labels must be integers, the numbers of classes, not float32: labels\.astype\(np\.int32\)",
    ),
    "one-hot labels": (
        lambda: nn.softmax_cross_entropy(X, X), ValueError,
        r"labels must have the shape \(8,\) of the rows, not \(8, 4\); one class number for each row, such as .*argmax",
    ),
    "an empty batch": (
        lambda: loop(batch=(X[:0], LABELS[:0])), ValueError,
        r"batch: array 0 is empty, of shape \(0, 4\): it needs a row",
    ),
    "swapped arguments of a loss": (
        lambda: loop(loss=swapped), ValueError,
        r"labels must have the shape \(\) of the rows, not \(8, 3\); are the arguments swapped\? The logits, .* first",
    ),
    "a swapped loss function": (
        lambda: loop(loss=lambda batch, params: loss(params, batch)), TypeError,
        r"loss takes \(params, batch\), in this order",
    ),
    "a loss and something else": (
        lambda: loop(loss=lambda params, batch: (loss(params, batch), 1.0)), TypeError,
        "loss must give one number, not a tuple of 2; what a model carries .* is model_state",
    ),
    "a loss of nothing": (
        lambda: loop(loss=lambda params, batch: 1.0), ValueError, "loss gives 1.0, in which there is neither",
    ),
    "lists as a batch": (
        lambda: loop(batch=(X.tolist(), LABELS)), TypeError, r"batch: 0\.0\.0 is the number .* give arrays",
    ),
    "evaluate with one argument": (
        lambda: compare(loss, PARAMS, [(X, LABELS)], ["fp32.32"], optimizer=Sgd(0.1), steps=1, engine="direct",
                        evaluate=lambda params: {"x": 1.0}), TypeError,
        r"evaluate takes \(params, precision\), .*: lambda params, precision: ",
    ),
    "a swapped embedding": (
        lambda: nn.embedding(LABELS, X), TypeError, "indices must be integers, .* The table comes first",
    ),
    "a swapped format": (
        lambda: lowprec.round("fp16", X), TypeError,  # type: ignore[arg-type]
        r"an array of shape \(8, 4\) is no floating-point format: arrays come first",
    ),
    "a block format for elements": (
        lambda: lowprec.round(X, "nvfp4"), ValueError, r"'nvfp4' is a block format: lowprec\.to_blocks\(x, 'nvfp4'\)",
    ),
    "a dtype for a format": (lambda: lowprec.sum(X, dtype="fp16"), TypeError, r"\['dtype'\]; .*fmt"),
    "one batch for batches": (
        lambda: loop().run((X, LABELS), 2), ValueError,
        r"Batches are given one by one: \[\(x, y\), \(x, y\), \.\.\.\]",
    ),
    "one batch for a study": (lambda: study((X, LABELS)), ValueError, r"one batch of arrays is \[\(x, y\)\]"),
    "channels first": (
        lambda: nn.conv2d(IMAGES, np.ones((3, 3, 3, 4), np.float32)), ValueError,
        r"images are \(batch, height, width, channels\).*; from channels first: x\.transpose\(0, 2, 3, 1\)",
    ),
    "a kernel as PyTorch has it": (
        lambda: nn.conv2d(IMAGES.transpose(0, 2, 3, 1), np.ones((16, 3, 3, 3), np.float32)), ValueError,
        r"windows of 16 x 3 do not fit.*; a weight \(outputs, channels, kh, kw\) becomes one by .*\(2, 3, 1, 0\)",
    ),
    "and images too": (
        lambda: lowprec.conv2d(IMAGES, np.ones((16, 3, 3, 3), np.float32)), ValueError,
        r"from channels first: x\.transpose\(0, 2, 3, 1\), and a weight .* becomes one by",
    ),
    "explain an array": (
        lambda: lowprec.explain(X, "fp16"), TypeError,  # type: ignore[arg-type]
        r"one number, such as x\.flat\[0\], not an array of shape \(8, 4\); lowprec\.statistics\.shares\(x, fmt\)",
    ),
    "shapes of a product": (
        lambda: lowprec.matmul(X, X), ValueError, r"a has shape \(8, 4\), b \(8, 4\): .* 4 and 8; b\.T would fit",
    ),
    "shapes of a traced product": (
        lambda: trace(np.matmul, X, X), ValueError,
        r"\(8, 4\) @ \(8, 4\): inner sizes 4 and 8 differ; the .* \.T would fit",
    ),
    "a rounding": (lambda: lowprec.round(X, "fp16", "closest"), ValueError, "allowed are nearest_even, nearest_away"),
    "a format as a precision": (
        lambda: loop(precision="fp16"), ValueError, r"'fp16': that is a format; .* such as fp16\.32, fp16\.16",
    ),
    "another": (lambda: loop(precision="bf16"), ValueError, r"'bf16': that is a format; .* such as bf16\.32"),
    "an 8-bit one": (lambda: loop(precision="E4M3"), ValueError, r"'E4M3': that is a format; .* such as fp"),
    "no precision": (lambda: loop(precision="float8"), ValueError, r"'float8': that is a format; .* such as fp"),
    "a precision misspelt": (
        lambda: loop(precision="f16.32"), ValueError, r"unknown precision 'f16\.32': did you mean 'fp16\.32'",
    ),
    "a precision of no such bits": (
        lambda: loop(precision="fp17"), ValueError, r"precision 'fp17': did you mean 'fp16\.32' or 'fp16\.16'\?",
    ),
    "partial sums that it has not": (
        lambda: loop(precision="fp8.32"), ValueError, r"unknown precision 'fp8\.32': did you mean 'fp8' or 'fp8\.16'\?",
    ),
    "a word for a number": (
        lambda: loop(precision="fp8/margin=two"), ValueError, "'margin=two' in .*: it is an integer, not 'two'",
    ),
    "a word for a scale": (
        lambda: loop(precision="fp8/static/forward_scale=big"), ValueError, "it is a number, not 'big'",
    ),
    "a slash in a rule": (
        lambda: loop(precision="fp16.16/nearest/w.*/weights=float32"), ValueError,
        r"'w\.\*' in .* is no setting; a rule for parts of that name is w\.\*:weights=float32",
    ),
    "a slash in a rule alone": (
        lambda: Precision("mine", rules=("w.*/weights=float32",)), ValueError,
        r"a rule is a pattern, a colon and a setting, such as 'w\.\*:weights=float32', not 'w\.\*/weights=float32'",
    ),
    "a rule that is none": (lambda: Precision("mine", rules=5), TypeError, "rules must be a list of them"),  # type: ignore[arg-type]
    "nothing": (lambda: loop(precision=""), ValueError, "unknown precision ''; there are fp32"),
    "a format of four bits": (
        lambda: loop(precision="fp4"), ValueError, "'fp4': that is a format; .* such as mxfp4, nvfp4",
    ),
    "one that no preset multiplies": (
        lambda: loop(precision="tf32"), ValueError, r"that is a format; .* such as fp16\.32/operands=tfloat32",
    ),
    "commas in a precision": (
        lambda: loop(precision="fp16.16/stochastic,weights=float32"), ValueError,
        r"joined by '/', not ',': write 'fp16\.16/stochastic/weights=float32'",
    ),
    "several precisions for one": (
        lambda: loop(precision="fp32.32,fp16.32"), ValueError, r"a list of them is \['fp32\.32', 'fp16\.32'\]",
    ),
    "precisions in one string": (
        lambda: study([(X, LABELS)], "fp32.32,fp16.32"), ValueError,
        r"a list of names such as \['fp32\.32', 'fp16\.32'\]",
    ),
    "layers of a cnn": (
        lambda: kernels((64, 8, 8, 8, 8, 10)), ValueError,
        r"layers 64-8-8-8-8-10 have 4 convolutions, .* 8 x 8 pixels can be halved 3 times; give at most 3",
    ),
    "layers that do not fit": (
        lambda: Settings(model="cnn", layers=(8, 16, 10)).widths(data.digits()), ValueError,
        "from 64 features to 10 classes, with convolutions' channels between, for example 64-16-32-10",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_what_to_write(mistake: str) -> None:
    call, kind, words = MISTAKES[mistake]
    with pytest.raises(kind, match=words):
        call()


def test_what_used_to_be_refused_works() -> None:
    assert loop(loss=lambda params, batch: np.linalg.norm(batch[0] @ params["w"])).train((X, LABELS)) > 0
    assert Precision.parse("fp16.32/operands=E4M3").operands == lowprec.float8_e4m3fn
    assert Precision.parse("fp16.16/nearest_even").rounding == Precision.parse("fp16.16/nearest").rounding
