"""Overlap: transfers with streaming memory pass beside the computation before and after what needs them."""

from collections.abc import Sequence
from dataclasses import dataclass

import ipu_core.graph.program as p
from ipu_core.graph.streams import RemoteBuffer
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.ir.liveness.stays import occupancy


@dataclass
class _Stay:
    """A tensor on the tiles for a time, that is loaded or stored.

    Attributes:
        load: place of its load among the programs; None: it is made there.
        first: the first place where it is, or may be loaded.
        last: the last place where it is needed; its store has begun by then.
    """

    variable: Variable
    load: int | None
    first: int
    last: int


def overlapped(programs: Sequence[p.Program], most: int, start: int = 0) -> list[p.Program]:
    """The same programs with transfers beside computation.

    A load is moved forward for as long as all that is streamed and on the tiles, or coming, takes no more than `most`
    bytes: one tensor's state, and as much that is on its way.

    Args:
        programs: in order.
        most: bytes; what is needed at once may take more.
        start: the place before which no load is moved.
    """
    moved = [isinstance(program, p.RemoteLoad | p.RemoteStore) for program in programs]
    if not any(moved):
        return list(programs)
    stays = _stays(programs)
    spans = [(stay.first if stay.load is None else stay.load, stay.last) for stay in stays]
    live = occupancy(spans, [stay.variable.nbytes for stay in stays], len(programs))
    early: dict[int, list[p.Program]] = {}
    least = 0  # loads keep their order, in which they share the channel
    for stay in stays:
        if stay.load is None:
            continue
        size, place = stay.variable.nbytes, stay.load
        least = max(least, stay.first, min(start, place))
        while place > least and live[place - 1] + size <= most:
            place -= 1
            live[place] += size
        early.setdefault(place, []).append(programs[stay.load])
        least = place
    result: list[p.Program] = []
    for place, program in enumerate(programs):
        result += early.get(place, ())
        # Stores stay where they are: each begins as soon as its value is made.
        if not isinstance(program, p.RemoteLoad):
            result.append(program)
    return [p.Overlap(*result)]


def _stays(programs: Sequence[p.Program]) -> list[_Stay]:
    """Every time for which something that is streamed is on the tiles, in order."""
    far = {program.tensor.variable for program in programs if isinstance(program, p.RemoteLoad | p.RemoteStore)}
    stays, now, stored = list[_Stay](), dict[Variable, _Stay](), dict[RemoteBuffer, int]()
    for place, program in enumerate(programs):
        if isinstance(program, p.RemoteLoad):
            variable, before = program.tensor.variable, now.get(program.tensor.variable)
            # Not while the tensor is still needed for what it held, and not before the store of what is loaded.
            first = 1 + max(before.last if before else -1, stored.get(program.buffer, -1))
            now[variable] = _Stay(variable, place, first, place)
            stays.append(now[variable])
        elif isinstance(program, p.RemoteStore):
            stored[program.buffer] = place
        for variable in accessed(program) & far:
            if variable not in now:
                now[variable] = _Stay(variable, None, place, place)
                stays.append(now[variable])
            now[variable].last = place
    return stays


def accessed(program: p.Program) -> set[Variable]:
    """The variables that a program may read or write."""
    found, pending = set[Variable](), [program]
    while pending:
        match pending.pop():
            case p.Sequence(steps) | p.Overlap(steps):
                pending += steps
            case p.Repeat(_, body) | p.Call(body):
                pending.append(body)
            case p.If(predicate, then, otherwise):
                found.add(predicate.variable)
                pending += [then, otherwise]
            case p.Execute(compute_set):
                found |= {operand.variable for group in compute_set.groups for operand in group.operands.values()}
            case p.Copies(copies):
                pending += copies
            case p.CrossReplicas(each):
                pending += each
            case p.Copy(source, destination) | p.CrossReplica(source, destination):
                found |= {source.variable, destination.variable}
            case p.StreamCopy(_, tensor) | p.WriteUndef(tensor):
                found.add(tensor.variable)
            case p.RemoteLoad(_, tensor, entry) | p.RemoteStore(tensor, _, entry):
                found |= {each.variable for each in (tensor, entry) if isinstance(each, Tensor)}
            case other:
                raise NotImplementedError(f"no lowering makes {other!r}")
    return found
