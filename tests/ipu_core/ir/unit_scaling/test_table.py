"""The published factors (Blake, Orr and Luschi, arXiv 2303.11257, and its library), operation by operation, to 1 %."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import nn, trace, unit_scale
from ipu_core.ir.block import Literal, Var

ROWS, IN, OUT = 24, 64, 16
X = np.zeros((ROWS, IN), np.float32)
W = np.zeros((IN, OUT), np.float32)
Y = np.zeros((ROWS, OUT), np.float32)
LABELS = np.zeros(ROWS, np.int32)


def factors(f: Callable[..., Any], params: Any, *data: Any, **rules: Any) -> tuple[float, dict[str, float]]:
    """The product of the factors of results from the data on, and that of each input's gradient on its way in."""
    block = trace(unit_scale(f, **rules), params, *data)
    forward, back = 1.0, {}
    names: dict[Var, str] = {var: var.name for var in block.inputs}
    for equation in block.equations:
        if equation.op == "scale" and isinstance(equation.inputs[1], Literal):
            forward *= equation.inputs[1].value
        source = next((names[v] for v in equation.operands if v in names), None)
        if source is not None and equation.op in ("scale_gradient", "reshape", "broadcast", "transpose"):
            names[equation.output] = source
        if source is not None and equation.op == "scale_gradient":
            back[source] = back.get(source, 1.0) * equation.params["factor"]
    return forward, back


def summed(y: Any) -> Any:
    """A loss whose gradient has size 1 everywhere, marked as one so that it is left alone."""
    return nn.mse(y, np.zeros(y.shape, np.float32))


def check(found: float, wanted: float) -> None:
    assert found == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [("gelu", 1.701, 1.481), ("relu", 1.713, 1.414), ("tanh", 1.593, 1.468), ("sigmoid", 4.802, 4.722)],
)
def test_nonlinearities(name: str, forward: float, backward: float) -> None:
    f = getattr(nn, name)
    block = trace(unit_scale(lambda p, x: summed(f(x @ p) @ np.ones((OUT, 1), np.float32))), W, X)
    made = next(e for e in block.equations if e.op == name)
    after = next(e for e in block.equations if e.op == "scale" and made.output in e.operands)
    before = next(e for e in block.equations if e.output is made.operands[0])
    check(after.inputs[1].value, forward)
    assert before.op == "scale_gradient"
    check(before.params["factor"], backward)


def test_silu_of_the_library() -> None:
    forward, _ = factors(lambda p, x: nn.silu(x @ p) @ p.T, W, X)
    wanted = math.exp(0.8 * math.log((2 / (1 - 1 / math.pi)) ** 0.5) + 0.2 * math.log(2))  # an empirical fit, of 1.7 %
    assert forward / (IN**-0.5 * OUT**-0.5) == pytest.approx(wanted, rel=0.02)


def test_a_product() -> None:
    """With the weights before it, so that its operand has a gradient."""

    def two(p: Any, x: Any) -> Any:
        return summed((x @ p["first"]) @ p["second"])

    params = {"first": np.zeros((IN, 32), np.float32), "second": np.zeros((32, OUT), np.float32)}
    block = trace(unit_scale(two), params, X)
    first, second = (e for e in block.equations if e.op == "dot")
    made = {e.output: e for e in block.equations}
    readers = {v: e for e in block.equations for v in e.operands}
    for equation, inner in ((first, IN), (second, 32)):
        check(readers[equation.output].inputs[1].value, inner**-0.5)
        weight = made[equation.operands[1]]
        check(weight.params["factor"], ROWS**-0.5)
    check(made[second.operands[0]].params["factor"], OUT**-0.5)


def test_biases_and_norms() -> None:
    forward, back = factors(lambda p, x: summed(x + p), np.zeros(IN, np.float32), X)
    check(forward, 1.0)
    check(back["p"], ROWS**-0.5)
    params = {"scale": np.ones(IN, np.float32), "bias": np.zeros(IN, np.float32)}
    forward, back = factors(lambda p, x: summed(nn.layer_norm(x, **p)), params, X)
    check(forward, 1.0)
    for name in ("p.scale", "p.bias"):
        check(back[name], ROWS**-0.5)


def test_an_embedding() -> None:
    indices = np.zeros((3, 7), np.int32)
    _, back = factors(lambda p, i: summed(nn.embedding(p, i)), np.zeros((50, IN), np.float32), indices)
    check(back["p"], (50 / 21) ** 0.5)


@pytest.mark.parametrize("classes", [10, 256])
def test_cross_entropy_and_squares(classes: int) -> None:
    """The gradient of the sum times s / sqrt(s - 1), and 8^-1/2: of means as many times as much as they are of."""
    logits = np.zeros((ROWS, classes), np.float32)
    forward, back = factors(nn.softmax_cross_entropy, logits, LABELS)
    check(forward, 1.0)
    check(back["logits"], ROWS * classes / (classes - 1) ** 0.5)
    forward, back = factors(nn.mse, logits, logits)
    check(forward, 1.0)
    check(back["prediction"], logits.size * 8**-0.5)


