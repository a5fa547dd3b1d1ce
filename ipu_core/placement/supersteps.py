"""The account of a plan: cycles and bytes of each superstep, by the rules the engine applies to programs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from ipu_core.chip import cost
from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic

MOST_SETS: Final = 8


class Superstep(NamedTuple):
    """One compute set: what its tiles compute, in cycles, and what moves before and after."""

    compute: Ints
    gather: Traffic
    scatter: Traffic


@dataclass
class Account:
    """Sums over the supersteps of an operation.

    Attributes:
        compute, exchange, sync: cycles.
        received, sent: bytes per tile, summed over the phases.
        supersteps: name and compute cycles of every compute set, in order.
        sets: the compute sets in full, without the copies; of more than MOST_SETS the first alone.
        copies, copied: how many copies there are, and their cycles.
    """

    target: Target
    compute: int = 0
    exchange: int = 0
    sync: int = 0
    received: Ints = field(init=False)
    sent: Ints = field(init=False)
    supersteps: list[tuple[str, int]] = field(default_factory=list)
    sets: list[Superstep] = field(default_factory=list)
    copies: int = 0
    copied: int = 0

    def __post_init__(self) -> None:
        self.received = np.zeros(self.target.tiles, np.int64)
        self.sent = np.zeros(self.target.tiles, np.int64)

    @property
    def known(self) -> bool:
        """Whether all compute sets are in `sets`."""
        return len(self.supersteps) - self.copies == len(self.sets)

    @property
    def cycles(self) -> int:
        """All cycles."""
        return self.compute + self.exchange + self.sync

    def phase(self, traffic: Traffic) -> None:
        """Adds an exchange phase: a barrier, then the traffic."""
        self.sync += self.target.sync_cycles
        self.exchange += traffic.cycles(self.target)
        self.received += traffic.received
        self.sent += traffic.sent

    def superstep(self, name: str, per_tile: Ints, gather: Traffic, scatter: Traffic) -> None:
        """Adds a compute set: a barrier, operands gathered, the slowest tile's cycles, results scattered if any are."""
        self.phase(gather)
        self.compute += int(per_tile.max(initial=0))
        self.supersteps.append((name, int(per_tile.max(initial=0))))
        if len(self.sets) < MOST_SETS:
            self.sets.append(Superstep(per_tile[: self.target.tiles], gather, scatter))
        # As the engine does: without results that leave, no second phase and no barrier.
        if scatter.received.any():
            self.phase(scatter)

    def copy(self, traffic: Traffic, local: Ints) -> None:
        """Adds a copy: a barrier, foreign bytes over the exchange, local bytes moved by the tile's workers."""
        before = self.cycles
        self.phase(traffic)
        per_tile = cost.local_copy(self.target, local)
        self.compute += int(per_tile.max(initial=0))
        self.supersteps.append(("copy", int(per_tile.max(initial=0))))
        self.copies, self.copied = self.copies + 1, self.copied + self.cycles - before


def beside(accounts: Sequence[Account]) -> int:
    """Cycles of operations that share compute sets: the first of each, then the second; copies are steps of their own.

    All compute sets must be known. What the operations read of one variable is counted for each of them, which an
    engine moves once: it takes no longer.
    """
    target, cycles = accounts[0].target, sum(one.copied for one in accounts)
    for number in range(max(len(one.sets) for one in accounts)):
        sets = [one.sets[number] for one in accounts if number < len(one.sets)]
        gather, scatter = (Traffic.sum(side, target.tiles) for side in zip(*(each[1:] for each in sets), strict=True))
        joined = Account(target)
        joined.superstep("", np.sum([each.compute for each in sets], axis=0), gather, scatter)
        cycles += joined.cycles
    return cycles
