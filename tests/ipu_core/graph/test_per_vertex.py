"""Parameters of the vertices' own meet the vertex axes of what they are computed with."""

import numpy as np
import pytest

from ipu_core.graph.per_vertex import PerVertex

A = np.array([1.0, 10.0, 100.0])
X = np.arange(9, dtype=np.float32).reshape(3, 3) + 1
OURS = PerVertex.of(A, 1)


def test_vertex_axes_meet_in_elementwise_functions_on_either_side() -> None:
    for found in (OURS * X, X * OURS, np.multiply(X, OURS)):
        np.testing.assert_array_equal(found, X * A[:, None])
        assert type(found) is np.ndarray
    np.testing.assert_array_equal(X.reshape(3, 1, 3) - OURS, X.reshape(3, 1, 3) - A[:, None, None])
    np.testing.assert_array_equal(np.maximum(X, OURS), np.maximum(X, A[:, None]))
    np.testing.assert_array_equal(np.where(X > 4, OURS, X), np.where(X > 4, A[:, None], X))
    np.testing.assert_array_equal(np.clip(X, 2, OURS), np.clip(X, 2, A[:, None]))
    np.testing.assert_array_equal(OURS + X[:, 0], A + X[:, 0])


def test_own_axes_stay_last() -> None:
    rows = PerVertex.of(np.arange(6.0).reshape(3, 2), 1)
    x = np.ones((3, 4, 2), np.float32)
    np.testing.assert_array_equal(x * rows, x * np.arange(6).reshape(3, 1, 2))
    grid = PerVertex.of(np.arange(6.0).reshape(3, 2), 2)
    np.testing.assert_array_equal(np.ones((3, 2, 5)) * grid, np.ones((3, 2, 5)) * np.arange(6).reshape(3, 2, 1))


def test_axes_may_be_given_by_hand() -> None:
    np.testing.assert_array_equal(OURS[..., None] * X, X * A[:, None])
    assert type(OURS[..., None]) is type(OURS[1:]) is np.ndarray
    np.testing.assert_array_equal(np.stack([OURS, OURS]).sum(axis=0), 2 * A)
    np.testing.assert_array_equal(np.broadcast_to(OURS, (3, 3)), np.broadcast_to(A, (3, 3)))


def test_in_place_it_meets_the_vertex_axes_too() -> None:
    x = X.copy()
    x *= OURS
    np.testing.assert_array_equal(x, X * A[:, None])


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (A, np.float32),
        (np.array([1, 2]), np.int32),
        (np.array([2**40]), np.int64),
        (np.ones(2, np.float16), np.float16),
    ],
)
def test_numbers_have_32_bits_at_most_where_they_fit(given: np.ndarray, dtype: type) -> None:
    found = PerVertex.of(given, 1)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, given)
