"""matmul and matmul_part: backends, MPFR, the order of additions, random bits, shapes, errors."""

from __future__ import annotations

import itertools
from typing import Any

import gmpy2
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowprec as lp
from lowprec.sums.matmul import prepare, prepare_part
from tests.examples import examples
from tests.lowprec.sums_cases import (
    ACCUMULATORS,
    NO_NAN,
    RESULTS,
    STORED_ACCUMULATORS,
    Array,
    arrays,
    assert_backends_agree,
    outcome,
    rounding_options,
    strided,
)

ROWS, INNER, COLUMNS = [0, 1, 2, 3, 5, 7, 9, 13], [0, 1, 3, 16, 17, 31, 40, 50], [1, 2, 7, 16, 17, 33]


def normal(*shape: int, seed: int = 0, dtype: Any = np.float16) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32).astype(dtype))


@st.composite
def operands(draw: st.DrawFn) -> tuple[Array, Array]:
    m, k, n = draw(st.sampled_from(ROWS)), draw(st.sampled_from(INNER)), draw(st.sampled_from(COLUMNS))
    batch = draw(st.sampled_from([(), (), (2,), (2, 3)]))
    a = draw(arrays((*batch, m, k)).flatmap(strided))
    b = draw(arrays((*batch, k, n)).flatmap(strided))
    return a, b[0] if batch and draw(st.booleans()) else b


@examples(quick=200, slow=400)
@given(operands(), rounding_options(), st.data())
def test_every_backend_gives_the_same_bits(pair: Any, options: dict[str, Any], data: st.DataObject) -> None:
    assert_backends_agree(
        lp.matmul,
        *pair,
        **options,
        accumulate=data.draw(st.sampled_from(ACCUMULATORS)),
        group=data.draw(st.sampled_from([1, 2, 4, 7, 16, 16, None])),
        splits=data.draw(st.sampled_from([1, 1, 2, 5, 17])),
        stages=data.draw(st.sampled_from([None, None, 1, 2, 3])),
        out_format=data.draw(st.sampled_from([*RESULTS, *NO_NAN])),
        adder=data.draw(st.sampled_from(["sequential", "sequential", "sequential", "dot4", "pairwise"])),
        offset=(data.draw(st.integers(0, 99)), data.draw(st.integers(0, 99))),
    )


@examples(quick=60, slow=120)
@given(operands(), rounding_options(), st.data())
def test_every_backend_gives_the_same_parts(pair: Any, options: dict[str, Any], data: st.DataObject) -> None:
    a, b = pair
    vertices = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    assert_backends_agree(
        *(lp.matmul_part, a, b),
        **options,
        accumulate=data.draw(st.sampled_from([*STORED_ACCUMULATORS, *NO_NAN])),
        group=data.draw(st.sampled_from([1, 4, 16])),
        row=rng.integers(0, 99, vertices) if vertices else 3,
        column=rng.integers(0, 99, vertices[-1:]) if vertices else 21,
        first_group=data.draw(st.integers(0, 50)),
        batch=data.draw(st.integers(0, 9)),
    )


