"""Measures the result of one equation: scale, exponents, and how much rounding made underflow or overflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.diagnose.wide_counts import counted_wide, has_wide
from ipu_core.ir.block import Array, Atom, Equation, Literal, Var, is_wide
from ipu_core.ir.convolution import exact_weight_gradient_at
from ipu_core.ir.exact import exact
from ipu_core.ir.ops import COMPARISONS, ELEMENTWISE, OPS, STRUCTURE
from lowprec import FloatFormat, backends, decode
from lowprec.statistics.counts import COUNTED, EXPONENTS, counted, magnitudes, step_through
from lowprec.statistics.underflow import underflowed
from lowprec.statistics.updates import UpdateCount

LOWEST, BINADES = -72, 96
"""Exponents of the first bin of a histogram, which holds all below too, and how many bins; the last holds all above."""
HISTOGRAM_OF = 2**10  # elements of an array, evenly spaced, that are put into a histogram
AGAIN = 2**12  # terms that are computed again for a value; of more, elements evenly spaced stand for the others
FEWEST = 32  # elements, however many terms each has
EXPONENT_BIAS = 127  # of float32

Indices = npt.NDArray[np.intp]
Histogram = npt.NDArray[np.int64]


class Measured(NamedTuple):
    """Statistics of an array. The counts and sums of squares of two arrays add up to those of both.

    Attributes:
        elements: How many.
        zeros, infinite, nan: How many of them are.
        underflow: Zeros that would be finite and not zero if the result were not rounded.
        overflow: Infinities and NaN that would be finite.
        saturated: Elements at the format's largest magnitude that would be beyond it.
        squares: The sum of the squares of the finite elements.
        largest: Their largest magnitude.
        histogram: How many of HISTOGRAM_OF elements have each biased exponent of float32, int64 of shape (256,).
    """

    elements: int
    zeros: int
    infinite: int
    nan: int
    underflow: int
    overflow: int
    saturated: int
    squares: float
    largest: float
    histogram: Histogram

    @property
    def counts(self) -> tuple[int, ...]:
        """The fields that are counts, in order."""
        return self[:7]


def is_rounded(equation: Equation) -> bool:
    """Whether the result of an equation may differ from its ideal one: moves and choices of operands never do."""
    out = equation.output.type.format
    if not isinstance(out, FloatFormat) or equation.op in STRUCTURE:
        return False
    given = [var.type.format for var in equation.operands]
    # An exact operation rounds too where the result's format does not hold its operands', as a cast does.
    return not OPS[equation.op].exact or any(isinstance(fmt, str) or not out.contains(fmt) for fmt in given)


def truth_values(equation: Equation) -> bool:
    """Whether the result is made of 0 and 1, which say yes or no, or of whole numbers."""
    integers = isinstance(equation.output.type.format, str)
    return integers or equation.op in COMPARISONS | {"step"} or OPS[equation.op].kind in ("mask", "order")


class Measuring:
    """Measures the results of one equation with a float format; prepared once, called at every look.

    What may have been lost by rounding it is computed again in float64. Those are the elements that are zero, at the
    format's largest magnitude, infinite or NaN; all of them where they are few (see AGAIN), else elements evenly spaced
    that stand for the others. Partial sums are not looked at.

    Attributes:
        in_float64: Whether the equation reads or makes values that float32 lacks.

    Args:
        equation: The equation.
        rounding: Whether its result is rounded, as `is_rounded` says.
    """

    def __init__(self, equation: Equation, rounding: bool) -> None:
        fmt = equation.output.type.format
        assert isinstance(fmt, FloatFormat)
        self._equation, self._rounding, self._format, self._top = equation, rounding, fmt, float(fmt.max)
        # The compiled pass reads these formats; others are decoded first.
        self._as_it_is, self._wide = fmt.dtype in COUNTED, is_wide(fmt)
        self.in_float64 = has_wide(equation)
        self._most = min(HISTOGRAM_OF, equation.output.type.size)
        self._step = step_through(equation.output.type.size, self._most)
        # A sum of many terms costs as much as that many elements, so fewer are computed again.
        self._limit = max(FEWEST, AGAIN // terms(equation)) if rounding else 0
        self._again = _again_by_door(equation) if rounding else None

    def __call__(self, operands: Sequence[Any], result: Array, histogram: Histogram) -> Measured:
        """Measures a result.

        Args:
            operands: What the equation read, arrays and numbers.
            result: What it wrote.
            histogram: To which its exponents are added (see `Measured`).
        """
        if self._wide:
            found = counted_wide(result, self._most, self._step, histogram)
        elif self._as_it_is:
            found = backends.current().magnitudes(result, self._most, self._step, histogram)
        else:
            found = counted(result, self._format, self._most, self._step, histogram)
        zeros, infinite, nan, squares, largest = found
        under = over = full = 0
        if self._rounding:
            if zeros:
                under = self._underflow(operands, result, zeros)
            # Mostly neither happens, and then nothing is computed again.
            if infinite or nan or largest >= self._top:
                over, full = self._beyond(operands, result)
        return Measured(result.size, zeros, infinite, nan, under, over, full, squares, largest, histogram)

    def _underflow(self, operands: Sequence[Any], result: Array, zeros: int) -> int:
        """How many of the zeros would not be zero without rounding."""
        if self._equation.op == "convert":  # which makes no zero of infinities and NaN
            return zeros - _zeros(operands[0])
        if self._again is not None:
            count = min(zeros, self._limit)
            return round(zeros / count * self._again.underflows(operands, result, zeros, count))
        places = _places_of_zeros(result, self._format, zeros, self._limit)
        _, wanted = again(self._equation, operands, places)
        return _scaled(underflowed(wanted, 0), zeros)

    def _beyond(self, operands: Sequence[Any], result: Array) -> tuple[int, int]:
        """How many elements would be finite without rounding, and how many at the largest magnitude beyond it."""
        suspects = _places_of_largest(result, self._format)
        chosen, wanted = again(self._equation, operands, suspects[spread(suspects.size, self._limit)])
        got = wide(result.reshape(-1)[chosen], self._equation.output)
        # What is infinite in float64 too is the operands' doing, not the rounding's.
        over = ~np.isfinite(got) & np.isfinite(wanted)
        full = (np.abs(got) == self._top) & (np.abs(wanted) > self._top)
        return _scaled(over, suspects.size), _scaled(full, suspects.size)


class Again(NamedTuple):
    """How a backend's `underflows` computes elements of a result again.

    Attributes:
        op: The operation's name in the backend.
        scale: The factor of the second operand; None: the third operand.
        order: For a reduction, the operand's axes, with those last that are added up; None for other operations.
        shape: The result's shape without kept axes of length 1.
    """

    op: str
    scale: float | None
    order: tuple[int, ...] | None
    shape: tuple[int, ...]

    def underflows(self, operands: Sequence[Any], result: Array, zeros: int, count: int) -> int:
        """How many of `count` zeros of a result, out of `zeros`, would not be zero without rounding."""
        left, right = operands[0], None
        if self.order is None:
            right, scale = operands[1], float(operands[2]) if self.scale is None else self.scale
        else:
            left, scale = left.transpose(self.order).reshape(*self.shape, -1), 1.0
        door = backends.current().underflows
        return door(self.op, result.reshape(self.shape), left, right, scale, zeros, count)  # type: ignore[no-any-return]


AGAIN_AS: dict[str, tuple[str, float | None]] = {
    "add": ("scaled_add", 1.0),
    "subtract": ("scaled_add", -1.0),
    "scaled_add": ("scaled_add", None),
    "multiply": ("multiply", 1.0),
    "scale": ("multiply", 1.0),
    "divide": ("divide", 1.0),
    "dot": ("dot", 1.0),
}


def _again_by_door(equation: Equation) -> Again | None:
    """How a backend computes elements of an equation again; None: it cannot."""
    op, shape, atoms = equation.op, equation.output.type.shape, equation.inputs
    formats = [var.type.format for var in (*equation.operands, equation.output)]
    # The compiled pass reads operands and result as they lie in memory.
    if not all(isinstance(fmt, FloatFormat) and fmt.dtype in COUNTED for fmt in formats):
        return None
    if op == "reduce_sum":
        axes, whole = equation.params["axis"], equation.operands[0].type.shape
        kept = [axis for axis in range(len(whole)) if axis not in axes]
        return Again(op, 1.0, (*kept, *axes), tuple(whole[axis] for axis in kept))
    # A scale with a value per element is no scale of the door's.
    if op not in AGAIN_AS or (op == "scaled_add" and not one_number(atoms[2])):
        return None
    return Again(*AGAIN_AS[op], None, shape)


def one_number(atom: Atom) -> bool:
    """Whether an operand is one number for all elements."""
    return isinstance(atom, Literal) or atom.type.size == 1


def measured(equation: Equation, operands: Sequence[Any], result: Array, rounding: bool) -> Measured:
    """Measures the result of an equation once (see `Measuring`)."""
    return Measuring(equation, rounding)(operands, result, np.zeros(EXPONENTS, np.int64))


def _scaled(chosen: Array, count: int) -> int:
    """The number among `count` elements, estimated from a sample of truth values."""
    # The share among those that were chosen, at most `limit`, stands for all.
    return round(count / max(1, chosen.size) * np.count_nonzero(chosen))


def _zeros(x: Array) -> int:
    """How many elements of any format are zero."""
    return x.size - int(np.count_nonzero(x))


def looked_at(x: Array, fmt: FloatFormat) -> Measured:
    """Measures an array by itself."""
    if is_wide(fmt):
        exponents, most = np.zeros(EXPONENTS, np.int64), min(HISTOGRAM_OF, x.size)
        zeros, infinite, nan, squares, largest = counted_wide(x, most, step_through(x.size, most), exponents)
    else:
        zeros, infinite, nan, squares, largest, exponents = magnitudes(x, fmt, sample=HISTOGRAM_OF)
    return Measured(x.size, zeros, infinite, nan, 0, 0, 0, squares, largest, exponents)


def _places_of_zeros(x: Array, fmt: FloatFormat, count: int, limit: int) -> Indices:
    """Flat places of zeros, of which an array has `count`: evenly spread, and at most `limit` of them."""
    flat = x.reshape(-1)
    if count > 2 * limit:  # it is enough to look where about so many are
        # Twice as many places as should do, in case zeros lie together.
        near = 1 << (2 * limit * x.size // count).bit_length()
        if near < x.size:
            places = spread(x.size, near)
            return np.asarray(places[single(flat.take(places), fmt) == 0][:limit])
    places = np.flatnonzero(single(flat, fmt) == 0)
    return np.asarray(places[spread(places.size, limit)])


def _places_of_largest(x: Array, fmt: FloatFormat) -> Indices:
    """Where an array is at or beyond the format's largest magnitude, or NaN."""
    # Negated, so that NaN is among them.
    return np.flatnonzero(~(np.abs(single(x.reshape(-1), fmt)) < float(fmt.max)))


