"""Convolutions as the planner sees them: sizes, cuts over tiles, parts of the sums, cycles of a vertex.

A convolution (the gradient of its input is one too) has the result axes images, rows, columns, groups, outputs; its
terms are groups of at most 16 input channels of one kernel position. The gradient of its weight has the result axes
kernel rows, kernel columns, channels, groups, outputs; its terms are output positions. Blocks of the result and parts
of the sum are spread over tiles, one vertex each; a tile gathers the images' part that its windows reach, halo
included, and its block of the other operand.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from ipu_core.chip import cost
from ipu_core.chip.integers import Ints
from ipu_core.placement.axis_blocks import COLUMN_GRAIN, Blocks
from ipu_core.placement.cuts import Cuts, PlacementProblem
from lowprec import Accumulation
from lowprec.integers import ceil_div

Five = tuple[int, int, int, int, int]

GRAINS: Final = (1, 1, 1, 1, COLUMN_GRAIN)  # blocks of the result's axes are multiples of these
AXES: Final = {
    "image": ("images", "rows", "columns", "groups", "outputs"),
    "weight": ("kernel rows", "kernel columns", "channels", "groups", "outputs"),
}


@dataclass(frozen=True)
class Convolution:
    """The sizes of a convolution's sums.

    Attributes:
        kind: "image" (a convolution) or "weight" (the gradient of its weight).
        result: lengths of the result axes, see the module.
        inner: lengths that are summed over: (kernel rows, kernel columns, channels of a group) or (images, rows,
            columns) of output positions.
        stride, dilation: distances of windows and of kernel positions.
        operands: name of the wider operand's format.
    """

    kind: Literal["image", "weight"]
    result: Five
    inner: tuple[int, int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    operands: str

    def group(self, order: Accumulation) -> int:
        """Products between two roundings: never more than the channels of one kernel position."""
        group = order.group_of(math.prod(self.inner))
        return max(1, min(group, self.inner[2])) if self.kind == "image" else group

    def terms(self, order: Accumulation) -> int:
        """Groups of products of one element."""
        if self.kind == "image":
            return self.inner[0] * self.inner[1] * ceil_div(self.inner[2], self.group(order))
        return ceil_div(math.prod(self.inner), self.group(order))

    def footprint(self, block: Cuts, inner: Any = None) -> tuple[Any, Any]:
        """Elements of images and of the other operand that a block of the result is made of.

        Args:
            block: its lengths, see `along`.
            inner: lengths of what is summed over; default all of it.
        """
        (a0, a1, a2), groups, outputs = block.rows, block.batch, block.columns
        first, second, third = self.inner if inner is None else inner
        if self.kind == "image":
            high, wide = self._seen(0, a1, first), self._seen(1, a2, second)
            return a0 * high * wide * groups * third, first * second * groups * third * outputs
        high, wide = self._seen(0, second, a0), self._seen(1, third, a1)
        return first * high * wide * groups * a2, first * second * third * groups * outputs

    def box(self, order: Accumulation, terms: Any) -> tuple[Any, Any, Any]:
        """Lengths along what is summed over of the smallest box that holds so many terms, one after the other.

        The terms, see `part_spans`, begin at a multiple of their number.
        """
        group = self.group(order) if self.kind == "image" else 1
        a, b, c = self.inner[0], self.inner[1], ceil_div(self.inner[2], group)
        terms = np.maximum(1, np.asarray(terms))
        rows, fills = _covered(terms, max(1, b * c), a)
        columns, across = _covered(terms, max(1, c), b)
        deep = np.minimum(self.inner[2], group * terms)
        return rows, np.where(fills, b, columns), np.where(fills | across, self.inner[2], deep)

    def seen(self) -> tuple[int, ...]:
        """Shape of the padded images (n, h, w, channels) that all windows reach."""
        images, rows, columns = self.result[:3] if self.kind == "image" else self.inner
        kernel = self.inner if self.kind == "image" else self.result
        channels = self.result[3] * (self.inner[2] if self.kind == "image" else self.result[2])
        return images, self._reach(0, rows, kernel[0]), self._reach(1, columns, kernel[1]), channels

    def _reach(self, axis: int, windows: Any, kernel: Any) -> Any:
        return (windows - 1) * self.stride[axis] + (kernel - 1) * self.dilation[axis] + 1

    def _seen(self, axis: int, windows: Any, kernel: Any) -> Any:
        """Indices of an image that windows see: between kernels of a position, say, strides leave some out."""
        return np.minimum(self._reach(axis, windows, kernel), windows * kernel)

    def words(self) -> str:
        """The sizes in words."""
        axes = " x ".join(f"{n} {name}" for n, name in zip(self.result, AXES[self.kind], strict=True))
        over = "kernel rows x kernel columns x channels" if self.kind == "image" else "images x rows x columns"
        return f"{axes}, summed over {' x '.join(map(str, self.inner))} {over}, {self.operands}"


@dataclass(frozen=True)
class ConvPlacement:
    """Where a convolution's sums lie: cuts of the result's five axes, and of the parts of the sums.

    Cuts that would be empty vanish.

    Args:
        cuts: of the result's axes, over tiles.
        parts: of the parts of the sums, over tiles.
        serial: pieces in which a tile works off its block of the result, one after another, to save memory.
        serial_parts: pieces in which it works off its parts, each with its own channels or kernel positions (output
            positions of a weight gradient), for every piece of the block; of a weight gradient whose sums are not
            split, pieces of its one chain, see `chain_pieces`.

    Raises:
        ValueError: a number below 1.
    """

    cuts: Five = (1, 1, 1, 1, 1)
    parts: int = 1
    serial: Five = (1, 1, 1, 1, 1)
    serial_parts: int = 1

    def __post_init__(self) -> None:
        for value in (*self.cuts, self.parts, *self.serial, self.serial_parts):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"ConvPlacement: cuts must be ints of at least 1, not {value!r}")

    @property
    def tiles(self) -> int:
        """Tiles the cuts ask for (fewer where cuts vanish)."""
        return math.prod(self.cuts) * self.parts


def along(numbers: Any, parts: Any = 1) -> Cuts:
    """Numbers by the result's five axes in the words of products: three axes of rows, a batch of groups, columns."""
    *rows, groups, outputs = numbers
    return Cuts(groups, np.asarray(rows), outputs, parts)


