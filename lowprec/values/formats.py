"""The named formats, `as_format` and the IEEE P3109 family.

Conventions are ml_dtypes' for the named formats, OCP MX's for float8_e8m0fnu and the 6- and 4-bit formats, and the IEEE
P3109 working group's (interim report) for `p3109`. The IPU's two 8-bit formats, F143 and F152, are float8_e4m3fnuz and
float8_e5m2fnuz (bias 8 and 16, no infinity, no -0, NaN 0x80); a tensor of them carries a power-of-two scale besides.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lowprec._caching import cached
from lowprec.values.float_format import FloatFormat as FloatFormat

FormatLike: TypeAlias = FloatFormat | str | np.dtype[Any] | type[Any]

float64 = FloatFormat("float64", 11, 52)
float32 = FloatFormat("float32", 8, 23)
# Has no dtype: the hardware holds it in float32's 32 bits.
tfloat32 = FloatFormat("tfloat32", 8, 10)
bfloat16 = FloatFormat("bfloat16", 8, 7)
float16 = FloatFormat("float16", 5, 10)
# OCP's E4M3 gives up infinity for one more binade (largest 448); its E5M2 keeps IEEE's.
float8_e4m3fn = FloatFormat("float8_e4m3fn", 4, 3, infinities=False, nan="top")
float8_e5m2 = FloatFormat("float8_e5m2", 5, 2)
float8_e4m3fnuz = FloatFormat("float8_e4m3fnuz", 4, 3, 8, infinities=False, nan="negative_zero")
float8_e5m2fnuz = FloatFormat("float8_e5m2fnuz", 5, 2, 16, infinities=False, nan="negative_zero")
float8_e4m3 = FloatFormat("float8_e4m3", 4, 3)
float8_e3m4 = FloatFormat("float8_e3m4", 3, 4)
float8_e4m3b11fnuz = FloatFormat("float8_e4m3b11fnuz", 4, 3, 11, infinities=False, nan="negative_zero")
# OCP MX's scale: a biased exponent and nothing else.
float8_e8m0fnu = FloatFormat(
    "float8_e8m0fnu", 8, 0, signed=False, infinities=False, nan="top", subnormals=False, zero=False
)
# What MLPerf's BERT v2.0 kept activations in on 16 IPUs, taken literally: steps of 1/8 below 4, the largest 248.
stash143 = FloatFormat("stash143", 3, 4, 0, infinities=False, nan="none")
float6_e2m3fn = FloatFormat("float6_e2m3fn", 2, 3, infinities=False, nan="none")
float6_e3m2fn = FloatFormat("float6_e3m2fn", 3, 2, infinities=False, nan="none")
float4_e2m1fn = FloatFormat("float4_e2m1fn", 2, 1, infinities=False, nan="none")

_NAMED = (
    *(float64, float32, tfloat32, bfloat16, float16),
    *(
        float8_e4m3fn,
        float8_e5m2,
        float8_e4m3fnuz,
        float8_e5m2fnuz,
        float8_e4m3,
        float8_e3m4,
        float8_e4m3b11fnuz,
    ),
    *(float8_e8m0fnu, stash143, float6_e2m3fn, float6_e3m2fn, float4_e2m1fn),
)

formats: Mapping[str, FloatFormat] = MappingProxyType({fmt.name: fmt for fmt in _NAMED})
"""Name -> format, of every named format."""

_OTHER_NAMES: Mapping[str, str] = {
    "float64": "fp64 double f64 e11m52",
    "float32": "fp32 single f32 e8m23",
    "tfloat32": "tf32 e8m10",
    "bfloat16": "bf16 e8m7",
    "float16": "fp16 half f16 e5m10",
    # Not float8_e4m3, whose widths are the same: OCP's format is what nearly all who write "e4m3" mean.
    "float8_e4m3fn": "e4m3 e4m3fn fp8_e4m3 fp8_e4m3fn",
    "float8_e5m2": "e5m2 fp8_e5m2",
    "float8_e4m3fnuz": "e4m3fnuz f143 fp8_e4m3fnuz",
    "float8_e5m2fnuz": "e5m2fnuz f152 fp8_e5m2fnuz",
    "float8_e3m4": "e3m4",
    "float8_e4m3b11fnuz": "e4m3b11fnuz",
    "float8_e8m0fnu": "e8m0 e8m0fnu",
    "float6_e2m3fn": "e2m3 e2m3fn fp6_e2m3",
    "float6_e3m2fn": "e3m2 e3m2fn fp6_e3m2",
    "float4_e2m1fn": "e2m1 e2m1fn fp4 fp4_e2m1",
}
aliases: Mapping[str, FloatFormat] = MappingProxyType(
    {name: formats[of] for of, names in _OTHER_NAMES.items() for name in names.split()}
)
"""Other names of the named formats: those of other libraries, the IPU's (f143, f152), and OCP's by their bits alone.

