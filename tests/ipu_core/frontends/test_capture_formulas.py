"""Formulas behind torch's operations, on arrays: what PyTorch documents, where the ends of a formula decide."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ipu_core.frontends.torch.operations.losses import MEAN, NONE, SUM, TABLE
from ipu_core.frontends.torch.operations.reductions import TABLE as REDUCTIONS
from ipu_core.ir.passes.autodiff import value_and_grad

CALL: Any = SimpleNamespace()
X = np.log(np.array([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3]]))
Y = np.array([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])


def test_the_divergence_of_a_distribution_has_its_own_entropy_and_nothing_where_it_is_zero() -> None:
    """torch.nn.KLDivLoss: target (log target - input), and 0 where the target is 0."""
    rows = TABLE["kl_div"](CALL, X, Y, NONE)
    wanted = np.where(Y > 0, Y * (np.log(np.where(Y > 0, Y, 1)) - X), 0)
    np.testing.assert_allclose(rows, wanted, rtol=1e-6, atol=1e-12)
    assert TABLE["kl_div"](CALL, X, Y, MEAN) == pytest.approx(wanted.mean())
    assert TABLE["kl_div"](CALL, X, Y, SUM) == pytest.approx(wanted.sum())
    assert TABLE["kl_div"](CALL, np.log(Y[0, 1:]), Y[0, 1:], SUM) == pytest.approx(0, abs=1e-7)


def test_the_gradient_of_a_divergence_passes_its_target_too() -> None:
    target = np.array([0.25, 0.75])
    _, (x, y) = value_and_grad(lambda p: TABLE["kl_div"](CALL, p[0], p[1], SUM))([X[0, 1:], target])
    np.testing.assert_allclose(x, -target)
    np.testing.assert_allclose(y, np.log(target) + 1 - X[0, 1:], rtol=1e-6)
    _, (x, y) = value_and_grad(lambda p: TABLE["kl_div"](CALL, p[0], p[1], SUM))([X, Y])
    assert np.isfinite(y).all()  # where the target is 0 too
    _, (x, y) = value_and_grad(lambda p: TABLE["kl_div"](CALL, p[0], p[1], SUM, True))([X[0], X[1]])
    np.testing.assert_allclose(x, -np.exp(X[1]), rtol=1e-6)
    np.testing.assert_allclose(y, np.exp(X[1]) * (X[1] - X[0] + 1), rtol=1e-6)


@pytest.mark.parametrize("eps", [1e-8, 0.5])
def test_a_cosine_takes_no_vector_for_shorter_than_its_eps(eps: float) -> None:
    """torch.nn.CosineSimilarity: each length by itself is at least eps."""
    a, b = (
        np.array([[3.0, 4.0], [0.3, 0.0], [0.0, 0.0], [1e-6, 0.0]]),
        np.array([[4.0, 3.0], [0.1, 0.1], [1.0, 2.0], [1e-6, 1e-6]]),
    )
    lengths = [np.maximum(np.sqrt((x * x).sum(1)), eps) for x in (a, b)]
    wanted = (a * b).sum(1) / (lengths[0] * lengths[1])
    np.testing.assert_allclose(REDUCTIONS["cosine_similarity"](CALL, a, b, 1, eps), wanted, rtol=1e-6)
    assert wanted[2] == 0
    if eps == 0.5:
        assert wanted[1] == pytest.approx(0.03 / 0.25)
    default = REDUCTIONS["cosine_similarity"](CALL, a * 1e-5, b, 1)
    np.testing.assert_allclose(default, (a * b * 1e-5).sum(1) / np.maximum(np.linalg.norm(a, axis=1) * 1e-5, 1e-8)
                               / np.linalg.norm(b, axis=1), rtol=1e-6)  # fmt: skip
