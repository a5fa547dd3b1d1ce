"""Block formats and scaled arrays of CuPy arrays by the kernel of blocks.cu, a thread to a block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowprec.backends.cuda.columns import values
from lowprec.backends.cuda.device import bits, cupy, download, kernel, launch, upload
from lowprec.backends.cuda.records import BLOCKS, Record, format_record, rounding_record
from lowprec.backends.cuda.rounding import codes_type, stored_type
from lowprec.backends.cuda.sums import set_numbers
from lowprec.backends.owner import is_cupy
from lowprec.integers import ceil_div
from lowprec.values.block_format import BlockFormat, BlockTask, carry_from
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32, float64, format_of_dtype
from lowprec.values.rounding import FEW_BIT_MODES, MODES, Mode, Rounding, rounding_rule

_FARTHEST = 128  # exponents of formats, and of powers, within which the kernel's doubles are exact
_RUN = 8  # elements of a thread where there is one scale for all


def quantize(task: BlockTask, x: Any, elements: Any, scales: Any) -> bool:
    """Codes of the elements and of the scales of x into two arrays; False where the kernel does not know how."""
    fmt = task.fmt
    if not (_knows(task.rounding) and _near(fmt.element) and _near(fmt.scale)):
        return False
    if not is_cupy(x):
        here = upload(elements), upload(scales)
        quantize(task, upload(x), *here)
        download(here[0], elements)
        download(here[1], scales)
        return True
    element, scale = fmt.element, fmt.scale
    record = _record(x, task.rounding, element, x.shape, task.axis, fmt.block)
    mode: Mode = "up" if task.rule == "up" else "nearest_even"
    record["scale"] = format_record(scale)[()]
    # A scale beyond the largest saturates: by the format's own rule it would be NaN or infinite, and the block lost.
    record["scale_rounding"] = rounding_record(rounding_rule(scale, mode, overflow="saturate"))[()]
    set_numbers(record, key=task.key, offset=task.offset, carry_from=carry_from(task.rule, element))
    set_numbers(record, emax=element.emax, scale_most=scale.emax, void_blocks=element.nan_code is None)
    least = scale.smallest_subnormal
    record["tensor"], record["limit"], record["least"] = task.tensor, element.max * task.tensor, least
    set_numbers(record, scale_least=math.frexp(least)[1] - 1)
    record["integer"] = element.smallest_subnormal if fmt.integers else 0.0
    defines = {"LP_SCALE": "powers" if fmt.power_of_two else "reals", "LP_SCALE_MODE": mode}
    _launched(record, defines, task.rounding.mode, x, scales, elements, checked=False)
    return True


def dequantize(fmt: BlockFormat, elements: Any, scales: Any, axis: int, tensor: float, out: Any) -> bool:
    """Element * scale * tensor scale, rounded once, into out (float32 or float64); False: the kernel cannot.

    Waits for the result where a code may be wider than its format.

    Raises:
        ValueError: a code wider than the element format.
    """
    element, scale = fmt.element, fmt.scale
    # In doubles the whole product is exact.
    exact = element.precision + scale.precision + (float32.precision if tensor != 1.0 else 0) <= float64.precision
    if not (exact and _near(element) and _near(scale)):
        return False
    if not is_cupy(elements):
        there = upload(out)
        dequantize(fmt, upload(elements), upload(scales), axis, tensor, there)
        download(there, out)
        return True
    record = _record(elements, Rounding(), element, elements.shape, axis, fmt.block)
    record["scale"], record["tensor"] = format_record(scale)[()], tensor
    record["integer"] = element.smallest_subnormal if fmt.integers else 0.0
    defines = {"LP_SPREAD": "1", "LP_SCALE": "powers"}
    wide = not fmt.integers and element.bits < 8 * elements.dtype.itemsize
    if _launched(record, defines, "nearest_even", elements, scales, out, checked=wide):
        raise ValueError(f"codes of {element.name} must be in [0, {1 << element.bits})")
    return True


def scale_and_round(
    x: Any, fmt: FloatFormat, power: int, rounding: Rounding, key: int, offset: int, codes: Any
) -> bool:
    """Codes of x / 2^power into an array; False where the kernel does not know how.

    Raises:
        ValueError: a NaN in a format without NaN.
    """
    if not (_knows(rounding) and _near(fmt) and abs(power) <= _FARTHEST):
        return False
    if not is_cupy(x):
        there = upload(codes)
        scale_and_round(upload(x), fmt, power, rounding, key, offset, there)
        download(there, codes)
        return True
    record = _record(x, rounding, fmt, (x.size,), 0, _RUN)
    set_numbers(record, key=key, offset=offset)
    record["tensor"] = math.ldexp(1.0, power)
    if _launched(record, {"LP_SCALE": "given"}, rounding.mode, x, None, codes, checked=fmt.nan_code is None):
        raise ValueError(f"NaN cannot be represented in {fmt.name}, which has no NaN")
    return True


def spread_power(elements: Any, fmt: FloatFormat, power: int, out: Any) -> bool:
    """Element * 2^power, rounded once, into out (float32 or float64); False where the kernel does not know how.

    Raises:
        ValueError: a code wider than the format.
    """
    if not (_near(fmt) and abs(power) <= _FARTHEST):
        return False
    if not is_cupy(elements):
        there = upload(out)
        spread_power(upload(elements), fmt, power, there)
        download(there, out)
        return True
    record = _record(elements, Rounding(), fmt, (elements.size,), 0, _RUN)
    record["tensor"] = math.ldexp(1.0, power)
    wide = fmt.bits < 8 * elements.dtype.itemsize
    if _launched(record, {"LP_SPREAD": "1", "LP_SCALE": "given"}, "nearest_even", elements, None, out, checked=wide):
        raise ValueError(f"codes of {fmt.name} must be in [0, {1 << fmt.bits})")
    return True


def largest_magnitude(x: Any) -> float:
    """The largest finite magnitude of an array; 0 where there is none. Waits for it: it becomes a Python number."""
    if not is_cupy(x):
        return largest_magnitude(upload(x))
    fmt = format_of_dtype(x.dtype)
    assert fmt is not None
    if x.size == 0:
        return 0.0
    if not fmt.zero:  # code 0 is a number there
        return largest_magnitude(values(x, np.dtype(np.float32)))
    # Of codes without their signs the larger is of the larger magnitude; those of infinities and NaN lie above.
    with x.device:
        codes = bits(x) & fmt.code_dtype.type((1 << (fmt.bits - fmt.signed)) - 1)
        largest = cupy().where(codes <= fmt.code_dtype.type(fmt.max_code), codes, codes.dtype.type(0)).max()
    return abs(fmt.value_of(int(largest.get())))


def _knows(rounding: Rounding) -> bool:
    """Whether the kernel knows a rounding: not the few-bit modes, nor random bits that depend on the values."""
    return rounding.mode not in FEW_BIT_MODES and rounding.random_bits != "exact"


def _near(fmt: FloatFormat) -> bool:
    """Whether doubles hold a format's values times any float32 exactly, and far from the ends of their range."""
    return fmt.bits <= 32 and fmt.emax <= _FARTHEST and fmt.smallest_subnormal >= 2.0 ** -(_FARTHEST + 24)


