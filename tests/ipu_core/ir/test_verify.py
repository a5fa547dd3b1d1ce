"""The verifier refuses each kind of broken Block by its own error."""

from dataclasses import replace

import numpy as np
import pytest

from ipu_core.ir.block import Params, Type, Var
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import (
    DuplicateDefinition,
    InvalidBlock,
    UnknownOperation,
    UseBeforeDefinition,
    WrongType,
    verify,
)  # fmt: skip
from lowprec import float16, float32

A = np.ones((3, 4))
CONSTANT = np.ones((4, 3))
BLOCK = trace(lambda x: ((x @ CONSTANT).T.sum(0), x * 2), A, carry=False)


def change(position, **changes):
    equations = list(BLOCK.equations)
    equations[position] = replace(equations[position], **changes)
    return replace(BLOCK, equations=tuple(equations))


DOT, TRANSPOSE, SUM, _ = BLOCK.equations
STRAY = Var("stray", Type((3, 4), float32))

BROKEN = {
    "an unknown operation": (change(0, op="dott"), UnknownOperation, "unknown operation; there are.* dot,"),
    "an unknown role": (change(0, role="backward"), UnknownOperation, "grad_input"),
    "a stray operand": (change(0, inputs=(STRAY, DOT.inputs[1])), UseBeforeDefinition, "%stray is not defined"),
    "the wrong order": (replace(BLOCK, equations=(TRANSPOSE, DOT, *BLOCK.equations[2:])), UseBeforeDefinition, "%0"),
    "a stray output": (replace(BLOCK, outputs=(STRAY,)), UseBeforeDefinition, "output %stray"),
    "one number twice": (change(1, number=0), DuplicateDefinition, "the number 0"),
    "one result twice": (change(1, outputs=DOT.outputs), DuplicateDefinition, "%0 is defined twice"),
    "a wrong shape": (change(0, outputs=(Var("0", Type((3, 5), float32)),)), WrongType, r"shape \(3, 3\)"),
    "a wrong number of operands": (change(0, inputs=DOT.inputs[:1]), WrongType, "2 operands, not 1"),
    "a wrong parameter": (change(2, params=Params({"axis": (5,), "keepdims": False})), WrongType, "axis"),
    "a moved element in another format": (
        change(1, outputs=(Var("1", Type((3, 3), float16)),)), WrongType, "only moves elements"),
    "an integer result": (change(3, outputs=(Var("3", Type((3, 4), "int32")),)), WrongType, "int32"),
    "a wrong constant": (replace(BLOCK, constants={v: CONSTANT.T for v in BLOCK.constants}), WrongType, "constant"),
    "a state that changes type": (replace(BLOCK, carried=1), WrongType, "before the step"),
}  # fmt: skip


def test_a_traced_block_is_valid():
    assert verify(BLOCK) is BLOCK


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_block_is_refused_by_kind(name):
    block, error, message = BROKEN[name]
    with pytest.raises(error, match=message):
        verify(block)
    assert issubclass(error, InvalidBlock)
    assert issubclass(error, ValueError)
