"""The compiled loops against the reference over random formats, modes, policies, orders, dtypes and instruction sets.

The formats reach from powers of two to 31 bits, with every convention of NaN, infinities and subnormals, and
the values lie where a rounding is decided. A call must give the same bits, or be refused in the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lowprec as lp
import lowprec.testing as lpt
from lowprec.values.accumulation import ADDERS
from lowprec.values.float_format import NanStyle
from lowprec.values.rounding import INFINITE_INPUTS, MODES, OVERFLOWS, PRESETS

pytestmark = pytest.mark.filterwarnings("ignore:.* the reference computes it, slowly:RuntimeWarning")

Array = npt.NDArray[Any]
FUZZ = settings(max_examples=100, deadline=None, derandomize=True)
DTYPES: list[Any] = [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]


@st.composite
def formats(draw: st.DrawFn, *, accumulators: bool = False) -> lp.FloatFormat:
    """Made-up formats, P3109's and the named ones; `accumulators`: those with a sign and a zero."""
    fmt = draw(_made_up() | st.builds(_p3109, st.integers(3, 15), st.integers(1, 15), st.booleans()) | lpt.formats())
    assume(fmt is not None)
    assume(not accumulators or (fmt.signed and fmt.zero and fmt != lp.float64))
    return fmt


@st.composite
def _made_up(draw: st.DrawFn) -> lp.FloatFormat | None:
    exponent_bits = draw(st.integers(1, 8))
    mantissa_bits = draw(st.sampled_from((0, 0, *range(11), 14, 22)))
    nan: NanStyle = draw(st.sampled_from(get_args(NanStyle)))
    bias = 2 ** (exponent_bits - 1) - 1 + draw(st.sampled_from((0, 0, 0, -3, -1, 1, 2, 20, -20)))
    try:
        return lp.FloatFormat(
            *("made up", exponent_bits, mantissa_bits, bias, True, draw(st.booleans()), nan, draw(st.booleans()))
        )
    except ValueError:  # no format
        return None


def _p3109(k: int, p: int, extended: bool) -> lp.FloatFormat | None:
    try:
        return lp.p3109(k, p, extended=extended)
    except ValueError:  # no format, or one beyond float64
        return None


@st.composite
def rules(draw: st.DrawFn, fmt: lp.FloatFormat, *, flush: bool = False) -> dict[str, Any]:
    """How to round: a mode, its random bits and a key, and policies, which the format may be unable to express."""
    rule: dict[str, Any] = {"rounding": draw(st.sampled_from(MODES))}
    if rule["rounding"] == "stochastic":
        rule |= {"key": draw(lpt.keys()), "random_bits": draw(st.sampled_from((1, 7, 16, 16, 17, 28)))}
    if draw(st.booleans()):
        rule["overflow"] = draw(st.sampled_from((*OVERFLOWS, *PRESETS)))
    if draw(st.booleans()):
        rule["infinite_input"] = draw(st.sampled_from(INFINITE_INPUTS))
    if flush and draw(st.booleans()):
        rule["flush"] = True
    return rule


