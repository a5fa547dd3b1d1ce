"""`lowprec.quantize`: the forward values are those of `round`, the gradients are what was stated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowprec as lp

X = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
DY = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)
KEY = lp.Key(3)


def by_jax(call: Any, x: Any, dy: Any) -> tuple[Any, Any]:
    jax = pytest.importorskip("jax")

    def loss(x: Any) -> Any:
        y = call(x)
        return (y * dy).sum(), y

    (_, y), dx = jax.jit(jax.value_and_grad(loss, has_aux=True))(jax.numpy.asarray(x))
    return np.asarray(y), np.asarray(dx)


def by_torch(call: Any, x: Any, dy: Any) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(x.T).T.requires_grad_()  # not contiguous
    y = call(tensor)
    (y * torch.tensor(dy)).sum().backward()
    return y.detach().numpy(), tensor.grad.numpy()


@pytest.mark.parametrize("library", [by_jax, by_torch])
@pytest.mark.parametrize("how", ["toward_zero", "stochastic", lp.Rounding("stochastic", random_bits=5)])
def test_forward_is_round_and_backward_as_stated(library: Any, how: Any) -> None:
    key = None if how == "toward_zero" else KEY
    wanted = lp.round(X, "e5m3", how, key=key)
    again = lp.round(DY, "e5m3", how, key=None if key is None else KEY.fold_in(1))
    for gradient, dx in (
        ("straight_through", DY),
        ("rounded", again),
        (lambda x, dy: dy * (abs(x) < 1), np.where(np.abs(X) < 1, DY, 0)),
    ):
        y, got = library(lambda x, gradient=gradient: lp.quantize(x, "e5m3", how, gradient=gradient, key=key), X, DY)
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(got, dx)


def test_under_vmap_elements_are_numbered_as_those_of_one_array() -> None:
    jax = pytest.importorskip("jax")
    got = jax.vmap(lambda row: lp.quantize(row, "e5m3", "stochastic", key=KEY))(jax.numpy.asarray(X))
    np.testing.assert_array_equal(got, lp.round(X, "e5m3", "stochastic", key=KEY))


def test_other_arrays_are_rounded() -> None:
    np.testing.assert_array_equal(lp.quantize(X, "e5m3", gradient="rounded"), lp.round(X, "e5m3"))


@pytest.mark.parametrize("keywords, says", [
    ({"gradient": "clipped"}, "straight_through', 'rounded' or a function"),
    ({"rounding": "stochastic"}, "needs a key"),
    ({"overflow": "infinity", "fmt": "e4m3"}, "needs a format with infinity"),
])  # fmt: skip
def test_what_is_refused_is_refused_at_once(keywords: dict[str, Any], says: str) -> None:
    jax = pytest.importorskip("jax")
    with pytest.raises(ValueError, match=says):
        jax.jit(lambda x: lp.quantize(x, **{"fmt": "e5m3", **keywords}))(jax.numpy.asarray(X))
