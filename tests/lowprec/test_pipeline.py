"""Prepared operations that go through pieces of rows together: the bits of the same operations on whole arrays."""

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from lowprec import Accumulation, Key, Rounding, float32_op, num_threads, reduce_max, reduce_sum
from lowprec._kernels import paths_off
from lowprec.pipeline import Pipeline, runs_here
from lowprec.testing import backend

RNG = np.random.default_rng(2)
SIZE = 70_001
A, B = (RNG.normal(size=SIZE).astype(np.float16) for _ in range(2))
HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
STOCHASTIC = Rounding("stochastic")


def pipeline(piece: int, out: Any, memory: Any) -> Pipeline:
    """tanh(a + b) * b of which only the product is whole."""
    inside = [
        as_strided(memory[at:].view(dtype), (SIZE,), (dtype.itemsize,))
        for at, dtype in ((0, SINGLE), (4 * piece, HALF))
    ]
    call = Pipeline(memory)
    call.part(SIZE, piece)
    call.add("add", (HALF, HALF), "float32", STOCHASTIC, (A, B), inside[0], (0, 0, 4))
    call.add("tanh", (SINGLE,), "float16", STOCHASTIC, (inside[0],), inside[1], (4, 2), (7,))
    call.add("multiply", (HALF, HALF), "float16", STOCHASTIC, (inside[1], B), out, (2, 0, 0), (8, 9))
    return call


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("piece", [64, 1000, 1 << 14, 1 << 20])
def test_pieces_on_threads_have_the_bits_of_whole_arrays(piece: int, threads: int) -> None:
    out, key = np.empty(SIZE, np.float16), Key(5)
    call = pipeline(piece, out, np.zeros(6 * piece, np.uint8))
    with num_threads(threads):
        call(key)
    total = float32_op("add", A, B)
    value = float32_op("tanh", total, fmt="float16", rounding="stochastic", key=key.fold_in(7))
    wanted = float32_op("multiply", value, B, fmt="float16", rounding="stochastic", key=key.fold_in(8).fold_in(9))
    np.testing.assert_array_equal(out.view(np.uint16), wanted.view(np.uint16))


def test_every_run_draws_with_its_own_key() -> None:
    """A pipeline is kept, and run with the key of each step; what only chooses or sums draws too."""
    x, y, total = A[:600].reshape(30, 20), np.empty((30, 20), np.float16), np.empty((30, 1), np.float16)
    order = Accumulation(group=3, accumulate="float16")
    call = Pipeline(np.zeros(0, np.uint8))
    call.part(30, 7)
    call.add("scaled_add", (HALF, HALF, None), HALF, STOCHASTIC, (x, x, 0.3), y, (0,) * 4, (3, 1))
    call.add_sum(order, STOCHASTIC, y[:, :, None], total, (0, 0), (4, 2))
    seen = set()
    for key in (Key(5), Key(6), Key(5), Key(2**64 - 1), Key(0)):
        call(key)
        folded = key.fold_in(3).fold_in(1)
        wanted = float32_op("scaled_add", x, x, 0.3, fmt=HALF, rounding=STOCHASTIC, key=folded)
        np.testing.assert_array_equal(y.view(np.uint16), wanted.view(np.uint16))
        sums = reduce_sum(wanted, 1, accumulation=order, rounding=STOCHASTIC, key=key.fold_in(4).fold_in(2))
        np.testing.assert_array_equal(total[:, 0].view(np.uint16), sums.view(np.uint16))
        seen.add(y.tobytes())
    assert len(seen) == 4


def test_a_part_after_another_and_numbers() -> None:
    x, y, z = np.arange(12, dtype=np.float32), np.empty(12, np.float32), np.empty((3, 4), np.float32)
    call = Pipeline(np.zeros(0, np.uint8))
    call.part(12, 5)
    call.add("scaled_add", (SINGLE, None, None), "float32", Rounding(), (x, 2.0, 3), y, (0, 0, 0, 0))
    call.part(3, 1)  # rows of four
    call.add("subtract", (SINGLE, SINGLE), "float32", Rounding(), (y.reshape(3, 4), x[:3, None]), z, (0, 0, 0))
    call(None)
    np.testing.assert_array_equal(z, (x + 6).reshape(3, 4) - x[:3, None])


