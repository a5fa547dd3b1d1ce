"""Corners of sums and of what is written in place, each found wrong once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import lowprec as lp

ONES = np.ones((4, 8), np.float32)


@pytest.mark.parametrize("huge", [2**62, 2**63 - 2, 2**63 - 1, 2**80])
def test_groups_and_splits_beyond_any_length(host_backend: str, huge: int) -> None:
    assert lp.matmul(ONES, ONES.T, group=huge, accumulate="float16")[0, 0] == 8
    assert lp.matmul(ONES, ONES.T, group=1, splits=huge, accumulate="float16")[0, 0] == 8
    assert lp.reduce_sum(ONES, group=huge, accumulate="float16")[0] == 8


@pytest.mark.parametrize(("policy", "want"), [("max", 15.5), ("nan", np.nan), ("keep", np.inf)])
def test_infinities_of_the_last_group_meet_the_output_policy(host_backend: str, policy: str, want: float) -> None:
    # 30 overflows float8_e3m4 at the group; the output's rounding then sees an infinity.
    x, how = np.full((1, 3), 10, np.float32), {"accumulate": "float8_e3m4", "group": 3, "infinite_input": policy}
    for result in (lp.matmul(x, ONES[:1, :3].T, **how), lp.reduce_sum(x, **how)):  # type: ignore[arg-type]
        np.testing.assert_equal(np.asarray(result, np.float64).item(), want)


def test_unsigned_indices_do_not_turn_negative(host_backend: str) -> None:
    with pytest.raises(IndexError, match="18446744073709551615 is out of bounds for 3 rows"):
        lp.scatter_add(np.array([2**64 - 1], np.uint64), np.ones((1, 1), np.float32), 3)


def test_dequantize_over_its_own_elements() -> None:
    x = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    for array in (lp.to_blocks(x, "mxfp8_e4m3"), lp.to_scaled(x, "float8_e4m3fn")):
        want, memory = array.dequantize(), np.zeros(4 * x.size, np.uint8)
        memory[: x.size] = array.elements.view(np.uint8)
        inside = dataclasses.replace(array, elements=memory[: x.size].view(array.elements.dtype))
        lp.testing.assert_same_bits(inside.dequantize(out=memory.view(np.float32)), want)
