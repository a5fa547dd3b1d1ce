"""Lowers a scan: what it begins with, where its tables lie, the Repeat, and what is read of it after."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipu_core.compile.lowering.context import Lowering
from ipu_core.graph.program import Copy, Program, Repeat
from ipu_core.graph.program import Sequence as ProgramSequence
from ipu_core.graph.tensor import Tensor
from ipu_core.ir.block import Block, Literal, Var
from ipu_core.ir.bodies import equations_of, left_rows, regions_of
from ipu_core.ir.regions import Scan
from ipu_core.library.elementwise import add_array, map_array
from ipu_core.library.moves import fill
from ipu_core.library.places import PlaceTable, advance


@dataclass(frozen=True)
class ScanLowering:
    """One scan on tiles.

    Attributes:
        lowering: what has been made so far.
        scan: which.
        shown: tables that others than places of scans read.
    """

    lowering: Lowering
    scan: Scan
    shown: frozenset[Var]

    def begin(self) -> None:
        """Adds what is done before the first place."""
        lowering, scan = self.lowering, self.scan
        graph, programs, name = lowering.graph, lowering.programs, f"{len(lowering.counters)} places"
        first = scan.places[0]
        number = map_array(graph.target, graph.add_constant("int32", np.array([first], np.int32), f"{name}: first"))
        lowering.tensors[scan.place] = add_array(
            graph, "int32", (1,), name, first=lowering.plan.starts.get(scan.place, 0)
        )
        lowering.counters.add(scan.place)
        programs.append(Copy(number, lowering.tensors[scan.place], f"{name}: first"))
        rows = left_rows(scan)
        for (old, _), start in zip(scan.carries, scan.starts, strict=True):
            if old in rows:
                lowering.tables[old] = PlaceTable.add(graph, old.type.format, _two(old), old.name)
                programs += lowering.tables[old].undefined()
            else:
                to = lowering.tensors[old]
                programs += (
                    fill(graph, to, start.value, name=f"{old.name}: start")
                    if isinstance(start, Literal)
                    else [Copy(lowering.tensors[start], to, f"{old.name}: start")]
                )
        for table in self._looked_up():
            if table not in lowering.tables:
                made = lowering.tables[table] = PlaceTable.add(
                    graph, table.type.format, _two(table), f"{table.name}: rows"
                )
                programs += made.filled(lowering.tensors[table])

    def _looked_up(self) -> list[Var]:
        """Arrays of which each place looks up its row."""
        equations, place = self.scan.body.equations, self.scan.place
        every = [e.operands[0] for e in equations if e.region is None and e.op == "gather" and e.operands[1] is place]
        return [table for table in dict.fromkeys(every) if table.type.size]

    def end(self, repeat: Repeat) -> list[Program]:
        """What is done after the last place: tables that are read as arrays are put together."""
        lowering, programs = self.lowering, list[Program]([repeat])
        for equation in left_rows(self.scan).values():
            var = equation.output
            if var in self.shown:
                lowering.tensors[var] = lowering.add(var, equation.name)
                programs += lowering.tables[var].shown(lowering.tensors[var])
        return programs

    def carried(self) -> list[tuple[Tensor, Var]]:
        """What is written back at the end of a place."""
        rows = left_rows(self.scan)
        return [(self.lowering.tensors[old], new) for old, new in self.scan.carries if old not in rows]

    def next_place(self) -> list[Program]:
        """Moves the counter on."""
        place = self.lowering.tensors[self.scan.place]
        return advance(self.lowering.graph, place, self.scan.places.step, f"{place.variable.name}: next")

    def repeat(self, programs: Sequence[Program]) -> Repeat:
        """The loop."""
        return Repeat(self.scan.count, ProgramSequence(*programs), backwards=self.scan.backwards)


def _two(var: Var) -> tuple[int, int]:
    rows, columns = var.type.shape
    return rows, columns


def shown_tables(block: Block) -> frozenset[Var]:
    """What something reads otherwise than by the row of its place."""
    places = {scan.place for scan, _ in regions_of(block, Scan)}
    read = {
        var for equation in equations_of(block) for at, var in enumerate(equation.operands)
        if not (equation.op == "gather" and at == 0 and equation.operands[1] in places)
    }  # fmt: skip
    starts = {var for scan, _ in regions_of(block, Scan) for var in scan.operands}
    return frozenset(read | starts | set(block.outputs))
