"""Roundings to whole numbers, remainders and quotients without fractions: NumPy's bits, and torch's gradients."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowprec as lp
from ipu_core import FloatingPointControl, Precision, evaluate, execute, nn, trace, value_and_grad
from ipu_core.chip import tile
from ipu_core.errors import FloatingPointException
from ipu_core.ir.unit_scaling.scaled import unit_scale
from lowprec.values.rounding import NEAREST_EVEN

RNG = np.random.default_rng(37)
SPECIAL = [0.0, -0.0, 0.5, -0.5, 1, -1, 1.5, 2.5, -2.5, 3, -3, 7, 0.1, -0.1, np.inf, -np.inf, np.nan, 2**23 - 0.5]
SPECIAL += [1e-45]
NORMAL = RNG.normal(size=(2, 2000)) * [[10], [1]]
A = np.concatenate([np.repeat(SPECIAL, len(SPECIAL)), NORMAL[0]])
B = np.concatenate([np.tile(SPECIAL, len(SPECIAL)), NORMAL[1]])

Function = Callable[[Any, Any], Any]
FUNCTIONS: dict[str, Function] = {
    "floor": lambda a, b: np.floor(a), "ceil": lambda a, b: np.ceil(a), "trunc": lambda a, b: np.trunc(a),
    "rint": lambda a, b: np.rint(a), "fix": lambda a, b: np.fix(a), "around": lambda a, b: np.around(a, 2),
    "fmod": np.fmod, "remainder": np.remainder, "floor_divide": np.floor_divide,
    "round": lambda a, b: np.round(a), "round(1)": lambda a, b: np.round(a, 1), "round(-1)": lambda a, b: a.round(-1),
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "// 2": lambda a, b: a // 2, "% -3": lambda a, b: a % -3,
    "2 //": lambda a, b: 2 // a, "-2 %": lambda a, b: -2 % a, "divmod": lambda a, b: divmod(a, b)[1],
    "divmod 2": lambda a, b: divmod(2, a)[0], "np.divmod": lambda a, b: np.divmod(a, b)[0],
}  # fmt: skip


def bits(x: Any) -> NDArray[Any]:
    x = np.asarray(x)
    return np.where(np.isnan(x), np.asarray(np.nan, x.dtype), x).view(f"u{x.itemsize}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_they_have_the_bits_of_numpy(name: str) -> None:
    f = FUNCTIONS[name]
    for dtype, run in ((np.float32, lambda *x: execute(*x, key=0)), (np.float64, evaluate)):
        a, b = A.astype(dtype), B.astype(dtype)
        got, want = run(trace(f, a, b), a, b), f(a, b)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(bits(got), bits(want), dtype.__name__)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "rint", "fmod", "remainder", "floor_divide"])
def test_functions_of_nn_on_arrays_have_the_bits_of_numpy(name: str) -> None:
    mine, theirs = getattr(nn, name), getattr(np, name)
    for dtype in (np.float32, np.float64):
        operands = (A.astype(dtype), B.astype(dtype))[: theirs.nin]
        np.testing.assert_array_equal(bits(mine(*operands)), bits(theirs(*operands)), dtype.__name__)


def test_python_s_functions_are_numpy_s() -> None:
    a = NORMAL[0, :9].astype(np.float32)
    made = execute(trace(lambda x: [math.floor(x), math.ceil(x), math.trunc(x), round(x), round(x, 2)], a), a, key=0)
    for got, want in zip(made, (np.floor(a), np.ceil(a), np.trunc(a), np.rint(a), np.round(a, 2)), strict=True):
        np.testing.assert_array_equal(bits(got), bits(want))


@pytest.mark.parametrize("f", [np.floor, np.ceil, np.trunc, np.rint, lambda x: x.round(1), lambda x: x // 0.3])
def test_roundings_have_no_gradient(f: Function) -> None:
    _, gradient = value_and_grad(lambda x: (f(x) * x).sum())(NORMAL[0])
    np.testing.assert_array_equal(gradient, f(NORMAL[0]))


def test_remainders_have_the_gradient_of_a_difference() -> None:
    a, b = np.array([7.0, -7.0, 7.0, -7.0, 6.0, 0.5, -0.5]), np.array([2.0, 2.0, -2.0, -2.0, 2.0, np.inf, np.inf])
    for f, whole in ((np.fmod, np.trunc), (np.remainder, np.floor)):
        _, (first, second) = value_and_grad(lambda p, f=f: np.where(np.isfinite(p[1]), f(*p), 0.0).sum())([a, b])
        few = np.isfinite(b)
        np.testing.assert_array_equal(first[few], 1.0)
        np.testing.assert_array_equal(second[few], -whole(a / b)[few])


@pytest.mark.parametrize("fmt", ["float16", "bfloat16", "float8_e4m3fn", "float6_e3m2fn"])
def test_whole_parts_are_numbers_of_every_format_and_are_not_rounded(fmt: str) -> None:
    x = np.unique(lp.round(np.linspace(-20, 20, 4001, dtype=np.float32), fmt))
    for f in (np.floor, np.ceil, np.trunc, np.rint):
        np.testing.assert_array_equal(lp.round(f(x), fmt), f(x))
    block = Precision.parse(f"fp16.16/stochastic/operands={fmt}").apply(trace(lambda x: np.floor(x * 1.0), x))
    (floor,) = (e for e in block.equations if e.op == "floor")
    assert floor.arithmetic.rounding == NEAREST_EVEN


def test_of_a_format_that_lacks_whole_numbers_they_are_rounded() -> None:
    fmt = lp.FloatFormat("below two", 3, 2, bias=6)  # its largest number is 1.75 * 2^0
    x = np.float32([-1.75, -0.5, 0.75])
    assert fmt.max == 1.75
    block = trace(lambda v: np.floor(nn.convert(v, fmt)), x)
    np.testing.assert_array_equal(execute(block, x, key=0), lp.round(np.floor(x), fmt))
    np.testing.assert_array_equal(execute(block, x, key=0), [-np.inf, -1, 0])


def test_a_remainder_by_zero_is_an_invalid_operation() -> None:
    kernel = tile.elementwise(
        "fmod", [np.dtype("f4")] * 2, np.dtype("f4"), lp.Rounding(), FloatingPointControl(inv=True)
    )
    x = np.float32([5.0, 7.0])
    np.testing.assert_array_equal(kernel((x, np.float32([3, np.inf])), None, 0, np.empty(2, "f4")), [2, 7])
    with pytest.raises(FloatingPointException, match="fmod: invalid operation"):
        kernel((x, np.float32([3, 0])), None, 0, np.empty(2, "f4"))


def test_unit_scaling_leaves_finite_factors() -> None:
    x = RNG.normal(size=(64, 64)).astype(np.float32)
    scaled = unit_scale(lambda p, x: (np.floor(x @ p) * (x @ p) + np.remainder(x @ p, 2.0)).mean())
    value, gradient = value_and_grad(scaled)(x, x.T.copy())
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda x: x // 2, "//, floor_divide: operand 0 must be floats"),
        (lambda x: 7.0 % x, "%, remainder: operand 1 must be floats"),
        (lambda x: np.fmod(x, 2), "fmod: operand 0 must be floats"),
    ],
)
def test_integers_are_refused_by_what_was_asked_for(f: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        trace(f, np.ones(3, np.int32))
