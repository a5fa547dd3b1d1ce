"""The kernels ask Python how a sum of some length is cut, once for each length, and keep nothing alive by it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import lowprec as lp
import lowprec.testing as lpt
from lowprec import _kernels
from lowprec.backends.cpu.operands import operand_type
from lowprec.backends.cpu.products import native_accumulator
from lowprec.values.sum_rules import sum_rules

X = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)


def test_lengths_may_alternate() -> None:
    lengths = [5, 200, 13, 5, 21, 200, 29, 37, 5, 0, 1, 0] * 2
    with lpt.backend("reference"):
        want = [lp.reduce_sum(X[:, :n], accumulate="float16", group=3, splits=7) for n in lengths]
    for n, sums in zip(lengths, want, strict=True):
        lpt.assert_same_bits(lp.reduce_sum(X[:, :n], accumulate="float16", group=3, splits=7), sums)


def reduction(rule: object) -> _kernels.ReduceCall:
    order = _kernels.Order(rule, 0)  # type: ignore[arg-type]
    exact = native_accumulator(sum_rules(lp.Accumulation(), lp.Rounding()))
    return _kernels.ReduceCall(operand_type(np.dtype(np.float32)), exact, order)


def total(call: _kernels.ReduceCall, n: int) -> object:
    return call(X[:, :n, None], None, 0, 0, 0, 0, None, 1)[0, 0]


def test_a_length_is_asked_for_once() -> None:
    asked: list[int] = []

    def rule(terms: int) -> tuple[int, int, int, int]:
        asked.append(terms)
        return terms, terms, 1, 1

    call = reduction(rule)
    for n in (7, 7, 20, 7, 20):
        total(call, n)
    assert asked == [7, 20]


@pytest.mark.parametrize("answer", [(0, 4, 1, 1), (4, 0, 1, 1), (4, 4, 0, 1), (4, 4, 4, 1), (4, 4, 1, 0)])
def test_an_answer_that_is_no_order_is_refused(answer: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="no such order"):
        total(reduction(lambda terms: answer), 4)
    with pytest.raises(ZeroDivisionError):
        total(reduction(lambda terms: (1 // 0, 1, 1, 1)), 4)


def test_a_process_ends_without_a_word() -> None:
    code = "import lowprec, numpy; x = numpy.ones((4, 4), 'f4'); lowprec.matmul(x, x); lowprec.reduce_sum(x); "
    code += "lowprec.scatter_add([0, 1, 0, 1], x, 2)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout + found.stderr == ""
