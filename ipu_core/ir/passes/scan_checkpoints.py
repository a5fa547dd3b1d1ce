"""Parts of a scan's body that are made again at each place of its gradient, from what the place began with.

The gradient of a scan reads rows that places have left (`ir.passes.scan_gradient`). Those of a part that is made again
are not left: the equations that make them are copied into the gradient's body. That goes over the same places with the
same keys, so that a copy with the number of the first draws the same bits. Left is what the part reads: the state
before the place, and what else of its body belongs to no such part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ipu_core.ir.block import Block, Equation, Params, RecomputedPart, Type, Var
from ipu_core.ir.bodies import closed, fresh, left_rows, regions_of, rewritten_regions
from ipu_core.ir.ops import OPS, SET_ROW, VIEWS
from ipu_core.ir.passes.schedule import dead_code
from ipu_core.ir.regions import Scan

Choice = Callable[[RecomputedPart], bool]


@dataclass
class _Forward:
    """A scan whose rows a gradient reads.

    Attributes:
        scan: which.
        made: by value of its body, what makes it; None: the body has it before.
        tables: by value that places leave, where.
        values: by table, the value.
        carries, extra: what is left besides.
    """

    scan: Scan
    carries: list[tuple[Var, Var]] = field(default_factory=list)
    extra: list[Equation] = field(default_factory=list)

    def __post_init__(self) -> None:
        equations = self.scan.body.equations
        self.made: dict[Var, Equation | None] = {var: None for var in self.scan.own}
        self.made |= {var: None if e.region is not None else e for e in equations for var in e.outputs}
        self.values = {each.output: self.kept(each.operands[0]) for each in left_rows(self.scan).values()}
        self.tables = {value: table for table, value in self.values.items()}

    def kept(self, row: Var) -> Var:
        """The value of which a row is."""
        maker = self.made.get(row)
        return maker.operands[0] if maker is not None and maker.op == "reshape" else row

    def computed(self, var: Var) -> Equation | None:
        """What computes a value, or what it is a view of."""
        maker = self.made.get(var)
        while maker is not None and maker.op in VIEWS:
            maker = self.made.get(maker.operands[0])
        return maker


def with_scan_checkpoints(block: Block, chosen: Choice) -> Block:
    """The Block in whose scans' gradients the chosen parts are made again, place by place.

    Raises:
        ValueError: a part with a stash.
    """
    scans = [scan for scan, _ in regions_of(block, Scan)]
    forward = {each.output: one for one in map(_Forward, scans) for each in left_rows(one.scan).values()}
    copying = _Copies(chosen, forward, fresh(block.equations))
    bodies = {id(scan): copying.body(scan) for scan in scans}
    if not copying.copies:
        return block
    extended = {id(one.scan): one for one in forward.values()}

    def changed(equation: Equation) -> Equation:
        scan = equation.region
        if not isinstance(scan, Scan) or id(scan) not in bodies:
            return equation
        body, more = bodies[id(scan)], extended.get(id(scan))
        scan = replace(scan, body=replace(scan.body, equations=tuple(body)))
        if more is not None and more.carries:
            scan = replace(scan, body=replace(scan.body, equations=(*body, *more.extra))).carrying(*more.carries)
        return replace(equation, region=scan)

    return dead_code(closed(replace(block, equations=tuple(rewritten_regions(block.equations, changed)))))


class _Copies:
    """What has been copied.

    Attributes:
        copies: how many equations.
    """

    def __init__(self, chosen: Choice, forward: Mapping[Var, _Forward], number: int) -> None:
        self._chosen, self._forward, self._number = chosen, forward, number
        self.copies = 0

    def body(self, back: Scan) -> list[Equation]:
        """The equations of a scan's body, those that make again what it found in rows before them."""
        there, first, rest = dict[Var, Var](), list[Equation](), list[Equation]()
        for equation in back.body.equations:
            one = self._forward.get(equation.operands[0]) if self._finds_row(equation, back) else None
            if one is not None and one.scan.count == back.count and one.scan is not back:
                value = one.values[equation.operands[0]]
                maker = one.computed(value)
                if maker is not None and self._is_of_part(maker):
                    copy = self._copy(value, one, back, there, first)
                    equation = self._view(copy, equation)
            rest.append(equation)
        return [*first, *rest]

    def _finds_row(self, equation: Equation, scan: Scan) -> bool:
        return equation.op == "gather" and equation.operands[1] is scan.place

    def _is_of_part(self, equation: Equation) -> bool:
        part = equation.checkpoint
        if part is None or not self._chosen(part):
            return False
        if part.stash is not None:
            raise ValueError(
                f"{part.name} is in a scan and has a stash in {part.stash.name}: what a place of a scan begins with is "
                "kept as it is; leave stash= away, or put nn.checkpoint around what is no scan"
            )
        return True

    def _copy(self, var: Var, one: _Forward, back: Scan, there: dict[Var, Var], first: list[Equation]) -> Var:
        """What stands for a value of a forward body in that of its gradient."""
        if var not in one.made:
            return var
        if var is one.scan.place:
            return back.place
        if var not in there:
            maker = one.made[var]
            looked_up = maker is not None and self._finds_row(maker, one.scan) and maker.operands[0] not in one.made
            again = maker is not None and (looked_up or maker.op in VIEWS or self._is_of_part(maker))
            if maker is not None and again:
                new = {x: self._copy(x, one, back, there, first) for x in maker.operands}
                inputs = tuple(new[x] if isinstance(x, Var) else x for x in maker.inputs)
                there[var] = Var(f"{var.name}.again", var.type)
                copy = replace(maker, number=self._next(), inputs=inputs, outputs=(there[var],), drawn=maker.keyed)
                self.copies += maker.op not in VIEWS
            else:
                row = Var(f"{var.name}.row", Type((1, var.type.size), var.type.format))
                found = self._equation("gather", (self._table(var, one), back.place), Params({}), row)
                first.append(found)
                there[var] = Var(f"{var.name}.kept", var.type)
                copy = self._equation("reshape", (row,), Params({"shape": var.type.shape}), there[var])
            first.append(copy)
        return there[var]

    def _table(self, var: Var, one: _Forward) -> Var:
        """Where places leave a value."""
        if var not in one.tables:
            count, size, fmt = one.scan.count, var.type.size, var.type.format
            before, new = (Var(f"{name}.{var.name}", Type((count, size), fmt)) for name in ("kept", "left"))
            row = Var(f"row.{var.name}", Type((1, size), fmt))
            one.extra.append(self._equation("reshape", (var,), Params({"shape": row.type.shape}), row, "forward"))
            one.extra.append(self._equation(SET_ROW, (row, one.scan.place, before), Params({}), new, "forward"))
            one.carries.append((before, new))
            one.tables[var] = new
        return one.tables[var]

    def _view(self, copy: Var, instead: Equation) -> Equation:
        """A row that is made again, in the place of one that was found."""
        shape = Params({"shape": instead.output.type.shape})
        return replace(instead, op="reshape", inputs=(copy,), params=shape, family=OPS["reshape"].family)

    def _equation(
        self, op: str, inputs: tuple[Var, ...], params: Params, output: Var, role: str = "grad_input"
    ) -> Equation:
        return Equation(self._next(), op, inputs, (output,), params, role, OPS[op].family)

    def _next(self) -> int:
        self._number += 1
        return self._number - 1
