"""The pass that casts the operands of a typed Block's products as an `OperandScaling` says, and carries its history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ipu_core.ir.block import Array, Atom, Block, Equation, Format, Literal, Type, Var
from ipu_core.ir.bodies import equations_of, fresh, hoisted, mapped, own_values, replicas_of, rewritten, with_body
from ipu_core.ir.ops import STRUCTURE, WHOLE_VIEWS
from ipu_core.ir.passes.appended import Appended
from ipu_core.ir.passes.schedule import dead_code
from ipu_core.ir.precision.amax_scales import STATE, extended, scale_of
from ipu_core.ir.precision.operand_scaling import ElementFormat, OperandScaling
from ipu_core.ir.precision.role_formats import RoleFormats, may_be_cast
from ipu_core.ir.precision.rotated_operands import Rotations
from ipu_core.ir.precision.said_rounding import read_rounding
from ipu_core.ir.regions import Loop
from lowprec import BlockFormat, FloatFormat, Rounding, block_formats
from lowprec import float32 as FLOAT32
from lowprec.values.rounding import NEAREST_EVEN

BACKWARD = ("grad_input", "grad_weight")
SCALED = "scaling"
"""Family of the equations that find scales and take them out of results."""

SCALED_CAST = "scaled_cast"
"""Family of the equations that cast operands with scales found from their values: what saturates there was to."""


def scale_products(block: Block, table: RoleFormats) -> Block:
    """The Block with the operands of its products cast.

    With "delayed" scales a training step carries {"amax_history": (steps, tensors), "scale": (tensors,)} as the last
    part of its state, "scaling"; a Block that carries no state takes the current amax instead.

    Args:
        block: typed by `Retype`; products in wider formats than the table's, which a function asked for, stay.
        table: how each product's operands are cast, and formats and rounding of what is not.

    Raises:
        ValueError: a state to be extended that is no dict, or has parts called later than "scaling".
    """
    return _ScaledProducts(block, table).run()


class _ScaledProducts(Appended):
    """One run of the pass.

    Attributes:
        own: the table of the product that is made.
        scaling: how its operands are cast.
        casts: what operands became, by value and all that a cast of it depends on.
        rotations: of operands.
        scales: of tensors, by value, format and how scales are found.
        inverses: of scales.
        stand_ins: views of casts, each with the view of what was cast.
        amaxes: of tensors with a history, in the order of `slots`.
        slots: where the history of a tensor lies, by value and format; None: there is no history.
    """

    def __init__(self, block: Block, table: RoleFormats) -> None:
        super().__init__(fresh(block.equations))
        self.block, self.table, self.own = block, table, table
        self.scaling = table.scaling or OperandScaling()
        self.made = {e.output: e for e in equations_of(block)}
        self.casts: dict[tuple[Any, ...], Var] = {}
        self.scales: dict[tuple[Any, ...], Atom] = {}
        self.inverses: dict[Atom, Var] = {}
        self.constants: dict[Var, Array] = {}
        self.rotations = Rotations(self, self.constants)
        self.stand_ins: dict[Var, Equation] = {}
        self.amaxes: list[Var] = []
        self.slots: dict[tuple[Var, ElementFormat], int] | None = None
        if self.scaling.how == "delayed" and block.carried:
            self.slots = {tensor: slot for slot, tensor in enumerate(dict.fromkeys(self._with_history()))}
            length = self.scaling.amax_history_len
            self.history = Var(f"{STATE}.amax_history", Type((length, len(self.slots)), FLOAT32))
            self.old_scales = Var(f"{STATE}.scale", Type((len(self.slots),), FLOAT32))

    def run(self) -> Block:
        """The new Block."""
        self.equations = rewritten(self.block.equations, self._straight, self._region)
        # Each product had its own: what is carried from step to step is cast as the table says.
        self.scaling = self.table.scaling or self.scaling
        block = replace(self.block, constants={**self.block.constants, **self.constants})
        if self.slots:
            block = self._carrying(block)
        block = hoisted(dead_code(replace(block, equations=tuple(self.equations))))
        used = {equation.number for equation in equations_of(block)}
        return mapped(block, lambda equation: self._renumbered(equation, used))

    def _straight(self, equations: Sequence[Equation]) -> list[Equation]:
        """New equations for some that stand together."""
        self.equations = []
        for equation in equations:
            scaling = self._scaling_of(equation)
            if scaling is None:
                self.equations.append(equation)
            else:
                self.own, self.scaling = self.table.at(equation), scaling
                self._product(equation)
        return self.equations

    def _renumbered(self, equation: Equation, used: set[int]) -> Equation:
        """A view of a cast with the number of that which nothing reads any more."""
        like = self.stand_ins.get(equation.output)
        if like is None or like.number in used:
            return equation
        used.add(like.number)
        return replace(equation, number=like.number)

    def _with_history(self) -> Iterator[tuple[Var, ElementFormat]]:
        """The tensors whose scales are delayed, in the order in which they are first cast."""
        for equation in equations_of(self.block):
            scaling = self._scaling_of(equation)
            if scaling is not None and scaling.how == "delayed":
                self.scaling = scaling
                yield from ((self._root(x), self._format(x)) for x in equation.operands)

    def _scaling_of(self, equation: Equation) -> OperandScaling | None:
        """How the operands of an equation are cast; None: they are not."""
        if not may_be_cast(equation):
            return None
        own = self.table.at(equation)
        formats = (own.operands, own.gradients)
        return own.scaling if all(x.type.format in formats and x.type.size for x in equation.operands) else None

    def _product(self, equation: Equation) -> None:
        """A product of cast operands, and what takes their scales out of it."""
        about = {
            "role": equation.role, "parameter": equation.parameter, "family": SCALED, "checkpoint": equation.checkpoint
        }  # fmt: skip
        axes = summed_axes(equation)
        sources = equation.operands
        if self.scaling.rotation is not None:
            sources = tuple(self._rotated(x, axis, equation) for x, axis in zip(sources, axes, strict=True))
        operands = [self._cast(x, axis, equation) for x, axis in zip(sources, axes, strict=True)]
        scales = [self._scale(self._root(x), self._format(x), equation) for x in sources]
        factor = self._inverse(scales, about)
        if factor is None:
            self.equations.append(replace(equation, inputs=tuple(operands)))
            return
        if self.scaling.inside:
            self._scaled_inside(equation, operands, factor, about)
            return
        accumulate = equation.arithmetic.accumulate
        # Partial sums in float32 are not rounded on their way to a float32 result: nothing would be drawn for them.
        exact = accumulate is None or accumulate.contains(FLOAT32)
        own = equation.arithmetic
        sums = own.rounding if own.partials is None else own.partials
        arithmetic = replace(own, rounding=NEAREST_EVEN if exact else sums, partials=None, once=False)
        wide = Var(f"{equation.number}.scaled", Type(equation.output.type.shape, FLOAT32))
        self.equations.append(replace(equation, inputs=tuple(operands), outputs=(wide,), arithmetic=arithmetic))
        self._rounded("multiply", wide, factor, fmt=_float(equation.output), **about)
        last = replace(self.equations[-1], outputs=equation.outputs)
        # A rounding that is said of the results is of what they are when the scales are out of them.
        said = replace(last.arithmetic, rounding=own.rounding, once=True) if own.once else last.arithmetic
        self.equations[-1] = replace(last, arithmetic=said)

    def _scaled_inside(
        self, equation: Equation, operands: Sequence[Var], factor: Atom, about: Mapping[str, Any]
    ) -> None:
        """A product that multiplies the scales in itself; a convolution has them in its first operand, in float32."""
        a, b = operands
        if equation.op == "dot":
            inputs = a, b, self._value(factor)
            self.equations.append(replace(equation, op="scaled_dot", inputs=inputs))
        else:
            wide = self.emit("multiply", a, factor, fmt=FLOAT32, **about)
            self.equations.append(replace(equation, inputs=(wide, b)))

    def _value(self, factor: Atom) -> Var:
        """A number as a value of the Block."""
        if isinstance(factor, Var):
            return factor
        known = next((var for var, array in self.constants.items() if float(array) == factor.value), None)
        if known is None:
            known = Var(f"{STATE}.{factor}", Type((), FLOAT32))
            self.constants[known] = np.array(factor.value, np.float32)
        return known

    def _inverse(self, scales: Sequence[Atom], about: Mapping[str, Any]) -> Atom | None:
        """What a product of scaled operands is multiplied by; None: nothing, the scales are 1."""
        if all(isinstance(scale, Literal) for scale in scales):
            number = float(np.prod([scale.value for scale in scales if isinstance(scale, Literal)]))
            return None if number == 1 else Literal(1 / number)
        for scale in scales:
            if scale not in self.inverses:
                self.inverses[scale] = self.emit("reciprocal", scale, fmt=FLOAT32, **about)
        a, b = (self.inverses[scale] for scale in scales)
        return self.emit("multiply", a, b, fmt=FLOAT32, **about)

    def _rotated(self, var: Var, axis: int, product: Equation) -> Var:
        """An operand in float32, rotated in blocks along an axis."""
        about = self._about_cast(var, product) | {"family": SCALED}
        turned = self.rotations.rotated(var, axis, product, self.scaling, about)
        self.made.setdefault(turned, self.equations[-1])
        return turned

    def _root(self, var: Var) -> Var:
        """The value that a chain of views shows whole."""
        while (equation := self.made.get(var)) is not None and equation.op in WHOLE_VIEWS:
            var = equation.operands[0]
        return var

    def _format(self, var: Var) -> ElementFormat:
        """What an operand is cast to: cotangents have a format of their own."""
        return self.scaling.backward if self._is_backward(var) else self.scaling.forward

    def _is_backward(self, var: Var) -> bool:
        while (equation := self.made.get(var)) is not None and equation.op in STRUCTURE:
            var = equation.operands[0]
        return equation is not None and equation.role in BACKWARD

    def _cast(self, var: Var, axis: int, product: Equation) -> Var:
        """An operand in its format: a tensor once for all its views, blocks anew along each axis that is summed."""
        fmt = self._format(var)
        about = self._recipe(fmt), self._rounding(var, fmt), self.scaling.scale_rule
        key = (var, axis if isinstance(fmt, BlockFormat) else None, *about)
        if key not in self.casts:
            scale = self._scale(self._root(var), fmt, product)
            given = var, scale, product
            if isinstance(fmt, BlockFormat):
                self.casts[key] = self._cast_blocks(fmt, axis, *given)
            else:
                self.casts[key] = self._cast_tensor(fmt, *given)
        return self.casts[key]

    def _cast_tensor(self, fmt: FloatFormat, var: Var, scale: Atom, product: Equation) -> Var:
        equation = self.made.get(var)
        if equation is not None and equation.op in WHOLE_VIEWS:
            about: dict[str, Any] = {
                name: getattr(equation, name) for name in ("role", "family", "parameter", "checkpoint")
            }
            shown = self.emit(equation.op, self._cast(equation.operands[0], 0, product), **about, **equation.params)
            self.stand_ins[shown] = equation
            return shown
        about = self._about_cast(var, product)
        # So that the guard of a step knows: what saturates here was brought to the edge of the format on purpose.
        if self.scaling.scales_tensors:
            about["family"] = SCALED_CAST
        if _is_one(scale) and var.type.format == fmt:
            return var
        op, inputs = ("convert", (var,)) if _is_one(scale) else ("multiply", (var, scale))
        return self.emit(op, *inputs, fmt=fmt, rounding=self._rounding(var, fmt), once=self.scaling.cast_once, **about)

    def _cast_blocks(self, fmt: BlockFormat, axis: int, var: Var, scale: Atom, product: Equation) -> Var:
        """Blocks along an axis, as the values that they stand for."""
        about = self._about_cast(var, product) | {"family": SCALED_CAST}
        rounding, values = self._rounding(var, fmt), var
        if not _is_one(scale):
            values = self.emit("multiply", var, scale, fmt=FLOAT32, **about)
        rule = self.scaling.scale_rule or fmt.scale_rules[0]
        # A format of one's own has no name that `to_blocks` knows.
        format_ = fmt.name if block_formats.get(fmt.name) == fmt else fmt
        named: dict[str, Any] = {"format": format_, "axis": axis, "rule": rule}
        return self.emit("to_blocks", values, fmt=FLOAT32, rounding=rounding, **named, **about)

    def _about_cast(self, var: Var, product: Equation) -> dict[str, Any]:
        """Role, parameter and checkpoint of what casts a value: those of what makes it, where an equation does."""
        maker = self.made.get(self._root(var))
        role = "forward" if maker is None else maker.role
        like = maker or product
        return {"role": role, "parameter": like.parameter, "family": "cast", "checkpoint": like.checkpoint}

    def _rounded(self, op: str, *inputs: Atom, fmt: FloatFormat, **about: Any) -> Var:
        """An equation whose result is rounded as the table says."""
        formats = [_float(x) for x in inputs if isinstance(x, Var)]
        return self.emit(op, *inputs, fmt=fmt, rounding=self.own.rounding_of(op, formats, fmt), **about)

    def _rounding(self, var: Var, fmt: ElementFormat) -> Rounding:
        """How a cast rounds."""
        scaling = self.scaling
        said = scaling.backward_rounding if self._is_backward(var) else scaling.forward_rounding
        if said is not None:
            return read_rounding(said)
        return self.own.rounding_of("convert", [FLOAT32], fmt.element if isinstance(fmt, BlockFormat) else fmt)

    def _scale(self, root: Var, fmt: ElementFormat, product: Equation) -> Atom:
        """The scale of a tensor."""
        if self.scaling.how == "static":
            back = self._is_backward(root)
            return Literal(float(self.scaling.backward_scale if back else self.scaling.forward_scale))
        if not self.scaling.scales_tensors:
            return Literal(1.0)
        key = (root, *self._recipe(fmt))
        if key not in self.scales:
            about = self._about_cast(root, product) | {"family": SCALED}
            amax = self.largest(root, **about)
            if self.slots is None or self.scaling.how != "delayed":
                goal = Literal(self.scaling.goal(fmt))
                self.scales[key] = scale_of(self, self.scaling, amax, goal, Literal(1.0), about)
            else:
                self.scales[key] = self._old_scale(self.slots[root, fmt], about)
                self.amaxes.append(self.emit("convert", amax, fmt=FLOAT32, **about))
        return self.scales[key]

    def _recipe(self, fmt: ElementFormat) -> tuple[Any, ...]:
        """All that the scale of a tensor depends on but its values."""
        scaling = self.scaling
        static = (scaling.forward_scale, scaling.backward_scale) if scaling.how == "static" else None
        return fmt, scaling.how, static, scaling.power_of_two, scaling.inside, scaling.margin

    def _old_scale(self, slot: int, about: Mapping[str, Any]) -> Var:
        """The scale that earlier steps left for a tensor."""
        assert slot == sum(
            max(1, x.type.size) for x in self.amaxes
        )  # slots are in the order in which tensors are first cast
        one = self.emit("slice", self.old_scales, start=(slot,), stop=(slot + 1,), step=(1,), **about)
        return self.emit("reshape", one, shape=(), **about)

    def _all_amaxes(self) -> Var:
        """The amaxes of all tensors, one after another."""
        rows = [self.emit("reshape", amax, shape=(amax.type.size,), family=SCALED) for amax in self.amaxes]
        return rows[0] if len(rows) == 1 else self.emit("concatenate", *rows, axis=0, family=SCALED)

    def _region(self, equation: Equation, body: list[Equation]) -> Equation:
        """A loop; the amax of what it casts is the largest of all iterations."""
        loop, made = equation.region, own_values(body)
        before, inside = ([x for x in self.amaxes if (x in made) is here] for here in (False, True))
        if inside and isinstance(loop, Loop):
            self.equations, self.scaling = body, self.table.scaling or self.scaling
            self.amaxes = inside
            now = self._all_amaxes()
            old = Var("total.amax", now.type)
            new = self.emit("maximum", old, now, family=SCALED)
            self.amaxes = [*before, new]
            equation = replace(equation, region=loop.carrying((old, new)))
        return with_body(equation, body)

    def _carrying(self, block: Block) -> Block:
        """The step with history and scales in its state: new amaxes come first, scales are those of the next step."""
        assert self.slots is not None
        steps, tensors = self.history.type.shape
        # What a loop over micro-batches has is all of them already.
        amax = new = self.amaxes[0] if self.amaxes[0].type.shape == (tensors,) else self._all_amaxes()
        if (replicas := replicas_of(block)) > 1:  # one scale for all: of the largest that any of them had
            amax = new = self.emit("all_reduce_max", new, replicas=replicas, family=SCALED)
        history = self.emit("reshape", new, shape=(1, tensors), family=SCALED)
        if steps > 1:
            kept = self.emit("slice", self.history, start=(0, 0), stop=(steps - 1, tensors), step=(1, 1), family=SCALED)
            history = self.emit("concatenate", history, kept, axis=0, family=SCALED)
        if self.scaling.amax_compute_algo == "max":
            amax = self.emit("reduce_max", history, axis=(0,), keepdims=False, family=SCALED)
        goal = Var(f"{STATE}.goal", new.type)
        goals: Array = np.array([self.scaling.goal(fmt) for _, fmt in self.slots], np.float32)
        scales = scale_of(self, self.scaling, amax, goal, self.old_scales, {"family": SCALED})
        carried = block.carried
        inputs = (*block.inputs[:carried], self.history, self.old_scales, *block.inputs[carried:])
        outputs = (*block.outputs[:carried], history, scales, *block.outputs[carried:])
        first, *others = block.arguments
        result = block.result
        if result is not None:
            result = replace(result, children=(extended(result.children[0]), *result.children[1:]))
        return replace(
            block, inputs=inputs, outputs=outputs, carried=carried + 2, constants={**block.constants, goal: goals},
            arguments=(extended(first), *others), result=result,
        )  # fmt: skip


SUMMED_AXES = {"conv2d": (3, 2), "conv2d_input_gradient": (3, 3), "conv2d_weight_gradient": (0, 0)}
"""Of the operands of convolutions: channels, and for the weights the images at one place, which all positions of the
kernel share."""


def summed_axes(equation: Equation) -> tuple[int, int]:
    """The axis of each operand of a product along which blocks lie: one that is summed."""
    if equation.op in SUMMED_AXES:
        return SUMMED_AXES[equation.op]
    ndim = len(equation.output.type.shape)
    return ndim - 1, ndim - 2


def _is_one(scale: Atom) -> bool:
    return isinstance(scale, Literal) and scale.value == 1


def _float(x: Var) -> FloatFormat:
    fmt: Format = x.type.format
    assert isinstance(fmt, FloatFormat)
    return fmt
