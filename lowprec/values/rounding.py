"""Rounding as data.

A `Rounding` (mode and policies) is for any format. Its `rule(fmt)` is a `RoundingRule`: the same for one format, with
the codes that overflow, infinities, NaN and refused values become.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from lowprec._caching import cached
from lowprec.values.float_format import FloatFormat
from lowprec.values.formats import FormatLike, as_format

Mode = Literal["nearest_even", "nearest_away", "toward_zero", "up", "down", "odd", "stochastic"]
Overflow = Literal["infinity", "nan", "saturate", "ieee", "satfinite", "ipu", "ipu_nanoo"]
InfiniteInput = Literal["keep", "nan", "max"]

FewBitMode = Literal["stochastic_half", "stochastic_even"]
Preset = Literal["ieee", "satfinite", "ipu", "ipu_nanoo"]

MODES: tuple[Mode, ...] = get_args(Mode)
FEW_BIT_MODES: tuple[str, ...] = get_args(FewBitMode)
"""Stochastic modes with less of the bias of few random bits (see lowprec.rounding), for `round`, `astype`, `encode`."""
STOCHASTIC_MODES: tuple[str, ...] = ("stochastic", *FEW_BIT_MODES)
FEW_BITS = 16  # with a format's mantissa bits they stay within CARRIED_BITS

OVERFLOWS: tuple[str, ...] = ("infinity", "nan", "saturate")
INFINITE_INPUTS: tuple[str, ...] = get_args(InfiniteInput)
# Presets say both policies at once; OVERFLOWS are the overflow policies alone.
PRESETS: tuple[str, ...] = get_args(Preset)

# Modes that never overflow from a finite x: of positive x, of negative x.
INWARD_POSITIVE = ("toward_zero", "odd", "down")
INWARD_NEGATIVE = ("toward_zero", "odd", "up")


@dataclass(frozen=True)
class Rounding:
    """How values are rounded, whatever the format: the arguments of `lowprec.round` as one value.

    Attributes:
        mode: nearest_even, nearest_away, toward_zero, up, down, odd or stochastic; `round`, `astype` and `encode` also
            take stochastic_half and stochastic_even.
        random_bits: bits per rounding in the stochastic modes, 1 to 32 ("exact": as many as the values need, in
            `round`, `astype` and `encode`); plays no part in the others.
        overflow: what a finite value beyond the largest becomes: infinity, nan or saturate, or a preset (ieee,
            satfinite, ipu, ipu_nanoo); None: the format's own rule.
        infinite_input: keep, nan or max; None: as the preset or the format says.
        flush: subnormal results become zero of the same sign.

    Raises:
        TypeError: flush is neither True nor False.
        ValueError: an unknown name, or random bits out of range in a stochastic mode.
    """

    mode: Mode | FewBitMode = "nearest_even"
    random_bits: int | Literal["exact"] = 16
    overflow: Overflow | None = None
    infinite_input: InfiniteInput | None = None
    flush: bool = False

    def __post_init__(self) -> None:
        if str(self.mode) == "nearest":  # as precisions call it
            object.__setattr__(self, "mode", "nearest_even")
        # Checked when it is made, not when it is used: a study would otherwise fail after hours.
        _one_of("rounding", self.mode, (*MODES, *FEW_BIT_MODES))
        # The type first: an array compared with "exact" would give an array, and no sentence.
        if self.stochastic and not (isinstance(self.random_bits, str) and self.random_bits == "exact"):
            _check_bits(self.random_bits)
        if self.overflow is not None:
            _one_of("overflow", self.overflow, (*OVERFLOWS, *PRESETS))
        if self.infinite_input is not None:
            _one_of("infinite_input", self.infinite_input, INFINITE_INPUTS)
        if not isinstance(self.flush, (bool, np.bool_)):
            raise TypeError(f"flush must be True or False, not {self.flush!r}")

    @property
    def stochastic(self) -> bool:
        """Whether the mode takes random bits."""
        return self.mode in STOCHASTIC_MODES

    def rule(self, fmt: FormatLike) -> RoundingRule:
        """The codes that values become in a format.

        Raises:
            ValueError: a policy the format cannot express; in a few-bit mode as `few_bit_rule`.
        """
        make = few_bit_rule if self.mode in FEW_BIT_MODES else rounding_rule
        return make(fmt, self.mode, self.random_bits, self.overflow, self.infinite_input, self.flush)

    def refuse(self, what: str, *, exact: bool = False, flush: bool = False) -> None:
        """Refuses few-bit modes, and where told so "exact" random bits and flushing, which `what` does not do.

        Raises:
            ValueError: this Rounding asks for one of them.
        """
        if self.mode in FEW_BIT_MODES:
            raise ValueError(f"{self.mode} is for round, astype and encode; {what} take {', '.join(MODES)}")
        if exact and self.random_bits == "exact":
            raise ValueError(f"random_bits must be an integer of 1 to 32 in {what}, not 'exact'")
        if flush and self.flush:
            raise ValueError(f"flush=True is for single roundings; {what} do not flush subnormal results")

    def words(self) -> str:
        """The Rounding in one printed line: what differs from nearest_even and the formats' own rules."""
        bits = [f"random bits {self.random_bits}"] if self.stochastic else []
        policies = {"overflow": self.overflow, "infinite input": self.infinite_input}
        said = [f"{name} {value}" for name, value in policies.items() if value is not None]
        return ", ".join([self.mode, *bits, *said, *["flush"] * bool(self.flush)])

    def digest(self) -> str:
        """SHA-256 of the printed form, in hexadecimal: the same in every process and on every machine."""
        # Of words, not of hash(), which differs from process to process.
        return hashlib.sha256(self.words().encode()).hexdigest()


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
    mode: Mode | FewBitMode
    random_bits: int
    flush: bool
    over_pos: int
    over_neg: int
    inf_pos: int
    inf_neg: int
    negative: int
    none: int

    @property
    def settles(self) -> bool:
        """Whether rounding a result once more by this rule leaves it as it is.

        Not so where overflow gives an infinity that the rule, as an input, replaces.
        """
        infinity = self.fmt.inf_code
        if infinity is None:
            return True
        # Each sign by itself: with `up` or `down` only one of them overflows to infinity.
        signs = (self.over_pos, infinity, self.inf_pos), (self.over_neg, _negated(self.fmt, infinity), self.inf_neg)
        return all(over != infinite or again == infinite for over, infinite, again in signs)


