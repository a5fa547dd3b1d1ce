"""Convolutions and pooling in a Block: finite differences, declared arithmetic, plain NumPy, precisions, refusals."""

from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.ir.block import format_name
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.evaluate import evaluate
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.tracing import trace
from lowprec import Accumulation
from lowprec.testing import backend

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 4, 5, 3), (3, 2, 3, 4), {}),
    "same": ((1, 5, 4, 2), (3, 3, 2, 3), {"padding": "same"}),
    "strides and groups": ((2, 7, 6, 4), (3, 2, 2, 6), {"stride": (2, 1), "padding": ((1, 0), (2, 1)), "groups": 2}),
    "kernel smaller than stride": ((1, 6, 7, 2), (1, 2, 2, 3), {"stride": (3, 2)}),
    "dilation": ((1, 7, 6, 2), (2, 3, 2, 2), {"dilation": (2, 1), "padding": 1, "stride": 2}),
    "depthwise": ((1, 5, 5, 4), (3, 3, 1, 4), {"padding": 1, "groups": 4}),
}


def operands(name: str, dtype: Any = np.float64) -> tuple[Any, Any, dict[str, Any]]:
    shape, kernel, options = CASES[name]
    rng = np.random.default_rng(len(name))
    return rng.normal(size=shape).astype(dtype), rng.normal(size=kernel).astype(dtype), options


def convolved(name: str) -> Any:
    options = CASES[name][2]
    return lambda p: nn.conv2d(p["x"], p["w"], **options)


def slope(f: Any, params: dict[str, Any], name: str, index: tuple[int, ...]) -> float:
    """The central difference of f."""
    values = []
    for step in (1e-4, -1e-4):
        moved = {key: value.copy() for key, value in params.items()}
        moved[name][index] += step
        values.append(float(f(moved)))
    return (values[0] - values[1]) / 2e-4


