"""Roundings inside of a loss: nn.round, nn.quantize and functions of one's own."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp
from ipu_core import Precision, Sgd, TrainLoop, nn
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.trace.tracing import trace
from lowprec import Key, Rounding

Array = npt.NDArray[Any]
X = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)


def traced(f: Any, *arrays: Array, key: int = 5) -> tuple[Any, list[Array]]:
    """The Block of a function in float32, and its results."""
    block = Precision.parse("fp32.32").apply(trace(f, *arrays))
    return block, evaluate_flat(block, list(arrays), "declared", key=Key(key))


@pytest.mark.parametrize("how", ["nearest", "odd", Rounding("nearest_even", overflow="saturate", flush=True)])
@pytest.mark.parametrize("fmt", ["e5m3", "float8_e4m3fn", "fixed8_6", "bfloat16", "binary8p3se"])
def test_round_is_lowprec_round(fmt: str, how: Any) -> None:
    _, (result,) = traced(lambda x: nn.round(x, fmt, how), X)
    np.testing.assert_array_equal(result.astype(np.float32), lp.round(X, fmt, how))
    np.testing.assert_array_equal(nn.round(X, fmt, how), lp.round(X, fmt, how))  # type: ignore[arg-type]


def test_each_stochastic_rounding_draws_bits_of_its_own() -> None:
    def twice(x: Any) -> Any:
        return nn.round(x, "e5m3", "stochastic", random_bits=7), nn.round(x, "e5m3", "stochastic", random_bits=7)

    block, (first, second) = traced(twice, X)
    keys = [Key(5).fold_in(e.draws) for e in equations_of(block) if e.op == "convert"]
    assert len(set(keys)) == 2
    for result, key in zip((first, second), keys, strict=True):
        np.testing.assert_array_equal(result, lp.round(X, "e5m3", "stochastic", key=key, random_bits=7))
    assert (first != second).any()


@pytest.mark.parametrize("gradient, wanted", [
    ("straight_through", lambda dy: dy),
    ("rounded", lambda dy: lp.round(dy, "e5m3", "toward_zero")),
    (lambda x, dy: np.where(np.abs(x) < 1, dy, 0), lambda dy: np.where(np.abs(X) < 1, dy, 0)),
])  # fmt: skip
def test_a_gradient_is_as_it_is_stated(gradient: Any, wanted: Any) -> None:
    weights = np.random.default_rng(1).standard_normal(X.shape).astype(np.float32)

    def loss(x: Any, factor: Any) -> Any:
        return (nn.quantize(x, "e5m3", "toward_zero", gradient=gradient) * factor).sum()

    block = Precision.parse("fp32.32").apply(trace(value_and_grad(loss), X, weights))
    total, dx = evaluate_flat(block, [X, weights], "declared")
    np.testing.assert_array_equal(dx, wanted(weights))
    np.testing.assert_allclose(total, (lp.round(X, "e5m3", "toward_zero") * weights).sum(dtype=np.float64), rtol=1e-4)


def to_thirds(x: Array) -> Array:
    return (np.round(x * 3) / np.float32(3)).astype(np.float32)


def up_or_down(x: Array, words: Array) -> Array:
    assert words.shape == x.shape
    assert words.max() < 2**10
    return (np.floor(x) + (words < 512)).astype(np.float32)


def test_a_rounding_of_one_s_own() -> None:
    _, (result,) = traced(lambda x: nn.round(x, "float32", nn.OwnRounding(to_thirds)), X)
    np.testing.assert_array_equal(result, to_thirds(X))
    own = nn.OwnRounding(up_or_down, draws=10)
    block, (result,) = traced(lambda x: nn.round(x, "fixed16_4", own), X)
    (equation,) = (e for e in equations_of(block) if e.op == "convert")
    words = lp.random_bits(Key(5).fold_in(equation.draws), X.shape, 10)
    np.testing.assert_array_equal(result, up_or_down(X, words))
    assert pickle.loads(pickle.dumps(own)) == own
    assert own.digest() != nn.OwnRounding(to_thirds).digest()


def test_a_rounding_of_one_s_own_in_a_precision() -> None:
    def loss(params: Any, batch: Any) -> Any:
        return ((batch @ params["w"]) ** 2).mean()

    params = {"w": np.ones((30, 4), np.float32)}
    precision = Precision.parse("fp32.32").changed(roundings={"weights": nn.OwnRounding(to_thirds)})
    plain, rounded = (
        TrainLoop(loss, params, X, precision=which, optimizer=Sgd(0.1), engine="direct")
        for which in ("fp32.32", precision)
    )
    for loop in (plain, rounded):
        loop.train(X)
    np.testing.assert_array_equal(rounded.params["w"], to_thirds(plain.params["w"]))


@pytest.mark.parametrize("call, error, says", [
    (lambda x: nn.round(x, "e5m3", key=1), TypeError, "give nn.round no key"),
    (lambda x: nn.round(x, "e4m3", overflow="infinity"), ValueError, "needs a format with infinity"),
    (lambda x: nn.quantize(x, "e5m3", gradient="clipped"), ValueError, "straight_through', 'rounded' or a function"),
    (lambda x: lp.round(x, "e5m3"), TypeError, "nn.round, nn.quantize and nn.convert"),
    (lambda x: nn.round(x, "e5m3", nn.OwnRounding(lambda x: x[:3])), ValueError, r"of shape \(3, 30\)"),
    (lambda x: nn.round(x, "e5m3", nn.OwnRounding(lambda x: x * 1)), ValueError, "which is no number of e5m3"),
    (lambda x: nn.OwnRounding(3), TypeError, "needs a function, not 3"),
    (lambda x: nn.OwnRounding(to_thirds, draws=40), ValueError, "from 0 to 32"),
])  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        traced(call, X)


def test_a_rounding_of_one_s_own_cannot_change_what_it_is_given() -> None:
    def in_place(x: Array) -> Array:
        x[...] = np.round(x)
        return x

    mine = X.copy()
    with pytest.raises(ValueError, match="read-only"):
        nn.round(mine, "float32", nn.OwnRounding(in_place))
    np.testing.assert_array_equal(mine, X)
