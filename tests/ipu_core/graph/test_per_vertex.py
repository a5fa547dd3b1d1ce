"""Arrays with vertex axes: these meet each other, whatever the vertices' own axes are, and are not reduced."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.graph.per_vertex import PerVertex, parameter

A = np.array([1, 10, 100], np.float32)
X = np.arange(9, dtype=np.float32).reshape(3, 3) + 1
OURS, ROWS = PerVertex.of(A, 1), PerVertex.of(X, 1)


def vertexwise(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), expected)
    assert isinstance(found, PerVertex)
    assert found.axes == 1


def test_vertex_axes_meet_in_elementwise_functions_on_either_side() -> None:
    for found in (OURS * X, X * OURS, np.multiply(X, OURS), OURS * ROWS):
        vertexwise(found, X * A[:, None])
    vertexwise(ROWS * (1 - OURS), X * (1 - A)[:, None])
    vertexwise(X.reshape(3, 1, 3) - OURS, X.reshape(3, 1, 3) - A[:, None, None])
    vertexwise(np.maximum(X, OURS), np.maximum(X, A[:, None]))
    vertexwise(np.where(X > 4, OURS, X), np.where(X > 4, A[:, None], X))
    vertexwise(np.clip(X, 2, OURS), np.clip(X, 2, A[:, None]))
    vertexwise(OURS + X[:, 0], A + X[:, 0])
    fraction, whole = np.modf(OURS / 4)
    vertexwise(fraction, [0.25, 0.5, 0])
    vertexwise(whole, [0, 2, 25])


def test_constants_meet_the_last_axes() -> None:
    vertexwise(ROWS * np.array([1, 2, 4]), X * [1, 2, 4])


def test_own_axes_stay_last() -> None:
    rows = PerVertex.of(np.arange(6.0).reshape(3, 2), 1)
    x = np.ones((3, 4, 2), np.float32)
    vertexwise(x * rows, x * np.arange(6).reshape(3, 1, 2))
    grid = PerVertex.of(np.arange(6.0).reshape(3, 2), 2)
    np.testing.assert_array_equal(np.ones((3, 2, 5)) * grid, np.ones((3, 2, 5)) * np.arange(6).reshape(3, 2, 1))


def test_own_axes_are_reduced_and_vertex_axes_are_not() -> None:
    for found in (ROWS.sum(axis=-1), np.sum(ROWS, axis=1), np.add.reduce(ROWS, axis=1)):
        vertexwise(found, X.sum(axis=1))
    vertexwise(np.mean(ROWS, axis=-1), X.mean(axis=1))
    vertexwise(ROWS - ROWS.max(axis=-1), X - X.max(axis=1, keepdims=True))
    vertexwise(ROWS.cumsum(axis=-1), X.cumsum(axis=1))
    vertexwise(ROWS.std(axis=-1, keepdims=True), X.std(axis=1, keepdims=True))
    assert (ROWS > 0).all()
    assert not np.any(ROWS < 0)
    cases: list[Callable[[], Any]] = [
        ROWS.sum, lambda: ROWS.sum(axis=0), lambda: np.max(ROWS), lambda: np.mean(ROWS, axis=(0, 1)),
        lambda: np.add.reduce(ROWS), lambda: ROWS.cumsum(axis=0), lambda: ROWS.prod(axis=-2),
        lambda: (OURS + 1).sum(-1), ROWS.argmax, lambda: np.sort(ROWS, axis=0), lambda: ROWS.copy().sort(0),
        lambda: np.sort(ROWS, 0), lambda: np.linalg.norm(ROWS), lambda: np.median(ROWS), lambda: np.roll(ROWS, 1),
        lambda: np.average(ROWS, weights=X), lambda: np.cumsum(ROWS), lambda: np.squeeze(ROWS),
    ]  # fmt: skip
    for case in cases:
        with pytest.raises(ValueError, match=r"over axis .* of shape \(3.*\) takes vertices together"):
            case()
    vertexwise(ROWS.argmax(axis=-1), X.argmax(axis=1))
    vertexwise((-ROWS).argsort(), (-X).argsort())
    assert np.argmin(ROWS, axis=1).tolist() == [0, 0, 0]
    descending = -ROWS
    descending.sort(axis=-1)
    np.testing.assert_array_equal(descending, np.sort(-X))
    assert np.asarray(ROWS).sum() == X.sum()


def test_views_keep_the_vertex_axes_or_are_plain() -> None:
    for key in ((..., 0), (slice(None), 1), (..., slice(1)), slice(None), (slice(None), None), (..., None), ...):
        vertexwise(ROWS[key], X[key])
    for key in (0, (0, 1), (slice(2),), [0, 1], X > 4, (None, ...), (..., 0, 0), (slice(None, None, -1), 0)):
        assert type(ROWS[key]) is not PerVertex
        np.testing.assert_array_equal(ROWS[key], X[key])
    plain = (ROWS.T, ROWS.transpose(1, 0), ROWS.swapaxes(0, 1), np.transpose(ROWS), next(iter(ROWS)), np.stack([ROWS]))
    assert all(type(array) is np.ndarray for array in plain)
    assert ROWS.reshape(9).axes == 0
    np.testing.assert_array_equal(ROWS.reshape(9) * np.arange(9), X.reshape(9) * np.arange(9))
    np.testing.assert_array_equal(np.stack([OURS, OURS]).sum(axis=0), 2 * A)


def test_matrices_are_multiplied_as_numpy_does() -> None:
    a, b = np.arange(12.0).reshape(3, 2, 2), np.arange(18.0).reshape(3, 2, 3)
    vertexwise(PerVertex.of(a, 1) @ PerVertex.of(b, 1), a @ b)
    vertexwise(ROWS @ np.eye(3, 2), X @ np.eye(3, 2))
    vertexwise((PerVertex.of(a, 1) @ PerVertex.of(a[:, 0], 1)[..., None])[..., 0], np.einsum("vij,vj->vi", a, a[:, 0]))
    wrong: list[Callable[[], Any]] = [lambda: X @ ROWS, lambda: PerVertex.of(a, 1) @ ROWS, lambda: OURS @ ROWS]
    for case in wrong:
        with pytest.raises(ValueError, match=r"matmul would add over the vertices of shape \(3"):
            case()


def test_functions_along_own_axes_keep_the_vertex_axes() -> None:
    vertexwise(ROWS / np.linalg.norm(ROWS, axis=-1), X / np.linalg.norm(X, axis=1)[:, None])
    vertexwise(np.median(ROWS, axis=1) * ROWS, np.median(X, axis=1)[:, None] * X)
    vertexwise(np.roll(ROWS, 1, -1), np.roll(X, 1, axis=1))
    vertexwise(np.sort(-ROWS), np.sort(-X))
    vertexwise(np.diff(ROWS), np.diff(X))
    with pytest.raises(TypeError, match="unexpected keyword argument 'axes'"):
        np.median(ROWS, axes=1)  # type: ignore[call-overload]


def test_in_place_the_array_stays_itself() -> None:
    x = X.copy()
    x *= OURS
    np.testing.assert_array_equal(x, X * A[:, None])
    ours = PerVertex.of(X.copy(), 1)
    same = ours
    ours += OURS
    assert ours is same
    assert np.add(X, 1, out=ours) is ours
    np.testing.assert_array_equal(ours, X + 1)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [(np.ones(2), np.float32), (np.array([1, 2]), np.int32), (np.array([2**40]), np.int64), (A, np.float32)],
)
def test_parameters_have_32_bits_where_they_fit(given: np.ndarray, dtype: type) -> None:
    found = parameter(given, 1)
    assert found.dtype == dtype
    vertexwise(found, given)
