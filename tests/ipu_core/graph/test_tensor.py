"""Tensors are affine views: every view operation agrees with NumPy's on the element numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core.graph import Graph, Tensor


def tensor(*shape: int) -> Tensor:
    return Graph().add_variable("float32", shape, "t")


VIEWS = {
    "slice": lambda x: x[1:3, ::2],
    "negative step": lambda x: x[::-1, 4:0:-2],
    "negative index": lambda x: x[-1],
    "element": lambda x: x[2, 3, 1],
    "ellipsis": lambda x: x[..., 1],
    "new axis": lambda x: x[:, None, 2],
    "transpose": lambda x: x.T,
    "axes": lambda x: x.transpose(1, 2, 0),
    "reshape": lambda x: x.reshape(4, 15),
    "reshape a slice": lambda x: x[1:3].reshape(2, -1),
    "reshape to a tuple": lambda x: x.reshape((5, 12)),
    "flatten": lambda x: x.reshape(-1),
    "empty": lambda x: x[4:],
    "chain": lambda x: x[1:, 1:4].transpose(1, 0, 2)[::2],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_agree_with_numpy(name: str) -> None:
    view = VIEWS[name](tensor(4, 5, 3))
    expected = VIEWS[name](np.arange(60).reshape(4, 5, 3))
    np.testing.assert_array_equal(view.indices(), expected)
    assert view.shape == np.shape(expected)
    assert view.size == np.size(expected)


def shapes_of(size: int, most: int = 4) -> list[tuple[int, ...]]:
    """All shapes of so many elements, with axes of length 1 too."""
    if most == 0:
        return [()] if size == 1 else []
    longer = [(n, *rest) for n in range(1, size + 1) if size % n == 0 for rest in shapes_of(size // n, most - 1)]
    return longer + ([()] if size == 1 else [])


CUTS: list[Callable[[Any], Any]] = [
    lambda x: x,
    lambda x: x[:, 1:],
    lambda x: x[1:, :, ::2],
    lambda x: x[::-1],
    lambda x: x.transpose(2, 0, 1),
    lambda x: x[:, :2].transpose(0, 2, 1),
    lambda x: x[1:2, :, :1],
    lambda x: x[:, 0:0],
]


@pytest.mark.parametrize("cut", CUTS, ids=range(len(CUTS)))
def test_a_reshape_is_numpys_or_refused_where_numpy_would_copy(cut: Callable[[Any], Any]) -> None:
    view, numbers = cut(tensor(2, 3, 4)), cut(np.arange(24).reshape(2, 3, 4))
    shapes = shapes_of(view.size) if view.size else [(0,), (2, 0, 3), (0, 1)]
    for shape in shapes:
        wanted = numbers.reshape(shape)
        if wanted.size and not np.shares_memory(wanted, numbers):
            with pytest.raises(ValueError, match="do not lie evenly"):
                view.reshape(shape)
            continue
        made = view.reshape(shape)
        np.testing.assert_array_equal(made.indices(), wanted)
        assert made.strides == tuple(stride // numbers.itemsize for stride in wanted.strides)
    for bad in ((5,), (-1, -1), (-2, -12), (-1, 5)):
        with pytest.raises(ValueError, match="cannot be viewed as shape"):
            view.reshape(bad) if view.size else view.reshape(3)


def test_broadcast_and_blocks() -> None:
    x, numbers = tensor(4, 6), np.arange(24).reshape(4, 6)
    np.testing.assert_array_equal(x[0].broadcast_to(3, 6).indices(), np.broadcast_to(numbers[0], (3, 6)))
    assert x[:, :1].broadcast_to(2, 4, 6).strides == (0, 6, 0)
    for wrong in ((4, 5), (6,), (8, 6), (-1, 4, 6)):
        with pytest.raises(ValueError, match="cannot be broadcast to shape"):
            x.broadcast_to(wrong)
    np.testing.assert_array_equal(x.flatten().indices(), np.arange(24))
    blocks = x.blocks(2, 3)
    assert blocks.shape == (2, 3, 2, 2)
    np.testing.assert_array_equal(blocks[1, 2].indices(), numbers[2:, 4:])
    with pytest.raises(ValueError, match="does not split evenly"):
        x.blocks(3, 3)


def test_storage_views() -> None:
    storage = np.arange(24.0, dtype=np.float32)
    np.testing.assert_array_equal(tensor(4, 6)[::-2, 1:4].of(storage), storage.reshape(4, 6)[::-2, 1:4])
    assert tensor(4, 6)[2, 2].of(storage).shape == ()


def test_what_is_no_view_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be viewed as shape"):
        tensor(4, 6).T.reshape(24)
    with pytest.raises(ValueError, match="cannot be viewed"):
        tensor(4, 6).reshape(5, 5)
    with pytest.raises(TypeError, match="not list"):
        tensor(4, 6)[[1, 2]]
    with pytest.raises(TypeError, match="not ndarray"):
        tensor(4, 6)[np.array([True] * 4)]
    with pytest.raises(IndexError):
        tensor(4, 6)[4]


def test_element_types() -> None:
    graph = Graph()
    assert str(graph.add_variable("float16", (2, 3), "w").variable) == "w:float16[2,3]"
    assert graph.add_variable("int32", ()).dtype == np.int32
    with pytest.raises(ValueError, match="int32, uint32, bool"):
        graph.add_variable("float17", (2,))
    with pytest.raises(ValueError, match="tfloat32 has no storage dtype"):
        graph.add_variable("tfloat32", (2,))
    with pytest.raises(ValueError, match="negative"):
        graph.add_variable("float32", (2, -1))
