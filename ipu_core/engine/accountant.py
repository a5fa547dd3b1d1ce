"""The account of programs: what every step costs, in which order they run and what must be in memory, without storage.

The steps stand in a tree; an engine makes of program and tree the calls that run it (`ipu_core.engine.compile`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.engine.across import account_across
from ipu_core.engine.bind import unbound
from ipu_core.engine.memory import MemoryAccount, account_memory
from ipu_core.engine.profile import Profile, Step
from ipu_core.engine.races import check_phase, check_races
from ipu_core.engine.remembered import Memo
from ipu_core.engine.steps import (
    StepAccount,
    account_copies,
    account_execute,
    account_host,
    account_overlap,
    account_sync,
)
from ipu_core.engine.tree import (
    Choice,
    Leaf,
    Repeated,
    Series,
    Tree,
    While,
    begins_of,
    counts_of,
    is_dynamic,
    order_of,
    outline,
)
from ipu_core.graph import program as p
from ipu_core.graph.codelet import Codelet
from ipu_core.graph.graph import Graph
from ipu_core.graph.phases import several
from ipu_core.graph.streams import RemoteBuffer, check_remote_memory
from ipu_core.graph.tensor import Tensor, Variable
from ipu_core.graph.vertices import ComputeSet, Operand, VertexGroup

CodeletsOf = Callable[[ComputeSet, Sequence[VertexGroup]], Sequence[Codelet]]
"""The codelets of a compute set's groups with their fields in place: they say what its vertices cost."""

NOTHING: Mapping[Variable, bool] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class ProgramAccount:
    """What programs of one graph cost and need.

    Attributes:
        target: the chip.
        trees: of the programs.
        steps: all steps, by the number that they have in the trees.
        memory: of all programs together.
    """

    target: Target
    trees: tuple[Tree, ...]
    steps: tuple[StepAccount, ...]
    memory: MemoryAccount

    def profile(self, program: int = 0, holds: Mapping[Variable, bool] = NOTHING, *, measured: bool = False) -> Profile:
        """The account of one run of a program.

        Args:
            program: its number.
            holds: what the predicates of `If` are in that run. Other data-dependent parts count what the tree says of
                its last run; before any, one iteration and the first option.
            measured: whether that is all of a real run.
        """
        tree = self.trees[program]
        counts = counts_of(tree, len(self.steps), holds)
        begins = begins_of(tree, [step.cycles for step in self.steps], holds)
        listed = tuple(
            Step(self.steps[number], counts[number], *begins.get(number, (0, 0)))
            for number in order_of(tree)
            if counts[number]
        )
        lines = tuple(outline(tree, [step.name for step in self.steps]))
        return Profile(self.target, program, listed, self.memory, measured or not is_dynamic(tree), lines)


def account(
    graph: Graph,
    programs: Sequence[p.Program],
    control: FloatingPointControl,
    *,
    allow_out_of_memory: bool = False,
    codelets_of: CodeletsOf | None = None,
) -> ProgramAccount:
    """Accounts programs that share memory, and checks them.

    Args:
        graph: theirs.
        programs: as of an `Engine`.
        control: floating-point control of the tiles.
        allow_out_of_memory: go on when a tile, or streaming memory, has less memory than is needed.
        codelets_of: None: codelets that see shapes and formats of their operands, not elements, and are not prepared.

    Raises:
        ValueError: a variable or a compute set of another graph.
        UnmappedTensor, MappedTwice, DataRace, OutOfTileMemory, OutOfStreamingMemory: see `ipu_core.errors`.
    """
    accountant = _Accountant(graph, control, codelets_of)
    trees = [accountant.tree(program) for program in programs]
    memory = account_memory(graph, trees, accountant.steps, accountant.sets, accountant.remote)
    if not allow_out_of_memory:
        memory.check("allow_out_of_memory=True goes on regardless")
        check_remote_memory(accountant.remote, graph.target)
    return ProgramAccount(graph.target, tuple(trees), tuple(accountant.steps), memory)


