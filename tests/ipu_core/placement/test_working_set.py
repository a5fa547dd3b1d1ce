"""The working set of a turn, by hand: every term decides the size of one case."""

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.placement.matmul import product_of, sum_of
from ipu_core.placement.matmul.working_set import Piece, chain_bytes, stages_of, working_set
from lowprec import Accumulation

TARGET = Target("gc200")
PRODUCT = product_of(TARGET, 64, 512, 64)
HALF = Accumulation(accumulate="float16")


def piece(**numbers: int) -> Piece:
    usual = {"batch": 1, "rows": 4, "columns": 16, "depth": 32, "whole": 32, "each": 1, "parts": 1, "share": 4,
             "held": 0, "goes_on": 0}  # fmt: skip
    return Piece(**usual | numbers)


CASES = [
    # a 4 x 32, b 32 x 16 and the results 4 x 16, in halves
    (HALF, piece(), 256 + 1024 + 128),
    (HALF, piece(batch=3), 3 * (256 + 1024 + 128)),
    # partial sums in float32 stay on the tile; b held with all its k's
    (HALF.with_types("float32", "float16"), piece(), 256 + 1024 + 256),
    (HALF, piece(whole=64, held=2), 256 + 2048 + 128),
    (HALF, piece(whole=64, held=1), 512 + 1024 + 128),
    # a chain that goes on keeps its partial results beside the results
    (HALF, piece(goes_on=1), 256 + 1024 + 128 + 128),
    # 6 parts, 2 on the tile, which sums a share of 2 rows: own partials, gathered ones, results
    (HALF, piece(depth=1, whole=1, each=2, parts=6, share=2), 256 + 4 * 64 + 64),
    (HALF, piece(depth=1, whole=64, each=2, parts=6, share=2, held=2), 2048 + 256 + 4 * 64 + 64),
    # 20 parts: sums of 5 of them first
    (HALF, piece(depth=1, whole=1, each=2, parts=20, share=2), 256 + 18 * 64 + 4 * 64),
    # two stages of two parts: the last one needs most, first sums with a copy in the other format and wide results
    (Accumulation(stages=2, accumulate="float16", out="float32"),
     piece(rows=1, depth=1, whole=1, each=2, parts=2, share=1), 2 * 32 + 64),
]  # fmt: skip


@pytest.mark.parametrize(("order", "one", "size"), CASES)
def test_bytes_by_hand(order: Accumulation, one: Piece, size: int) -> None:
    assert int(working_set(PRODUCT, order, one)) == size
    assert int(chain_bytes(PRODUCT, order, one)) <= size


def test_a_sum_has_one_operand() -> None:
    product = sum_of(TARGET, 64, 512, 64, operands="float32")
    assert int(working_set(product, Accumulation(), piece())) == 4 * 32 * 16 * 4 + 4 * 16 * 4


def test_arrays_of_candidates_cost_what_each_does() -> None:
    order = HALF.with_types("float16", "float32")
    rows, parts = np.array([1, 4, 8]), np.array([1, 6, 20])
    together = working_set(PRODUCT, order, piece()._replace(rows=rows, parts=parts))
    apart = [
        int(working_set(PRODUCT, order, piece(rows=int(r), parts=int(p)))) for r, p in zip(rows, parts, strict=True)
    ]
    assert together.tolist() == apart
    stages, run = stages_of(order, parts)
    assert (stages.tolist(), run.tolist()) == ([1, 1, 2], [1, 6, 5])
