"""What convolutions refuse: one error that says what was given and what is allowed, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
from lowprec.convolution.parts import prepare_correlation

H = np.float16
X, W, G = np.ones((1, 5, 5, 6), H), np.ones((3, 3, 6, 4), H), np.ones((1, 3, 3, 4), H)
CALLS: list[Callable[..., Any]] = [
    lambda **given: lp.conv2d(X, W, **given),
    lambda **given: lp.conv2d_input_gradient(G, W, (5, 5), **given),
    lambda **given: lp.conv2d_weight_gradient(X, G, (3, 3), **given),
]


@pytest.mark.parametrize(
    "change, error, message",
    [
        (dict(layout="HWCN"), ValueError, "unknown layout 'HWCN'; allowed are NHWC, NCHW"),
        (dict(groups=4), ValueError, "groups=4 does not divide the 6 channels of x"),
        (dict(groups=3), ValueError, "groups=3 does not divide the 4 outputs of weight"),
        (dict(groups=2), ValueError, "x has 3 channels in each of 2 groups, weight has 6"),
        (dict(groups=0), ValueError, "groups must be an integer of at least 1, not 0"),
        (dict(stride=0), ValueError, "stride must be at least 1, not 0"),
        (dict(stride=1.5), TypeError, "stride must be an integer or a pair of integers, not 1.5"),
        (dict(dilation=(1, 2, 3)), TypeError, "dilation must be an integer or a pair"),
        (dict(dilation=4), ValueError, "windows of 9 x 9 do not fit into the padded image of 5 x 5"),
        (dict(padding=-1), ValueError, "padding must be at least 0"),
        (dict(padding="full"), ValueError, "unknown padding 'full'; allowed are same, valid"),
        (dict(padding=((1, 1), 1)), TypeError, "padding must be"),
        (
            dict(x=np.ones((5, 5, 6), np.float16)),
            ValueError,
            r"x has the four axes NHWC; given was the shape \(5, 5, 6\)",
        ),
        (dict(weight=np.ones((3, 3, 6), np.float16)), ValueError, "weight has the axes"),
        (dict(weight=np.ones((0, 3, 6, 4), np.float16)), ValueError, "at least one position"),
        (dict(x=np.ones((1, 5, 5, 6))), TypeError, "operands must be float32.*not float64"),
        (dict(rounding="stochastic", accumulate="float16"), ValueError, "stochastic rounding needs key="),
        (dict(adder="dot4", x=np.ones((1, 5, 5, 6), np.float32)), ValueError, "dot4"),
        (dict(group=0), ValueError, "group must be an integer"),
    ],
)
def test_bad_calls_say_what_is_allowed(change: dict[str, Any], error: type[Exception], message: str) -> None:
    given = dict(x=np.ones((1, 5, 5, 6), np.float16), weight=np.ones((3, 3, 6, 4), np.float16)) | change
    with pytest.raises(error, match=message):
        lp.conv2d(given.pop("x"), given.pop("weight"), **given)


def test_gradients_of_another_shape_are_refused() -> None:
    x, w, g = np.ones((1, 5, 5, 2), np.float16), np.ones((3, 3, 2, 4), np.float16), np.ones((1, 3, 2, 4), np.float16)
    with pytest.raises(ValueError, match="result has 1 x 3 x 3 positions of 4 channels, gradient has 1 x 3 x 2 of 4"):
        lp.conv2d_input_gradient(g, w, (5, 5))
    with pytest.raises(ValueError, match="gradient has 1 x 3 x 2 of 4"):
        lp.conv2d_weight_gradient(x, g, (3, 3))
    with pytest.raises(TypeError, match="size must be a pair of integers, not 5"):
        lp.conv2d_input_gradient(g, w, 5)  # type: ignore[arg-type]


def test_parts_refuse_operands_without_a_zero() -> None:
    with pytest.raises(TypeError, match="no zero"):
        prepare_correlation(ml_dtypes.float8_e8m0fnu, np.float16, lp.Accumulation(), lp.Rounding())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "given, error, message",
    [
        (dict(stride=2**62), ValueError, "stride must be less than 2.31, not 4611686018427387904"),
        (dict(stride=(1, "2")), TypeError, r"stride must be an integer or a pair of integers, not \(1, '2'\)"),
        (dict(dilation=2**31), ValueError, "dilation must be less than 2.31, not 2147483648"),
        (
            dict(dilation=10**9),
            ValueError,
            "windows of 2000000001 x 2000000001 do not fit into .* 5 x 5",
        ),
        (dict(padding=10**9), ValueError, "padding=1000000000 makes an image of 2000000005 x 2000000005, more than"),
        (dict(padding=((0, 10**30), (0, 0))), ValueError, "padding must be less than 2.31, not .0, 10000000"),
        (dict(padding=b"ab"), TypeError, "padding must be an integer or a pair of integers, not b'ab'"),
        (dict(groups=2.0), TypeError, "groups must be an integer of at least 1, not 2.0"),
        (dict(groups="2"), TypeError, "groups must be an integer of at least 1, not '2'"),
        (dict(groups=-2), ValueError, "groups must be an integer of at least 1, not -2"),
        (dict(out=[1.0]), TypeError, r"out must be an array of float32, not list"),
        (dict(out=3), TypeError, "out must be an array of float32, not int"),
        (dict(group=[16]), TypeError, r"group must be .*, not \[16\]"),
        (dict(splits=[2]), TypeError, r"splits must be .*, not \[2\]"),
        (dict(stages=2.0), ValueError, "stages must be 1, 2 or 3, or None for the number of parts to decide, not 2.0"),
        (dict(accumulate=["float16"]), TypeError, r"accumulate must be .*, not \['float16'\]"),
        (dict(overflow=["ieee"]), TypeError, r"overflow must be .*, not \['ieee'\]"),
        (dict(key="7"), TypeError, "a key must be an integer in .*, not str"),
        (dict(key=-7), ValueError, "a key must be an integer in .*, not -7"),
        (dict(random_bits="exact"), ValueError, "random_bits must be an integer of 1 to 32 in sums"),
    ],
)
def test_every_pass_says_what_is_wrong(
    call: Callable[..., Any], given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(**given)


@pytest.mark.parametrize("size", [(5.0, 5), b"ab", "55", 5, (5, 5, 5)])
def test_sizes_are_pairs_of_integers(size: Any) -> None:
    with pytest.raises(TypeError, match="size must be a pair of integers, not"):
        lp.conv2d_input_gradient(G, W, size)
    with pytest.raises(TypeError, match="kernel must be a pair of integers, not"):
        lp.conv2d_weight_gradient(X, G, size)


def test_sizes_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match=r"size must be at least 0, not \(-1, 5\)"):
        lp.conv2d_input_gradient(G, W, (-1, 5))
    with pytest.raises(ValueError, match="a kernel has at least one position along each axis, not 0 x 3"):
        lp.conv2d_weight_gradient(X, G, (0, 3))


def test_numbers_alike_are_refused_whatever_came_before() -> None:
    for good, bad in ((1, 1.0), (2, 2.0)):
        lp.conv2d(X, W, splits=good, stages=good)
        with pytest.raises(ValueError, match="splits must be an integer"):
            lp.conv2d(X, W, splits=bad)
        with pytest.raises(ValueError, match="stages must be 1, 2 or 3"):
            lp.conv2d(X, W, stages=bad)


def test_a_stride_beyond_the_image_leaves_one_window() -> None:
    far, one = 2**31 - 1, G[:, :1, :1]
    np.testing.assert_array_equal(lp.conv2d(X, W, stride=far), lp.conv2d(X, W)[:, :1, :1])
    found = lp.conv2d_input_gradient(one, W, (5, 5), stride=far)
    np.testing.assert_array_equal(found[0, :, :, 0], np.pad(np.full((3, 3), 4.0), ((0, 2), (0, 2))))
    np.testing.assert_array_equal(lp.conv2d_weight_gradient(X, one, (3, 3), stride=far), np.ones((3, 3, 6, 4)))


def test_phases_share_no_random_bits() -> None:
    one, how = G[:, :1, :1], dict(accumulate="float16", rounding="stochastic", key=1)
    lp.conv2d_input_gradient(one, W, (5, 5), stride=(1024, 4096), **how)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"at most 2\^24 phases of groups apart; stride=\(5, 67108864\) makes more"):
        lp.conv2d_input_gradient(one, W, (5, 5), stride=(5, 2**26), **how)  # type: ignore[arg-type]
