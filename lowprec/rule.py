"""Rounding as data: format, mode, random bits, and the codes of overflow, infinities, NaN and refused values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lowprec.caching import cached
from lowprec.float_format import FloatFormat
from lowprec.formats import FormatLike, as_format

Mode = Literal["nearest_even", "nearest_away", "toward_zero", "up", "down", "odd", "stochastic"]
Overflow = Literal["infinity", "nan", "saturate", "ieee", "satfinite", "ipu", "ipu_nanoo"]
InfiniteInput = Literal["keep", "nan", "max"]

MODES: tuple[str, ...] = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "odd", "stochastic")
FEW_BIT_MODES: tuple[str, ...] = ("stochastic_half", "stochastic_even")
"""Stochastic modes with less of the bias of few random bits (see lowprec.rounding), for `round`, `astype`, `encode`."""
STOCHASTIC_MODES: tuple[str, ...] = ("stochastic", *FEW_BIT_MODES)
FEW_BITS = 16

OVERFLOWS: tuple[str, ...] = ("infinity", "nan", "saturate")
INFINITE_INPUTS: tuple[str, ...] = ("keep", "nan", "max")
PRESETS: tuple[str, ...] = ("ieee", "satfinite", "ipu", "ipu_nanoo")

# Modes that never overflow from a finite x: of positive x, of negative x.
_INWARD_POSITIVE = ("toward_zero", "odd", "down")
_INWARD_NEGATIVE = ("toward_zero", "odd", "up")


@dataclass(frozen=True)
class RoundingRule:
    """How a value becomes a code of `fmt`. The six results are whole codes, sign included.

    Attributes:
        fmt: the format.
        mode: one of MODES or FEW_BIT_MODES.
        random_bits: bits per element in stochastic mode, 1 to 32; 0 in the others.
        flush: subnormal results become zero.
        over_pos, over_neg: what a finite value beyond the largest becomes.
        inf_pos, inf_neg: what an infinite value becomes.
        negative: what x < 0 becomes in an unsigned format.
        none: what 0 becomes in a format without zero.
    """

    fmt: FloatFormat
    mode: str
    random_bits: int
    flush: bool
    over_pos: int
    over_neg: int
    inf_pos: int
    inf_neg: int
    negative: int
    none: int


@cached
def rounding_rule(
    fmt: FormatLike,
    rounding: str = "nearest_even",
    random_bits: int | str = 16,
    overflow: str | None = None,
    infinite_input: str | None = None,
    flush: bool = False,
) -> RoundingRule:
    """The rule that `round`'s arguments describe.

    Raises:
        TypeError: flush is neither True nor False.
        ValueError: an unknown mode or policy, or a policy the format cannot express.
    """
    fmt = as_format(fmt)
    _one_of("rounding", rounding, MODES)
    bits = 0
    if rounding == "stochastic":
        if not isinstance(random_bits, (int, np.integer)) or not 1 <= random_bits <= 32:
            allowed = "an integer of 1 to 32 (round, astype and encode also take 'exact')"
            raise ValueError(f"random_bits must be {allowed}, not {random_bits!r}")
        bits = int(random_bits)
    if not isinstance(flush, (bool, np.bool_)):
        raise TypeError(f"flush must be True or False, not {flush!r}")
    overflow, infinite = _policies(fmt, overflow, infinite_input)
    over = _special(fmt, {"infinity": "infinity", "nan": "nan", "saturate": "max"}[overflow], "overflow", overflow)
    inf = _special(fmt, {"keep": "infinity", "nan": "nan", "max": "max"}[infinite], "infinite_input", infinite)
    refused = fmt.nan_code if fmt.nan_code is not None and (overflow != "saturate" or not fmt.zero) else 0
    refused_inf = fmt.nan_code if fmt.nan_code is not None and (infinite != "max" or not fmt.zero) else 0
    return RoundingRule(
        fmt=fmt,
        mode=rounding,
        random_bits=bits,
        flush=bool(flush),
        over_pos=fmt.max_code if rounding in _INWARD_POSITIVE else over,
        over_neg=_negated(fmt, fmt.max_code if rounding in _INWARD_NEGATIVE else over),
        inf_pos=inf,
        inf_neg=_negated(fmt, inf) if fmt.signed else refused_inf,
        negative=refused,
        none=fmt.nan_code or 0,
    )


def few_bit_rule(
    fmt: FormatLike,
    rounding: str,
    random_bits: int | str,
    overflow: str | None = None,
    infinite_input: str | None = None,
    flush: bool = False,
) -> RoundingRule:
    """The rule of one of FEW_BIT_MODES (arguments as of `rounding_rule`).

    Raises:
        ValueError: as `rounding_rule`; more than FEW_BITS bits, float64, or a format with zero but without subnormals.
    """
    rule = rounding_rule(fmt, "stochastic", random_bits, overflow, infinite_input, flush)
    if rule.random_bits > FEW_BITS:
        raise ValueError(f"{rounding} takes random_bits of 1 to {FEW_BITS}, not {random_bits!r}")
    if rule.fmt.mantissa_bits + FEW_BITS > 51 or rule.fmt.emin < -1000:
        raise ValueError(f"{rounding} is for formats narrower than {rule.fmt.name}")
    if rule.fmt.zero and not rule.fmt.subnormals:
        raise ValueError(f"{rounding} needs a format with subnormals; {rule.fmt.name} has none")
    return replace(rule, mode=rounding)


def _policies(fmt: FloatFormat, overflow: str | None, infinite_input: str | None) -> tuple[str, str]:
    """Presets and defaults resolved to one of OVERFLOWS and one of INFINITE_INPUTS."""
    has_nan = fmt.nan_code is not None
    infinite: str | None = None
    match overflow:
        case None:
            overflow = "infinity" if fmt.infinities else "nan" if has_nan else "saturate"
        case "ieee":
            overflow, infinite = "infinity", "keep"
        case "satfinite":
            overflow, infinite = "saturate", "max"
        case "ipu" | "ipu_nanoo" if fmt.bits > 16:  # the IPU's float32 is IEEE's
            overflow, infinite = "infinity", "keep"
        case "ipu_nanoo" if has_nan:  # the control register's NANOO bit: overflow and infinities give NaN
            overflow, infinite = "nan", "nan"
        case "ipu" | "ipu_nanoo":
            overflow, infinite = "saturate", "nan" if fmt.bits <= 8 and has_nan else "max"
        case _:
            _one_of("overflow", overflow, (*OVERFLOWS, *PRESETS))
    if infinite_input is not None:
        infinite = _one_of("infinite_input", infinite_input, INFINITE_INPUTS)
    elif infinite is None:
        infinite = "keep" if fmt.infinities else "nan" if has_nan else "max"
    return overflow, infinite


def _one_of(what: str, given: str, allowed: tuple[str, ...]) -> str:
    if given not in allowed:
        raise ValueError(f"unknown {what} {given!r}; allowed are {', '.join(allowed)}")
    return given


def _special(fmt: FloatFormat, result: str, argument: str, policy: str) -> int:
    """The positive code of "infinity", "nan" or "max"."""
    code = {"infinity": fmt.inf_code, "nan": fmt.nan_code, "max": fmt.max_code}[result]
    if code is None:
        what = "infinity" if result == "infinity" else "NaN"
        raise ValueError(f"{argument}={policy!r} needs a format with {what}; {fmt.name} has none")
    return code


def _negated(fmt: FloatFormat, code: int) -> int:
    return code if code == fmt.nan_code else code | fmt.sign_bit