def _covered(terms: Any, each: int, most: int) -> tuple[Any, Any]:
    """Over how many runs of `each` terms so many lie, and whether that is more than a piece of one run."""
    more = (terms >= each) | (each % terms > 0)
    runs = np.where(terms % each == 0, terms // each, ceil_div(terms, each) + 1)
    return np.where(more, np.minimum(runs, most), 1), more


def blocks(convolution: Convolution, placement: ConvPlacement) -> tuple[Blocks, ...]:
    """The result's axes cut into blocks and their pieces in time, outputs in whole groups of AMP output channels."""
    sizes = zip(convolution.result, placement.cuts, placement.serial, GRAINS, strict=True)
    return tuple(Blocks.cut(size, count, serial, grain) for size, count, serial, grain in sizes)


def part_spans(convolution: Convolution, order: Accumulation) -> tuple[tuple[int, int], ...]:
    """First and last (exclusive) term of every part: groups of products, or output positions of a weight gradient."""
    if convolution.kind == "weight":
        size = math.prod(convolution.inner)
        return order.parts(size) or ((0, 0),)
    terms = convolution.terms(order)
    each = max(1, ceil_div(terms, order.splits))
    return tuple((start, min(terms, start + each)) for start in range(0, terms, each)) or ((0, 0),)


def goes_on(convolution: Convolution, order: Accumulation) -> bool:
    """Whether a chain can be cut in time: that of a weight gradient's whole sum, between two groups of positions.

    What the piece before left is a partial of the chain, which the next one goes on from, as PopLibs adds up serial
    splits of its input channels, which in a weight gradient are the images.
    """
    size = math.prod(convolution.inner)
    return convolution.kind == "weight" and len(part_spans(convolution, order)) == 1 and convolution.group(order) < size


def most_pieces(convolution: Convolution, order: Accumulation) -> int:
    """Into how many pieces the parts of a sum, or its one chain, can be cut in time."""
    if goes_on(convolution, order):
        return ceil_div(math.prod(convolution.inner), convolution.group(order))
    return len(part_spans(convolution, order))


def piece_length(convolution: Convolution, order: Accumulation, pieces: Any) -> Any:
    """Positions of at most so many pieces (ints or an array) of a weight gradient's one chain: whole groups.

    Of whole images, or of whole rows, where these are whole groups too and few enough: what they see is a box, and no
    piece sees another's.
    """
    group, (_, high, wide) = convolution.group(order), convolution.inner
    size = math.prod(convolution.inner)
    wanted = ceil_div(size, np.maximum(1, pieces))
    found = group * ceil_div(wanted, group)
    for line in (wide, high * wide):
        grain = math.lcm(group, line)
        found = np.where(wanted >= grain, grain * ceil_div(wanted, grain), found)
    return np.minimum(found, size)


def chain_pieces(convolution: Convolution, order: Accumulation, serial_parts: int) -> tuple[tuple[int, int], ...]:
    """First and last (exclusive) position of every piece of a weight gradient's one chain; of others the whole sum."""
    if not goes_on(convolution, order):
        return (part_spans(convolution, order)[0],)
    size = math.prod(convolution.inner)
    each = int(piece_length(convolution, order, serial_parts))
    return tuple((start, min(size, start + each)) for start in range(0, size, each))


def even_splits(convolution: Convolution, order: Accumulation) -> list[int]:
    """Numbers of parts, ascending, whose parts are boxes of equal size along the axes that are summed over."""
    group = convolution.group(order)
    a, b, c = convolution.inner
    weight = convolution.kind == "weight"
    sizes = (a, b, c if weight else ceil_div(c, group))
    whole, found = math.prod(sizes), {1}
    if whole == 0:  # no window reaches the input, or there are no channels: nothing is added up
        return [1]
    for axis, size in enumerate(sizes):
        inner = math.prod(sizes[axis + 1 :])
        lengths = [n * inner for n in range(1, size) if size % n == 0]
        found |= {whole // n for n in lengths if not (weight and n % group)}
    return sorted(found)


def combined(problem: PlacementProblem[Convolution], block: Cuts) -> Any:
    """How many convolution groups of a block share the AMP unit's passes.

    Groups with few channels lie side by side in the unit's inputs and outputs, with zero weights between one group's
    inputs and another's outputs (PopLibs' combineConvGroupsFactor): the zeros' products leave every finite sum as it
    is, and each is still rounded once per kernel position. Kernel positions are not folded into the inputs: that would
    round sums less often than the contract says. A weight gradient would gain nothing, since its inputs are positions.
    """
    target, convolution, order = problem
    if convolution.kind == "weight":
        return np.ones_like(block.batch)
    unit = cost.amp_shape(target, convolution.operands, order.accumulate.name)
    # As many as the unit's inputs and its outputs hold side by side, whichever are fewer.
    most = max(1, unit.inputs // convolution.group(order))
    return np.maximum(1, np.minimum(np.minimum(block.batch, COLUMN_GRAIN // np.maximum(1, block.columns)), most))


def chain_cycles(problem: PlacementProblem[Convolution], block: Cuts, terms: Any) -> Ints:
    """Cycles of one vertex: so many terms (see `part_spans`) for every element of a block of the result."""
    target, convolution, order = problem
    unit = cost.amp_shape(target, convolution.operands, order.accumulate.name)
    group = convolution.group(order)
    if convolution.kind == "image":
        passes = terms * ceil_div(group, unit.inputs)
    else:
        passes = ceil_div(terms, min(group, unit.inputs))
    together = combined(problem, block)
    positions = math.prod(block.rows)
    return cost.convolution(
        target, positions, passes, together * block.columns, ceil_div(block.batch, together), shape=unit
    )


def placed_grid(convolution: Convolution, order: Accumulation, placement: ConvPlacement) -> tuple[int, ...]:
    """Blocks along (parts, and the result's axes), empty ones left out."""
    parts = len(part_spans(convolution, order))
    each = ceil_div(parts, placement.parts)
    return (ceil_div(parts, each), *(max(1, axis.count) for axis in blocks(convolution, placement)))
