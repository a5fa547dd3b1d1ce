"""What an array is like: against NumPy in float64, and the same bits by every backend and instruction set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lowprec
from lowprec import testing
from lowprec.backends import cpu, reference
from lowprec.statistics import lost_updates, magnitudes
from lowprec.statistics.counts import PIECE, counted, step_through
from lowprec.statistics.updates import changes

DTYPES: list[Any] = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]
KINDS = [np.float32, np.float16, ml_dtypes.bfloat16]
CODES = hnp.arrays(np.uint32, st.integers(0, 100), elements=st.integers(0, 2**32 - 1))
FACTORS = st.sampled_from([1.0, -0.5, 1e-30, 3e38, 0.0, float("inf"), float("nan")])


def numbers(codes: npt.NDArray[np.uint32], dtype: Any) -> Any:
    """Any numbers of a dtype, by the upper halves of the codes where it has 16 bits."""
    return codes.view(dtype) if dtype == np.float32 else (codes >> 16).astype(np.uint16).view(dtype)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    codes=CODES, dtype=st.sampled_from(KINDS), isa=st.sampled_from(testing.isa_names()), count=st.integers(0, 100),
    step=st.integers(1, 100), factor=FACTORS,
)  # fmt: skip
def test_the_compiled_loop_counts_as_the_reference(
    codes: npt.NDArray[np.uint32], dtype: Any, isa: str, count: int, step: int, factor: float
) -> None:
    x = numbers(codes, dtype)
    count, step = (count, min(step, x.size)) if x.size else (0, 0)
    exponents = np.zeros((2, 256), np.int64)
    with testing.isa(isa):
        seen = cpu.magnitudes(x, count, step, exponents[0], factor)
    assert seen == reference.magnitudes(x, count, step, exponents[1], factor)
    assert np.array_equal(*exponents)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data(), isa=st.sampled_from(testing.isa_names()), count=st.integers(0, 1200), factor=FACTORS)
def test_changes_are_counted_as_by_the_reference(data: Any, isa: str, count: int, factor: float) -> None:
    size = data.draw(st.sampled_from([0, 1, 7, 40, 511, 512, 1100]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    kinds = [data.draw(st.sampled_from(KINDS)) for _ in range(4)]
    few = rng.choice(np.array([0, -0.0, 1, 1.0078125, 1e-7, 3e38, np.inf, np.nan]), (4, size))
    with np.errstate(over="ignore"):
        base, direction, before, after = (row.astype(kind) for row, kind in zip(few, kinds, strict=True))
    step = data.draw(st.integers(1, size)) if size else 0
    count, step = data.draw(st.sampled_from([(size, min(1, size)), (count if size else 0, step)]))
    for root in (base, None):
        with testing.isa(isa):
            seen = cpu.changes(root, direction, factor, before, after, count, step)
        assert seen == reference.changes(root, direction, factor, before, after, count, step)


def test_changes_are_lost_where_they_are_wanted_and_nothing_changed() -> None:
    before = np.array([1, 1, 1, 0], np.float16)
    direction = np.array([1, 1, 0, 1], np.float32)
    after = np.array([1, 1.5, 1, 0.5], np.float16)
    assert cpu.changes(None, direction, 1e-5, before, after, 4, 1) == (3, 1)
    assert cpu.changes(before, direction, 1e-20, before, after, 4, 1) == (3, 1)  # though 1 + 1e-20 is 1 in float64
    tiny = np.full(4, 1e-30, np.float32)
    assert cpu.changes(None, tiny, 1e-30, before, after, 4, 1) == (4, 2)  # though float32 has no 1e-60
    square = direction.reshape(2, 2)
    assert cpu.changes(square.T, np.zeros((2, 2), np.float32), 1.0, square, square, 4, 1) == (2, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, -1e-30, 1e300, np.inf, np.nan, 0.0])
def test_the_compiled_count_of_lost_updates_is_that_of_the_statistics(kind: Any, scale: float) -> None:
    numbers = np.array([0, -0.0, 1, -1, 1.0078125, 1e-7, 3e38, np.inf, -np.inf, np.nan])
    with np.errstate(over="ignore"):
        base, before, direction, after = (
            x.ravel().astype(kind) for x in np.meshgrid(numbers, numbers, numbers, numbers)
        )
    wide = [x.astype(np.float64) for x in (base, before, direction)]
    for root, start in ((None, wide[1]), (base, wide[0])):
        with np.errstate(all="ignore"):
            update = (start - wide[1] if root is not None else 0) + scale * wide[2]
        seen = changes(root, direction, scale, before, after, after.size, 1)
        assert seen == lost_updates(before, update, after)[:2]


SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 5), (PIECE + 17,), (3, PIECE)]
CASES = [
    pytest.param(
        backend, dtype, shape, id=f"{backend}-{np.dtype(dtype).name}-{shape}",
        marks=[pytest.mark.slow] * (backend == "reference" and PIECE + 17 in shape and dtype != np.float16),
    )
    for backend in ("reference", "cpu") for dtype in DTYPES for shape in SHAPES[: None if backend == "cpu" else -1]
]  # fmt: skip
"""Every dtype and shape; the reference takes long over arrays of several pieces."""


@pytest.mark.parametrize("backend, dtype, shape", CASES)
def test_an_array_is_as_numpy_finds_it(backend: str, dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=shape) * 2.0 ** rng.integers(-9, 4, shape)
    values.flat[::7], values.flat[3::50] = 0.0, np.nan
    x = np.asarray(lowprec.astype(values, dtype))
    plain = x.astype(np.float64)
    with testing.backend(backend):
        seen, whole = magnitudes(x, sample=100), magnitudes(x)
    finite = plain[np.isfinite(plain)]
    assert seen[:3] == ((plain == 0).sum(), np.isinf(plain).sum(), np.isnan(plain).sum())
    assert seen.largest == np.abs(finite).max(initial=0)
    assert seen.squares == pytest.approx((finite**2).sum(), rel=1e-13)
    assert seen.exponents.sum() == min(100, x.size)
    every = np.frexp(finite[finite != 0])[1] + 126
    assert np.array_equal(whole.exponents[1:255], np.bincount(every, minlength=255)[1:255])


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn])
@pytest.mark.parametrize("factor", [1.0, -0.375, 3e38])
def test_pieces_of_narrow_formats_are_counted_as_the_whole_in_float32(dtype: Any, factor: float) -> None:
    """What is special stands in the first piece, so that no later one may take its place."""
    values = np.random.default_rng(4).normal(size=2 * PIECE + 1001)
    values[:PIECE] *= 2
    x = np.asarray(lowprec.astype(values, dtype, overflow="saturate"))
    fmt = lowprec.as_format(dtype)
    codes = x.view(np.uint8)
    codes[5:50:7], codes[100:130] = 0, fmt.max_code
    if fmt.nan_code is not None:
        codes[1:30:9] = fmt.nan_code
    if fmt.inf_code is not None:
        codes[2:30:8] = fmt.inf_code
    plain = lowprec.decode(x, fmt)
    for lay in (lambda x: x, lambda x: x[::-1], lambda x: x[:-1].reshape(2, -1).T):
        mine, whole = lay(x), np.ascontiguousarray(lay(plain))
        size = mine.size
        for count in (0, 999, size):
            exponents, wanted = np.zeros((2, 256), np.int64)
            step = step_through(size, count)
            seen = counted(mine, fmt, count, step, exponents, factor)
            want = counted(whole, lowprec.float32, count, step, wanted, factor)
            assert (*seen[:3], seen[4]) == (*want[:3], want[4])
            assert seen[3] == pytest.approx(want[3], rel=1e-12)
            np.testing.assert_array_equal(exponents, wanted)


def test_the_first_of_several_pieces_of_16_bits_may_hold_the_largest() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = np.ones(3 * PIECE + 5, dtype)
        x[[3, 7, 9, 11]] = [-1000, np.inf, np.nan, 0]
        assert magnitudes(x)[:3] == (1, 1, 1)
        assert magnitudes(x).largest == 1000


def test_layouts_do_not_matter() -> None:
    x = np.random.default_rng(0).normal(size=(60, 50)).astype(np.float32)
    wanted = magnitudes(np.ascontiguousarray(x.T[::-2]), sample=99)
    seen = magnitudes(x.T[::-2], sample=99)
    assert seen[:5] == wanted[:5]
    assert np.array_equal(seen.exponents, wanted.exponents)


def test_codes_have_the_format_that_is_said() -> None:
    assert magnitudes(np.array([0x38, 0x40], np.uint8), "float8_e4m3fn").squares == 5.0


def test_bad_input_is_refused() -> None:
    with pytest.raises(TypeError, match="not of list"):
        magnitudes([1.0])
    with pytest.raises(ValueError, match="not of float64"):
        magnitudes(np.ones(3))
    with pytest.raises(ValueError, match="not -1"):
        magnitudes(np.ones(3, np.float32), sample=-1)
    with pytest.raises(ValueError, match="no such elements"):
        cpu.magnitudes(np.ones(3, np.float32), 1, 4, np.zeros(256, np.int64))
    with pytest.raises(ValueError, match="float32, float16 and bfloat16 are counted, not float64"):
        cpu.magnitudes(np.ones(3), 1, 1, np.zeros(256, np.int64))
    x = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="the same size"):
        cpu.changes(None, x, 1.0, x, np.ones(4, np.float32), 3, 1)


FEW = np.array([0, -0.0, 1, -1, 1e-20, 1e-30, 3e38, np.inf, np.nan])


def drawn(rng: np.random.Generator, shape: tuple[int, ...], kind: Any, turned: bool) -> Any:
    """Numbers that often add up or multiply to zero, in C order or with the axes' memory reversed."""
    often = [0.3, 0.1, 0.15, 0.15, 0.1, 0.1, 0.04, 0.03, 0.03]
    with np.errstate(over="ignore"):
        x = np.asarray(rng.choice(FEW, shape[::-1] if turned else shape, p=often))
        return np.asarray(x.astype(kind).T if turned else x.astype(kind))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    op=st.sampled_from(["multiply", "divide", "scaled_add", "dot", "reduce_sum"]), seed=st.integers(0, 99),
    kinds=st.tuples(*[st.sampled_from(KINDS)] * 3), turned=st.tuples(st.booleans(), st.booleans()),
    shape=st.sampled_from([(), (7,), (5, 6), (2, 3, 4), (40, 30)]), single=st.sampled_from([None, "array", "number"]),
    isa=st.sampled_from(testing.isa_names()), share=st.floats(0, 1),
)  # fmt: skip
def test_zeros_are_computed_again_as_by_the_reference(
    op: str, seed: int, kinds: Any, turned: Any, shape: Any, single: str | None, isa: str, share: float
) -> None:
    rng = np.random.default_rng(seed)
    result = np.asarray(rng.random(shape) < 0.5).astype(kinds[0])
    shapes = [shape, shape]
    if op == "dot":
        if len(shape) < 2:
            return
        shapes = [(*shape[:-1], 3), (*shape[:-2], 3, shape[-1])]
    elif op == "reduce_sum":
        shapes = [(*shape, 3), shape]
    left, right = (drawn(rng, *each) for each in zip(shapes, kinds[1:], turned, strict=True))
    if op in ("multiply", "divide", "scaled_add") and single is not None:
        right = np.asarray(right.reshape(-1)[0]) if single == "array" else 1e-5
    zeros = int((result == 0).sum())
    given = op, result, left, None if op == "reduce_sum" else right, -0.5, zeros, round(zeros * share)
    with testing.isa(isa):
        assert cpu.underflows(*given) == reference.underflows(*given)


