"""Roundings to whole numbers and remainders of torch, and conversions of elements between its kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipu_core.frontends.torch.operations.call import NodeCall, combined, numbers
from ipu_core.ir.trace import whole_numbers
from ipu_core.ir.trace.values import Value, where

NARROW = ("uint8", "int8", "int16", "uint16")


def of_floats(f: Callable[..., Value]) -> Callable[..., Value]:
    """A function whose result is what it is given where that holds integers, as torch's roundings have it."""
    return lambda call, x, *rest: f(x, *rest) if call.kind(0) == "float" else x


def of_two(f: Callable[..., Value]) -> Callable[..., Value]:
    return lambda call, a, b, *rest: f(numbers(a), numbers(b), *rest)


def remainder(a: Value, b: Value) -> Value:
    """NumPy's, but that a 0 has the sign of the first operand."""
    left = whole_numbers.fmod(a, b)
    return where(left, whole_numbers.on_side_of(left, b), left)


def quotient(a: Value, b: Value, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return combined("divide", a, b)
    if rounding_mode == "floor":
        return whole_numbers.floor_divide(a, b)
    return whole_numbers.trunc(combined("divide", a, b))


def converted(call: NodeCall, x: Value, *_: Any) -> Value:
    """Floats stay as they are: the precision says in which format. Integers become floats where torch makes such.

    Floats become whole numbers, kept as floats; float32 has those up to 2^24.
    """
    if call.kind() == "float":
        # adding 0 makes integers floats (`combined`)
        return combined("add", x, 0.0) if call.kind(0) == "int" else x
    if call.kind() == call.kind(0) or call.kind(0) == "bool":
        return x
    if call.kind() == "bool":
        return combined("subtract", 1.0, combined("equal", x, 0.0))
    if str(call.node.meta["val"].dtype).removeprefix("torch.") in NARROW:
        raise NotImplementedError("numbers that are computed become int32 or int64 and no narrower integers")
    return whole_numbers.trunc(x)


TABLE: dict[str, Callable[..., Any]] = {
    "floor": of_floats(whole_numbers.floor), "ceil": of_floats(whole_numbers.ceil),
    "trunc": of_floats(whole_numbers.trunc), "fix": of_floats(whole_numbers.trunc),
    "round": of_floats(whole_numbers.rint), "round.decimals": of_floats(whole_numbers.round_decimals),
    "frac": lambda call, x: combined("subtract", x, whole_numbers.trunc(x)),
    "fmod": of_two(whole_numbers.fmod), "remainder": of_two(remainder),
    "floor_divide": of_two(whole_numbers.floor_divide), "div": of_two(quotient),
    "to": converted, "type_as": converted,
}  # fmt: skip
