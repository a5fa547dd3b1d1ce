"""Cuts into stages: the heaviest is as light as can be, and weights follow the stages' own plans."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipu_core.train.cuts import corrected, lightest_cut

weights = st.lists(st.integers(0, 30), min_size=2, max_size=9)


@given(st.data())
def test_no_other_cut_has_a_lighter_heaviest_stage(data: st.DataObject) -> None:
    """Against all cuts there are; a stage weighs what it computes and what it hands on."""
    work = data.draw(weights)
    links = [0, *data.draw(st.lists(st.integers(0, 9), min_size=len(work) - 1, max_size=len(work) - 1))]
    stages = data.draw(st.integers(2, min(4, len(work))))
    numbers = list(range(10, 10 + 3 * len(work), 3))

    def heaviest(cuts: tuple[int, ...]) -> int:
        bounds = (0, *cuts, len(work))
        parts = pairwise(bounds)
        return max(sum(work[a:b]) + (links[b] if b < len(work) else 0) for a, b in parts)

    best = min(map(heaviest, combinations(range(1, len(work)), stages - 1)))
    found = lightest_cut(numbers, work, links, stages)
    assert len(found) == stages - 1
    assert list(found) == sorted(set(found))
    assert heaviest(tuple(numbers.index(number) for number in found)) == best


def test_weights_add_up_to_what_stages_take() -> None:
    """Each stage's share is scaled as a whole; one without weight stays so."""
    scaled = corrected([1.0, 3.0, 2.0, 2.0, 0.0], [0, 5, 7, 9, 11], [7, 11], [8, 2, 5])
    assert scaled == pytest.approx([2.0, 6.0, 1.0, 1.0, 0.0])
