"""float32_op: the operations, their conversion, broadcasting, the prepared form, and equality of all backends."""

from __future__ import annotations

import importlib
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowprec as lp
from lowprec.elementwise import prepare
from lowprec.values.elementwise_op import OPERATIONS
from tests.examples import examples
from tests.lowprec.sums_cases import RESULTS, arrays, assert_backends_agree, rounding_options, strided

X = np.array([-2.5, -1.0, -0.0, 0.0, 0.25, 3.0, np.inf, -np.inf, np.nan], np.float32)


def test_the_reference_defines_every_operation() -> None:
    reference = importlib.import_module("lowprec.backends.reference.elementwise")
    assert set(reference._OPERATIONS) == set(OPERATIONS)


@examples(quick=200, slow=400)
@given(st.data())
def test_every_backend_gives_the_same_bits(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(list(OPERATIONS)))
    shape = data.draw(st.lists(st.sampled_from([1, 3, 17]), max_size=3).map(tuple))
    operands: list[Any] = []
    for _ in range(OPERATIONS[op]):
        own = tuple(1 if data.draw(st.integers(0, 4)) == 0 else n for n in shape)
        operands.append(data.draw(st.builds(arrays, st.just(own)).flatmap(lambda s: s).flatmap(strided)))
    if data.draw(st.integers(0, 3)) == 0:
        operands[-1] = data.draw(st.sampled_from([0.1, 2.0, -0.0, float("inf"), 3]))
    fmt = data.draw(st.sampled_from(RESULTS))
    offset = data.draw(st.sampled_from([0, 7, 63, 10**10]))
    assert_backends_agree(lp.float32_op, op, *operands, fmt=fmt, offset=offset, **data.draw(rounding_options()))