def test_chosen_zeros_are_spread_over_all_and_have_no_period() -> None:
    result, wanted = np.zeros(6000, np.float32), np.zeros(6000, np.float32)
    wanted[::60] = 1
    for share in (10, 20, 60):
        found = cpu.underflows("multiply", result, wanted, 1.0, 1.0, 6000, 6000 // share)
        assert found * share == pytest.approx(100, abs=99)  # each is one of few: without turns it is none, or 6000
    chosen = [reference.counting.chosen_zero(k, 6000, 100) for k in range(100)]
    assert [place // 60 for place in chosen] == list(range(100))


@pytest.mark.parametrize("op", ["multiply", "dot", "reduce_sum"])
def test_operands_of_another_shape_are_refused(op: str) -> None:
    x = np.zeros((2, 3), np.float32)
    operands = {"multiply": (x.T, x), "dot": (np.zeros((3, 4), np.float32), np.zeros((4, 3), np.float32))}
    with pytest.raises(ValueError, match="an operand has"):
        cpu.underflows(op, x, *operands.get(op, (x, None)), 1.0, 6, 6)
    with pytest.raises(ValueError, match="no such zeros"):
        cpu.underflows("multiply", x, x, x, 1.0, 6, 7)
    with pytest.raises(ValueError, match="other numbers of terms"):
        cpu.underflows("dot", x, np.zeros((2, 4), np.float32), np.zeros((5, 3), np.float32), 1.0, 6, 6)


def test_a_zero_that_would_be_infinite_or_nan_has_not_underflowed() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1e-30, -1e-30, 0], np.float32)
    for door in (cpu.underflows, reference.underflows):
        assert door("multiply", np.zeros(6, np.float32), x, 1e-30, 1.0, 6, 6) == 2
        assert door("divide", np.zeros(6, np.float32), 1.0, np.zeros(6, np.float32), 1.0, 6, 6) == 0
