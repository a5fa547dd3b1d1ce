"""Compilation of programs, whose steps an accountant has put into a tree, to a flat list of calls."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip import tile_replicas
from ipu_core.chip.arrays import words
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.engine.bind import Bound, KeyCell, bind_group, view_of
from ipu_core.engine.streams import HostEnds
from ipu_core.engine.tree import Choice, Interleaved, Repeated, Series, Tree, While
from ipu_core.errors import FloatingPointException
from ipu_core.graph import program as p
from ipu_core.graph.codelet import Codelet
from ipu_core.graph.streams import DataStream, RemoteBuffer
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import ComputeSet, VertexGroup

Calls = list[Callable[[], None]]


class Compiler:
    """Everything the programs of one engine share: storage, and groups that are bound to it."""

    def __init__(
        self,
        target: Target,
        storage: Mapping[Variable, NDArray[Any]],
        control: FloatingPointControl,
        cell: KeyCell,
        ends: HostEnds,
    ) -> None:
        self.target = target
        self.storage = storage
        self.control = control
        self.cell = cell
        self.ends = ends
        self._bound: dict[ComputeSet, list[Bound]] = {}
        self._calls: dict[ComputeSet, Calls] = {}

    def codelets(self, compute_set: ComputeSet, groups: Sequence[VertexGroup]) -> list[Codelet]:
        """The codelets of a compute set's groups, bound to their arrays."""
        bound = self._bound[compute_set] = self._bind(groups)
        return [item.codelet for item in bound]

    def calls(self, program: p.Program, tree: Tree, depth: int = 1) -> Calls:
        """Calls that run a program in order and count in its tree what depends on data.

        Args:
            program: checked, see `ipu_core.engine.accountant.account`.
            tree: its steps.
            depth: counts enclosing loops from 1.
        """
        match program, tree:
            case (p.Sequence(steps), Series(parts)) | (p.Overlap(steps), Interleaved(given=parts)):
                return [call for step, part in zip(steps, parts, strict=True) for call in self.calls(step, part, depth)]
            case p.Call(function), _:
                return self.calls(function, tree, depth)
            case p.Execute(compute_set), _:
                return self._execute(compute_set)
            case p.Copy(source, destination), _:
                return [_copy(words(view_of(source, self.storage)), words(view_of(destination, self.storage)))]
            case p.CrossReplica() as one, _:
                return [self._across(one)]
            case p.CrossReplicas(each), _:
                return [self._across(one) for one in each]
            case p.Copies(copies), _:
                return [call for copy in copies for call in self.calls(copy, tree, depth)]
            case p.StreamCopy(stream, tensor), _:
                return [_stream_call(self.ends, stream, view_of(tensor, self.storage))]
            case (p.RemoteLoad() | p.RemoteStore()) as transfer, _:
                return [self._remote(transfer)]
            case p.AbortOnNaN(tensor), _:
                return [_abort_on_nan(tensor, view_of(tensor, self.storage))]
            # They are for the account: calls run one after the other, and a barrier orders nothing among them.
            case ((p.WriteUndef() | p.Sync()), _):
                return []
        return [self._control(program, tree, depth)]

    def _execute(self, compute_set: ComputeSet) -> Calls:
        if compute_set not in self._calls:
            # The account has asked for their cycles and so bound them. It does not where it knew them already: of two
            # compute sets that do the same, the second is bound here.
            bound = self._bound.pop(compute_set, None) or self._bind(compute_set.all_groups(self.target.tiles))
            calls = [call for item in bound for call in item.calls]
            if self.control.traps:
                # Only where something can be raised: a wrapped call is one frame more, in every step.
                calls = [_located(call, compute_set.name) for call in calls]
            self._calls[compute_set] = calls
        return self._calls[compute_set]

    def _bind(self, groups: Sequence[VertexGroup]) -> list[Bound]:
        return [bind_group(group, self.storage, self.target, self.control, self.cell) for group in groups]

    def _across(self, program: p.CrossReplica) -> Callable[[], None]:
        """As if every replica had what this machine has, the only one that there is."""
        own, out = view_of(program.source, self.storage), view_of(program.destination, self.storage)
        if program.collective is None:
            if program.kind != "all_gather":
                return _copy(words(own), words(out))
            return lambda: tile_replicas.gathered(own, out)
        call = tile_replicas.all_reduce(program.collective, program.destination.format, self.control)
        every, cell = np.broadcast_to(own, (program.replicas, *own.shape)), self.cell
        draws, part = program.collective.rounding.stochastic, program.kind == "reduce_scatter"

        def meet() -> None:
            if draws and cell.key is None:
                raise ValueError("CrossReplica draws random bits: give the engine a key: Engine(graph, program, key=0)")
            key = None if cell.key is None else cell.key.fold_in(program.operation)
            if part:
                tile_replicas.first_shard(call, every, key, out)
            else:
                call(every, key, out)

        return meet

    def _remote(self, program: p.RemoteLoad | p.RemoteStore) -> Callable[[], None]:
        view, into = view_of(program.tensor, self.storage), isinstance(program, p.RemoteLoad)
        return _remote_call(self.ends, program.buffer, view, into, self._entry(program))

    def _entry(self, program: p.RemoteLoad | p.RemoteStore) -> Callable[[], int]:
        entry, buffer = program.entry, program.buffer
        if not isinstance(entry, Tensor):
            return lambda: entry
        read = self._scalar(entry)

        def checked() -> int:
            number = read()
            if not 0 <= number < buffer.entries:
                raise IndexError(f"remote buffer {buffer.name!r} has entries 0..{buffer.entries - 1}, not {number}")
            return number

        return checked

    def _scalar(self, tensor: Tensor) -> Callable[[], int]:
        # The storage of an engine never moves: what is found once holds for every run.
        values, at = self.storage[tensor.variable], tensor.offset
        return lambda: int(values[at])

    def _control(self, program: p.Program, tree: Tree, depth: int) -> Callable[[], None]:
        match program, tree:
            # Rounds that are runs of their own have keys as runs have, so they are not a level of loops.
            case p.Repeat(count, body, True), Repeated(_, inner):
                return _repeat_runs(count, self.calls(body, inner, depth), self.cell)
            case p.Repeat(count, body), Repeated(_, inner):
                places = range(count)[::-1] if program.backwards else range(count)
                return _repeat(places, self.calls(body, inner, depth + 1), self.cell, depth, program.operation)
            case p.RepeatWhile(condition, predicate, body), While(test, _, inner):
                checks, calls = self.calls(condition, test, depth + 1), self.calls(body, inner, depth + 1)
                return _repeat_while(tree, checks, self._truth(predicate), calls, self.cell, depth)
            case p.If(predicate, then, otherwise), Choice():
                truth = self._truth(predicate)
                return self._branch(tree, (then, otherwise), lambda: 0 if truth() else 1, depth)
            case p.Switch(control, cases, default), Choice():
                numbers, read = {case: i for i, case in enumerate(cases)}, self._scalar(control)
                return self._branch(tree, (*cases.values(), default), lambda: numbers.get(read(), len(numbers)), depth)
        raise TypeError(f"{program!r} has no steps like {tree!r}")

    def _truth(self, tensor: Tensor) -> Callable[[], bool]:
        values, at = self.storage[tensor.variable], tensor.offset
        return lambda: bool(values[at])

    def _branch(
        self, branch: Choice, options: Sequence[p.Program], choose: Callable[[], int], depth: int
    ) -> Callable[[], None]:
        lists = [self.calls(option, tree, depth) for option, tree in zip(options, branch.options, strict=True)]

        def run() -> None:
            chosen = choose()
            branch.taken[chosen] += 1
            for call in lists[chosen]:
                call()

        return run


