"""What is computed in float64: equations of values that float32 lacks, one IEEE operation, then one rounding.

Values of wide formats (float64, e9m5, e5m25) are kept as float64 on the format's grid. An elementwise operation that
reads or makes one is an IEEE operation of float64, or a function of `wide_functions`; `scaled_add` is two. Sums are in
float64 where their partial sums are in a wide format: products are rounded to float64, then added one after another, in
the parts and stages of the order, and after each of its groups the total is rounded to that format. NumPy is asked for
nothing but operations that IEEE 754 defines, in an order that is written here: the bits are the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.tile import SECOND_ROUNDING
from ipu_core.ir.block import Array, Equation, Params, is_wide
from ipu_core.ir.convolution import place, reached, windowed
from ipu_core.ir.exact import exact
from ipu_core.ir.ops import DOTS, ELEMENTWISE, SUMS
from ipu_core.ir.own_rounding import OwnRounding
from ipu_core.ir.run.rounded import is_rounded_apart, rounded
from ipu_core.ir.run.wide_functions import FUNCTIONS
from lowprec import Accumulation, FloatFormat, Key, Rounding, astype
from lowprec import float16 as FLOAT16
from lowprec import float64 as FLOAT64
from lowprec import round as rounded_values
from lowprec.values.axes import fold

PANEL = 1 << 14
"""Elements that are computed at a time: so many stay in the cache while products are added to them."""


def is_computed_wide(equation: Equation) -> bool:
    """Whether an equation is computed in float64: a sum whose partial sums are, or what reads or makes wide values."""
    formats = [var.type.format for var in (*equation.operands, *equation.outputs)]
    if equation.op in SUMS:
        return is_wide(equation.arithmetic.accumulate or formats[-1])
    return equation.op in _NO_SUMS and any(map(is_wide, formats))


def prepared(
    equation: Equation, order: Accumulation | None, control: FloatingPointControl
) -> Callable[[Sequence[Any], Key | None, Array | None], Array]:
    """An equation that is computed in float64 as a call f(operands, key, out); `out` is None or where the result goes.

    Raises:
        ValueError: an order of additions, or exceptions, that there are not in float64.
    """
    if control.traps:
        raise ValueError(f"{equation.name} is computed in float64, where a tile raises no exceptions: enable none")
    how = _order(equation, order) if equation.op in SUMS else None
    partials = _partials(equation)
    rounding = equation.arithmetic.partials or equation.arithmetic.rounding
    if equation.params.get("accumulation") is not None:
        raise ValueError(f"{equation.name} adds in float64, where no accumulation= rounds: convert its rows to float32")

    def call(operands: Sequence[Any], key: Key | None, out: Array | None) -> Array:
        values = [_values(x) for x in operands]
        with np.errstate(all="ignore"):
            if how is None:
                made = _made(equation.op, values, equation.params)
            else:
                made = _summed(equation, _Sum(how, partials, rounding, key), values)
        made = np.asarray(made).reshape(equation.output.type.shape)
        return _stored(equation, made, key, control, out)

    return call


def _values(x: Any) -> Any:
    return x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) and x.dtype.kind not in "iu" else x


def _stored(
    equation: Equation, made: Array, key: Key | None, control: FloatingPointControl, out: Array | None
) -> Array:
    """A float64 result in the equation's format: by the machine's rules into what it has, else by the format's own."""
    fmt, rounding = equation.output.type.format, equation.arithmetic.rounding
    if not isinstance(fmt, FloatFormat):
        result = made.astype(np.int32)
    elif fmt == FLOAT64 and not isinstance(rounding, OwnRounding):
        result = made
    elif is_wide(fmt) or fmt.dtype is None or is_rounded_apart(equation):
        return rounded(equation, made, key, out)
    elif fmt.bits <= 8:  # as from float32: by way of half
        half = astype(made, FLOAT16, control.rounding(rounding, FLOAT16), key=key)
        second = None if key is None else key.fold_in(SECOND_ROUNDING)
        result = np.asarray(astype(half, fmt, control.rounding(rounding, fmt), key=second))
    else:
        result = np.asarray(astype(made, fmt, control.rounding(rounding, fmt), key=key))
    if out is not None:
        np.copyto(out, result)
    return result


# ---- sums ----


