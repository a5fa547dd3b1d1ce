"""Convolutions with few channels: the loops that read windows where an image lies give the bits of copied windows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from lowprec.backends.cpu import convolution
from tests.lowprec.convolution.test_narrow_groups import SUMS, Shape, numbers, operands
from tests.lowprec.sums_cases import ACCUMULATORS, RESULTS, Array, arrays, assert_backends_agree, rounding_options

# Outputs fill lanes, or windows do.
SHAPES: list[Shape] = [
    ((2, 9, 29), (3, 3), 3, 40, 1, dict(padding=1)),
    ((1, 12, 21), (3, 5), 16, 16, 1, dict(padding=((0, 3), (2, 1)))),
    ((2, 7, 19), (2, 4), 4, 9, 3, dict(stride=(1, 2), padding=2)),
    ((1, 13, 40), (3, 2), 5, 33, 1, dict(stride=(3, 1), dilation=(2, 3), padding=(1, 4), group=3)),
    ((2, 6, 37), (3, 3), 8, 8, 2, dict(padding=1, group=5)),
    ((1, 9, 16), (5, 5), 1, 6, 1, dict(padding=2)),
    ((2, 8, 70), (3, 1), 4, 4, 3, dict(stride=(2, 1), padding=(0, 3), group=None)),
    ((1, 30, 13), (1, 1), 17, 3, 1, dict(group=4)),
    ((1, 6, 14), (2, 3), 20, 12, 1, dict(padding=1)),
    ((1, 6, 14), (2, 2), 20, 12, 1, dict(padding=1, group=19)),
]


def windows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "is_dense", lambda *_: False)
    monkeypatch.setattr(convolution, "is_narrow", lambda *_: False)


def calls(index: int, name: str, dtype: Any, layout: str) -> list[Any]:
    """The convolution and its input's gradient, to be called."""
    image, _, _, outputs, *_ = SHAPES[index]
    x, w, g, options = operands(SHAPES[index], SUMS[name], dtype, layout)
    return [
        lambda: lp.conv2d(x, w, **options, offset=(2**32 - 9, 32 if outputs > 8 else 8)),
        lambda: lp.conv2d_input_gradient(g, w, image[1:], **options),
    ]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_windows_need_no_copies(
    index: int, name: str, dtype: Any, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = calls(index, name, dtype, layout)
    with monkeypatch.context() as patch:
        windows_are_copied(patch)
        expected = [call() for call in made]
    for isa in lp.testing.isa_names():
        with lp.testing.isa(isa), lp.num_threads(3):
            for call, want in zip(made, expected, strict=True):
                lp.testing.assert_same_bits(call(), want)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Array, Array, dict[str, Any]]:
    def pair(*values: int) -> tuple[int, int]:
        return draw(st.sampled_from(values)), draw(st.sampled_from(values))

    kernel, dilation, down = pair(1, 2, 3), pair(1, 1, 2), draw(st.integers(1, 2))
    padding = draw(st.sampled_from([0, 1, (0, 2), ((1, 0), (2, 1)), "same"]))
    fits = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    groups, channels, outputs = draw(st.sampled_from([(1, 1, 1), (1, 3, 2), (2, 4, 4), (1, 2, 7), (1, 3, 10)]))
    image = (draw(st.integers(0, 2)), fits[0] + draw(st.integers(0, 2)), fits[1] + draw(st.integers(9, 19)))
    x = draw(arrays((*image, channels * groups)))
    w = draw(arrays((*kernel, channels, outputs * groups)))
    return x, w, dict(stride=(down, 1), padding=padding, dilation=dilation, groups=groups)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(problems(), rounding_options(), st.data())
def test_windows_have_the_bits_of_the_reference(problem: Any, rounding: dict[str, Any], data: st.DataObject) -> None:
    x, w, options = problem
    options |= rounding
    options["accumulate"] = data.draw(st.sampled_from(ACCUMULATORS))
    options["group"] = data.draw(st.sampled_from([1, 2, 16, None]))
    options["out_format"] = data.draw(st.sampled_from([*RESULTS, options["accumulate"]]))
    assert_backends_agree(lp.conv2d, x, w, **options, offset=(data.draw(st.integers(0, 99)), 16))


def test_threads_cut_lines_anywhere() -> None:
    x, w = numbers(3, 31, 60, 12, seed=0, dtype=np.float16), numbers(5, 5, 4, 12, seed=1, dtype=np.float16)
    options: dict[str, Any] = dict(groups=3, padding=2, accumulate="float16", rounding="stochastic", key=1)
    results = []
    for threads in (1, 2, 3, 7):
        with lp.num_threads(threads):
            results.append(lp.conv2d(x, w, **options))
    for other in results[1:]:
        lp.testing.assert_same_bits(other, results[0])


def test_results_go_where_they_are_asked_to() -> None:
    for outputs in (6, 20):
        x, w = numbers(2, 6, 17, 3, seed=0, dtype=np.float16), numbers(3, 3, 3, outputs, seed=1, dtype=np.float16)
        want = lp.conv2d(x, w, accumulate="float16")
        whole = np.full((2, 8, 30, 2 * outputs), 7, np.float16)
        out = whole[:, 8:0:-2, ::2, ::-2]
        assert lp.conv2d(x, w, accumulate="float16", out=out) is out
        lp.testing.assert_same_bits(np.ascontiguousarray(out), want)
        for untouched in (whole[:, ::2], whole[:, :, 1::2], whole[..., ::2]):
            assert (untouched == 7).all()


@pytest.mark.parametrize("outputs", [4, 24])
@pytest.mark.parametrize("overflow", ["infinity", "saturate"])
@pytest.mark.parametrize("sums", [dict(rounding="stochastic", key=1), dict(group=1)])
def test_sums_that_grow_beyond_the_format_overflow_where_they_do(
    sums: dict[str, Any], overflow: Any, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = 200 * np.abs(numbers(1, 12, 33, 5, seed=0, dtype=np.float16))
    w = 100 * numbers(3, 3, 5, outputs, seed=1, dtype=np.float16)
    options: dict[str, Any] = dict(padding=1, accumulate="float16", overflow=overflow, **sums)
    got = lp.conv2d(x, w, **options)
    assert (np.abs(got) >= 65504).any()
    windows_are_copied(monkeypatch)
    lp.testing.assert_same_bits(got, lp.conv2d(x, w, **options))


@pytest.mark.parametrize("outputs", [4, 24])
def test_channels_that_fill_a_group_leave_negative_zeros(outputs: int) -> None:
    x = np.full((1, 2, 11, 5), -(2.0**-13), np.float16)
    w = np.full((1, 1, 5, outputs), 2.0**-15, np.float16)
    x[..., 4], w[:, :, 4] = 0, -1
    y = lp.conv2d(x, w, accumulate="float16", group=4)
    assert (y == 0).all()
    assert np.signbit(y).all()
