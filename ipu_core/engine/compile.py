"""Compilation of programs: once, into a flat list of calls, a tree of step numbers and the account of every step."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipu_core.control import FloatingPointControl
from ipu_core.engine.account import (
    StepAccount,
    account_copy,
    account_execute,
    account_host,
    account_sync,
)
from ipu_core.engine.alike import Accounts
from ipu_core.engine.bind import Bound, KeyCell, bind_group, folded_key, view_of, words
from ipu_core.engine.joined import Joined, joined
from ipu_core.engine.moves import Moves
from ipu_core.engine.overlap import account_overlap
from ipu_core.engine.races import check_races
from ipu_core.engine.streams import HostEnds
from ipu_core.engine.tree import Branch, Leaf, Loop, Series, Tree, While
from ipu_core.errors import FloatingPointException
from ipu_core.graph import program as p
from ipu_core.graph.graph import Graph
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import ComputeSet, VertexGroup
from lowprec import Key

Calls = list[Callable[[], None]]
Compiled = tuple[Calls, Tree]


class Compiler:
    """Everything the programs of one engine share: storage, bound groups, step accounts."""

    def __init__(
        self,
        graph: Graph,
        storage: Mapping[Variable, NDArray[Any]],
        control: FloatingPointControl,
        cell: KeyCell,
        ends: HostEnds,
        whole: bool = False,
    ) -> None:
        self.graph = graph
        self.target = graph.target
        self.storage = storage
        self.control = control
        self.cell = cell
        self.ends = ends
        self.whole = whole
        self.steps: list[StepAccount] = []
        self.accounts = Accounts(graph.target, control)
        self.moves = Moves(graph.target)
        self.groups: list[VertexGroup] = []
        self.remote: dict[p.RemoteBuffer, Variable] = {}  # with the first variable that each is moved to or from
        self._own = frozenset(graph.compute_sets)
        self._leaves: dict[ComputeSet, Leaf] = {}
        self._bound: dict[ComputeSet, list[Bound]] = {}
        self._calls: dict[ComputeSet, Calls] = {}

    def compile(self, program: p.Program, depth: int = 1) -> Compiled:
        """Calls that run a program in order, and its tree. `depth` counts enclosing loops from 1."""
        match program:
            case p.Sequence(steps):
                parts = [self.compile(step, depth) for step in steps]
                return joined(call for calls, _ in parts for call in calls), Series(tuple(tree for _, tree in parts))
            case p.Whole():
                return self._whole(program, depth)
            case p.Call(function):
                return self.compile(function, depth)
            case p.Execute(compute_set):
                return self._execute(compute_set)
            case p.Copy():
                return self._copy(program)
            case p.Overlap():
                return self._overlap(program, depth)
            case p.Repeat() | p.RepeatWhile() | p.If() | p.Switch():
                return self._control(program, depth)
            case p.StreamCopy() | p.RemoteLoad() | p.RemoteStore():
                return self._transfer(program)
            case p.WriteUndef(tensor):
                account = account_sync("undefine", self.target, frozenset(), frozenset([tensor.variable]))
                return [], self._leaf(account)
            case p.AbortOnNaN(tensor):
                account = account_sync("sync", self.target, frozenset([tensor.variable]), frozenset())
                return [_abort_on_nan(tensor, view_of(tensor, self.storage))], self._leaf(account)
            case p.Sync():
                return [], self._leaf(account_sync("sync", self.target, frozenset(), frozenset()))
        raise TypeError(f"{program!r} is no program")

    def _whole(self, program: p.Whole, depth: int) -> Compiled:
        """The account of the steps; where exceptions are enabled every vertex looks for its own."""
        if not self.whole or self.control.traps:
            return self.compile(p.Sequence(*program.steps), depth)
        tree = Series(tuple(self._accounted(step, depth) for step in program.steps))
        return [self._computation(each) for each in program.computations], tree

    def _accounted(self, program: p.Program, depth: int) -> Tree:
        """The tree of a program whose calls nobody runs."""
        match program:
            case p.Execute(compute_set):
                return self._execute_leaf(compute_set)
            case p.Copy():
                return self._copy_leaf(program)
        return self.compile(program, depth)[1]

    def _computation(self, made: p.Computation) -> Callable[[], None]:
        operands = [view_of(tensor, self.storage) for tensor in made.operands]
        result = view_of(made.result, self.storage)
        bound = made.bind(operands, result, self.control)
        add = made.bind_alone(operands, result, self.control)
        if made.operation is None:
            single: Callable[[], None] = partial(bound, None)
        else:
            single = _keyed(bound, folded_key(self.cell, made.operation, made.result.variable.name))
        return single if add is None else Joined(self.cell, [single], [add], made.operation is not None)

    def _leaf(self, account: StepAccount) -> Leaf:
        self.steps.append(account)
        return Leaf(len(self.steps) - 1)

    def _execute(self, compute_set: ComputeSet) -> Compiled:
        leaf = self._execute_leaf(compute_set)
        if compute_set not in self._calls:
            bound = self._bound.pop(compute_set, None) or self._bind(compute_set.all_groups(self.target.tiles))
            calls = [call for item in bound for call in item.calls]
            if self.control.traps:
                calls = [_located(call, compute_set.name) for call in calls]
            self._calls[compute_set] = calls
        return self._calls[compute_set], leaf

    def _execute_leaf(self, compute_set: ComputeSet) -> Leaf:
        if compute_set not in self._leaves:
            if compute_set not in self._own:
                raise ValueError(f"compute set {compute_set.name!r} is of another graph than the engine's")
            groups = compute_set.all_groups(self.target.tiles)
            self.groups += groups
            make = partial(self._checked_account, compute_set, groups)
            self._leaves[compute_set] = self._leaf(self.accounts.of_groups(compute_set.name, groups, make))
        return self._leaves[compute_set]

    def _checked_account(self, compute_set: ComputeSet, groups: list[VertexGroup]) -> StepAccount:
        """The account of a compute set without races, whose groups are then bound."""
        accesses = self.moves.accesses(groups)
        check_races(compute_set, groups, accesses)
        bound = self._bound[compute_set] = self._bind(groups)
        return account_execute(compute_set, bound, accesses, self.moves, self.target)

    def _bind(self, groups: list[VertexGroup]) -> list[Bound]:
        return [bind_group(group, self.storage, self.target, self.control, self.cell) for group in groups]

    def _copy_leaf(self, copy: p.Copy) -> Leaf:
        name = copy.name or f"copy {copy.source.variable.name} -> {copy.destination.variable.name}"
        make = partial(account_copy, name, copy, self.target)
        return self._leaf(self.accounts.of_copy(name, copy.source, copy.destination, make))

    def _copy(self, copy: p.Copy) -> Compiled:
        leaf = self._copy_leaf(copy)
        source = words(view_of(copy.source, self.storage))
        destination = words(view_of(copy.destination, self.storage))

        def move() -> None:
            np.copyto(destination, source)

        return [move], leaf

    def _transfer(self, program: p.StreamCopy | p.RemoteLoad | p.RemoteStore) -> Compiled:
        view = view_of(program.tensor, self.storage)
        if isinstance(program, p.StreamCopy):
            stream = program.stream
            name, bandwidth = f"stream {stream.name}", self.target.host_bandwidth
            account = account_host(name, "stream", program.tensor, stream.to_device, bandwidth, self.target)
            return [_stream_call(self.ends, stream, view)], self._leaf(account)
        into = isinstance(program, p.RemoteLoad)
        name = f"{'load' if into else 'store'} {program.buffer.name}"
        bandwidth = self.target.streaming_bandwidth
        account = account_host(name, "remote", program.tensor, into, bandwidth, self.target)
        if isinstance(program.entry, Tensor):
            account = replace(account, reads=account.reads | {program.entry.variable})
        self.remote.setdefault(program.buffer, program.tensor.variable)
        return [_remote_call(self.ends, program.buffer, view, into, self._entry(program))], self._leaf(account)

    def _overlap(self, overlap: p.Overlap, depth: int) -> Compiled:
        """The calls in order; in the tree a transfer stands where what it moves begins or ceases to be needed."""
        parts = [self.compile(step, depth) for step in overlap.steps]
        moves = [isinstance(step, p.RemoteLoad | p.RemoteStore) for step in overlap.steps]
        tree = account_overlap(self.steps, [tree for _, tree in parts], moves)
        return [call for calls, _ in parts for call in calls], tree

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
        values, at = self.storage[tensor.variable], tensor.offset
        return lambda: int(values[at])

    def _control(self, program: p.Repeat | p.RepeatWhile | p.If | p.Switch, depth: int) -> Compiled:
        match program:
            case p.Repeat(count, body, True):
                calls, tree = self.compile(body, depth)
                return [_repeat_runs(count, calls, self.cell)], Loop(count, tree)
            case p.Repeat(count, body):
                calls, tree = self.compile(body, depth + 1)
                return [_repeat(count, calls, self.cell, depth)], Loop(count, tree)
            case p.RepeatWhile(condition, predicate, body):
                test, test_tree = self.compile(condition, depth + 1)
                calls, tree = self.compile(body, depth + 1)
                loop = While(test_tree, predicate.variable, tree)
                return [_repeat_while(loop, test, self._truth(predicate), calls, self.cell, depth)], loop
            case p.If(predicate, then, otherwise):
                options = [self.compile(then, depth), self.compile(otherwise, depth)]
                truth = self._truth(predicate)
                return self._branch(predicate, options, lambda: 0 if truth() else 1)
            case p.Switch(control, cases, default):
                options = [self.compile(case, depth) for case in (*cases.values(), default)]
                numbers, read = {case: i for i, case in enumerate(cases)}, self._scalar(control)
                return self._branch(control, options, lambda: numbers.get(read(), len(numbers)))

    def _truth(self, tensor: Tensor) -> Callable[[], bool]:
        values, at = self.storage[tensor.variable], tensor.offset
        return lambda: bool(values[at])

    def _branch(self, predicate: Tensor, options: list[Compiled], choose: Callable[[], int]) -> Compiled:
        branch = Branch(predicate.variable, tuple(tree for _, tree in options))
        lists = [calls for calls, _ in options]

        def run() -> None:
            chosen = choose()
            branch.taken[chosen] += 1
            for call in lists[chosen]:
                call()

        return [run], branch


def _keyed(bound: Callable[[Key | None], Any], key: Callable[[], Key]) -> Callable[[], None]:
    def call() -> None:
        bound(key())

    return call


def _located(call: Callable[[], None], name: str) -> Callable[[], None]:
    """A call whose exceptions say in which compute set they were raised."""

    def located() -> None:
        try:
            call()
        except FloatingPointException as error:
            raise FloatingPointException(f"{error}, in {name}") from None

    return located


def _repeat(count: int, calls: Calls, cell: KeyCell, depth: int) -> Callable[[], None]:
    def run() -> None:
        key = cell.key
        for number in range(count):
            if number and key is not None:
                cell.key = key.fold_in((depth << 32) + number)  # round 0 keeps the key, so Repeat(1, x) is x
            for call in calls:
                call()
        cell.key = key

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
        loop.rounds += number
        cell.key = key

    return run


def _stream_call(ends: HostEnds, stream: p.DataStream, view: NDArray[Any]) -> Callable[[], None]:
    def receive() -> None:
        view[...] = ends.receive(stream)

    def send() -> None:
        ends.send(stream, view.copy())

    return receive if stream.to_device else send


def _remote_call(
    ends: HostEnds, buffer: p.RemoteBuffer, view: NDArray[Any], into: bool, entry: Callable[[], int]
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