@examples(quick=75, slow=150)
@given(operands(), rounding_options(), st.data())
def test_serial_slices_of_k_are_the_whole_chain(pair: Any, options: dict[str, Any], data: st.DataObject) -> None:
    a, b = pair
    group = data.draw(st.sampled_from([1, 4, 5, 16, 16]))
    cuts = sorted(group * data.draw(st.integers(0, 60 // group)) for _ in range(data.draw(st.integers(0, 3))))
    options |= dict(group=group, accumulate=data.draw(st.sampled_from(STORED_ACCUMULATORS)), row=3, column=7)
    options["adder"] = data.draw(st.sampled_from(["sequential", "sequential", "dot4", "pairwise"]))
    plain = data.draw(st.booleans())

    def serial(**given: Any) -> Array | None:
        partial = None
        for start, stop in itertools.pairwise([0, *cuts, 60]):
            initial = partial.astype(np.float32) if plain and partial is not None else partial
            partial = lp.matmul_part(
                a[..., start:stop], b[..., start:stop, :], first_group=start // group, initial=initial, **given
            )
        return partial

    assert_backends_agree(serial, **options)
    for name in lp.testing.isa_names():
        with lp.testing.isa(name):
            want = outcome(lp.matmul_part, a, b, **options)
            if not isinstance(want, type):
                lp.testing.assert_same_bits(serial(**options), want)


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_a_chain_starts_from_initial(rounding: str, host_backend: str) -> None:
    a, b = normal(5, 32), normal(32, 19, seed=1)
    start = normal(5, 19, seed=2, dtype=np.float32)
    options: dict[str, Any] = dict(accumulate="float16", rounding=rounding, key=4)
    chain = start.copy()
    for k in range(16):
        chain = chain + a[:, k : k + 1].astype(np.float32) * b[k].astype(np.float32)
    one = lp.matmul_part(a[:, :16], b[:16], initial=start, **options)
    if rounding == "nearest_even":
        lp.testing.assert_same_bits(one, chain.astype(np.float16))
    else:
        spacing = np.spacing(np.abs(chain).astype(np.float16)).astype(np.float32)
        assert (np.abs(one - chain) < spacing).all()
    out = one.copy()
    assert lp.matmul_part(a[:, 16:], b[16:], first_group=1, initial=out, out=out, **options) is out
    lp.testing.assert_same_bits(out, lp.matmul_part(a[:, 16:], b[16:], first_group=1, initial=one, **options))
    nothing = lp.matmul_part(a[:, :0], b[:0], initial=start, **options)
    assert (nothing == start.astype(np.float16)).mean() > (0.9 if rounding == "nearest_even" else 0.2)
    assert lp.matmul_part(a[:, :0], b[:0], initial=one, **options).tolist() == one.tolist()


def test_initial_is_checked(host_backend: str) -> None:
    a, b = np.ones((2, 3), np.float16), np.ones((3, 2), np.float16)
    with pytest.raises(ValueError, match=r"shape|broadcast"):
        lp.matmul_part(a, b, initial=np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"shape|broadcast"):
        lp.matmul_part(a, b, initial=np.ones((4, 2, 2), np.float32))
    with pytest.raises(TypeError, match="initial must be an array of float32, not float64"):
        lp.matmul_part(a, b, initial=np.ones((2, 2), np.float64))
    with pytest.raises(TypeError, match="initial must be an array of float32, not float16"):
        lp.matmul_part(a, b, initial=np.ones((2, 2), np.float16))


def mpfr_dot(a: list[float], b: list[float], fmt: lp.FloatFormat) -> float:
    """Group 1: each product and sum rounded to 24 bits (float32's range), then to the format."""
    partial = gmpy2.mpfr(0)
    for x, y in zip(a, b, strict=True):
        with gmpy2.context(precision=24, emin=-148, emax=128, subnormalize=True):
            partial = gmpy2.fma(gmpy2.mpfr(x), gmpy2.mpfr(y), partial)
        bias = fmt.emin - fmt.mantissa_bits + 1
        with gmpy2.context(precision=fmt.precision, emin=bias, emax=fmt.emax + 1, subnormalize=True):
            partial = gmpy2.mpfr(float(partial)) + 0
    return float(partial)


@pytest.mark.parametrize("fmt", ["float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_group_1_is_mpfr(fmt: str, dtype: Any, host_backend: str) -> None:
    a, b = normal(6, 40, dtype=dtype), normal(40, 6, seed=1, dtype=dtype)
    a[0] *= 2.0**-12
    want = [
        [mpfr_dot(row.tolist(), column.tolist(), lp.as_format(fmt)) for column in b.T.astype(float)]
        for row in a.astype(float)
    ]
    got = lp.matmul(a, b, accumulate=fmt, group=1, out_format="float32")
    lp.testing.assert_same_bits(got, np.float32(want))


def test_groups_are_chunks_rounded_in_between(host_backend: str) -> None:
    a, b = normal(3, 40), normal(40, 5, seed=1)
    want = np.zeros((3, 5), np.float16)
    for k in range(0, 40, 16):
        chain = want.astype(np.float32)
        for i in range(k, min(k + 16, 40)):
            chain = chain + a[:, i : i + 1].astype(np.float32) * b[i].astype(np.float32)
        want = chain.astype(np.float16)
    lp.testing.assert_same_bits(lp.matmul(a, b, accumulate="float16"), want)


def parts_of(a: Array, b: Array, length: int, **options: Any) -> list[Array]:
    return [
        lp.matmul_part(a[:, k : k + length], b[k : k + length], first_group=k // 4, group=4, **options)
        for k in range(0, a.shape[1], length)
    ]


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("splits, run", [(7, 7), (40, 7), (200, 6)])
def test_parts_are_summed_in_stages(rounding: str, splits: int, run: int, host_backend: str) -> None:
    a, b = normal(2, 800), normal(800, 3, seed=1)
    options: dict[str, Any] = {"rounding": rounding, "key": 5}
    parts = parts_of(a, b, 4 * -(-200 // splits), accumulate="float16", **options)
    assert len(parts) == splits
    index = 0
    while len(parts) > run:
        sums = []
        for i in range(0, len(parts), run):
            stack = np.stack(parts[i : i + run])
            sums.append(lp.sum_parts(stack, fmt="float16", tag="stage", index=index, **options))
            index += 1
        parts = sums
    want = lp.sum_parts(np.stack(parts), fmt="bfloat16", tag="output", **options)
    got = lp.matmul(a, b, accumulate="float16", group=4, splits=splits, out_format="bfloat16", **options)
    lp.testing.assert_same_bits(got, want)


@pytest.mark.parametrize("splits", [1, 3])
def test_a_row_or_column_alone_equals_that_of_the_whole(splits: int, host_backend: str) -> None:
    a, b = normal(9, 70), normal(70, 40, seed=1)
    options: dict[str, Any] = dict(accumulate="float16", rounding="stochastic", key=8, splits=splits)
    whole = lp.matmul(a, b, **options)
    lp.testing.assert_same_bits(lp.matmul(a[5:6], b, offset=(5, 0), **options), whole[5:6])
    lp.testing.assert_same_bits(lp.matmul(a[5], b, offset=(5, 0), **options), whole[5])
    lp.testing.assert_same_bits(lp.matmul(a, b[:, 21:22], offset=(0, 21), **options), whole[:, 21:22])
    lp.testing.assert_same_bits(lp.matmul(a[2:7], b[:, 3:38], offset=(2, 3), **options), whole[2:7, 3:38])
    assert (lp.matmul(a[5:6], b, **options) != whole[5:6]).any()


def test_threads_blocks_and_instruction_sets_do_not_matter() -> None:
    a, b = normal(150, 300), normal(300, 170, seed=1)
    for accumulate in ("float32", "float16", "bfloat16", "float8_e4m3fn"):
        options: dict[str, Any] = dict(accumulate=accumulate, rounding="stochastic", key=1, splits=2)
        results = []
        for isa in lp.testing.isa_names():
            for threads in (1, 2):
                with lp.testing.isa(isa), lp.num_threads(threads):
                    results.append(lp.matmul(a, b, **options))
        for result in results[1:]:
            lp.testing.assert_same_bits(result, results[0])


def test_operands_wider_than_a_half_fuse_on_every_instruction_set() -> None:
    a, b = normal(40, 64, dtype=np.float32), normal(64, 40, seed=1, dtype=np.float32)
    unfused = np.zeros((40, 40), np.float32)
    for k in range(64):
        unfused += a[:, k : k + 1] * b[k]
    results = []
    for isa in lp.testing.isa_names():
        with lp.testing.isa(isa):
            results.append(lp.matmul(a, b))
            lp.testing.assert_same_bits(results[-1], results[0])
    assert (results[0] != unfused).any()


def test_each_stochastic_step_has_its_law() -> None:
    # 1 + 2^-11 + 2^-13 lies 0.625 of the way from 1 to the next half.
    a = np.tile(np.float16([1, 2.0**-11, 2.0**-13, 0]), (100, 1))
    b = np.ones((4, 200), np.float16)
    up = lp.matmul(a, b, accumulate="float16", rounding="stochastic", key=77) > 1
    lp.testing.assert_binomial(int(up.sum()), up.size, 0.625)
    assert 0 < np.abs(np.corrcoef(up[:50].ravel(), up[50:].ravel())[0, 1]) < 0.05


def test_a_long_sum_stagnates_with_nearest_and_not_with_stochastic() -> None:
    ones = np.ones((1, 2**16), np.float16)
    b = np.ones((2**16, 16), np.float16) * np.float16(2.0**-4)
    assert lp.matmul(ones, b, accumulate="float16", group=16)[0, 0] == 2048.0
    means = lp.matmul(ones, b, accumulate="float16", group=16, rounding="stochastic", key=3).astype(float).mean()
    assert abs(means / 4096 - 1) < 0.02


def test_shapes_are_numpys(host_backend: str) -> None:
    for left, right in [((3,), (3,)), ((3,), (3, 2)), ((4, 3), (3,)), ((2, 1, 4, 3), (5, 3, 2)), ((0, 3), (3, 2))]:
        a, b = np.ones(left, np.float16), np.ones(right, np.float16)
        want = np.matmul(np.ones(left, np.float32), np.ones(right, np.float32))
        got = lp.matmul(a, b)
        assert np.shape(got) == want.shape
        assert np.array_equal(got, want)
    assert lp.matmul(np.ones((2, 0), np.float16), np.ones((0, 3), np.float16)).tolist() == [[0.0] * 3] * 2


def test_infinities_nan_and_overflow(host_backend: str) -> None:
    half = np.float16
    a, b = half([[6e4, 6e4, -6e4]]), half([[1], [1], [1]])
    assert lp.matmul(a, b, accumulate="float16", group=1)[0, 0] == np.inf
    assert lp.matmul(a, b, accumulate="float16", group=1, overflow="saturate")[0, 0] == 65504 - 60000
    assert np.isnan(lp.matmul(a, b, accumulate="float16", group=1, overflow="nan")[0, 0])
    assert lp.matmul(a, b, accumulate="float16", group=3)[0, 0] == 60000
    infinite = half([[np.inf, 1, 1]])
    assert lp.matmul(infinite, b, accumulate="float16", overflow="satfinite")[0, 0] == 65504
    assert lp.matmul(infinite, b, accumulate="float8_e4m3fn", overflow="saturate", infinite_input="max")[0, 0] == 448
    assert np.isnan(lp.matmul(infinite, half([[0], [1], [1]]), accumulate="float16")[0, 0])


@pytest.mark.parametrize("fmt", ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"])
def test_results_without_nan_saturate_and_refuse_nan(fmt: str, host_backend: str) -> None:
    a, b = normal(5, 20), normal(20, 18, seed=1)
    wide = lp.matmul(a, b, accumulate=fmt, group=4, out_format="float32")
    got = lp.matmul(a, b, accumulate=fmt, group=4)
    assert got.dtype == lp.as_format(fmt).dtype
    np.testing.assert_array_equal(got.astype(np.float32), wide)
    assert np.abs(lp.matmul(a * 8, b * 8, out_format=fmt)).max() == lp.as_format(fmt).max
    infinite = a.copy()
    infinite[3, 2] = np.inf
    assert (np.abs(lp.matmul(infinite, np.abs(b), out_format=fmt)[3]) == lp.as_format(fmt).max).all()
    b[2, 1] = 0
    with pytest.raises(ValueError, match="a NaN arose, and the result's format has none"):
        lp.matmul(infinite, b, accumulate=fmt, group=4)
    assert np.isnan(lp.matmul(infinite, b, accumulate=fmt, group=4, out_format="float32")[3, 1])
    with pytest.raises(ValueError, match="NaN"):
        lp.matmul(a, b, accumulate=fmt, overflow="nan")


@pytest.mark.parametrize("adder", ["dot4", "pairwise"])
def test_other_adders_on_sums_that_are_not_exact_in_double(adder: str, host_backend: str) -> None:
    # Terms of sizes so different that additions of doubles lose bits, beside columns in which they do not.
    rng = np.random.default_rng(3)
    a = (rng.normal(size=(6, 40)) * 2.0 ** rng.integers(-60, 60, (6, 40))).astype(ml_dtypes.bfloat16)
    b = rng.normal(size=(40, 35)).astype(np.float32)
    b[:, ::2] *= np.float32(2.0) ** rng.integers(-60, 60, (40, 18)).astype(np.float32)
    a[2, 5], b[7, 3] = np.inf, np.nan
    got = lp.matmul(a, b.astype(ml_dtypes.bfloat16), adder=adder)
    with lp.testing.backend("reference"):
        want = lp.matmul(a, b.astype(ml_dtypes.bfloat16), adder=adder)
    lp.testing.assert_same_bits(got, want)


def test_out_and_prepared_forms() -> None:
    a, b = normal(4, 20), normal(20, 4, seed=1)
    want = lp.matmul(a, b, accumulate="float16")
    out = np.zeros((4, 8), np.float16)[:, ::2]
    assert lp.matmul(a, b, accumulate="float16", out=out) is out
    lp.testing.assert_same_bits(out.copy(), want)
    call = prepare(np.float16, np.float16, lp.Accumulation(accumulate="float16"), lp.Rounding())
    lp.testing.assert_same_bits(call(a, b), want)
    square = a[:, :4].copy()
    want = lp.matmul(square, square, accumulate="float16")
    lp.testing.assert_same_bits(lp.matmul(square, square, accumulate="float16", out=square), want)
    part = prepare_part(np.float16, np.float16, lp.Accumulation(accumulate="float16"), lp.Rounding())
    strips = part(a.reshape(2, 1, 2, 20), b.reshape(20, 2, 2).transpose(1, 0, 2), 7)
    assert strips.shape == (2, 2, 2, 2)


def test_bad_calls_say_what_is_allowed(host_backend: str) -> None:
    a = np.ones((2, 3), np.float16)
    b = np.ones((3, 2), np.float16)
    with pytest.raises(ValueError, match="inner lengths differ: 3 and 2"):
        lp.matmul(a, a)
    with pytest.raises(TypeError, match=r"operands must be float32.*not float64"):
        lp.matmul(a.astype(float), b)
    with pytest.raises(TypeError, match="no storage dtype; give out_format"):
        lp.matmul(a, b, accumulate="tfloat32")
    with pytest.raises(ValueError, match="unknown adder 'tree'; allowed are sequential, dot4, pairwise, aligned"):
        lp.matmul(a, b, adder="tree")
    with pytest.raises(ValueError, match="group must be an integer of at least 1"):
        lp.matmul(a, b, group=0)
    with pytest.raises(ValueError, match="splits must be"):
        lp.matmul(a, b, splits=0)
    with pytest.raises(ValueError, match="stages must be"):
        lp.matmul(a, b, stages=4)
    with pytest.raises(ValueError, match="unknown rounding 'closest'"):
        lp.matmul(a, b, rounding="closest")
    with pytest.raises(ValueError, match="stochastic rounding needs key="):
        lp.matmul(a, b, accumulate="float16", rounding="stochastic")
    with pytest.raises(ValueError, match="dot4"):
        lp.matmul(a.astype(np.float32), b, adder="dot4")
    with pytest.raises(ValueError, match="cannot accumulate"):
        lp.matmul(a, b, accumulate="float8_e8m0fnu", out_format="float32")
    with pytest.raises(ValueError, match="cannot saturate"):
        lp.matmul(a, b, out_format="float64", overflow="satfinite")


@pytest.mark.parametrize("offset", [(-1, 0), (0, 2**32)])
def test_offsets_outside_the_counter_are_refused(offset: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"offset must lie in \[0, 2\^32\)"):
        lp.matmul(np.ones((2, 2), np.float16), np.ones((2, 2), np.float16), offset=offset)


@pytest.mark.parametrize("offset", [3, (0.5, 0), (1, 2, 3)])
def test_offsets_that_are_no_pair_are_refused(offset: object) -> None:
    with pytest.raises(TypeError, match="offset must be two integers, row and column"):
        lp.matmul(np.ones((2, 2), np.float16), np.ones((2, 2), np.float16), offset=offset)


def test_numpys_integers_count_as_integers() -> None:
    a = np.linspace(0, 1, 64, dtype=np.float16).reshape(2, 32)
    few = lp.matmul(a, a.T, accumulate="float16", group=np.int64(4), splits=np.int32(2), rounding="stochastic",
                         key=1, random_bits=np.uint8(8), offset=(np.int64(1), 0))  # fmt: skip
    same = lp.matmul(a, a.T, accumulate="float16", group=4, splits=2, rounding="stochastic",
                          key=1, random_bits=8, offset=(1, 0))  # fmt: skip
    np.testing.assert_array_equal(few, same)
