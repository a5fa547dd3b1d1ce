"""A tile's arithmetic with its own random generator (see `hardware_random`): the same steps as `tile`'s, other bits.

Every result in half is computed in float32 and converted by one draw: an elementwise result, the partial sum of a group
of products or terms, a sum of parts. Other formats draw nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip import tile
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import Draws
from ipu_core.chip.tile import Bound, Elementwise, trapping, watched
from lowprec import Accumulation, Key, Rounding, as_format
from lowprec import float16 as FLOAT16
from lowprec import float32 as FLOAT32
from lowprec.elementwise import prepare as prepare_elementwise
from lowprec.sums.matmul import prepare_part

Array = NDArray[Any]
_NEAREST = Rounding()


def elementwise(
    op: str, formats_in: Sequence[Any], out_format: Any, control: FloatingPointControl, draws: Draws
) -> Elementwise:
    """A prepared elementwise operation, as `tile.elementwise`."""
    if as_format(out_format) != FLOAT16:
        return tile.elementwise(op, formats_in, out_format, _NEAREST, control)
    dtypes = tuple(None if spec is None else np.dtype(as_format(spec).dtype) for spec in formats_in)
    wide = prepare_elementwise(op, dtypes, "float32")

    def call(operands: tuple[Any, ...], key: Key | None, offset: int, out: Array) -> Array:
        exact = wide(operands, None, 0, np.empty(out.shape, np.float32))
        out[...] = draws.half(exact, control.nanoo)
        return out

    return trapping(op, dtypes, call, FLOAT16, control) if control.traps else call


def matmul_part(
    a: Array, b: Array, out: Array, order: Accumulation, control: FloatingPointControl, draws: Draws,
    initial: Array | None = None,
) -> Bound:  # fmt: skip
    """Chains of products of many vertices, as `tile.matmul_part`, group by group."""
    terms = a.shape[-1]
    group = order.group_of(terms)
    wide = np.zeros(out.shape, np.float32)
    # a group's products in float32 without a rounding; the draw that follows is the rounding
    one = Accumulation(None, 1, 1, FLOAT32, None, order.adder)
    call = prepare_part(a.dtype, b.dtype, one, _NEAREST)
    cuts = [slice(first, first + group) for first in range(0, terms, group)]

    def part(key: Key | None) -> None:
        wide[...] = 0 if initial is None else initial
        for cut in cuts:
            wide[...] = call(a[..., cut], b[..., cut, :], None, initial=wide)
            _convert(wide, order.accumulate, control, draws)
        out[...] = wide

    return watched("matmul", part, (a, b) if initial is None else (a, b, initial), out, control)


def reduce_part(x: Array, out: Array, order: Accumulation, control: FloatingPointControl, draws: Draws) -> Bound:
    """Chains of terms of many vertices, x (vertex axes.., m, k, n), as `tile.reduce_part`, term by term."""
    terms = x.shape[-2]
    group = order.group_of(terms)

    def part(key: Key | None) -> None:
        wide = np.zeros(out.shape, np.float32)
        for term in range(terms):
            wide += x[..., term, :]
            if (term + 1) % group == 0 or term + 1 == terms:
                _convert(wide, order.accumulate, control, draws)
        out[...] = wide

    return watched("reduce_sum", part, (x,), out, control)


def sum_parts(parts: Array, out: Array, fmt: Any, control: FloatingPointControl, draws: Draws) -> Bound:
    """Sums of parts (P, vertex axes.., own axes..), as `tile.sum_parts`."""

    def total(key: Key | None) -> None:
        wide = parts[0].astype(np.float32)
        for part in parts[1:]:
            wide += part
        _convert(wide, as_format(fmt), control, draws)
        out[...] = wide

    return watched("sum of parts", total, (parts,), out, control)


def dropout_mask(rate: float, draws: Draws) -> Callable[[Key | None, int, Array], Array]:
    """A prepared random mask, as `tile.dropout_mask`."""
    dropped = round(rate * 2**16)

    def mask(key: Key | None, offset: int, out: Array) -> Array:
        np.copyto(out, draws.words(out.shape) >= dropped)
        return out

    return mask


def _convert(wide: Array, fmt: Any, control: FloatingPointControl, draws: Draws) -> None:
    """float32 results to a format, in place."""
    if fmt == FLOAT16:
        wide[...] = draws.half(wide, control.nanoo)
