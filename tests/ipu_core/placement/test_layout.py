"""Layouts: every element on one tile, and boxes counted in closed form."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core.chip.target import Target
from ipu_core.placement.layout import Range, linear_layout, owned


@given(st.lists(st.integers(0, 700), max_size=3), st.integers(1, 1472))
def test_layout_fits_the_tiles_and_covers_the_array(shape: list[int], tiles: int) -> None:
    layout = linear_layout(Target("gc200", tiles=tiles), shape)
    assert layout.size == np.prod(shape, dtype=int)
    assert layout.tiles <= tiles
    columns = layout.shape[1]
    if layout.size:
        assert layout.columns == columns or (layout.rows == 1 and columns % layout.columns == 0)
        assert layout.chunk * (layout.tiles - 1) < layout.size <= layout.chunk * layout.tiles


def test_layout_depends_on_the_shape_only_and_is_pinned() -> None:
    target = Target("gc200")
    words = [linear_layout(target, shape).words() for shape in ((64, 256), (256, 256), (64, 10), (256,), (6144, 6144))]
    assert words == [
        "64 x 256 linear over 1024 tiles in pieces of 16 columns",
        "256 x 256 linear over 1024 tiles in pieces of 64 columns",
        "64 x 10 linear over 32 tiles in 2 rows",
        "256 x 1 linear over 11 tiles in 24 rows",
        "6144 x 6144 linear over 1229 tiles in 5 rows",
    ]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(1, 40),
    st.data(),
)
def test_owned_counts_boxes_like_a_mask(sizes: list[int], chunk: int, data: st.DataObject) -> None:
    box = []
    for size in sizes:
        low = data.draw(st.integers(0, size))
        period = data.draw(st.sampled_from([0, 0, 3, 5]))
        if period:
            low = min(low, period)
            box.append(
                Range(low, data.draw(st.integers(low, period)), period, data.draw(st.sampled_from([4, 1 << 62])))
            )
        else:
            box.append(Range(low, data.draw(st.integers(low, size))))
    count = -(-int(np.prod(sizes)) // chunk)
    inside = np.ones(sizes, bool)
    for axis, one in enumerate(box):
        numbers = np.arange(sizes[axis])
        shape = [-1 if i == axis else 1 for i in range(len(sizes))]
        inside &= np.asarray(one.has(numbers)).reshape(shape)
        assert one.below(sizes[axis]) == np.count_nonzero(one.has(numbers))
    expected = [np.count_nonzero(inside.ravel()[t * chunk : (t + 1) * chunk]) for t in range(count + 2)]
    assert owned(chunk, count + 2, sizes, box).tolist() == expected
    even = count + 2 + count % 2
    swapped = [[*expected, 0][tile ^ 1] for tile in range(even)]
    assert owned(chunk, even, sizes, box, neighbours=True).tolist() == swapped
    # The same on a chip of so many tiles, from one of them on and around to the first.
    around, first = count + 2, data.draw(st.integers(1, count + 1))
    turned = [*np.roll(expected, first).tolist(), 0]
    assert owned(chunk, even, sizes, box, first=first, around=around).tolist() == turned[:even]
    neighbours = owned(chunk, even, sizes, box, neighbours=True, first=first, around=around)
    assert neighbours.tolist() == [turned[tile ^ 1] for tile in range(even)]


def test_an_array_goes_on_behind_the_last_tile() -> None:
    target = Target("gc200")
    matrix, images = (linear_layout(target, shape, 1000) for shape in ((256, 256), (4, 64, 256)))
    assert matrix.words() == "256 x 256 linear over 1024 tiles from tile 1000 in pieces of 64 columns"
    assert images == matrix
    assert linear_layout(target, (256, 256)) == replace(matrix, first=0, around=0)
    assert matrix.tile(np.array([0, 471, 472, 1023])).tolist() == [1000, 1471, 0, 551]


def test_a_vector_is_cut_anywhere() -> None:
    layout = linear_layout(Target("gc200", tiles=4), (1009,))
    assert layout.shape == (1009, 1)
    assert layout.tiles == pytest.approx(4, abs=1)
