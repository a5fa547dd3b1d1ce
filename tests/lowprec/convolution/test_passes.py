"""conv2d and its gradients: an oracle of plain loops, backends, float64, random bits, layouts, errors."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from lowprec.backends.cpu import convolution as panels
from lowprec.backends.cpu import narrow_convolution, thin_convolution
from lowprec.convolution.parts import prepare_correlation, prepare_weight_sums
from lowprec.values.windows import BlockPlace, window_view
from tests.lowprec import convolution_oracle as oracle
from tests.lowprec.convolution_oracle import Shape
from tests.lowprec.sum_oracle import BRAIN, HALF, SINGLE, Sum
from tests.lowprec.sums_cases import (
    ACCUMULATORS,
    RESULTS,
    Array,
    arrays,
    assert_backends_agree,
    rounding_options,
    values,
)

SHAPES = [
    (Shape(), (2, 4, 5), (3, 2), 5, 3),
    (Shape(padding=((1, 1), (1, 1))), (1, 4, 3), (3, 3), 6, 17),
    (Shape(stride=(2, 3), padding=((0, 1), (2, 1))), (1, 6, 7), (3, 4), 4, 2),
    (Shape(stride=(2, 2), dilation=(2, 3), padding=((2, 2), (3, 2))), (2, 5, 6), (2, 3), 3, 3),
    (Shape(stride=(3, 2), dilation=(2, 2), padding=((1, 2), (1, 0))), (1, 8, 6), (3, 2), 2, 2),
    (Shape(groups=3, padding=((1, 0), (0, 1))), (2, 3, 4), (2, 2), 5, 2),
    (Shape(stride=(3, 2)), (1, 7, 5), (1, 1), 3, 4),
]
NAMES = {SINGLE: "float32", HALF: "float16", BRAIN: "bfloat16"}
SUMS = {
    "float32": Sum(group=4),
    "to nearest": Sum(HALF, HALF, 4),
    "parts": Sum(HALF, HALF, 2, 3),
    "stochastic": Sum(HALF, HALF, 16, key=7),
    "stochastic parts": Sum(HALF, HALF, 2, 4, key=2**40 + 5),
    "all of a position": Sum(HALF, BRAIN, None, key=3),
    "two stages": Sum(HALF, BRAIN, 1, 17, key=5),
    "three stages": Sum(BRAIN, SINGLE, 3, 4, 3, key=6),
    "many random bits": Sum(HALF, SINGLE, 2, 2, key=8, bits=27),
    "few random bits": Sum(HALF, HALF, 3, key=9, bits=3),
    "dot4": Sum(HALF, HALF, 7, 2, adder="dot4"),
    "pairwise": Sum(HALF, BRAIN, 7, adder="pairwise", key=2),
}


def normal(*shape: int, seed: int = 0, dtype: Any = np.float16) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32).astype(dtype))


def case(index: int) -> tuple[Array, Array, Array, dict[str, Any]]:
    """Images, weight, output gradient and the options of a shape."""
    shape, image, kernel, channels, outputs = SHAPES[index]
    x = normal(*image, channels * shape.groups)
    w = normal(*kernel, channels, outputs * shape.groups, seed=1)
    g = normal(image[0], *shape.count(image[1:], kernel), outputs * shape.groups, seed=2)
    options = dict(stride=shape.stride, padding=shape.padding, dilation=shape.dilation, groups=shape.groups)
    return x, w, g, options


def sum_options(how: Sum) -> dict[str, Any]:
    return dict(
        accumulate=NAMES[how.accumulate],
        out_format=NAMES[how.out],
        **{name: getattr(how, name) for name in ("group", "splits", "stages", "adder", "key")},
        rounding="nearest_even" if how.key is None else "stochastic",
        random_bits=how.bits,
    )


@cache
def by_loops(index: int, name: str) -> list[Array]:
    """What the convolution and its gradients should give."""
    x, w, g, _ = case(index)
    shape, how = SHAPES[index][0], SUMS[name]
    return [
        oracle.forward(x, w, shape, how, (5, 14)),
        oracle.input_gradient(g, w, (x.shape[1], x.shape[2]), shape, how),
        oracle.weight_gradient(x, g, (w.shape[0], w.shape[1]), shape, how),
    ]


PAIRS = [
    pytest.param(name, index, marks=[pytest.mark.slow] * ((place + index) % 2))
    for place, name in enumerate(SUMS)
    for index in range(len(SHAPES))
]
"""Every sum with every shape; half of them, in which each sum and each shape is met, are not slow."""


@pytest.mark.parametrize("name, index", PAIRS)
def test_every_addition_is_the_oracles(name: str, index: int, host_backend: str) -> None:
    x, w, g, options = case(index)
    options |= sum_options(SUMS[name])
    got = [
        lp.conv2d(x, w, **options, offset=(5, 14)),
        lp.conv2d_input_gradient(g, w, x.shape[1:3], **options),
        lp.conv2d_weight_gradient(x, g, w.shape[:2], **options),
    ]
    for found, expected in zip(got, by_loops(index, name), strict=True):
        lp.testing.assert_same_bits(found, expected.astype(found.dtype))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_products_and_sums_are_rounded_at_once(dtype: Any, host_backend: str) -> None:
    x, w, g, options = case(2)
    x, w, g, shape, how = x.astype(dtype), w.astype(dtype), g.astype(dtype), SHAPES[2][0], SUMS["float32"]
    options |= sum_options(how)
    lp.testing.assert_same_bits(lp.conv2d(x, w, **options), np.float32(oracle.forward(x, w, shape, how)))
    got = lp.conv2d_input_gradient(g, w, x.shape[1:3], **options)
    lp.testing.assert_same_bits(got, np.float32(oracle.input_gradient(g, w, x.shape[1:3], shape, how)))
    got = lp.conv2d_weight_gradient(x, g, w.shape[:2], **options)
    lp.testing.assert_same_bits(got, np.float32(oracle.weight_gradient(x, g, w.shape[:2], shape, how)))


def numpy_conv2d(x: Any, w: Any, shape: Shape) -> Any:
    """In float64, one einsum per kernel position."""
    padded = np.pad(np.float64(x), ((0, 0), *shape.padding, (0, 0)))
    high, wide = shape.count(x.shape[1:3], w.shape)
    each, outputs = w.shape[2], w.shape[3] // shape.groups
    result = np.zeros((x.shape[0], high, wide, w.shape[3]))
    for ky, kx in np.ndindex(*w.shape[:2]):
        y, z = ky * shape.dilation[0], kx * shape.dilation[1]
        window = padded[:, y : y + high * shape.stride[0] : shape.stride[0], z : z + wide * shape.stride[1] :]
        window = window[:, :high, :: shape.stride[1]][:, :, :wide]
        for q in range(shape.groups):
            factor = np.float64(w[ky, kx, :, q * outputs : (q + 1) * outputs])
            result[..., q * outputs : (q + 1) * outputs] += window[..., q * each : (q + 1) * each] @ factor
    return result


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_gradients_are_those_of_an_independent_convolution(index: int) -> None:
    # The convolution is linear in each operand, so a difference quotient of the loss is exact whatever the step.
    x, w, g, options = case(index)
    shape = SHAPES[index][0]

    def loss(images: Any, weight: Any) -> float:
        return float((numpy_conv2d(images, weight, shape) * g).sum())

    got = lp.conv2d(x, w, **options)
    np.testing.assert_allclose(got, numpy_conv2d(x, w, shape), atol=2e-5)
    by_input = lp.conv2d_input_gradient(g, w, x.shape[1:3], **options)
    by_weight = lp.conv2d_weight_gradient(x, g, w.shape[:2], **options)
    rng = np.random.default_rng(3)
    for _ in range(12):
        here = tuple(rng.integers(n) for n in x.shape)
        step = np.zeros(x.shape)
        step[here] = 1
        np.testing.assert_allclose(by_input[here], loss(step, w), atol=2e-5)
        here = tuple(rng.integers(n) for n in w.shape)
        step = np.zeros(w.shape)
        step[here] = 1
        np.testing.assert_allclose(by_weight[here], loss(x, step), atol=2e-5)
    np.testing.assert_allclose((by_input * np.float64(x)).sum(), loss(x, w), rtol=1e-4)
    np.testing.assert_allclose((by_weight * np.float64(w)).sum(), loss(x, w), rtol=1e-4)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Array, Array, dict[str, Any]]:
    def pair(*values: int) -> tuple[int, int]:
        return draw(st.sampled_from(values)), draw(st.sampled_from(values))

    kernel, stride, dilation = pair(1, 2, 3), pair(1, 1, 2, 3), pair(1, 1, 2)
    padding = draw(st.sampled_from([0, 1, (0, 2), ((1, 0), (2, 1)), "same", "valid"]))
    fits = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, outputs = draw(st.sampled_from([0, 1, 2, 3, 5, 17])), draw(st.sampled_from([0, 1, 2, 3]))
    image = (draw(st.integers(0, 2)), fits[0] + draw(st.integers(0, 3)), fits[1] + draw(st.integers(0, 2)))
    x = draw(arrays((*image, channels * groups)))
    w = draw(arrays((*kernel, channels, outputs * groups)))
    return x, w, dict(stride=stride, padding=padding, dilation=dilation, groups=groups)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(problems(), rounding_options(), st.data())
def test_every_backend_gives_the_same_bits(problem: Any, rounding: dict[str, Any], data: st.DataObject) -> None:
    x, w, options = problem
    options |= rounding
    options |= dict(
        accumulate=data.draw(st.sampled_from(ACCUMULATORS)),
        group=data.draw(st.sampled_from([1, 2, 4, 7, 16, 16, None])),
        splits=data.draw(st.sampled_from([1, 1, 2, 5, 17])),
        stages=data.draw(st.sampled_from([None, None, 1, 2, 3])),
        out_format=data.draw(st.sampled_from(RESULTS)),
        adder=data.draw(st.sampled_from(["sequential", "sequential", "dot4", "pairwise", "aligned"])),
        layout=data.draw(st.sampled_from(["NHWC", "NCHW"])),
    )
    if options["adder"] == "aligned":
        options |= dict(group=options["group"] or 5, aligned_bits=data.draw(st.integers(1, 35)))
    if options["layout"] == "NCHW":
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    assert_backends_agree(lp.conv2d, x, w, **options, offset=(data.draw(st.integers(0, 99)), 3))
    plain = dict(accumulate="float32", out_format="float32", adder="sequential", aligned_bits=None, key=0)
    shape = lp.conv2d(x, w, **options | plain).shape
    g = data.draw(arrays(shape))
    high = 1 if options["layout"] == "NHWC" else 2
    assert_backends_agree(lp.conv2d_input_gradient, g, w, x.shape[high : high + 2], **options)
    kernel = w.shape[:2] if high == 1 else w.shape[2:]
    assert_backends_agree(lp.conv2d_weight_gradient, x, g, kernel, **options)


@pytest.mark.parametrize("adder", ["sequential", "dot4", "pairwise"])
def test_missing_channels_change_nothing(adder: str) -> None:
    # -1e-8 is rounded to -0, which a product (+0) * (+0) in place of a missing channel would make +0.
    x, w = np.full((1, 1, 2, 5), 1e-4, np.float16), np.zeros((1, 2, 5, 1), np.float16)
    w[0, 0, 0] = -1e-4
    w[0, :, 1:] = -0.0
    w[0, 1] = -0.0
    options: dict[str, Any] = dict(accumulate="float16", group=4, adder=adder)
    for name in ("reference", "cpu"):
        with lp.testing.backend(name):
            assert np.signbit(lp.conv2d(x, w, **options)).all()


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_one_position_is_a_product(rounding: str) -> None:
    x, w = normal(3, 5, 4, 40), normal(1, 1, 40, 21, seed=1)
    options: dict[str, Any] = dict(accumulate="float16", rounding=rounding, key=9, splits=2)
    want = lp.matmul(x.reshape(60, 40), w[0, 0], **options)
    lp.testing.assert_same_bits(lp.conv2d(x, w, **options), want.reshape(3, 5, 4, 21))
    strided = lp.conv2d(x, w, **options, stride=(5, 4))
    lp.testing.assert_same_bits(strided[:, 0, 0], lp.matmul(x[:, 0, 0], w[0, 0], **options))


def test_an_image_alone_equals_that_of_the_whole(backend: str) -> None:
    x, w = normal(3, 4, 4, 6), normal(3, 3, 6, 5, seed=1)
    options: dict[str, Any] = dict(padding=1, accumulate="float16", rounding="stochastic", key=9)
    whole = lp.conv2d(x, w, **options)
    lp.testing.assert_same_bits(lp.conv2d(x[1:2], w, **options, offset=(16, 0)), whole[1:2])
    lp.testing.assert_same_bits(lp.conv2d(x, w[..., 2:], **options, offset=(0, 2)), whole[..., 2:])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_panels_threads_and_instruction_sets_do_not_matter(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(2, 14, 13, 2 * 20, dtype=dtype), normal(3, 3, 20, 2 * 19, seed=1, dtype=dtype)
    options: dict[str, Any] = dict(padding=1, groups=2, accumulate="float16", rounding="stochastic", key=2, splits=3)
    want = lp.conv2d(x, w, **options)
    for size in (1, 40_000, 1 << 30):
        monkeypatch.setattr(panels, "PANEL_BYTES", size)
        for isa in lp.testing.isa_names():
            with lp.testing.isa(isa), lp.num_threads(2):
                lp.testing.assert_same_bits(lp.conv2d(x, w, **options), want)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("options", [{}, {"splits": 3}, {"splits": 7, "stages": 2}, {"random_bits": 32, "group": 2}])
@pytest.mark.parametrize("index", [0, 3, 5, 6])
def test_sums_rounded_after_few_products_have_the_bits_of_products(
    index: int, options: dict[str, Any], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, g, where = case(index)
    how = {"accumulate": "float16", "rounding": "stochastic", "key": 3, **options}
    calls = [
        lambda: lp.conv2d(x.astype(dtype), w.astype(dtype), **where, **how, offset=(2**32 - 5, 13)),
        lambda: lp.conv2d_input_gradient(g.astype(dtype), w.astype(dtype), x.shape[1:3], **where, **how),
    ]
    monkeypatch.setattr(narrow_convolution, "MOST_OUTPUTS", 0)
    monkeypatch.setattr(thin_convolution, "MOST_PRODUCTS", 0)
    expected = [call() for call in calls]
    monkeypatch.setattr(thin_convolution, "MOST_PRODUCTS", 1 << 20)
    monkeypatch.setattr(thin_convolution, "MOST_OUTPUTS", 1 << 20)
    monkeypatch.setattr(panels, "PANEL_BYTES", 1 << 9)
    for call, result in zip(calls, expected, strict=True):
        np.testing.assert_array_equal(call(), result)


@pytest.mark.parametrize("outputs", [1, 7, 8, 9])
@pytest.mark.parametrize("adder", ["sequential", "dot4", "pairwise", "aligned"])
def test_few_outputs_are_computed_as_many_are(outputs: int, adder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(2, 9, 8, 2 * 6), normal(3, 2, 6, 2 * outputs, seed=1)
    options: dict[str, Any] = dict(padding=1, groups=2, accumulate="float16", group=4, adder=adder, splits=2)
    options |= dict(aligned_bits=11) if adder == "aligned" else {}
    monkeypatch.setattr(narrow_convolution, "MOST_OUTPUTS", 0)
    for layout in ("NHWC", "NCHW"):
        options["layout"] = layout
        want = []
        for narrow in (0, 8):
            monkeypatch.setattr(panels, "NARROW", narrow)
            monkeypatch.setattr(panels, "PANEL_BYTES", 5000)
            want.append(lp.conv2d(x, w, **options))
        lp.testing.assert_same_bits(*want)
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)


@pytest.mark.parametrize("stride, groups", [(1, 1), ((2, 1), 3)])
def test_layouts_agree(stride: Any, groups: int) -> None:
    x, w = normal(2, 6, 7, 6), normal(3, 2, 6 // groups, 9, seed=1)
    options: dict[str, Any] = dict(stride=stride, padding=1, groups=groups, accumulate="float16", group=4)
    options |= dict(rounding="stochastic", key=3)
    want = lp.conv2d(x, w, **options)
    first, factors = x.transpose(0, 3, 1, 2).copy(), w.transpose(3, 2, 0, 1).copy()
    got = lp.conv2d(first, factors, layout="NCHW", **options)
    lp.testing.assert_same_bits(got.transpose(0, 2, 3, 1), want)
    g = normal(*want.shape, seed=2)
    outer = g.transpose(0, 3, 1, 2).copy()
    got = lp.conv2d_input_gradient(outer, factors, (6, 7), layout="NCHW", **options)
    lp.testing.assert_same_bits(got.transpose(0, 2, 3, 1), lp.conv2d_input_gradient(g, w, (6, 7), **options))
    got = lp.conv2d_weight_gradient(first, outer, (3, 2), layout="NCHW", **options)
    lp.testing.assert_same_bits(got.transpose(2, 3, 1, 0), lp.conv2d_weight_gradient(x, g, (3, 2), **options))


@pytest.mark.parametrize("size", [5, 6, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_same_padding(size: int, stride: int) -> None:
    x, w = normal(1, size, size, 2), normal(3, 4, 2, 3, seed=1)
    got = lp.conv2d(x, w, stride=stride, padding="same")
    assert got.shape == (1, -(-size // stride), -(-size // stride), 3)
    needed = [max(0, (got.shape[1] - 1) * stride + k - size) for k in (3, 4)]
    pads = tuple((n // 2, n - n // 2) for n in needed)
    lp.testing.assert_same_bits(got, lp.conv2d(x, w, stride=stride, padding=pads))


def test_padding_and_special_values(backend: str) -> None:
    x, w = np.ones((1, 2, 2, 1), np.float16), np.ones((3, 3, 1, 1), np.float16)
    w[0, 0] = np.inf
    got = lp.conv2d(x, w, padding=1)[0, :, :, 0]
    assert np.isnan(got).tolist() == [[True, True], [True, False]]
    assert got[1, 1] == np.inf
    w[0, 0] = 6e4
    w[0, 1] = 6e4
    x2 = np.ones((1, 3, 3, 1), np.float16)
    assert lp.conv2d(x2, w, accumulate="float16")[0, 0, 0, 0] == np.inf
    assert lp.conv2d(x2, w, accumulate="float16", overflow="saturate")[0, 0, 0, 0] == 65504


def test_no_channels_and_no_images(backend: str) -> None:
    got = lp.conv2d(np.ones((2, 3, 3, 0), np.float16), np.ones((2, 2, 0, 3), np.float16), accumulate="float16")
    assert got.shape == (2, 2, 2, 3)
    assert got.dtype == np.float16
    assert not got.any()
    assert not np.signbit(got).any()
    assert lp.conv2d(np.ones((0, 3, 3, 2), np.float16), np.ones((2, 2, 2, 3), np.float16)).shape == (0, 2, 2, 3)
    none = lp.conv2d_weight_gradient(np.ones((0, 3, 3, 2), np.float16), np.ones((0, 2, 2, 3), np.float16), (2, 2))
    assert none.shape == (2, 2, 2, 3)
    assert not none.any()
    g, w = np.ones((1, 2, 2, 3), np.float16), np.ones((1, 1, 1, 3), np.float16)
    skipped = lp.conv2d_input_gradient(g, w, (4, 4), stride=2)
    assert skipped[0, :, :, 0].tolist() == [[3, 0, 3, 0], [0, 0, 0, 0]] * 2


def test_powers_of_two_as_operands(backend: str) -> None:
    scales = np.array([0.5, 1, 2, 4], ml_dtypes.float8_e8m0fnu).reshape(1, 2, 2, 1)
    got = lp.conv2d(scales, np.ones((2, 2, 1, 1), np.float16), padding=1)
    assert got[0, :, :, 0].tolist() == [[0.5, 1.5, 1], [2.5, 7.5, 5], [2, 6, 4]]


def test_out() -> None:
    x, w = normal(2, 6, 6, 3), normal(3, 3, 3, 4, seed=1)
    want = lp.conv2d(x, w)
    out = np.zeros((2, 4, 4, 8), np.float32)[..., ::2]
    assert lp.conv2d(x, w, out=out) is out
    lp.testing.assert_same_bits(out.copy(), want)
    x, w = normal(2, 5, 5, 3), normal(3, 3, 3, 3, seed=1)
    want = lp.conv2d(x, w, padding=1, accumulate="float16")
    assert lp.conv2d(x, w, padding=1, accumulate="float16", out=x) is x
    lp.testing.assert_same_bits(x, want)
    with pytest.raises(TypeError, match="out must be an array of float32"):
        lp.conv2d(x, w, padding=1, out=x)
    with pytest.raises(ValueError, match=r"shape \(2, 5, 5, 3\), the result \(2, 3, 3, 3\)"):
        lp.conv2d(x, w, accumulate="float16", out=x)


@pytest.mark.parametrize("how", [Sum(HALF, HALF, 4), Sum(HALF, HALF, 4, key=7), Sum()])
def test_parts_of_sums_are_the_chains_of_the_whole(how: Sum, host_backend: str) -> None:
    """A part of the groups, of blocks that lie anywhere, added as `sum_parts` adds."""
    shape, image, kernel, channels, outputs = SHAPES[1]
    x, w, _, options = case(1)
    rounding = {k: v for k, v in sum_options(how).items() if k in ("accumulate", "group", "rounding")}
    whole = lp.conv2d(x, w, **options, **(sum_options(how) | {"splits": 3}))
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))[:, :, :, None]
    seen = window_view(padded, kernel, (1, 1), (1, 1), shape.count(image[1:], kernel))
    call = prepare_correlation(x.dtype, w.dtype, *values(**rounding))
    terms = 9 * -(-channels // rounding["group"])
    each = -(-terms // 3)
    parts = np.empty((3, *whole.shape[:3], 1, outputs), whole.dtype)
    for number, start in enumerate(range(0, terms, each)):
        for lines in (slice(0, 1), slice(1, 4)):
            place = BlockPlace(3 * lines.start, 0, 0, 12, 3, start)
            span = (start, min(terms, start + each))
            call(seen[:, lines], w[:, :, None], parts[number, :, lines], place, how.key, span)
    total = lp.float32_op("add", parts[0], parts[1])
    total = lp.float32_op("add", total, parts[2], fmt=whole.dtype)
    if how.key is None:
        np.testing.assert_array_equal(total[:, :, :, 0], whole)
    else:
        np.testing.assert_allclose(np.float64(total[:, :, :, 0]), np.float64(whole), atol=0.02)


@pytest.mark.parametrize("key", [None, 9])
def test_parts_of_weight_gradients_are_the_chains_of_the_whole(key: int | None, backend: str) -> None:
    """Blocks of kernel positions and channels, over all positions at once."""
    x, _, g, options = case(1)
    rounding = "nearest_even" if key is None else "stochastic"
    whole = lp.conv2d_weight_gradient(x, g, (3, 3), **options, accumulate="float16", rounding=rounding, key=key)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))[:, :, :, None]
    seen = window_view(padded, (3, 3), (1, 1), (1, 1), g.shape[1:3])
    call = prepare_weight_sums(x.dtype, g.dtype, *values(accumulate="float16", rounding=rounding))
    found = np.empty((3, 3, 1, 6, 17), np.float16)
    for rows, channels in ((slice(0, 1), slice(0, 4)), (slice(0, 1), slice(4, 6)), (slice(1, 3), slice(0, 6))):
        place = BlockPlace(18 * rows.start + channels.start, 0, 0, 18, 6)
        call(seen[..., rows, :, :, channels], g[:, :, :, None], found[rows, :, :, channels], place, key)
    np.testing.assert_array_equal(found[:, :, 0], whole)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("depth", [5, 8])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.float8_e5m2])
def test_a_weight_that_is_copied_stays_runs_of_memory(dtype: Any, depth: int, turned: bool) -> None:
    weight = np.arange(2 * 3 * 4 * 5 * 6).reshape(2, 3, 4, 5, 6).astype(dtype)[::-1, ::-1]
    weight = weight.swapaxes(3, 4)[..., :5, :] if turned else weight[..., :5]
    found = panels.weight_matrix(weight, depth)
    for row, column, group in np.ndindex(2, 3, 4):
        part = found[group].reshape(2, 3, depth, 5)[row, column]
        np.testing.assert_array_equal(part[:5], weight[row, column, group])
        assert (part[5:] == -1).all()
    assert found.strides[1 if turned else 2] == found.itemsize
