"""The gradient of a scan: a scan that begins with the last place, and what the forward one has to keep for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from ipu_core.ir.block import Equation, Literal, Params, Type, Var
from ipu_core.ir.bodies import flat, left_rows, region_numbers
from ipu_core.ir.ops import OPS, SET_ROW, VIEWS
from ipu_core.ir.regions import Scan
from ipu_core.ir.trace.builder import Builder
from ipu_core.ir.trace.full import Full
from ipu_core.ir.trace.loops import Carried, carried_type, loop_along, row_at, row_set, seen_as
from ipu_core.ir.trace.traced import TracedArray
from ipu_core.ir.trace.values import Traced, Value, apply, elementwise, scope

Cotangents = dict[Var, Traced]
Read = Callable[[Var], Value]
"""From a value of the forward pass to what stands for it where a gradient reads it."""

Meet = Callable[[Equation, Cotangents], bool]
"""Whether an equation's cotangent, if there is one, has been passed on already."""

Pull = Callable[[Sequence[Equation], Cotangents, Read, Meet], None]
"""Passes cotangents back through equations, to all that they read."""


@dataclass
class Kept:
    """What forward scans keep for gradients: rows of tables, by the number of the scan.

    Attributes:
        builder: the trace, which gives the numbers of the equations that set rows.
        tables: of a scan, by value of its body, what holds it for all places.
        owners: by table, the scan that leaves its rows.
    """

    builder: Builder
    tables: dict[int, dict[Var, Var]] = field(default_factory=dict)
    owners: dict[Var, int] = field(default_factory=dict)
    _carries: dict[int, list[tuple[Var, Var]]] = field(default_factory=dict)
    _after: dict[tuple[int, Var], list[Equation]] = field(default_factory=dict)

    def table(self, scan: Equation, var: Var, layer: str | None) -> Var:
        """The table of a value of a scan's body, and of a layer, after the last place."""
        assert isinstance(scan.region, Scan)
        tables = self.tables.setdefault(scan.number, {})
        if var not in tables:
            count, size = scan.region.count, var.type.size
            before = Var(f"kept.{var.name}", Type((count, size), var.type.format))
            row = Type((1, size), var.type.format)
            view = self._equation("reshape", (var,), Params({"shape": row.shape}), row, layer)
            new = self._equation(SET_ROW, (view.output, scan.region.place, before), Params({}), before.type, layer)
            tables[var] = new.output
            self.owners[new.output] = scan.number
            self._carries.setdefault(scan.number, []).append((before, new.output))
            self._after[scan.number, var] = [view, new]
        return tables[var]

    def _equation(self, op: str, inputs: tuple[Var, ...], params: Params, kind: Type, layer: str | None) -> Equation:
        number, self.builder.number = self.builder.number, self.builder.number + 1
        return Equation(number, op, inputs, (Var(str(number), kind),), params, family=OPS[op].family, layer=layer)

    def placed(self, equations: Iterable[Equation], scan: int = 0) -> list[Equation]:
        """The equations, of the body of a scan or of none, with what sets rows just behind what makes them."""
        result = list[Equation]()
        for equation in equations:
            made = equation.outputs
            if (region := equation.region) is not None:
                body = self.placed(region.body.equations, equation.number)
                if isinstance(region, Scan):
                    body = [*self._setting(equation.number, region.own), *body]
                    more = self._carries.get(equation.number, [])
                    region = region.carrying(*more)
                    made = region.results
                equation = replace(equation, region=replace(region, body=replace(region.body, equations=tuple(body))))
            result.append(equation)
            result += self._setting(scan, made)
        return result

    def _setting(self, scan: int, values: Iterable[Var]) -> Iterator[Equation]:
        """What sets rows of some values of a scan's body. A result of a scan in it is made in both bodies."""
        return (each for var in values for each in self._after.get((scan, var), ()))


