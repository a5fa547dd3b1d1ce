"""Block formats: OCP Microscaling (MX) v1.0 and NVFP4, small numbers that share one scale per block of values.

Scales. With amax the largest finite magnitude of a block, a power-of-two scale is 2^(floor(log2(amax)) - emax)
clamped to the scale format, emax being the exponent of the element format's largest value: the rule "floor" of section
6.3 of the "OCP Microscaling Formats (MX) Specification", version 1.0, and the default. Others, by the names torchao
gives them (ScaleCalculationMode), all computed exactly here:

    floor   as above: values of up to twice the largest power of two of the elements saturate
    ceil    ceil(log2(amax)) - emax
    even    amax is first rounded to the element's precision, ties to even, then as floor
    rceil   the smallest power of two for which nothing saturates: NVIDIA's recipe for MXFP8 rounds amax / element.max
            up to a power of two (torchao multiplies by a rounded 1 / element.max, which can be one power off)

Formats with other scales (NVFP4) use amax / (element.max * tensor scale), rounded "nearest" (default) or "up" to the
scale format, saturating; tensor_scale="auto" is amax of the tensor / (element.max * scale.max), NVIDIA's two-level
recipe, at least float32's smallest normal and at most its largest value, and 1 for a tensor of nothing but zeros,
infinities and NaN. A block without finite non-zero values has the smallest positive scale, and no scale rounds to zero.

Elements. x / (scale * tensor scale), exact, rounded once. Beyond the largest element they saturate, as section 6.3
demands. An infinity stays one where the element format has it, else it is NaN. NaN stays where it is if the element
format has one; if not (6- and 4-bit elements and int8) the scale of the block is NaN (E8M0's 0xFF, section 5.4.1), and
so are all its values, while its elements are those of the finite values, 0 in the place of the others. (torchao makes
the scale NaN in every format as soon as a block holds an infinity or NaN.)

MXINT8 (section 5.3.4). Elements are multiples of 2^-6 in two's complement, so emax is 0. The code of -2 is never made,
as the specification allows, so that the range is symmetric: +-127/64. There is no -0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import ArrayLike, DTypeLike

from lowprec import backends
from lowprec.arrays import new_array
from lowprec.backends.owner import is_cupy, refuse_cupy
from lowprec.foreign import as_array_of, takes_foreign
from lowprec.integers import ceil_div
from lowprec.processor import in_default_state
from lowprec.scaling import block_steps
from lowprec.scaling.tensor import (
    checked_out,
    element_rounding,
    kept_from,
    output_dtype,
    random_start,
    readable_or_carrier,
    refuse_undone,
)
from lowprec.types import Array
from lowprec.values.block_format import BlockFormat, BlockTask, ScaleRule, as_block_format, checked_rule
from lowprec.values.formats import float32
from lowprec.values.keys import KeyLike
from lowprec.values.keywords import FewBitRoundingLike
from lowprec.values.rounding import InfiniteInput, Overflow, Rounding


class BlockKeywords(TypedDict, total=False):
    """Keywords of a block format's rounding: random_bits (16) and overflow ("saturate")."""

    random_bits: int | Literal["exact"]
    overflow: Overflow | None


