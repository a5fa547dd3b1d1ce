"""float32_op by the compiled loops."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lowprec import _kernels
from lowprec.backends.cpu.operands import operand_type
from lowprec.backends.cpu.rounding import native_conversion
from lowprec.spec.elementwise_op import OPERATIONS, ElementwiseOp
from lowprec.spec.formats import float32

new_pipeline = _kernels.PipelineCall
"""Prepared calls that go through pieces of rows together: f(key, threads)."""


@lru_cache(maxsize=4096)
def elementwise(op: ElementwiseOp) -> _kernels.ElementwiseCall:
    """The compiled call: f(operands, key, offset, out, threads)."""
    rule = op.conversion.rule
    plain = rule.fmt == float32 and rule.inf_pos == float32.inf_code
    return _kernels.ElementwiseCall(
        list(OPERATIONS).index(op.operation),
        [operand_type(np.dtype(np.float32) if dtype is None else dtype) for dtype in op.in_dtypes],
        native_conversion(op.conversion),
        op.conversion.out_dtype,
        plain,
    )
