"""The table of operations: every kind has its rules, and every set is read from the table."""

import numpy as np
import pytest

from ipu_core.ir import ops
from ipu_core.ir.autodiff import COTANGENTS
from ipu_core.ir.exact import EXACT
from ipu_core.ir.kernels import BINDINGS
from ipu_core.ir.ops import OPS


def test_every_operation_has_an_exact_rule_and_a_binding() -> None:
    assert set(EXACT) == set(OPS) - {"dropout_mask"}  # which is drawn
    assert set(BINDINGS) == set(OPS) - ops.ELEMENTWISE - (ops.VIEWS - {"reshape"})  # which strides may not express
    assert set(COTANGENTS) <= set(OPS)


def test_the_sets_are_those_of_the_machine() -> None:
    assert sorted(ops.VIEWS) == ["broadcast", "reshape", "scale_gradient", "slice", "stop_gradient", "transpose"]
    assert sorted(ops.VIEWS - ops.WHOLE_VIEWS) == ["slice"]
    assert sorted(ops.STRUCTURE - ops.VIEWS) == ["concatenate", "gather", "pad", "take_along"]
    assert sorted(ops.PLANNED - ops.SUMS) == ["reduce_max"]
    assert sorted(ops.SUMS - ops.PRODUCTS) == ["reduce_sum"]
    assert sorted(ops.PRODUCTS - ops.CONVOLUTIONS) == ["dot"]
    assert ops.ELEMENTWISE.isdisjoint(ops.STRUCTURE | ops.PLANNED)


@pytest.mark.parametrize("name", sorted(n for n in ops.ELEMENTWISE if OPS[n].neutral))
def test_neutral_numbers_change_nothing(name: str) -> None:
    x = np.array([-0.0, 0.0, 1.5, -np.inf, np.nan, 2.0**-149], np.float32)
    for position, number in OPS[name].neutral.items():
        operands = [x, x]
        operands[position] = np.float32(number)
        result = EXACT[name](*operands)
        np.testing.assert_array_equal(result, x)
