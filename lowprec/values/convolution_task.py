"""A block of a convolution's sums as data: what every backend is asked for."""

from __future__ import annotations

from typing import NamedTuple

from lowprec.types import Span
from lowprec.values.accumulation import Accumulation
from lowprec.values.keys import KeyLike
from lowprec.values.sum_rules import SumRules
from lowprec.values.windows import BlockPlace


class ConvolutionTask(NamedTuple):
    """The order, the roundings and the place of a block of a convolution's sums.

    Attributes:
        accumulation: order of every sum.
        rules: its types and roundings.
        key: seed of the random bits; None where no rounding is stochastic.
        place: where the block lies in the whole result, from which its random bits follow.
        span: first and last (exclusive) of the groups of products that are summed, numbered in this weight, or of the
            output positions of a weight gradient; None: all.
        threads: the most threads that work on it.
    """

    accumulation: Accumulation
    rules: SumRules
    key: KeyLike | None
    place: BlockPlace
    span: Span | None
    threads: int
