"""The account of a plan: cycles and bytes of each superstep, by the rules the engine applies to programs."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core import cost
from ipu_core.target import Target

__all__ = ["Account", "Traffic"]

Ints = npt.NDArray[np.int64]


class Traffic(NamedTuple):
    """Bytes of one exchange phase, per tile.

    Attributes:
        received: bytes of distinct elements each tile gets from others.
        sent: bytes of distinct elements each tile gives to others (one send serves all listeners).
        shared: of the received bytes, those the other tile of the supertile receives too.
    """

    received: Ints
    sent: Ints
    shared: Ints

    @staticmethod
    def none(tiles: int) -> "Traffic":
        """No traffic."""
        return Traffic(*(np.zeros(tiles, np.int64) for _ in range(3)))

    def __add__(self, other: Any) -> "Traffic":
        return Traffic(*(a + b for a, b in zip(self, other, strict=True)))

    def cycles(self, target: Target) -> int:
        """Cycles of the phase: the busiest tile counts, and what a supertile shares arrives at the double rate."""
        busiest = np.maximum(self.received - self.shared / target.tiles_per_supertile, self.sent)
        return target.exchange_cycles(float(busiest.max(initial=0)))


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
        if scatter.received.any():
            self.phase(scatter)

    def copy(self, traffic: Traffic, local: Ints) -> None:
        """Adds a copy: a barrier, foreign bytes over the exchange, local bytes moved by the tile's workers."""
        self.phase(traffic)
        per_tile = cost.local_copy(self.target, local)
        self.compute += int(per_tile.max(initial=0))
        self.supersteps.append(("copy", int(per_tile.max(initial=0))))
