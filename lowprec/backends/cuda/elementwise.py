"""Exact arithmetic and float32_op on CuPy arrays by the one kernel of elementwise.cu."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from lowprec.backends.cuda.device import Defines, bits, cupy, host_copy, kernel, launch, output_for, upload
from lowprec.backends.cuda.layout import merged_axes, refuse_more_axes
from lowprec.backends.cuda.records import OPERANDS, Record, conversion_record, format_record
from lowprec.backends.cuda.rounding import convert_defines, stored_type
from lowprec.backends.owner import is_cupy, load
from lowprec.types import Array
from lowprec.values.conversion import CARRIED_BITS, Conversion
from lowprec.values.elementwise_op import ElementwiseOp
from lowprec.values.formats import float32, float64, format_of_dtype
from lowprec.values.keys import KeyLike, key_value
from lowprec.values.operands import is_narrow
from lowprec.values.outputs import into

Operand = Any
"""A CuPy array, or a number in place of one."""

# Operands of a size between these, float32's among them, give results that the kernel finds by itself.
_LEAST, _MOST = 2.0**-300, 2.0**300


def devices_arrays(operands: Sequence[Operand]) -> list[Any]:
    """The CuPy arrays among the operands of one call.

    Raises:
        TypeError: a NumPy array beside them; a dtype that no kernel reads.
        ValueError: arrays of two devices.
    """
    arrays = [x for x in operands if hasattr(x, "dtype")]
    for x in arrays:
        if not is_cupy(x):
            raise TypeError(f"operands lie on a GPU (CuPy arrays) and here (a {type(x).__name__}): move them together")
        if not is_narrow(x.dtype):
            raise TypeError(f"operands must be floating-point arrays (ml_dtypes included) or numbers, not {x.dtype}")
        if x.device != arrays[0].device:
            raise ValueError(f"operands are on {arrays[0].device} and {x.device}: move them together")
    return arrays


def _with_uploads(call: Callable[..., Any], operands: Sequence[Operand], out: Array | None) -> Array:
    """A call on NumPy arrays, which come here inside `backend("cuda")`: they travel to the GPU and back."""
    on_device = call(tuple(upload(x) if isinstance(x, np.ndarray) else x for x in operands))
    result = host_copy(on_device)
    return result if out is None else into(out, result)


def arithmetic(
    operation: str, conversion: Conversion, operands: tuple[Operand, ...], key: int, offset: int, out: Any
) -> tuple[Any, bool, None]:
    """One exact operation rounded once (as `lowprec.backends.reference.arithmetic`), into `out` or a new array.

    The launch is asynchronous. The call waits for its end where a NaN may have to be refused, and where an element may
    be left to the reference: float64 operands, and laws that a double cannot carry.

    Raises:
        TypeError, ValueError: as `devices_arrays` and `output_for`; a format that no kernel has.
    """
    rule = conversion.rule
    if not rule.fmt.within_kernels:
        raise ValueError(f"{rule.fmt.name} reaches below float64's normal values and runs on NumPy arrays only")
    if not any(map(is_cupy, operands)):
        refused = []

        def there(given: tuple[Operand, ...]) -> Any:
            # Numbers alone have no device: one of them is given there.
            given = given if any(map(is_cupy, given)) else (upload(np.array(given[0], np.float64)), *given[1:])
            result, bad, _ = arithmetic(operation, conversion, given, key, offset, None)
            refused.append(bad)
            return result

        return _with_uploads(there, operands, out), refused[0], None
    carried = rule.fmt.mantissa_bits + rule.random_bits <= CARRIED_BITS and rule.fmt != float64
    mode = "odd" if carried else rule.mode
    defines = (
        ("LP_EXACT", "1"),
        ("LP_OP", f"exact_{operation}"),
        ("LP_STEP", mode),
        ("LP_READ", "u64"),
        *convert_defines(conversion, True),
    )
    sure = all(_plain(x) for x in operands) and (carried or rule.mode != "stochastic")
    result, state, marks = _launched(defines, conversion, operands, key, offset, out, not sure)
    bad, left = (False, False) if state is None else map(bool, state.get())
    if left:
        _finish(operation, conversion, operands, key, offset, result, np.flatnonzero(marks.get()).tolist())
    # The kernel notes every NaN, and is asked here for other things too.
    return result, bad and rule.fmt.nan_code is None, None


def _plain(x: Operand) -> bool:
    """Whether an operand's every finite element is zero or far from the ends of float64's range."""
    if hasattr(x, "dtype"):
        return bool(x.dtype != np.float64)
    return bool(x == 0 or not np.isfinite(x) or _LEAST <= abs(x) <= _MOST)


def _finish(
    operation: str,
    conversion: Conversion,
    operands: tuple[Operand, ...],
    key: int,
    offset: int,
    result: Any,
    left: list[int],
) -> None:
    """The elements of these indices by the reference, on the host."""
    here = tuple(host_copy(x) if is_cupy(x) else x for x in operands)
    whole = host_copy(result)
    load("reference").fill(operation, conversion, here, left, key, offset, whole)
    with result.device:
        bits(result)[...] = bits(upload(whole))


@lru_cache(maxsize=4096)
def elementwise(op: ElementwiseOp) -> Callable[..., Any]:
    """The call f(operands, key, offset, out, threads) of a prepared `float32_op`."""
    rule = op.conversion.rule

    def call(operands: tuple[Operand, ...], key: KeyLike | None, offset: int, out: Any, threads: int) -> Any:
        if not any(map(is_cupy, operands)):

            def there(given: tuple[Operand, ...]) -> Any:
                given = given if any(map(is_cupy, given)) else (upload(_single(given[0])), *given[1:])
                return call(given, key, offset, None, threads)

            return _with_uploads(there, operands, out)
        if rule.mode == "stochastic" and key is None:
            raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
        values = tuple(map(_number, operands))
        defines = (
            ("LP_EXACT", "0"),
            ("LP_OP", f"{op.operation}_operation"),
            ("LP_STEP", "odd"),
            ("LP_READ", _lane(values)),
            *convert_defines(op.conversion, True),
        )
        seed = 0 if key is None else key_value(key)
        result, state, _ = _launched(defines, op.conversion, values, seed, offset, out, False)
        if state is not None and bool(state.get()[0]):
            raise ValueError("a NaN was met and the format has none")
        return result

    return call


def _single(x: Any) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):  # signalling NaN, numbers beyond float32
        return np.asarray(x).astype(np.float32)


def _number(x: Any) -> Any:
    """A number as the float32 that it is rounded to; arrays as they are."""
    return x if is_cupy(x) or np.ndim(x) else float(_single(x))


def _lane(operands: Sequence[Operand]) -> str:
    """The lanes that hold every operand's values as normal numbers."""
    formats = [format_of_dtype(x.dtype) for x in operands if is_cupy(x)]
    return "u32" if all(fmt is not None and fmt.emin >= float32.emin for fmt in formats) else "u64"


