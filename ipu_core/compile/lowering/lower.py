"""Lowers a whole Block: variables, equations in order, state written back, streams from and to the host."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ipu_core.chip.system import System
from ipu_core.compile.constants import held_constants
from ipu_core.compile.labelled import NONE, Labelled, labelled
from ipu_core.compile.labels import state_names, value_names
from ipu_core.compile.lowering.born import undefined
from ipu_core.compile.lowering.context import Lowering
from ipu_core.compile.lowering.families import lower_equation
from ipu_core.compile.lowering.fused import fused
from ipu_core.compile.lowering.magnitudes import compared_magnitudes
from ipu_core.compile.lowering.overwritten import overwritten
from ipu_core.compile.lowering.scans import ScanLowering, shown_tables
from ipu_core.compile.planning import BlockPlan
from ipu_core.compile.schedule.early_updates import EarlyUpdates, most_streamed, with_early_updates
from ipu_core.compile.schedule.overlap import overlapped
from ipu_core.compile.schedule.starts import Starts
from ipu_core.compile.schedule.supersteps import NO_ROWS, Shared, shared
from ipu_core.compile.schedule.transfers import transfers
from ipu_core.graph.graph import Graph
from ipu_core.graph.phases import in_phases
from ipu_core.graph.program import (
    Copy,
    If,
    Program,
    RemoteLoad,
    RemoteStore,
    Repeat,
    Sequence,
    StreamCopy,
)
from ipu_core.graph.streams import DataStream, RemoteBuffer
from ipu_core.graph.tensor import Tensor
from ipu_core.ir.block import Block, Var
from ipu_core.ir.bodies import (
    EquationSpan,
    RegionSpan,
    branch_of,
    equations_of,
    inputs_of,
    left_rows,
    outputs_of,
    regions_of,
    steps_of,
)
from ipu_core.ir.liveness.lifetimes import in_place, lifetimes
from ipu_core.ir.ops import VIEWS
from ipu_core.ir.regions import Branch, Loop, Scan
from ipu_core.library.elementwise import add_array, map_array
from ipu_core.library.moves import fill
from ipu_core.library.sides import copied
from lowprec.checks import expect, truth
from lowprec.processor import in_default_state

ENTRIES = "entry of the state", "entry of the new state"


@dataclass(frozen=True, eq=False)
class Lowered:
    """A Block on tiles.

    Attributes:
        block, plan: what was lowered.
        graph: its variables and vertices.
        program: one run of the Block.
        state: the carried inputs, which the program replaces by the carried outputs; those in streaming memory as the
            buffers that hold them.
        feeds: streams of the other inputs, host to device, in order.
        results: streams of the other outputs, device to host, in order.
        tensors: where every value lies.
        entries: of buffers that hold new state beside the old one: where that is, and where the new one goes. None:
            there is one entry, 0.
    """

    block: Block
    plan: BlockPlan
    graph: Graph
    program: Program
    state: tuple[Tensor | RemoteBuffer, ...]
    feeds: tuple[DataStream, ...]
    results: tuple[DataStream, ...]
    tensors: Mapping[Var, Tensor]
    entries: tuple[Tensor, Tensor] | None = None

    def programs(self, steps_per_call: int) -> list[Program]:
        """One run of the Block, and where a call does several, that call."""
        return [self.program, *([Repeat(steps_per_call, self.program, runs=True)] if steps_per_call > 1 else [])]


@in_default_state
def lower(
    block: Block,
    plan: BlockPlan,
    *,
    overlap: bool = False,
    share: bool = False,
    parallel: bool = False,
    traps: bool = False,
    system: System | None = None,
) -> Lowered:
    """Lowers a Block.

    Args:
        block: typed; every format must have a storage dtype.
        plan: of this Block, which also names the target.
        overlap: whether transfers with streaming memory pass beside computation (see `overlapped`).
        share: whether independent equations of one kind share compute sets, for which the Block is put into another
            order (see `shared`).
        parallel: of what shares, whether products and sums of unlike sizes do too, on tiles of their own.
        traps: whether exceptions are enabled: then nothing is computed in a step that a guard skips but what it needs.
        system: over whose links replicas meet; None: one of so many chips like the plan's.

    Raises:
        TypeError: no Block, or no plan.
        NotImplementedError: an operation without a lowering.
        ValueError: a plan of another Block.
    """
    expect(Block, block=block)
    expect(BlockPlan, plan=plan)
    for name, flag in (("overlap", overlap), ("share", share), ("parallel", parallel), ("traps", traps)):
        truth(name, flag)
    # Early updates are made before the guard has spoken: in a step that is skipped they could raise an exception.
    early = overlap and share and not (traps and branch_of(block))
    updated = with_early_updates(block, plan) if early else EarlyUpdates(block, NO_ROWS, None)
    found = shared(updated.block, plan, updated.rows, parallel=parallel) if share else Shared(updated.block, ())
    block, together, plan = found.block, found.fused, replace(plan, sums={**plan.sums, **found.sums})
    chosen = NONE if traps else labelled(block, plan.target)
    graph = Graph(plan.target)
    carried = block.carried
    tensors = _constants(graph, block, plan.starts)
    names = state_names(block)

    def placed(var: Var, name: str, *, temporary: bool = True) -> Tensor:
        first = plan.starts.get(var, 0)
        return add_array(graph, var.type.format, var.type.shape, name, temporary=temporary, first=first)

    # Streamed state is on the tiles from its load to its store only: its memory may be shared.
    near = [
        placed(var, names[var], temporary=number in block.streamed) for number, var in enumerate(block.inputs[:carried])
    ]
    tensors |= dict(zip(block.inputs, near, strict=False))
    far = _buffers(block)
    programs: list[Program] = []
    feeds = []
    parts = dict[Var, Program]()
    for var, held in zip(block.inputs[carried:], inputs_of(block)[carried:], strict=True):
        tensors[held] = placed(held, f"input.{held.name}")
        feeds.append(DataStream(f"feed {held.name}", held.type.format, held.type.shape))
        copy = StreamCopy(feeds[-1], tensors[held])
        # What a loop takes in parts comes with each iteration, everything else once at the start.
        if held is var:
            programs.append(copy)
        else:
            parts[held] = copy
    begins: dict[Loop, list[Program]] = {}
    for loop, _ in regions_of(block, Loop):
        begins[loop] = []
        rows = left_rows(loop) if isinstance(loop, Scan) else {}
        for old, _ in loop.carries:
            if old in rows:
                continue
            tensors[old] = placed(old, old.name)
            # Each step has to begin at zero: the tensors still hold the totals of the step before.
            if not isinstance(loop, Scan):
                begins[loop] += fill(graph, tensors[old], 0.0, name=f"{old.name}: zeros")
    places = {new: tensors[old] for new, old in in_place(block).items() if old in tensors}
    lowering = Lowering(
        graph, plan, lifetimes(block).views, places, together, compared_magnitudes(block), chosen,
        overwritten(block, plan.starts, together, _read_later(block, chosen)), tensors, programs, system=system,
    )  # fmt: skip
    branch = branch_of(block)
    if branch and branch.beside:
        lowering.entries = _entries(graph)
    most = most_streamed(block)

    def arranged(some: list[Program], start: int = 0) -> list[Program]:
        return overlapped(some, most, start) if overlap else some

    start = _Regions(lowering, block, far, parts, begins, arranged).add(steps_of(block), updated.start)
    # A branch writes back inside, only where the step counts.
    if branch is None:
        _write_back(lowering, _replaced(lowering, block))
    results, names = [], value_names(block)
    for var in outputs_of(block)[carried:]:
        results.append(DataStream(f"result {names[var]}", var.type.format, var.type.shape, to_device=False))
        programs.append(StreamCopy(results[-1], tensors[var]))
    # The new state was stored beside the old one: it becomes the current one only where the step counts.
    if branch and lowering.entries:
        programs.append(If(tensors[branch.flag], _swap(lowering, lowering.entries)))
    state = tuple(far.get(var, tensor) for var, tensor in zip(block.inputs, near, strict=False))
    return Lowered(
        block, plan, graph, Sequence(*arranged(programs, start)), state, tuple(feeds), tuple(results),
        lowering.tensors, lowering.entries,
    )  # fmt: skip


def _read_later(block: Block, chosen: Labelled) -> dict[Var, int]:
    """By value that stands for one that is not made, or is not made itself, the position until which it is kept."""
    known, magnitudes, equations = lifetimes(block), compared_magnitudes(block), equations_of(block)
    later = dict.fromkeys(chosen.rows, len(equations))
    for position, some in chosen.used.items():
        later |= {var: max(position, later.get(var, position)) for var in some}
    for equation in equations:
        if equation.output in magnitudes:
            later[known.views[equation.operands[0]].root] = known.last[equation.output]
    return later


def _constants(graph: Graph, block: Block, starts: Starts) -> dict[Var, Tensor]:
    """The constants as they lie on the tiles, each seen in its own shape."""
    lies, found = dict[Var, Tensor](), held_constants(block)
    for var, (first, array) in found.items():
        if first is var:
            lies[var] = map_array(
                graph.target, graph.add_constant(var.type.format, array, f"constant.{var.name}"), starts.get(var, 0)
            )
    return {var: lies[held.first].broadcast_to(var.type.shape) for var, held in found.items()}


def _replaced(lowering: Lowering, block: Block) -> list[tuple[Tensor, Var]]:
    """The tensors of state that stays on the tiles, each with the value that is to be written over it."""
    new = outputs_of(block)[: block.carried]
    pairs = enumerate(zip(block.inputs, new, strict=False))
    return [(lowering.tensors[old], var) for number, (old, var) in pairs if number not in block.streamed]


@dataclass
class _Regions:
    """Lowers the equations of a Block in order; the body of a loop or a branch becomes a Repeat or an If.

    Attributes:
        parts: by value, the program that brings an iteration's part of an input.
        begins: by loop, the programs that set its totals to zero.
        arranged: puts transfers beside computation, in programs that run one after another.
    """

    lowering: Lowering
    block: Block
    far: Mapping[Var, RemoteBuffer]
    parts: Mapping[Var, Program]
    begins: Mapping[Loop, list[Program]]
    arranged: Callable[[list[Program]], list[Program]]

    def add(self, steps: Iterable[EquationSpan | RegionSpan], start: int | None = None, *, looped: bool = False) -> int:
        """Adds steps to the programs so far; those of a loop are `looped`.

        Returns:
            The place among them of the equation that has the number `start`, or 0.
        """
        begin, lowering = 0, self.lowering
        for step in steps:
            if isinstance(step, EquationSpan):
                positions = range(step.first, step.last)
                found = _lower_equations(lowering, self.block, self.far, positions, start, looped=looped)
                begin = found or begin
                continue
            match step.equation.region:
                case Scan() as scan:
                    part = ScanLowering(lowering, scan, shown_tables(self.block))
                    part.begin()
                    outside, lowering.programs = lowering.programs, []
                    self.add(step.steps, looped=True)
                    _write_back(lowering, part.carried())
                    lowering.programs += part.next_place()
                    program: Program = Sequence(*part.end(part.repeat(self.arranged(lowering.programs))))
                case Loop() as loop:
                    lowering.programs += self.begins[loop]
                    outside, lowering.programs = lowering.programs, [self.parts[part] for _, part in loop.fed]
                    self.add(step.steps, looped=True)
                    _write_back(lowering, [(lowering.tensors[old], new) for old, new in loop.carries])
                    program = Repeat(loop.count, Sequence(*self.arranged(lowering.programs)))
                # Lowering appends to `programs`: each body gets a list of its own, then the one outside goes on.
                case Branch() as branch:
                    outside, lowering.programs = lowering.programs, []
                    self.add(step.steps, looped=looped)
                    _write_back(lowering, _replaced(lowering, self.block))
                    program = If(lowering.tensors[branch.flag], Sequence(*self.arranged(lowering.programs)))
                case other:
                    raise NotImplementedError(f"no lowering of {other!r}")
            lowering.programs = outside
            lowering.programs.append(program)
        return begin


def _entries(graph: Graph) -> tuple[Tensor, Tensor]:
    """Two int32 variables of one element: the remote buffers' entry of the state, and that of the new state."""
    old, new = (add_array(graph, "int32", (1,), name, temporary=False) for name in ENTRIES)
    return old, new


