"""What it costs that replicas make something together: messages over links, and the additions of every chip."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from ipu_core.chip import cost
from ipu_core.chip.collectives import all_gather, all_reduce, broadcast, reduce_scatter
from ipu_core.chip.system import System
from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic
from ipu_core.engine.steps import StepAccount, elements, is_all, runs
from ipu_core.graph.phases import several
from ipu_core.graph.program import SUMMING, CrossReplica
from ipu_core.graph.tensor import Tensor
from lowprec.integers import ceil_div

COSTS = {
    "all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather, "broadcast": broadcast,
}  # fmt: skip


def account_across(names: Sequence[str], each: Sequence[CrossReplica], target: Target) -> StepAccount:
    """The account of what replicas make together: messages over the links, and the additions of every chip.

    A chip adds what R - 1 messages bring, each a chunk of all arrays, where these lie; what passes the links passes the
    tiles' exchange too, at whichever rate is lower.
    """
    replicas = each[0].replicas
    system = each[0].system or System(target, chips=replicas)
    none = np.zeros(target.tiles, np.int64)
    sent, received, added = none.copy(), none.copy(), none.copy()
    chunks, seconds = none.copy(), 0.0
    for kind, some in _by_cost([one for one in each if not one.by_host]).items():
        size = ceil(sum(_whole(one).size * _wire_bytes(one) for one in some))
        how = some[0].collective
        over = COSTS[kind](
            system, size, replicas, algorithm=None if how is None else how.algorithm,
            members=None if how is None else how.group,
        )  # fmt: skip
        seconds += over.seconds
        # Each byte leaves a tile, and arrives at one, as often as the links carry it.
        share = (over.link_bytes + over.gateway_bytes) / size if size else 0.0
        for one in some:
            here = elements(_whole(one), target)
            moved = np.ceil(here * _wire_bytes(one) * share).astype(np.int64)
            sent, received = sent + moved, received + moved
            chunks += np.ceil(here * _wire_bytes(one) / replicas).astype(np.int64)
            if one.kind in SUMMING:
                count = ceil_div(here * (replicas - 1), replicas)
                cycles = cost.elementwise(target, "add", count, max(one.source.dtype.itemsize, ceil(_wire_bytes(one))))
                added += np.where(count > 0, cycles, 0)
    traffic = Traffic(received, sent, none)
    writes = [one.destination for one in each]
    return StepAccount(
        several(names), "links", added, traffic,
        Traffic.none(target.tiles), max(traffic.cycles(target), ceil(seconds * target.clock)), target.sync_cycles,
        {"exchange buffers": 2 * chunks}, frozenset(one.source.variable for one in each),
        frozenset(to.variable for to in writes),
        frozenset(to.variable for to in writes if is_all(to.variable, *runs(to))),
        joined=tuple(names) if len(names) > 1 else (),
    )  # fmt: skip


def _by_cost(each: Sequence[CrossReplica]) -> dict[str, list[CrossReplica]]:
    """Those that pass in the same messages: a maximum goes as a sum does."""
    found: dict[str, list[CrossReplica]] = {}
    for one in sorted(each, key=lambda one: one.collective is None):  # a sum says the algorithm
        found.setdefault("all_reduce" if one.kind == "all_reduce_max" else one.kind, []).append(one)
    return found


def _whole(one: CrossReplica) -> Tensor:
    return one.destination if one.kind == "all_gather" else one.source


def _wire_bytes(one: CrossReplica) -> float:
    """Of an element: of narrow formats several share a byte."""
    return one.source.dtype.itemsize if one.collective is None else one.collective.wire.bits / 8
