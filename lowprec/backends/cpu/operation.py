"""float32_op by the compiled loops."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lowprec import _kernels
from lowprec.backends.cpu.operands import operand_type
from lowprec.backends.cpu.rounding import native_conversion, without_draws
from lowprec.values.elementwise_op import OPERATIONS, ElementwiseOp
from lowprec.values.formats import float32, format_of_dtype

new_pipeline = _kernels.PipelineCall
"""Prepared calls that go through pieces of rows together: f(key, threads)."""


def has_pipelines() -> bool:
    """Whether pipelines are not switched off."""
    return _kernels.takes("pipelines")


# Operations whose result is one of their operands, but for its sign and for a zero; the first of `select` only chooses.
_CHOOSING = ("identity", "negative", "absolute", "relu", "maximum", "minimum", "select")


def _is_exact(op: ElementwiseOp) -> bool:
    """Whether the result's format holds every result, so that no random bit can change one."""
    fmt = op.conversion.rule.fmt
    # A format whose range does not reach 1 may still have to round it.
    return op.operation in ("step", "greater", "equal") and fmt.emin <= 0 <= fmt.emax  # 0 or 1


def _chooses(op: ElementwiseOp) -> bool:
    """Whether the result is an operand, and the result's format holds the arrays' dtypes.

    Then no random bit can change a result, if it also holds the operands that are Python numbers: the call sees. False
    where the format holds every float32, since nothing is drawn there anyway.
    """
    fmt, dtypes = op.conversion.rule.fmt, op.in_dtypes[op.operation == "select" :]
    if fmt.contains(float32):
        return False
    sources = [format_of_dtype(dtype) for dtype in dtypes if dtype is not None]
    return op.operation in _CHOOSING and all(source is not None and fmt.contains(source) for source in sources)


@lru_cache(maxsize=4096)
def elementwise(op: ElementwiseOp) -> _kernels.ElementwiseCall:
    """The compiled call: f(operands, key, offset, out, threads)."""
    rule = op.conversion.rule
    # A float32 result stays as it is, unless the policy replaces its infinities.
    plain = rule.fmt == float32 and rule.inf_pos == float32.inf_code
    exact = without_draws(op.conversion)
    conversion = exact if _is_exact(op) else op.conversion
    return _kernels.ElementwiseCall(
        list(OPERATIONS).index(op.operation),
        [operand_type(np.dtype(np.float32) if dtype is None else dtype) for dtype in op.in_dtypes],
        native_conversion(conversion),
        # A second conversion, without draws, for calls whose numbers the format holds.
        native_conversion(exact) if exact is not conversion and _chooses(op) else None,
        conversion.out_dtype,
        plain,
        not plain and rule.mode == "stochastic",
    )