def numbers(seed: int, shape: tuple[int, ...], fmt: lp.FloatFormat, dtype: Any, special: bool) -> Array:
    """Values of a format and what lies between them, a step of the dtype beside ties, and beyond the largest."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    with np.errstate(all="ignore"):
        wide = 2.0 * np.float64(min(fmt.max, 1e300))
        grid = np.array([fmt.value_of(int(code)) for code in rng.integers(0, fmt.max_code + 1, size)])
        quantum = (
            np.maximum(np.exp2(np.floor(np.log2(np.maximum(grid, 1e-320)))), 2.0**fmt.emin) * 2.0**-fmt.mantissa_bits
        )
        x = grid + quantum * rng.choice([0, 0, 0.25, 0.5, 0.5, 0.75, 1 / 3], size)
        x = np.where(rng.random(size) < 0.1, 0.0, x) * rng.choice([1, 1, 1, 2.0**-3, 1.5, 2.0], size)
        x = np.minimum(x, wide) * rng.choice([-1.0, 1.0], size)
        if special:
            x = np.where(rng.random(size) < 0.04, rng.choice([np.inf, -np.inf, np.nan], size), x)
        narrow = x.astype(dtype)
        if np.dtype(dtype).kind == "f":
            beside = np.nextafter(narrow, rng.choice([np.inf, -np.inf, 0], size).astype(dtype))
            narrow = np.where(rng.random(size) < 0.3, beside, narrow).astype(dtype)
    return narrow.reshape(shape)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or in which words it refuses."""
    with np.errstate(all="ignore"):
        try:
            return call()
        except (ValueError, TypeError) as refusal:
            return type(refusal), str(refusal)


def agree(call: Callable[[], Any], isa: str) -> None:
    """The reference and an instruction set give the same."""
    with lpt.backend("reference"):
        want = outcome(call)
    with lpt.isa(isa):
        got = outcome(call)
    if isinstance(want, tuple) or isinstance(got, tuple):
        assert got == want
    else:
        lpt.assert_same_bits(got, want)


ISAS = st.sampled_from(lpt.isa_names())
SEEDS = st.integers(0, 2**32)


@FUZZ
@given(data=st.data(), fmt=formats(), isa=ISAS, seed=SEEDS, special=st.booleans())
@pytest.mark.parametrize("call", [lp.round, lp.encode, lp.astype], ids=["round", "encode", "astype"])
def test_roundings_agree(
    call: Callable[..., Any], data: st.DataObject, fmt: lp.FloatFormat, isa: str, seed: int, special: bool
) -> None:
    dtype = data.draw(st.sampled_from([*DTYPES, np.float64]))
    count = data.draw(st.sampled_from((1, 30, 300)))
    x = numbers(seed, (count,), fmt, dtype, special)
    offset = data.draw(st.sampled_from((0, 0, 13, 64, 2**33 - 64)))
    rule = data.draw(rules(fmt, flush=True))
    agree(lambda: call(x, fmt, **rule, offset=offset), isa)


SUMS: dict[str, Callable[..., Any]] = {
    "sequential": lp.sum,
    "blocked": lambda x, *a, **k: lp.sum(x, *a, order="blocked", block=3, **k),
    "pairwise": lambda x, *a, **k: lp.sum(x, *a, order="pairwise", **k),
    "kahan": lp.kahan_sum,
    "running": lp.cumulative_sum,
    "dot": lambda x, *a, **k: lp.dot(x, x[..., ::-1, :], *a, **k),
    "mean": lp.mean,
}


@FUZZ
@given(data=st.data(), fmt=formats(accumulators=True), isa=ISAS, seed=SEEDS, special=st.booleans())
@pytest.mark.parametrize("call", SUMS.values(), ids=SUMS)
def test_sums_agree(
    call: Callable[..., Any], data: st.DataObject, fmt: lp.FloatFormat, isa: str, seed: int, special: bool
) -> None:
    shape = data.draw(st.sampled_from(((1, 1), (8, 1), (3, 40), (70, 2), (9, 17))))
    x = numbers(seed, shape, fmt, data.draw(st.sampled_from(DTYPES)), special)
    rule = data.draw(rules(fmt, flush=True))
    agree(lambda: call(x, fmt, axis=0, **rule), isa)


def some(draw: st.DrawFn, *, adders: bool = False) -> dict[str, Any]:
    """An order of additions."""
    order = {
        "group": draw(st.sampled_from((1, 1, 3, 16, None))),
        "splits": draw(st.sampled_from((1, 1, 3, 20))),
        "stages": draw(st.sampled_from((None, None, 1, 2, 3))),
    }
    adder = draw(st.sampled_from(ADDERS)) if adders else "sequential"
    if adder == "aligned":
        order |= {"aligned_bits": draw(st.integers(1, 35)), "group": order["group"] or 33}
    return order | ({"adder": adder} if adders else {})