def _buffers(block: Block) -> dict[Var, RemoteBuffer]:
    """What lies in streaming memory: of the carried state, and of values that gradients read."""
    names = value_names(block)
    offloaded = (equation.output for equation in equations_of(block) if equation.output in block.offloaded)
    branch = branch_of(block)
    # The old state has to stay until the guard has said whether the step counts.
    entries = 2 if branch and branch.beside else 1
    far = [(block.inputs[number], entries) for number in sorted(block.streamed)] + [(var, 1) for var in offloaded]
    return {var: RemoteBuffer(names[var], var.type.format, var.type.shape, count) for var, count in far}


def _lower_equations(
    lowering: Lowering, block: Block, far: Mapping[Var, RemoteBuffer], positions: range, start: int | None = None,
    *, looped: bool = False,
) -> int:  # fmt: skip
    """Adds equations in order, with the loads before and the stores after them; those that run at once as one.

    Returns:
        The place among the programs of the equation that has the number `start`, or 0.
    """
    begin = 0
    old, new = lowering.entries or (0, 0)
    moved, tensors = transfers(block), lowering.tensors
    groups, waiting = {number: group for group in lowering.fused for number in group}, list[list[Program]]()
    stores = list[Program]()
    for position in positions:
        loads = moved.loads.get(position, ())
        lowering.programs += [RemoteLoad(far[var], tensors[var], 0 if var in block.offloaded else old) for var in loads]
        equation, first = equations_of(block)[position], len(lowering.programs)
        begin = first if equation.number == start else begin
        known = len(lowering.graph.variables)
        lower_equation(lowering, equation)
        if looped:
            born = lowering.graph.variables[known:]
            lowering.programs[first:first] = undefined(born, lowering.programs[first:])
        steps = lowering.programs[first:]
        if group := groups.get(equation.number):
            waiting += [steps] if steps else []
            del lowering.programs[first:]
            if equation.number == group[-1]:
                lowering.programs += fused(lowering.graph, waiting)
                waiting.clear()
        # One program, so that no transfer begins among the supersteps of an equation.
        elif steps and equation.op not in VIEWS:
            lowering.programs[first:] = [Sequence(*in_phases(steps))]
        made = [(outputs_of(block)[i], block.inputs[i]) for i in moved.stores.get(position, ())]
        stores += [RemoteStore(tensors[var], far[place], new) for var, place in made]
        stores += [RemoteStore(tensors[var], far[var]) for var in moved.offloads.get(position, ())]
        # Stores wait for the joined compute set that makes what they store.
        if not waiting:
            lowering.programs += stores
            stores.clear()
    return begin


def _swap(lowering: Lowering, entries: tuple[Tensor, Tensor]) -> Program:
    """Exchanges the two entry numbers, so that the next step finds the new state as its old one."""
    old, new = entries
    copies = list[Program]()
    # Two copies alone would lose one of the numbers.
    before = copied(lowering.graph, copies, old, f"{ENTRIES[0]}: before")
    return Sequence(*copies, Copy(new, old, ENTRIES[0]), Copy(before, new, ENTRIES[1]))


def _write_back(lowering: Lowering, pairs: list[tuple[Tensor, Var]]) -> None:
    """Copies new values over the old ones: all sources are first copied that another copy would overwrite."""
    pending = []
    for old, var in pairs:
        new, view = lowering.tensors[var], lowering.views[var]
        if view.whole and lowering.tensors[view.root] is old:  # computed in place
            continue
        overwritten = any(new.variable is other.variable for other, _ in pairs)  # as where two states trade places
        pending.append((lowering.copy(new, f"new {old.variable.name}") if overwritten else new, old))
    back = [Copy(new, old, f"write back {old.variable.name}") for new, old in pending if old.size]
    lowering.programs += in_phases(back)
