"""Streaming: when what lives in streaming memory is loaded, and when it is stored."""

from collections.abc import Mapping
from typing import NamedTuple

from ipu_core.ir.block import Block, Var, per_block
from ipu_core.ir.liveness.stays import stays, stored


class Transfers(NamedTuple):
    """Loads and stores of a Block, by position of the equation.

    Attributes:
        loads: values that are loaded before it.
        stores: positions in the carried state of the new values that are stored after it.
        offloads: values of the forward part that are stored after it, for gradients.
    """

    loads: Mapping[int, tuple[Var, ...]]
    stores: Mapping[int, tuple[int, ...]]
    offloads: Mapping[int, tuple[Var, ...]]


@per_block
def transfers(block: Block) -> Transfers:
    """When everything is moved that is streamed: a load for every part of the step that reads it, one store."""
    loads, stores, offloads = dict[int, tuple[Var, ...]](), dict[int, tuple[int, ...]](), dict[int, tuple[Var, ...]]()
    for number, position in stored(block).items():
        stores[position] = (*stores.get(position, ()), number)
    for stay in stays(block):
        if stay.loaded:
            loads[stay.first] = (*loads.get(stay.first, ()), stay.var)
        elif stay.var in block.offloaded:
            offloads[stay.first] = (stay.var,)
    return Transfers(loads, stores, offloads)
