"""Overlap: transfers with streaming memory pass beside the computation before and after what needs them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import ipu_core.graph.program as p
from ipu_core.graph.tensor import Variable

Transfer = p.RemoteLoad | p.RemoteStore

AHEAD = 4  # segments: the two moments of the next two tensors


@dataclass
class _Segment:
    """Loads, what is computed with them, and stores of what is made."""

    loads: list[p.RemoteLoad] = field(default_factory=list)
    steps: list[p.Program] = field(default_factory=list)
    stores: list[p.RemoteStore] = field(default_factory=list)


def overlapped(programs: Sequence[p.Program]) -> list[p.Program]:
    """The same programs with transfers beside computation, wherever they share no tensor with it.

    A load passes up to `AHEAD` segments before the one that needs it, a store beside the segment after the one that
    makes it: that much more than what is being computed with is on the tiles.
    """
    segments = _segments(programs)
    touched = [accessed(p.Sequence(*segment.steps, *segment.stores)) for segment in segments]
    loads: list[list[Transfer]] = [[] for _ in segments]
    at_once: list[list[Transfer]] = [[] for _ in segments]
    for number, segment in enumerate(segments):
        for load in segment.loads:
            first = number
            while first > max(0, number - AHEAD) and not _meet(load, segments[first - 1], *touched[first - 1]):
                first -= 1
            (loads if first < number else at_once)[first].append(load)
    result: list[p.Program] = []
    stores: list[p.RemoteStore] = []
    for number, segment in enumerate(segments):
        taken = {x.tensor.variable for x in (*loads[number], *at_once[number])} | touched[number][1]
        late = [store for store in stores if store.tensor.variable not in taken]
        result += [store for store in stores if store not in late]
        result += at_once[number]
        beside: list[Transfer] = [*late, *loads[number]]
        if segment.steps:
            steps = p.Sequence(*segment.steps)
            result.append(p.Overlap(steps, *beside) if beside else steps)
        else:
            result += beside
        stores = segment.stores
    return [*result, *stores]


def _meet(load: p.RemoteLoad, segment: _Segment, reads: set[Variable], writes: set[Variable]) -> bool:
    """Whether a load has to wait for what a segment does: it uses the tensor, or stores what is loaded."""
    return load.tensor.variable in reads | writes or load.buffer in [store.buffer for store in segment.stores]


def _segments(programs: Iterable[p.Program]) -> list[_Segment]:
    segments = [_Segment()]
    for program in programs:
        now = segments[-1]
        if isinstance(program, p.RemoteLoad):
            if now.steps or now.stores:
                segments.append(_Segment())
            segments[-1].loads.append(program)
        elif isinstance(program, p.RemoteStore):
            now.stores.append(program)
        else:
            if now.stores:
                segments.append(_Segment())
            segments[-1].steps.append(program)
    return segments


def accessed(program: p.Program) -> tuple[set[Variable], set[Variable]]:
    """The variables that a program may read and those that it may write."""
    reads, writes = set[Variable](), set[Variable]()
    pending: list[p.Program] = [program]
    while pending:
        match pending.pop():
            case p.Sequence(steps):
                pending += steps
            case p.Whole(steps, computations):
                pending += steps
                reads |= {operand.variable for each in computations for operand in each.operands}
                writes |= {each.result.variable for each in computations}
            case p.Repeat(_, body) | p.Call(body):
                pending.append(body)
            case p.Overlap(inner, transfers):
                pending += [inner, *transfers]
            case p.If(predicate, then, otherwise):
                reads.add(predicate.variable)
                pending += [then, otherwise]
            case p.Execute(compute_set):
                for group in compute_set.groups:
                    for operand in group.operands.values():
                        (reads if operand.field.reads else set()).add(operand.variable)
                        (writes if operand.field.writes else set()).add(operand.variable)
            case p.Copy(source, destination):
                reads.add(source.variable)
                writes.add(destination.variable)
            case p.StreamCopy(stream, tensor):
                (writes if stream.to_device else reads).add(tensor.variable)
            case p.RemoteLoad(_, tensor):
                writes.add(tensor.variable)
            case p.RemoteStore(tensor):
                reads.add(tensor.variable)
            case other:
                raise NotImplementedError(f"no lowering makes {other!r}")
    return reads, writes
