"""Every door of a float32 sum, compiled against the reference: accumulators, results, stages, parts and policies."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.values.rounding import INFINITE_INPUTS, MODES, OVERFLOWS, PRESETS
from tests.examples import first
from tests.lowprec.sums.doors import PARTS, WHOLE, Door
from tests.lowprec.sums_cases import Array, assert_backends_agree

ODD = [
    lp.FloatFormat("e4m0top", 4, 0, infinities=False, nan="top"),
    lp.FloatFormat("e3m0", 3, 0, infinities=True, nan="top"),
    lp.FloatFormat("e1m3", 1, 3, infinities=True, nan="top"),
    lp.FloatFormat("e2m1", 2, 1),
    lp.FloatFormat("e6m9", 6, 9),
    lp.FloatFormat("e4m14", 4, 14),
    lp.FloatFormat("e5m22", 5, 22),
    lp.FloatFormat("e8m22", 8, 22),
    lp.FloatFormat("e8m5b130", 8, 5, 130),
    lp.FloatFormat("e7m3b100", 7, 3, 100),
    lp.FloatFormat("e5m10ns", 5, 10, subnormals=False),
    lp.FloatFormat("e8m7ns", 8, 7, subnormals=False),
    lp.FloatFormat("e3m20fn", 3, 20, infinities=False, nan="none"),
    lp.FloatFormat("e5m2uz", 5, 2, infinities=True, nan="negative_zero"),
    lp.fixed_point(16, 8),
]
NAMED = [fmt for fmt in lp.formats.values() if fmt.signed and fmt != lp.float64]
RESULTS = [fmt for fmt in lp.formats.values() if fmt.dtype is not None]
TOO_WIDE = [
    lp.float64,
    lp.FloatFormat("e2m25", 2, 25),
    lp.FloatFormat("e9m2", 9, 2),
    lp.FloatFormat("e4m20b176", 4, 20, 176),
    lp.FloatFormat("e8m10fn", 8, 10, infinities=False, nan="top"),
]


def numbers(
    rng: np.random.Generator, fmt: lp.FloatFormat, shape: tuple[int, ...], largest: float | None = None
) -> Array:
    """Values at the ends of a format, ones and zeros; infinities and NaN now and then."""
    if largest is not None:
        x = rng.choice([1.0, -1.0, 0.5, largest, 0.0, -0.0], size=shape)
    else:
        top, least = min(fmt.max, 3e38), max(fmt.smallest_subnormal, 2.0**-149)
        x = rng.choice([top, -top, top / 2, -top / 2, top * 0.75, 1.0, -3.0, least, -least / 2, 0.0, -0.0], size=shape)
    if rng.integers(6) == 0:
        x.flat[rng.integers(x.size)] = rng.choice([np.inf, -np.inf, np.nan])
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def policies(fmt: lp.FloatFormat) -> list[dict[str, Any]]:
    """Every pair of overflow and infinite input that a format can express."""
    every = itertools.product([None, *OVERFLOWS, *PRESETS], [None, *INFINITE_INPUTS])
    return [{"overflow": o, "infinite_input": i} for o, i in every if expresses(fmt, o, i)]


def expresses(fmt: lp.FloatFormat, overflow: Any, infinite_input: Any) -> bool:
    try:
        lp.Rounding(overflow=overflow, infinite_input=infinite_input).rule(fmt)
    except ValueError:
        return False
    return True


def agree(call: Door, how: dict[str, Any], rng: np.random.Generator) -> None:
    seed, fmt = int(rng.integers(2**32)), how["accumulate"]
    try:
        assert_backends_agree(lambda: call(partial(numbers, np.random.default_rng(seed), fmt), **how))
    except AssertionError as error:
        raise AssertionError(f"{how}: {error}") from None


def rounding(rng: np.random.Generator) -> dict[str, Any]:
    mode = str(rng.choice([*["nearest_even"] * 4, *MODES]))
    return {"rounding": mode, "random_bits": int(rng.choice([1, 13, 16, 32])), "key": int(rng.integers(2**63))}


@pytest.mark.parametrize("seed, name", first(len(WHOLE), itertools.product(range(12), WHOLE)))
def test_whole_sums_agree(seed: int, name: str) -> None:
    rng = np.random.default_rng([seed, *name.encode()])
    for stages, splits in itertools.product((1, 2, 3), (1, 2, 3)):
        for fmt in rng.permutation(np.array([*NAMED, *ODD], object))[:5]:
            for out in (fmt if fmt.dtype is not None else lp.float32, rng.choice(np.array(RESULTS, object))):
                allowed = [one for one in policies(fmt) if expresses(out, **one)]
                how = {"stages": stages, "splits": splits, "group": rng.choice([1, 2, 16]).item(), **rounding(rng)}
                agree(WHOLE[name], how | {"accumulate": fmt, "out_format": out} | rng.choice(np.array(allowed)), rng)


@pytest.mark.parametrize("seed, name", first(len(PARTS), itertools.product(range(12), PARTS)))
def test_parts_agree(seed: int, name: str) -> None:
    rng = np.random.default_rng([seed, *name.encode()])
    for fmt in (fmt for fmt in NAMED if fmt.dtype is not None):
        for policy in policies(fmt)[:: 1 + seed % 2]:
            how = {"accumulate": fmt, "group": rng.choice([1, 2, 16]).item(), **rounding(rng)}
            agree(PARTS[name], how | policy, rng)


@pytest.mark.parametrize("name", [*WHOLE, *PARTS])
@pytest.mark.parametrize("fmt", TOO_WIDE, ids=lambda fmt: fmt.name)
def test_accumulators_that_float32_does_not_hold_are_refused(name: str, fmt: lp.FloatFormat, host_backend: str) -> None:
    out: dict[str, Any] = {"out_format": "float32"} if name in WHOLE else {}
    with pytest.raises(ValueError, match=f"{fmt.name} cannot accumulate: partial sums are float32, which lacks some"):
        (WHOLE | PARTS)[name](partial(numbers, np.random.default_rng(0), fmt), accumulate=fmt, **out)