@dataclass
class ScanGradient:
    """The gradient of one scan.

    Attributes:
        builder: the trace.
        equation: the scan.
        needed: the values that have cotangents.
        kept: what is kept for it.
        read: what stands for values outside of the scan.
        pull: passes cotangents through the body.
        names: the role and the parameter that a cotangent of a value of outside has.
    """

    builder: Builder
    equation: Equation
    needed: set[Var]
    kept: Kept
    read: Read
    pull: Pull
    names: Callable[[Var], Mapping[str, str | None]]

    def __post_init__(self) -> None:
        assert isinstance(self.equation.region, Scan)
        self.scan = self.equation.region
        self.rows = left_rows(self.scan)
        self.inner = set(region_numbers(self.scan.body.equations))
        body = self.scan.body.equations
        self.made: dict[Var, Equation | None] = {var: None for var in self.scan.own}
        self.made |= {var: each for each in flat(body) for var in each.outputs}
        self.made |= {var: None for each in body if each.region is not None for var in each.outputs}

    def run(self, cotangents: Cotangents) -> None:
        """Passes the cotangents of the results on to what the scan begins with and reads."""
        given = {new: cotangents.pop(new) for _, new in self.scan.carries if new in cotangents}
        if not given:
            return
        ends = list[tuple[Var, Var, bool]]()  # by carry whose cotangent it is, or outside value: is it a start

        def body(place: Value) -> list[Carried]:
            inside, seen = dict[Var, Traced](), dict[Var, Value]({self.scan.place: place})
            carried = list[tuple[Var, Var, Var | Literal]]()
            for old, new in self.scan.carries:
                if old in self.needed and old not in self.rows:
                    before = Var(f"gradient.{old.name}", carried_type(old.type))
                    carried.append((old, before, self._start(given.get(new))))
                    value = TracedArray(self.builder, before)
                    _add(inside, new, value)
            parts = dict[Var, Traced]()

            def meet(equation: Equation, found: Cotangents) -> bool:
                return self._row(equation, found, place, given) or self._part(equation, found, parts)

            self.pull(self.scan.body.equations, inside, lambda var: self._value(var, place, seen), meet)
            zero = Full(self.builder, 0.0, ())
            result = [Carried(before, start, inside.pop(old, zero)) for old, before, start in carried]
            ends.extend((old, before, True) for old, before, _ in carried)
            for table, part in parts.items():
                whole = Var(f"gradient.{table.name}", table.type)
                with self._scope(part, table):
                    result.append(Carried(whole, Literal(0.0), row_set(self.builder, place, part, whole)))
                ends.append((table, whole, False))
            for var, cotangent in inside.items():
                if var not in self.made:
                    result.append(self._total(var, cotangent))
                    ends.append((var, result[-1].before, False))
            return result

        last = loop_along(self.builder, self.scan.count, body, backwards=not self.scan.backwards)
        starts = dict(zip((old for old, _ in self.scan.carries), self.scan.starts, strict=True))
        for (var, _, is_start), node in zip(ends, last, strict=True):
            to = starts[var] if is_start else var
            if isinstance(to, Var) and to in self.needed:
                value = seen_as(self.builder, node, to.type.shape)
                assert isinstance(value, Traced)
                with self._scope(value, to):
                    _add(cotangents, to, value)

    def _scope(self, value: Traced, of: Var) -> AbstractContextManager[None]:
        """Marks what computes the cotangent of a value of outside."""
        names = self.names(of)
        return scope(value, role=names["role"], parameter=names["parameter"])

    def _start(self, given: Traced | None) -> Var | Literal:
        """The cotangent that a carry begins with, which is that of the last state."""
        if given is None:
            return Literal(0.0)
        return Literal(given.number) if isinstance(given, Full) else given.node

    def _total(self, var: Var, new: Traced) -> Carried:
        """The sum over places of the cotangent of what all of them read."""
        before = Var(f"gradient.{var.name}", carried_type(var.type))
        with self._scope(new, var):
            total = elementwise("add", seen_as(self.builder, before, var.type.shape), new)
        return Carried(before, Literal(0.0), total)

    def _row(self, equation: Equation, found: Cotangents, place: Value, given: Mapping[Var, Traced]) -> bool:
        """Whether it leaves a row, whose cotangent is the row of that of the table."""
        if equation.op != SET_ROW or self.rows.get(equation.operands[2]) is not equation:
            return False
        row, whole = equation.operands[0], given.get(equation.output)
        if whole is not None and row in self.needed:
            shape = row.type.shape
            alike = Full(self.builder, whole.number, shape) if isinstance(whole, Full) else None
            new = self._found(place, whole, shape) if alike is None else alike
            _add(found, row, new)
        return True

    def _part(self, equation: Equation, found: Cotangents, parts: dict[Var, Traced]) -> bool:
        """Whether it is the row of an array that each place has: the cotangent of that has rows too."""
        if equation.op != "gather" or equation.operands[1] is not self.scan.place:
            return False
        table = equation.operands[0]
        if table in self.made or equation.output not in found:
            return table not in self.made
        if table in self.needed:
            new = found.pop(equation.output)
            _add(parts, table, new)
        return True

    def _value(self, var: Var, place: Value, seen: dict[Var, Value]) -> Value:
        """What stands for a value of the forward pass at a place: a row that is kept of it, or what is made of such."""
        if var not in self.made and self.kept.owners.get(var) not in self.inner:
            return self.read(var)
        if var not in seen:
            maker = self.made.get(var)
            simple = maker is not None and (maker.op in VIEWS or self._is_part(maker))
            if maker is not None and simple:
                operands = [self._value(x, place, seen) if isinstance(x, Var) else x.value for x in maker.inputs]
                seen[var] = apply(maker.op, *operands, **maker.params)
            else:
                table = self.read(self.kept.table(self.equation, var, None if maker is None else maker.layer))
                seen[var] = self._found(place, table, var.type.shape)
        return seen[var]

    def _found(self, place: Value, table: Value, shape: tuple[int, ...]) -> Traced:
        """What a gradient finds in the row of a place."""
        with self.builder.scoped(role="grad_input"):
            row = row_at(place, table, shape)
        assert isinstance(row, Traced)
        return row

    def _is_part(self, equation: Equation) -> bool:
        """Whether it finds in an array what the place has of it."""
        return (
            equation.op == "gather"
            and equation.operands[1] is self.scan.place
            and equation.operands[0] not in self.made
        )


def _add(cotangents: Cotangents, var: Var, new: Value) -> None:
    """Adds to the cotangent of a value."""
    cotangents[var] = elementwise("add", cotangents[var], new) if var in cotangents else new
