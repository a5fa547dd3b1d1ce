"""Our figures of published low-precision effects, at the published sizes where seconds are enough."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

import lowprec
from ipu_core.reproduce import accumulators, sums, tensor_cores
from ipu_core.reproduce.catalogue import REPRODUCTIONS
from lowprec import Key
from lowprec.types import Array

REPEATS, ROWS = 10, 100


def harmonic(fmt: str, figure: str) -> float:
    """Where 1 + 1/2 + 1/3 + ... stops in a format: the "value", or the first "term" that changes nothing."""
    found = sums.partial_sums(fmt, sums.TERMS)
    if figure == "value":
        return float(found[-1])
    return int(np.flatnonzero(np.diff(found))[-1]) + 3


@lru_cache(64)
def harmonic_error(fmt: str, terms: int, figure: str) -> float:
    """The error of the harmonic sum relative to float64's: to "nearest", the "mean" or "largest" of ten stochastic."""
    ones = np.asarray(lowprec.round(1 / np.arange(1, terms + 1), fmt), np.float64)
    exact = float(ones.sum())
    if figure == "nearest":
        return abs(float(sums.partial_sums(fmt, terms)[-1]) / exact - 1)
    found = [
        abs(float(lowprec.sum(ones.astype(np.float32), fmt, "stochastic", key=Key(seed))) / exact - 1)
        for seed in range(REPEATS)
    ]
    return float(np.mean(found)) if figure == "mean" else max(found)


@lru_cache(64)
def _products(terms: int) -> tuple[Array, Array, Array]:
    generator = np.random.Generator(np.random.Philox(0))
    a = np.float32(1e-3) * generator.random((ROWS, terms), np.float32)
    x = generator.random(terms, np.float32)
    return a, x, a.astype(np.float64) @ x.astype(np.float64)


def matvec(fmt: str, terms: int, rounding: str) -> float:
    """The largest backward error of 100 sums of products of positive numbers, each product and sum rounded."""
    a, x, exact = _products(terms)
    products = np.asarray(lowprec.multiply(a, x[None], fmt))
    ours = np.asarray(lowprec.sum(products, fmt, axis=1, **_rounded(rounding)), np.float64)
    return float(np.max(np.abs(ours / exact - 1)))


def chunked(terms: int, chunk: int, rounding: str = "nearest_even") -> float:
    """The sum of numbers of mean and deviation 1 in (1,6,9), in chunks (1: one after another; 0: in float64)."""
    x = accumulators.terms(0)[:terms]
    if not chunk:
        return float(x.sum(dtype=np.float64))
    order: dict[str, Any] = {} if chunk == 1 else {"order": "blocked", "block": chunk}
    return float(lowprec.sum(x, accumulators.FP16, **order, **_rounded(rounding)))


def _rounded(rounding: str) -> dict[str, Any]:
    return {"rounding": rounding, **({"key": Key(0)} if rounding == "stochastic" else {})}


@lru_cache(64)
def tensor_core(places: int, promoted: bool, kind: str = "normal", figure: str = "largest") -> float:
    """Per cent that 8-bit products of 4,096 terms err in a tensor core's registers of so many places."""
    found = tensor_cores.error(kind, places, promoted, 64, (0,))
    return 100 * (found.largest if figure == "largest" else found.bias)


def number(name: str) -> float:
    """A figure of a format, by name."""
    fixed, stash = lowprec.fixed_point(16, 8), lowprec.stash143
    known: dict[str, Callable[[], float]] = {
        "q8.8 step": lambda: float(lowprec.round(np.float32(2.0**-8 * 1.2), fixed)),
        "q8.8 largest": lambda: float(lowprec.round(np.float32(1e6), fixed)),
        "stash step": lambda: float(lowprec.round(np.float32(0.13), stash)),
        "stash largest": lambda: float(lowprec.round(np.float32(1e6), stash)),
        "stash 0.03": lambda: float(lowprec.round(np.float32(0.03), stash)),
        "stash 0.07": lambda: float(lowprec.round(np.float32(0.07), stash)),
    }
    return known[name]()


def reproduced(name: str) -> float:
    """The share of a reproduction's claims that show here, of those that have a verdict (three seeds)."""
    found = [each.holds for each in REPRODUCTIONS[name].run((0, 1, 2), 1.0, lambda _: None)]
    return found.count(True) / (found.count(True) + found.count(False))
