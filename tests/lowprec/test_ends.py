"""Results of every short length: each element is that of a longer array, and nothing is written beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowprec as lp
import lowprec.testing as lpt

LONGEST, BESIDE = 1100, 64
GENERATOR = np.random.default_rng(1)
X = (GENERATOR.standard_normal(LONGEST) * 2.0 ** GENERATOR.integers(-20, 12, LONGEST)).astype(np.float32)
HALVES, CODES = X.astype(np.float16), GENERATOR.integers(0, 256, LONGEST, np.uint8)
ANY = GENERATOR.integers(0, 1 << 16, LONGEST, np.uint16).view(np.float16)
ANY[::30], ANY[7::30], ANY[11::30] = np.inf, -np.inf, np.nan
LENGTHS = [*range(100), *range(250, 263), *range(506, 519), *range(1020, LONGEST + 1)]  # around the pieces of loops
STOCHASTIC: dict[str, Any] = {"rounding": "stochastic", "key": 3}

CALLS: dict[str, tuple[Any, Callable[[int, Any], Any]]] = {
    "decode float8_e4m3fn": (np.float32, lambda n, out: lp.decode(CODES[:n], "float8_e4m3fn", out=out)),
    "decode float8_e5m2": (np.float32, lambda n, out: lp.decode(CODES[:n], "float8_e5m2", out=out)),
    "decode float16": (np.float32, lambda n, out: lp.decode(HALVES.view(np.uint16)[:n], "float16", out=out)),
    "encode float8_e4m3fn": (np.uint8, lambda n, out: lp.encode(X[:n], "float8_e4m3fn", out=out)),
    "encode float16": (np.uint16, lambda n, out: lp.encode(X[:n], "float16", out=out)),
    "encode float8_e5m2, stochastic": (
        np.uint8,
        lambda n, out: lp.encode(X[:n], "float8_e5m2", out=out, **STOCHASTIC),
    ),
    "encode float16, stochastic": (np.uint16, lambda n, out: lp.encode(X[:n], "float16", out=out, **STOCHASTIC)),
    "round to bfloat16": (np.float32, lambda n, out: lp.round(X[:n], "bfloat16", out=out)),
    "add, float32": (np.float32, lambda n, out: lp.add(X[:n], X[-1:], "float32", out=out)),
    "add, float16": (np.float16, lambda n, out: lp.add(HALVES[:n], HALVES[:n], "float16", out=out)),
    "multiply, float16, stochastic": (
        np.float16,
        lambda n, out: lp.multiply(HALVES[:n], HALVES[:n], "float16", out=out, **STOCHASTIC),
    ),
    "negative, float16": (np.float16, lambda n, out: lp.float32_op("negative", ANY[:n], fmt="float16", out=out)),
    "maximum, float32": (np.float32, lambda n, out: lp.float32_op("maximum", X[:n], X[LONGEST // 2] - X[:n], out=out)),
    "exp": (np.float32, lambda n, out: lp.exp(X[:n], out=out)),
    "tanh, float16, stochastic": (
        np.float16,
        lambda n, out: lp.tanh(HALVES[:n], "float16", out=out, **STOCHASTIC),
    ),
}


@pytest.mark.parametrize("isa", lpt.isa_names())
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_written_beside_results(name: str, isa: str) -> None:
    dtype, call = CALLS[name]
    with lpt.backend("reference"):
        wanted = call(LONGEST, np.empty(LONGEST, dtype))
    item = np.dtype(dtype).itemsize
    with lpt.isa(isa):
        for length in LENGTHS:
            start = BESIDE + 5 * length % 32 * item  # anywhere in a cache line
            memory = np.full(start + length * item + BESIDE, 0xA5, np.uint8)
            results = memory[start : start + length * item]
            call(length, results.view(dtype))
            lpt.assert_same_bits(results.view(dtype), wanted[:length])
            assert (memory[:start] == 0xA5).all()
            assert (memory[start + length * item :] == 0xA5).all(), length
