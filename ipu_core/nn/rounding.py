"""Roundings inside of a loss: `round` to any format in any mode, and `quantize`, which says what its gradient is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from ipu_core.ir.block import is_wide
from ipu_core.ir.own_rounding import OwnRounding as OwnRounding
from ipu_core.ir.trace.custom import custom_gradient
from ipu_core.ir.trace.values import Traced, Value, rounded
from lowprec import round as rounded_values
from lowprec.gradients import STRAIGHT_THROUGH, check_gradient, format_and_rounding
from lowprec.random import KeyLike, as_key
from lowprec.values.formats import FormatLike
from lowprec.values.keywords import FewBitRoundingLike, RoundingKeywords


def round(
    x: Value,
    fmt: FormatLike,
    rounding: FewBitRoundingLike = "nearest_even",
    *,
    key: KeyLike | None = None,
    **policies: Unpack[RoundingKeywords],
) -> Value:
    """The value rounded to a format once, in any mode, whatever the precision: `lowprec.round` inside of a loss.

    Traced, the result is in that format (`nn.convert` says what follows from that) and stochastic modes draw bits of
    their own in every step, and in every call. The gradient is that of the identity, in the precision's formats.

    Args:
        x: a traced value, or an array, which `lowprec.round` rounds (in float64, to what float32 lacks values of).
        fmt: a FloatFormat, name or dtype.
        rounding: a mode, a `lowprec.Rounding`, or an `OwnRounding`.
        key: of stochastic modes on an array; a traced value has none to give.
        policies: random_bits, overflow, infinite_input and flush, as of `lowprec.round`.

    Raises:
        TypeError: a key beside a traced value; int32 numbers.
        ValueError: an unknown name; as `lowprec.round`.
    """
    wanted, how = format_and_rounding(fmt, rounding, **policies)
    if isinstance(x, Traced):
        if key is not None:
            raise TypeError("a traced value is rounded with random bits of the run: give nn.round no key")
        if isinstance(x.format, str):
            raise TypeError("integers have no rounding: x.astype(np.float32) first")
        if not isinstance(how, OwnRounding):
            how.rule(wanted)  # refuses a policy that the format cannot express
        return rounded(x, wanted, how)
    if isinstance(how, OwnRounding):
        given = np.asarray(x, np.float64 if is_wide(wanted) else np.float32)
        return how.called(given, wanted, None if key is None else as_key(key))
    return rounded_values(np.asarray(x, np.float64) if is_wide(wanted) else x, wanted, how, key=key)


def quantize(
    x: Value,
    fmt: FormatLike,
    rounding: FewBitRoundingLike = "nearest_even",
    *,
    gradient: str | Callable[[Any, Any], Any] = STRAIGHT_THROUGH,
    key: KeyLike | None = None,
    **policies: Unpack[RoundingKeywords],
) -> Value:
    """`round` whose gradient is stated.

    Args:
        x, fmt, rounding, key, policies: as of `round`.
        gradient: "straight_through": the result's, as it comes. "rounded": the result's, rounded in the same way, with
            random bits of its own. A function (x, dy) -> dx: what it gives, such as
            lambda x, dy: np.where(np.abs(x) <= 448, dy, 0).

    Raises:
        TypeError, ValueError: as `round`; another gradient.
    """
    check_gradient(gradient)
    if not isinstance(x, Traced) or gradient == STRAIGHT_THROUGH:
        return round(x, fmt, rounding, key=key, **policies)
    round(x, fmt, rounding, key=key, **policies)  # refuses what it refuses, before anything is traced apart

    def forward(value: Any) -> tuple[Any, Any]:
        return round(value, fmt, rounding, **policies), value if callable(gradient) else None

    def backward(kept: Any, dy: Any) -> Any:
        return (gradient(kept, dy) if callable(gradient) else round(dy, fmt, rounding, **policies),)

    return custom_gradient(forward, backward)(x)
