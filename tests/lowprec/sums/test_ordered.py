"""sum, mean, dot, norm, cumulative_sum, kahan_sum: the stated orders, step by step, on both backends."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from lowprec.values.rounding import MODES
from tests.lowprec.sums_cases import arrays, assert_backends_agree, strided

Array = npt.NDArray[Any]
FORMATS = ["float16", "bfloat16", "float32", "float8_e4m3fn", "tfloat32"]


def same(got: Any, want: Any) -> None:
    lp.testing.assert_same_bits(np.asarray(got), np.asarray(want))


def terms(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) * 2.0 ** rng.integers(-6, 3, shape)).astype(np.float32)


def by_steps(x: Array, fmt: str, mode: str) -> list[Any]:
    """The partial sums, by lowprec.add."""
    total, steps = np.float32(0), []
    for value in x:
        total = lp.add(total, value, fmt, mode)
        steps.append(total)
    return steps


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "stochastic"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_orders_are_what_their_definition_says(fmt: str, mode: str, host_backend: str) -> None:
    x = terms(23)
    steps = by_steps(x, fmt, mode)
    same(lp.sum(x, fmt, mode), steps[-1])
    same(lp.cumulative_sum(x, fmt, mode), np.array(steps))
    runs = [by_steps(x[i : i + 5], fmt, mode)[-1] for i in range(0, 23, 5)]
    same(lp.sum(x, fmt, mode, order="blocked", block=5), by_steps(np.array(runs), fmt, mode)[-1])
    level = list(lp.multiply(x, 1.0, fmt, mode))
    while len(level) > 1:
        pairs = [lp.add(*level[i : i + 2], fmt, mode) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    same(lp.sum(x, fmt, mode, order="pairwise"), level[0])


@pytest.mark.parametrize("fmt", FORMATS)
def test_kahan_is_kahans(fmt: str, host_backend: str) -> None:
    x = terms(40, seed=1)
    total = correction = np.float32(0)
    for value in x:
        term = lp.subtract(value, correction, fmt)
        new = lp.add(total, term, fmt)
        correction = lp.subtract(lp.subtract(new, total, fmt), term, fmt)
        total = new
    same(lp.kahan_sum(x, fmt), total)
    same(lp.sum(x, fmt, order="kahan"), total)


@pytest.mark.parametrize("fmt", ["float16", "float32"])
def test_dot_norm_and_mean(fmt: str, host_backend: str) -> None:
    x, y = terms(9), terms(9, seed=2)
    total: Any = 0.0
    for a, b in zip(x, y, strict=True):
        total = lp.fma(a, b, total, fmt)
    same(lp.dot(x, y, fmt), total)
    same(lp.norm(x, fmt), lp.sqrt(lp.dot(x, x, fmt), fmt))
    same(lp.mean(x, fmt), lp.divide(lp.sum(x, fmt), 9, fmt))
    products = lp.multiply(x, y, fmt)
    same(lp.dot(x, y, fmt, order="pairwise"), lp.sum(products, fmt, order="pairwise"))


CALLS: dict[str, Callable[..., Any]] = {
    "sum": lp.sum,
    "blocked": lambda x, *a, **k: lp.sum(x, *a, order="blocked", block=3, **k),
    "pairwise": lambda x, *a, **k: lp.sum(x, *a, order="pairwise", **k),
    "kahan": lp.kahan_sum,
    "mean": lp.mean,
    "norm": lp.norm,
    "cumulative_sum": lp.cumulative_sum,
    "dot": lambda x, *a, **k: lp.dot(x, x[::-1], *a, **k),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axis", [0, 1])
def test_backends_agree(name: str, mode: str, axis: int) -> None:
    x = terms(7, 4)
    x[0, 1], x[3, 2] = np.inf, -0.0
    for fmt, bits in [("float16", 7), ("float32", 28), ("f143", 20), ("float64", 16)]:
        if fmt == "float64" and mode != "nearest_even":
            continue
        options: dict[str, Any] = {"axis": axis, "key": 11, "random_bits": bits} if fmt != "float64" else {"axis": axis}
        got = CALLS[name](x, fmt, mode, **options)
        with lp.testing.backend("reference"):
            same(got, CALLS[name](x, fmt, mode, **options))


@settings(max_examples=40, deadline=None)
@given(
    x=st.lists(st.floats(width=16), min_size=0, max_size=12),
    fmt=st.sampled_from(FORMATS),
    order=st.sampled_from(["sequential", "pairwise", "blocked", "kahan"]),
    mode=st.sampled_from(MODES),
)
def test_backends_agree_on_anything(x: list[float], fmt: str, order: str, mode: str) -> None:
    values = np.array(x, np.float16)
    got = lp.sum(values, fmt, mode, order=order, block=3, key=1)
    with lp.testing.backend("reference"):
        same(got, lp.sum(values, fmt, mode, order=order, block=3, key=1))


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    shape=st.sampled_from([(1, 150), (3, 70), (70, 3), (40, 9), (2, 7, 40), (3, 66, 2), (34, 9, 1)]),
    mode=st.sampled_from(MODES),
    fmt=st.sampled_from([*FORMATS, "bfloat16", "float8_e5m2fnuz"]),
    name=st.sampled_from(["sum", "blocked", "pairwise", "kahan", "dot", "cumulative_sum"]),
    bits=st.sampled_from([3, 16, 25]),
    data=st.data(),
)
def test_backends_agree_beyond_a_window_of_terms_and_lanes(
    shape: tuple[int, ...], mode: str, fmt: str, name: str, bits: int, data: st.DataObject
) -> None:
    x = data.draw(arrays(shape).flatmap(strided))
    axis, key = data.draw(st.sampled_from([None, 0, 1])), data.draw(st.integers(0, 2**64 - 1))
    policy: dict[str, Any] = data.draw(st.sampled_from([{}, {"overflow": "saturate"}, {"flush": True}]))
    if name == "dot":
        axis = 1 if axis is None else axis
    options: dict[str, Any] = dict(axis=axis, key=key, random_bits=bits, **policy)
    assert_backends_agree(CALLS[name], x, fmt, mode, **options)


@pytest.mark.parametrize("fmt", ["float16", "float32", "float8_e4m3fn"])
def test_axes_strides_and_out(fmt: str, host_backend: str) -> None:
    x = terms(4, 3, 5, seed=6).transpose(2, 0, 1)[::-1]
    for axis in ((0, 2), (1,), (), None, (0, 1, 2)):
        for order in ("sequential", "pairwise", "kahan", "blocked"):
            options: dict[str, Any] = dict(axis=axis, order=order, block=4)
            want = lp.sum(x.copy(), fmt, **options)
            same(lp.sum(x, fmt, **options), want)
            out = np.empty_like(np.asarray(want))
            assert lp.sum(x, fmt, out=out, **options) is out
            same(out, want)
    kept = x.transpose(1, 0, 2).reshape(4, 15)
    same(lp.mean(x, fmt, axis=(0, 2)), lp.mean(kept, fmt, axis=1))
    same(lp.norm(x, fmt, axis=(0, -1)), lp.norm(kept, fmt, axis=1))
    same(lp.dot(x, x, fmt, axis=(0, 2)), lp.dot(kept, kept, fmt, axis=1))
    with pytest.raises(TypeError, match="out must be an array of"):
        lp.sum(x, fmt, out=np.empty(3, np.float64))
    with pytest.raises(ValueError, match="out has shape"):
        lp.sum(x, fmt, out=np.empty(3, lp.as_format(fmt).dtype))


def test_directed_sums_are_bounds() -> None:
    x = terms(1000, seed=4)
    true = sum(map(Fraction, x.tolist()))
    for order in ("sequential", "pairwise", "blocked"):
        assert Fraction(float(lp.sum(x, "float16", "down", order=order))) < true
        assert Fraction(float(lp.sum(x, "float16", "up", order=order))) > true
    assert float(lp.dot(x, x, "bfloat16", "up")) > float(np.dot(x.astype(float), x))


def test_what_orders_are_for() -> None:
    """Ones in float16 stagnate at 2048 in sequence; pairs and Kahan do not; stochastic rounding is right on average."""
    ones = np.ones(8192, np.float16)
    assert lp.sum(ones, "float16") == 2048
    assert lp.sum(ones, "float16", order="pairwise") == 8192
    assert lp.sum(ones, "float16", order="kahan") == 8192
    assert lp.sum(ones, "float16", order="blocked", block=64) == 8192
    sums = lp.sum(np.ones((256, 8192), np.float16), "float16", "stochastic", axis=1, key=5).astype(float)
    # The walk's variance is at most the sum of quantum^2 / 4 of its steps: 6144 steps of quanta up to 4.
    assert abs(sums.mean() - 8192) < 5 * math.sqrt(6144 * 16 / 4 / 256)


def test_shapes_and_edges(host_backend: str) -> None:
    x = terms(2, 3, 4)
    assert lp.sum(x, "float16").shape == ()
    assert lp.sum(x, "float16", axis=-1, keepdims=True).shape == (2, 3, 1)
    assert lp.sum(x, "float16", axis=None, keepdims=True).shape == (1, 1, 1)
    assert lp.norm(x, "float16", keepdims=True).shape == (1, 1, 1)
    assert lp.cumulative_sum(x, "float16", axis=1).shape == (2, 3, 4)
    assert lp.cumulative_sum(x).shape == (24,)
    assert lp.dot(x, x[0], axis=1).shape == (2, 4)
    assert lp.sum(x[:0], "bfloat16").dtype == ml_dtypes.bfloat16
    same(lp.sum(np.float32([]), "float16"), np.float16(0))
    same(lp.sum(x[:, :0], axis=1), np.zeros((2, 4), np.float32))
    assert np.isnan(lp.mean(np.float32([]), "float16"))
    assert lp.cumulative_sum(np.float32([])).shape == (0,)
    for order in ("sequential", "blocked", "pairwise", "kahan"):
        same(
            lp.sum(x.T[::-1], "float16", axis=0, order=order), lp.sum(x.T[::-1].copy(), "float16", axis=0, order=order)
        )


def test_threads_and_isa_do_not_matter() -> None:
    x = terms(64, 700)
    want = [lp.sum(x, "float16", "stochastic", axis=axis, key=2) for axis in (0, 1)]
    for isa in lp.testing.isa_names():
        for threads in (1, 2):
            with lp.testing.isa(isa), lp.num_threads(threads):
                same(lp.sum(x, "float16", "stochastic", axis=0, key=2), want[0])
                same(lp.sum(x, "float16", "stochastic", axis=1, key=2), want[1])


def test_refusals() -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(TypeError, match="float64"):
        lp.sum(np.ones(3))
    with pytest.raises(ValueError, match="unknown order 'tree'"):
        lp.sum(x, order="tree")
    with pytest.raises(ValueError, match="block must be"):
        lp.sum(x, block=0)
    with pytest.raises(ValueError, match="needs key="):
        lp.sum(x, "float16", "stochastic")
    with pytest.raises(ValueError, match="cannot hold sums"):
        lp.sum(x, "float8_e8m0fnu")
    with pytest.raises(ValueError, match="in float64 are IEEE's"):
        lp.sum(x, "float64", "up")
    with pytest.raises(ValueError, match="at most 28"):
        lp.sum(x, "float32", "stochastic", key=1, random_bits=29)
    with pytest.raises(ValueError, match="sums in e6m24 take at most 27 random bits, not 28"):
        lp.sum(x, lp.FloatFormat("e6m24", 6, 24), "stochastic", key=1, random_bits=28)
    with pytest.raises(ValueError, match="axis 1 is out of bounds"):
        lp.sum(x, axis=1)
    with pytest.raises(ValueError, match="products are summed"):
        lp.dot(x, x, order="kahan")
    with pytest.raises(TypeError, match="unknown keywords"):
        lp.sum(x, group=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="no NaN"):
        lp.sum(np.float32([np.nan]), "float4_e2m1fn")


@pytest.mark.filterwarnings("ignore:.*the reference computes it")
@pytest.mark.parametrize("order", ["sequential", "pairwise", "blocked", "kahan"])
def test_formats_beyond_float32_sum_in_every_order(order: str, host_backend: str) -> None:
    for fmt in (lp.FloatFormat("e9m9", 9, 9), lp.FloatFormat("e11m5b1062", 11, 5, 1062)):
        got = lp.sum(np.float32([1.0, 0.5, 2.0, 3.0]), fmt, order=order, block=2)
        assert got.dtype == np.float64
        assert got == 6.5


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 70), 1), ((70, 5), 0), ((66, 20), 1), ((3, 5, 70), 1), ((70, 9, 3), 1), ((9, 2, 5), 1), ((200,), 0)],
)
@pytest.mark.parametrize("bits", [5, 16, 20])
def test_bits_drawn_in_the_kernel_are_those_of_the_index(shape: tuple[int, ...], axis: int, bits: int) -> None:
    x = terms(*shape, seed=3)
    options: dict[str, Any] = {"axis": axis, "key": 11, "random_bits": bits, "offset": 6 * x.size}
    for order in ("sequential", "blocked", "pairwise", "kahan"):
        if order == "kahan" and bits == 16 and x.size > 700:
            continue  # what the reference takes seconds for
        assert_backends_agree(lp.sum, x, "float16", "stochastic", order=order, block=7, **options)
    total, want = np.float32(0), []
    row = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])[0]
    step = int(np.prod(shape[axis + 1 :]))
    for k, value in enumerate(row):
        total = lp.add(total, value, "float16", "stochastic", key=11, random_bits=bits, offset=6 * x.size + k * step)
        want.append(total)
    got = lp.cumulative_sum(x, "float16", "stochastic", **options)
    same(np.moveaxis(got, axis, -1).reshape(-1, shape[axis])[0], np.array(want))


def halves(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float16]:
    """float16 terms whose float32 sums are inexact, with subnormal sums, or with sums next to the largest one."""
    x = rng.normal(size=shape)
    if kind == "lost":  # far smaller than the first, so that a sum needs more than a float32
        x[0] = 2.0 ** rng.integers(-1, 12, shape[1])
        x[1:] *= 2.0 ** rng.integers(-24, -8, (shape[0] - 1, shape[1]))
    elif kind == "subnormal":
        x *= 2e-5
    else:
        x = np.where(np.arange(shape[0])[:, None] % 2, 1, -1) * np.abs(x * 30)
        x[0] = 65472
    return x.astype(np.float16)


@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("kind", ["lost", "subnormal", "largest"])
def test_float16_sums_of_float16_numbers(kind: str, mode: Any) -> None:
    x = halves(kind, np.random.default_rng(0), (30, 40))
    for bits in (5, 16, 20) if mode == "stochastic" else (16,):
        options: dict[str, Any] = {"axis": 0, "key": 3, "random_bits": bits}
        for order in ("sequential", "kahan", "pairwise"):
            assert_backends_agree(lp.sum, x, "float16", mode, order=order, overflow="saturate", **options)
        assert_backends_agree(lp.cumulative_sum, x, "float16", mode, **options)
    assert_backends_agree(lp.dot, x, x[::-1], "float16", mode, axis=0, key=3)


@pytest.mark.parametrize("bits", [16, 28, 32])
def test_what_a_float32_sum_loses_counts(bits: int) -> None:
    """It decides one in some ten thousand of these roundings; half of them lie just below a power of two."""
    rng = np.random.default_rng(1)
    half = 1 << 20
    size = 2.0 ** rng.integers(1, 10, 2 * half) * np.repeat([1, 1.25], half)
    small = size * np.repeat([2.0**-26, 2.0**-12], half) * rng.uniform(-2, 2, 2 * half)
    x = (np.array([size, small]) * rng.choice([-1, 1], 2 * half)).astype(np.float16)
    assert np.mean(x.astype(np.float64).sum(axis=0) != x.astype(np.float32).sum(axis=0)) > 0.5
    options: dict[str, Any] = {"key": 3, "random_bits": bits}
    want = lp.add(x[0], x[1], "float16", "stochastic", offset=2 * half, **options)  # steps have their terms' indices
    for name in lp.testing.isa_names():
        with lp.testing.isa(name):
            same(lp.sum(x, "float16", "stochastic", axis=0, **options), want)


@pytest.mark.parametrize("shape", [(6, 40), (6, 23, 3), (6, 9, 17)])
def test_a_slice_summed_alone_with_its_offset_is_that_of_the_whole(shape: tuple[int, ...], host_backend: str) -> None:
    x = terms(*shape, seed=4)
    options: dict[str, Any] = {"fmt": "float8_e4m3", "rounding": "stochastic", "axis": 1, "key": 5}
    functions: list[Callable[..., Any]] = [lp.cumulative_sum, lp.norm, lambda a, **o: lp.dot(a, a, **o)]
    for order in ("sequential", "blocked", "pairwise", "kahan"):
        functions += [lambda a, o=order, f=f, **k: f(a, order=o, block=8, **k) for f in (lp.sum, lp.mean)]
    for function in functions:
        whole, part = function(x, **options), function(x[2:5], offset=2 * x[0].size, **options)
        same(part, whole[2:5])
        assert not np.array_equal(function(x[2:5], **options), part)


def test_offsets_that_no_result_has_are_refused() -> None:
    x = terms(4, 10)
    options: dict[str, Any] = {"rounding": "stochastic", "axis": 1, "key": 5}
    for function in (lp.mean, lambda a, *o, **k: lp.sum(a, *o, order="blocked", block=3, **k)):
        with pytest.raises(ValueError, match=r"offset must be a multiple of 10, .* 15 is none"):
            function(x, "float16", offset=15, **options)
    lp.sum(x, "float16", offset=15, **options)  # every element has an index of its own
    with pytest.raises(ValueError, match=r"offset \+ size must be at most 2\^64"):
        lp.sum(x, "float16", offset=2**64 - 39, **options)
    with pytest.raises(ValueError, match=r"at most 2\^62 in Kahan's order"):
        lp.sum(x, "float16", order="kahan", offset=2**62 - 39, **options)


@pytest.mark.parametrize("fmt", ["float16", "float8_e4m3fn", "float8_e5m2", "float6_e3m2fn", "f143"])
@pytest.mark.parametrize("overflow", [None, "saturate"])
def test_sums_to_nearest_agree_at_the_ends_of_both_ranges(fmt: str, overflow: str | None) -> None:
    rng = np.random.default_rng(8)
    last, half = lp.finfo(fmt).max, 2.0 ** (1 - lp.as_format(fmt).precision)
    corners = [
        0.0,
        -0.0,
        1.0,
        half,
        half / 2,
        half * 0.75,
        last,
        last / 2,
        last * (1 + half / 4),
        3.4e38,
        1e-45,
        2.0**-126,
    ]
    values = np.float32([sign * value * scale for value in corners for sign in (1, -1) for scale in (1, 1 + 2**-20)])
    x = rng.choice(values[np.isfinite(values)], (70, 80))
    for order in ("sequential", "pairwise", "kahan"):
        assert_backends_agree(lp.sum, x, fmt, axis=0, order=order, overflow=overflow)
    if lp.as_format(fmt).nan_code is not None:
        x[::9, ::7], x[3::20, 1::5] = np.inf, np.nan
        assert_backends_agree(lp.cumulative_sum, x, fmt, axis=1, overflow=overflow)


@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero", "stochastic"])
def test_names_of_matmul_say_the_partial_sums_and_the_result(rounding: Any) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 6, 200)).astype(np.float32)
    key = lp.Key(5)
    for call, operands in ((lp.sum, (x,)), (lp.dot, (x, y))):
        plain = call(*operands, 1, "float16", rounding, key=key)
        same(call(*operands, 1, accumulate="float16", rounding=rounding, key=key), plain)
        narrow = call(*operands, 1, accumulate="float16", out_format="e5m2", rounding=rounding, key=key)
        same(narrow, lp.astype(plain, "e5m2", rounding, key=key.fold_in(1 << 32)))
        # A part of the rows, with its offset, has the bits of the whole.
        part = call(*(each[2:] for each in operands), 1, accumulate="float16", out_format="e5m2", rounding=rounding,
                    key=key, offset=400)  # fmt: skip
        same(part, narrow[2:])
        out = np.empty(6, narrow.dtype)
        call(*operands, 1, accumulate="float16", out_format="e5m2", rounding=rounding, key=key, out=out)
        same(out, narrow)
    same(lp.sum(x, 1, out_format="e4m6"), lp.round(lp.sum(x, 1), "e4m6"))
    with pytest.raises(TypeError, match="both the format of partial sums"):
        lp.sum(x, fmt="float16", accumulate="bfloat16")
