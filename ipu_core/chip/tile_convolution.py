"""A tile's convolutions: lowprec's kernels under floating-point control, as prepared calls (see `tile`)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.tile import Bound, Dtypes, check_sum, watched
from lowprec import Accumulation, Key, Rounding
from lowprec.convolution.parts import prepare_correlation, prepare_weight_sums
from lowprec.convolution.passes import conv2d, conv2d_input_gradient, conv2d_weight_gradient
from lowprec.values.windows import BlockPlace

Array = NDArray[Any]
_PREPARE = {"conv2d": prepare_correlation, "conv2d_weight_gradient": prepare_weight_sums}


def whole(op: str, params: Mapping[str, Any]) -> Callable[..., Array]:
    """lowprec's function for a convolution with its parameters, still to be given operands, order and rounding."""
    options = {name: params[name] for name in ("stride", "padding", "dilation", "groups")}
    if op == "conv2d":
        return partial(conv2d, **options)
    if op == "conv2d_input_gradient":
        return partial(conv2d_input_gradient, size=params["size"], **options)
    return partial(conv2d_weight_gradient, kernel=params["kernel"], **options)


def convolution(
    op: str, params: Mapping[str, Any], order: Accumulation, rounding: Rounding, control: FloatingPointControl,
    operands: Dtypes | None = None,
) -> Callable[[Array, Array, Key | None, Array], Array]:  # fmt: skip
    """A convolution or one of its gradients on whole arrays: f(a, b, key, out).

    Args:
        op: conv2d, conv2d_input_gradient or conv2d_weight_gradient.
        params: stride, padding, dilation, groups; size for the input gradient, kernel for the weight gradient.
        order: the Accumulation; its second type is the result's format.
        rounding: of partial sums, stages and result; its overflow is the control's.
        control: overflow and exceptions.
        operands: dtypes of those to come, where an order that does not take them is to be refused now.
    """
    rounded = control.rounding(rounding, order.accumulate)
    if operands is not None:
        # Parts are kept in the accumulator's dtype; whole sums in formats without one are kept in float32.
        kept = order if order.accumulate.dtype is not None else order.with_types(order.out, order.out)
        _PREPARE.get(op, prepare_correlation)(*operands, kept, rounded)
    call = partial(whole(op, params), accumulation=order, rounding=rounded)

    def convolved(a: Array, b: Array, key: Key | None, out: Array) -> Array:
        return call(a, b, key=key, out=out)

    if not control.traps:
        return convolved

    def checked(a: Array, b: Array, key: Key | None, out: Array) -> Array:
        return check_sum(op, control, (a, b), convolved(a, b, key, out))

    return checked


def convolution_part(
    op: str, windows: Array, other: Array, out: Array, order: Accumulation, place: BlockPlace,
    span: tuple[int, int] | None, rounding: Rounding, control: FloatingPointControl,
) -> Bound:  # fmt: skip
    """Chains of a block of a convolution ("conv2d") or of a weight gradient, bound to their arrays: f(key).

    Args:
        op: which.
        windows, other, out: see `lowprec.convolution_sums`; `out` has the accumulator's storage dtype.
        order: group, accumulator and adder count here.
        place: of the block in the whole result.
        span: the groups (positions for a weight gradient) of one part of the sum; None: all.
        rounding: of the partial sums; its overflow is the control's.
        control: overflow and exceptions.
    """
    call = _PREPARE[op](windows.dtype, other.dtype, order, control.rounding(rounding, order.accumulate))

    def part(key: Key | None) -> None:
        call(windows, other, out, place, key, span)

    return watched(op, part, (windows, other), out, control)
