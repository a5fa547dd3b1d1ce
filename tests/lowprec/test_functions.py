"""exp, log, tanh, erf, sigmoid, rsqrt, sin, cos, gelu: against MPFR, and at the corners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gmpy2
import numpy as np
import numpy.typing as npt
import pytest

import lowprec as lp

TRUE: dict[str, Callable[[Any], Any]] = {
    "exp": gmpy2.exp,
    "log": gmpy2.log,
    "tanh": gmpy2.tanh,
    "erf": gmpy2.erf,
    "sigmoid": lambda x: 1 / (1 + gmpy2.exp(-x)),
    "rsqrt": lambda x: 1 / gmpy2.sqrt(x),
    "sin": gmpy2.sin,
    "cos": gmpy2.cos,
    "gelu": lambda x: x * gmpy2.erfc(-x / gmpy2.sqrt(gmpy2.mpfr(2))) / 2,
}
INF, NAN = np.inf, np.nan


def sample(name: str) -> npt.NDArray[np.float32]:
    """Numbers of every exponent, and more where the function does something."""
    rng = np.random.default_rng(len(name))
    everything = rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    everything = everything[np.isfinite(everything)]
    x = np.concatenate([everything, rng.normal(size=4000) * 3, rng.uniform(-104, 89, 2000)]).astype(np.float32)
    return np.abs(x[x != 0]) if name in ("log", "rsqrt") else x


@pytest.mark.parametrize("name", TRUE)
def test_error_is_below_0_501_ulp(name: str) -> None:
    x = sample(name)
    got = getattr(lp, name)(x).astype(np.float64)
    with gmpy2.context(gmpy2.get_context(), precision=200):
        true = [TRUE[name](gmpy2.mpfr(float(v))) for v in x]
        worst = 0.0
        for value, exact in zip(got.tolist(), true, strict=True):
            if abs(exact) > 3.4028235e38:
                assert value == np.inf
                continue
            exponent = max(int(gmpy2.floor(gmpy2.log2(abs(exact)))) if exact != 0 else -126, -126)
            worst = max(worst, float(abs(gmpy2.mpfr(value) - exact) / gmpy2.mpfr(2) ** (exponent - 23)))
    assert 0.4 < worst < 0.501


CORNERS = {
    "exp": ([0.0, -0.0, INF, -INF, NAN, 89.0, -104.0], [1, 1, INF, 0, NAN, INF, 0]),
    "log": ([1.0, 0.0, -0.0, INF, -1.0, -INF, NAN], [0, -INF, -INF, INF, NAN, NAN, NAN]),
    "tanh": ([0.0, -0.0, INF, -INF, NAN, 30.0], [0.0, -0.0, 1, -1, NAN, 1]),
    "erf": ([0.0, -0.0, INF, -INF, NAN], [0.0, -0.0, 1, -1, NAN]),
    "sigmoid": ([0.0, INF, -INF, NAN, -105.0], [0.5, 1, 0, NAN, 0]),
    "rsqrt": ([4.0, 0.0, -0.0, INF, -1.0, NAN], [0.5, INF, -INF, 0, NAN, NAN]),
    "sin": ([0.0, -0.0, INF, -INF, NAN], [0.0, -0.0, NAN, NAN, NAN]),
    "cos": ([0.0, -0.0, INF, -INF, NAN], [1, 1, NAN, NAN, NAN]),
    "gelu": ([0.0, -0.0, INF, -INF, NAN, 20.0, -20.0], [0.0, -0.0, INF, -0.0, NAN, 20.0, -0.0]),
}


@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str, host_backend: str) -> None:
    x, want = CORNERS[name]
    lp.testing.assert_same_bits(getattr(lp, name)(np.float32(x)), np.float32(want))


@pytest.mark.parametrize("name", [*TRUE, "gelu_gradient"])
def test_backends_agree_on_every_exponent(name: str) -> None:
    x = np.float32(sample("sin")[:1500])
    x = np.append(x, np.float32([2.0**15, 2.0**15 + 1, -(2.0**20), 3.4e38, -3.4e38, 1e-45]))
    with lp.testing.backend("reference"):
        want = lp.float32_op(name, x)
    for isa in lp.testing.isa_names():
        with lp.testing.isa(isa):
            lp.testing.assert_same_bits(lp.float32_op(name, x), want)


def test_gelu_gradient_is_the_derivative() -> None:
    x = np.linspace(-6, 6, 401, dtype=np.float32)
    difference = (lp.gelu(x + np.float32(2.0**-8)) - lp.gelu(x - np.float32(2.0**-8))) * np.float32(2.0**7)
    np.testing.assert_allclose(lp.float32_op("gelu_gradient", x), difference, atol=3e-4)


def test_results_in_other_formats() -> None:
    x = np.linspace(-4, 4, 50, dtype=np.float32)
    lp.testing.assert_same_bits(lp.tanh(x, "float16"), lp.astype(lp.tanh(x), "float16"))
    lp.testing.assert_same_bits(
        lp.exp(x, "float8_e5m2", "stochastic", key=3, offset=8),
        lp.astype(lp.exp(x), "float8_e5m2", "stochastic", key=3, offset=8),
    )
