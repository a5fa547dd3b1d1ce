"""Convolutions of many small groups: the loops that take lanes from neighbouring groups give the contract's bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from lowprec.backends.cpu import convolution, narrow_convolution
from tests.lowprec.sums_cases import ACCUMULATORS, RESULTS, Array, arrays, assert_backends_agree, rounding_options

SUMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "nearest": dict(accumulate="float16"),
    "checked": dict(accumulate="float16", overflow="saturate"),
    "bfloat16": dict(accumulate="bfloat16"),
    "upward": dict(accumulate="float16", rounding="up"),
    "fp8": dict(accumulate="float8_e4m3fn", out_format="float16"),
    "stochastic": dict(accumulate="float16", rounding="stochastic", key=2**63 + 5),
    "few bits": dict(accumulate="float16", rounding="stochastic", key=3, random_bits=5),
    "many bits": dict(accumulate="float16", rounding="stochastic", key=3, random_bits=31),
    "stochastic bfloat16": dict(accumulate="bfloat16", rounding="stochastic", key=4, out_format="float32"),
    "stochastic fp8": dict(accumulate="float8_e5m2", rounding="stochastic", key=5),
    "stochastic tfloat32": dict(accumulate="tfloat32", rounding="stochastic", key=6, out_format="float32"),
}
Shape = tuple[tuple[int, int, int], tuple[int, int], int, int, int, dict[str, Any]]
"""Image, kernel, channels and outputs of a group, groups, where."""

SHAPES: list[Shape] = [
    ((2, 9, 11), (3, 3), 1, 1, 70, dict(padding=1)),
    ((1, 5, 23), (5, 5), 1, 1, 32, dict(padding=((0, 3), (2, 1)))),
    ((2, 7, 9), (2, 4), 1, 3, 13, dict(stride=(1, 2), padding=2)),
    ((1, 13, 8), (3, 2), 4, 4, 5, dict(stride=(3, 1), dilation=(2, 3), padding=(1, 4), group=3)),
    ((3, 4, 4), (1, 1), 2, 8, 9, dict(stride=2)),
    ((1, 40, 3), (4, 3), 3, 1, 33, dict(padding="same", group=None)),
    ((1, 4, 7), (2, 2), 16, 8, 3, dict(padding=1)),
    ((1, 5, 6), (2, 2), 8, 4, 5, dict(stride=2)),
    ((2, 4, 5), (2, 1), 4, 2, 7, dict()),
]


@pytest.fixture(autouse=True)
def windows_of_a_group_have_no_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other loops of few channels, which would take some of these shapes, have tests of their own."""
    monkeypatch.setattr(convolution, "is_dense", lambda *_: False)


def numbers(*shape: int, seed: int, dtype: Any) -> Array:
    x = np.random.default_rng(seed).normal(size=shape)
    x.flat[:: 7 + seed] = 0
    return np.asarray(x.astype(np.float32).astype(dtype))


class Operands(NamedTuple):
    """Of a convolution and its gradients, and how they are computed."""

    x: Array
    w: Array
    g: Array
    options: dict[str, Any]


def operands(shape: Shape, sums: dict[str, Any], dtype: Any, layout: str) -> Operands:
    """Numbers for one of the shapes."""
    image, kernel, channels, outputs, groups, where = shape
    x = numbers(*image, channels * groups, seed=0, dtype=dtype)
    w = numbers(*kernel, channels, outputs * groups, seed=1, dtype=dtype)
    plain: dict[str, Any] = {key: value for key, value in where.items() if key != "group"}
    g = numbers(*lp.conv2d(x, w, groups=groups, **plain).shape, seed=2, dtype=dtype)
    if layout == "NCHW":
        x, g = (np.ascontiguousarray(a.transpose(0, 3, 1, 2)) for a in (x, g))
        w = np.ascontiguousarray(w.transpose(3, 2, 0, 1))
    return Operands(x, w, g, where | sums | dict(groups=groups, layout=layout))


def calls(index: int, name: str, dtype: Any, layout: str) -> list[Any]:
    """The convolution and its gradients, to be called."""
    image, kernel, *_ = SHAPES[index]
    x, w, g, options = operands(SHAPES[index], SUMS[name], dtype, layout)
    return [
        lambda: lp.conv2d(x, w, **options, offset=(2**32 - 9, 3)),
        lambda: lp.conv2d_input_gradient(g, w, image[1:], **options),
        lambda: lp.conv2d_weight_gradient(x, g, kernel, **options),
    ]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_small_groups_have_the_bits_of_products(
    index: int, name: str, dtype: Any, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = calls(index, name, dtype, layout)
    with monkeypatch.context() as patch:
        patch.setattr(narrow_convolution, "MOST_OUTPUTS", 0)
        expected = [call() for call in made]
    for isa in lp.testing.isa_names():
        with lp.testing.isa(isa), lp.num_threads(3):
            for call, want in zip(made, expected, strict=True):
                lp.testing.assert_same_bits(call(), want)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Array, Array, dict[str, Any]]:
    def pair(*values: int) -> tuple[int, int]:
        return draw(st.sampled_from(values)), draw(st.sampled_from(values))

    kernel, stride, dilation = pair(1, 2, 3), pair(1, 1, 2, 3), pair(1, 1, 2)
    padding = draw(st.sampled_from([0, 1, (0, 2), ((1, 0), (2, 1)), "same"]))
    fits = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    groups, channels, outputs = draw(st.sampled_from([(4, 1, 1), (5, 1, 2), (17, 1, 1), (6, 3, 1), (2, 5, 3)]))
    image = (draw(st.integers(0, 2)), fits[0] + draw(st.integers(0, 2)), fits[1] + draw(st.integers(0, 4)))
    x = draw(arrays((*image, channels * groups)))
    w = draw(arrays((*kernel, channels, outputs * groups)))
    return x, w, dict(stride=stride, padding=padding, dilation=dilation, groups=groups)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(problems(), rounding_options(), st.data())