def binades(histograms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of the last axis of `Measured.histogram`, the binades that are kept, the first and last of them open.

    Zeros, and what is subnormal in float32, have none.
    """
    first = LOWEST + EXPONENT_BIAS
    bins = histograms[..., first : first + BINADES].copy()
    # From 1: bin 0 holds zeros and subnormal numbers, the last one infinities and NaN.
    bins[..., 0] += histograms[..., 1:first].sum(axis=-1)
    bins[..., -1] += histograms[..., first + BINADES : -1].sum(axis=-1)
    return bins


@lru_cache(maxsize=1024)
def spread(size: int, most: int) -> Any:
    """At most `most` places in an array of `size` elements, evenly spaced; an index."""
    if size <= most:
        return slice(None)
    return np.arange(most, dtype=np.int64) * step_through(size, most) % size


def single(x: Array, fmt: FloatFormat) -> Array:
    """The values of an array of a format in float32, or of a wide one in float64, exactly."""
    return x if x.dtype in (np.float32, np.float64) else np.asarray(decode(x, fmt))


def wide(x: Any, atom: Atom) -> Any:
    """The values of an operand in float64; integers and Python numbers as ideal arithmetic takes them."""
    if isinstance(atom, Literal):
        return x
    fmt = atom.type.format
    return x.astype(np.int64) if isinstance(fmt, str) else single(x, fmt).astype(np.float64)


class UpdateCounter:
    """An observer of the updates of a step (see `ipu_core.ir.run.execute.Observer`) that counts them.

    Attributes:
        total: Of those seen so far.
    """

    def __init__(self) -> None:
        self.total = UpdateCount()

    def __call__(self, equation: Equation, operands: Sequence[Any], updated: Array) -> None:
        """Counts an equation that writes a weight, which is weight + scale * direction."""
        weight, direction, scale = (wide(x, atom) for x, atom in zip(operands, equation.inputs, strict=True))
        with np.errstate(invalid="ignore", over="ignore"):  # a run that diverged has infinities
            update = scale * direction
        self.total = self.total.plus(UpdateCount.of(weight, update, wide(updated, equation.output)))


def terms(equation: Equation) -> int:
    """How many numbers are added up for an element of the result; of images they are not taken one by one."""
    if equation.op == "dot":
        return equation.operands[0].type.shape[-1]
    if equation.op == "conv2d_weight_gradient":
        return math.prod(equation.operands[1].type.shape[:3])
    if equation.op == "reduce_sum":
        return math.prod(equation.operands[0].type.shape[axis] for axis in equation.params["axis"])
    return 1


def again(equation: Equation, operands: Sequence[Any], at: Indices) -> tuple[Indices, Array]:
    """Elements of a result in ideal arithmetic, by their places in C order; of an image's convolution, some of them.

    Returns:
        The places, and the elements.
    """
    rule = AGAIN_BY_OP.get(equation.op, _elementwise if equation.op in ELEMENTWISE else _whole)
    return rule(equation, operands, at)


def _elementwise(equation: Equation, operands: Sequence[Any], at: Indices) -> tuple[Indices, Array]:
    shape = equation.output.type.shape
    taken = []
    for x, atom in zip(operands, equation.inputs, strict=True):
        # Of a strided array, reshape would copy all elements to take a few.
        if isinstance(atom, Var) and x.shape == shape:
            x = x.reshape(-1)[at] if x.flags.c_contiguous else x[np.unravel_index(at, shape)]
        taken.append(wide(x, atom))
    return at, np.broadcast_to(exact(equation.op, taken, equation.params), at.shape)


def _dot(equation: Equation, operands: Sequence[Any], at: Indices) -> tuple[Indices, Array]:
    (a, b), (left, right) = operands, equation.inputs
    *lead, row, column = np.unravel_index(at, equation.output.type.shape)
    rows, columns = wide(a[(*lead, row)], left), wide(b.swapaxes(-1, -2)[(*lead, column)], right)
    return at, np.einsum("ek,ek->e", rows, columns)


def _reduce_sum(equation: Equation, operands: Sequence[Any], at: Indices) -> tuple[Indices, Array]:
    x, axes = operands[0], equation.params["axis"]
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    where = np.unravel_index(at, [1, *(x.shape[axis] for axis in kept)])  # a sum of everything has no axes
    taken = wide(x.transpose(*kept, *axes)[None][where], equation.inputs[0])
    return at, taken.reshape(at.size, -1).sum(axis=1)


def _scatter_add(equation: Equation, operands: Sequence[Any], at: Indices) -> tuple[Indices, Array]:
    """Of rows that nothing is added to, which are most, nothing is computed."""
    indices, updates = operands
    shape = equation.output.type.shape
    width = math.prod(shape[1:])
    wanted = np.zeros(shape[0], np.bool_)
    wanted[at // max(1, width)] = True
    hit = wanted[indices]
    total = exact("scatter_add", [indices[hit], wide(updates[hit], equation.inputs[1])], equation.params)
    return at, total.reshape(-1)[at]


def _images(equation: Equation, operands: Sequence[Any], at: Indices) -> tuple[Indices, Array]:
    """A few of the images, each whole."""
    x, weight = operands
    size = math.prod(equation.output.type.shape[1:])
    owners = at // size
    some = np.unique(owners)
    # An element of an image's convolution costs about a whole image here: only IMAGES of them are computed.
    some = some[:: -(-some.size // IMAGES)]
    at = at[np.isin(owners, some)]
    made = ideal(equation, (x[some], weight)).reshape(-1)
    return at, made[np.searchsorted(some, at // size) * size + at % size]


IMAGES = 2


def _kernel(equation: Equation, operands: Sequence[Any], at: Indices) -> tuple[Indices, Array]:
    x, gradient = (wide(x, atom) for x, atom in zip(operands, equation.inputs, strict=True))
    return at, exact_weight_gradient_at(x, gradient, equation.params, at)


def _whole(equation: Equation, operands: Sequence[Any], at: Indices) -> tuple[Indices, Array]:
    return at, ideal(equation, operands).reshape(-1)[at]


def ideal(equation: Equation, operands: Sequence[Any]) -> Array:
    """The whole result of an equation in float64."""
    given = [wide(x, atom) for x, atom in zip(operands, equation.inputs, strict=True)]
    return np.asarray(exact(equation.op, given, equation.params), np.float64)


AGAIN_BY_OP: dict[str, Callable[[Equation, Sequence[Any], Indices], tuple[Indices, Array]]] = {
    "dot": _dot,
    "reduce_sum": _reduce_sum,
    "scatter_add": _scatter_add,
    "conv2d": _images,
    "conv2d_input_gradient": _images,
    "conv2d_weight_gradient": _kernel,
}
"""By operation, how single elements of a result are computed in float64; of other operations the whole result is."""
