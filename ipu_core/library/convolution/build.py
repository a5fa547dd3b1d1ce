"""Convolutions on tiles: chains on blocks of the result as a plan cuts it, then their parts summed in stages.

for every piece of the blocks in time, every turn of a tile's parts, every part, and every block of the result
    gather the images that the block's windows reach (halo included) and the block of the other operand
    ImageChains / WeightChains      per kernel position and 16 input channels / per 16 output positions
or of a weight gradient whose sums are not split, for every piece in time of its output positions
    gather the same of these positions alone
    WeightChains                    which goes on from what the piece before left
in stages, if there are parts or a conversion, for every piece of what a tile sums
    gather the parts of a piece
    SumBlocks
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Execute
from ipu_core.graph.tensor import Tensor
from ipu_core.graph.vertices import ComputeSet
from ipu_core.library.convolution.chains import ImageChains, SumBlocks, WeightChains
from ipu_core.placement.axis_blocks import Blocks, Segment
from ipu_core.placement.convolution import ConvPlan
from ipu_core.placement.convolution.conv_costs import sum_blocks
from ipu_core.placement.cuts import item_bytes
from lowprec.integers import ceil_div
from lowprec.values.windows import BlockPlace


def windows_of(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int],
               count: tuple[int, int]) -> Tensor:  # fmt: skip
    """Padded images (n, h, w, groups, C) as (n, rows, columns, kernel rows, kernel columns, groups, C): a view."""
    n, high, wide, *rest = x.strides
    strides = (n, high * stride[0], wide * stride[1], high * dilation[0], wide * dilation[1], *rest)
    return Tensor(x.variable, x.offset, (x.shape[0], *count, *kernel, *x.shape[3:]), strides)


class ConvolutionTensors(NamedTuple):
    """What a convolution, or the gradient of its weight, reads and writes.

    Attributes:
        windows: (n, rows, columns, kernel rows, kernel columns, groups, C), see `windows_of`.
        other: a weight (kernel rows, kernel columns, groups, C, N), or a gradient (n, rows, columns, groups, N).
        out: the result with the axes of the plan's kind, mapped.
        first_batch: the number of the first convolution group among the random bits.
    """

    windows: Tensor
    other: Tensor
    out: Tensor
    first_batch: int = 0


def convolve(
    graph: Graph,
    tensors: ConvolutionTensors,
    plan: ConvPlan,
    *,
    stochastic: bool = False,
    operation: int | None = None,
    name: str = "convolution",
) -> list[Copy | Execute]:
    """Adds the vertices of a convolution or of a weight gradient.

    Args:
        graph: where; its target must be the plan's.
        tensors: operands and result.
        plan: from `plan_convolution`, for these sizes.
        stochastic: round stochastically after every group, stage and at the end.
        operation: number folded into the key of the random bits.
        name: of the compute sets.

    Returns:
        The programs to run, in order.

    Raises:
        ValueError: a plan for another target or other sizes.
    """
    if graph.target != plan.target:
        raise ValueError(f"the plan is for {plan.target.name}, the graph for {graph.target.name}")
    if tensors.out.shape != plan.convolution.result:
        raise ValueError(f"a result of shape {tensors.out.shape} is not the plan's:\n{plan.words()}")
    if not tensors.out.size:
        return []
    builder = _ConvolutionBuilder(graph, tensors, plan, stochastic, operation, name)
    return builder.chains() if plan.direct and len(plan.chain) == 1 else builder.in_parts()


class _ConvolutionBuilder(NamedTuple):
    """The arguments of `convolve`."""

    graph: Graph
    tensors: ConvolutionTensors
    plan: ConvPlan
    stochastic: bool
    operation: int | None
    name: str

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks along the result's axes."""
        return tuple(axis.count for axis in self.plan.blocks)

    @property
    def parts_each(self) -> int:
        """Parts on one tile."""
        return ceil_div(len(self.plan.parts), self.plan.placement.parts)

    def tiles(self, part: Any, *places: Any) -> Ints:
        """Tiles of blocks, given the number of their part and their place along each axis."""
        at = np.asarray(part) // self.parts_each
        for place, count in zip(places, self.grid, strict=True):
            at = at * count + place
        return np.asarray(at, np.int64)

    def chains(self, partials: Tensor | None = None) -> list[Copy | Execute]:
        """The chains of all parts, straight into the result or into partials (parts, result axes), step by step."""
        each, programs = self.parts_each, list[Copy | Execute]()
        at_once = ceil_div(each, self.plan.placement.serial_parts)
        # each piece and turn is a compute set of its own: a tile gathers the operands of one at a time
        for pieces in itertools.product(*(range(axis.turns) for axis in self.plan.blocks)):
            for turn in range(ceil_div(each, at_once)):
                compute_set = self.graph.add_compute_set(self.name)
                for number in range(len(self.plan.parts)):
                    # a tile has neighbouring parts (`tiles`), of which so many are in its memory at once
                    if number % each // at_once == turn:
                        self._part(
                            compute_set, number, pieces, self.tensors.out if partials is None else partials[number]
                        )
                programs.append(Execute(compute_set))
        return programs

    def in_pieces(self, partials: Tensor) -> list[Copy | Execute]:
        """The one chain of every element piece by piece: each goes on from the partial that the one before left."""
        programs, count = list[Copy | Execute](), len(self.plan.chain)
        for pieces in itertools.product(*(range(axis.turns) for axis in self.plan.blocks)):
            for turn, span in enumerate(self.plan.chain):
                compute_set = self.graph.add_compute_set(self.name)
                ends = self.plan.direct and turn == count - 1
                target = self.tensors.out if ends else partials[0]
                self._part(compute_set, 0, pieces, target, span, partials[0] if turn else None)
                programs.append(Execute(compute_set))
        return programs

    def _part(
        self,
        compute_set: ComputeSet,
        number: int,
        pieces: tuple[int, ...],
        target: Tensor,
        piece: tuple[int, int] | None = None,
        partial: Tensor | None = None,
    ) -> None:
        """Adds the vertices of one part, or of a piece of its chain, for a piece of every block of the result."""
        part = piece or self.plan.parts[number]
        x, other, span, first = self._operands(part)
        codelet = ImageChains if self.plan.convolution.kind == "image" else WeightChains
        for block in _blocks(self.plan.blocks, pieces):
            # an axis for each: numbers of blocks become tiles by broadcasting
            places = np.ix_(*(np.arange(segment.first, segment.first + segment.runs) for segment in block))
            fields = {
                "x": _field(x, block, codelet.into[0]),
                "other": _field(other, block, codelet.into[1]),
                "out": _field(target, block, (-5, -4, -3, -2, -1)),
            }
            if partial is not None:
                fields["partial"] = _field(partial, block, (-5, -4, -3, -2, -1))
            params = {
                "accumulation": self.plan.accumulation,
                "convolution": self.plan.convolution,
                "place": self._place(block, first),
                "steps": tuple(segment.step for segment in block),
                "span": span,
                "terms": part[1] - part[0],
                "stochastic": self.stochastic,
            }
            self.graph.add_vertices(compute_set, codelet, self.tiles(number, *places), fields, params, self.operation)

    def _place(self, block: tuple[Segment, ...], first: int) -> BlockPlace:
        """Where a block lies in the whole result, for random bits."""
        _, wide, deep = self.plan.convolution.result[:3]
        starts = [segment.start for segment in block]
        # random bits count rows and columns of the whole result, so that they do not depend on the cut
        row = (starts[0] * wide + starts[1]) * deep + starts[2]
        return BlockPlace(row, starts[4], self.tensors.first_batch + starts[3], wide * deep, deep, first)

    def _operands(self, part: tuple[int, int]) -> tuple[Tensor, Tensor, tuple[int, ...], int]:
        """The pieces of both operands that a part needs, its terms in them, and the number of its first group."""
        shape, order = self.plan.convolution, self.plan.accumulation
        if max(len(self.plan.parts), len(self.plan.chain)) == 1:
            return self.tensors.windows, self.tensors.other, (), 0
        if shape.kind == "image":
            # a part may end in the middle of a kernel position's channel groups: the box around it holds more groups
            group = shape.group(order)
            (rows, columns, groups), skipped = _covering(part, (*shape.inner[:2], ceil_div(shape.inner[2], group)))
            channels = slice(groups.start * group, groups.stop * group)
            x, weight = (
                self.tensors.windows[:, :, :, rows, columns, :, channels],
                self.tensors.other[rows, columns, :, channels],
            )
            return x, weight, (part[0] - skipped, part[1] - skipped), part[0]
        pieces, skipped = _covering(part, shape.inner)
        # counted within the box that the vertices gather
        span = part[0] - skipped, part[1] - skipped
        return self.tensors.windows[pieces], self.tensors.other[pieces], span, part[0] // shape.group(order)

    def in_parts(self) -> list[Copy | Execute]:
        """Chains into partials, which are summed stage by stage."""
        plan, order = self.plan, self.plan.accumulation
        count = len(plan.parts)
        partials = self.graph.add_variable(
            order.accumulate, (count, *plan.convolution.result), f"{self.name}: partials", temporary=True
        )
        cuts = [np.arange(0, axis.size + axis.block, axis.block).clip(max=axis.size) for axis in plan.blocks]
        # partials lie on the tile that makes them: chains write without an exchange
        borders = [np.append(np.arange(0, count, self.parts_each), count), *cuts]
        places = np.ix_(*(np.arange(len(border) - 1) for border in borders[1:]))
        numbers = borders[0][:-1].reshape(-1, 1, 1, 1, 1, 1)
        self.graph.map_blocks(partials, borders, self.tiles(numbers, *places))
        if len(plan.chain) > 1:
            programs = self.in_pieces(partials)
            if plan.direct:
                return programs
        else:
            programs = self.chains(partials)
        counted = 0
        stages = order.stage_runs(count)
        for number, runs in enumerate(stages):
            final = number == len(stages) - 1
            partials = self._stage(partials, runs, final, counted, programs)
            counted += len(runs)
        return programs

    def _stage(
        self, parts: Tensor, runs: tuple[tuple[int, int], ...], final: bool, counted: int, programs: list[Any]
    ) -> Tensor:
        """Sums runs of parts, to the result or to the next stage's parts."""
        order, result = self.plan.accumulation, self.plan.convolution.result
        name = f"{self.name}: {'sum parts' if len(self.plan.parts) > 1 else 'convert'}"
        # sums have blocks of their own: as many tiles as there are add parts up, not those of one part alone
        *axes, outputs = sum_blocks(self.graph.target, result, len(self.plan.parts) * item_bytes(order.accumulate))
        counts = tuple(axis.count for axis in (*axes, outputs))
        # an axis of slots, as an intermediate stage has one for each run
        to = self.tensors.out[None]
        if not final:
            to = self.graph.add_variable(order.accumulate, (len(runs), *result), name, temporary=True)
            *cuts, last = (
                np.arange(0, axis.size + axis.block, axis.block).clip(max=axis.size) for axis in (*axes, outputs)
            )
            tiles = np.arange(math.prod(counts)).reshape(1, *counts[:3], 1, counts[3])
            self.graph.map_blocks(to, [np.array([0, len(runs)]), *cuts, np.array([0, result[3]]), last], tiles)
        for pieces in itertools.product(*(range(axis.turns) for axis in (*axes, outputs))):
            compute_set = self.graph.add_compute_set(name)
            for (slot, run), block, (number, share) in itertools.product(
                enumerate(runs), _blocks(tuple(axes), pieces[:3]), _shares(outputs, pieces[3])
            ):
                numbers = [np.arange(segment.first, segment.first + segment.runs) for segment in block]
                tiles = np.ravel_multi_index((*np.ix_(*numbers), np.array(number)), counts)
                ends = Segment(0, 1, 0, result[3], result[3]), share
                fields = {
                    "parts": _field(parts[run[0] : run[1]], (*block, *ends), (-5, -4, -3, -2, -1), 3),
                    "out": _field(to[slot], (*block, *ends), (-5, -4, -3, -2, -1), 3),
                }
                params = {
                    # an intermediate sum has a number of its own over all stages, and with it random bits of its own
                    "accumulation": order, "place": self._place((*block, *ends), 0), "final": final,
                    "index": 0 if final else counted + slot, "steps": tuple(segment.step for segment in block),
                    "stochastic": self.stochastic,
                }  # fmt: skip
                self.graph.add_vertices(compute_set, SumBlocks, tiles, fields, params, self.operation)
            programs.append(Execute(compute_set))
        return to


