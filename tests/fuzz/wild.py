"""Arguments drawn from a case number: sensible ones by kind, and wild ones of any kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt

import lowprec
from lowprec.values.accumulation import ADDERS
from lowprec.values.rounding import FEW_BIT_MODES, INFINITE_INPUTS, MODES, OVERFLOWS, PRESETS

Array = npt.NDArray[Any]
T = TypeVar("T")

FLOATS = (
    "float32", "float32", "float64", "float16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3fnuz, ml_dtypes.float6_e2m3fn, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu,
)  # fmt: skip
OPERANDS = ("float32", "float16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2fnuz)
CORNERS = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, 65520.0, 1e-8, -3e38, 6e-8, 448.0, 0.1)
WILD: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: 1, lambda: 2**31, lambda: 2**63, lambda: 2**64,
    lambda: -(2**63), lambda: 1.5, lambda: float("nan"), lambda: float("inf"), lambda: 1j, lambda: "",
    lambda: "float16", lambda: "x" * 300, lambda: "nearest", lambda: b"float16", lambda: [],
    lambda: [[1.0], [2.0, 3.0]], lambda: (), lambda: (1, 2), lambda: {}, lambda: {1, 2}, lambda: object(),
    lambda: int, lambda: str, lambda: slice(3), lambda: Ellipsis, lambda: np.float32(2), lambda: np.int8(3),
    lambda: np.bool_(True), lambda: np.dtype("float16"), lambda: np.dtype("int32"), lambda: np.zeros(0),
    lambda: np.zeros((0, 3), np.float16), lambda: np.array(2.0), lambda: np.arange(6).reshape(2, 3),
    lambda: np.array(["a", "b"]), lambda: np.array([None, 1.0], object),
    lambda: np.ma.masked_array([1.0, 2.0], [True, False]), lambda: np.zeros(3, "M8[s]"),
    lambda: np.zeros(2, [("a", "f4"), ("b", "i4")]), lambda: np.ones((2, 2), complex),
    lambda: np.ones(3, np.longdouble), lambda: np.ones((3, 4), ">f4"), lambda: np.ones((3, 4), ">i8"),
    lambda: np.broadcast_to(np.float32(1), (4, 4)), lambda: lowprec.Key(3), lambda: lowprec.float16,
    lambda: lowprec.Accumulation(group=3), lambda: lowprec.Rounding("up"), lambda: range(3), lambda: iter([1.0]),
    lambda: memoryview(b"abcd"), lambda: np.matrix([[1.0, 2.0]]), lambda: [1.0, "a"], lambda: 10**30,
)  # fmt: skip


class Draw:
    """Draws from a case number."""

    def __init__(self, case: int) -> None:
        self.random = random.Random(case)
        self.numbers = np.random.default_rng(case)

    def one_of(self, values: Sequence[T]) -> T:
        """One of some values."""
        return self.random.choice(values)

    def chance(self, share: float) -> bool:
        """True in so many cases."""
        return self.random.random() < share

    def integer(self, low: int, high: int) -> int:
        """A number of [low, high]."""
        return self.random.randint(low, high)

    def shape(self, axes: int | None = None, largest: int = 9) -> tuple[int, ...]:
        """A shape; sometimes empty, sometimes long."""
        axes = self.one_of((0, 1, 1, 2, 2, 3, 4)) if axes is None else axes
        return tuple(self.one_of((0, 1, 2, 3, self.integer(1, largest))) for _ in range(axes))

    def array(self, shape: tuple[int, ...] | None = None, dtypes: Sequence[Any] = FLOATS) -> Array:
        """Floats with corners among them, in any layout."""
        shape = self.shape() if shape is None else shape
        values = self.numbers.standard_normal(shape) * 2.0 ** self.integer(-12, 12)
        if values.size and self.chance(0.3):
            values = np.array(values)
            values.reshape(-1)[self.integer(0, values.size - 1)] = self.one_of(CORNERS)
        with np.errstate(all="ignore"):
            return self.layout(np.asarray(values).astype(np.dtype(self.one_of(dtypes))))

    def integers(self, shape: tuple[int, ...], below: int) -> Array:
        """Integers of [0, below), of any kind."""
        kind = self.one_of(("i8", "i4", "u1", "i2", "u8", ">i4"))
        return self.layout(self.numbers.integers(0, max(1, below), shape).astype(kind))

    def layout(self, x: Array) -> Array:
        """The same values lying otherwise: strided, reversed, transposed, unaligned, read-only, of the other order."""
        way = self.integer(0, 11)
        if way == 0 and x.ndim:
            wide = np.repeat(x, 2, axis=-1)
            return wide[..., ::2]
        if way == 1 and x.ndim:
            return np.ascontiguousarray(x[::-1])[::-1]
        if way == 2 and x.ndim > 1:
            return np.asfortranarray(x)
        if way == 3 and x.dtype.itemsize > 1:
            raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
            raw[...] = x
            return raw
        if way == 4:
            x = np.array(x)
            x.flags.writeable = False
        if way == 5 and x.dtype.kind in "fiu" and x.dtype.isbuiltin == 1:
            return x.astype(x.dtype.newbyteorder())
        return x

    def fmt(self) -> Any:
        """A format: named, P3109's, one's own, a dtype."""
        return self.one_of((
            lambda: self.one_of(sorted(lowprec.formats)), lambda: self.one_of(("float16", "bfloat16", "float32")),
            lambda: lowprec.p3109(self.integer(4, 11), self.integer(1, 3)), lambda: np.dtype(self.one_of(FLOATS)),
            lambda: lowprec.FloatFormat("own", self.integer(2, 8), self.integer(1, 10)),
        ))()  # fmt: skip

    def rounding(self, few: bool = True) -> dict[str, Any]:
        """rounding, key and some policies."""
        mode = self.one_of((*MODES, *FEW_BIT_MODES) if few else MODES)
        found: dict[str, Any] = {"rounding": mode}
        if mode not in MODES[:-1] or self.chance(0.1):
            found["key"] = self.one_of((self.integer(0, 2**64 - 1), lowprec.Key(self.integer(0, 99))))
        if self.chance(0.3):
            found["random_bits"] = self.integer(1, 32)
        if self.chance(0.3):
            found["overflow"] = self.one_of((*OVERFLOWS, *PRESETS))
        if self.chance(0.2):
            found["infinite_input"] = self.one_of(INFINITE_INPUTS)
        return found

    def order(self) -> dict[str, Any]:
        """The order of a sum."""
        return {
            "group": self.one_of((None, 1, 3, 16, self.integer(1, 40))), "splits": self.one_of((1, 1, 2, 5)),
            "stages": self.one_of((None, None, 1, 2, 3)), "accumulate": self.one_of(("float32", "float16", "bfloat16")),
        }  # fmt: skip

    def adder(self) -> dict[str, Any]:
        """The order inside a group."""
        adder = self.one_of((ADDERS[0], *ADDERS))
        return {"adder": adder} | ({"aligned_bits": self.integer(0, 36)} if adder == "aligned" else {})

    def wild(self) -> Any:
        """Anything."""
        return self.one_of(WILD)() if self.chance(0.8) else self.array()
