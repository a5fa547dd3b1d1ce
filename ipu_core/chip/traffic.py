"""Traffic: the bytes of one exchange phase, and the one rule of how long it takes, for planner and engine."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ipu_core.chip.integers import Ints
from ipu_core.chip.target import Target
from lowprec.integers import ceil_div


class Traffic(NamedTuple):
    """Bytes by tile in one exchange phase.

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
        """No traffic; one for all of so many tiles, since most steps have it in one direction at least."""
        return _nothing(tiles)

    @staticmethod
    def sum(parts: Iterable["Traffic"], tiles: int) -> "Traffic":
        """All that moves in one phase."""
        nothing = total = Traffic.none(tiles)
        for part in parts:
            # most steps move nothing in one direction at least: zeros are not added tile by tile
            if part is not nothing:
                total = part if total is nothing else total + part
        return total

    def __add__(self, other: Any) -> "Traffic":
        return Traffic(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def total(self) -> int:
        """All bytes received."""
        return int(self.received.sum())

    def cycles(self, target: Target) -> int:
        """Cycles of the phase without the barrier; 0 if nothing moves.

        The busiest tile counts, by what it receives or by what it sends, whichever takes longer. Bytes that both tiles
        of a supertile receive arrive at the shared rate.
        """
        busiest = int(self._busy(target).max(initial=0))
        unit = target.exchange_bytes_per_cycle * target.exchange_bytes_per_cycle_shared
        return target.exchange_fixed_cycles + ceil_div(busiest, unit) if busiest > 0 else 0

    def mean_cycles(self, target: Target) -> float:
        """Cycles in which the mean over all tiles receives or sends, whichever takes each of them longer."""
        unit = target.exchange_bytes_per_cycle * target.exchange_bytes_per_cycle_shared
        return float(self._busy(target).mean()) / unit

    def _busy(self, target: Target) -> Ints:
        """What each tile takes, in units of 1 / (bytes alone * bytes together) cycles: a division comes at the end."""
        alone, together = target.exchange_bytes_per_cycle, target.exchange_bytes_per_cycle_shared
        busy: Ints = np.maximum((self.received - self.shared) * together + self.shared * alone, self.sent * together)
        return busy


@lru_cache(maxsize=16)
def _nothing(tiles: int) -> Traffic:
    zero = np.zeros(tiles, np.int64)
    # shared by all callers
    zero.flags.writeable = False
    return Traffic(zero, zero, zero)


def shared_weight(target: Target) -> float:
    """The time of a byte that both tiles of a supertile receive, relative to one that a single tile receives."""
    if target.tiles_per_supertile == 1:
        return 1.0
    return target.exchange_bytes_per_cycle / target.exchange_bytes_per_cycle_shared


def pairs_of(target: Target, tiles: int) -> Ints:
    """The other tile of each tile's supertile (itself where a supertile is one tile)."""
    return np.arange(tiles) ^ (target.tiles_per_supertile - 1)
