"""Layers built from a graph alone: the bits of the lowered training layer, and NumPy's numbers in float64."""

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ipu_core.library
from ipu_core import nn
from ipu_core.engine.engine import Engine
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program, Sequence
from ipu_core.graph.tensor import Tensor
from ipu_core.ir.autodiff import value_and_grad
from ipu_core.ir.precision import Precision
from ipu_core.ir.role_formats import PLAIN
from ipu_core.library import random
from ipu_core.library.elementwise import add_array, map_array
from ipu_core.library.gru import gru_cell
from ipu_core.library.lstm import lstm_cell
from ipu_core.library.norm import batch_norm, group_norm, layer_norm, rms_norm
from ipu_core.library.pool import avg_pool2d, max_pool2d
from ipu_core.library.softmax import cross_entropy, log_softmax, log_sum_exp, softmax
from ipu_core.library.steps import HALF_REGISTERS
from ipu_core.target import Target
from library.conftest import Build, lowered, run
from lowprec import float16, float32
from lowprec.spec.rounding import NEAREST_EVEN, STOCHASTIC

RNG = np.random.default_rng(4)
X = RNG.normal(size=(12, 10)) * 3
LABELS = RNG.integers(0, 10, 12).astype(np.int32)
IMAGES = RNG.normal(size=(3, 6, 5, 4))
MASK = (np.arange(10) <= np.arange(12)[:, None]).astype(np.float32)
SCALE, BIAS = RNG.normal(size=(2, 10))
CELL = [RNG.normal(size=shape) for shape in ((6, 5), (6, 3), (6, 3), (5, 12), (3, 12), (12,))]
RUNNING = [np.float16(x) for x in (RNG.normal(size=4), RNG.uniform(0.5, 2, 4))]
GRU = [RNG.normal(size=shape) for shape in ((6, 5), (6, 3), (5, 9), (3, 9), (9,), (9,))]


def lstm(g: Graph, p: list[Program], x: Any, h: Any, c: Any, w: Any, u: Any, b: Any, **how: Any) -> list[Tensor]:
    return [*lstm_cell(g, {"input": w, "hidden": u, "bias": b}, x, (h, c), p, accumulate=x.format, **how)]


def nn_lstm(x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> Any:
    return list(nn.lstm_cell({"input": w, "hidden": u, "bias": b}, x, (h, c)))


def gru(g: Graph, p: list[Program], x: Any, h: Any, w: Any, u: Any, b: Any, c: Any, **how: Any) -> list[Tensor]:
    weights = {"input": w, "hidden": u, "bias": b, "hidden_bias": c}
    return [gru_cell(g, weights, x, h, p, accumulate=x.format, **how)]


def nn_gru(x: Any, h: Any, w: Any, u: Any, b: Any, c: Any) -> Any:
    return [nn.gru_cell({"input": w, "hidden": u, "bias": b, "hidden_bias": c}, x, h)]


def batch(training: bool) -> tuple[Build, Callable[..., Any], Callable[..., Any]]:
    """Batch norm and its running statistics: the builder, the layer, and the layer's own numbers in float64."""

    def build(g: Graph, p: list[Program], x: Any, s: Any, b: Any, m: Any, v: Any, **how: Any) -> list[Tensor]:
        running = {"mean": m, "variance": v}
        made, new = batch_norm(g, x, running, p, training=training, scale=s, bias=b, **how)
        return [made, new["mean"], new["variance"]] if training else [made]

    def layer(x: Any, s: Any, b: Any, m: Any, v: Any) -> Any:
        made, new = nn.batch_norm(x, s, b, {"mean": m, "variance": v}, training=training)
        return [made, new["mean"], new["variance"]] if training else [made]

    def exact(x: Any, s: Any, b: Any, m: Any, v: Any) -> Any:
        middle, spread = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if training else (m, v)
        made = (x - middle) / np.sqrt(spread + 1e-5) * s + b
        unbiased = x.var((0, 1, 2), ddof=1)
        return [made, 0.9 * m + 0.1 * middle, 0.9 * v + 0.1 * unbiased] if training else [made]

    return build, layer, exact


BATCH, INFERENCE = batch(True), batch(False)


def loss_and_gradient(x: Any, labels: Any) -> Any:
    return list(value_and_grad(nn.softmax_cross_entropy)(x, labels))


def pooled(x: np.ndarray[Any, Any], size: int, stride: int) -> np.ndarray[Any, Any]:
    view = np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))
    return view[:, ::stride, ::stride]


