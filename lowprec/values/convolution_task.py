"""A block of a convolution's sums as data: what every backend is asked for."""

from __future__ import annotations

from typing import NamedTuple

from lowprec.types import Span
from lowprec.values.accumulation import Accumulation
from lowprec.values.keys import KeyLike
from lowprec.values.sum_rules import SumRules
from lowprec.values.windows import BlockPlace


class ConvolutionTask(NamedTuple):
    """How a block of sums is made and where it lies.

    Attributes:
        accumulation: order of every sum.
        rules: its types and roundings.
        key: of the random bits.
        place: of the block in the whole result, for the random bits.
        span: first and last (exclusive) of the groups of products that are summed, numbered in this weight, or of the
            output positions of a weight gradient; None: all.
        threads: at most so many.
    """

    accumulation: Accumulation
    rules: SumRules
    key: KeyLike | None
    place: BlockPlace
    span: Span | None
    threads: int