The bits of an OCP format name that format: "e4m3" is float8_e4m3fn. Every other eXmY is `FloatFormat("eXmY", X, Y)`,
with infinities and NaN as IEEE 754 has them. So a sweep of eXmY changes its convention where it meets e4m3, e3m2, e2m3
or e2m1; "eXmYieee" is the format as IEEE 754 has it, always, and "eXmYfinite" the one without infinities whose only NaN
has all bits set. "fixed16_8" and "ufixed16_8" are `fixed_point`'s. `as_format` takes all of them in capitals too.
"""

_BY_DTYPE: Mapping[np.dtype[Any], FloatFormat] = MappingProxyType({f.dtype: f for f in _NAMED if f.dtype is not None})


def as_format(spec: FormatLike) -> FloatFormat:
    """The format that a format, a name or a dtype stands for.

    Raises:
        ValueError: an unknown name (the message lists the valid ones).
        TypeError: something that names no format, such as an integer dtype.
    """
    if isinstance(spec, FloatFormat):
        return spec
    if isinstance(spec, str):
        return formats.get(spec) or _by_other_name(spec)
    found = format_of_dtype(spec)
    if found is None and type(spec).__module__ == "torch":  # a torch.dtype, named as here
        found = formats.get(str(spec).removeprefix("torch."))
    if found is None:
        # Arguments in the wrong order are the common mistake: round("float16", x).
        if isinstance(spec, np.ndarray):
            raise TypeError(f"an array of shape {spec.shape} is no floating-point format: arrays come first")
        raise TypeError(f"{spec!r} is no floating-point format; give a FloatFormat, a name or a dtype")
    return found


@cached
def _by_other_name(spec: str) -> FloatFormat:
    name = spec.lower()
    found = formats.get(name) or aliases.get(name) or _p3109_by_name(name)
    if found is not None:
        return found
    if bits := re.fullmatch(r"e(\d+)m(\d+)(ieee|finite)?", name):
        return _by_widths(name, int(bits[1]), int(bits[2]), bits[3])
    if numbers := re.fullmatch(r"(u?)fixed(\d+)_(m?\d+)", name):
        return fixed_point(int(numbers[2]), int(numbers[3].replace("m", "-")), signed=not numbers[1])
    # Of all unknown names these are known to `to_blocks`.
    if re.match(r"mx(fp|int)\d|nvfp4", name):
        raise ValueError(f"{spec!r} is a block format: lowprec.to_blocks(x, {spec!r}), and the format is its elements'")
    # "fp8" begins several names; which one is meant cannot be guessed, so they are named.
    longer = [known for known in formats if known.startswith(name.replace("fp", "float"))]
    near = longer[:2] or difflib.get_close_matches(name, [*formats, *aliases], 3, 0.6)
    raise ValueError(
        f"unknown format {spec!r}{': did you mean ' + ' or '.join(near) + '?' if near else ''}; known are "
        f"{', '.join(formats)}, short names such as fp16, bf16, half, e4m3, f143, any eXmY of X exponent and Y "
        "mantissa bits (eXmYieee, eXmYfinite), fixed16_8, names of P3109 such as binary8p3se, or a FloatFormat of "
        "your own"
    )


def _by_widths(name: str, exponent_bits: int, mantissa_bits: int, family: str | None) -> FloatFormat:
    """eXmY, eXmYieee or eXmYfinite; the named format of those numbers where there is one."""
    if family == "finite":
        made = FloatFormat(name, exponent_bits, mantissa_bits, infinities=False, nan="top")
    elif not mantissa_bits:
        # Its top exponent has one code, which cannot be infinity and NaN.
        other = f"e{exponent_bits}m0finite"
        raise ValueError(f"{name} has no mantissa bit for NaN beside infinity; {other} does without infinity")
    else:
        made = FloatFormat(name, exponent_bits, mantissa_bits)
    # What differs in its name alone is the same format, with its storage.
    same = (fmt for fmt in _NAMED if replace(fmt, name=name) == made)
    return made if family is None else next(same, made)


def format_of_dtype(dtype: npt.DTypeLike | None) -> FloatFormat | None:
    """The format whose codes a dtype's bytes are; None for integers and everything else."""
    if dtype is None:  # which numpy takes for float64
        return None
    try:
        # The byte order is the array's, not the format's: it is turned where elements are read.
        return _BY_DTYPE.get(np.dtype(dtype).newbyteorder("="))
    except (TypeError, ValueError):  # numpy says either of what is no dtype
        return None