@cached
def rounding_rule(
    fmt: FormatLike,
    rounding: Mode | FewBitMode = "nearest_even",
    random_bits: int | Literal["exact"] = 16,
    overflow: Overflow | None = None,
    infinite_input: InfiniteInput | None = None,
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
        bits = _check_bits(random_bits)
    if not isinstance(flush, (bool, np.bool_)):
        raise TypeError(f"flush must be True or False, not {flush!r}")
    # Codes, not policies, are what loops and reference take: no backend interprets a policy in its own way.
    policy, infinite = _policies(fmt, overflow, infinite_input)
    over = _special(fmt, {"infinity": "infinity", "nan": "nan", "saturate": "max"}[policy], "overflow", policy)
    inf = _special(fmt, {"keep": "infinity", "nan": "nan", "max": "max"}[infinite], "infinite_input", infinite)
    largest = fmt.max_code
    if flush and largest < fmt.min_normal_code:  # a format of subnormals alone: its largest value is flushed too
        over, inf = (0 if code == largest else code for code in (over, inf))
        largest = 0
    # An unsigned format saturates to its smallest value, 0; where it has no zero (e8m0), negative numbers are NaN.
    refused = fmt.nan_code if fmt.nan_code is not None and (policy != "saturate" or not fmt.zero) else 0
    refused_inf = fmt.nan_code if fmt.nan_code is not None and (infinite != "max" or not fmt.zero) else 0
    return RoundingRule(
        fmt=fmt,
        mode=rounding,
        random_bits=bits,
        flush=bool(flush),
        # Inward modes never leave the range from a finite number (IEEE 754, 7.4), whatever the overflow policy says.
        over_pos=largest if rounding in INWARD_POSITIVE else over,
        over_neg=_negated(fmt, largest if rounding in INWARD_NEGATIVE else over),
        inf_pos=inf,
        inf_neg=_negated(fmt, inf) if fmt.signed else refused_inf,
        negative=refused,
        none=fmt.nan_code or 0,
    )


def few_bit_rule(
    fmt: FormatLike,
    rounding: Mode | FewBitMode,
    random_bits: int | Literal["exact"],
    overflow: Overflow | None = None,
    infinite_input: InfiniteInput | None = None,
    flush: bool = False,
) -> RoundingRule:
    """The rule of one of FEW_BIT_MODES (arguments as of `rounding_rule`).

    Raises:
        ValueError: as `rounding_rule`; more than FEW_BITS bits, float64, or a format with zero but without subnormals.
    """
    rule = rounding_rule(fmt, "stochastic", random_bits, overflow, infinite_input, flush)
    if rule.random_bits > FEW_BITS:
        raise ValueError(f"{rounding} takes random_bits of 1 to {FEW_BITS}, not {random_bits!r}")
    # The first of two steps rounds to mantissa and random bits in float64, whose own steps must be fine enough.
    if rule.fmt.mantissa_bits + FEW_BITS > 51 or rule.fmt.emin < -1000:
        raise ValueError(f"{rounding} is for formats narrower than {rule.fmt.name}")
    # The finer grid of the first step goes on below the smallest normal value, where such a format has one wide gap.
    if rule.fmt.zero and not rule.fmt.subnormals:
        raise ValueError(f"{rounding} needs a format with subnormals; {rule.fmt.name} has none")
    return replace(rule, mode=rounding)


def _policies(fmt: FloatFormat, overflow: str | None, infinite_input: str | None) -> tuple[str, str]:
    """Presets and defaults resolved to one of OVERFLOWS and one of INFINITE_INPUTS."""
    has_nan = fmt.nan_code is not None
    # A preset says both; infinite_input, where given, still goes before it.
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
        infinite = "keep" if fmt.infinities else "max" if overflow == "saturate" else "nan"  # it counts as an overflow
    return overflow, infinite


def _check_bits(random_bits: object) -> int:
    if not isinstance(random_bits, (int, np.integer)) or isinstance(random_bits, bool) or not 1 <= random_bits <= 32:
        allowed = "an integer of 1 to 32 (round, astype and encode also take 'exact')"
        raise ValueError(f"random_bits must be {allowed}, not {random_bits!r}")
    return int(random_bits)


def _one_of(what: str, given: str, allowed: tuple[str, ...]) -> str:
    if not isinstance(given, str) or given not in allowed:
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
    # NaN stays the canonical one; in formats whose NaN is the code of -0 a zero must not get the sign.
    return code if code == fmt.nan_code or (code == 0 and not fmt.negative_zero) else code | fmt.sign_bit


NEAREST_EVEN = Rounding()
STOCHASTIC = Rounding("stochastic")
