"""Types of the compiled module (kernels/cpu/python/module*.cpp)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

class DefaultState:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Format:
    def __init__(
        self,
        exponent_bits: int,
        mantissa_bits: int,
        emin: int,
        subnormals: bool,
        zero: bool,
        negative_zero: bool,
        sign_bit: int,
        max_code: int,
        inf_code: int,
        nan_code: int,
        /,
    ) -> None: ...

class NativeRounding:
    def __init__(
        self,
        format: Format,
        mode: int,
        random_bits: int,
        flush: bool,
        over_pos: int,
        over_neg: int,
        inf_pos: int,
        inf_neg: int,
        negative: int,
        none: int,
        /,
    ) -> None: ...

class NativeConversion:
    def __init__(
        self,
        rounding: NativeRounding,
        source: Format,
        carrier: NativeRounding,
        in_storage: int,
        out_storage: int,
        as_value: bool,
        wide: bool,
        /,
    ) -> None: ...

class WholeConversion:
    def __init__(self, conversion: NativeConversion, in_dtype: Any, out_dtype: Any, keyed: bool, /) -> None: ...
    def __call__(
        self, x: npt.NDArray[Any], out: npt.NDArray[Any] | None, key: int, threads: int
    ) -> npt.NDArray[Any] | None: ...

class WholeDecoding:
    def __init__(self, format: Format, in_storage: int, out_storage: int, in_dtype: Any, out_dtype: Any, /) -> None: ...
    def __call__(
        self, codes: npt.NDArray[Any], out: npt.NDArray[Any] | None, threads: int
    ) -> npt.NDArray[Any] | None: ...

def convert(
    conversion: NativeConversion, x: npt.NDArray[Any], out: npt.NDArray[Any], key: int, offset: int, threads: int
) -> bool: ...
def decode(
    format: Format,
    codes: npt.NDArray[Any],
    out: npt.NDArray[Any],
    in_storage: int,
    out_storage: int,
    threads: int,
) -> None: ...
def fold_in(key: int, n: int) -> int: ...
def split(key: int, i: int) -> int: ...
def philox(c0: int, c1: int, c2: int, c3: int, key: int, rounds: int = 10) -> tuple[int, int, int, int]: ...
def random_words(tag: int, bits: int, key: int, offset: int, out: npt.NDArray[Any], threads: int) -> None: ...
def modes() -> list[str]: ...
def isa() -> str: ...
def isa_names() -> list[str]: ...
def set_isa(name: str) -> None: ...
def path_names() -> list[str]: ...
def paths_off() -> list[str]: ...
def set_paths_off(names: Sequence[str]) -> None: ...
def takes(path: str) -> bool: ...
def default_threads() -> int: ...
def set_default_threads(threads: int) -> None: ...
def set_leak_warnings(on: bool) -> None: ...

class OperandType:
    def __init__(self, dtype: Any, kind: int, table: npt.NDArray[Any] | None) -> None: ...

class ElementwiseCall:
    def __init__(
        self,
        operation: int,
        operands: list[OperandType],
        conversion: NativeConversion,
        held: NativeConversion | None,
        dtype: Any,
        plain: bool,
        keyed: bool,
        /,
    ) -> None: ...
    def __call__(
        self, operands: tuple[Any, ...], key: Any, offset: int, out: npt.NDArray[Any] | None, threads: int
    ) -> npt.NDArray[Any]: ...

class PipelineCall:
    def __init__(self, memory: npt.NDArray[Any]) -> None: ...
    def part(self, rows: int, piece: int) -> None: ...
    def step(
        self, call: ElementwiseCall, operands: tuple[Any, ...], out: npt.NDArray[Any], rows: list[int], folds: list[int]
    ) -> None: ...
    def sum(
        self, call: ReduceCall, x: npt.NDArray[Any], out: npt.NDArray[Any], rows: list[int], folds: list[int]
    ) -> None: ...
    def maximum(self, call: MaximumCall, x: npt.NDArray[Any], out: npt.NDArray[Any], rows: list[int]) -> None: ...
    def __call__(self, key: Any, threads: int) -> None: ...

def plain_dtypes(operands: tuple[Any, ...]) -> tuple[Any, ...] | None: ...
def ready_output(out: Any, operands: tuple[Any, ...], in_place: bool) -> bool: ...
def outside_brackets(operation: int, begin: int, end: int) -> int: ...

class Accumulator:
    def __init__(
        self,
        between: NativeRounding | None,
        between_wide: bool,
        last: NativeRounding | None,
        last_wide: bool,
        stored: NativeRounding,
        storage: int,
        dtype: Any,
        one_format: bool,
    ) -> None: ...

class Order:
    def __init__(self, cut: Callable[[int], tuple[int, int, int, int]], adder: int) -> None: ...

class ProductCall:
    def __init__(
        self,
        a: OperandType,
        b: OperandType,
        sums: OperandType,
        accumulator: Accumulator,
        order: Order,
        exact: bool,
        aligned_bits: int,
        least: tuple[int, int],
        /,
    ) -> None: ...
    def __call__(
        self,
        a: npt.NDArray[Any],
        b: npt.NDArray[Any],
        key: Any,
        row: Any,
        column: Any,
        first_group: Any,
        batch: Any,
        out: npt.NDArray[Any] | None,
        threads: int,
        initial: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]: ...

class WindowCall:
    def __init__(self, x: OperandType, weight: OperandType, accumulator: Accumulator, exact: bool, /) -> None: ...
    def __call__(
        self,
        x: npt.NDArray[Any],
        weight: npt.NDArray[Any],
        group: int,
        stride: tuple[int, int],
        dilation: tuple[int, int],
        front: tuple[int, int],
        key: Any,
        place: tuple[int, ...],
        out: npt.NDArray[Any],
        threads: int,
    ) -> None: ...
    def dense(
        self,
        x: npt.NDArray[Any],
        weight: npt.NDArray[Any],
        lanes_are_windows: bool,
        group: int,
        stride: tuple[int, int],
        dilation: tuple[int, int],
        front: tuple[int, int],
        key: Any,
        place: tuple[int, ...],
        out: npt.NDArray[Any],
        threads: int,
    ) -> None: ...
    def weight_gradient(
        self,
        x: npt.NDArray[Any],
        gradient: npt.NDArray[Any],
        group: int,
        stride: tuple[int, int],
        dilation: tuple[int, int],
        front: tuple[int, int],
        key: Any,
        place: tuple[int, ...],
        out: npt.NDArray[Any],
        threads: int,
    ) -> None: ...

class ReduceCall:
    def __init__(self, x: OperandType, accumulator: Accumulator, order: Order, /) -> None: ...
    def __call__(
        self,
        x: npt.NDArray[Any],
        key: Any,
        row: Any,
        column: Any,
        first_group: Any,
        batch: Any,
        out: npt.NDArray[Any] | None,
        threads: int,
    ) -> npt.NDArray[Any]: ...
    def scatter(
        self,
        x: npt.NDArray[Any],
        indices: npt.NDArray[Any],
        rows: int,
        key: Any,
        row: Any,
        column: Any,
        batch: Any,
        out: npt.NDArray[Any] | None,
        threads: int,
    ) -> npt.NDArray[Any]: ...

class SumCall:
    def __init__(self, x: OperandType, accumulator: Accumulator, tag: int, /) -> None: ...
    def __call__(
        self,
        parts: npt.NDArray[Any],
        key: Any,
        index: Any,
        row: Any,
        column: Any,
        batch: Any,
        out: npt.NDArray[Any] | None,
        threads: int,
    ) -> npt.NDArray[Any]: ...

class MaximumCall:
    def __init__(self, x: OperandType, accumulator: Accumulator, /) -> None: ...
    def __call__(self, x: npt.NDArray[Any], out: npt.NDArray[Any] | None, threads: int) -> npt.NDArray[Any]: ...

class ExactCall:
    def __init__(
        self,
        operation: int,
        mode: int,
        down: bool,
        operands: Sequence[OperandType | None],
        conversion: NativeConversion,
        dtype: Any,
    ) -> None: ...
    def __call__(
        self,
        operands: tuple[npt.NDArray[Any] | float, ...],
        key: int,
        offset: int,
        out: npt.NDArray[Any] | None,
        threads: int,
    ) -> tuple[npt.NDArray[Any], int, npt.NDArray[Any] | None]: ...

class ColumnCall:
    def __init__(
        self, operands: list[OperandType], rounding: NativeRounding, kind: int, ieee: bool, wide: bool, /
    ) -> None: ...
    def __call__(
        self,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any] | None,
        block: int,
        key: int,
        index: int,
        out: npt.NDArray[Any],
        threads: int,
    ) -> None: ...

class BlockQuantizer:
    def __init__(
        self,
        elements: NativeConversion,
        source: Format,
        in_storage: int,
        choice: int,
        scaling: int,
        flags: tuple[bool, bool, bool, bool, bool],  # wide_in, wide_values, guard, voids, integers
        exponents: tuple[int, int, int, int],  # element_emax, least, largest, code_base
        carry: int,
        scale: NativeRounding,
        smallest: float,
        odd_scales: bool,
        scale_nan: int,
        /,
    ) -> None: ...

class BlockSpreader:
    def __init__(
        self,
        element: Format,
        in_storage: int,
        scale: Format,
        scales_in: int,
        integers: bool,
        quantum: float,
        /,
    ) -> None: ...

def quantize_blocks(
    quantizer: BlockQuantizer,
    x: npt.NDArray[Any],
    elements: npt.NDArray[Any],
    scales: npt.NDArray[Any] | None,
    shape: tuple[int, int, int, int],
    tensor: float,
    wanted_divisor: float,
    factor: float,
    key: int,
    offset: int,
    threads: int,
) -> bool: ...
def dequantize_blocks(
    spreader: BlockSpreader,
    elements: npt.NDArray[Any],
    scales: npt.NDArray[Any] | None,
    out: npt.NDArray[Any],
    shape: tuple[int, int, int, int],
    tensor: float,
    factor: float,
    threads: int,
) -> bool: ...
def largest_magnitude(x: npt.NDArray[Any], in_storage: int, source: Format, threads: int) -> float: ...
def pack(bits: int, rows: int, codes: int, x: npt.NDArray[Any], out: npt.NDArray[Any], threads: int) -> bool: ...
def unpack(bits: int, rows: int, codes: int, x: npt.NDArray[Any], out: npt.NDArray[Any], threads: int) -> None: ...
def magnitudes(
    x: npt.NDArray[Any], count: int, step: int, histogram: npt.NDArray[Any], factor: float = 1.0
) -> tuple[int, int, int, float, float]: ...
def underflows(
    op: str, result: npt.NDArray[Any], left: Any, right: Any, scale: float, zeros: int, count: int
) -> int: ...
def changes(
    base: npt.NDArray[Any] | None,
    direction: npt.NDArray[Any],
    scale: float,
    before: npt.NDArray[Any],
    after: npt.NDArray[Any],
    count: int,
    step: int,
) -> tuple[int, int]: ...