def _copy(source: NDArray[Any], destination: NDArray[Any]) -> Callable[[], None]:
    def move() -> None:
        np.copyto(destination, source)

    return move


def _located(call: Callable[[], None], name: str) -> Callable[[], None]:
    """A call whose exceptions say in which compute set they were raised."""

    def located() -> None:
        try:
            call()
        except FloatingPointException as error:
            raise FloatingPointException(f"{error}, in {name}") from None

    return located


def _repeat(numbers: range, calls: Calls, cell: KeyCell, depth: int, operation: int | None) -> Callable[[], None]:
    def run() -> None:
        outside = cell.key
        key = outside if outside is None or operation is None else outside.fold_in(operation)
        for number in numbers:
            if key is not None:  # round 0 keeps the key, so Repeat(1, x) is x
                # The depth tells loops apart: round n of an inner loop would else draw, in the outer one's round 0,
                # what the outer one's round n draws.
                cell.key = key.fold_in((depth << 32) + number) if number else key
            for call in calls:
                call()
        cell.key = outside

    return run


def _repeat_runs(count: int, calls: Calls, cell: KeyCell) -> Callable[[], None]:
    def run() -> None:
        for number in range(count):
            if number:
                cell.next_run()
            for call in calls:
                call()

    return run


def _repeat_while(
    loop: While, test: Calls, holds: Callable[[], bool], calls: Calls, cell: KeyCell, depth: int
) -> Callable[[], None]:
    def run() -> None:
        key = cell.key
        number = 0
        while True:
            if number and key is not None:
                cell.key = key.fold_in((depth << 32) + number)
            for call in test:
                call()
            if not holds():
                break
            number += 1
            for call in calls:
                call()
        loop.iterations += number
        cell.key = key

    return run


def _stream_call(ends: HostEnds, stream: DataStream, view: NDArray[Any]) -> Callable[[], None]:
    def receive() -> None:
        view[...] = ends.receive(stream)

    def send() -> None:
        ends.send(stream, view.copy())

    return receive if stream.to_device else send


def _remote_call(
    ends: HostEnds, buffer: RemoteBuffer, view: NDArray[Any], into: bool, entry: Callable[[], int]
) -> Callable[[], None]:
    def load() -> None:
        view[...] = ends.remote(buffer)[entry()]

    def save() -> None:
        ends.remote(buffer)[entry()] = view

    return load if into else save


def _abort_on_nan(tensor: Tensor, view: NDArray[Any]) -> Callable[[], None]:
    def check() -> None:
        if np.isnan(view.astype(np.float32)).any():
            raise FloatingPointException(f"AbortOnNaN: {tensor.variable} holds a NaN")

    return check