def test_small_groups_have_the_bits_of_the_reference(
    problem: Any, rounding: dict[str, Any], data: st.DataObject
) -> None:
    x, w, options = problem
    options |= rounding
    options["accumulate"] = data.draw(st.sampled_from(ACCUMULATORS))
    options["group"] = data.draw(st.sampled_from([1, 2, 16, None]))
    options["out_format"] = data.draw(st.sampled_from([*RESULTS, options["accumulate"]]))
    assert_backends_agree(lp.conv2d, x, w, **options, offset=(data.draw(st.integers(0, 99)), 11))
    g = data.draw(arrays(lp.conv2d(x, w, **{k: options[k] for k in ("stride", "padding", "dilation", "groups")}).shape))
    assert_backends_agree(lp.conv2d_input_gradient, g, w, x.shape[1:3], **options)
    assert_backends_agree(lp.conv2d_weight_gradient, x, g, w.shape[:2], **options)


def test_threads_cut_lines_anywhere() -> None:
    x, w = numbers(3, 31, 60, 48, seed=0, dtype=np.float16), numbers(7, 7, 1, 48, seed=1, dtype=np.float16)
    options: dict[str, Any] = dict(groups=48, padding=3, accumulate="float16", rounding="stochastic", key=1)
    results = []
    for threads in (1, 2, 3, 7):
        with lp.num_threads(threads):
            y = lp.conv2d(x, w, **options)
            results.append((y, lp.conv2d_weight_gradient(x, y, (7, 7), **options)))
    for first, second in results[1:]:
        lp.testing.assert_same_bits(first, results[0][0])
        lp.testing.assert_same_bits(second, results[0][1])


@pytest.mark.parametrize("group", [1, 3, 16, 60, None])
@pytest.mark.parametrize("name", ["float32", "nearest", "stochastic", "many bits"])
def test_groups_go_on_from_one_block_of_positions_to_the_next(
    name: str, group: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = numbers(2, 39, 41, 36, seed=0, dtype=np.float16)
    g = numbers(2, 37, 41, 36, seed=1, dtype=np.float16)
    options = SUMS[name] | dict(groups=36, padding=(0, 2), group=group)
    got = lp.conv2d_weight_gradient(x, g, (3, 5), **options)
    monkeypatch.setattr(narrow_convolution, "MOST_OUTPUTS", 0)
    lp.testing.assert_same_bits(got, lp.conv2d_weight_gradient(x, g, (3, 5), **options))


def test_results_go_where_they_are_asked_to() -> None:
    x, w = numbers(2, 6, 7, 20, seed=0, dtype=np.float16), numbers(3, 3, 1, 20, seed=1, dtype=np.float16)
    want = lp.conv2d(x, w, groups=20, accumulate="float16")
    whole = np.full((2, 8, 10, 40), 7, np.float16)
    out = whole[:, 8:0:-2, ::2, ::-2]
    assert lp.conv2d(x, w, groups=20, accumulate="float16", out=out) is out
    lp.testing.assert_same_bits(np.ascontiguousarray(out), want)
    for untouched in (whole[:, ::2], whole[:, :, 1::2], whole[..., ::2]):
        assert (untouched == 7).all()


def test_a_nan_in_a_format_without_one_is_refused() -> None:
    x, w = np.full((1, 3, 3, 8), np.inf, np.float16), np.zeros((3, 3, 1, 8), np.float16)
    with pytest.raises(ValueError, match="NaN arose"):
        lp.conv2d(x, w, groups=8, out_format="float4_e2m1fn")


def test_zeros_far_away_are_not_written_down() -> None:
    x, w = numbers(1, 2, 3, 8, seed=0, dtype=np.float16), numbers(2, 1, 1, 8, seed=1, dtype=np.float16)
    got = lp.conv2d(x, w, groups=8, dilation=(1 << 16, 1), padding=((1 << 16, 0), (0, 0)))
    lp.testing.assert_same_bits(got[0, :2], np.float32(x[0]) * np.float32(w[1, 0, 0]) + np.float32(0))


@pytest.mark.parametrize("overflow", ["infinity", "saturate"])
def test_sums_that_grow_beyond_the_format_overflow_where_they_do(
    overflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = 200 * np.abs(numbers(1, 12, 13, 40, seed=0, dtype=np.float16))
    w = 100 * numbers(3, 3, 1, 40, seed=1, dtype=np.float16)
    g = 100 * numbers(1, 12, 13, 40, seed=2, dtype=np.float16)
    options: dict[str, Any] = dict(groups=40, padding=1, accumulate="float16", rounding="stochastic", key=1)
    options["overflow"] = overflow
    calls = [
        lambda: lp.conv2d(x, w, **options),
        lambda: lp.conv2d_weight_gradient(x, g, (3, 3), group=1, **options),
    ]
    got = [call() for call in calls]
    assert all((np.abs(result) >= 65504).any() for result in got)
    monkeypatch.setattr(narrow_convolution, "MOST_OUTPUTS", 0)
    for call, result in zip(calls, got, strict=True):
        lp.testing.assert_same_bits(result, call())
