"""Types of the compiled module (kernels/cpu/module*.cpp)."""

from typing import Any

import numpy.typing as npt

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

class Rounding:
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

class Conversion:
    def __init__(
        self,
        rounding: Rounding,
        source: Format,
        carrier: Rounding,
        in_storage: int,
        out_storage: int,
        as_value: bool,
        wide: bool,
        /,
    ) -> None: ...

def convert(
    conversion: Conversion, x: npt.NDArray[Any], out: npt.NDArray[Any], key: int, offset: int, threads: int
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
def isa() -> str: ...
def isa_names() -> list[str]: ...
def set_isa(name: str) -> None: ...
