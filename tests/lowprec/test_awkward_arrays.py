"""Arrays as users have them: overlapping, unaligned, byte-swapped, read-only, subclasses; and wrong arguments."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowprec as lp
import lowprec.testing as lpt

X = np.random.default_rng(0).normal(size=5000).astype(np.float32)
CALLS: dict[str, Callable[..., Any]] = {
    "round": lambda x, **k: lp.round(x, "float8_e4m3fn", "stochastic", key=3, **k),
    "astype": lambda x, **k: lp.astype(x, "float32", "up", **k),
    "add": lambda x, **k: lp.add(x, x[::-1], "float32", "toward_zero", **k),
    "exp": lambda x, **k: lp.exp(x, **k),
    "maximum": lambda x, **k: lp.float32_op("maximum", x[::-1], x, **k),
}
PLACES = [slice(0, 2000), slice(1, 2001), slice(0, 4000, 2), slice(2000, 0, -1)]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("read, write", list(itertools.product(PLACES, PLACES)), ids=str)
def test_out_may_overlap_the_operands(call: Callable[..., Any], read: slice, write: slice) -> None:
    memory = X.copy()
    want = call(memory[read].copy())
    out = memory[write]
    assert call(memory[read], out=out) is out
    lpt.assert_same_bits(out.copy(), want)


def test_out_may_share_bytes_of_another_dtype() -> None:
    half, memory = lp.astype(X, "float16"), X.copy()
    lpt.assert_same_bits(lp.astype(memory, "float16", out=memory.view(np.float16)[:5000]), half)
    codes, memory = lp.encode(X, "float8_e5m2"), X.copy()
    lpt.assert_same_bits(lp.encode(memory, "float8_e5m2", out=memory.view(np.uint8)[4:5004]), codes)
    memory = np.zeros(5000, np.float32)
    memory.view(np.uint8)[:5000] = codes
    lpt.assert_same_bits(
        lp.decode(memory.view(np.uint8)[:5000], "float8_e5m2", out=memory), lp.decode(codes, "float8_e5m2")
    )


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_layout_and_byte_order_play_no_part(call: Callable[..., Any]) -> None:
    want = call(X[:600])
    unaligned = np.zeros(2401, np.uint8)[1:].view(np.float32)
    unaligned[...] = X[:600]
    fields = np.zeros(600, [("byte", "i1"), ("x", "f4")])
    fields["x"] = X[:600]
    frozen = X[:600].copy()
    frozen.flags.writeable = False
    for same in (unaligned, fields["x"], frozen, X[:600].astype(">f4"), X[599::-1][::-1]):
        lpt.assert_same_bits(call(same), want)
        odd_place = np.zeros(4 * 600 + 1, np.uint8)[1:].view(np.float32)
        lpt.assert_same_bits(call(same, out=odd_place).copy(), want)


class Sub(np.ndarray):  # type: ignore[type-arg]
    """A subclass without anything of its own."""


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "round": lambda x: lp.round(x, "float16"),
    "encode and decode": lambda x: lp.decode(lp.encode(x, "float16"), "float16"),
    "sqrt": lambda x: lp.sqrt(x, "float16"),
    "add, first": lambda x: lp.add(x, 1.0, "float16"),
    "add, second": lambda x: lp.add(np.ones(3, np.float16), x, "float16"),
    "exp": lp.exp,
    "float32_op": lambda x: lp.float32_op("add", 1.0, x),
}


@pytest.mark.parametrize("call", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_subclasses_and_scalars_come_out_as_of_numpy(call: Callable[..., Any]) -> None:
    x = np.abs(X[:3])
    plain = call(x)
    assert type(call(x.view(Sub))) is Sub
    masked = call(np.ma.array(x, mask=[True, False, False]))
    assert masked.mask.tolist() == [True, False, False]
    lpt.assert_same_bits(np.asarray(masked), plain)


def test_scalars_give_scalars_and_arrays_without_axes_give_arrays() -> None:
    for call in (lambda x: lp.round(x, "float16"), lambda x: lp.sqrt(x, "float16"), lp.exp):
        assert isinstance(call(1.5), np.floating)
        assert isinstance(call(np.float32(1.5)), np.floating)
        for zero_axes in (np.array(1.5, np.float32), np.zeros((), np.float32)):
            got = call(zero_axes)
            assert isinstance(got, np.ndarray)
            assert got.shape == ()


def test_masks_unite_and_follow_the_shape() -> None:
    a = np.ma.array([1.0, 2.0], mask=[False, True])
    b = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[True, False], [False, False]])
    got = lp.add(a, b, "float16")
    assert got.mask.tolist() == [[True, True], [False, True]]
    assert got.data.tolist() == [[2, 4], [4, 6]]
    assert lp.add(a, np.ones((3, 2)), "float16").mask.tolist() == [[False, True]] * 3
    assert type(lp.multiply(np.ones((3, 2)), np.ones(2).view(Sub), "float16")) is Sub


def test_of_two_subclasses_the_one_of_higher_priority_is_returned() -> None:
    plain, masked = np.array([1.0, 2.0], np.float32).view(Sub), np.ma.array([3, 4], np.float32, mask=[True, False])
    for got in (lp.add(plain, masked), lp.add(masked, plain), lp.float32_op("add", plain, masked)):
        assert isinstance(got, np.ma.MaskedArray)
        assert got.mask.tolist() == [True, False]
        assert got[1] == 6


def test_signalling_nans_make_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bits, dtype in ((0x7F800001, np.float32), (0x7C01, np.float16), (0x7F81, ml_dtypes.bfloat16)):
            x = np.array([bits], f"u{np.dtype(dtype).itemsize}").view(dtype)
            for got in (lp.add(x, x, "float16"), lp.sqrt(x, "float16"), lp.exp(x), lp.round(x, "float8_e5m2")):
                assert np.isnan(got).all()


@pytest.mark.parametrize("bits", [7, 16, 24])
def test_offsets_up_to_the_last_index(bits: int, host_backend: str) -> None:
    last = 2**64 - 20
    options: dict[str, Any] = {"key": 1, "random_bits": bits}
    whole = lp.encode(X[:20], "float8_e5m2", "stochastic", offset=last, **options)
    for start in range(20):
        part = lp.encode(X[start:20], "float8_e5m2", "stochastic", offset=last + start, **options)
        np.testing.assert_array_equal(part, whole[start:])


def test_offsets_beyond_the_last_index_are_refused() -> None:
    calls: list[Callable[[int], Any]] = [
        lambda n: lp.encode(X[:20], "float8_e5m2", "stochastic", key=1, offset=n),
        lambda n: lp.add(X[:20], 1.0, "float8_e5m2", "stochastic", key=1, offset=n),
        lambda n: lp.exp(X[:20], "float8_e5m2", "stochastic", key=1, offset=n),
        lambda n: lp.random_bits(1, 20, offset=n),
    ]
    for call in calls:
        call(2**64 - 20)
        with pytest.raises(ValueError, match=r"offset \+ size must be at most 2\^64, not 18446744073709551597 \+ 20"):
            call(2**64 - 19)
        with pytest.raises(TypeError, match=r"offset must be an integer in \[0, 2\^64\), not float"):
            call(1.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not -1"):
            call(-1)


@pytest.mark.parametrize("name", ["overflow", "infinite_input", "random_bits", "flush", "rounding"])
def test_lists_for_names_are_refused_by_name(name: str) -> None:
    arguments: dict[str, Any] = {name: ["nearest_even"], "key": 1}
    for call in (lp.round, lp.astype, lp.encode, lambda x, f, **k: lp.add(x, x, f, **k)):
        if name == "rounding" and call not in (lp.round, lp.astype, lp.encode):
            continue
        with pytest.raises(
            TypeError, match=rf"{name} must be a name, a number, a bool or None, not \['nearest_even'\]"
        ):
            call(X, "float16", **arguments)


def test_wrong_arguments_say_what_is_right() -> None:
    with pytest.raises(TypeError, match="flush must be True or False, not 'yes'"):
        lp.round(X, "float16", flush="yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"cannot round objects .integers beyond 64 bits, None, or a mixture"):
        lp.astype(2**70, "float32")
    with pytest.raises(TypeError, match="cannot round objects"):
        lp.round(None, "float16")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"bits must be an integer of 1 to 32, not 16.0"):
        lp.random_bits(1, 3, 16.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"split makes at most 2\^24 keys"):
        lp.Key(1).split(10**12)
    with pytest.raises(ValueError, match="num_threads needs an integer of at least 1, not 0"):
        lp.num_threads(0)  # at once, not when the context is entered
    for seed in (5, (1,), (1, 2, 3)):
        with pytest.raises(TypeError, match="seed must be a pair of 32-bit words"):
            lp.Xoroshiro128aox.for_tile(seed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"tile must be in \[0, 268435456\), not 268435456"):
        lp.Xoroshiro128aox.for_tile((1, 2), tile=1 << 28)
    with pytest.raises(ValueError, match=r"warm_up must be an integer in .* not -1"):
        lp.Xoroshiro128aox.for_tile((1, 2), warm_up=-1)
    with pytest.raises(TypeError, match=r"n must be an integer in .* not float"):
        lp.Xoroshiro128aox(1, 0).draw(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a probability in .* are needed, not 2.0 and 10"):
        lpt.assert_binomial(5, 10, 2.0)
    with pytest.raises(TypeError, match="a state word must be an integer"):
        lp.Xoroshiro128aox(1.5, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"operands must be float32.*not bool"):
        lp.exp(True)
    assert lp.decode([], "float16").shape == (0,)
    lp.round(np.array([2.0**-60]), "float16", random_bits="exact")  # no stochastic mode: the bits play no part


@pytest.mark.parametrize("dtype, fmt", [("bfloat16", "float32"), ("float16", "float32"), ("float8_e5m2", "float16")])
def test_round_does_not_promise_a_largest_value_that_the_dtype_cannot_hold(dtype: str, fmt: str) -> None:
    x = np.array([1.0, np.inf, -np.inf]).astype(lp.as_format(dtype).dtype)
    for policy in ({"infinite_input": "max"}, {"overflow": "satfinite"}):
        with pytest.raises(TypeError, match=f"{dtype} cannot hold {fmt}'s largest value.*use astype or encode"):
            lp.round(x, fmt, **policy)
        top = lp.as_format(fmt).max
        assert lp.astype(x, fmt, **policy).tolist() == [1.0, top, -top]
    np.testing.assert_array_equal(lp.round(x, fmt), x)
    assert np.isnan(lp.round(x, fmt, infinite_input="nan")[1:].astype(float)).all()


SUMS: dict[str, Callable[[Any], Any]] = {
    "sum": lp.sum,
    "mean": lp.mean,
    "dot": lambda x: lp.dot(X[:3], x),
    "norm": lp.norm,
    "cumulative_sum": lp.cumulative_sum,
    "kahan_sum": lp.kahan_sum,
    "reduce_sum": lp.reduce_sum,
    "reduce_max": lp.reduce_max,
    "matmul": lambda x: lp.matmul(X[:3], x),
    "to_blocks": lambda x: lp.to_blocks(x, "mxfp8_e4m3"),
    "to_scaled": lambda x: lp.to_scaled(x, "float8_e4m3fn"),
    "all_reduce": lp.all_reduce,
    "scatter_add": lambda x: lp.scatter_add(np.zeros(3, np.int32), x[:, None], 1),
}


@pytest.mark.parametrize("call", SUMS.values(), ids=SUMS)
def test_sums_refuse_masked_elements_and_take_masks_of_none(call: Callable[[Any], Any]) -> None:
    masked = np.ma.array(X[:3], mask=[False, True, False])
    with pytest.raises(TypeError, match=r"no masked elements \(1 here\).*filled"):
        call(masked)
    lpt.assert_same_bits(np.asarray(call(np.ma.array(X[:3]))), np.asarray(call(X[:3])))