@dataclass(frozen=True, eq=False)
class BlockArray:
    """An array in a block format, made by `to_blocks`.

    Attributes:
        format: the block format.
        elements: storage dtype of `format.element` (its codes where it has none; int8 for mxint8), shape of the
            original array.
        scales: storage dtype of `format.scale`; the original shape with the block axis divided, rounded up, by the
            block size. The last block along the axis may be short.
        axis: the axis blocks lie along, not negative.
        tensor_scale: factor of the whole tensor, a float32 value; 1.0 if there is none.
        library: whose arrays `dequantize` gives: "numpy", "torch" or "jax", as `to_blocks` had one. `elements` and
            `scales` are NumPy's.
    """

    format: BlockFormat
    elements: Array
    scales: Array
    axis: int
    tensor_scale: float = 1.0
    library: str = "numpy"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.elements.shape

    @property
    def size_in_bits(self) -> int:
        """Bits of elements and scales when packed tightly (without the tensor scale)."""
        return self.elements.size * self.format.element.bits + self.scales.size * self.format.scale.bits

    @takes_foreign
    def dequantize(self, dtype: DTypeLike | None = None, out: Array | None = None) -> Any:
        """The values, element * scale * tensor scale, in float32 or float64.

        A value is the exact product, rounded once to nearest where the dtype does not hold it, whatever lies between:
        float64 holds every product of element and scale, float32 those of the formats that have names here, a tensor
        scale may cost the rounding. Values beyond the dtype's range are infinite (the "ceil" rule can reach 2^128 in
        float32), and those below it subnormal or zero. A NaN scale makes its whole block NaN.

        Args:
            dtype: float32 or float64; None means out's, or float32.
            out: Where to put them: a C-contiguous array of that dtype and this shape.

        Raises:
            TypeError: another dtype, or an out of another one.
            ValueError: an out of another shape, or one that cannot be written in place; a code wider than its format.
        """
        values = self._values(dtype, out)
        return values if out is not None else as_array_of(self.library, values)

    @in_default_state
    def _values(self, dtype: DTypeLike | None, out: Array | None) -> Array:
        dtype = output_dtype(dtype, out)
        target = checked_out("out", out, self.shape, dtype, self.elements)
        fmt = self.format
        # out may be memory that the elements or scales lie in; values are wider, and would be written over what is
        # still read.
        elements = kept_from(self.elements.view(fmt.element.code_dtype), target)
        scales = kept_from(self.scales.view(fmt.scale.code_dtype), target)
        done = backends.of(elements).dequantize(fmt, elements, scales, self.axis, self.tensor_scale, target)
        if not refuse_undone(done, elements, fmt.name):
            # The steps make their result elsewhere and need no copies.
            target[...] = block_steps.dequantize(fmt, self.elements, self.scales, self.axis, self.tensor_scale, dtype)
        return target

    def of_library(self, name: str) -> BlockArray:
        """This array, but `dequantize` gives its values as arrays of that library."""
        return replace(self, library=name)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a BlockArray becomes an array only by dequantizing, which copies")
        refuse_cupy(self.elements)
        # Through float32 for every other dtype, as `dequantize` gives by default.
        wide = dtype is not None and np.dtype(dtype) == np.float64
        values = self._values(np.float64 if wide else np.float32, None)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __repr__(self) -> str:
        scaled = f", tensor_scale={self.tensor_scale!r}" if self.tensor_scale != 1.0 else ""
        return f"<BlockArray {self.format.name} {self.shape}, blocks along axis {self.axis}{scaled}>"


@takes_foreign
@in_default_state
def to_blocks(
    x: ArrayLike,
    fmt: BlockFormat | str,
    axis: int = -1,
    *,
    scale_rule: ScaleRule | None = None,
    tensor_scale: float | Literal["auto"] | None = None,
    rounding: FewBitRoundingLike = "nearest_even",
    key: KeyLike | None = None,
    offset: int = 0,
    out: BlockArray | None = None,
    **policies: Unpack[BlockKeywords],
) -> BlockArray:
    """Quantises x to a block format: one scale per block, one rounding per element (rules: see the module).

    Args:
        x: Floating-point array of any shape but 0-d (or integers that float64 holds exactly).
        fmt: A block format or its name: mxfp8_e4m3, mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4_e2m1, mxint8, nvfp4.
        axis: The axis blocks lie along; the last block may be short.
        scale_rule: One of `fmt.scale_rules`; None means the first.
        tensor_scale: Only for formats whose scales are not powers of two: a positive float32 for the whole tensor, or
            "auto" for amax / (element.max * scale.max) as a normal float32, which gives the largest block the largest
            scale; 1.0 where amax is 0.
        rounding: Of the elements, as in `lowprec.round`, with the keywords random_bits and overflow, which is
            "saturate" unless it is said.
        key: Key for rounding="stochastic". The random index of an element is its C-order index in x, whatever `axis`.
        offset: Added to the random index, for chunks of a longer array.
        out: An earlier result of the same format, shape and axis, whose arrays are written anew and belong to the
            result too; they may share memory with x, but not with each other.

    Raises:
        ValueError: unknown format, rule or mode; 0-d x; a bad tensor scale; an out that does not fit.
        TypeError: complex, bool or extended-precision x; a tensor scale or an out of another type.
    """
    fmt = as_block_format(fmt)
    how = _element_rounding(fmt, rounding, policies)
    values = readable_or_carrier(x, fmt.element)
    if values.ndim == 0:
        raise ValueError("a block format needs an axis, and x is 0-d")
    axis = normalize_axis_index(axis, values.ndim)
    rule = checked_rule(fmt, scale_rule)
    tensor = _tensor_scale(fmt, tensor_scale, values)
    element = fmt.element
    elements, scales = _outputs(fmt, values, axis, out)
    # Both: scales are written while later blocks of x are still to be read.
    values = kept_from(values, elements, scales)
    codes, scale_codes = elements.view(element.code_dtype), scales.view(fmt.scale.code_dtype)
    task = BlockTask(fmt, axis, rule, tensor, how, *random_start(how, key, offset))
    # False: not this rounding or this format; nothing has been written.
    if not refuse_undone(
        backends.of(values).quantize(task, values, codes, scale_codes), values, f"{how.mode} to {fmt.name}"
    ):
        codes[...], scale_codes[...] = block_steps.quantize(task, values)
    return BlockArray(fmt, elements, scales, axis, tensor)


