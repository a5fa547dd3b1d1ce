"""Large arrays are worked on a piece at a time: the same results, and little memory beside input and result."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import statistics as ls
from lowprec._pieces import PIECE, pieces

KEY = lp.Key(11)
SHAPE = (1500, 1000)  # several pieces, of no round size
X = np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32)
X[:3, :4] = [[0, -0.0, np.inf, -np.inf], [np.nan, 1e-9, -1e-6, 1e9], [6e-8, 65520, -7e4, 3e-5]]
HALF = lp.astype(X, "float16")
COARSE = np.round(X[np.isfinite(X)] * 64) / 64
"""Values with few bits below any quantum."""


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float4_e2m1fn])
@pytest.mark.parametrize("view", ["C", "F", "reversed", "every third"])
def test_pieces_are_the_array_in_c_order(dtype: Any, view: str) -> None:
    with np.errstate(all="ignore"):
        x = X.astype(dtype)
    x = {"C": x, "F": x.T, "reversed": x[::-1, ::-1], "every third": x[:, ::3]}[view]
    runs = [(begin, np.array(run)) for begin, (run,) in pieces(x)]
    assert all(0 < run.size <= PIECE and run.dtype == x.dtype for _, run in runs)
    assert [begin for begin, _ in runs] == np.cumsum([0, *(run.size for _, run in runs)])[:-1].tolist()
    np.testing.assert_array_equal(np.concatenate([run for _, run in runs]).tobytes(), x.tobytes())


@pytest.mark.parametrize("mode", ["nearest_even", "stochastic", "stochastic_half", "stochastic_even"])
@pytest.mark.parametrize("call", [lp.astype, lp.round, lp.encode])
def test_conversions_do_not_depend_on_the_layout(mode: str, call: Any) -> None:
    for view in (X.T, X[::-1], X[:, ::3]):
        whole = call(view.copy(), "float16", mode, key=KEY, offset=5)
        np.testing.assert_array_equal(call(view, "float16", mode, key=KEY, offset=5).tobytes(), whole.tobytes())
    flat, out = X.reshape(-1), np.empty_like(call(X, "float16", mode, key=KEY))
    parts = [call(flat[a:b], "float16", mode, key=KEY, offset=a) for a, b in ((0, 1001), (1001, X.size))]
    assert call(X, "float16", mode, key=KEY, out=out) is out
    np.testing.assert_array_equal(out.tobytes(), np.concatenate(parts).tobytes())


@pytest.mark.parametrize("place", [0, -1])
def test_a_nan_in_any_piece_is_refused_where_there_is_none(place: int) -> None:
    x = np.ones(SHAPE, np.float32)
    x[place, place] = np.nan
    for mode in ("nearest_even", "stochastic_half"):
        for view in (x.T, x):
            with pytest.raises(ValueError, match="NaN cannot be represented in float4_e2m1fn"):
                lp.encode(view, "float4_e2m1fn", mode, key=KEY)


@pytest.mark.parametrize("place", [0, COARSE.size // 2, -1])
def test_exact_draws_are_refused_for_one_value_in_any_piece(place: int) -> None:
    x = COARSE.astype(np.float64)
    lp.astype(x, "float16", "stochastic", key=KEY, random_bits="exact")
    x[place] = 1 / 3
    with pytest.raises(ValueError, match="more than 32 random bits"):
        lp.astype(x, "float16", "stochastic", key=KEY, random_bits="exact")


def test_statistics_of_pieces_are_those_of_the_whole() -> None:
    with np.errstate(all="ignore"):
        shares = ls.shares(X, "float16", "stochastic", key=KEY)
        grid = np.abs(lp.round(X, "float16", "stochastic", key=KEY))
        assert shares.overflow == np.count_nonzero(np.isinf(grid) & np.isfinite(X)) / X.size
        assert shares.subnormal == np.count_nonzero((grid < 2**-14) & (grid > 0)) / X.size
        assert shares.underflow == np.count_nonzero((grid == 0) & (X != 0)) / X.size
        assert sum(shares) == pytest.approx(1, abs=1e-12)
        histogram = ls.exponent_histogram(X.T)
        exponents = np.frexp(X[np.isfinite(X) & (X != 0)])[1] - 1
        assert dict(zip(histogram.exponents.tolist(), histogram.counts.tolist(), strict=True)) == {
            e: np.count_nonzero(exponents == e) for e in range(exponents.min(), exponents.max() + 1)
        }
        assert (histogram.size, histogram.zeros, histogram.infinities, histogram.nans) == (X.size, 2, 2, 1)
        error = ls.ulp_error(HALF, X)
        assert error.shape == SHAPE
        for row in (0, 1, 700, 1499):
            np.testing.assert_array_equal(error[row], ls.ulp_error(HALF[row], X[row]))
            np.testing.assert_array_equal(ls.relative_error(HALF, X)[row], ls.relative_error(HALF[row], X[row]))
            np.testing.assert_array_equal(ls.ulp_distance(HALF, HALF[7])[row], ls.ulp_distance(HALF[row], HALF[7]))


def test_the_ratio_of_signal_to_noise_over_every_axis() -> None:
    x = np.random.default_rng(6).standard_normal((40, 70, 90)) * 10.0 ** np.arange(-20, 20)[:, None, None]
    y = lp.round(x, "float64") + 1e-3 * np.abs(x)
    for axis in (None, 0, 1, 2, (0, 2), (-1, 1), ()):
        with np.errstate(divide="ignore"):
            wanted = 10 * np.log10(np.sum(x**2, axis=axis) / np.sum((x - y) ** 2, axis=axis))
        got = ls.signal_to_noise_ratio(x, y, axis)
        assert np.shape(got) == np.shape(wanted)
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_lost_updates_of_pieces() -> None:
    w = lp.astype(np.full(SHAPE, 1, np.float32), "float16")
    update = np.where(np.arange(w.size).reshape(SHAPE) % 3 == 0, 2.0**-12, 2.0**-8)
    found = ls.lost_updates(w, update, (w + update).astype(np.float16))
    assert (found.wanted, found.lost) == (w.size, w.size // 3)
    big = (w.size - w.size // 3) * 2.0**-16
    assert found.arrived == pytest.approx(big / (big + w.size // 3 * 2.0**-24), rel=1e-12)


CALLS: dict[str, Callable[[], Any]] = {
    "exact bits": lambda: lp.astype(COARSE, "float8_e5m2", "stochastic", random_bits="exact", key=KEY),
    "Fortran astype": lambda: lp.astype(X.T, "float16"),
    "reversed round": lambda: lp.round(X[::-1], "float16", "stochastic", key=KEY),
    "few bits": lambda: lp.astype(X, "float16", "stochastic_even", random_bits=4, key=KEY),
    "shares": lambda: ls.shares(X, "float8_e4m3fn"),
    "exponent_histogram": lambda: ls.exponent_histogram(X),
    "lost_updates": lambda: ls.lost_updates(X, X, X),
    "underflow": lambda: ls.underflow(X, HALF),
    "signal_to_noise_ratio": lambda: ls.signal_to_noise_ratio(X, X),
    "ulp_error": lambda: ls.ulp_error(HALF, X),
    "relative_error": lambda: ls.relative_error(HALF, X),
    "ulp_distance": lambda: ls.ulp_distance(HALF, HALF),
}


@pytest.mark.parametrize("name", CALLS)
def test_memory_beside_input_and_result(name: str) -> None:
    """At most a few pieces: sixteen doubles for each of their elements."""
    CALLS[name]()  # what is kept for the next call
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = CALLS[name]()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak - getattr(result, "nbytes", 0) <= 16 * 8 * PIECE


def test_caches_of_what_a_user_makes_are_bounded() -> None:
    """Every remembered function with arguments, in every module that was imported, forgets at some point."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] in ("lowprec", "ipu_core")]
    functions = {f for module in modules for f in vars(module).values() if hasattr(f, "cache_parameters")}
    assert len(functions) > 20
    unbounded = {f.__qualname__ for f in functions if f.cache_parameters()["maxsize"] is None}
    assert unbounded <= {"source", "most_blocks"}  # one entry for each file, and for each GPU
