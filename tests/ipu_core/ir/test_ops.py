"""The table of operations: every other table has a row for each, and every set is read from it."""

from collections.abc import Collection

import numpy as np
import pytest

from ipu_core import Target
from ipu_core.chip import cost
from ipu_core.compile.lowering.families import LOWERINGS
from ipu_core.ir import ops
from ipu_core.ir.exact import EXACT
from ipu_core.ir.ops import OPS
from ipu_core.ir.passes.cotangents import COTANGENTS
from ipu_core.ir.run.declared import DECLARED
from ipu_core.ir.run.kernels import BINDINGS

CONSTANT = {"step", "stop_gradient", *ops.WHOLE_NUMBERS, *ops.COMPARISONS, *ops.COLLECTIVES - {"all_reduce"}} | {
    op.name for op in OPS.values() if op.kind in ("mask", "order")
}
TABLES: dict[str, tuple[Collection[str], set[str]]] = {
    "exact.EXACT": (EXACT, {"dropout_mask"}),  # it is drawn
    "declared.DECLARED": (DECLARED, set()),
    "kernels.BINDINGS": (BINDINGS, ops.ELEMENTWISE | ops.VIEWS - {"reshape"}),  # strides may not express that one
    "cotangents.COTANGENTS": (COTANGENTS, CONSTANT | {"concatenate", "custom_gradient"}),  # of any number of operands
    "families.LOWERINGS": (LOWERINGS, {"to_blocks", "hadamard"}),  # no chip has a unit for them
}
"""By name: a table of operations, and those that have no row in it on purpose."""


def test_every_elementwise_operation_has_cycles() -> None:
    for name in ops.ELEMENTWISE - {"convert"}:
        assert cost.elementwise(Target(), ops.COMPUTED_AS[name], 8, 4) > 0


@pytest.mark.parametrize("table", TABLES)
def test_every_operation_has_a_row_in_every_table(table: str) -> None:
    rows, without = TABLES[table]
    assert sorted(set(OPS) - set(rows) - without) == [], f"{table} lacks rows"
    assert sorted(set(rows) - set(OPS)) == [], f"{table} has rows of no operation"
    assert sorted(set(rows) & without) == [], f"{table} has rows that are said to be missing"


def test_the_sets_are_those_of_the_machine() -> None:
    assert sorted(ops.VIEWS) == [
        "broadcast", "custom_gradient", "reshape", "scale_gradient", "slice", "stop_gradient", "transpose"
    ]  # fmt: skip
    assert sorted(ops.VIEWS - ops.WHOLE_VIEWS) == ["slice"]
    assert sorted(ops.STRUCTURE - ops.VIEWS) == ["concatenate", "gather", "pad", "set_row", "take_along"]
    assert sorted(ops.PLANNED - ops.SUMS) == ["reduce_max"]
    assert sorted(ops.SUMS - ops.PRODUCTS) == ["reduce_sum"]
    assert sorted(ops.PRODUCTS - ops.CONVOLUTIONS) == ["dot", "scaled_dot"]
    assert ops.ELEMENTWISE.isdisjoint(ops.STRUCTURE | ops.PLANNED)


@pytest.mark.parametrize("name", sorted(n for n in ops.ELEMENTWISE if OPS[n].neutral))
def test_neutral_numbers_change_nothing(name: str) -> None:
    x = np.array([-0.0, 0.0, 1.5, -np.inf, np.nan, 2.0**-149], np.float32)
    for position, number in OPS[name].neutral.items():
        operands = [x, x]
        operands[position] = np.float32(number)
        result = EXACT[name](*operands)
        np.testing.assert_array_equal(result, x)
