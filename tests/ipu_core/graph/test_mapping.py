"""Tile mappings: complete, without overlap, counted by tile, and cut along their borders."""

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.errors import MappedTwice, UnmappedTensor
from ipu_core.graph import Graph
from ipu_core.graph.mapping import build_mapping, even_boundaries, linear_boundaries, linear_mapping


def test_every_element_must_be_mapped() -> None:
    graph = Graph()
    x = graph.add_variable("float32", (4, 5), "x")
    with pytest.raises(UnmappedTensor, match="x: 20 of 20 elements are mapped to no tile, the first is element 0"):
        _ = x.variable.mapping
    graph.set_tile_mapping(x[:, :2], 0)
    with pytest.raises(UnmappedTensor, match=r"12 of 20 .* element 2"):
        _ = x.variable.mapping
    graph.set_tile_mapping(x[:, 2:], 7)
    assert x.variable.mapping.tiles_of(np.arange(20)).reshape(4, 5).tolist() == [[0, 0, 7, 7, 7]] * 4


@pytest.mark.parametrize(("size", "chunk"), [(20, 5), (20, 7), (3, 8), (1, 1)])
def test_a_shared_mapping_is_the_one_that_is_built(size: int, chunk: int) -> None:
    starts = np.arange(0, size, chunk)
    built = build_mapping("x", size, [(starts, np.append(starts[1:], size), np.arange(starts.size))])
    x = Graph().add_variable("float32", (size,), "x").variable
    x.map_as(linear_mapping(size, chunk))
    for name in ("starts", "ends", "tiles"):
        assert np.array_equal(getattr(x.mapping, name), getattr(built, name))
    assert x.mapping is linear_mapping(size, chunk)
    assert x.mapping.digest == built.digest
    assert built.digest != linear_mapping(size + 1, chunk).digest
    x.map_as(linear_mapping(size, chunk))
    with pytest.raises(MappedTwice):
        _ = x.mapping


def test_a_shared_mapping_goes_around() -> None:
    mapping = linear_mapping(20, 6, 5, 7)
    assert mapping.tiles_of(np.arange(20)).tolist() == [5] * 6 + [6] * 6 + [0] * 6 + [1] * 2
    assert mapping.elements_per_tile(7).tolist() == [6, 2, 0, 0, 0, 6, 6]


def test_no_element_may_be_mapped_twice() -> None:
    graph = Graph()
    x = graph.add_variable("float32", (4, 5), "x")
    graph.set_tile_mapping(x, 3)
    graph.set_tile_mapping(x[1, 1], 4)
    with pytest.raises(MappedTwice, match="element 6 of x is mapped to tile 3 and to tile 4"):
        _ = x.variable.mapping


def test_tiles_must_exist() -> None:
    graph = Graph(Target("gc200", tiles=8))
    x = graph.add_variable("float32", (4,), "x")
    with pytest.raises(ValueError, match=r"tile 8 is outside 0\.\.7 of gc200"):
        graph.set_tile_mapping(x, 8)
    with pytest.raises(ValueError, match="tile -1"):
        graph.map_intervals(x, [0, 2], [3, -1])


@pytest.mark.parametrize(
    ("size", "tiles", "grain"), [(100, 7, 1), (100, 7, 8), (3, 7, 1), (64, 8, 8), (65, 9, 8), (0, 4, 1)]
)
def test_linear_mapping(size: int, tiles: int, grain: int) -> None:
    graph = Graph()
    x = graph.add_variable("float16", (size,), "x")
    borders = graph.map_linearly(x, tiles, grain)
    counts = x.variable.mapping.elements_per_tile(tiles)
    assert counts.sum() == size
    np.testing.assert_array_equal(counts[: borders.size - 1], np.diff(borders))
    full = np.diff(borders)[:-1]
    assert not (full % grain).any()
    assert full.size == 0 or full.max() - full.min() <= grain


def test_linear_mapping_over_listed_tiles() -> None:
    graph = Graph()
    x = graph.add_variable("float16", (6,), "x")
    graph.map_linearly(x, [9, 2, 5])
    assert x.variable.mapping.tiles_of(np.arange(6)).tolist() == [9, 9, 2, 2, 5, 5]


@pytest.mark.parametrize("seed", range(20))
def test_block_mapping(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = Graph()
    x = graph.add_variable("float32", (9, 11), "x")
    rows = np.unique([0, 9, *rng.integers(0, 10, 3)])
    columns = even_boundaries(11, int(rng.integers(1, 6)))
    tiles = rng.integers(0, 50, (rows.size - 1, columns.size - 1))
    view, expected = x, np.zeros((9, 11), int)
    if seed % 2:
        view, rows, columns, tiles = x.T, columns, rows, tiles.T
        expected = expected.T
    graph.map_blocks(view, [rows, columns], tiles)
    for i, j in np.ndindex(*tiles.shape):
        expected[rows[i] : rows[i + 1], columns[j] : columns[j + 1]] = tiles[i, j]
    got = x.variable.mapping.tiles_of(np.arange(99)).reshape(9, 11)
    np.testing.assert_array_equal(got.T if seed % 2 else got, expected)


def test_blocks_that_do_not_fit_are_refused() -> None:
    graph = Graph()
    x = graph.add_variable("float32", (4, 4), "x")
    with pytest.raises(ValueError, match="do not span"):
        graph.map_blocks(x, [[0, 4], [0, 3]], [[1]])
    with pytest.raises(ValueError, match="do not match"):
        graph.map_blocks(x, [[0, 4], [0, 4]], [[1, 2]])
    with pytest.raises(ValueError, match="not contiguous"):
        graph.map_linearly(x.T)


def test_mapped_bytes_sum_to_the_variables_bytes() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        size = int(rng.integers(1, 1000))
        graph = Graph()
        x = graph.add_variable("float16", (size,), "x")
        cuts = np.unique([0, *rng.integers(0, size, 8)])
        graph.map_intervals(x, cuts, rng.integers(0, 30, cuts.size))
        assert x.variable.mapping.elements_per_tile(30).sum() * 2 == x.variable.nbytes


def test_cut() -> None:
    mapping = build_mapping("x", 10, [(np.array([0, 4, 6]), np.array([4, 6, 10]), np.array([1, 2, 1]))])
    pieces = mapping.cut(np.array([3, 0, 5, 9]), np.array([4, 0, 1, 1]))
    assert pieces.run.tolist() == [0, 0, 0, 2, 3]
    assert pieces.starts.tolist() == [3, 4, 6, 5, 9]
    assert pieces.lengths.tolist() == [1, 2, 1, 1, 1]
    assert pieces.tiles.tolist() == [1, 2, 1, 2, 1]


def test_boundaries() -> None:
    assert even_boundaries(10, 4).tolist() == [0, 3, 6, 8, 10]
    assert linear_boundaries(10, 4, 4).tolist() == [0, 4, 8, 10]
    assert linear_boundaries(2, 4).tolist() == [0, 1, 2]
