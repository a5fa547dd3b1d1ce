"""The values of a step that are watched, by the names of their equations and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core.diagnose.measure import truth_values
from ipu_core.diagnose.precision_table import source_lines
from ipu_core.ir.block import Block, Equation, Var, format_name
from ipu_core.ir.bodies import equations_of, inputs_of, own_of
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.precision.rules import named, names_of

KINDS = ("activation", "gradient", "weight", "update", "moment")
MOMENTS = ("first_moment", "second_moment")


class WatchedValue(NamedTuple):
    """A value of a step, and one row of the table of them in a record.

    Attributes:
        name: Its equation's, "0.weight.grad_weight.dot.34"; a weight has its parameter's, and its equation's is that
            of the update.
        kind: One of KINDS.
        parameter: The parameter that its equation reads or makes; "" where there is none.
        layer: Of that parameter, or of what the equation reads: the parameter's name up to the last dot.
        op: Its equation's operation.
        equation: Its equation's number.
        role: Its equation's.
        source: The line that asked for it, "model.py:41", or of what the optimizer makes the one where its parameter is
            first used; "" where there is none.
        format: In which it is kept.
        elements: How many it has.
    """

    name: str
    kind: str
    parameter: str
    layer: str
    op: str
    equation: int
    role: str
    source: str
    format: str
    elements: int


def watched_values(block: Block, patterns: tuple[str, ...]) -> tuple[WatchedValue, ...]:
    """The values of a typed step that one of the patterns is for, in the order of their equations.

    A pattern is for a value by its name, by the names that its equation has in rules of a precision, and by its layer.

    Left out are moved elements, truth values and integers, and what the optimizer computes between gradient, moments
    and update.

    Raises:
        ValueError: a pattern that is for nothing.
    """
    layers, lines = _layers(block), source_lines(block)
    found = {
        value: {value.name, value.layer, *names_of(e)}
        for e in equations_of(block)
        for value in _values(e, layers[e.output], lines[e.number])
    }
    for pattern in patterns:
        if not any(named(pattern, name) for names in found.values() for name in names):
            some = ", ".join(value.name for value in [*found][:4])
            raise ValueError(f"no value of the step is called {pattern!r}; there are {some} and {len(found) - 4} more")
    fits = [(value, name, pattern) for value, names in found.items() for name in names for pattern in patterns]
    return tuple(dict.fromkeys(value for value, name, pattern in fits if named(pattern, name)))


def as_table(values: tuple[WatchedValue, ...]) -> npt.NDArray[np.void]:
    """The values as a structured array, a field for each attribute."""
    columns = list(zip(*values, strict=True))
    kinds = [(name, np.array(column).dtype) for name, column in zip(WatchedValue._fields, columns, strict=True)]
    return np.array([tuple(value) for value in values], kinds)


def _values(equation: Equation, layer: str, line: str) -> Iterator[WatchedValue]:
    parameter, fmt = equation.parameter or "", format_name(equation.output.type.format)
    facts = parameter, layer, equation.op, equation.number, equation.role, line, fmt
    size = equation.output.type.size
    if equation.op in STRUCTURE or truth_values(equation) or not size:
        return
    if equation.role == "update":
        # One equation makes both: the weight in its format, and in float32 the change that was wanted of it.
        yield WatchedValue(parameter, "weight", *facts, size)
        yield WatchedValue(equation.name, "update", *facts[:-1], "float32", size)
    elif equation.family in MOMENTS:
        yield WatchedValue(equation.name, "moment", *facts, size)
    elif equation.role != "optimizer":
        kind = "activation" if equation.role == "forward" else "gradient"
        yield WatchedValue(equation.name, kind, *facts, size)


def _layers(block: Block) -> dict[Var, str]:
    """The layer of every value: its parameter's, else that of the forward value it is made of, else of any."""
    layers = dict.fromkeys(inputs_of(block), "") | dict.fromkeys(block.constants, "")
    layers |= dict.fromkeys(own_of(block), "")
    forward: set[Var] = set()
    for equation in equations_of(block):
        if equation.role == "forward":
            forward.add(equation.output)
        # Gradients read values of several layers: the forward ones are of the layer that they belong to.
        near = sorted(equation.operands, key=lambda var: var not in forward)
        of_operands = next((layers[var] for var in near if layers[var]), "")
        layers[equation.output] = layer_of(equation.parameter) if equation.parameter else of_operands
    return layers


def layer_of(parameter: str) -> str:
    """A parameter's name up to the last dot; all of it where there is none."""
    return parameter.rpartition(".")[0] or parameter
