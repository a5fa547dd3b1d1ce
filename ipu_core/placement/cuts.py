"""The words that plans of products and of convolutions share: cuts over tiles and turns in time, of many candidates."""

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ipu_core.chip import cost
from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from lowprec import Accumulation, FloatFormat, as_format
from lowprec.values.formats import FormatLike

Sums = TypeVar("Sums")


class PlacementProblem(NamedTuple, Generic[Sums]):
    """What is to be placed: sums of given sizes, formats and layouts on a chip, in an order and its types."""

    target: Target
    sums: Sums
    accumulation: Accumulation


class Cuts(NamedTuple):
    """Into how many pieces each axis of the sums is cut, over tiles or (turns) in time.

    Ints, or arrays that broadcast, with an entry per candidate. The same words hold for lengths along the axes.

    Attributes:
        batch: products of a batch; the groups of a convolution.
        rows: rows of the result; of a convolution three axes, the first one of the array.
        columns: columns of the result; the outputs of a convolution.
        parts: parts of the sums; turns of a product also cut the chain of a part.
    """

    batch: Any
    rows: Any
    columns: Any
    parts: Any


UNCUT = Cuts(1, 1, 1, 1)


def picked(numbers: Any, shape: tuple[int, ...], which: Any) -> Any:
    """Of numbers by candidate, or tuples of such, those at a flat index; a number of all candidates stays one.

    Args:
        numbers: arrays that broadcast to the shape, or have axes of their own before it.
        shape: of the candidates.
        which: flat indices.
    """
    if isinstance(numbers, tuple):
        return type(numbers)(*(picked(one, shape, which) for one in numbers))
    if np.ndim(numbers) == 0:
        return numbers
    own = numbers.shape[: max(0, numbers.ndim - len(shape))]
    whole = numbers if numbers.shape == (*own, *shape) else np.broadcast_to(numbers, (*own, *shape))
    return whole.reshape(*own, -1)[..., which]


BYTE = 8  # bits
GROUP, BYTES_GROUP = 16, 32


def usual_group(operands: FormatLike) -> int:
    """Products that a pass of the AMP unit adds to a partial: 16 of halves, twice as many of at most 8 bits."""
    return BYTES_GROUP if as_format(operands).bits <= BYTE else GROUP


def item_bytes(fmt: FormatLike) -> int:
    """Bytes of an element of a format.

    Raises:
        ValueError: unknown format, or one without a storage dtype.
    """
    known = fmt if isinstance(fmt, FloatFormat) else as_format(fmt)
    if known.dtype is None:
        raise ValueError(f"format {known.name} has no storage dtype: no tile can hold it")
    return known.dtype.itemsize


def stage_cycles(target: Target, terms: Any, results: Any, size: int) -> Ints:
    """Cycles of one vertex of a summing stage, numbers or arrays of them; one term is a conversion."""
    one = np.asarray(terms) == 1
    return np.where(one, cost.cast(target, results, size), cost.reduce(target, terms, results, size))