def assert_gradients(f: Any, params: dict[str, Any], every: int) -> None:
    gradients = value_and_grad(f)(params)[1]
    for name, value in params.items():
        for index in list(np.ndindex(*value.shape))[::every]:
            assert gradients[name][index] == pytest.approx(slope(f, params, name, index), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_finite_differences(name: str) -> None:
    x, w, _ = operands(name)
    f = convolved(name)
    assert_gradients(lambda p: (f(p) * f(p) * f(p)).sum(), {"x": x, "w": w}, 5)


@pytest.mark.parametrize("name", ["same", "strides and groups", "dilation"])
def test_gradients_of_gradients_are_finite_differences(name: str) -> None:
    x, w, _ = operands(name)
    f = convolved(name)

    def slopes(p: Any) -> Any:
        first = value_and_grad(lambda q: (f(q) * f(q)).sum())(p)[1]
        return (first["x"] * first["x"]).sum() + (first["w"] * first["w"] * first["w"]).sum()

    assert_gradients(slopes, {"x": x, "w": w}, 11)


@pytest.mark.parametrize("spec", ["fp32.32", "fp16.32", "fp16.16/nearest", "fp16.16/stochastic"])
@pytest.mark.parametrize("name", ["same", "strides and groups"])
def test_execution_is_the_declared_arithmetic_on_the_reference(name: str, spec: str) -> None:
    x, w, _ = operands(name, np.float32)
    f = convolved(name)
    block = Precision.parse(spec).apply(value_and_grad(trace(lambda p: (f(p) * f(p)).sum(), {"w": w, "x": x})))
    orders = {e.number: Accumulation(4, 3) for e in block.equations if e.family == "conv"}
    assert len(orders) == 3
    found = execute(block, {"w": w, "x": x}, key=5, accumulations=orders)
    with backend("reference"):
        declared = evaluate(block, {"w": w, "x": x}, arithmetic="declared", key=5, accumulations=orders)
    ideal = evaluate(block, {"w": w, "x": x})
    assert found[0] == declared[0]
    for key in ("w", "x"):
        assert found[1][key].dtype == (np.float32 if spec == "fp32.32" else np.float16)
        np.testing.assert_array_equal(found[1][key], declared[1][key])
        np.testing.assert_allclose(found[1][key], ideal[1][key], rtol=0.02, atol=0.02 * np.abs(ideal[1][key]).max())


def test_precision_types_convolutions_as_products() -> None:
    x, w, _ = operands("same", np.float32)
    block = value_and_grad(trace(lambda p: (nn.conv2d(x, p, padding="same") ** 2).mean(), w))
    typed = Precision.parse("fp16.16/stochastic").apply(block)
    products = [e for e in typed.equations if e.family == "conv"]
    assert [(e.op, e.role) for e in products] == [("conv2d", "forward"), ("conv2d_weight_gradient", "grad_weight")]
    for equation in products:
        assert equation.arithmetic.stochastic
        assert equation.arithmetic.accumulate is not None
        assert equation.arithmetic.accumulate.name == "float16"
        assert {format_name(var.type.format) for var in equation.operands} == {"float16"}


def test_a_convolution_of_one_position_is_a_product() -> None:
    x, w, _ = operands("plain", np.float32)
    one = w[:1, :1]
    np.testing.assert_array_equal(nn.conv2d(x, one), nn.matmul(x, one[0, 0]))


def test_pooling_is_numpys() -> None:
    x = np.random.default_rng(1).normal(size=(2, 5, 7, 3))
    cut = x[:, :4, :6].reshape(2, 2, 2, 3, 2, 3)
    np.testing.assert_array_equal(nn.max_pool2d(x), cut.max((2, 4)))
    np.testing.assert_allclose(nn.avg_pool2d(x), cut.mean((2, 4)), rtol=1e-12)
    seen = np.lib.stride_tricks.sliding_window_view(x, (3, 2), (1, 2))[:, ::2]
    np.testing.assert_array_equal(nn.max_pool2d(x, (3, 2), (2, 1)), seen.max((4, 5)))
    np.testing.assert_allclose(nn.avg_pool2d(x, (3, 2), (2, 1)), seen.mean((4, 5)), rtol=1e-12)
    assert nn.flatten(x).shape == (2, 105)


@pytest.mark.parametrize("pool", [nn.max_pool2d, nn.avg_pool2d])
@pytest.mark.parametrize("window", [((2, 2), None), ((2, 3), 1)])
def test_gradients_of_pooling_are_finite_differences(pool: Any, window: Any) -> None:
    x = np.random.default_rng(2).permutation(120).reshape(2, 5, 6, 2) / 7.0
    assert_gradients(lambda p: (pool(p["x"], *window) ** 2).sum(), {"x": x}, 3)


def test_equal_maxima_share_the_gradient() -> None:
    gradient = value_and_grad(lambda x: nn.max_pool2d(x).sum())(np.zeros((1, 2, 2, 1)))[1]
    np.testing.assert_array_equal(gradient, np.full((1, 2, 2, 1), 0.25))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x, w: nn.conv2d(x[0], w), "axes"),
        (lambda x, w: nn.conv2d(x, w[0]), "axes"),
        (lambda x, w: nn.conv2d(x, w[:, :, :2]), "channels"),
        (lambda x, w: nn.conv2d(x, w, groups=2), "groups=2"),
        (lambda x, w: nn.conv2d(x, w, groups=0), "at least 1"),
        (lambda x, w: nn.conv2d(x, w, padding="some"), "same, valid"),
        (lambda x, w: nn.conv2d(x[:, :2], w), "do not fit"),
        (lambda x, w: nn.max_pool2d(x, 9), "do not fit"),
        (lambda x, w: nn.avg_pool2d(x[0]), "axes"),
        (lambda x, w: nn.conv2d(x, w, padding=10**9), "padding=1000000000 makes an image of 20000000"),
        (
            lambda x, w: nn.conv2d(x, w, w[0, 0]),
            r"bias must have the shape \(4,\), one number per output, not \(3, 4\)",
        ),
        (lambda x, w: nn.conv2d(x, w, w[0, 0, 0, :1]), r"not \(1,\)"),
        (lambda x, w: nn.max_pool2d(x, 0), "window must be at least 1, not 0"),
        (lambda x, w: nn.flatten(nn.reduce_sum(x)), "flatten keeps the first axis"),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_bad_calls_say_what_does_not_fit(call: Any, message: str, traced: bool) -> None:
    x, w, _ = operands("plain", np.float32)
    with pytest.raises(ValueError, match=message):
        trace(call, x, w) if traced else call(x, w)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x, w: nn.conv2d(x, w, groups=1.0), "groups must be an integer of at least 1, not 1.0"),
        (lambda x, w: nn.conv2d(x, w, groups="1"), "groups must be an integer of at least 1, not '1'"),
        (lambda x, w: nn.max_pool2d(x, 2.0), "window must be an integer or a pair of integers, not 2.0"),
        (lambda x, w: nn.avg_pool2d(x, None), "window must be an integer or a pair of integers, not None"),
        (lambda x, w: nn.max_pool2d(x, (2, 2, 2)), r"window must be .* not \(2, 2, 2\)"),
        (lambda x, w: nn.max_pool2d(x, (2, "2")), "window must be"),
        (lambda x, w: nn.avg_pool2d(x, 2, 2.0), "stride must be an integer or a pair of integers, not 2.0"),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_numbers_of_another_kind_are_named(call: Any, message: str, traced: bool) -> None:
    x, w, _ = operands("plain", np.float32)
    with pytest.raises(TypeError, match=message):
        trace(call, x, w) if traced else call(x, w)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 2, 1), ((2, 3), (1, 2), (1, 0)), (2, None, 1)])
def test_a_padded_maximum_is_of_what_the_window_covers_of_the_image(
    window: Any, stride: Any, padding: Any, kind: Any
) -> None:
    x = -np.abs(np.random.default_rng(0).normal(size=(2, 5, 7, 3))).astype(kind)  # a border of zeros would be larger
    high, wide = (window, window) if isinstance(window, int) else window
    down, across = (high, wide) if stride is None else (stride, stride) if isinstance(stride, int) else stride
    top, left = (padding, padding) if isinstance(padding, int) else padding
    rows, columns = (5 + 2 * top - high) // down + 1, (7 + 2 * left - wide) // across + 1
    wanted = np.zeros((2, rows, columns, 3), kind)
    for i, j in np.ndindex(rows, columns):
        here = (
            slice(max(0, i * down - top), i * down - top + high),
            slice(max(0, j * across - left), j * across - left + wide),
        )
        wanted[:, i, j] = x[:, here[0], here[1]].max(axis=(1, 2))
    np.testing.assert_array_equal(nn.max_pool2d(x, window, stride, padding), wanted)

    def total(x: Any, _: Any) -> Any:
        return nn.reduce_sum(nn.max_pool2d(x, window, stride, padding))

    _, gradient = value_and_grad(total)(x.astype(np.float64), 0)
    # Each window gives 1 to its largest element, so all of it reaches the image.
    assert float(gradient.sum()) == rows * columns * 2 * 3


def test_a_border_wider_than_half_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="padding is at most half a window, not 2 for one of 3"):
        nn.max_pool2d(np.ones((1, 4, 4, 1), np.float32), 3, 1, 2)
    with pytest.raises(ValueError, match="padding must be at least 0"):
        nn.max_pool2d(np.ones((1, 4, 4, 1), np.float32), 3, 1, -1)