def normal(x: np.ndarray[Any, Any], axes: Any) -> np.ndarray[Any, Any]:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def powers(x: np.ndarray[Any, Any], axis: int = -1) -> np.ndarray[Any, Any]:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


CASES: dict[str, tuple[Build, Callable[..., Any], list[np.ndarray[Any, Any]], Callable[..., Any]]] = {
    "softmax": (lambda g, p, x, **how: [softmax(g, x, p, **how)], nn.softmax, [X], powers),
    "softmax down": (
        lambda g, p, x, **how: [softmax(g, x, p, axis=0, **how)], lambda x: nn.softmax(x, 0), [X],
        lambda x: powers(x, 0)),
    "log_softmax": (
        lambda g, p, x, **how: [log_softmax(g, x, p, **how)], nn.log_softmax, [X], lambda x: np.log(powers(x))),
    "softmax, masked": (
        lambda g, p, x, **how: [softmax(g, x, p, mask=map_array(g, g.add_constant("float32", MASK)), **how)],
        lambda x: nn.softmax(x, mask=MASK), [X], lambda x: powers(np.where(MASK > 0, x, -np.inf))),
    "log_sum_exp": (
        lambda g, p, x: [log_sum_exp(g, x, p)], nn.log_sum_exp, [X], lambda x: np.log(np.exp(x).sum(-1))),
    "log_sum_exp down": (
        lambda g, p, x: [log_sum_exp(g, x, p, axis=0)], lambda x: nn.log_sum_exp(x, 0), [X],
        lambda x: np.log(np.exp(x).sum(0))),
    "layer_norm": (
        lambda g, p, x, s, b, **how: [layer_norm(g, x, p, scale=s, bias=b, **how)], nn.layer_norm, [X, SCALE, BIAS],
        lambda x, s, b: normal(x, -1) * s + b),
    "group_norm": (
        lambda g, p, x, s, b, **how: [group_norm(g, x, 2, p, scale=s, bias=b, **how)],
        lambda x, s, b: nn.group_norm(x, s, b, 2), [IMAGES, SCALE[:4], BIAS[:4]],
        lambda x, s, b: normal(x.reshape(3, 30, 2, 2), (1, 3)).reshape(x.shape) * s + b),
    "rms_norm": (
        lambda g, p, x, s, **how: [rms_norm(g, x, p, scale=s, **how)], nn.rms_norm, [X, SCALE],
        lambda x, s: x / np.sqrt((x**2).mean(-1, keepdims=True)) * s),
    "batch_norm": (BATCH[0], BATCH[1], [IMAGES, SCALE[:4], BIAS[:4], *RUNNING], BATCH[2]),
    "batch_norm, inference": (INFERENCE[0], INFERENCE[1], [IMAGES, SCALE[:4], BIAS[:4], *RUNNING], INFERENCE[2]),
    "max_pool2d": (
        lambda g, p, x, **how: [max_pool2d(g, x, p)], nn.max_pool2d, [IMAGES],
        lambda x: pooled(x, 2, 2).max((-2, -1))),
    "max_pool2d, overlapping": (
        lambda g, p, x, **how: [max_pool2d(g, x, p, window=3, stride=1)], lambda x: nn.max_pool2d(x, 3, 1), [IMAGES],
        lambda x: pooled(x, 3, 1).max((-2, -1))),
    "avg_pool2d": (
        lambda g, p, x, **how: [avg_pool2d(g, x, p, accumulate=x.format, **how)], nn.avg_pool2d, [IMAGES],
        lambda x: pooled(x, 2, 2).mean((-2, -1))),
    "avg_pool2d, overlapping": (
        lambda g, p, x, **how: [avg_pool2d(g, x, p, window=2, stride=1, accumulate=x.format, **how)],
        lambda x: nn.avg_pool2d(x, 2, 1), [IMAGES], lambda x: pooled(x, 2, 1).mean((-2, -1))),
    "lstm_cell": (lstm, nn_lstm, CELL, nn_lstm),
    "gru_cell": (gru, nn_gru, GRU, nn_gru),
    "cross_entropy": (
        lambda g, p, x, labels, **how: [*cross_entropy(g, x, labels, p, **how)], loss_and_gradient, [X, LABELS],
        lambda x, labels: [-np.log(powers(x)[np.arange(12), labels]).mean(), (powers(x) - np.eye(10)[labels]) / 12]),
}  # fmt: skip


