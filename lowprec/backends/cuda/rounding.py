"""Rounding and decoding of CuPy arrays by the kernels of convert.cu and decode.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowprec.backends.cpu.rounding import FIRST_STEP, fits_narrow_lanes, last_step
from lowprec.backends.cuda.device import Defines, cupy, download, empty, kernel, launch, upload
from lowprec.backends.cuda.layout import is_contiguous, merged_axes, strides_record
from lowprec.backends.cuda.records import ROUNDING, conversion_record, format_record
from lowprec.backends.owner import is_cupy
from lowprec.integers import ceil_div
from lowprec.values.conversion import Conversion, conversion_of
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32, float64
from lowprec.values.rounding import FEW_BIT_MODES, MODES, Rounding, RoundingRule

# The types that kernels compute with; every other dtype's bytes are codes of a format.
_NUMBERS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"} | {
    np.dtype(f"{kind}{size}"): f"{kind}{8 * size}" for kind in "iu" for size in (1, 2, 4, 8)
}


def convert(conversion: Conversion, x: Any, key: int, offset: int, out: Any) -> bool:
    """Rounds x into out (same shape, any strides); True where a NaN met a format that has none.

    The launch is asynchronous. Only formats without NaN make the call wait for its end, to look for NaN in x; integers
    never do. NumPy arrays, which come here inside `backend("cuda")`, travel to the GPU and back.
    """
    if not is_cupy(x):
        on_device = upload(out)
        refused = convert(conversion, upload(x), key, offset, on_device)
        download(on_device, out)
        return refused
    if x.size == 0:
        return False
    if conversion.rule.mode in FEW_BIT_MODES:
        return convert(last_step(conversion), _on_finer_grid(conversion, x), key, offset, out)
    refuses = conversion.rule.fmt.nan_code is None and conversion.source is not None
    axes = merged_axes(x.shape, x.strides, out.strides)
    contiguous = is_contiguous(axes, x.itemsize, out.itemsize)
    # Kernels are loaded and launched on the current device, which need not be x's.
    with x.device as device:
        # Integers are never NaN, so that their conversions need not be waited for.
        bad = cupy().zeros((), np.uint32) if refuses else None
        arguments = (x, out, np.int64(x.size), np.uint64(key), np.uint64(offset), conversion_record(conversion), bad)
        function = kernel("convert.cu", "lowprec_convert", convert_defines(conversion, contiguous), device.id)
        # A thread has 8 elements of a block of 64, which share counters; the first block may begin before the offset.
        units = ((offset & 63) + x.size + 63) // 64 * 8
        launch(function, units, device.id, arguments if contiguous else (*arguments, strides_record(axes)))
        return bad is not None and bool(bad.get())


def _on_finer_grid(conversion: Conversion, x: Any) -> Any:
    """x in float64 with only as many fraction bits as a few-bit mode draws (see `few_bits` of the cpu backend).

    Raises:
        ValueError: a format without zero, whose finer grid has one.
    """
    rule, fmt = conversion.rule, conversion.rule.fmt
    if not fmt.zero:
        raise ValueError(f"{rule.mode} to {fmt.name} runs on NumPy arrays; on the GPU there is stochastic")
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        # As doubles with an odd last bit where float64 does not hold them, which round on as they do.
        with x.device:
            wide = empty(x.shape, np.dtype(np.float64))
        convert(conversion_of("storage", x.dtype, float64, Rounding("odd")), x, 0, 0, wide)
        x = wide
    mantissa_bits = fmt.mantissa_bits + rule.random_bits
    # A format made for this alone: no upper end, for overflow is the second step's to decide.
    sign = 1 << (11 + mantissa_bits)
    top = ((1024 - fmt.emin + 1) << mantissa_bits) - 1
    numbers = (11, mantissa_bits, fmt.emin, 1, 1, 1, sign, top, top + 1, top + 2)
    mode = FIRST_STEP[rule.mode]
    results = (top, top | sign, top + 1, (top + 1) | sign, 0, 0)
    grid = np.array((numbers, MODES.index(mode), 0, 0, *results), ROUNDING)
    record = conversion_record(conversion_of("value", np.dtype(np.float64), float64, Rounding())).copy()
    record["rounding"], record["source"] = grid[()], format_record(conversion.source or float32)[()]
    with x.device as device:
        kept = empty(x.shape, np.dtype(np.float64))
        axes = merged_axes(x.shape, x.strides, kept.strides)
        contiguous = is_contiguous(axes, x.itemsize, kept.itemsize)
        defines = (("LP_LANE", "u64"), ("LP_FROM", stored_type(x.dtype)), ("LP_TO", "Numbers<double>"))
        more = (("LP_MODE", str(MODES.index(mode))), ("LP_VALUES", "1"), ("LP_STRIDED", str(int(not contiguous))))
        ends = (("LP_WAY", "-1"), ("LP_END", "-1"))
        function = kernel("convert.cu", "lowprec_convert", (*defines, *more, *ends), device.id)
        arguments = (x, kept, np.int64(x.size), np.uint64(0), np.uint64(0), record, None)
        units = ceil_div(x.size, 64) * 8
        launch(function, units, device.id, arguments if contiguous else (*arguments, strides_record(axes)))
    return kept


def convert_defines(conversion: Conversion, contiguous: bool) -> Defines:
    """The combination of convert.cu that carries out a conversion: the same lanes as on the CPU."""
    source = conversion.source
    narrow = source is not None and source.bits <= 32 and source.emin >= float32.emin
    narrow = narrow and conversion.in_dtype != np.float64  # what a few-bit mode's first step leaves of any dtype
    values = conversion.kind == "value"
    lanes = narrow and fits_narrow_lanes(conversion.rule)
    short_cut = fast_path(conversion.rule) if lanes and (not values or conversion.out_dtype == np.float32) else None
    way, end = short_cut or ("-1", "-1")
    return (
        # Not the CPU's float64 rounded to odd: the GPU reads float64 in wide lanes.
        ("LP_LANE", "u32" if lanes else "u64"),
        ("LP_FROM", stored_type(conversion.in_dtype)),
        ("LP_TO", stored_type(conversion.out_dtype) if values else codes_type(conversion.out_dtype)),
        ("LP_MODE", str(MODES.index(conversion.rule.mode))),
        ("LP_VALUES", str(int(values))),
        ("LP_STRIDED", str(int(not contiguous))),
        ("LP_WAY", way),
        ("LP_END", end),
    )


def fast_path(rule: RoundingRule) -> tuple[str, str] | None:
    """The way and the end by which round_fast.h rounds in lanes u32; None: it does not (`make_fast_rounder` there)."""
    fmt = rule.fmt
    plain = fmt.zero and fmt.subnormals and fmt.signed and not rule.flush and rule.random_bits <= 16
    way = "lowprec::aligned" if fmt.emin == float32.emin else "lowprec::scaled"
    above = fmt.emin + (fmt.max_code >> fmt.mantissa_bits) + float32.bias
    # In scaled form every power of two used must be a normal float32.
    fits = fmt.exponent_bits == 8 if way.endswith("aligned") else fmt.emin >= -97 and above + 23 <= 254
    if not (plain and fits and 1 <= fmt.mantissa_bits <= 13 and rule.mode in ("nearest_even", "stochastic")):
        return None
    results = (rule.over_pos, rule.over_neg, rule.inf_pos, rule.inf_neg)
    if all(code == fmt.nan_code for code in results):
        return way, "lowprec::to_nan"
    mirrored = rule.over_neg == rule.over_pos | fmt.sign_bit and rule.over_pos != fmt.nan_code
    same = rule.inf_pos == rule.over_pos and rule.inf_neg == rule.over_neg
    return (way, "lowprec::symmetric") if mirrored and same else None


def stored_type(dtype: np.dtype[Any]) -> str:
    """How a kernel reads and writes elements of a dtype (storage.cuh)."""
    return f"Numbers<{_NUMBERS[dtype]}>" if dtype in _NUMBERS else codes_type(dtype)


def codes_type(dtype: np.dtype[Any]) -> str:
    """The same where the elements are codes, whatever the dtype."""
    return f"Codes<u{8 * dtype.itemsize}>"


def as_codes(array: Any, fmt: FloatFormat) -> Any:
    """A CuPy array of codes, seen as the unsigned integers of the format's width (no copy).

    Raises:
        TypeError: neither integers of that width nor the format's storage dtype. (A conversion would be a hidden copy.)
    """
    same_width = array.dtype.kind in "iu" and array.dtype.itemsize == fmt.code_dtype.itemsize
    if array.dtype != fmt.dtype and not same_width:
        wanted = f"{fmt.code_dtype} codes" + (f" or an array of {fmt.dtype}" if fmt.dtype is not None else "")
        raise TypeError(f"decode of a CuPy array to {fmt.name} needs {wanted}, not {array.dtype}")
    return array.view(fmt.code_dtype)


def decode(fmt: FloatFormat, codes: Any, out: Any) -> None:
    """Decodes unsigned integer codes into out (float32 or float64, same shape, any strides).

    The launch is asynchronous. Only codes in an integer wider than the format make the call wait for its end.

    Raises:
        ValueError: a code wider than the format.
    """
    if not is_cupy(codes):
        on_device = upload(out)
        decode(fmt, upload(codes), on_device)
        return download(on_device, out)
    if codes.size == 0:
        return None
    axes = merged_axes(codes.shape, codes.strides, out.strides)
    contiguous = is_contiguous(axes, codes.itemsize, out.itemsize)
    with codes.device as device:
        # Codes that fill their integer cannot be too wide: nothing to wait for.
        bad = cupy().zeros((), np.uint32) if fmt.bits < 8 * codes.dtype.itemsize else None
        arguments = (codes, out, np.int64(codes.size), format_record(fmt), bad)
        function = kernel(
            "decode.cu", "lowprec_decode", _decode_defines(fmt, codes.dtype, out.dtype, contiguous), device.id
        )
        units = ceil_div(codes.size, 4)
        launch(function, units, device.id, arguments if contiguous else (*arguments, strides_record(axes)))
        if bad is not None and bool(bad.get()):
            raise ValueError(f"codes of {fmt.name} must be in [0, {1 << fmt.bits})")


def _decode_defines(fmt: FloatFormat, codes: np.dtype[Any], out: np.dtype[Any], contiguous: bool) -> Defines:
    narrow = out == np.float32 and fmt.emin >= float32.emin
    return (
        ("LP_LANE", "u32" if narrow else "u64"),
        ("LP_FROM", codes_type(codes)),
        ("LP_TO", stored_type(out)),
        ("LP_STRIDED", str(int(not contiguous))),
    )