def _launched(
    defines: Defines,
    conversion: Conversion,
    operands: tuple[Operand, ...],
    key: int,
    offset: int,
    out: Any,
    marked: bool,
) -> tuple[Any, Any, Any]:
    """Starts the kernel: the result; the two words of its state, None where none can be raised; and its marks."""
    arrays = devices_arrays(operands)
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    result = output_for(out, shape, conversion.out_dtype, *arrays)
    size = int(result.size)
    if size == 0:
        return result, None, None
    types = ["Number" if not is_cupy(x) else stored_type(x.dtype) for x in operands]
    kinds = tuple(zip(("LP_A", "LP_B", "LP_C"), (*types, "Number", "Number"), strict=False))
    with result.device as device:
        xp = cupy()
        state = xp.zeros(2, np.uint32) if marked or conversion.rule.fmt.nan_code is None else None
        marks = xp.zeros(size, np.uint8) if marked else None
        function = kernel("elementwise.cu", "lowprec_elementwise", (*defines, *kinds), device.id)
        record = operands_record(operands, result, conversion.rule.mode == "down")
        numbers = np.int64(size), np.uint64(key), np.uint64(offset)
        # A thread has 8 elements of a block of 64; the first block may begin before the offset.
        units = ((offset & 63) + size + 63) // 64 * 8
        launch(function, units, device.id, (record, result, *numbers, conversion_record(conversion), state, marks))
    return result, state, marks


def operands_record(operands: Sequence[Operand], result: Any, down: bool) -> Record:
    """The operands and the result as `struct Operands` of elementwise.cu."""
    shape = result.shape
    steps = [_steps(x, shape) for x in operands] + [(0,) * len(shape)] * (3 - len(operands))
    axes = merged_axes(shape, *steps, result.strides)
    refuse_more_axes(axes)
    record = np.zeros((), OPERANDS)
    for place, axis in enumerate(axes):
        record["size"][place] = axis.size
        record["step"][:, place] = axis.steps
    for n, x in enumerate(operands):
        if is_cupy(x):
            fmt = format_of_dtype(x.dtype)
            assert fmt is not None
            record["data"][n], record["format"][n] = x.data.ptr, format_record(fmt)[()]
        else:
            record["number"][n] = x
    record["axes"], record["down"] = max(1, len(axes)), down
    return record


def _steps(x: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes along the axes of the result's shape: 0 where the operand is broadcast."""
    if not is_cupy(x):
        return (0,) * len(shape)
    own = [0 if size == 1 else step for size, step in zip(x.shape, x.strides, strict=True)]
    return (0,) * (len(shape) - len(own)) + tuple(own)