def _p3109_by_name(name: str) -> FloatFormat | None:
    """The format that p3109 calls by this name, such as binary8p3se; None if there is none."""
    numbers, kind = name.removeprefix("binary")[:-2].split("p"), name[-2:]
    if not name.startswith("binary") or len(numbers) != 2 or not all(n.isdecimal() for n in numbers):
        return None
    if kind not in ("se", "sf", "ue", "uf"):
        return None
    return p3109(int(numbers[0]), int(numbers[1]), signed=kind[0] == "s", extended=kind[1] == "e")


def p3109(k: int, p: int, *, signed: bool = True, extended: bool = True) -> FloatFormat:
    """A format of the IEEE P3109 family, Binary{k}p{p}.

    Args:
        k: bits of a code, 3 to 16.
        p: precision, the significand's bits with the implicit one: 1 to k - 1 signed, 1 to k unsigned.
        signed: signed formats have their NaN at the code of -0, unsigned ones at the top code.
        extended: whether there are infinities (at the top codes).

    Raises:
        TypeError: k or p is no integer.
        ValueError: k or p outside those ranges, or a range beyond float64's.
    """
    if not isinstance(k, (int, np.integer)) or not isinstance(p, (int, np.integer)):
        raise TypeError(f"p3109 needs two integers, the bits of a code and of the significand, not {k!r} and {p!r}")
    # As ints, which the cache tells from NumPy's integers.
    return _p3109(int(k), int(p), signed, extended)


def fixed_point(bits: int, fraction: int, *, signed: bool = True) -> FloatFormat:
    """Fixed point as a format: multiples of 2^-fraction, evenly spaced, that saturate at the largest.

    It is a float of one exponent bit, whose normal values have the spacing of its subnormals; so a sign and a
    magnitude, with a -0 and without two's complement's lowest value: fixed_point(16, 8) ends at +-(128 - 2^-8).

    Args:
        bits: of a code, 3 to 19, the sign's among them.
        fraction: how many of them stand behind the point; negative or more than there are is allowed.
        signed: whether one bit is a sign.

    Raises:
        TypeError: bits or fraction is no integer.
        ValueError: bits out of range, or values beyond float64's.
    """
    if not isinstance(bits, (int, np.integer)) or not isinstance(fraction, (int, np.integer)):
        raise TypeError(f"fixed_point needs two integers, bits and those behind the point, not {bits!r}, {fraction!r}")
    if not 3 <= bits <= 19:
        raise ValueError(f"fixed_point needs 3 to 19 bits, not {bits}")
    # One bit is the exponent's, whose two binades have one spacing.
    mantissa = int(bits) - 1 - signed
    sign = "" if signed else "u"
    name = f"{sign}fixed{bits}_{fraction}".replace("-", "m")
    return FloatFormat(name, 1, mantissa, 1 - mantissa + int(fraction), signed, infinities=False, nan="none")


@cached
def _p3109(k: int, p: int, signed: bool, extended: bool) -> FloatFormat:
    if not 3 <= k <= 16 or not 1 <= p <= k - int(signed):
        raise ValueError(f"p3109 needs 3 <= k <= 16 and 1 <= p <= {'k - 1' if signed else 'k'}, not k={k}, p={p}")
    name = f"binary{k}p{p}{'s' if signed else 'u'}{'e' if extended else 'f'}"
    # An unsigned format has the sign's bit for its exponent.
    exponent_bits = k - p + (0 if signed else 1)
    return FloatFormat(
        name,
        exponent_bits,
        p - 1,
        # The group's bias, one more than IEEE's.
        2 ** (exponent_bits - 1),
        signed=signed,
        infinities=extended,
        nan="negative_zero" if signed else "top",
    )
