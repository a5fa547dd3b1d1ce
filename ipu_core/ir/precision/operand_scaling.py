"""Scaled operands: products of 8 and 4 bits as people train with them, and the names by which a precision says so.

Only what goes into a product (of matrices, or a convolution; all three of a layer) is cast, just before it, times a
scale that brings it into the format's range. The result is divided by the scales again, in float32, and has the format
that the precision gives it. Everything else stays in the precision's own formats.

The scale of a tensor is float32: the format's maximum / amax / 2^margin, amax being the tensor's largest magnitude. The
words are those of NVIDIA's Transformer Engine. Where amax is 0, infinite or NaN the scale is 1, with a history what it
was. A "delayed" scale is that of the largest ("max") or last ("most_recent") of the last amax_history_len amaxes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ipu_core.ir.precision.said_rounding import read_rounding
from lowprec import BlockFormat, FloatFormat, as_format, block_formats
from lowprec.checks import expect, truth
from lowprec.values.block_format import mxfp4_e2m1, mxfp8_e4m3, nvfp4
from lowprec.values.formats import float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float32

ElementFormat = FloatFormat | BlockFormat
"""What operands are cast to: one format for all elements, or blocks that share scales."""

HOWS: Mapping[str, str] = {
    "unscaled": "not scaled",
    "static": "times given scales",
    "current": "scaled by their amax",
    "delayed": "scaled by the amax of earlier steps",
}
"""Where the scale of a tensor comes from, and in words. "unscaled" block formats have the scales of their blocks."""

NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
LEAST_INSIDE, MOST_INSIDE = 2.0**-31, 2.0**32  # a tensor is worth its elements times 2^-32 to 2^31
ROTATIONS = ("fixed", "random")
ALGORITHMS = ("max", "most_recent")


@dataclass(frozen=True)
class OperandScaling:
    """How the operands of products are cast.

    Attributes:
        forward: format of activations and weights.
        backward: format of cotangents.
        how: one of `HOWS`.
        forward_scale, backward_scale: the given scales, where it is "static".
        power_of_two: scales are rounded down to powers of two.
        inside: they are taken out of products before these are added, as the C600's unit does, and lie between
            2^-31 and 2^32: its tensors have an exponent of 6 bits. A narrow partial sum then holds true values.
        margin: amax is brought to 2^-margin of the format's maximum.
        amax_history_len: steps that a "delayed" scale looks back on, the last one included.
        amax_compute_algo: whether it takes the "max" of them, or the "most_recent".
        scale_rule: of the blocks' scales (see `lowprec.to_blocks`); None: the format's first.
        forward_rounding, backward_rounding: how activations and weights, and how cotangents are cast: "nearest",
            "stochastic" or any other mode, such as "stochastic(bits=5)"; None: as the precision rounds.
        cast_once: casts to 8 bits round once, as other machines do; a tile goes by way of half, and rounds twice.
        rotation: both operands of a product are rotated alike before they are cast, along the axis that is summed, in
            blocks (see `lowprec.hadamard`): "fixed" by Hadamard's matrix alone, "random" with signs that are drawn anew
            for every product and step; None: not.
        rotation_block: elements of a block, a power of two; where it does not divide the axis, the largest that does.

    Raises:
        TypeError: a format that is none, a number that is none.
        ValueError: a format with values that float32 lacks; a name or number out of range.
    """

    forward: ElementFormat = float8_e4m3fn
    backward: ElementFormat = float8_e5m2
    how: str = "current"
    forward_scale: float = 1.0
    backward_scale: float = 1.0
    power_of_two: bool = False
    inside: bool = False
    margin: int = 0
    amax_history_len: int = 1024
    amax_compute_algo: str = "max"
    scale_rule: str | None = None
    forward_rounding: str | None = None
    backward_rounding: str | None = None
    rotation: str | None = None
    rotation_block: int = 32
    cast_once: bool = False

    def __post_init__(self) -> None:
        expect(str, how=self.how, amax_compute_algo=self.amax_compute_algo)
        for name in ("scale_rule", "forward_rounding", "backward_rounding", "rotation"):
            if (said := getattr(self, name)) is not None:
                expect(str, **{name: said})
        for name in ("power_of_two", "inside", "cast_once"):
            truth(name, getattr(self, name))
        for name in ("forward", "backward"):
            self._check_format(name, getattr(self, name))
        if self.how not in HOWS:
            raise ValueError(f"operands are scaled {', '.join(HOWS)}, not {self.how!r}")
        if self.inside and not (self.power_of_two or self.how == "unscaled"):
            raise ValueError("scales inside of products must be powers of two: say power_of_two=true")
        if self.inside and (isinstance(self.forward, BlockFormat) or isinstance(self.backward, BlockFormat)):
            raise ValueError("scales inside of products are those of tensors, not of blocks")
        if self.amax_compute_algo not in ALGORITHMS:
            raise ValueError(f"amax_compute_algo is {' or '.join(ALGORITHMS)}, not {self.amax_compute_algo!r}")
        for name in ("forward_rounding", "backward_rounding"):
            if (said := getattr(self, name)) is not None:
                read_rounding(said)
        self._check_rotation()
        for name in ("forward_scale", "backward_scale"):
            scale = getattr(self, name)
            if not isinstance(scale, int | float) or not 0 < scale <= float32.max:
                raise ValueError(f"{name} must be a positive float32, not {scale!r}")
            if self.inside and (math.frexp(scale)[0] != 0.5 or not LEAST_INSIDE <= scale <= MOST_INSIDE):
                raise ValueError(f"{name} must be a power of two from 2^-31 to 2^32, not {scale!r}")
        for name, least, most in (("margin", -32, 32), ("amax_history_len", 1, 2**20)):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
                raise ValueError(f"{name} must be an integer from {least} to {most}, not {number!r}")

    def _check_rotation(self) -> None:
        if self.rotation not in (None, *ROTATIONS):
            raise ValueError(f"rotation is {' or '.join(ROTATIONS)}, not {self.rotation!r}")
        size = self.rotation_block
        if not isinstance(size, int) or isinstance(size, bool) or size < 1 or size & (size - 1):
            raise ValueError(f"rotation_block must be a power of two, not {size!r}")
        if self.rotation is not None and self.how == "delayed":
            raise ValueError("operands that are rotated have no history of their amax: say current in place of delayed")

    def _check_format(self, name: str, fmt: Any) -> None:
        if isinstance(fmt, BlockFormat):
            if self.scale_rule is not None and self.scale_rule not in fmt.scale_rules:
                raise ValueError(f"scale_rule of {fmt.name} is {', '.join(fmt.scale_rules)}, not {self.scale_rule!r}")
        elif not isinstance(fmt, FloatFormat):
            raise TypeError(f"{name} must be a FloatFormat or BlockFormat such as lowprec.float8_e5m2, not {fmt!r}")
        elif not float32.contains(fmt):
            raise ValueError(
                f"{name} cannot be {fmt.name}: operands are cast from float32, which lacks values of it; products of "
                f"wider ones are not cast, as in fp32.32/operands={fmt.name}/partials=float64"
            )

    @property
    def scales_tensors(self) -> bool:
        """Whether a tensor has a scale that is found from its values."""
        return self.how in ("current", "delayed")

    def goal(self, fmt: ElementFormat) -> float:
        """What the amax of a tensor is brought to."""
        if isinstance(fmt, BlockFormat):
            largest = float(fmt.element.max) * (1 if fmt.power_of_two else float(fmt.scale.max))
        else:
            expect(FloatFormat, fmt=fmt)
            largest = float(fmt.max)
        return math.ldexp(largest, -self.margin)

    def words(self) -> str:
        """How operands are cast, in words."""
        scales = "by powers of two " if self.power_of_two and self.scales_tensors else ""
        how = f"{scales}{HOWS[self.how]}"
        if self.how == "static":
            how += f" {self.forward_scale:g} and {self.backward_scale:g}"
        if self.how == "delayed":
            how += f" ({self.amax_compute_algo} of {self.amax_history_len})"
        how += ", inside of products" if self.inside else ""
        margin = f", margin {self.margin}" if self.margin and self.scales_tensors else ""
        rule = f", scale rule {self.scale_rule}" if self.scale_rule else ""
        rule += f", cast {self.forward_rounding}" if self.forward_rounding else ""
        rule += f", cotangents {self.backward_rounding}" if self.backward_rounding else ""
        rule += ", in one rounding" if self.cast_once else ""
        rule += f", rotated by {self.rotation} signs in {self.rotation_block}" if self.rotation == "random" else ""
        rule += f", rotated in {self.rotation_block}" if self.rotation == "fixed" else ""
        return f"products of {self.forward.name}, backward {self.backward.name}, {how}{margin}{rule}"


SCALINGS: Mapping[str, OperandScaling] = {
    "fp8": OperandScaling(),
    "mxfp8": OperandScaling(mxfp8_e4m3, mxfp8_e4m3, "unscaled", scale_rule="rceil"),
    "mxfp4": OperandScaling(mxfp4_e2m1, mxfp4_e2m1, "unscaled"),
    "nvfp4": OperandScaling(nvfp4, nvfp4),
    "fp8.16": OperandScaling(float8_e4m3fnuz, float8_e5m2fnuz, power_of_two=True, inside=True),
}
"""Those of the precisions of these names.

