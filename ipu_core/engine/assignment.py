"""What a codelet assigns to its outputs: of their shape, and converted as the tile converts."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.tile import SECOND_ROUNDING
from ipu_core.errors import FloatingPointException
from ipu_core.graph.vertices import VertexGroup
from lowprec import FloatFormat, astype
from lowprec import float16 as FLOAT16
from lowprec.checks import shown

Array = NDArray[Any]
Assign = Callable[[str, Any], None]

_BYTE: Final = 8  # bits
_OUTPUTS: Final = 1 << 32
"""From here on numbers that are folded into the key for the conversions to outputs behind the first."""


def assigner(group: VertexGroup, control: FloatingPointControl, attributes: Mapping[str, Any]) -> Assign:
    """What puts a value into an output of a group by its name.

    Args:
        group: the vertices.
        control: how floats are converted, and which exceptions stop the run.
        attributes: of the codelet's instance, with its arrays, its key and its draws.
    """
    outputs = {name: operand for name, operand in group.operands.items() if operand.field.writes}
    places = {name: place for place, name in enumerate(outputs)}

    def assign(name: str, value: Any) -> None:
        destination: Array = attributes[name]
        where = f"{group.codelet.__name__}.{name}"
        if value is destination:
            if not outputs[name].field.reads:
                raise AttributeError(
                    f"{where}: an operator in place reads what an Output does not have: declare an InOut "
                    "(what a function put there by out= need not be assigned)"
                )
            return
        source = _of_shape(where, value, destination.shape)
        fmt = outputs[name].variable.format
        if source.dtype == destination.dtype:
            destination[...] = source
        elif isinstance(fmt, FloatFormat):
            destination[...] = _converted(where, source, fmt, control, attributes, places[name])
        else:
            destination[...] = _integers(where, source, destination.dtype)

    return assign


def _of_shape(where: str, value: Any, shape: tuple[int, ...]) -> Array:
    """The value as an array, of an output's shape or one Python number's.

    Raises:
        TypeError: no numbers.
        ValueError: another shape.
    """
    source = np.asarray(value)
    if source.dtype.kind in "OSUMmc" or source.dtype.names is not None:
        raise TypeError(f"{where} takes real numbers; compute assigned {shown(value)}")
    one = isinstance(value, int | float) and not isinstance(value, np.generic)  # np.float64 is a float to Python
    if source.shape != shape and not one:
        given = f"shape {source.shape}" if source.ndim else f"{value!r}, as a sum over the vertices too would be"
        raise ValueError(
            f"{where} takes shape {shape}, the vertices first, or one Python number for all; compute assigned {given}"
        )
    return source


def _integers(where: str, source: Array, dtype: np.dtype[Any]) -> Array:
    """Integers modulo 2^32; truth values of integers.

    Raises:
        TypeError: floats.
        ValueError: one Python number that does not fit.
    """
    if source.dtype.kind not in "biu":
        raise TypeError(
            f"{where} holds {dtype}; compute assigned {source.dtype}: say how it becomes one, as "
            f"np.rint(...).astype(np.{dtype}) does"
        )
    found = source.astype(dtype)
    if not source.ndim and found != source:
        raise ValueError(f"{where} holds {dtype}; compute assigned {source}")
    return found


def _converted(
    where: str,
    source: Array,
    fmt: FloatFormat,
    control: FloatingPointControl,
    attributes: Mapping[str, Any],
    place: int,
) -> Array:
    """A value in an output's format: to nearest, or stochastically under esr; to 8 bits by way of half, as on the tile.

    One number is rounded to nearest, as a compiler does.
    """
    draws, key = attributes["draws"], attributes["key"]
    random = control.esr and fmt.mantissa_bits <= FLOAT16.mantissa_bits and source.ndim > 0
    if source.dtype.kind == "b":
        return source.astype(fmt.dtype)
    if random and draws is not None and fmt == FLOAT16:
        result: Array = draws.half(source, control.nanoo)
    else:
        random = random and draws is None
        if random and key is None:
            raise ValueError(
                f"{where} is {fmt.name}: under esr an assigned {source.dtype} is rounded stochastically, and a codelet "
                "without `converts` has no key for that: it assigns values of the output's own format"
            )
        if random and place:
            key = key.fold_in(_OUTPUTS + place)
        # A tile has no cast from float32 to 8 bits: it goes by way of half, with two roundings (see `chip.tile`).
        steps = [fmt] if fmt.bits > _BYTE or source.dtype == np.float16 else [FLOAT16, fmt]
        result = source
        for number, step in enumerate(steps):
            result = np.asarray(
                astype(
                    result,
                    step,
                    "stochastic" if random else "nearest_even",
                    key=None if not random else key.fold_in(SECOND_ROUNDING) if number else key,
                    overflow=control.overflow(step),
                )
            )
    if control.traps:
        _check(where, source, result, fmt, control)
    return result


def _check(where: str, source: Array, result: Array, fmt: FloatFormat, control: FloatingPointControl) -> None:
    """Raises for NaN made of a number, and for a finite number beyond the format's largest."""
    wide = source if source.dtype.kind in "iuf" else source.astype(np.float32)
    if control.inv and bool((np.isnan(result.astype(np.float32)) & ~np.isnan(wide)).any()):
        raise FloatingPointException(f"{where}: invalid operation: NaN in the conversion to {fmt.name} of what is none")
    largest = float(fmt.max)
    if control.oflo and bool((np.isfinite(wide) & (np.abs(wide) > largest)).any()):
        raise FloatingPointException(f"{where}: overflow: a value beyond {largest:g} in the conversion to {fmt.name}")
