"""Distinct numbers: as NumPy finds them, in order or not."""

import numpy as np
import pytest

from ipu_core.chip.integers import ascends, distinct, numbered

ARRAYS = [[], [4], [4, 4], [1, 2, 9], [9, 2, 1], [3, 3, 1, 2, 3, 1], [0, 1, 0, 1], [5, 5, 6]]


@pytest.mark.parametrize("values", ARRAYS)
def test_distinct_numbers_are_numpys(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert distinct(array).tolist() == sorted(set(values))
    found, which = numbered(array)
    assert found.tolist() == sorted(set(values))
    assert found[which].tolist() == values
    assert which.dtype == np.int64
    assert ascends(array) == (values == sorted(set(values)))
