"""Inline: a traced function added to a user's graph, at tensors and on tiles of that."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.compile.lowering.lower import Lowered, lower
from ipu_core.compile.planning import LEAST_ROOM, plan
from ipu_core.compile.schedule.residency import scheduled
from ipu_core.errors import UnsupportedByTarget
from ipu_core.graph import program as p
from ipu_core.graph.adoption import adopt, in_place_of
from ipu_core.graph.graph import Graph
from ipu_core.graph.mapping import TileMapping
from ipu_core.graph.tensor import Tensor, Variable, whole
from ipu_core.graph.vertices import ComputeSet
from ipu_core.ir.block import Block, Type, format_name
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.ops import INT32
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten, map_leaves, paths, unflatten
from ipu_core.ir.trace.tracing import trace
from lowprec import Accumulation
from lowprec import float32 as FLOAT32
from lowprec.checks import expect, integer, integers, listed, shown, truth
from lowprec.processor import in_default_state

BYTES: Final = "float8"
"""How the names of all formats of 8 bits begin."""
ITERATIONS: Final = 1 << 32
"""From here on numbers that are folded into the key are those of iterations."""


@in_default_state
def add_traced(
    graph: Graph,
    f: Callable[..., Any],
    tensors: Sequence[Any],
    *,
    precision: Precision | str,
    tiles: ArrayLike | None = None,
    operation: int | None = None,
    accumulations: Mapping[int, Accumulation] | None = None,
    temporary: bool = False,
    name: str = "",
) -> tuple[p.Program, Any]:
    """Adds what a plain function of arrays computes to a graph: all that `nn` has, and what `value_and_grad` gives.

    The function is traced, typed by the precision, planned and lowered. A tensor that does not lie as the plan wants it
    is copied there each time the program runs, which is in the account; what lies so, such as a result of another call
    on the same tiles, is read where it is. A variable on no tile yet, given whole, is mapped as the plan
    wants it. Nothing is written but the results. The plan leaves room for the variables that are mapped to these tiles
    by then.

    The bits are those of ``execute(block, ..., key=key.fold_in(operation), accumulations=orders)``, where `block` is
    ``Precision.parse(precision).apply(trace(f, ...), inputs=[...])``: traced with float32 for every float, as a
    training step is, and typed with the tensors' formats for its inputs. Its orders are `accumulations`, or else
    ``plan(block, graph.target).accumulations``; `execute` adds in one part where it is given none. `key` is the
    engine's of the run, or of the iteration of a `Repeat`; an equation that draws folds its own number into that. A
    scan is a `Repeat` too: in a `Repeat` of the graph it is one within another, and draws for its places but the first
    what no `execute` does. Tiles and mappings decide no bit.

    Args:
        graph: where; what is refused leaves it as it was.
        f: called with stand-ins for arrays, one argument for each entry of `tensors`.
        tensors: the arguments, a tuple or list: each a tensor of the graph, or such nested in dicts, lists and tuples;
            views of any kind, mapped in any way.
        precision: a Precision or its name.
        tiles: numbers of the tiles that hold and compute what is added, a range or any list; None: all.
        operation: number below 2^32 that is folded into the key; None: one that no other call has, and no vertices.
            Programs with one number draw the same bits, and so does one that runs twice in an iteration.
        accumulations: orders of sums by the number of the equation, as for `plan`; None: those of its rule.
        temporary: whether the results may share memory outside their lifetime; the host cannot read them then.
        name: before the names of operations in profiles and messages; "": that of f.

    Returns:
        The program, to be run any number of times, and the results: tensors nested as f gives them. Where f gives an
        array twice, or an array and a view of it, two of them have the same elements.

    Raises:
        TypeError: an argument of another kind; a leaf that is no Tensor; a result that is no array and no number.
        ValueError: a tensor of another graph, or of truth values or unsigned integers; tiles that the chip lacks, or
            one twice; a result that is an argument, or a view of one; shapes that do not fit.
        UnmappedTensor: some elements of a tensor's variable lie on no tile, or none of one that is not given whole.
        UnsupportedByTarget: the chip has no unit for a format; none has one for block formats.
    """
    expect(Graph, graph=graph)
    expect(str, name=name)
    truth("temporary", temporary)
    where, given = _tiles(graph.target, tiles), _given(graph, tensors)
    block = Precision.parse(precision).apply(_traced(f, tensors), inputs=[tensor.format for tensor in given])
    _check_results(block)
    _check_formats(block, graph.target)
    chip = _chip(graph, where, {tensor.variable for tensor in given})
    block = scheduled(block, chip)
    # Results of a call are arguments of others, whose plans know nothing of this one.
    lowered = lower(block, plan(block, chip, accumulations, apart=False), share=True)
    number = next(graph.operations) if operation is None else integer("operation", operation, 0, ITERATIONS - 1)
    # All that refuses is above: from here on the graph changes.
    _map_as_planned(lowered, given, where)
    instead = _instead(lowered, given, where)
    called = name or _name_of(f)
    steps = tuple(_taken(lowered.program, lowered, given, instead, called))
    results = [lowered.tensors[var] for var in block.outputs]
    for tensor in results:
        tensor.variable.temporary = (
            temporary and not tensor.variable.constant
        )  # lowering makes every result a temporary, which no host reads
    steps = tuple(replace(step, operation=number) if isinstance(step, p.Repeat) else step for step in steps)
    inside = {each for step in steps if isinstance(step, p.Repeat) for each in _compute_sets(step)}
    adopt(graph, lowered.graph, where, instead=instead, name=called, operation=number, inside=inside)
    assert block.result is not None
    return p.Sequence(*steps), unflatten(block.result, results)


def _tiles(target: Target, tiles: ArrayLike | None) -> Ints:
    """The tiles to be used.

    Raises:
        TypeError: no sequence of integers.
        ValueError: none, one twice, or one that the chip lacks.
    """
    if tiles is None:
        return np.arange(target.tiles)
    where = integers("tiles", listed("tiles", tiles))
    if where.ndim != 1 or not where.size:
        raise ValueError(f"tiles must be a range or a list of tile numbers, one at least, not {shown(tiles)}")
    if where.min() < 0 or where.max() >= target.tiles:
        raise ValueError(f"tiles {where.min()}..{where.max()} are outside 0..{target.tiles - 1} of {target.name}")
    if (twice := where.size - np.unique(where).size) > 0:
        raise ValueError(f"tiles must differ: {twice} of {shown(tiles)} are there already")
    return where


def _chip(graph: Graph, where: Ints, counted: Collection[Variable]) -> Target:
    """As many tiles, with the memory that the graph's lasting variables leave on the fullest of them, to plan for.

    Args:
        graph: which lies on the tiles.
        where: their numbers.
        counted: variables that the plan counts itself.
    """
    # Temporaries are left out: their memory may be shared, so what they take from this plan is not known.
    held = np.zeros(graph.target.tiles, np.int64)
    for variable in graph.variables:
        if not variable.temporary and variable not in counted:
            for starts, ends, tiles in variable.pieces:
                np.add.at(held, tiles, (ends - starts) * variable.dtype.itemsize)
    memory = graph.target.tile_memory
    return replace(
        graph.target, tiles=where.size, tile_memory=max(memory - int(held[where].max()), memory // LEAST_ROOM)
    )


def _given(graph: Graph, tensors: Sequence[Any]) -> list[Tensor]:
    """The leaves of the arguments.

    Raises:
        TypeError, ValueError, UnmappedTensor: one is no mapped tensor of the graph with elements that are traced.
    """
    # Iterating over a Tensor would give its rows, over a dict its keys.
    if isinstance(tensors, Tensor | dict):
        raise TypeError(f"tensors has an entry for each argument of f: of one, a {type(tensors).__name__}, give (x,)")
    leaves, tree = flatten(listed("tensors", tensors))
    for tensor, path in zip(leaves, paths(tree), strict=True):
        expect(Tensor, **{f"tensors: {path}": tensor})
        if tensor not in graph:
            raise ValueError(f"tensors: {path}: {tensor.variable} is of another graph")
        if tensor.format in ("bool", "uint32"):
            raise ValueError(f"tensors: {path} is {tensor.format}; f computes with floats and int32")
        if tensor.variable.pieces or not _is_whole(tensor):
            _ = tensor.variable.mapping  # raises where elements lie nowhere
    return leaves


def _traced(f: Callable[..., Any], tensors: Sequence[Any]) -> Block:
    """The function at the tensors' shapes, every float a float32 until the precision is applied."""

    def stand_in(tensor: Tensor) -> Type:
        return Type(tensor.shape, INT32 if tensor.format == INT32 else FLOAT32)

    return trace(f, *(map_leaves(stand_in, each) for each in tensors))


