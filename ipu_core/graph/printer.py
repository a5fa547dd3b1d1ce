"""Graphs and programs in words: variables with their tiles, compute sets with their groups, programs as trees."""

from collections.abc import Iterator, Sequence

import numpy as np

import ipu_core.graph.program as p
from ipu_core.errors import IpuError
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import ComputeSet, VertexGroup


def graph_text(variables: Sequence[Variable], compute_sets: Sequence[ComputeSet]) -> str:
    """One line per variable, compute set and group of vertices."""
    lines = [_variable_line(variable) for variable in variables]
    for compute_set in compute_sets:
        lines.append(f"compute set {compute_set.name}")
        lines += [f"  {_group_line(group)}" for group in compute_set.groups]
        lines += [f"  {vertex.codelet.__name__} on tile {vertex.tile}" for vertex in compute_set.singles]
    return "\n".join(lines)


def program_text(program: p.Program) -> str:
    """A program as an indented tree."""
    return "\n".join(_lines(program, 0))


def _variable_line(variable: Variable) -> str:
    kind = "constant" if variable.constant else "temporary" if variable.temporary else "variable"
    try:
        tiles = np.unique(variable.mapping.tiles)
        where = f"{tiles.size} tiles from {tiles[0]}" if tiles.size else "no elements"
    except IpuError as error:
        where = str(error)
    return f"{kind} {variable}: {variable.nbytes:,} bytes, {where}"


def _group_line(group: VertexGroup) -> str:
    fields = ", ".join(
        f"{name} = {operand.variable.name}{list(operand.shape[operand.vertex_axes :])}"
        for name, operand in group.operands.items()
    )
    tiles = np.unique(group.tiles).size
    return f"{group.vertices} x {group.codelet.__name__} on {tiles} tiles: {fields}"


def _lines(program: p.Program, depth: int) -> Iterator[str]:
    head, parts = _node(program)
    yield "  " * depth + head
    for name, part in parts:
        if name:
            yield "  " * (depth + 1) + name
        yield from _lines(part, depth + (2 if name else 1))


def _node(program: p.Program) -> tuple[str, Sequence[tuple[str, p.Program]]]:
    """A program's own line, and the programs inside it with their names."""
    match program:
        case p.Sequence(steps):
            return "Sequence", [("", step) for step in steps]
        case p.Repeat(count, body, runs, backwards, _):
            order = ", with keys from the last to the first" if backwards else ""
            return f"Repeat {count} {'runs' if runs else 'times'}{order}", [("", body)]
        case p.RepeatWhile(condition, predicate, body):
            return f"RepeatWhile {predicate.variable.name}", [("condition", condition), ("body", body)]
        case p.If(predicate, then, otherwise):
            return f"If {predicate.variable.name}", [("then", then), ("else", otherwise)]
        case p.Switch(control, cases, default):
            named = [(f"case {number}", case) for number, case in cases.items()]
            return f"Switch {control.variable.name}", [*named, ("default", default)]
        case p.CrossReplicas(each):
            return "CrossReplicas", [("", one) for one in each]
        case p.Overlap(steps):
            return "Overlap", [("", step) for step in steps]
        case p.Call(function, name):
            return f"Call {name}".rstrip(), [("", function)]
        case _:
            return _leaf(program), []


def _leaf(program: p.Program) -> str:
    match program:
        case p.Execute(compute_set):
            return f"Execute {compute_set.name}"
        case p.Copy(source, destination, _, reorders):
            return f"Copy {source} -> {destination}{', in its order' if reorders else ''}"
        case p.CrossReplica(source, destination, replicas, kind):
            return f"{kind} of {replicas} replicas: {source} -> {destination}"
        case p.StreamCopy(stream, tensor):
            ends = (f"stream {stream.name}", str(tensor))
            return "StreamCopy {} -> {}".format(*(ends if stream.to_device else ends[::-1]))
        case p.RemoteLoad(buffer, tensor, entry):
            return f"RemoteLoad {buffer.name}[{_entry(entry)}] -> {tensor}"
        case p.RemoteStore(tensor, buffer, entry):
            return f"RemoteStore {tensor} -> {buffer.name}[{_entry(entry)}]"
        case p.WriteUndef(tensor) | p.AbortOnNaN(tensor):
            return f"{type(program).__name__} {tensor}"
        case _:
            return type(program).__name__


def _entry(entry: int | Tensor) -> str:
    return str(entry) if isinstance(entry, int) else entry.variable.name
