"""Sums over parameters in the shards that replicas may keep: shard by shard, so that who keeps what decides no bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ipu_core.ir.block import Block, Equation, Params
from ipu_core.ir.bodies import closed, fresh, rewritten
from ipu_core.ir.passes.appended import Appended
from lowprec.integers import ceil_div


def by_shards(block: Block, replicas: int) -> Block:
    """A step in which sums of the optimizer over all elements of a value are those of R shards, ascending.

    Shard r has the elements (C order) from r ceil(n / R) on, the last fewer and then zeros. Each is summed in the order
    that a sum of so many numbers has, and their R sums one after another. So a norm, as LAMB, LARS and clipping take
    it, has the same bits whether a replica keeps all of a parameter's state or a shard of it.

    Args:
        block: traced, without its precision.
        replicas: how many; 1: the Block as it is.
    """
    if replicas == 1:
        return block
    to = Appended(fresh(block.equations))

    def straight(run: Sequence[Equation]) -> Sequence[Equation]:
        to.equations = []
        for equation in run:
            if _sums_all(equation):
                _summed(to, equation, replicas)
            else:
                to.equations.append(equation)
        return to.equations

    return closed(replace(block, equations=tuple(rewritten(block.equations, straight))))


def _sums_all(equation: Equation) -> bool:
    if equation.op != "reduce_sum" or equation.role != "optimizer":
        return False
    return equation.output.type.size == 1 < equation.operands[0].type.size


def _summed(to: Appended, equation: Equation, replicas: int) -> None:
    """Appends what sums all of a value shard by shard; the last equation has the number of the old one."""
    (x,) = equation.operands
    about: dict[str, Any] = {"role": equation.role, "parameter": equation.parameter}
    length = ceil_div(size := x.type.size, replicas)
    flat = to.emit("reshape", x, shape=(size,), **about)
    if more := replicas * length - size:
        flat = to.emit("pad", flat, low=(0,), high=(more,), interior=(0,), **about)
    rows = to.emit("reshape", flat, shape=(replicas, length), **about)
    sums = to.emit("reduce_sum", rows, axis=(1,), keepdims=False, shards="rows", family=equation.family, **about)
    params: dict[str, Any] = {"axis": (0,), "keepdims": False, "shards": "ascending"}
    if equation.output.type.shape == ():
        to.equations.append(replace(equation, inputs=(sums,), params=Params(params)))
        return
    total = to.emit("reduce_sum", sums, family=equation.family, **params, **about)
    shape = Params({"shape": equation.output.type.shape})
    to.equations.append(replace(equation, op="reshape", inputs=(total,), params=shape, family="structure"))