def _check_results(block: Block) -> None:
    """Refuses results that share memory with an argument: nothing would be computed for them."""
    views = lifetimes(block).views
    for number, var in enumerate(block.outputs):
        if (root := views[var].root) in block.inputs:
            raise ValueError(
                f"result {number} of f is its argument {root.name}, or a view of it: that tensor is at hand, and "
                "nothing is computed"
            )


def _check_formats(block: Block, target: Target) -> None:
    """Refuses values in formats that no unit of the chip computes with."""
    has = {"float32", "float16", "int32"}
    made = [(equation.name, equation.output) for equation in equations_of(block)]
    for what, var in [*((f"argument {var.name}", var) for var in block.inputs), *made]:
        name = format_name(var.type.format)
        if name not in has and not (name.startswith(BYTES) and any(row[0] == BYTES for row in target.macs)):
            raise UnsupportedByTarget(f"{what} is {name}, for which {target.name} has no unit")


def _is_whole(tensor: Tensor) -> bool:
    """Whether it is a variable as it was added."""
    added = whole(tensor.variable)
    return (tensor.offset, tensor.shape, tensor.strides) == (added.offset, added.shape, added.strides)


def _map_as_planned(lowered: Lowered, given: Sequence[Tensor], where: Ints) -> None:
    """Maps arguments' variables that lie nowhere yet as the plan wants them; twice given, as for the first place."""
    for var, tensor in zip(lowered.block.inputs, given, strict=True):
        if not tensor.variable.pieces:
            planned = lowered.tensors[var].variable.mapping
            tensor.variable.map_as(TileMapping(planned.starts, planned.ends, where[planned.tiles]))


