"""Hypothesis strategies and helpers of the tests of float32_op, matmul and reductions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

import lowprec as lp
from lowprec.values.keywords import as_rounding

Array = npt.NDArray[Any]

OPERANDS = [
    np.float32,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float4_e2m1fn,
]
RESULTS = [
    *("float16", "float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e3m4", "float64", "float8_e8m0fnu"),
]
NO_NAN = ["float4_e2m1fn", "float6_e3m2fn"]
STORED_ACCUMULATORS = [name for name in RESULTS if name not in ("float64", "float8_e8m0fnu")]
ACCUMULATORS = [
    *STORED_ACCUMULATORS,
    "tfloat32",
    lp.FloatFormat("e6m9", 6, 9),
    lp.FloatFormat("e4m14", 4, 14),
    lp.FloatFormat("e4m0", 4, 0, nan="top", infinities=False),
    lp.FloatFormat("e8m10b130", 8, 10, 130),
    lp.FloatFormat("e5m10_normal", 5, 10, subnormals=False),
]
SPECIAL = [np.inf, -np.inf, np.nan, 0.0, -0.0, 6e4, -1e-7, 3e38, 2.0**-140]


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...], dtypes: Any = None) -> Array:
    """An array of one of the operand dtypes: numbers of one size, small integers, signed zeros, special values."""
    dtype = draw(st.sampled_from(dtypes or OPERANDS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["numbers", "tiny", "huge", "integers", "zeros", "special"]))
    x = rng.normal(size=shape)
    if kind in ("tiny", "huge"):
        x *= 2.0 ** draw(st.integers(-30, 0) if kind == "tiny" else st.integers(0, 60))
    if kind == "integers":
        x = rng.integers(-3, 4, size=shape).astype(np.float64)
    if kind == "zeros":
        x = rng.choice([0.0, -0.0, 1e-6, -1e-6, -1.0], size=shape)
    if kind == "special" and x.size:
        x.flat[rng.integers(x.size, size=2)] = draw(st.sampled_from(SPECIAL))
    with np.errstate(all="ignore"):
        return np.asarray(np.asarray(x).astype(np.float32).astype(dtype))


@st.composite
def strided(draw: st.DrawFn, x: Array) -> Array:
    """The same elements behind other strides: transposed, reversed, or every other one."""
    kind = draw(st.sampled_from(["plain", "transposed", "reversed", "spread"]))
    if x.ndim < 2 or kind == "plain":
        return x
    if kind == "transposed":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if kind == "reversed":
        return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


@st.composite
def rounding_options(draw: st.DrawFn) -> dict[str, Any]:
    """rounding, and what belongs to it, with every policy now and then."""
    mode = draw(
        st.sampled_from(["nearest_even", "nearest_even", "stochastic", "stochastic", "toward_zero", "up", "odd"])
    )
    options: dict[str, Any] = {"rounding": mode}
    if mode == "stochastic":
        options["key"] = draw(st.integers(0, 2**64 - 1))
        options["random_bits"] = draw(st.sampled_from([16, 16, 1, 5, 13, 20, 32]))
    options["overflow"] = draw(st.sampled_from([None, None, "saturate", "ipu", "satfinite", "nan"]))
    options["infinite_input"] = draw(st.sampled_from([None, None, "max", "nan"]))
    return options


def outcome(function: Any, *args: Any, **options: Any) -> Any:
    """A call's result, or the kind of its error."""
    try:
        return np.asarray(function(*args, **options))
    except (TypeError, ValueError) as error:
        return type(error)


def assert_backends_agree(function: Any, *args: Any, **options: Any) -> None:
    """Runs a call on the reference and on every instruction set, and compares bits (or the kinds of errors)."""
    with lp.testing.backend("reference"):
        want = outcome(function, *args, **options)
    for name in lp.testing.isa_names():
        with lp.testing.isa(name):
            got = outcome(function, *args, **options)
        if isinstance(want, type) or isinstance(got, type):
            assert got is want, name
        else:
            lp.testing.assert_same_bits(got, want)


def values(accumulate: Any = "float32", group: int | None = 16, **rounding: Any) -> tuple[lp.Accumulation, lp.Rounding]:
    """Keywords of a sum as the values that prepared calls take."""
    return lp.Accumulation(group, accumulate=accumulate), as_rounding(**rounding)