@pytest.mark.parametrize("tiles", [3, 1472])
@pytest.mark.parametrize("dtype, spec", [(np.float32, "fp32.32"), (np.float16, "fp16.16/nearest")])
@pytest.mark.parametrize("name", CASES)
def test_a_builder_has_the_bits_of_the_lowered_layer(name: str, dtype: Any, spec: str, tiles: int) -> None:
    build, layer, given, exact = CASES[name]
    arrays = [x if x.dtype == np.int32 else x.astype(dtype) for x in given]
    got = run(build, arrays, tiles)
    numbers = exact(*(x if x.dtype == np.int32 else x.astype(np.float64) for x in arrays))
    wanted = numbers if isinstance(numbers, list) else [numbers]
    tolerance = 3e-6 if dtype == np.float32 else 2e-2
    for one, other, true in zip(
        got, lowered(layer, arrays, spec, tiles), wanted if isinstance(wanted, list) else [wanted], strict=True
    ):
        assert one.shape == other.shape
        np.testing.assert_allclose(one.astype(np.float64), true, rtol=tolerance, atol=tolerance)
        if name == "cross_entropy":  # whose gradient is a formula of its own
            np.testing.assert_allclose(one.astype(np.float64), other, rtol=1e-3, atol=1e-4)
        else:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "avg_pool2d", "lstm_cell", "gru_cell", "cross_entropy"])
def test_stochastic_rounding_takes_a_number_for_every_step(name: str) -> None:
    build, _, given, _ = CASES[name]
    arrays = [x if x.dtype == np.int32 else x.astype(np.float16) for x in given]
    nearest, one, again, other = (
        run(build, arrays, 6, **how) for how in ({}, *({"stochastic": True, "operation": n} for n in (0, 0, 100)))
    )
    for a, b, c, d in zip(nearest, one, again, other, strict=True):
        np.testing.assert_array_equal(b, c)
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=2e-2, atol=1e-2)
        assert a.dtype == np.float32 or ((b != d).any() and (a != b).any())


def test_what_is_computed_in_half_registers_is_rounded_as_a_precision_says() -> None:
    assert PLAIN - {"scale"} == HALF_REGISTERS  # which is computed as a multiplication
    precision = Precision.parse("fp16.16/stochastic")
    for op in ("add", "exp"):
        assert precision.rounding_of(op, [float16], float16) == (NEAREST_EVEN if op in HALF_REGISTERS else STOCHASTIC)
        assert precision.rounding_of(op, [float32], float16) == STOCHASTIC


def test_the_example_of_the_library_runs() -> None:
    example = textwrap.dedent(ipu_core.library.__doc__.split("make:\n")[1])  # type: ignore[union-attr]
    names: dict[str, Any] = {"Graph": Graph, "Engine": Engine, "Sequence": Sequence, "normal": random.normal,
                             "softmax": softmax}  # fmt: skip
    exec(example, names)
    assert names["probabilities"].shape == (64, 10)


def test_wrong_sizes_are_refused() -> None:
    graph, programs = Graph(Target("gc200", tiles=4)), list[Program]()
    x = add_array(graph, "float16", (4, 6), "x")
    labels = add_array(graph, "int32", (3,), "labels")
    for f, message in (
        (lambda: cross_entropy(graph, x, labels, programs), r"labels must have the shape \(4,\) of the rows"),
        (lambda: group_norm(graph, x, 4, programs), "4 groups do not divide 6 channels"),
        (
            lambda: batch_norm(graph, x, {"mean": x, "variance": x}, programs, training=False),
            r"shape \(6,\) of the",
        ),
        (lambda: batch_norm(graph, x[:1], {"mean": x[0], "variance": x[0]}, programs, training=True), "two elements"),
        (lambda: max_pool2d(graph, x, programs), r"images have the axes \(n, h, w, channels\)"),
        (lambda: lstm_cell(graph, {"input": x, "hidden": x, "bias": x}, x, (x, x), programs), "weights must have"),
        (
            lambda: gru_cell(graph, dict.fromkeys(("input", "hidden", "bias", "hidden_bias"), x), x, x, programs),
            "weights must have",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            f()
    assert programs == []
