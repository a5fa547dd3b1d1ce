"""Float32 sums, maxima and rows added at indices on CuPy arrays by the two kernels of sums.cu.

One launch makes the chain of every part of every element, the next one sums the parts in their stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from lowprec.backends.cpu.rounding import fits_narrow_lanes
from lowprec.backends.cuda.device import Defines, bits, cupy, empty, host_copy, kernel, launch, output_for, upload
from lowprec.backends.cuda.records import MOST_VERTEX_AXES, SUM, Record, format_record, rounding_record
from lowprec.backends.cuda.rounding import codes_type, stored_type
from lowprec.backends.owner import is_cupy
from lowprec.types import Array
from lowprec.values.accumulation import Accumulation
from lowprec.values.axes import Fold
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import float32, float64
from lowprec.values.keys import TAGS, KeyLike, key_value
from lowprec.values.operands import operand_format
from lowprec.values.outputs import into
from lowprec.values.rounding import MODES, Rounding, RoundingRule
from lowprec.values.sum_rules import SumRules, sum_rules

_LONGEST = 1 << 62
_MAXIMUM_PARTS = 256  # of a maximum, whose order is free
_ITEM = 4  # bytes of a float32 part

Place = dict[str, Any]
"""Names of a Numbering -> an int, or an int64 array over the vertex axes."""


@lru_cache(maxsize=4096)
def reduce(x: np.dtype[Any], accumulation: Accumulation, rules: SumRules) -> Callable[..., Any]:
    """f(x, key, row, column, first_group, batch, out, threads): the sums over k of x (.., m, k, n).

    Launches are asynchronous; only a result's format without NaN makes the call wait, to refuse one.

    Raises:
        ValueError: an adder other than the sequential one.
    """
    _refuse_adders(accumulation)

    def call(
        x: Any, key: KeyLike | None, row: Any, column: Any, first_group: Any, batch: Any, out: Any, threads: int
    ) -> Any:
        if not is_cupy(x):
            return _through_device(
                lambda there: call(there, key, row, column, first_group, batch, None, threads), x, out
            )
        if x.ndim < 3:
            raise ValueError("a reduction needs axes (.., m, k, n)")
        cut = accumulation.cut(x.shape[-2])
        place = {"row": row, "column": column, "first_group": first_group, "batch": batch}
        return _summed(x, cut[:3], (cut.stages, cut.run), rules, key, place, out)

    return call


@lru_cache(maxsize=4096)
def scatter(x: np.dtype[Any], accumulation: Accumulation, rules: SumRules) -> Callable[..., Any]:
    """f(x, indices, rows, key, row, column, batch, out, threads): rows of x (.., k, n) added into (.., rows, n).

    The call waits once, to refuse indices outside the rows.

    Raises:
        ValueError: an adder other than the sequential one.
    """
    _refuse_adders(accumulation)

    def call(
        x: Any, indices: Any, rows: int, key: KeyLike | None, row: Any, column: Any, batch: Any, out: Any, threads: int
    ) -> Any:
        if not is_cupy(x):
            given = key, row, column, batch, None, threads
            return _through_device(lambda there: call(there, upload(indices), rows, *given), x, out)
        with x.device:
            order, starts = _ordered(indices, rows)
        # As many rows as there are indices, each a sum over its own stretch of the ordered lines.
        lines = x[..., None, :, :]
        place = {"row": row, "column": column, "first_group": 0, "batch": batch}
        cut = accumulation.cut(x.shape[-2])
        return _summed(lines, (cut.group, _LONGEST, 1), (1, 1), rules, key, place, out, (rows, order, starts))

    return call


def _ordered(indices: Any, rows: int) -> tuple[Any, Any]:
    """The lines of updates by their index, those of one index ascending, and where each index begins.

    Raises:
        IndexError: an index outside the rows.
    """
    xp = cupy()
    if indices.size:
        least, most = int(indices.min()), int(indices.max())
        if most >= rows or least < -rows:
            raise IndexError(f"index {most if most >= rows else least} is out of bounds for {rows} rows")
    positive = xp.where(indices < 0, indices + rows, indices)
    order = xp.argsort(positive, kind="stable")
    return order, xp.searchsorted(positive[order], xp.arange(rows + 1))


@lru_cache(maxsize=4096)
def sum_parts(x: np.dtype[Any], rules: SumRules, tag: str) -> Callable[..., Any]:
    """f(parts, key, index, row, column, batch, out, threads): the sum of parts (P, .., m, n) over P, rounded once."""

    def call(
        parts: Any, key: KeyLike | None, index: Any, row: Any, column: Any, batch: Any, out: Any, threads: int
    ) -> Any:
        if not is_cupy(parts):
            return _through_device(lambda there: call(there, key, index, row, column, batch, None, threads), parts, out)
        place = numbers_on_device({"row": row, "column": column, "batch": batch, "number": index}, parts.shape[1:-2])
        result = output_for(out, parts.shape[1:], rules.out_dtype, parts)
        record = sum_record(parts.shape[1:-2], parts.strides[1:-2], rules, key, place)
        set_numbers(record, m=parts.shape[-2], n=parts.shape[-1], k=parts.shape[0], x_k=parts.strides[0])
        set_numbers(record, x=parts.data.ptr, x_row=parts.strides[-2], x_column=parts.strides[-1])
        set_numbers(record, stages=1, run=1, tag=TAGS[tag])
        _finish(record, rules, operand_format(x), x, result, False)
        return result

    return call


@lru_cache(maxsize=4096)
def maximum(x: np.dtype[Any]) -> Callable[..., Any]:
    """f(x, out, threads): the largest over k of x (m, k, n), exact; NaN wins, and +0 is larger than -0."""
    unrounded = sum_rules(Accumulation(out=operand_format(x)), Rounding())

    def call(x: Any, out: Any, threads: int) -> Any:
        if not is_cupy(x):
            return _through_device(lambda there: call(there, None, threads), x, out)
        # Any order gives the same: enough parts for all threads to have something to do.
        part = max(1, -(-x.shape[-2] // _MAXIMUM_PARTS))
        cut = _LONGEST, part, -(-x.shape[-2] // part)
        return _summed(x, cut, (1, 1), unrounded, None, {}, out, largest=True)

    return call


def _refuse_adders(accumulation: Accumulation) -> None:
    if accumulation.adder != "sequential":
        raise ValueError(f"on a GPU sums of single terms are made by the sequential adder, not {accumulation.adder!r}")


def _through_device(call: Callable[[Any], Any], x: Array, out: Array | None) -> Array:
    """A call on a NumPy array, which comes here inside `backend("cuda")`: it travels to the GPU and back."""
    result = host_copy(call(upload(x)))
    return result if out is None else into(out, result)


def _summed(
    x: Any,
    cut: tuple[int, ...],
    stages: tuple[int, int],
    rules: SumRules,
    key: KeyLike | None,
    place: Place,
    out: Any,
    scattered: tuple[int, Any, Any] | None = None,
    *,
    largest: bool = False,
) -> Any:
    """x (v.., m, k, n) summed over k.

    Args:
        cut: terms of a group, terms of a part, and parts.
        stages: their number, and the length of a run.
        scattered: m in x's place, the order of the terms and where those of each row begin.
        largest: whether the largest is wanted and not the sum.
    """
    *vertices, m, k, n = x.shape
    rows = m if scattered is None else scattered[0]
    group, part, parts = cut
    result = output_for(out, (*vertices, rows, n), rules.out_dtype, x)
    if result.size == 0:
        return result
    parts = max(1, parts)  # no terms: the part is +0
    # Held until the kernels are launched: the pool would give freed memory to the next that asks.
    place = numbers_on_device(place, tuple(vertices))
    record = sum_record(tuple(vertices), x.strides[:-3], rules, key, place)
    set_numbers(record, m=rows, k=k, n=n, group=max(1, min(group, _LONGEST)), part=min(part, _LONGEST), parts=parts)
    set_numbers(record, x=x.data.ptr, x_row=x.strides[-3], x_k=x.strides[-2], x_column=x.strides[-1])
    if scattered is not None:
        set_numbers(record, order=scattered[1].data.ptr, starts=scattered[2].data.ptr, x_row=0)
    source, size = operand_format(x.dtype), math.prod(vertices) * rows * n
    record["source"] = format_record(source)[()]
    with x.device as device:
        chains = empty((parts, size), np.dtype(np.float32))
        defines = (("LP_FINISH", "0"), *_defines(source, x.dtype, rules, largest))
        launch(kernel("sums.cu", "lowprec_sums", defines, device.id), parts * size, device.id, (record, chains, None))
    finish_parts(record, chains, (*vertices, rows, n), stages, rules, result, largest=largest)
    return result


def finish_parts(
    record: Record,
    chains: Any,
    shape: tuple[int, ...],
    stages: tuple[int, int],
    rules: SumRules,
    result: Any,
    *,
    largest: bool = False,
) -> None:
    """The launch behind the chains: float32 parts (P, elements), summed in stages and rounded into the result.

    Args:
        record: of the chains; it becomes that of the parts.
        chains: the parts.
        shape: of the sums: (v.., m, n).
        stages: their number, and the length of a run.
        result: of that shape.

    Raises:
        ValueError: a NaN, where the result's format has none.
    """
    *vertices, rows, n = shape
    set_numbers(
        record,
        x=chains.data.ptr,
        k=chains.shape[0],
        x_k=_ITEM * chains.shape[1],
        x_row=_ITEM * n,
        x_column=_ITEM,
        order=0,
    )
    set_numbers(record, stages=stages[0], run=stages[1], tag=TAGS["output"])
    inner = _ITEM * rows * n
    for axis in reversed(range(len(vertices))):
        record["x_step"][axis], inner = inner, inner * vertices[axis]
    _finish(record, rules, float32, chains.dtype, result, largest)


def set_numbers(record: Record, **numbers: int) -> None:
    for name, number in numbers.items():
        record[name] = number


def sum_record(
    shape: tuple[int, ...], steps: tuple[int, ...], rules: SumRules, key: KeyLike | None, place: Place
) -> Record:
    """What chains and the last launch share, as `struct SumJob` of sums.cuh."""
    if rules.stochastic and key is None:
        raise ValueError("stochastic rounding needs key=, a lowprec.Key or an integer")
    if len(shape) > MOST_VERTEX_AXES:
        raise ValueError("at most 8 axes are supported")
    record = np.zeros((), SUM)
    for name, rule in (("step", rules.step), ("final", rules.final)):
        if rule is not None:
            record[name] = rounding_record(rule)[()]
    record["shape"][: len(shape)], record["x_step"][: len(shape)] = shape, steps
    set_numbers(record, axes=len(shape), vertices=math.prod(shape), key=0 if key is None else key_value(key))
    for name, numbers in place.items():
        if not is_cupy(numbers):
            record[name]["base"] = numbers
            continue
        lead = len(shape) - numbers.ndim
        for axis, (size, step) in enumerate(zip(numbers.shape, numbers.strides, strict=True)):
            record[name]["step"][lead + axis] = 0 if size == 1 else step // 8
        record[name]["at"] = numbers.data.ptr
    return record


def numbers_on_device(place: Place, shape: tuple[int, ...]) -> Place:
    """Numbers as ints, arrays of them as CuPy arrays of int64 (small: one for each vertex at most)."""
    if place.get("batch", 0) is None:
        place = place | {"batch": np.arange(math.prod(shape), dtype=np.int64).reshape(shape)}

    def moved(numbers: Any) -> Any:
        if is_cupy(numbers):
            return numbers
        return upload(np.asarray(numbers, np.int64)) if isinstance(numbers, np.ndarray) else int(numbers)

    return {name: moved(numbers) for name, numbers in place.items()}


def folded(x: Any, how: Fold) -> Any:
    """x as (outer, terms, inner): a view where its strides allow one, else a copy on the device."""
    return how.view(bits(x)).view(x.dtype)


def shaped(result: Any, shape: tuple[int, ...], out: Any) -> Any:
    """A result in its shape, in `out` (any strides) where that is given."""
    codes = bits(result).reshape(shape)
    if out is None:
        return codes.view(result.dtype)
    bits(output_for(out, shape, result.dtype, result))[...] = codes
    return out


def _finish(
    record: Record, rules: SumRules, source: FloatFormat, dtype: np.dtype[Any], result: Any, largest: bool
) -> None:
    """The second launch, of parts that lie as the record says.

    Raises:
        ValueError: a NaN, where the result's format has none.
    """
    if result.size == 0:
        return
    axes = len(result.shape) - 2
    record["out_step"][:axes] = result.strides[:axes]
    set_numbers(record, out_row=result.strides[-2], out_column=result.strides[-1])
    record["source"] = format_record(source)[()]
    with result.device as device:
        bad = cupy().zeros((), np.uint32) if rules.out.nan_code is None else None
        defines = (("LP_FINISH", "1"), *_defines(source, dtype, rules, largest))
        launch(kernel("sums.cu", "lowprec_sums", defines, device.id), result.size, device.id, (record, result, bad))
        if bad is not None and bool(bad.get()):
            raise ValueError("a NaN arose, and the result's format has none; give out_format='float32'")


def _defines(source: FloatFormat, dtype: np.dtype[Any], rules: SumRules, largest: bool) -> Defines:
    """The combination of sums.cu for terms of a dtype."""
    plain = rules.final is None
    wide = rules.out == float64 if rules.final is None else not fits_narrow_lanes(rules.final)
    return (
        ("LP_FROM", stored_type(dtype)),
        ("LP_READ", "u32" if source.emin >= float32.emin else "u64"),
        ("LP_MAXIMUM", str(int(largest))),
        ("LP_STEP", mode_number(rules.step)),
        ("LP_STEP_LANE", "u64" if rules.step is not None and not fits_narrow_lanes(rules.step) else "u32"),
        ("LP_LAST", mode_number(rules.final)),
        ("LP_LANE", "u64" if wide else "u32"),
        ("LP_TO", stored_type(rules.out_dtype) if plain else codes_type(rules.out_dtype)),
    )


def mode_number(rule: RoundingRule | None) -> str:
    return "-1" if rule is None else str(MODES.index(rule.mode))