ORDERS = [
    Accumulation(group=5, accumulate="float16"),
    Accumulation(group=1, splits=3, accumulate="float16", out="bfloat16"),
    Accumulation(splits=7, stages=2, out="float16"),
    Accumulation(group=None),
]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 64, 100])
@pytest.mark.parametrize("shape", [(700, 41, 1), (210, 13, 19), (1400, 1, 1)])
def test_rows_are_summed_with_the_bits_of_the_whole_array(
    shape: tuple[int, int, int], rows: int, order: Accumulation, threads: int
) -> None:
    """x - the largest of its row, divided by the sum of that row."""
    m, _, n = shape
    x, key = RNG.normal(size=shape).astype(np.float16), Key(5)
    dtype = reduce_sum(x[:1], 1, accumulation=order).dtype
    memory, inside, bytes_of_row = np.zeros(1 << 21, np.uint8), [], []
    for number, (kind, lengths) in enumerate(((HALF, (m, 1, n)), (HALF, shape), (dtype, (m, 1, n)))):
        strides = (lengths[1] * n * kind.itemsize, n * kind.itemsize, kind.itemsize)
        inside.append(as_strided(memory[number << 19 :].view(kind), lengths, strides))
        bytes_of_row.append(m // 70 * strides[0])
    largest, shifted, total = inside
    out = np.empty(shape, np.float16)
    call = Pipeline(memory)
    call.part(70, rows)
    call.add_maximum(x, largest.reshape(m, n), (0, bytes_of_row[0]))
    call.add(
        "subtract",
        (HALF, HALF),
        HALF,
        STOCHASTIC,
        (x, np.broadcast_to(largest, shape)),
        shifted,
        (0, *bytes_of_row[:2]),
        (3,),
    )
    call.add_sum(order, STOCHASTIC, shifted, total.reshape(m, n), bytes_of_row[1:], (4,))
    call.add(
        "divide",
        (HALF, dtype),
        HALF,
        STOCHASTIC,
        (shifted, np.broadcast_to(total, shape)),
        out,
        (*bytes_of_row[1:], 0),
        (7,),
    )
    with num_threads(threads):
        call(key)
    y = float32_op("subtract", x, reduce_max(x, 1, keepdims=True), fmt=HALF, rounding=STOCHASTIC, key=key.fold_in(3))
    z = reduce_sum(y, 1, accumulation=order, rounding=STOCHASTIC, key=key.fold_in(4), keepdims=True)
    wanted = float32_op("divide", y, z, fmt=HALF, rounding=STOCHASTIC, key=key.fold_in(7))
    np.testing.assert_array_equal(out.view(np.uint16), wanted.view(np.uint16))


def test_what_does_not_fit_is_refused() -> None:
    out = np.empty(SIZE, np.float16)
    with pytest.raises(ValueError, match="needs key="):
        pipeline(64, out, np.zeros(6 * 64, np.uint8))(None)
    call = Pipeline(np.zeros(0, np.uint8))
    with pytest.raises(ValueError, match="no such step"):
        call.add("exp", (HALF,), "float16", Rounding(), (A,), out, (0, 0))
    with pytest.raises(ValueError, match="rows"):
        call.part(0, 1)
    call.part(SIZE, 64)
    with pytest.raises(ValueError, match="no such step"):
        call.add("exp", (HALF,), "float16", Rounding(), (A,), out, (0,))
    with pytest.raises(ValueError, match="out has shape"):
        call.add("exp", (HALF,), "float16", Rounding(), (A,), out[1:], (0, 0))
    with pytest.raises(ValueError, match="C-contiguous"):
        call.add("exp", (HALF,), "float16", Rounding(), (A[:100],), out[:200:2], (0, 0))
    with pytest.raises(TypeError, match="out must be an array of float32"):
        call.add("exp", (HALF,), "float32", Rounding(), (A,), out, (0, 0))
    with pytest.raises(TypeError, match="an operand must be"):
        call.add("exp", (SINGLE,), "float16", Rounding(), (A,), out, (0, 0))
    x, sums = A[:60].reshape(5, 6, 2), np.empty((5, 2), np.float16)
    half = Accumulation(accumulate="float16")
    call.part(2, 1)
    with pytest.raises(ValueError, match="whole rows"):
        call.add_sum(half, Rounding(), x, sums, (0, 0))
    call.part(5, 1)
    with pytest.raises(ValueError, match="no such step"):
        call.add_sum(half, Rounding(), x, sums, (0,))
    with pytest.raises(ValueError, match="out has shape"):
        call.add_sum(half, Rounding(), x, sums[1:], (0, 0))
    with pytest.raises(TypeError, match="out must be an array of float32"):
        call.add_sum(Accumulation(), Rounding(), x, sums, (0, 0))
    with pytest.raises(ValueError, match="for products"):
        call.add_sum(Accumulation(adder="aligned", aligned_bits=8), Rounding(), x, sums, (0, 0))
    with pytest.raises(ValueError, match="no elements"):
        call.add_maximum(x[:, :0], sums, (0, 0))
    with pytest.raises(ValueError, match="unknown operation"):
        call.add("expp", (HALF,), "float16", Rounding(), (A,), out, (0, 0))


def test_pipelines_are_the_compiled_backends() -> None:
    assert runs_here() == ("pipelines" not in paths_off())
    with backend("reference"):
        assert not runs_here()