class _Accountant:
    """Everything the programs of one graph share: step accounts, groups of vertices, remote buffers.

    Attributes:
        steps: all so far.
        sets: the groups of each compute set so far.
        remote: buffers, with the first variable that each is moved to or from.
    """

    def __init__(self, graph: Graph, control: FloatingPointControl, codelets_of: CodeletsOf | None) -> None:
        self.target, self.control, self._codelets_of = graph.target, control, codelets_of or self._unbound
        self.steps: list[StepAccount] = []
        self.sets: list[Sequence[VertexGroup]] = []
        self.remote: dict[RemoteBuffer, Variable] = {}
        self._memo = Memo(graph.target, control)
        self._sets, self._variables = frozenset(graph.compute_sets), frozenset(graph.variables)
        self._joined = graph.joined
        self._leaves: dict[ComputeSet, Leaf] = {}

    def tree(self, program: p.Program) -> Tree:
        """A program's steps in order."""
        match program:
            case p.Sequence(steps):
                return Series(tuple(self.tree(step) for step in steps))
            case p.Call(function):
                return self.tree(function)
            case p.Execute(compute_set):
                return self._execute(compute_set)
            case p.Copy():
                return self._copies([program])
            case p.Copies(copies):
                return self._copies(copies) if copies else Series(())
            case p.CrossReplica():
                return self._across([program])
            case p.CrossReplicas(each):
                return self._across(each) if each else Series(())
            case p.Overlap(steps):
                moves = [isinstance(step, p.RemoteLoad | p.RemoteStore) for step in steps]
                return account_overlap(self.steps, [self.tree(step) for step in steps], moves)
            case p.Repeat() | p.RepeatWhile() | p.If() | p.Switch():
                return self._control(program)
            case p.StreamCopy() | p.RemoteLoad() | p.RemoteStore():
                return self._transfer(program)
            case p.WriteUndef(tensor):
                name = f"undefine {tensor.variable.name}"
                return self._leaf(account_sync(name, self.target, frozenset(), frozenset([self._own(tensor)])))
            case p.AbortOnNaN(tensor):
                name = f"abort on NaN in {tensor.variable.name}"
                return self._leaf(account_sync(name, self.target, frozenset([self._own(tensor)]), frozenset()))
            case p.Sync():
                return self._leaf(account_sync("sync", self.target, frozenset(), frozenset()))
        raise TypeError(f"{program!r} is no program")

    def _own(self, where: Tensor | Operand) -> Variable:
        """The variable of a tensor or an operand, which must be of the graph."""
        if where.variable not in self._variables:
            raise ValueError(f"variable {where.variable.name!r} is of another graph than the engine's")
        return where.variable

    def _leaf(self, step: StepAccount) -> Leaf:
        self.steps.append(step)
        return Leaf(len(self.steps) - 1)

    def _execute(self, compute_set: ComputeSet) -> Leaf:
        # A compute set that several programs execute, or one in several places, is one step: it is checked and costed
        # once.
        if compute_set not in self._leaves:
            if compute_set not in self._sets:
                raise ValueError(f"compute set {compute_set.name!r} is of another graph than the engine's")
            groups = compute_set.all_groups(self.target.tiles)
            for operand in chain.from_iterable(group.operands.values() for group in groups):
                self._own(operand)
            self.sets.append(groups)
            make = partial(self._checked, compute_set, groups)
            step = self._memo.account(compute_set.name, groups, make)
            # Two sets with one memo key may be made of sets of other names.
            self._leaves[compute_set] = self._leaf(replace(step, joined=self._joined.get(compute_set, ())))
        return self._leaves[compute_set]

    def _checked(self, compute_set: ComputeSet, groups: Sequence[VertexGroup]) -> StepAccount:
        """The account of a compute set, which has no races."""
        accesses = self._memo.accesses(groups)
        # Races first: codelets are bound, and prepared, only for vertices that are right.
        check_races(compute_set, groups, accesses)
        vertices = list(zip(groups, self._codelets_of(compute_set, groups), strict=True))
        return account_execute(compute_set.name, vertices, accesses, self._memo.traffic(accesses), self.target)

    def _unbound(self, _: ComputeSet, groups: Sequence[VertexGroup]) -> list[Codelet]:
        return [unbound(group, self.target, self.control) for group in groups]

    def _copies(self, copies: Sequence[p.Copy]) -> Leaf:
        ends = [end for copy in copies for end in (copy.source, copy.destination)]
        owned = [self._own(end).name for end in ends]
        names = [copy.name or f"copy {a} -> {b}" for copy, a, b in zip(copies, owned[::2], owned[1::2], strict=True)]
        check_phase(copies)
        distinct = tuple(dict.fromkeys(names))
        name = several(distinct)

        def make() -> StepAccount:
            moves = [self._memo.moved(copy.source, copy.destination) for copy in copies]
            return account_copies(name, copies, moves, self.target)

        step = self._memo.account(name, ends, make, tuple(copy.reorders for copy in copies))
        return self._leaf(replace(step, joined=distinct if len(distinct) > 1 else ()))

    def _across(self, each: Sequence[p.CrossReplica]) -> Leaf:
        for one in each:
            self._own(one.source), self._own(one.destination)
        names = [one.name or f"{one.kind} {one.source.variable.name}" for one in each]
        return self._leaf(account_across(names, each, self.target))

    def _transfer(self, program: p.StreamCopy | p.RemoteLoad | p.RemoteStore) -> Leaf:
        variable = self._own(program.tensor)
        if isinstance(program, p.StreamCopy):
            stream = program.stream
            name, bandwidth = f"stream {stream.name}", self.target.host_bandwidth
            return self._leaf(account_host(name, "stream", program.tensor, stream.to_device, bandwidth, self.target))
        into = isinstance(program, p.RemoteLoad)
        name = f"{'load' if into else 'store'} {program.buffer.name}"
        step = account_host(name, "remote", program.tensor, into, self.target.streaming_bandwidth, self.target)
        if isinstance(program.entry, Tensor):
            # The number of the entry is read when the transfer begins: until then its variable has to live.
            step = replace(step, reads=step.reads | {self._own(program.entry)})
        # The first is as good as any: all have the buffer's shape, and it stands for how an entry would lie on the
        # tiles.
        self.remote.setdefault(program.buffer, variable)
        return self._leaf(step)

    def _control(self, program: p.Repeat | p.RepeatWhile | p.If | p.Switch) -> Tree:
        match program:
            case p.Repeat(count, body):
                return Repeated(count, self.tree(body))
            case p.RepeatWhile(condition, predicate, body):
                return While(self.tree(condition), self._own(predicate), self.tree(body))
            case p.If(predicate, then, otherwise):
                return Choice(self._own(predicate), (self.tree(then), self.tree(otherwise)))
            case p.Switch(control, cases, default):
                return Choice(self._own(control), tuple(self.tree(case) for case in (*cases.values(), default)))