def _instead(lowered: Lowered, given: Sequence[Tensor], where: Ints) -> dict[Variable, Variable]:
    """The planned variables whose arguments already lie as the plan wants them, each with the variable given for it."""
    found = {}
    for var, tensor in zip(lowered.block.inputs, given, strict=True):
        wanted = lowered.tensors[var]
        # A view of a part, or in another order, has other elements in the plan's places.
        if tensor.offset or tensor.size != tensor.variable.size or tensor.strides != wanted.strides:
            continue
        lies, planned = tensor.variable.mapping, wanted.variable.mapping
        # The ends follow from the starts: both mappings cover all elements without a gap.
        if np.array_equal(lies.starts, planned.starts) and np.array_equal(lies.tiles, where[planned.tiles]):
            found[wanted.variable] = tensor.variable
    return found


def _taken(
    program: p.Program, lowered: Lowered, given: Sequence[Tensor], instead: Mapping[Variable, Variable], name: str
) -> Iterator[p.Program]:
    """A lowered program for the graph that takes it: copies of arguments for their streams, no result streams."""
    match program:
        case p.Sequence(steps):
            for step in steps:
                yield from _taken(step, lowered, given, instead, name)
        case p.Execute():
            yield program  # `adopt` changes the operands of its vertices
        case p.Copy(source, to, what, reorders):
            yield p.Copy(in_place_of(source, instead), in_place_of(to, instead), f"{name}.{what}", reorders)
        case p.Copies(copies):
            taken = (one for copy in copies for one in _taken(copy, lowered, given, instead, name))
            yield p.Copies(*(one for one in taken if isinstance(one, p.Copy)))
        case p.WriteUndef(tensor):
            yield p.WriteUndef(in_place_of(tensor, instead))
        case p.Repeat(count, body, _, backwards):
            inner = p.Sequence(*_taken(body, lowered, given, instead, name))
            yield p.Repeat(count, inner, backwards=backwards)
        case p.StreamCopy(stream, tensor):
            if stream.to_device and tensor.variable not in instead and tensor.size:
                number = lowered.feeds.index(stream)
                if lowered.block.inputs[number] in lifetimes(lowered.block).last:  # it is read
                    yield p.Copy(given[number], tensor, f"{name}.{tensor.variable.name}")
        case other:
            raise NotImplementedError(f"{type(other).__name__} in a function that is added to a graph")


def _compute_sets(program: p.Program) -> Iterator[ComputeSet]:
    """Those of a loop, to whose key the loop itself adds the number of the operation."""
    match program:
        case p.Sequence(steps):
            for step in steps:
                yield from _compute_sets(step)
        case p.Repeat(_, body):
            yield from _compute_sets(body)
        case p.Execute(compute_set):
            yield compute_set


def _name_of(f: Callable[..., Any]) -> str:
    """What a function is called in its own code; that of a lambda is none."""
    name = str(getattr(f, "__name__", ""))
    return name if name.isidentifier() else "traced"
