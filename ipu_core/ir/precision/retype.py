"""The pass that types a step by a precision's table: formats of results, conversions of operands, arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ipu_core.ir.block import (
    Array,
    Atom,
    Block,
    Equation,
    EquationArithmetic,
    Format,
    Literal,
    Params,
    Region,
    Type,
    Var,
    format_name,
    is_wide,
)
from ipu_core.ir.bodies import carries_of, equations_of, fresh, hoisted, regions_of, with_body
from ipu_core.ir.ops import (
    EACH_REPLICA,
    INT32,
    LARGEST,
    OPS,
    PRODUCTS,
    SET_ROW,
    STRUCTURE,
    SUMS,
    VIEWS,
    WHOLE_VIEWS,
)
from ipu_core.ir.own_rounding import OwnRounding
from ipu_core.ir.passes.schedule import dead_code
from ipu_core.ir.precision.pinned import pinned_formats
from ipu_core.ir.precision.role_formats import RoleFormats, Rule
from ipu_core.ir.precision.rules import ROUNDINGS
from ipu_core.ir.precision.whitening import Whitening
from ipu_core.ir.regions import Loop, Scan
from lowprec import FloatFormat, Rounding, as_format, astype
from lowprec import float32 as FLOAT32
from lowprec import float64 as FLOAT64
from lowprec import round as rounded_values
from lowprec.arrays import whole_array
from lowprec.checks import listed
from lowprec.values.rounding import NEAREST_EVEN

BACKWARD = ("grad_input", "grad_weight")


def cast(value: Any, fmt: Format) -> Array:
    """An array in an element format, rounded to nearest even; halves and fp8 saturate, as on the machine.

    Formats without a storage dtype are values of theirs in float32, or in float64 where that lacks some, and overflow
    as their own rule is.

    Raises:
        TypeError: masked elements.
        ValueError: the format is kept in float32, and a finite number is too large for that.
    """
    array = np.asarray(whole_array(value))
    if isinstance(fmt, str):
        with np.errstate(invalid="ignore"):
            return array.astype(np.int32)
    if is_wide(fmt):
        return np.asarray(rounded_values(array.astype(np.float64), fmt))
    if fmt == FLOAT32:
        return _narrowed(array)
    if fmt.dtype is None:
        return np.asarray(rounded_values(_narrowed(array), fmt))
    if array.dtype == fmt.dtype:
        return array.astype(fmt.dtype)
    return np.asarray(astype(array, fmt, overflow="ipu"))


def _narrowed(array: Array) -> Array:
    """An array in float32, which refuses what would become infinite: a half saturates, float32 would not."""
    with np.errstate(over="ignore"):
        result = array.astype(np.float32)
    if array.dtype.itemsize > result.itemsize and bool((lost := np.isinf(result) & np.isfinite(array)).any()):
        raise ValueError(f"{array[lost][0]:g} is beyond float32's largest number, {np.finfo(np.float32).max:g}")
    return result


def input_formats(block: Block, given: Sequence[Any]) -> list[Format]:
    """The formats that inputs come in.

    Raises:
        ValueError: not one for each, or a float's for integers.
    """
    named = [one if isinstance(one, str) and one == INT32 else as_format(one) for one in listed("inputs", given)]
    kinds = [isinstance(var.type.format, str) for var in block.inputs]
    if [one == INT32 for one in named] != kinds:
        wanted = ", ".join(INT32 if kind else "a float format" for kind in kinds) or "none"
        raise ValueError(f"the block takes inputs in the formats {wanted}, not {', '.join(map(str, named)) or 'none'}")
    return named


class Retype:
    """One run of the pass. Every old value has a new one in its own format, and others where they are asked for.

    Args:
        table: the precision's.
        block: what is typed.
        given: formats of the inputs, of which those of a carried state follow its new value; None: as traced.
    """

    def __init__(self, table: RoleFormats, block: Block, given: Sequence[Format] | None = None) -> None:
        self.table = table
        self.block = block
        self.given = [var.type.format for var in block.inputs] if given is None else given
        self.definitions = {e.output: e for e in equations_of(block)}
        self.equations: list[Equation] = []
        self.constants: dict[Var, Array] = dict(block.constants)
        self.fresh = fresh(block.equations)
        self.emitted: set[int] = set()
        self.natives: dict[Var, Var] = {var: var for var in block.constants}
        self.versions: dict[tuple[Var, Format, Rounding | None], Var] = {}
        self.read_inside = {var for region, _ in regions_of(block, Scan) for var in region.body.inputs}
        self.carries = dict(carries_of(block))
        self.owners: dict[Var, str | None] = {}
        self.pinned_formats = pinned_formats(block, self._own_format)
        self.whitening = Whitening(block) if table.norms == "operands" else None

    def run(self) -> Block:
        """The typed Block."""
        inputs = []
        for position, (var, fmt) in enumerate(zip(self.block.inputs, self.given, strict=True)):
            if position < self.block.carried:
                fmt = self._stored_format(var, self.block.outputs[position])
            inputs.append(self._typed(var, fmt))
        # Before any equation: bodies read totals that only their last equation makes.
        for old, new in self.carries.items():
            self._typed(old, self._stored_format(old, new))
        for scan, _ in regions_of(self.block, Scan):
            self.natives[scan.place] = Var(scan.place.name, scan.place.type)
        for whole, part in (pair for loop, _ in regions_of(self.block, Loop) for pair in loop.fed):
            self._typed(part, whole.type.format)
        self._body(self.block.equations)
        outputs = tuple(self._native(var) for var in self.block.outputs)
        typed = replace(self.block, inputs=tuple(inputs), outputs=outputs, constants=self.constants,
                        equations=tuple(self.equations))  # fmt: skip
        return hoisted(dead_code(typed))

    def _typed(self, var: Var, fmt: Format) -> Var:
        """The new value of one that no equation makes."""
        new = self.natives[var] = Var(var.name, Type(var.type.shape, fmt))
        return new

    def _body(self, equations: Sequence[Equation]) -> None:
        """Types equations one after another."""
        for equation in equations:
            if equation.region is not None:
                self.equations.append(self._region(equation, equation.region))
            elif equation.op not in STRUCTURE:
                self._retype(equation)
            elif equation.output in self.read_inside:
                self._native(equation.output)  # once, not at every place of a scan that asks for it

    def _region(self, equation: Equation, loop: Region) -> Equation:
        """A loop of typed equations; moves that only its totals are come last.

        Raises:
            NotImplementedError: a region of another kind; branches come later.
        """
        if not isinstance(loop, Loop):
            raise NotImplementedError(f"no typing of {loop!r}")
        befores = [self.natives[old] for old, _ in loop.carries]
        changes: dict[str, Any] = {"fed": tuple((self.natives[whole], self.natives[part]) for whole, part in loop.fed)}
        if isinstance(loop, Scan):
            starts = zip(loop.starts, befores, strict=True)
            changes |= {"starts": tuple(self._start(x, to.type.format) for x, to in starts)}
            changes |= {"place": self.natives[loop.place]}
        outside, self.equations = self.equations, []
        self._body(loop.body.equations)
        news = self._carried(loop, befores)
        body, self.equations = self.equations, outside
        carries = tuple(zip(befores, news, strict=True))
        return with_body(replace(equation, region=replace(loop, carries=carries, **changes)), body)

    def _carried(self, loop: Loop, befores: Sequence[Var]) -> list[Var]:
        """What becomes of what goes from one iteration to the next."""
        if not isinstance(loop, Scan):
            return [self._native(new) for _, new in loop.carries]
        news = list[Var]()
        for (_, new), before in zip(loop.carries, befores, strict=True):
            news.append(self._own(self._version(new, before.type.format), news))
        self.natives |= {new: own for (_, new), own in zip(loop.carries, news, strict=True)}
        return news

    def _start(self, start: Var | Literal, fmt: Format) -> Var | Literal:
        """What a carry begins with, in its format and in memory of its own."""
        return self._own(self._version(start, fmt)) if isinstance(start, Var) else start

    def _own(self, var: Var, others: Sequence[Var] = ()) -> Var:
        """A value that an equation of this body computes, and none of some others: itself or a copy."""
        own = (e.output for e in self.equations if e.region is None and e.op not in VIEWS)
        if var not in others and var in own:
            return var
        copy = Equation(-1, "concatenate", (var,), (var,), Params({"axis": 0}), family=OPS["concatenate"].family)
        return self._append(copy, (var,), var.type.format, None)

    def _stored_format(self, var: Var, new: Var) -> Format:
        """A carried state, or a total, is stored as its new value comes."""
        origin, seen = self._origin(new), {var}
        while origin in self.carries and origin not in seen:  # it is what another carry was before
            seen.add(origin)
            origin = self._origin(self.carries[origin])
        equation = self.definitions.get(origin)
        if equation is None:
            return self.natives.get(origin, origin).type.format
        if equation.role == "update":
            self.owners[var] = equation.parameter
        return self._output_format(equation)

    def _output_format(self, equation: Equation) -> Format:
        if equation.op == "convert" or isinstance(equation.output.type.format, str):
            return equation.output.type.format
        return self._rule(equation).output

    def _own_format(self, equation: Equation) -> FloatFormat | None:
        """The table's format of a result that a function may ask to be wider."""
        rule = self.table.at(equation).rule(equation.role, equation.family)
        return rule.output if rule.convert else None

    def _rule(self, equation: Equation) -> Rule:
        """What the table says for an equation, or the function asked for."""
        narrow = self.whitening is not None and self.whitening.has(equation)
        family = "elementwise" if narrow else equation.family
        rule = self.table.at(equation).rule(equation.role, family)
        asked = self.pinned_formats.get(equation.output)
        if asked is None:
            return rule
        return replace(rule, output=asked, accumulate=asked if asked.contains(rule.accumulate) else rule.accumulate,
                       convert=False, rounding=None)  # fmt: skip

    def _origin(self, var: Var) -> Var:
        """The value that a chain of moves shows, also one from the first replica."""
        moves = STRUCTURE | {"first_replica", EACH_REPLICA}
        while (equation := self.definitions.get(var)) is not None and equation.op in moves:
            var = equation.operands[0]
        return var

    def _retype(self, equation: Equation) -> None:
        rule = self._rule(equation)
        inputs = tuple(self._operand(equation, rule, x) if isinstance(x, Var) else x for x in equation.inputs)
        output = self._output_format(equation)
        plain = equation.op == "convert" and "rounding" not in equation.params
        if plain and isinstance(inputs[0], Var) and inputs[0].type.format == output:
            self.natives[equation.output] = inputs[0]
            return
        if equation.op in LARGEST and isinstance(inputs[-1], Var):
            output = inputs[-1].type.format  # one of the operand's values, as it is
        accumulate = self._accumulate(equation, rule, inputs) if equation.op in SUMS else None
        said = equation.params.get("rounding") if equation.op == "convert" else rule.rounding
        self.natives[equation.output] = self._append(
            equation, inputs, output, accumulate, said=said, partials=rule.partials if accumulate else None
        )

    def _accumulate(self, equation: Equation, rule: Rule, inputs: Sequence[Atom]) -> FloatFormat:
        """The format of the partial sums: where the table has float32 for all, float64 for what that lacks.

        Raises:
            ValueError: the table says other partial sums of such operands.
        """
        wide = [format_name(x.type.format) for x in inputs if isinstance(x, Var) and is_wide(x.type.format)]
        if not wide or is_wide(rule.accumulate):
            return rule.accumulate
        if rule.convert:
            raise ValueError(
                f"{equation.name} adds up {wide[0]}, which has values that float32 lacks, in partials of "
                f"{rule.accumulate.name}: say partials=float64, or operands and gradients that float32 holds"
            )
        return FLOAT64

    def _operand(self, equation: Equation, rule: Rule, var: Var) -> Var:
        if isinstance(var.type.format, str):
            return self._native(var)
        if equation.op in PRODUCTS and not rule.convert:
            # A product in a wider format, as a function asked for or as softmax has it inside: operands follow the
            # result.
            return self._version(var, rule.output, rule.rounding)
        origin = self._origin(var)
        if self.whitening is not None and self.whitening.has(equation) and self.whitening.is_statistic(var):
            return self._version(var, rule.output, rule.rounding)
        # Sums convert all that they read. Others take results as they come, and convert arrays of the outside alone: a
        # single number, such as a rate, stays whole.
        whole = OPS[equation.op].family in ("matmul", "conv", "reduction")
        if rule.convert and equation.op != "convert" and (whole or (origin not in self.definitions and var.type.shape)):
            definition = self.definitions.get(origin)
            backward = definition is not None and definition.role in BACKWARD
            table, field = self.table.at(equation), "gradients" if backward else "operands"
            return self._version(var, getattr(table, field), table.rounding_said(field))
        return self._native(var)

    def _native(self, var: Var) -> Var:
        """The new value in the format it is computed in. Moves are made when somebody asks for them."""
        if var not in self.natives:
            equation = self.definitions[var]
            inputs = [self._native(x) for x in equation.operands]
            if equation.op in WHOLE_VIEWS:
                self.natives[var] = self._version(var, inputs[0].type.format)
                return self.natives[var]
            formats = {x.type.format for x in inputs if not isinstance(x.type.format, str)}
            if equation.op == SET_ROW:
                inputs[0] = self._version(equation.operands[0], inputs[2].type.format)
            elif len(formats) > 1:
                table = self.table.at(equation)
                inputs = [self._version(x, table.operands, table.rounding_said("operands")) for x in equation.operands]
            self.natives[var] = self._append(equation, tuple(inputs), inputs[0].type.format, None)
        return self.natives[var]

    def _version(self, var: Var, fmt: Format, said: Rounding | None = None) -> Var:
        """The new value in a given format; a conversion behind a view is made in front of it instead, once.

        Args:
            var: the old value.
            fmt: the format.
            said: how it is rounded; None: as the table says.
        """
        known = self.versions.get((var, fmt, said))
        if known is None:
            known = self.versions[var, fmt, said] = self._make_version(var, fmt, said)
        return known

    def _make_version(self, var: Var, fmt: Format, said: Rounding | None) -> Var:
        equation = self.definitions.get(var)
        if equation is not None and equation.op in WHOLE_VIEWS:
            inputs = tuple(self._version(x, fmt, said) for x in equation.operands)
            return self._append(equation, inputs, fmt, None)
        base = self._native(var)
        if base.type.format == fmt:
            return base
        if base in self.constants and said is None:
            # A constant's bits are known: it is converted here, once, and not in every step.
            new = Var(f"{base.name}.{format_name(fmt)}", Type(base.type.shape, fmt))
            self.constants[new] = cast(self.constants[base], fmt)
            return new
        role = equation.role if equation is not None else "forward"
        convert = Equation(-1, "convert", (), (var,), Params({}), role, OPS["convert"].family, self.owners.get(var))
        if equation is not None:
            convert = replace(convert, layer=equation.layer, source=equation.source, checkpoint=equation.checkpoint)
        return self._append(convert, (base,), fmt, None, ruled=equation, said=said)

    def _append(
        self, like: Equation, inputs: tuple[Atom, ...], fmt: Format, accumulate: FloatFormat | None,
        ruled: Equation | None = None, said: Rounding | None = None, partials: Rounding | None = None,
    ) -> Var:  # fmt: skip
        """Appends an equation like another: with its number if that is not used yet, else with a fresh one.

        The table is asked for that, or for the equation whose result is converted; `said` and `partials` are how the
        result and its partial sums are rounded where that is said of their role.
        """
        number = like.number
        if number < 0 or number in self.emitted:
            number, self.fresh = self.fresh, self.fresh + 1
        self.emitted.add(number)
        output = Var(str(number), Type(like.output.type.shape, fmt))
        table = self.table.at(ruled or like)
        rounding, once = self._rounding(like.op, table, inputs, fmt, said)
        # A float32 result is not rounded, and does not say how its partial sums are.
        narrow = accumulate is not None and not accumulate.contains(FLOAT32)
        if narrow and partials is None and fmt == FLOAT32 and table.rounding != NEAREST_EVEN:
            partials = table.rounding
        arithmetic = EquationArithmetic(rounding, accumulate, partials=partials, once=once)
        self.equations.append(replace(like, number=number, inputs=inputs, outputs=(output,), arithmetic=arithmetic))
        return output

    def _rounding(
        self, name: str, table: RoleFormats, inputs: tuple[Atom, ...], output: Format, said: Rounding | None
    ) -> tuple[Rounding, bool]:
        """How a result is rounded, and whether once, from float32: exact ones never; the table decides for the rest."""
        formats = [f for x in inputs if isinstance(x, Var) and isinstance(f := x.type.format, FloatFormat)]
        exact = OPS[name].exact and all(_holds(output, f) for f in formats)
        # A function of one's own may round to what it likes, values of the format too.
        if isinstance(said, OwnRounding):
            return said, True
        if exact or not isinstance(output, FloatFormat) or output.contains(FLOAT32):
            return NEAREST_EVEN, False
        rounding = table.rounding_of(name, formats, output) if said is None else said
        return rounding, said is not None or rounding not in ROUNDINGS.values()


def _holds(output: Format, fmt: FloatFormat) -> bool:
    return isinstance(output, FloatFormat) and output.contains(fmt)