The scales of "mxfp8" are rounded up (NVIDIA's recipe): with OCP's rule, "floor", the largest of a block saturate, and
gradients come out a tenth too small. Those of "mxfp4" are OCP's: rounded up they make most of a block too small for the
four bits, unless these are rounded stochastically."""

NOT_CAST = f"only {', '.join(SCALINGS)}, h100-fp8 and a100-tf32 cast the operands of products"


def as_element_format(spec: str) -> ElementFormat:
    """A format or a block format by name."""
    return block_formats[spec] if spec in block_formats else as_format(spec)


def _yes_or_no(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"it is true or false, not {text!r}")
    return text == "true"


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"it is an integer, not {text!r}")
    return int(text)


def _number(text: str) -> float:
    if not NUMBER.fullmatch(text):
        raise ValueError(f"it is a number, not {text!r}")
    return float(text)


def _or_none(text: str) -> str | None:
    return None if text == "none" else text


READERS: Mapping[str, Callable[[str], Any]] = {
    "forward": as_element_format,
    "backward": as_element_format,
    "forward_scale": _number,
    "backward_scale": _number,
    "power_of_two": _yes_or_no,
    "inside": _yes_or_no,
    "margin": _integer,
    "amax_history_len": _integer,
    "amax_compute_algo": str,
    "scale_rule": _or_none,
    "forward_rounding": _or_none,
    "backward_rounding": _or_none,
    "rotation": _or_none,
    "rotation_block": _integer,
    "cast_once": _yes_or_no,
}
"""The fields that an override may name, and what reads their values."""


def is_said(word: str) -> bool:
    """Whether a word of a precision's name is about scaled operands."""
    return word in HOWS or word.partition("=")[0] in READERS


def overridden(scaling: OperandScaling | None, word: str, spec: str) -> OperandScaling:
    """The scaling with one word of a precision's name taken in.

    Raises:
        ValueError: the precision scales no operands, or the word's value is not one.
    """
    if scaling is None:
        raise ValueError(f"{word!r} in {spec!r}: {NOT_CAST}")
    if word in HOWS:
        return replace(scaling, how=word)
    name, _, value = word.partition("=")
    changes: dict[str, Any] = {name: read(name, value, spec)}
    return replace(scaling, **changes)


def difference(scaling: OperandScaling, base: OperandScaling) -> list[str]:
    """The words that make one scaling of another, as `overridden` takes them."""
    changed = {name: value for name in READERS if (value := getattr(scaling, name)) != getattr(base, name)}
    how = [] if scaling.how == base.how else [scaling.how]
    return [*how, *(f"{name}={_written(value)}" for name, value in changed.items())]


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else value.name if isinstance(value, FloatFormat | BlockFormat) else str(value)


def read(field: str, value: str, spec: str) -> Any:
    """The value that a text gives a field of an `OperandScaling`.

    Raises:
        ValueError: it is none for the field.
    """
    try:
        return READERS[field](value)
    except ValueError as error:
        raise ValueError(f"'{field}={value}' in {spec!r}: {error}") from None