@dataclass(frozen=True)
class _Sum:
    """How a sum in float64 is made.

    Attributes:
        order: its parts, groups and stages.
        partials: the format to which a part is rounded after each group, and results between stages; None: none.
        rounding: how.
        key: of stochastic rounding. After group g of the sum it is folded with 2 + g, and for the n-th result between
            stages with 2^32 + n; the element's index is that in C order.
    """

    order: Accumulation
    partials: FloatFormat | None
    rounding: Rounding
    key: Key | None

    def of(self, terms: int, shape: tuple[int, ...], add: Callable[[Array, int, int], None], first: int = 0) -> Array:
        """The sum of so many terms.

        Args:
            terms: how many.
            shape: of the result.
            add: adds the terms from one to another to a total, in their order.
            first: the index of the result's first element among random bits.
        """
        parts, order = [], self.order
        for start, stop in order.parts(terms):
            total, group = np.zeros(shape), stop - start if self.partials is None else order.group_of(terms)
            for begin in range(start, stop, group):
                add(total, begin, min(stop, begin + group))
                total = self._rounded(total, 2 + begin // group, first)
            parts.append(total)
        *stages, _ = order.stage_runs(len(parts))
        made = 0
        for runs in stages:
            parts = [np.add.accumulate(parts[begin:end])[-1] for begin, end in runs]
            parts = [self._rounded(each, (1 << 32) + made + number, first) for number, each in enumerate(parts)]
            made += len(parts)
        return parts[0] if len(parts) == 1 else np.add.accumulate(parts)[-1] if parts else np.zeros(shape)

    def _rounded(self, total: Array, number: int, first: int) -> Array:
        if self.partials is None:
            return total
        key = None if self.key is None or not self.rounding.stochastic else self.key.fold_in(number)
        return np.asarray(rounded_values(total, self.partials, self.rounding, key=key, offset=first))


def _partials(equation: Equation) -> FloatFormat | None:
    """The format of partial sums that float64 is rounded to, if it is."""
    fmt = equation.arithmetic.accumulate
    return None if fmt is None or fmt.contains(FLOAT64) else fmt


def _order(equation: Equation, order: Accumulation | None) -> Accumulation:
    """The parts and stages of a sum in float64.

    Raises:
        ValueError: an adder that does more than one addition after another; promotions, which are to float32.
    """
    how = equation.arithmetic.order or order or Accumulation()
    if equation.arithmetic.promote is not None or how.adder != "sequential":
        said = "promotion" if equation.arithmetic.promote is not None else f"adder {how.adder}"
        raise ValueError(f"{equation.name} is summed in float64, one addition after another, without {said}")
    return how


def _summed(equation: Equation, how: _Sum, operands: list[Any]) -> Array:
    if equation.op in DOTS:
        a, b, *scale = operands
        return _dot(a * scale[0] if scale else a, b, how)
    if equation.op != "reduce_sum":
        return _CONVOLUTIONS[equation.op](*operands, equation.params, how)
    x = fold(operands[0].shape, equation.params["axis"]).view(operands[0])

    def add(total: Array, begin: int, stop: int) -> None:
        # `accumulate` makes every partial sum in turn, where `sum` adds in an order of its own
        terms = np.concatenate([total[:, None], x[:, begin:stop]], 1)
        total[...] = np.add.accumulate(terms, axis=1, out=terms)[:, -1]

    return how.of(x.shape[1], (len(x), x.shape[-1]), add)


def _dot(a: Array, b: Array, how: _Sum) -> Array:
    *lead, rows, terms = a.shape
    columns = b.shape[-1]
    if how.partials is None and columns < rows:  # the same bits, in longer rows, which NumPy computes faster
        return np.swapaxes(_dot(np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2), how), -1, -2)
    out, step = np.empty((*lead, rows, columns)), max(1, PANEL // max(1, columns))
    for number, at in enumerate(np.ndindex(*lead)):
        right = np.ascontiguousarray(b[at])
        for row in range(0, rows, step):
            left = np.ascontiguousarray(a[at][row : row + step].T)
            product = np.empty((left.shape[1], columns))

            def add(
                total: Array, begin: int, stop: int, x: Array = left, y: Array = right, to: Array = product
            ) -> None:
                for term in range(begin, stop):
                    np.add(total, np.multiply(x[term][:, None], y[term], out=to), out=total)

            first = (number * rows + row) * columns
            out[at][row : row + step] = how.of(terms, product.shape, add, first)
    return out


def _conv2d(x: Array, w: Array, params: Params, how: _Sum) -> Array:
    """Kernel position by kernel position, channels ascending."""
    seen = windowed(x, place("conv2d", x.shape, w.shape, params), params["groups"])
    kernel = w.reshape(*w.shape[:3], params["groups"], w.shape[3] // params["groups"])

    def add(total: Array, begin: int, stop: int) -> None:
        for i, j, c in _places(w.shape[:3], begin, stop):
            total += seen[:, :, :, i, j, :, c, None] * kernel[i, j, c]

    return how.of(math.prod(w.shape[:3]), (*seen.shape[:3], *kernel.shape[3:]), add)


def _input_gradient(gradient: Array, w: Array, params: Params, how: _Sum) -> Array:
    """Kernel position by kernel position, outputs of a group ascending; indices are those of padded images."""
    where, groups = place("conv2d_input_gradient", gradient.shape, w.shape, params), params["groups"]
    (top, bottom), (left, right) = where.padding
    (high, wide), outputs = where.size, w.shape[3] // groups
    outer, kernel = gradient.reshape(*gradient.shape[:3], groups, outputs), w.reshape(*w.shape[:3], groups, outputs)

    def add(total: Array, begin: int, stop: int) -> None:
        for i, j, o in _places((*w.shape[:2], outputs), begin, stop):
            total[:, *reached(where, i, j)] += outer[..., o, None] * kernel[i, j, :, :, o].T

    padded = len(gradient), high + top + bottom, wide + left + right, groups, w.shape[2]
    return how.of(math.prod(w.shape[:2]) * outputs, padded, add)[:, top : top + high, left : left + wide]


def _weight_gradient(x: Array, gradient: Array, params: Params, how: _Sum) -> Array:
    """Image by image, places of the result ascending."""
    where, groups = place("conv2d_weight_gradient", x.shape, gradient.shape, params), params["groups"]
    outer = gradient.reshape(*gradient.shape[:3], groups, gradient.shape[3] // groups)
    seen = windowed(x, where, groups)

    def add(total: Array, begin: int, stop: int) -> None:
        for at in _places(gradient.shape[:3], begin, stop):
            total += np.swapaxes(seen[at], -1, -2)[..., None] * outer[at]

    shape = (*seen.shape[3:5], seen.shape[6], *outer.shape[3:])
    return how.of(math.prod(gradient.shape[:3]), shape, add)


def _places(shape: tuple[int, ...], begin: int, stop: int) -> Iterator[tuple[int, ...]]:
    """The places of an array in C order, from one to another."""
    return islice(np.ndindex(*shape), begin, stop)


_CONVOLUTIONS: Mapping[str, Callable[..., Array]] = {
    "conv2d": _conv2d,
    "conv2d_input_gradient": _input_gradient,
    "conv2d_weight_gradient": _weight_gradient,
}


# ---- what is no sum ----


def _largest(x: Array, axis: tuple[int, ...]) -> Array:
    """NaN wins, and +0 before -0, which NumPy's own maximum leaves to the processor."""
    found = np.max(x, axis)
    plus = np.any((x == 0) & ~np.signbit(x), axis)
    return np.where((found == 0) & plus, 0.0, found)


_SPELT: Mapping[str, Callable[..., Any]] = {
    "relu": lambda x: np.where(x <= 0, 0.0, x),
    "step": lambda x: np.greater(x, 0) * 1.0,
    "maximum": lambda a, b: np.where(np.isnan(a) | ~(np.greater(b, a) | np.isnan(b)), a, b),
    "minimum": lambda a, b: np.where(np.isnan(a) | ~(np.less(b, a) | np.isnan(b)), a, b),
    "convert": lambda x: np.asarray(x, np.float64),
}
"""What `exact` leaves open: which of two zeros is the larger one, and what a NaN gives."""

_NO_SUMS = (*ELEMENTWISE, "reduce_max", "scatter_add", "scatter_max", "put_along")


def _made(op: str, operands: list[Any], params: Params) -> Any:
    """What is no sum of float64 arrays, Python numbers and integers. (`np.add.at` adds in the order of the indices.)"""
    if op == "reduce_max":
        return _largest(operands[0], params["axis"])
    if op in FUNCTIONS:
        return _in_pieces(FUNCTIONS[op], operands[0])
    return _SPELT[op](*operands) if op in _SPELT else exact(op, operands, params)


def _in_pieces(function: Callable[[Any], Any], x: Array) -> Array:
    """A function of each element; what it makes on the way stays in the cache."""
    flat = x.reshape(-1)
    made = np.empty_like(flat)
    for begin in range(0, flat.size, PANEL):
        made[begin : begin + PANEL] = function(flat[begin : begin + PANEL])
    return made
