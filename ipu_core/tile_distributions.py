"""A tile's random numbers: uniform and normal, of counter-based bits, through the tile's own arithmetic."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipu_core import tile
from ipu_core.control import FloatingPointControl
from lowprec import Key, Rounding, astype, random_bits

Array = NDArray[Any]
Draw = Callable[[Key, int, Array], None]
BITS = 24  # of a number: what float32 holds exactly
_STEP = 2.0**-BITS
_FLOAT32 = np.dtype(np.float32)
_NEAREST = Rounding()


def _call(op: str, formats: tuple[Any, ...], out: Any, control: FloatingPointControl) -> Callable[..., Array]:
    kernel = tile.elementwise(op, formats, out, _NEAREST, control)
    return lambda operands, result: kernel(operands, None, 0, result)


def _words(key: Key, offset: int, shape: tuple[int, ...]) -> Array:
    return random_bits(key, shape, BITS, offset=offset).astype(np.int64)


def _numbers(words: Array) -> Array:
    """Whole numbers of at most 2^24 in steps of 2^-24: exact."""
    numbers: Array = astype(words, "float32")
    return _call("multiply", (_FLOAT32, None), _FLOAT32, FloatingPointControl())((numbers, _STEP), numbers)


def uniform(low: float, high: float, out_format: Any, control: FloatingPointControl) -> Draw:
    """A prepared draw of uniform numbers: f(key, offset, out).

    low + (high - low) * u, of 2^24 equally likely u in [0, 1): the product and the sum are rounded to float32, the sum
    then to the format, all to nearest; `high` comes only by that. The bits are those of an element's index, `offset`
    being that of the first, in C order.
    """
    spread = _call("scaled_add", (None, _FLOAT32, None), out_format, control)

    def draw(key: Key, offset: int, out: Array) -> None:
        spread((low, _numbers(_words(key, offset, out.shape)), high - low), out)

    return draw


def normal(mean: float, deviation: float, out_format: Any, control: FloatingPointControl) -> Draw:
    """A prepared draw of normal numbers (Box and Muller): f(key, offset, out).

    mean + deviation * (sqrt(-2 log u) cos(2 pi v)), u of 2^24 numbers in (0, 1], v of as many in [0, 1), so none is
    further than 5.77 deviations from the mean. Every operation is rounded to float32, the last then to the format.
    """
    one, two = (_FLOAT32,), (_FLOAT32, None)
    log, root, cosine = (_call(op, one, _FLOAT32, control) for op in ("log", "sqrt", "cos"))
    times, both = _call("multiply", two, _FLOAT32, control), _call("multiply", (_FLOAT32,) * 2, _FLOAT32, control)
    spread = _call("scaled_add", (None, _FLOAT32, None), out_format, control)

    def draw(key: Key, offset: int, out: Array) -> None:
        radius, angle = (
            _numbers(_words(key.fold_in(0), offset, out.shape) + 1),
            _numbers(_words(key.fold_in(1), offset, out.shape)),
        )
        root((times((log((radius,), radius), -2.0), radius),), radius)
        cosine((times((angle, 2 * math.pi), angle),), angle)
        spread((mean, both((radius, angle), radius), deviation), out)

    return draw