def _element_rounding(fmt: BlockFormat, rounding: FewBitRoundingLike, policies: BlockKeywords) -> Rounding:
    """The Rounding of elements: beyond the largest they saturate unless told otherwise; infinities as the module says.

    Raises:
        ValueError: a Rounding that says what becomes of infinities, or flushes.
    """
    how = element_rounding("to_blocks", rounding, policies, BlockKeywords)
    if how.infinite_input is not None:
        raise ValueError(f"infinite_input={how.infinite_input!r}: the block format says what becomes of infinities")
    element = fmt.element
    # "max" is never seen: an infinity makes the scale NaN there, and the element 0.
    infinite: InfiniteInput = "keep" if element.infinities else "nan" if element.nan_code is not None else "max"
    return replace(how, overflow=how.overflow or "saturate", infinite_input=infinite)


def _outputs(fmt: BlockFormat, values: Array, axis: int, out: BlockArray | None) -> tuple[Array, Array]:
    """The arrays of elements and scales, new or out's, for an array of values."""
    shape = values.shape
    element_dtype = np.dtype(np.int8) if fmt.integers else fmt.element.dtype or fmt.element.code_dtype
    scale_dtype = fmt.scale.dtype or fmt.scale.code_dtype
    scales_shape = (*shape[:axis], ceil_div(shape[axis], fmt.block), *shape[axis + 1 :])
    if out is None:
        return new_array(values, shape, element_dtype), new_array(values, scales_shape, scale_dtype)
    if not isinstance(out, BlockArray):
        raise TypeError(f"out must be a BlockArray, an earlier result, not {type(out).__name__}")
    if out.format != fmt or out.axis != axis:
        raise ValueError(f"out is {out.format.name} along axis {out.axis}, the result {fmt.name} along axis {axis}")
    elements = checked_out("out.elements", out.elements, shape, element_dtype, values)
    scales = checked_out("out.scales", out.scales, scales_shape, scale_dtype, values)
    # Only out's own two arrays matter here: x is copied where it is in the way.
    shared = backends.load("cuda").overlap if is_cupy(elements) else np.may_share_memory
    if shared(elements, scales):
        raise ValueError("out.elements and out.scales share memory, so that not both can be kept")
    return elements, scales


def _tensor_scale(fmt: BlockFormat, scale: float | Literal["auto"] | None, values: Array) -> float:
    if scale is None:
        return 1.0
    if fmt.power_of_two:
        raise ValueError(f"{fmt.name} has no tensor scale: its block scales cover float32's range")
    tiny, largest = float32.smallest_normal, float32.max
    if isinstance(scale, str) and scale == "auto":
        amax = backends.of(values).largest_magnitude(values)
        wanted = amax / (fmt.element.max * fmt.scale.max)
        # As a normal float32: a subnormal scale would lose bits, and an underflow to 0 would divide by it.
        return float(np.float32(min(max(wanted, tiny), largest))) if amax else 1.0
    given = repr(scale) if np.ndim(scale) == 0 else f"an array of shape {np.shape(scale)}"
    allowed = f"tensor_scale must be 'auto' or a positive normal float32 value, not {given}"
    # Scales are results of other computations, so often NumPy's or an array of one.
    number: Any = scale.item() if isinstance(scale, (np.ndarray, np.generic)) and scale.size == 1 else scale
    if not isinstance(number, (float, int)) or isinstance(number, bool):
        raise TypeError(allowed)
    # Not rounded in silence: the scale is kept beside the data, and must be the one that was divided by.
    if not tiny <= number <= largest or float(np.float32(number)) != number:
        raise ValueError(allowed)
    return float(number)
