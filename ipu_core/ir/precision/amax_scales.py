"""Scales of tensors from their largest magnitudes, and the part of a step's carried state that holds earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipu_core.ir.block import Atom, Block, Literal, Var
from ipu_core.ir.passes.appended import Appended
from ipu_core.ir.precision.operand_scaling import LEAST_INSIDE, MOST_INSIDE, OperandScaling
from ipu_core.ir.pytree import LEAF, PyTree
from lowprec import float32 as FLOAT32
from lowprec.checks import expect

STATE = "scaling"
"""What the part of a carried state is called that holds histories and scales."""

STATE_TREE = PyTree(dict, ("amax_history", "scale"), (LEAF, LEAF))
LARGEST = float(FLOAT32.max)
UNIT_IN_FIRST_PLACE = 2.0**23 + 1  # see `scale_of`
LARGEST_POWER = 2.0**100  # times which UNIT_IN_FIRST_PLACE is a float32


def scale_of(
    to: Appended, scaling: OperandScaling, amax: Var, goal: Atom, otherwise: Atom, about: Mapping[str, Any]
) -> Var:
    """goal / amax, at most the largest float32; something else where amax is 0, infinite or NaN."""

    def emit(op: str, *inputs: Atom) -> Var:
        return to.emit(op, *inputs, fmt=FLOAT32, **about)

    # A tiny amax makes the quotient infinite, and zeros times an infinite scale are NaN.
    ratio = scale = emit("minimum", emit("divide", goal, amax), Literal(LARGEST))
    if scaling.power_of_two:
        # Rump's unit in the first place, exact in float32: |q - (1 - 2^-24) q| with q = (2^23 + 1) x.
        most = MOST_INSIDE if scaling.inside else LARGEST_POWER
        wide = emit("multiply", emit("minimum", ratio, Literal(most)), Literal(UNIT_IN_FIRST_PLACE))
        less = emit("multiply", wide, Literal(1 - 2.0**-24))
        scale = emit("absolute", emit("subtract", wide, less))
    if scaling.inside:
        scale = emit("maximum", scale, Literal(LEAST_INSIDE))
    # No comparison with NaN is true, so that both questions send a NaN to `otherwise`; the first one an infinite amax
    # too.
    finite = emit("select", emit("greater", ratio, Literal(0.0)), scale, otherwise)
    return emit("select", emit("greater", amax, Literal(0.0)), finite, otherwise)


def extended(tree: PyTree) -> PyTree:
    """The tree of a state with scales."""
    if tree.kind is not dict or any(not isinstance(key, str) or key >= STATE for key in tree.keys):
        raise ValueError(
            f"delayed scales are carried in a dict as its last part, {STATE!r}; the state has {list(tree.keys)}"
        )
    return PyTree(dict, (*tree.keys, STATE), (*tree.children, STATE_TREE))


def with_scales(block: Block, state: Any) -> Any:
    """A state with what a Block carries of scales before its first step, where that is not in it: no history, scales 1.

    Args:
        block: what `ipu_core.ir.precision.scaled_products.scale_products` gave, or any other.
        state: nested as the Block's first argument, with or without "scaling".
    """
    expect(Block, block=block)
    carries = bool(block.arguments) and STATE in block.arguments[0].keys[-1:]
    if not carries or not isinstance(state, dict) or STATE in state:
        return state
    history, scale = (var.type.shape for var in block.inputs[block.carried - 2 : block.carried])
    return {**state, STATE: {"amax_history": np.zeros(history, np.float32), "scale": np.ones(scale, np.float32)}}


def fitting(block: Block, state: Any) -> Any:
    """A state without its scales where a Block carries none, or those of other tensors."""
    if not isinstance(state, dict) or STATE not in state:
        return state
    carries = bool(block.arguments) and STATE in block.arguments[0].keys[-1:]
    shapes = [var.type.shape for var in block.inputs[block.carried - 2 : block.carried]]
    own = state[STATE]
    if carries and [np.shape(own["amax_history"]), np.shape(own["scale"])] == shapes:
        return state
    return {name: part for name, part in state.items() if name != STATE}