def test_additions_and_residuals() -> None:
    a, b = np.zeros((ROWS, IN), np.float32), np.zeros((ROWS, IN), np.float32)
    check(factors(lambda p: p[0] + p[1], [a, b])[0], 2**-0.5)

    def residual(p: Any, x: Any) -> Any:
        h = x @ p["in"]
        return summed(h + nn.layer_norm(h) @ p["branch"])

    square = np.zeros((IN, IN), np.float32)
    block = trace(unit_scale(residual, tau=0.2), {"in": square, "branch": square}, X)
    made = {e.output: e for e in block.equations}
    (add,) = (e for e in block.equations if e.op == "add" and e.family != "norm" and len(e.operands) == 2)
    shares = sorted(made[v].inputs[1].value for v in add.operands)
    check(shares[0], 0.2**0.5)
    check(shares[1], 0.8**0.5)
    entering = next(e for e in block.equations if e.family == "norm").operands
    check(made[entering[0]].params["factor"], 0.2**0.5)  # where the branch begins, and not where it ends


def test_dropout() -> None:
    forward, back = factors(lambda p: summed(nn.dropout(p, 0.36)), X)
    check(forward, 0.64**0.5 / 0.64)  # the mask's own factor with it
    check(back["p"], 0.64**0.5 / 0.64)


def test_sums_and_means() -> None:
    for reduce in (lambda x: x.sum(0), lambda x: x.mean(0)):
        block = trace(unit_scale(lambda p, x, r=reduce: summed(r(x @ p) @ p.T)), W, np.zeros((ROWS, IN), np.float32))
        made = next(e for e in block.equations if e.op == "reduce_sum" and e.params["axis"] == (0,))
        after = next(e for e in block.equations if made.output in e.operands)
        assert after.op == "scale"
        check(after.inputs[1].value, ROWS**-0.5)


@pytest.mark.parametrize("mean", [lambda x: x.mean(0), lambda x: x.sum(0) / ROWS])
def test_a_nonlinearity_has_a_mean_of_size_one(mean: Callable[..., Any]) -> None:
    block = trace(unit_scale(lambda p, x: summed(nn.tanh(mean(x @ p)) @ p.T)), W, X)
    made = {e.output: e for e in block.equations}
    tanh = next(e for e in block.equations if e.op == "tanh")
    operand = made[tanh.operands[0]]
    operand = made[operand.operands[0]] if operand.op == "scale_gradient" else operand
    assert operand.op == "scale"
    assert made[operand.operands[0]].op == "reduce_sum"
    after = next(e for e in block.equations if tanh.output in e.operands)
    check(after.inputs[1].value, 1.593)


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 2)])
def test_a_convolution(stride: int, groups: int) -> None:
    images, first = np.zeros((3, 20, 20, 2), np.float32), np.zeros((1, 1, 2, 4), np.float32)
    weight = np.zeros((3, 3, 4 // groups, 8), np.float32)

    def loss(p: Any, x: Any) -> Any:
        return summed(nn.conv2d(nn.conv2d(x, p["first"]), p["weight"], stride=stride, groups=groups))

    block = trace(unit_scale(loss), {"first": first, "weight": weight}, images)
    made = {e.output: e for e in block.equations}
    last = [e for e in block.equations if e.op == "conv2d"][-1]
    after = next(e for e in block.equations if last.output in e.operands)
    check(after.inputs[1].value, (4 // groups * 9) ** -0.5)
    image, kernel = (made[var] for var in last.operands)
    check(image.params["factor"], (stride**2 * groups / (8 * 9)) ** 0.5)
    check(kernel.params["factor"], (last.output.type.size / 8) ** -0.5)


def test_attention_is_near_the_librarys() -> None:
    """Which interpolates, and is itself unit within a fifth only."""
    keys, width = 64, 16
    shape = (2, keys, width)

    def attention(p: Any, x: Any) -> Any:
        query, key, value = (x @ p[i] for i in range(3))
        return summed(nn.attention(query, key, value))

    params = [np.zeros((width, width), np.float32)] * 3
    block = trace(unit_scale(attention), params, np.zeros(shape, np.float32))
    scales = [e.inputs[1].value for e in block.equations if e.op == "scale"]
    projections, scores = 3, width**-0.5
    total = math.prod(scales) / scores ** (projections + 1)
    assert total == pytest.approx(keys ** (0.5 * 4 / 5), rel=0.2)


def test_mup_divides_the_last_product_and_the_scores() -> None:
    forward, _ = factors(lambda p, x: summed(x @ p), W, X, mup=True)
    check(forward, 1 / IN)
    block = trace(
        unit_scale(lambda p, x: summed(nn.attention(x @ p, x @ p.T @ p, x @ p)), mup=True),
        np.zeros((16, 16), np.float32), np.zeros((2, 8, 16), np.float32),
    )  # fmt: skip
    made = {e.output: e for e in block.equations}
    softmax = next(e for e in block.equations if e.family == "softmax")
    scores = made[softmax.operands[0]]
    scores = made[scores.operands[0]] if scores.op == "scale_gradient" else scores
    check(scores.inputs[1].value, 1 / 16)
