"""A tile's arithmetic: results of the machine's rules, floating-point control, exceptions, prepared calls."""

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import lowprec
from ipu_core.chip import tile
from ipu_core.chip.control import FloatingPointControl
from ipu_core.errors import FloatingPointException
from lowprec import Accumulation, Key, Rounding
from lowprec.values.rounding import NEAREST_EVEN, STOCHASTIC

PLAIN = FloatingPointControl()
FP8 = np.dtype(ml_dtypes.float8_e4m3fnuz)
HALF = np.dtype(np.float16)


class Place(NamedTuple):
    row: Any = 0
    column: Any = 0
    first_group: Any = 0
    batch: Any = 0


def run(
    op: str, *operands: Any, out: Any = "float16", control: FloatingPointControl = PLAIN, **options: Any
) -> np.ndarray:
    arrays = tuple(x if isinstance(x, float) else np.asarray(x) for x in operands)
    dtypes = [x.dtype if isinstance(x, np.ndarray) else None for x in arrays]
    shape = np.broadcast_shapes(*(np.shape(x) for x in arrays))
    result = np.empty(shape, lowprec.as_format(out).dtype)
    kernel = tile.elementwise(op, dtypes, out, STOCHASTIC if options.get("stochastic") else NEAREST_EVEN, control)
    kernel(arrays, options.get("key"), options.get("offset", 0), result)
    return result


def half(*values: float) -> np.ndarray:
    return np.array(values, np.float16)


def test_halves_saturate_and_nanoo_gives_nan() -> None:
    x = half(60000, -60000, 1, math.inf)
    assert run("add", x, x).tolist() == [65504, -65504, 2, 65504]
    nan = run("add", x, x, control=FloatingPointControl(nanoo=True))
    np.testing.assert_array_equal(nan, half(math.nan, math.nan, 2, math.nan))
    assert run("add", x, x, out="float32").tolist() == [120000, -120000, 2, math.inf]


def test_fp8_is_rounded_twice_through_half() -> None:
    x = np.float32([1.0625 + 2.0**-13, 300.0, math.inf, math.nan])  # the first becomes a tie in half
    twice = run("identity", x, out=FP8).astype(np.float32)
    np.testing.assert_array_equal(twice, np.float32([1.0, 240.0, 240.0, math.nan]))
    assert float(lowprec.astype(x, FP8)[0]) == 1.125  # one rounding
    np.testing.assert_array_equal(
        run("identity", x[:2], out=FP8, control=FloatingPointControl(nanoo=True)).astype(np.float32), [1.0, math.nan]
    )


def test_both_roundings_to_fp8_draw_bits_of_their_own() -> None:
    x, key = np.linspace(1, 2, 2000, dtype=np.float32), Key(3)
    half = run("multiply", x, 1.1, stochastic=True, key=key)
    wanted = run("identity", half, out=FP8, stochastic=True, key=key.fold_in(tile.SECOND_ROUNDING))
    found = run("multiply", x, 1.1, out=FP8, stochastic=True, key=key)
    np.testing.assert_array_equal(found, wanted)
    assert (found != run("identity", half, out=FP8, stochastic=True, key=key)).any()


