"""Declared arithmetic: one equation in its formats and rounding through lowprec's plain functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.tile import SECOND_ROUNDING, dropout_mask
from ipu_core.chip.tile_convolution import whole
from ipu_core.chip.tile_integers import has_integers, of_integers
from ipu_core.chip.tile_scatter import put_along
from ipu_core.ir.block import Array, Equation, Params, dtype_of
from ipu_core.ir.exact import exact
from ipu_core.ir.ops import COMPUTED_AS, CONVOLUTIONS, ELEMENTWISE, GROUP_SUM, STRUCTURE
from ipu_core.ir.run.collectives import collective_of
from ipu_core.ir.run.kernels import check_classes, order_of
from ipu_core.ir.run.rounded import in_float32, is_rounded_apart, round_once, rounded
from ipu_core.ir.run.wide import is_computed_wide, prepared
from lowprec import Accumulation, FloatFormat, Key, Rounding, hadamard, to_blocks
from lowprec import float16 as FLOAT16
from lowprec import float32 as FLOAT32
from lowprec.elementwise import float32_op
from lowprec.sums.collectives import all_reduce
from lowprec.sums.matmul import matmul
from lowprec.sums.reduce import reduce_max, reduce_sum
from lowprec.sums.scatter import scatter_add
from lowprec.values.axes import fold
from lowprec.values.formats import as_format


class _Call(NamedTuple):
    """What the result of an equation is made of, see `declared`."""

    equation: Equation
    operands: list[Any]
    key: Key | None
    order: Accumulation | None
    control: FloatingPointControl

    @property
    def params(self) -> Params:
        return self.equation.params

    @property
    def shape(self) -> tuple[int, ...]:
        return self.equation.output.type.shape

    @property
    def fmt(self) -> FloatFormat:
        fmt = as_format(self.equation.output.type.format)
        return as_format(dtype_of(fmt))  # of an odd format an exact result: on its grid as the operands are


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
    if is_computed_wide(equation):
        return prepared(equation, order, control)(operands, key, None)
    if is_rounded_apart(equation):
        wide = declared(in_float32(equation), operands, key, order, control)
        return rounded(equation, wide, key).reshape(equation.output.type.shape)
    result = DECLARED[equation.op](_Call(equation, operands, key, order, control))
    return np.asarray(result).reshape(equation.output.type.shape)


def _rounded(call: _Call, op: str, operands: list[Any]) -> Any:
    """An elementwise operation rounded once, or twice by way of half into 8 bits, as the machine does."""
    rounding, control, fmt, key = call.equation.arithmetic.rounding, call.control, call.fmt, call.key
    if fmt.bits <= 8 and not (op == "identity" and operands[0].dtype == FLOAT16.dtype):
        half = float32_op(op, *operands, fmt=FLOAT16, rounding=control.rounding(rounding, FLOAT16), key=key)
        op, operands, key = "identity", [half], key and key.fold_in(SECOND_ROUNDING)
    return float32_op(op, *operands, fmt=fmt, rounding=control.rounding(rounding, fmt), key=key)


def _sum(call: _Call, function: Any, *operands: Any) -> Any:
    """A product or sum by lowprec's function for it."""
    order = order_of(call.equation, call.order)
    rounding = call.control.rounding(call.equation.arithmetic.rounding, order.accumulate)
    return function(*operands, accumulation=order, rounding=rounding, key=call.key)


def _elementwise(call: _Call) -> Any:
    name = COMPUTED_AS[call.equation.op]
    if has_integers([getattr(x, "dtype", None) for x in call.operands]):
        out = np.empty(call.shape, dtype_of(call.equation.output.type.format))
        return of_integers(name)(tuple(call.operands), None, 0, out)
    return _rounded(call, name, call.operands)


def _scaled_dot(call: _Call) -> Any:
    a, b, scale = call.operands
    return _sum(call, matmul, float32_op("multiply", a, scale, fmt="float32"), b)


def _reduce_sum(call: _Call) -> Any:
    x = fold(call.operands[0].shape, call.params["axis"]).view(call.operands[0])
    return _sum(call, reduce_sum, x, 1)


def _to_blocks(call: _Call) -> Any:
    params, rounding = call.params, call.equation.arithmetic.rounding
    blocks = to_blocks(
        call.operands[0], params["format"], params["axis"], scale_rule=params["rule"], rounding=rounding, key=call.key
    )
    return blocks.dequantize(call.fmt.dtype)


def _scatter_add(call: _Call) -> Any:
    places, updates = call.operands
    order = call.params.get("accumulation")
    order = None if order is None else order.with_types(order.accumulate, FLOAT32)
    return _rounded(call, "identity", [scatter_add(places, updates, call.shape[0], accumulation=order)])


def _scatter_max(call: _Call) -> Any:
    places, updates = call.operands
    return exact("scatter_max", [places, np.asarray(updates, np.float32)], call.params).astype(updates.dtype)


def _put_along(call: _Call) -> Any:
    (values, places), wide = call.operands, np.empty(call.shape, np.float32)
    put_along(values, places, wide)
    return _rounded(call, "identity", [wide])


def _top_indices(call: _Call) -> Any:
    return exact("top_indices", [call.operands[0].astype(np.float64)], call.params).astype(np.int32)


def _all_reduce(call: _Call) -> Any:
    x = np.asarray(call.operands[0])
    every = np.broadcast_to(x, (int(call.params["replicas"]), *x.shape))
    how, fmt, own = collective_of(call.equation), call.fmt, call.equation.output.type.format
    how = replace(how, rounding=call.control.rounding(how.rounding, how.wire))
    total = all_reduce(every, how, key=call.key)
    if own == how.wire or as_format(own).contains(how.wire):
        return total.astype(fmt.dtype)
    second = None if call.key is None else call.key.fold_in(SECOND_ROUNDING)
    rounding = call.control.rounding(Rounding(how.rounding.mode, how.rounding.random_bits), fmt)
    return round_once(total, as_format(own), rounding, second)


def _one_hot(call: _Call) -> Any:
    check_classes(call.equation, call.operands[0])
    return np.equal(call.operands[0][..., None], np.arange(call.params["classes"])).astype(call.fmt.dtype)


DECLARED: Mapping[str, Callable[[_Call], Any]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(STRUCTURE, lambda call: exact(call.equation.op, call.operands, call.params)),
    **dict.fromkeys(CONVOLUTIONS, lambda call: _sum(call, whole(call.equation.op, call.params), *call.operands)),
    "dot": lambda call: _sum(call, matmul, *call.operands),
    "scaled_dot": _scaled_dot,
    "reduce_sum": _reduce_sum,
    "reduce_max": lambda call: reduce_max(call.operands[0], call.params["axis"]),
    "scatter_add": _scatter_add,
    "scatter_max": _scatter_max,
    "put_along": _put_along,
    "all_reduce": _all_reduce,
    GROUP_SUM: _all_reduce,
    "reduce_scatter": lambda call: np.ravel(_all_reduce(call))[: call.shape[0]],
    "all_gather": lambda call: np.resize(call.operands[0], call.shape),
    "all_reduce_max": lambda call: call.operands[0],
    "first_replica": lambda call: call.operands[0],
    "each_replica": lambda call: call.operands[0],
    "top_indices": _top_indices,
    "one_hot": _one_hot,
    "dropout_mask": lambda call: dropout_mask(call.params["rate"])(call.key, 0, np.empty(call.shape, call.fmt.dtype)),
    "to_blocks": _to_blocks,
    "hadamard": lambda call: hadamard(call.operands[0], call.params["axis"], block=call.params["block"]),
}
"""By operation."""
