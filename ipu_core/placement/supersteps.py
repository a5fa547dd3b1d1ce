"""The account of a plan: cycles and bytes of each superstep, by the rules the engine applies to programs."""

from dataclasses import dataclass, field

import numpy as np

from ipu_core.chip import cost
from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from ipu_core.chip.traffic import Traffic


@dataclass
class Account:
    """Sums over the supersteps of an operation.

    Attributes:
        compute, exchange, sync: cycles.
        received, sent: bytes per tile, summed over the phases.
        supersteps: name and compute cycles of every compute set, in order.
    """

    target: Target
    compute: int = 0
    exchange: int = 0
    sync: int = 0
    received: Ints = field(init=False)
    sent: Ints = field(init=False)
    supersteps: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.received = np.zeros(self.target.tiles, np.int64)
        self.sent = np.zeros(self.target.tiles, np.int64)

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
        # As the engine does: without results that leave, no second phase and no barrier.
        if scatter.received.any():
            self.phase(scatter)

    def copy(self, traffic: Traffic, local: Ints) -> None:
        """Adds a copy: a barrier, foreign bytes over the exchange, local bytes moved by the tile's workers."""
        self.phase(traffic)
        per_tile = cost.local_copy(self.target, local)
        self.compute += int(per_tile.max(initial=0))
        self.supersteps.append(("copy", int(per_tile.max(initial=0))))