orders = st.composite(some)


@st.composite
def results(draw: st.DrawFn) -> dict[str, Any]:
    out = draw(st.sampled_from((None, "float32", "float32", "float16", "float8_e4m3fn", "bfloat16")))
    return {"out_format": out} if out is not None else {}


@FUZZ
@given(data=st.data(), fmt=formats(accumulators=True), isa=ISAS, seed=SEEDS, special=st.booleans())
def test_products_agree(data: st.DataObject, fmt: lp.FloatFormat, isa: str, seed: int, special: bool) -> None:
    m, k, n = data.draw(st.sampled_from(((1, 1, 1), (2, 9, 3), (7, 20, 1), (1, 33, 19), (5, 6, 40))))
    dtypes = st.sampled_from(DTYPES)
    one = lp.FloatFormat("about one", 4, 3, infinities=False, nan="none")
    a = numbers(seed, (m, k), fmt, data.draw(dtypes), special)
    b = numbers(seed + 1, (k, n), one, data.draw(dtypes), False)
    given_order, out = data.draw(orders(adders=True)), data.draw(results())
    rule = data.draw(rules(fmt))
    agree(lambda: lp.matmul(a, b, accumulate=fmt, **given_order, **out, **rule), isa)


@FUZZ
@given(data=st.data(), fmt=formats(accumulators=True), isa=ISAS, seed=SEEDS, special=st.booleans())
@pytest.mark.parametrize("scattered", [False, True], ids=["reduce_sum", "scatter_add"])
def test_reductions_agree(
    scattered: bool, data: st.DataObject, fmt: lp.FloatFormat, isa: str, seed: int, special: bool
) -> None:
    shape = data.draw(st.sampled_from(((1, 1), (9, 3), (20, 1), (33, 19), (6, 40))))
    x = numbers(seed, shape, fmt, data.draw(st.sampled_from(DTYPES)), special)
    rule, out = data.draw(rules(fmt)), data.draw(results())
    if scattered:
        rows = np.random.default_rng(seed).integers(0, 3, shape[0])
        group = data.draw(st.sampled_from((1, 3, None)))
        agree(lambda: lp.scatter_add(rows, x, 3, accumulate=fmt, group=group, **out, **rule), isa)
    else:
        given_order, axis = data.draw(orders()), data.draw(st.sampled_from((0, 1)))
        agree(lambda: lp.reduce_sum(x, axis, accumulate=fmt, **given_order, **out, **rule), isa)


@FUZZ
@given(data=st.data(), element=formats(), isa=ISAS, seed=SEEDS, special=st.booleans())
def test_blocks_agree(data: st.DataObject, element: lp.FloatFormat, isa: str, seed: int, special: bool) -> None:
    scale = data.draw(st.sampled_from((lp.float8_e8m0fnu, lp.float8_e4m3fn, lp.float32)))
    try:
        fmt = lp.BlockFormat("made up", element, scale, data.draw(st.sampled_from((1, 5, 16, 32))))
    except (ValueError, TypeError):
        assume(False)
    x = numbers(seed, (3, 70), element, data.draw(st.sampled_from([*DTYPES, np.float64])), special)
    rule = data.draw(rules(element))

    def call() -> Any:
        made = lp.to_blocks(x, fmt, axis=data_axis, **rule)
        return np.concatenate([made.dequantize(np.float64).ravel(), made.scales.astype(np.float64).ravel()])

    data_axis = data.draw(st.sampled_from((0, 1)))
    with lpt.backend("reference"):
        want = outcome(call)
    with lpt.isa(isa):
        got = outcome(call)
    if isinstance(want, tuple) or isinstance(got, tuple):
        assert got == want
    else:
        lpt.assert_same_bits(got, want)