def _record(x: Any, rounding: Rounding, element: FloatFormat, shape: tuple[int, ...], axis: int, block: int) -> Record:
    """What all four have in common, as `struct BlockJob` of blocks.cu."""
    record = np.zeros((), BLOCKS)
    source = format_of_dtype(x.dtype) or element
    record["source"], record["element"] = format_record(source)[()], format_record(element)[()]
    record["rounding"] = rounding_record(rounding.rule(element))[()]
    lines, columns = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    blocks = ceil_div(shape[axis], block)
    set_numbers(record, lines=lines, length=shape[axis], columns=columns, block=block, blocks=blocks)
    return record


def _launched(
    record: Record, defines: dict[str, str], mode: str, x: Any, scales: Any, out: Any, *, checked: bool
) -> bool:
    """Starts the kernel; True where what was to be checked was met, for which the call waits."""
    if out.size == 0:
        return False
    spread = "LP_SPREAD" in defines
    kinds = {
        "LP_SPREAD": "0",
        "LP_FROM": codes_type(x.dtype) if spread else stored_type(x.dtype),
        "LP_TO": stored_type(out.dtype) if spread else codes_type(out.dtype),
        "LP_SCALES": codes_type(np.dtype(np.uint8) if scales is None else scales.dtype),
        "LP_MODE": str(MODES.index(mode)),
        "LP_SCALE_MODE": "nearest_even",
    }
    with out.device as device:
        # A copy where x is a transposed view or the like; elsewhere x itself.
        x = cupy().ascontiguousarray(bits(x))
        bad = cupy().zeros((), np.uint32) if checked else None
        function = kernel("blocks.cu", "lowprec_blocks", tuple((kinds | defines).items()), device.id)
        blocks = int(record["lines"] * record["blocks"] * record["columns"])
        launch(function, blocks, device.id, (record, x, scales, out, bad))
        return bad is not None and bool(bad.get())
