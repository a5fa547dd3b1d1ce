"""Lookups and the largest of rows built from a graph alone: the bits of the lowered training layer and NumPy's."""

from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.library.elementwise import add_array
from ipu_core.library.lookup import embedding, topk
from ipu_core.target import Target
from library.conftest import lowered, run

RNG = np.random.default_rng(8)
X = RNG.integers(-9, 9, (3, 5, 20)) / 4  # with ties
TABLE = RNG.normal(size=(11, 6))
INDICES = RNG.integers(0, 11, (4, 3)).astype(np.int32)


@pytest.mark.parametrize("tiles", [3, 64])
@pytest.mark.parametrize("dtype, spec", [(np.float32, "fp32.32"), (np.float16, "fp16.16/nearest")])
@pytest.mark.parametrize("largest", [True, False])
def test_the_largest_and_their_indices(largest: bool, dtype: Any, spec: str, tiles: int) -> None:
    x = X.astype(dtype)
    values, indices = run(lambda g, p, x: [*topk(g, x, 4, p, largest=largest)], [x], tiles)
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")[..., :4]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))
    assert (values.dtype, indices.dtype) == (dtype, np.int32)
    for one, other in zip(
        (values, indices), lowered(lambda x: list(nn.topk(x, 4, largest=largest)), [x], spec, tiles), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("tiles", [3, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_of_a_table(dtype: Any, tiles: int) -> None:
    table = TABLE.astype(dtype)
    (got,) = run(lambda g, p, t, i: [embedding(g, t, i, p)], [table, INDICES], tiles)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, table[INDICES])


def test_what_does_not_fit_is_refused() -> None:
    graph, programs = Graph(Target("gc200", tiles=4)), list[Program]()
    x = add_array(graph, "float16", (4, 6), "x")
    for k in (0, 7):
        with pytest.raises(ValueError, match=f"k must be from 1 to 6, the length of the rows, not {k}"):
            topk(graph, x, k, programs)
    assert programs == []
    with pytest.raises(IndexError, match="out of bounds"):
        run(lambda g, p, t, i: [embedding(g, t, i, p)], [TABLE.astype(np.float32), INDICES + 11], 4)
