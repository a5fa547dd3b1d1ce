"""`out=` and coordinates are looked at by every call: byte order, dtype, shape, and memory that is still read."""

from typing import Any

import numpy as np
import pytest

import lowprec as lp

X = np.arange(16, dtype=np.float32).reshape(4, 4) / 8
CUBE = X.reshape(1, 4, 4)
IMAGE, KERNEL = X.reshape(1, 4, 4, 1), np.ones((1, 1, 1, 1), np.float32)
WITH_OUT: dict[str, Any] = {
    "matmul": lambda out: lp.matmul(X, X, out=out),
    "matmul_part": lambda out: lp.matmul_part(X, X, out=out),
    "reduce_sum": lambda out: lp.reduce_sum(np.ones((4, 4, 3), np.float32), out=out),
    "reduce_part": lambda out: lp.reduce_part(np.ones((4, 3, 4), np.float32), out=out),
    "sum_parts": lambda out: lp.sum_parts(np.ones((3, 4, 4), np.float32), fmt="float32", out=out),
    "reduce_max": lambda out: lp.reduce_max(np.ones((4, 4, 3), np.float32), out=out),
    "scatter_add": lambda out: lp.scatter_add([0, 1, 2, 3], X, 4, out=out),
    "sum": lambda out: lp.sum(np.ones((4, 4, 3), np.float32), axis=2, out=out),
    "cumulative_sum": lambda out: lp.cumulative_sum(X, axis=0, out=out),
    "add": lambda out: lp.add(X, X, "float32", out=out),
    "float32_op": lambda out: lp.float32_op("add", X, X, out=out),
    "exp": lambda out: lp.exp(X, out=out),
    "round": lambda out: lp.round(X, "float16", out=out),
    "astype": lambda out: lp.astype(X, "float32", out=out),
    "decode": lambda out: lp.decode(np.zeros((4, 4), np.uint8), "float8_e5m2", out=out),
    "conv2d": lambda out: lp.conv2d(IMAGE, KERNEL, out=out.reshape(1, 4, 4, 1)),
}


@pytest.mark.parametrize("name", WITH_OUT)
def test_another_byte_order_is_another_dtype(name: str, host_backend: str) -> None:
    with pytest.raises(TypeError, match="out must be an array of float32"):
        WITH_OUT[name](np.zeros((4, 4), ">f4"))


@pytest.mark.parametrize("name", WITH_OUT)
@pytest.mark.parametrize("out", [np.zeros((4, 4), np.float64), np.zeros((4, 4), np.int32)])
def test_another_dtype_is_refused(name: str, out: Any, host_backend: str) -> None:
    with pytest.raises(TypeError, match="float32"):
        WITH_OUT[name](out)


@pytest.mark.parametrize("name", [name for name in WITH_OUT if name != "conv2d"])
def test_another_shape_is_refused(name: str, host_backend: str) -> None:
    with pytest.raises(ValueError, match="shape"):
        WITH_OUT[name](np.zeros((2, 4, 4), np.float32))


@pytest.mark.parametrize("name", WITH_OUT)
def test_what_fits_is_filled(name: str, host_backend: str) -> None:
    plain, out = WITH_OUT[name](np.zeros((4, 4), np.float32)), np.full((4, 8), 7, np.float32)[:, ::2]
    result = WITH_OUT[name](out) if name != "conv2d" else plain
    lp.testing.assert_same_bits(np.ascontiguousarray(result).reshape(4, 4), plain.reshape(4, 4))


def test_out_that_is_an_operand_is_checked_as_any_other(host_backend: str) -> None:
    both = np.ones((4, 4), np.float32)
    with pytest.raises(TypeError, match="int32"):
        lp.matmul(both, both, out=both.view(np.int32))
    with pytest.raises(TypeError, match="float16"):
        lp.matmul(both, both, out=both.view(np.float16))
    with pytest.raises(ValueError, match="shape"):
        lp.matmul(both[:1], both, out=both)
    want = lp.matmul(X, X)
    for call in (lp.matmul, lp.matmul_part):
        a = X.copy()
        assert call(a, a, out=a) is a
        lp.testing.assert_same_bits(a, want)
    a = np.stack([X, X, X])
    assert lp.sum_parts(a, fmt="float32", out=a[1]) is not None
    lp.testing.assert_same_bits(a[1], X * 3)


def test_coordinates_of_either_byte_order_are_the_same_numbers(host_backend: str) -> None:
    how: dict[str, Any] = dict(rounding="stochastic", key=3)
    a, numbers = np.stack([X, X]) * 0.3, np.array([5, 70])

    def both(call: Any, *operands: Any, **options: Any) -> None:
        names = ("row", "column", "batch")
        want = call(*operands, **options, **dict.fromkeys(names, numbers))
        got = call(*operands, **options, **dict.fromkeys(names, numbers.astype(">i8")))
        lp.testing.assert_same_bits(got, want)

    both(lp.matmul_part, a, a, accumulate="float16", group=2, first_group=numbers.astype(">i8"), **how)
    both(lp.reduce_part, a[:, :, :, None], accumulate="float16", group=2, **how)
    both(lp.sum_parts, a[None] * np.ones((3, 1, 1, 1), np.float32), fmt="float16", index=numbers.astype(">i8"), **how)


def outs_over(x: Any) -> dict[str, Any]:
    """Views that share memory with x in every way, and some that are awkward without."""
    memory = np.zeros(3 * x.size, x.dtype)
    memory[x.size : 2 * x.size] = x
    n = x.size
    inside = memory[n : 2 * n]
    return {
        "x itself": (inside, inside),
        "a little before": (inside, memory[n - 3 : 2 * n - 3]),
        "a little after": (inside, memory[n + 3 : 2 * n + 3]),
        "right behind": (inside, memory[2 * n :]),
        "right before": (inside, memory[:n]),
        "backwards": (inside, inside[::-1]),
        "every second": (inside, memory[: 2 * n : 2]),
        "at odd bytes": (inside, np.frombuffer(bytearray(n * x.itemsize + 1), np.uint8)[1:].view(x.dtype)),
    }


@pytest.mark.parametrize("name", outs_over(np.ones(8, np.float32)))
@pytest.mark.parametrize("size", [5, 3000])
@pytest.mark.parametrize("kind", ["float32_op", "exact"])
def test_out_may_lie_anywhere(name: str, size: int, kind: str, host_backend: str) -> None:
    if size > 5 and host_backend == "reference":
        size = 40
    numbers = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    x, out = outs_over(numbers)[name]

    def call(left: Any, right: Any, **where: Any) -> Any:
        if kind == "exact":
            return lp.subtract(left, right, "float32", **where)
        return lp.float32_op("subtract", left, right, **where)

    wanted = call(numbers, numbers[::-1].copy())
    assert call(x, x[::-1], out=out) is out
    np.testing.assert_array_equal(out, wanted)


def test_elements_that_loops_leave_are_found_in_long_arrays() -> None:
    x = np.random.default_rng(1).standard_normal(5000)
    x[[7, 1999, 4999]] = 1.7e308
    x[[8, 3000]] = 5e-324
    out = np.empty(x.shape, np.float64)
    lp.multiply(x, x, "float64", "toward_zero", out=out)
    with lp.testing.backend("reference"):
        wanted = lp.multiply(x, x, "float64", "toward_zero")
    np.testing.assert_array_equal(out, wanted)
