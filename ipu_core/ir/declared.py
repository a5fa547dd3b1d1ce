"""Declared arithmetic: one equation in its formats and rounding through lowprec's plain functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_core.control import FloatingPointControl
from ipu_core.ir.block import Array, Equation, dtype_of
from ipu_core.ir.exact import exact
from ipu_core.ir.kernels import order_of
from ipu_core.ir.ops import COMPUTED_AS, CONVOLUTIONS, ELEMENTWISE, STRUCTURE
from ipu_core.tile import SECOND_ROUNDING, dropout_mask, put_along
from ipu_core.tile_convolution import whole
from ipu_core.tile_integers import has_integers, of_integers
from lowprec import Accumulation, Key, Rounding, hadamard, to_blocks
from lowprec import float16 as FLOAT16
from lowprec.elementwise import float32_op
from lowprec.spec.axes import fold
from lowprec.spec.formats import FormatLike, as_format
from lowprec.sums.products import matmul
from lowprec.sums.reduce import reduce_max, reduce_sum
from lowprec.sums.scatter import scatter_add


def declared(
    equation: Equation,
    operands: list[Any],
    key: Key | None,
    order: Accumulation | None = None,
    control: FloatingPointControl = FloatingPointControl(),  # noqa: B008  # frozen
) -> Array:
    """The result of an equation as its formats, rounding and accumulation declare it.

    Args:
        equation: what to compute.
        operands: arrays in their formats, and numbers.
        key: of this equation in this step; None where nothing rounds stochastically.
        order: order of a product or sum; None: the default.
        control: the machine's floating-point control.

    Raises:
        ValueError: stochastic rounding without a key.
    """
    op, params, out = equation.op, equation.params, equation.output.type
    if op in STRUCTURE:
        return np.asarray(exact(op, operands, params))
    name = COMPUTED_AS.get(op, op)
    if op in ELEMENTWISE and has_integers([getattr(x, "dtype", None) for x in operands]):
        return of_integers(name)(tuple(operands), None, 0, np.empty(out.shape, dtype_of(out.format)))
    if op == "top_indices":
        return np.asarray(exact(op, [operands[0].astype(np.float64)], params)).astype(np.int32)
    fmt = as_format(out.format)
    if op == "dot":
        total = _sum(matmul, tuple(operands), equation, order_of(equation, order), key, control)
    elif op == "scaled_dot":
        first = float32_op("multiply", operands[0], operands[2], fmt="float32")
        total = _sum(matmul, (first, operands[1]), equation, order_of(equation, order), key, control)
    elif op in CONVOLUTIONS:
        function = whole(op, params)
        total = _sum(function, tuple(operands), equation, order_of(equation, order), key, control)
    elif op == "reduce_sum":
        x = fold(operands[0].shape, params["axis"]).view(operands[0])
        total = _sum(reduce_sum, (x, 1), equation, order_of(equation, order), key, control)
    elif op == "reduce_max":
        total = reduce_max(operands[0], params["axis"])
    elif op == "one_hot":
        total = (operands[0][..., None] == np.arange(params["classes"])).astype(fmt.dtype)
    elif op == "to_blocks":
        rounding = equation.arithmetic.rounding
        blocks = to_blocks(
            operands[0], params["format"], params["axis"], scale_rule=params["rule"], rounding=rounding, key=key
        )
        total = blocks.dequantize(fmt.dtype)
    elif op == "hadamard":
        total = hadamard(operands[0], params["axis"], block=params["block"])
    elif op == "dropout_mask":
        total = dropout_mask(params["rate"])(key, 0, np.empty(out.shape, fmt.dtype))
    elif op == "put_along":
        wide = np.empty(out.shape, np.float32)
        put_along(operands[0], operands[1], wide)
        total = _rounded("identity", [wide], fmt, equation.arithmetic.rounding, key, control)
    elif op == "scatter_add":
        wide = scatter_add(operands[0], operands[1], out.shape[0])
        total = _rounded("identity", [wide], fmt, equation.arithmetic.rounding, key, control)
    else:
        total = _rounded(name, operands, fmt, equation.arithmetic.rounding, key, control)
    return np.asarray(total).reshape(out.shape)


def _rounded(
    op: str, operands: list[Any], fmt: FormatLike, rounding: Rounding, key: Key | None, control: FloatingPointControl
) -> Any:
    """An elementwise operation rounded once, or twice by way of half into 8 bits, as the machine does."""
    fmt = as_format(fmt)
    from_half = op == "identity" and operands[0].dtype == FLOAT16.dtype
    if fmt.bits <= 8 and not from_half:
        half = _rounded(op, operands, FLOAT16, rounding, key, control)
        return _rounded("identity", [half], fmt, rounding, key and key.fold_in(SECOND_ROUNDING), control)
    return float32_op(op, *operands, fmt=fmt, rounding=control.rounding(rounding, fmt), key=key)


def _sum(
    function: Any,
    operands: tuple[Any, ...],
    equation: Equation,
    order: Accumulation,
    key: Key | None,
    control: FloatingPointControl,
) -> Any:
    """A product or sum by lowprec's function for it."""
    rounding = control.rounding(equation.arithmetic.rounding, order.accumulate)
    return function(*operands, accumulation=order, rounding=rounding, key=key)
