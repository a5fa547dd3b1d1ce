"""Convolutions of one part in two or three stages: the part's sum is rounded to the accumulator between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowprec as lp
from tests.lowprec.sums_cases import assert_backends_agree

LARGEST = 3.4028234663852886e38
KINDS = {"dense": (1, 16), "dense to many": (1, 40), "depthwise": (8, 1), "narrow": (4, 2), "grouped": (2, 9)}
"""Kind -> convolution groups and what each has of outputs (of channels, for gradients of inputs)."""


def full(*shape: int) -> Any:
    return np.full(shape, 300, np.float16)


@pytest.mark.parametrize("stages", [None, 1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_an_infinity_meets_the_accumulators_policy_between_stages(
    kind: str, stages: int | None, host_backend: str
) -> None:
    """16 products of 90,000 overflow float16 in the only group; a stage makes its largest value of that infinity."""
    groups, each = KINDS[kind]
    how: dict[str, Any] = dict(accumulate="float16", out_format="float32", stages=stages, infinite_input="max")
    want = 65504.0 if stages in (2, 3) else LARGEST
    wide, outer = full(1, 1, 16, groups * each), full(1, 1, 4, groups * 16)
    terms = full(1, 1, 16, groups * each)
    results = (
        lp.conv2d(outer, terms, groups=groups, **how),
        lp.conv2d_input_gradient(outer, full(1, 1, each, groups * 16), (1, 4), groups=groups, **how),
        lp.conv2d_weight_gradient(full(1, 1, 16, groups), wide, (1, 1), groups=groups, **how),
    )
    for result in results:
        assert set(result.ravel().tolist()) == {want}


@pytest.mark.parametrize("positions", [40, 700])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("groups", [1, 8])
def test_weight_gradients_in_blocks_of_positions(groups: int, stages: int, positions: int) -> None:
    """Blocks of positions go on from each other; only the last one meets the stages."""
    x = full(1, 1, positions, groups) * np.float16(0.01)
    x[:, :, -1] = 300
    assert_backends_agree(
        *(lp.conv2d_weight_gradient, x, full(1, 1, positions, groups), (1, 1)),
        **dict(accumulate="float16", out_format="float32", stages=stages, groups=groups, infinite_input="max"),
    )
