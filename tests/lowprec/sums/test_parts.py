"""Chains on their own: no stage and no output rounds them, so that slices that go on from each other are the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowprec as lp
from lowprec.convolution.parts import prepare_correlation, prepare_weight_sums
from lowprec.values.windows import BlockPlace
from tests.lowprec.sums_cases import NO_NAN, STORED_ACCUMULATORS

A, ONES = np.float16([[60000, 60000, -60000, 0]]), np.ones((4, 1), np.float16)
REPLACED = {"max": 65504.0, "nan": np.nan, "keep": np.inf}
"""What a float16 group makes of the infinity that the one before gave, by the policy of infinite inputs."""


@pytest.mark.parametrize("policy", REPLACED)
def test_slices_go_on_from_an_infinity(policy: str, host_backend: str) -> None:
    how: dict[str, Any] = dict(accumulate="float16", group=2, infinite_input=policy)
    first = lp.matmul_part(A[:, :2], ONES[:2], **how)
    assert first[0, 0] == np.inf
    second = lp.matmul_part(A[:, 2:], ONES[2:], initial=first, first_group=1, **how)
    np.testing.assert_equal([second[0, 0], lp.matmul_part(A, ONES, **how)[0, 0]], [REPLACED[policy]] * 2)
    assert lp.reduce_part(A[:, :2, None], **how)[0, 0] == np.inf
    np.testing.assert_equal(lp.reduce_part(A[:, :, None], **how)[0, 0], REPLACED[policy])


def test_of_a_whole_sums_order_a_part_has_group_and_accumulator(host_backend: str) -> None:
    order = lp.Accumulation(2, splits=2, stages=3, accumulate="bfloat16", out="float16")
    for part in (lp.matmul_part(A, ONES, accumulation=order), lp.reduce_part(A[:, :, None], accumulation=order)):
        assert part.dtype == lp.bfloat16.dtype
        assert part.tolist() == [[59904.0]]  # 120000 is 119808 there, and that less 60000 is nearer to 59904


@pytest.mark.parametrize("policy", REPLACED)
def test_chains_of_convolutions_keep_their_infinities(policy: Any, host_backend: str) -> None:
    order = lp.Accumulation(2, splits=3, stages=2, accumulate="float16", out="float32")  # a part has none of the last
    rounding = lp.Rounding(infinite_input=policy)
    windows, where = A.reshape(1, 1, 1, 1, 1, 1, 4), BlockPlace(0, 0, 0, 1, 1)
    call, out = prepare_correlation(A.dtype, A.dtype, order, rounding), np.zeros((1, 1, 1, 1, 1), np.float16)
    for span, want in (((0, 1), np.inf), (None, REPLACED[policy])):
        call(windows, ONES.reshape(1, 1, 1, 4, 1), out, where, None, span)
        np.testing.assert_equal(out.item(), want)
    call = prepare_weight_sums(A.dtype, A.dtype, order, rounding)
    for span, want in (((0, 2), np.inf), (None, REPLACED[policy])):
        call(A.reshape(1, 1, 4, 1, 1, 1, 1), ONES.reshape(1, 1, 4, 1, 1), out, where, None, span)
        np.testing.assert_equal(out.item(), want)


@pytest.mark.parametrize("fmt", [*STORED_ACCUMULATORS, *NO_NAN])
def test_slices_are_the_whole_under_every_policy(fmt: str, host_backend: str) -> None:
    rng, top, known = np.random.default_rng(0), min(lp.as_format(fmt).max, 1e38), lp.as_format(fmt)
    for number in range(40):
        how: dict[str, Any] = dict(accumulate=fmt, group=int(rng.integers(1, 3)))
        how["overflow"] = rng.choice(["infinity" if known.infinities else "saturate", "saturate"])
        how["infinite_input"] = rng.choice(["max", "nan" if known.nan_code is not None else "max"])
        how |= {"rounding": ["nearest_even", "up", "stochastic"][number % 3], "key": number}
        a = rng.choice(np.float32([top, -top, top / 2, 1, 0, -0.0]), size=(2, 6))
        b = rng.choice(np.float16([1, -1, 0.5]), size=(6, 3))
        whole, partial = lp.matmul_part(a, b, **how), None
        for start, stop in ((0, 2), (2, 2), (2, 6)):  # an empty slice changes nothing
            here = slice(start, stop)
            first = start // how["group"]
            partial = lp.matmul_part(a[:, here], b[here], initial=partial, first_group=first, **how)
        assert partial is not None
        lp.testing.assert_same_bits(partial, whole)


def test_no_terms_give_the_start_back_with_its_infinities(host_backend: str) -> None:
    start = np.float32([[np.inf, -np.inf, 1e6, 1 + 2.0**-12]])
    how: dict[str, Any] = dict(accumulate="float16", infinite_input="max", initial=start)
    got = lp.matmul_part(A[:, :0], np.ones((0, 4), np.float16), overflow="saturate", **how)
    assert got.tolist() == [[np.inf, -np.inf, 65504, 1]]


def test_blocks_of_scaled_products_are_left_in_float32(host_backend: str) -> None:
    """Without scales the product is that of `matmul`, which sees the last group's infinity and replaces it."""
    x = np.full((1, 2), 300, np.float16)
    for policy, want in REPLACED.items():
        for call in (lp.matmul, lp.scaled_matmul):
            got = call(x, x.T, accumulate="float16", infinite_input=policy)  # type: ignore[operator]
            np.testing.assert_equal(np.asarray(got).item(), want)
