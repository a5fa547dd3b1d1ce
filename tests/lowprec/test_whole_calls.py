"""Ordinary calls of whole arrays in one step: the results and refusals of the long way, the second time too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec import backends
from lowprec import rounding as module

X = np.random.default_rng(4).standard_normal(700).astype(np.float32)
CALLS: dict[str, Callable[..., Any]] = {"round": lp.round, "astype": lp.astype, "encode": lp.encode}


def the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls go the long way from here on."""
    for name in ("_whole", "_whole_decoding"):
        monkeypatch.setattr(module, name, lambda *_: None)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("fmt", ["float16", np.float16, ml_dtypes.bfloat16, "float8_e4m3fn", lp.as_format("bfloat16")])
@pytest.mark.parametrize("mode", ["nearest_even", "stochastic", lp.Rounding("up")])
def test_calls_in_one_step_give_what_others_give(
    name: str, fmt: Any, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, cases = (
        CALLS[name],
        [X, 1e6 * X, X[:1], X.reshape(7, 100), X[::2], X.astype(np.float64), X[:0], X.astype(">f4")],
    )
    how: list[dict[str, Any]] = [{}, {"offset": 64}, {"key": lp.Key(3)}, {"offset": np.int64(0)}]
    if isinstance(mode, str):
        how.append({"overflow": "saturate"})
    quick = [call(x, fmt, mode, **{"key": 9, **extra}) for _ in range(2) for extra in how for x in cases]
    the_long_way(monkeypatch)
    slow = [call(x, fmt, mode, **{"key": 9, **extra}) for _ in range(2) for extra in how for x in cases]
    for got, want in zip(quick, slow, strict=True):
        assert got.shape == want.shape
        lp.testing.assert_same_bits(got, want)


def test_a_name_is_known_whatever_object_it_is() -> None:
    for name in ("float16", "bfloat16", "float8_e5m2") * 2:
        letters = "".join(list(name))
        lp.testing.assert_same_bits(lp.astype(X, letters), X.astype(lp.as_format(name).dtype))


def test_another_backend_is_asked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lp.astype(X, "float16"), lp.decode(lp.astype(X, "float16"), "float16")
    with lp.testing.backend("reference"):
        from_reference: list[str] = []
        reference = backends.load("reference")
        monkeypatch.setattr(reference, "convert", lambda *_: from_reference.append("convert"))
        monkeypatch.setattr(reference, "decode", lambda *_: from_reference.append("decode"))
        lp.astype(X, "float16"), lp.decode(np.zeros(3, np.float16), "float16")
    assert from_reference == ["convert", "decode"]


@pytest.mark.parametrize("name", CALLS)
def test_refusals_stay(name: str) -> None:
    call, out = CALLS[name], {"round": np.float32, "astype": np.float16, "encode": np.uint16}[name]
    for _ in range(2):
        call(X, "float16", "stochastic", key=1)
        call(X, "float4_e2m1fn")
        with pytest.raises(ValueError, match="needs key="):
            call(X, "float16", "stochastic")
        with pytest.raises(TypeError, match="key must be"):
            call(X, "float16", key="1")
        with pytest.raises(ValueError, match="key must be"):
            call(X, "float16", "stochastic", key=-1)
        with pytest.raises(ValueError, match="NaN cannot be represented"):
            call(np.append(X, np.float32(np.nan)), "float4_e2m1fn")
        with pytest.raises(ValueError, match="shape"):
            call(X, "float16", out=np.empty(699, out))
        with pytest.raises(TypeError, match="offset must be"):
            call(X, "float16", "stochastic", key=1, offset=0.0)


def test_decoding_goes_from_format_to_format() -> None:
    """A table of a format's codes is kept for the next call."""
    codes = np.arange(1 << 11, dtype=np.uint16).astype(np.uint8)
    names = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e3m4", "float8_e4m3")
    for name in (*names, *names[::-1]):
        dtype = np.dtype(lp.as_format(name).dtype)
        lp.testing.assert_same_bits(lp.decode(codes, name), codes.view(dtype).astype(np.float32))
