"""nn.hadamard: lowprec's rotation on arrays and traced, its gradient, both engines, and in a precision."""

from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.run.evaluate import evaluate_flat as evaluate
from ipu_core.ir.trace.tracing import trace
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd

RNG = np.random.default_rng(4)
X = RNG.normal(size=(3, 8, 16))
CASES: dict[str, dict[str, Any]] = {
    "fixed": {},
    "random signs": {"key": 3},
    "blocks": {"block": 4},
    "another axis": {"axis": 1, "block": 2, "key": 3},
    "inverse": {"key": 3, "block": 8, "inverse": True},
}


@pytest.mark.parametrize("name", CASES)
def test_on_arrays_and_traced_alike(name: str) -> None:
    options = CASES[name]
    want = lowprec.hadamard(X, **options)
    np.testing.assert_allclose(nn.hadamard(X, **options), want, rtol=1e-12, atol=1e-12)
    (traced,) = evaluate(trace(lambda x: nn.hadamard(x, **options), X), [X])
    np.testing.assert_allclose(traced, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_the_inverse_rotation(name: str) -> None:
    options, weights = CASES[name], RNG.normal(size=X.shape)
    _, gradient = value_and_grad(lambda x: (nn.hadamard(x, **options) * weights).sum())(X)
    back = lowprec.hadamard(weights, **options | {"inverse": not options.get("inverse", False)})
    np.testing.assert_allclose(gradient, back, rtol=1e-9, atol=1e-9)


def test_powers_of_four_are_exact_in_half() -> None:
    """Small integers through a matrix of 1/4: no rounding, whichever way they are added."""
    x = RNG.integers(-8, 8, (5, 16)).astype(np.float16)
    np.testing.assert_array_equal(nn.hadamard(x), lowprec.hadamard(x))


def loss(params: Any, batch: Any) -> Any:
    x, y = batch
    turned = nn.hadamard(x, block=16, key=1) @ nn.hadamard(params, 0, block=16, key=1)
    return nn.softmax_cross_entropy(turned, y)


@pytest.mark.parametrize("precision", ["fp16.16/stochastic", "fp32.32"])
def test_rotated_layers_train_alike_on_both_engines(precision: str) -> None:
    x = RNG.normal(size=(12, 32)).astype(np.float32)
    batch = x, np.argmax(x[:, :4], 1).astype(np.int32)
    loops = [
        TrainLoop(loss, nn.lecun_normal(2, (32, 4)), batch, optimizer=Sgd(0.5), precision=precision, engine=engine,
                  target=Target("gc200", tiles=24), key=5)
        for engine in ("tiles", "direct")
    ]  # fmt: skip
    losses = [made.run(lambda step: batch, 30) for made in loops]
    np.testing.assert_array_equal(*losses)
    assert losses[0][-1] < 0.5 * losses[0][0]


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="a power of two of elements, not 12"):
        nn.hadamard(np.ones((2, 12)))
    with pytest.raises(ValueError, match="no axis 2 in a shape of 2 axes"):
        nn.hadamard(np.ones((2, 16)), 2)
    for axis in (None, 1.0, ..., np.arange(2)):
        with pytest.raises(TypeError, match="axis must be an integer, not "):
            nn.hadamard(np.ones((2, 16)), axis)  # type: ignore[arg-type]
