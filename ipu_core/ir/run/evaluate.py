"""Evaluate a Block plainly: in ideal float64 arithmetic, or every equation as declared by its formats and rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.chip.control import FloatingPointControl
from ipu_core.ir.block import Array, Block, Equation, Format, Literal, Region, Var
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.exact import as_exact, exact
from ipu_core.ir.ops import INT32
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.regions import Branch, Loop, Scan, path_key
from ipu_core.ir.run.declared import declared
from ipu_core.ir.run.kernels import check_classes, given_order
from lowprec import Accumulation, Key
from lowprec.checks import by_number, expect, shown
from lowprec.processor import in_default_state
from lowprec.random import KeyLike, as_key

ARITHMETICS = ("exact", "declared")

Path = tuple[int, ...]
"""The number of the iteration of each loop around an equation, the outermost first."""


def run(
    block: Block,
    inputs: Sequence[Any],
    lift: Callable[[Any, Format], Array],
    rule: Callable[[Equation, list[Any], Path], Array],
) -> list[Array]:
    """One walk over a Block: values lifted into an arithmetic, and a rule for every equation and iteration."""
    check_inputs(block, inputs)
    known = [*zip(block.inputs, inputs, strict=True), *block.constants.items()]
    walk = _Walk({var: lift(value, var.type.format) for var, value in known}, lift, rule)
    walk.compute(block.equations, ())
    return [walk.values[var] for var in block.outputs]


@dataclass
class _Walk:
    """The values so far, and what makes others."""

    values: dict[Var, Array]
    lift: Callable[[Any, Format], Array]
    rule: Callable[[Equation, list[Any], Path], Array]

    def compute(self, equations: Sequence[Equation], path: Path) -> None:
        """Adds the values of equations, in some iterations."""
        values = self.values
        for equation in equations:
            if equation.region is None:
                operands = [x.value if isinstance(x, Literal) else values[x] for x in equation.inputs]
                values[equation.output] = self.rule(equation, operands, path)
            else:
                self._region(equation.region, path)

    def _region(self, region: Region, path: Path) -> None:
        values, body = self.values, region.body.equations
        match region:
            case Scan():
                for (old, _), start in zip(region.carries, region.starts, strict=True):
                    full = values[start] if isinstance(start, Var) else np.full(old.type.shape, start.value)
                    values[old] = self.lift(full, old.type.format)
                for one in region.places:
                    values[region.place] = np.array([one], np.int32)
                    self.compute(body, (*path, one))
                    # all at once: one carry may become another's old value
                    values.update({old: values[new] for old, new in region.carries})
            case Loop():
                for old, _ in region.carries:
                    values[old] = self.lift(np.zeros(old.type.shape, np.float32), old.type.format)
                for one in range(region.count):
                    values.update({part: region.part(part, values[whole], one) for whole, part in region.fed})
                    self.compute(body, (*path, one))
                    values.update({old: values[new] for old, new in region.carries})
            case Branch():
                if taken := bool(values[region.flag]):
                    self.compute(body, path)
                values.update({result: values[new if taken else old] for result, new, old in region.chosen})
            case _:
                raise NotImplementedError(f"no evaluation of {region!r}")


def check_inputs(block: Block, inputs: Sequence[Any]) -> None:
    """Refuses inputs whose number or shapes are not the Block's.

    Raises:
        ValueError: with the name of the input, the shape given and the shape wanted.
    """
    if len(inputs) != len(block.inputs):
        raise ValueError(f"the block has {len(block.inputs)} inputs, {len(inputs)} were given")
    for var, value in zip(block.inputs, inputs, strict=True):
        if np.shape(value) != (shape := var.type.shape):
            raise ValueError(f"input {var} must have shape {shape}, not {np.shape(value)}")


def evaluate_flat(
    block: Block,
    inputs: Sequence[Any],
    arithmetic: str = "exact",
    *,
    key: KeyLike | None = None,
    accumulations: Mapping[int, Accumulation] | None = None,
    control: FloatingPointControl = FloatingPointControl(),  # noqa: B008  # frozen
) -> list[Array]:
    """The outputs of a Block for one array per input; see `evaluate`."""
    expect(Block, block=block)
    expect(FloatingPointControl, control=control)
    if not isinstance(arithmetic, str) or arithmetic not in ARITHMETICS:
        raise ValueError(f"unknown arithmetic {shown(arithmetic)}; there are {', '.join(ARITHMETICS)}")
    step = None if key is None else as_key(key)
    orders = by_number("accumulations", accumulations, Accumulation)
    if step is None and any("operation" in e.params for e in equations_of(block)):
        raise ValueError("this block draws random masks: give a key")
    if arithmetic == "exact":

        def ideal(equation: Equation, operands: list[Any], path: Path) -> Array:
            return exact_result(equation, operands, step and path_key(step, path))

        return run(block, inputs, lambda x, _: as_exact(x), ideal)
    if step is None and any(e.arithmetic.stochastic for e in equations_of(block)):
        raise ValueError("this block rounds stochastically: give a key")

    def rule(equation: Equation, operands: list[Any], path: Path) -> Array:
        own = None if step is None or equation.draws is None else path_key(step, path).fold_in(equation.draws)
        return declared(equation, operands, own, given_order(equation, orders), control)

    return run(block, inputs, cast, rule)


def exact_result(equation: Equation, operands: list[Any], step: Key | None) -> Array:
    """One equation in float64; a mask is drawn as the machine draws it."""
    if equation.op == "one_hot":
        check_classes(equation, operands[0])
    if step is None or equation.draws is None or equation.op != "dropout_mask":
        result = np.asarray(exact(equation.op, operands, equation.params))
        return result.astype(np.int64) if equation.output.type.format == INT32 else result
    return declared(equation, operands, step.fold_in(equation.draws)).astype(np.float64)


@in_default_state
def evaluate(
    block: Block,
    *arguments: Any,
    arithmetic: str = "exact",
    key: KeyLike | None = None,
    accumulations: Mapping[int, Accumulation] | None = None,
    control: FloatingPointControl = FloatingPointControl(),  # noqa: B008  # frozen
) -> Any:
    """The result of a Block, one equation after the other.

    Args:
        block: any Block.
        *arguments: nested as those of the traced function.
        arithmetic: "exact": float64 throughout, whatever the formats (int64 for integers). "declared": every equation
            in its formats and rounding, through lowprec's own functions: slow, and what `execute` must equal bit
            for bit.
        key: of this step, for stochastic rounding and random masks; each equation uses key.fold_in(its number).
        accumulations: order of products and sums by equation number, for "declared".
        control: the machine's floating-point control, for "declared".

    Returns:
        Arrays nested as the traced function's result.

    Raises:
        ValueError: an unknown arithmetic, inputs that do not fit, stochastic rounding without a key.
    """
    leaves = flatten(arguments)[0]
    outputs = evaluate_flat(block, leaves, arithmetic, key=key, accumulations=accumulations, control=control)
    return outputs if block.result is None else unflatten(block.result, outputs)
