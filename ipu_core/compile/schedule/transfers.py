"""Streaming: when what lives in streaming memory is loaded, until when it stays on the tiles, when it is stored."""

from collections.abc import Mapping
from typing import NamedTuple

from ipu_core.ir.block import Block, Var, per_block
from ipu_core.ir.bodies import equations_of, outputs_of
from ipu_core.ir.lifetimes import in_place, lifetimes, until_chosen
from ipu_core.ir.passes.streaming import returns, spans


class Transfers(NamedTuple):
    """Loads and stores of a Block, by position of the equation.

    Attributes:
        loads: values that are loaded before it.
        frees: values in whose memory nothing is needed after it.
        stores: positions in the carried state of the new values that are stored after it.
        offloads: values of the forward part that are stored after it, for gradients.
    """

    loads: Mapping[int, tuple[Var, ...]]
    frees: Mapping[int, tuple[Var, ...]]
    stores: Mapping[int, tuple[int, ...]]
    offloads: Mapping[int, tuple[Var, ...]]


@per_block
def transfers(block: Block) -> Transfers:
    """When everything is moved that is streamed: a load for every part of the step that reads it, one store."""
    views, equations, outputs = lifetimes(block).views, equations_of(block), outputs_of(block)
    reads: dict[Var, list[int]] = {}
    made = {equation.output: position for position, equation in enumerate(equations)}
    for position, equation in enumerate(equations):
        if views[equation.output].root is equation.output:
            for var in equation.operands:
                reads.setdefault(views[var].root, []).append(position)
    over, known = in_place(block), until_chosen(block)
    loads, frees, stores = dict[int, tuple[Var, ...]](), dict[int, tuple[Var, ...]](), dict[int, tuple[int, ...]]()
    for index in sorted(block.streamed):
        old, new = block.inputs[index], outputs[index]
        root = views[new].root
        earliest = min(known.get(old, 0), len(equations) - 1)
        stored = max([made[new], earliest, *reads.get(old, ())])  # while the old value is read it stays where it is
        stores[stored] = (*stores.get(stored, ()), index)
        last_of_new = max([stored, *reads.get(root, ())])
        parts = [(part[0], part[-1]) for part in spans(equations, reads.get(old, []))]
        if over.get(new) is not old:
            frees[last_of_new] = (*frees.get(last_of_new, ()), root)
        elif parts:  # the new value lies where the old was
            parts[-1] = parts[-1][0], last_of_new
        for first, last in parts:
            loads[first] = (*loads.get(first, ()), old)
            frees[last] = (*frees.get(last, ()), old)
    offloads = dict[int, tuple[Var, ...]]()
    for var in sorted(block.offloaded, key=made.__getitem__):
        here, later = returns(equations, reads.get(var, []))
        offloads[made[var]] = (*offloads.get(made[var], ()), var)
        for part in [[made[var], *here], *later]:
            frees[part[-1]] = (*frees.get(part[-1], ()), var)
        for part in later:
            loads[part[0]] = (*loads.get(part[0], ()), var)
    return Transfers(loads, frees, stores, offloads)
