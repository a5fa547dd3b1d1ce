"""Prepared operations, one after another over pieces of rows that stay in the cache, in one compiled call.

Where a row of every result needs nothing of the others but the same row, a piece of rows can go through all operations
before the next one begins: elementwise operations, and sums and maxima along rows. What only they read then needs
memory for one piece. The bits are those of the operations on whole arrays: random bits belong to an element's index in
its whole array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from lowprec import backends, threads
from lowprec.backends import cpu
from lowprec.elementwise import specified
from lowprec.sums.reduce import order_of_sums
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.formats import FormatLike
from lowprec.values.keys import KeyLike
from lowprec.values.operands import operand_dtype
from lowprec.values.rounding import Rounding
from lowprec.values.sum_rules import sum_rules


def runs_here() -> bool:
    """Whether the backend in force is the compiled one, with its pipelines not switched off."""
    return backends.current() is cpu and cpu.has_pipelines()


class Pipeline:
    """Operations prepared for arrays that stay where they are; not to be called by two threads at once.

    Args:
        memory: bytes for what lies in pieces, which begin at a cache line. Threads have copies of their own.
    """

    def __init__(self, memory: Array) -> None:
        self._native = cpu.new_pipeline(memory)

    def part(self, rows: int, piece: int) -> None:
        """Begins a part: the operations added from now on go together through pieces of `piece` of their `rows` rows.

        All of them are done with one piece before the next one begins, and no piece is shared by two threads.
        """
        self._native.part(rows, piece)

    def add(
        self,
        op: str,
        in_dtypes: Sequence[npt.DTypeLike | None],
        fmt: FormatLike,
        rounding: Rounding,
        operands: tuple[Any, ...],
        out: Array,
        rows: Sequence[int],
        folds: Sequence[int] = (),
    ) -> None:
        """Adds an operation.

        Args:
            op, in_dtypes, fmt, rounding: as of `lowprec.elementwise.prepare`.
            operands, out: arrays, C-contiguous and of whole rows where they are results, or Python numbers. What lies
                in pieces is given as an array that begins in the memory of pieces and goes on as if it were whole.
            rows: bytes of a row for each operand that lies in pieces and for such a result; 0: it is whole.
            folds: numbers folded one after the other into the key of a call for the random bits.

        Raises:
            TypeError, ValueError: as `lowprec.elementwise.prepare`; shapes that do not fit.
        """
        # The compiled backend's own: a pipeline asks `runs_here` before it is made, not at every step.
        call = cpu.elementwise(specified(op, tuple(in_dtypes), fmt, rounding))
        self._native.step(call, operands, out, list(rows), list(folds))

    def add_sum(
        self,
        accumulation: Accumulation,
        rounding: Rounding,
        x: Array,
        out: Array,
        rows: Sequence[int],
        folds: Sequence[int] = (),
    ) -> None:
        """Adds a sum of x (m, k, n) over k, whose m is a whole number of times the rows of the part.

        Args:
            accumulation, rounding: as of `lowprec.sums.reduce.prepare_reduce`.
            x, out: (m, k, n) and (m, n), of any strides; what lies in pieces as of `add`.
            rows: bytes of a row of x and of out, 0 for what is whole.
            folds: as of `add`.

        Raises:
            TypeError, ValueError: as `lowprec.sums.reduce.prepare_reduce`; shapes that do not fit.
        """
        call = cpu.reduce(operand_dtype(x.dtype), order_of_sums(accumulation), sum_rules(accumulation, rounding))
        self._native.sum(call, x, out, list(rows), list(folds))

    def add_maximum(self, x: Array, out: Array, rows: Sequence[int]) -> None:
        """Adds the largest of x (m, k, n) over k, which are not none; arguments as of `add_sum`.

        Raises:
            TypeError, ValueError: as `lowprec.reduce_max`; shapes that do not fit.
        """
        # Here, when it is added: the loops suppose a first element.
        if x.shape[1] == 0:
            raise ValueError("the largest of no elements is not defined")
        self._native.maximum(cpu.maximum(operand_dtype(x.dtype)), x, out, list(rows))

    def __call__(self, key: KeyLike | None) -> None:
        """Runs all operations, with a key where one of them draws random bits.

        Raises:
            ValueError: no key, or a NaN into a format without NaN.
        """
        self._native(key, threads.current())