def test_stochastic_results_depend_on_key_and_offset_only() -> None:
    x = np.linspace(1, 2, 1000, dtype=np.float32)
    whole = run("multiply", x, 1.1, stochastic=True, key=Key(3))
    parts = [run("multiply", x[a : a + 300], 1.1, stochastic=True, key=Key(3), offset=a) for a in range(0, 1000, 300)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (whole != run("multiply", x, 1.1, stochastic=True, key=Key(4))).any()
    eight = run("multiply", x, 1.1, out=FP8, stochastic=True, key=Key(3))
    assert len(set(eight[:50].astype(np.float32))) > 2


EXCEPTIONS = [
    ("oflo", "add", (half(65504), half(32)), "overflow: a result beyond 65504"),
    ("oflo", "exp", (half(12),), "overflow"),
    ("div0", "divide", (half(1, 1), half(1, 0)), "division by zero"),
    ("div0", "reciprocal", (half(0),), "division by zero"),
    ("div0", "log", (half(0),), "division by zero"),
    ("inv", "divide", (half(0), half(0)), "NaN from operands that are none"),
    ("inv", "sqrt", (half(-1),), "NaN from operands that are none"),
]


@pytest.mark.parametrize(("flag", "op", "operands", "message"), EXCEPTIONS)
def test_enabled_exceptions_name_the_operation(flag: str, op: str, operands: tuple, message: str) -> None:
    with pytest.raises(FloatingPointException, match=f"{op}: .*{message}"):
        run(op, *operands, control=FloatingPointControl(**{flag: True}))
    others = {name: True for name in ("inv", "div0", "oflo") if name != flag}
    run(op, *operands, control=FloatingPointControl(**others))


@pytest.mark.parametrize("values", [(1, 2), (65504, 0), (math.nan, 1), (math.inf, 1)])
def test_ordinary_results_raise_nothing(values: tuple[float, float]) -> None:
    control = FloatingPointControl(inv=True, div0=True, oflo=True)
    run("add", half(values[0]), half(values[1]), control=control)
    run("divide", half(values[0]), half(1), control=control)


def test_products_follow_the_accumulation() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 5, 70)).astype(HALF), rng.normal(size=(3, 70, 6)).astype(HALF)
    for order in (Accumulation(accumulate="float16"), Accumulation(8, 3, accumulate="float16", out="float32")):
        for stochastic in (False, True):
            out = np.empty((3, 5, 6), lowprec.as_format(order.out).dtype)
            tile.matmul(order, STOCHASTIC if stochastic else NEAREST_EVEN, PLAIN)(a, b, Key(1), out)
            expected = lowprec.matmul(
                a, b, accumulate=order.accumulate, out_format=order.out, group=order.group, splits=order.splits,
                rounding="stochastic" if stochastic else "nearest_even", key=Key(1), overflow="ipu",
            )  # fmt: skip
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("rounding", [NEAREST_EVEN, STOCHASTIC])
def test_parts_and_their_sum_are_the_whole_product(rounding: Rounding) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(8, 96)).astype(HALF), rng.normal(size=(96, 12)).astype(HALF)
    order = Accumulation(16, 3, accumulate="float16")
    whole = np.empty((8, 12), HALF)
    tile.matmul(order, rounding, PLAIN)(a, b, Key(9), whole)

    parts = np.empty((2, 3, 4, 12), HALF)  # two blocks of rows, three parts
    place = Place(row=np.array([[0], [4]]), first_group=np.array([[0, 2, 4]]))
    left, right = a.reshape(2, 4, 3, 32).transpose(0, 2, 1, 3), b.reshape(1, 3, 32, 12)
    tile.matmul_part(left, right, parts, order, place, rounding, PLAIN)(Key(9))
    result = np.empty((2, 4, 12), HALF)
    rows = Place(row=np.array([0, 4]))
    tile.sum_parts(parts, result, "float16", "output", 0, rows, rounding, PLAIN)(Key(9))
    np.testing.assert_array_equal(result.reshape(8, 12), whole)


@pytest.mark.parametrize("rounding", [NEAREST_EVEN, STOCHASTIC])
def test_serial_parts_go_on_from_each_other(rounding: Rounding) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(8, 96)).astype(HALF), rng.normal(size=(96, 12)).astype(HALF)
    order = Accumulation(16, accumulate="float16")
    whole, serial = np.empty((8, 12), HALF), np.empty((8, 12), HALF)
    tile.matmul(order, rounding, PLAIN)(a, b, Key(9), whole)
    for start in range(0, 96, 32):
        initial = serial if start else None
        place = Place(first_group=start // 16)
        left, right = a[:, start : start + 32], b[start : start + 32]
        tile.matmul_part(left, right, serial, order, place, rounding, PLAIN, initial)(Key(9))
    np.testing.assert_array_equal(serial, whole)


def test_sums_and_maxima() -> None:
    x = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    order = Accumulation(accumulate="float32", out="float16")
    out = np.empty((2, 4), HALF)
    tile.reduce_sum(order, NEAREST_EVEN, PLAIN)(x, None, out)
    assert out.tolist() == x.sum(axis=1).tolist()
    tile.reduce_max(x, out)(None)
    assert out.tolist() == x.max(axis=1).tolist()
    part = np.empty((2, 4), np.float32)
    tile.reduce_part(x, part, order, Place(), NEAREST_EVEN, PLAIN)(None)
    assert part.tolist() == x.sum(axis=1).tolist()


def test_sums_raise_enabled_exceptions() -> None:
    order = Accumulation(accumulate="float16")
    big, out = np.full((4, 4), 200, HALF), np.empty((4, 4), HALF)
    tile.matmul(order, NEAREST_EVEN, PLAIN)(big, big, None, out)
    assert (out == 65504).all()
    with pytest.raises(FloatingPointException, match="matmul: overflow"):
        tile.matmul(order, NEAREST_EVEN, FloatingPointControl(oflo=True))(big, big, None, out)
    with pytest.raises(FloatingPointException, match="matmul: invalid"):
        tile.matmul(order, NEAREST_EVEN, FloatingPointControl(inv=True, nanoo=True))(big, big, None, out)
    control, parts = FloatingPointControl(oflo=True), np.full((2, 1, 1), 60000, HALF)
    total = tile.sum_parts(parts, out[:1, :1], "float16", "output", 0, Place(), NEAREST_EVEN, control)
    with pytest.raises(FloatingPointException, match="sum of parts: overflow"):
        total(None)
    quiet = FloatingPointControl(oflo=True, inv=True)
    tile.matmul(order, NEAREST_EVEN, quiet)(np.full((4, 4), math.inf, HALF), big, None, out)
