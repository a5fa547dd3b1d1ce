"""scatter_add: every row is the sum, in order, of the updates that name it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowprec as lp
from lowprec.sums.scatter import prepare_scatter, row_numbers
from lowprec.values.keys import Coordinates
from tests.lowprec.sums_cases import (
    ACCUMULATORS,
    RESULTS,
    arrays,
    assert_backends_agree,
    rounding_options,
    strided,
    values,
)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.integers(0, 30), st.sampled_from([0, 1, 3, 17, 40]), st.integers(1, 6), rounding_options(), st.data())
def test_every_backend_gives_the_same_rows(
    count: int, width: int, rows: int, options: dict[str, Any], data: st.DataObject
) -> None:
    indices = np.array(data.draw(st.lists(st.integers(-rows, rows - 1), min_size=count, max_size=count)), np.int64)
    assert_backends_agree(
        *(lp.scatter_add, indices, data.draw(arrays((count, width)).flatmap(strided)), rows),
        **options,
        accumulate=data.draw(st.sampled_from(ACCUMULATORS)),
        group=data.draw(st.sampled_from([1, 3, None])),
        out_format=data.draw(st.sampled_from(RESULTS)),
        offset=data.draw(st.tuples(st.integers(0, 20), st.integers(0, 20))),
    )


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic", "down"])
@pytest.mark.parametrize("group", [1, 4, None])
def test_rows_are_sums(rounding: str, group: int | None, host_backend: str) -> None:
    rng = np.random.default_rng(0)
    indices = rng.integers(-5, 5, size=60)
    updates = rng.normal(size=(60, 21)).astype(np.float16)
    options: dict[str, Any] = dict(accumulate="float16", group=group, rounding=rounding, key=8)
    got = lp.scatter_add(indices, updates, 5, **options)
    for row in range(5):
        want = lp.reduce_sum(updates[indices % 5 == row], 0, offset=(row, 0), **options)
        lp.testing.assert_same_bits(got[row], want)


def test_float32_is_what_adding_one_after_the_other_gives(host_backend: str) -> None:
    rng = np.random.default_rng(1)
    indices = rng.integers(0, 7, size=(8, 9)).astype(np.int32)
    updates = rng.normal(size=(8, 9, 3, 2)).astype(np.float32)
    want = np.zeros((7, 3, 2), np.float32)
    np.add.at(want, indices, updates)
    lp.testing.assert_same_bits(lp.scatter_add(indices, updates, 7), want)
    out = np.empty((7, 3, 2), np.float32)
    assert lp.scatter_add(indices, updates, 7, out=out) is out
    lp.testing.assert_same_bits(out, want)


def test_float32_keeps_what_float16_loses(host_backend: str) -> None:
    indices, ones = np.zeros(5000, np.int64), np.ones((5000, 1), np.float16)
    assert lp.scatter_add(indices, ones, 1, accumulate="float16", group=1) == 2048
    assert lp.scatter_add(indices, ones, 1, accumulate="float16") == 5000
    assert lp.scatter_add(indices, ones, 1) == 5000


def test_part_of_the_result_and_vertices(host_backend: str) -> None:
    rng = np.random.default_rng(2)
    indices = row_numbers(rng.integers(0, 6, size=50))
    updates = rng.normal(size=(50, 40)).astype(np.float16)
    options: dict[str, Any] = dict(accumulate="float16", group=2, rounding="stochastic")
    whole = lp.scatter_add(indices, updates, 6, key=3, **options)
    lp.testing.assert_same_bits(
        lp.scatter_add(indices, updates[:, 9:], 6, key=3, offset=(0, 9), **options), whole[:, 9:]
    )
    call = prepare_scatter(updates.dtype, *values(**options))
    cut = updates.reshape(50, 4, 10).swapaxes(0, 1)
    got = call(cut, indices, 6, 3, Coordinates(0, 10 * np.arange(4)))
    lp.testing.assert_same_bits(got.swapaxes(0, 1).reshape(6, 40), whole)


def test_threads_do_not_matter() -> None:
    rng = np.random.default_rng(3)
    indices, updates = rng.integers(0, 300, size=9000), rng.normal(size=(9000, 200)).astype(np.float16)
    results = []
    for threads in (1, 2):
        with lp.num_threads(threads):
            results.append(lp.scatter_add(indices, updates, 300, accumulate="float16", group=4))
    lp.testing.assert_same_bits(results[1], results[0])


def test_bad_calls_say_what_is_allowed(host_backend: str) -> None:
    updates = np.ones((2, 3), np.float16)
    for bad in (4, -5):
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds for 4 rows"):
            lp.scatter_add([0, bad], updates, 4)
    with pytest.raises(ValueError, match="do not begin with the indices' shape"):
        lp.scatter_add([0, 1, 2], updates, 4)
    with pytest.raises(TypeError, match="indices must be integers"):
        lp.scatter_add([0.0, 1.0], updates, 4)
    with pytest.raises(TypeError, match="not float64"):
        lp.scatter_add([0, 1], updates.astype(np.float64), 4)
    with pytest.raises(TypeError, match="out must be an array of float32"):
        lp.scatter_add([0, 1], updates, 4, out=np.empty((4, 3), np.float16))
    with pytest.raises(ValueError, match="needs key="):
        lp.scatter_add([0, 1], updates, 4, accumulate="float16", rounding="stochastic")