def _shares(outputs: Blocks, piece: int) -> list[tuple[int, Segment]]:
    """What a turn covers of the outputs: of every block, by its number."""
    found = []
    for number in range(outputs.count):
        start, end = number * outputs.block + piece * outputs.piece, min((number + 1) * outputs.block, outputs.size)
        if start < end:
            found.append((number, Segment(0, 1, start, 0, min(outputs.piece, end - start))))
    return found


def _blocks(axes: tuple[Blocks, ...], pieces: tuple[int, ...] | None = None) -> Iterator[tuple[Segment, ...]]:
    """Blocks of one shape: whole ones and short last ones of every axis, or the same of one piece in time of each."""
    return itertools.product(
        *(axis.segments(piece) for axis, piece in zip(axes, pieces or (0,) * len(axes), strict=True))
    )


def _field(tensor: Tensor, block: tuple[Segment, ...], axes: Sequence[int | None], vertex_axes: int = 5) -> Tensor:
    """The field of vertices: vertex axes along the result's axes, then the tensor's own, cut along those in `axes`."""
    offset, shape, strides = tensor.offset, list(tensor.shape), tensor.strides
    outer: list[int] = []
    for segment, axis in zip(block, axes, strict=True):
        if axis is None:
            outer.append(0)
            continue
        offset += segment.start * strides[axis]
        shape[axis] = segment.length
        outer.append(segment.step * strides[axis])
    runs = tuple(segment.runs for segment in block)[:vertex_axes]
    return Tensor(tensor.variable, offset, (*runs, *shape), (*outer[:vertex_axes], *strides))


def _covering(span: tuple[int, int], shape: tuple[int, ...]) -> tuple[tuple[slice, ...], int]:
    """The smallest box of whole trailing axes that holds the indices [span) of an array in C order.

    Returns:
        A slice per axis, and the number of the box's first index.
    """
    if len(shape) == 1:
        return (slice(*span),), span[0]
    inner = math.prod(shape[1:])
    first, last = span[0] // inner, ceil_div(span[1], inner)
    # more than one index of the first axis: the box takes the inner axes whole, though its ends need parts of them
    if last - first > 1:
        return (slice(first, last), *(slice(0, size) for size in shape[1:])), first * inner
    rest, skipped = _covering((span[0] - first * inner, span[1] - first * inner), shape[1:])
    return (slice(first, first + 1), *rest), first * inner + skipped