@pytest.mark.parametrize(
    "op, numpy_function",
    [("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply), ("divide", np.divide)],
)
def test_arithmetic_is_ieee(op: str, numpy_function: Any, host_backend: str) -> None:
    a, b = X[:, None], X[None, :]
    with np.errstate(all="ignore"):
        want = numpy_function(a, b)
    lp.testing.assert_same_bits(lp.float32_op(op, a, b), want)


def test_what_the_simple_operations_do(host_backend: str) -> None:
    nan, inf = np.nan, np.inf
    expected = {
        "negative": [2.5, 1.0, 0.0, -0.0, -0.25, -3.0, -inf, inf, nan],
        "absolute": [2.5, 1.0, 0.0, 0.0, 0.25, 3.0, inf, inf, nan],
        "relu": [0.0, 0.0, 0.0, 0.0, 0.25, 3.0, inf, 0.0, nan],
        "step": [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0],
        "square": [6.25, 1.0, 0.0, 0.0, 0.0625, 9.0, inf, inf, nan],
        "reciprocal": [-0.4, -1.0, -inf, inf, 4.0, 1 / 3, 0.0, -0.0, nan],
        "sqrt": [nan, nan, -0.0, 0.0, 0.5, 3.0**0.5, inf, nan, nan],
        "floor": [-3.0, -1.0, -0.0, 0.0, 0.0, 3.0, inf, -inf, nan],
        "rint": [-2.0, -1.0, -0.0, 0.0, 0.0, 3.0, inf, -inf, nan],
    }
    for op, want in expected.items():
        lp.testing.assert_same_bits(lp.float32_op(op, X), np.array(want, np.float32))


def test_comparisons_and_selection(host_backend: str) -> None:
    a, b = np.float32([1, 2, 0.0, np.nan, 1]), np.float32([2, 1, -0.0, 1, np.nan])
    lp.testing.assert_same_bits(lp.float32_op("maximum", a, b), np.float32([2, 2, 0.0, np.nan, np.nan]))
    lp.testing.assert_same_bits(lp.float32_op("minimum", a, b), np.float32([1, 1, 0.0, np.nan, np.nan]))
    lp.testing.assert_same_bits(lp.float32_op("greater", a, b, fmt="float16"), np.float16([0, 1, 0, 0, 0]))
    lp.testing.assert_same_bits(lp.float32_op("equal", a, b), np.float32([0, 0, 1, 0, 0]))
    lp.testing.assert_same_bits(lp.float32_op("select", a, 5.0, b), np.float32([5, 5, -0.0, 5, 5]))


def test_remainders_are_exact_and_have_the_sign_of_the_first(host_backend: str) -> None:
    a, b = np.broadcast_arrays(X[:, None], X[None, :])
    with np.errstate(invalid="ignore"):
        lp.testing.assert_same_bits(lp.float32_op("fmod", a, b), np.where(np.isnan(a % b), np.nan, np.fmod(a, b)))
    # Of numbers far apart and subnormal, from Python's whole numbers.
    large, small = [3e38, 2.0**100 + 2.0**80, 1.0, 2.0**-140], [2.0**-149 * 3, 7.0, 2.0**-149 * 12345677, 2.0**-148 * 3]
    wanted = [x * 2**149 % (y * 2**149) for x, y in zip(map(exact, large), map(exact, small), strict=True)]
    got = lp.float32_op("fmod", np.float32(large), -np.float32(small))
    assert [int(exact(x) * 2**149) for x in got] == wanted


def exact(x: Any) -> Fraction:
    return Fraction(float(np.float32(x)))


def test_scaled_add_rounds_its_product_to_float32(host_backend: str) -> None:
    a, b, s = np.float32([-1.0]), np.float32([1 + 2.0**-12]), np.float32(1 + 2.0**-12)
    fused, separate = float(s) * float(b[0]) - 1.0, np.float32(float(s) * float(b[0])) - np.float32(1)
    assert fused != separate
    assert lp.float32_op("scaled_add", a, b, s)[0] == separate


def test_one_conversion_follows_the_operation(host_backend: str) -> None:
    # 2^-12 + (1 + 2^-11 + 2^-24 ...) goes to float32 first: a machine's two roundings, not one.
    x = np.float32([1.0 + 2.0**-11])
    assert lp.float32_op("add", x, 2.0**-25, fmt="float16")[0] == np.float16(1.0)
    assert lp.float32_op("add", x, 2.0**-23, fmt="float16")[0] == np.float16(1.0 + 2.0**-10)


def test_chunks_and_threads_give_the_same_bits() -> None:
    x = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    options: dict[str, Any] = {"fmt": "float16", "rounding": "stochastic", "key": 5}
    with lp.num_threads(1):
        whole = lp.float32_op("tanh", x, **options)
    with lp.num_threads(2):
        lp.testing.assert_same_bits(lp.float32_op("tanh", x, **options), whole)
    parts = [lp.float32_op("tanh", x[i : i + 777], offset=i, **options) for i in range(0, len(x), 777)]
    lp.testing.assert_same_bits(np.concatenate(parts), whole)


def test_stochastic_conversion_is_rounds(host_backend: str) -> None:
    x = np.linspace(-3, 3, 200, dtype=np.float32)
    want = lp.astype(x, "float8_e4m3fn", "stochastic", key=9, offset=3)
    got = lp.float32_op("identity", x, fmt="float8_e4m3fn", rounding="stochastic", key=9, offset=3)
    lp.testing.assert_same_bits(got, want)


def test_out_may_be_an_operand_and_may_be_strided() -> None:
    a = np.arange(12, dtype=np.float16).reshape(3, 4)
    want = a * np.float16(2)
    out = np.zeros((3, 8), np.float16)[:, ::2]
    assert lp.float32_op("multiply", a, 2.0, fmt="float16", out=out) is out
    lp.testing.assert_same_bits(out.copy(), want)
    assert lp.float32_op("multiply", a, 2.0, fmt="float16", out=a) is a
    lp.testing.assert_same_bits(a, want)


def test_prepared_form_and_scalars() -> None:
    call = prepare("add", (np.float16, ml_dtypes.bfloat16), "float32")
    a, b = np.ones((2, 3), np.float16), np.full(3, 2, ml_dtypes.bfloat16)
    lp.testing.assert_same_bits(call((a, b)), np.full((2, 3), 3, np.float32))
    assert lp.float32_op("add", 1.0, 2, fmt="float16") == np.float16(3)
    assert isinstance(lp.exp(1.0), np.float32)
    with pytest.raises(TypeError, match="an operand must be an array of float16, not bfloat16"):
        call((b, b))


def test_bad_calls_say_what_is_allowed(host_backend: str) -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(ValueError, match=r"unknown operation 'sinh'; known are identity, negative"):
        lp.float32_op("sinh", x)
    with pytest.raises(ValueError, match=r"add takes 2 operands, not 1"):
        lp.float32_op("add", x)
    with pytest.raises(TypeError, match=r"float64; convert with lowprec.astype"):
        lp.float32_op("exp", np.ones(3))
    with pytest.raises(ValueError, match="stochastic rounding needs key="):
        lp.float32_op("exp", x, fmt="float16", rounding="stochastic")
    with pytest.raises(ValueError, match="broadcast"):
        lp.float32_op("add", x, np.ones(2, np.float32))
    with pytest.raises(ValueError, match="NaN"):
        lp.float32_op("identity", np.float32([np.nan]), fmt="float4_e2m1fn")
    with pytest.raises(TypeError, match="storage dtype"):
        lp.float32_op("exp", x, fmt="tfloat32")
    with pytest.raises(ValueError, match="out has shape"):
        lp.float32_op("add", x, x, out=np.empty(2, np.float32))
    with pytest.raises(TypeError, match="out must be an array of"):
        lp.float32_op("add", x, x, out=np.empty(3, np.float16))


def test_a_number_beyond_every_double_is_an_overflow_error() -> None:
    with pytest.raises(OverflowError, match="too large"):
        lp.float32_op("add", np.ones(3, np.float32), 10**400)
