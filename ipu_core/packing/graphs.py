"""Graphs packed by nodes and edges: as many as fit into a fixed number of both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowprec.checks import integer
from lowprec.types import Array


@dataclass(frozen=True, eq=False)
class PackedGraphs:
    """Which pack each graph lies in.

    Attributes:
        pack: (graphs,) the number of each graph's pack, from 0.
        nodes, edges: Most of a pack.
        used: (packs, 2) nodes and edges in each.
    """

    pack: Array
    nodes: int
    edges: int
    used: Array

    @property
    def packs(self) -> int:
        """How many there are."""
        return len(self.used)

    @property
    def efficiency(self) -> tuple[float, float]:
        """Share of nodes, and of edges, that are a graph's."""
        nodes, edges = self.used.sum(axis=0) / (self.packs * np.maximum([self.nodes, self.edges], 1))
        return float(nodes), float(edges)

    def members(self, pack: int) -> Array:
        """The graphs of a pack."""
        return np.flatnonzero(self.pack == pack)

    def __repr__(self) -> str:
        nodes, edges = self.efficiency
        return (
            f"<PackedGraphs: {len(self.pack):,} graphs in {self.packs:,} packs of {self.nodes:,} nodes and "
            f"{self.edges:,} edges, {nodes:.1%} and {edges:.1%} filled>"
        )


def pack_graphs(sizes: Iterable[Any], nodes: int, edges: int, *, depth: int | None = None) -> PackedGraphs:
    """Packs graphs, the largest first, each into the open pack that it leaves least room in.

    Room is measured by the scarcer of the two, as a share of a pack.

    Args:
        sizes: (graphs, 2) nodes and edges of each.
        nodes, edges: Most of a pack.
        depth: Most graphs of a pack; None: as many as fit.

    Raises:
        TypeError, ValueError: an argument out of range, no graphs, or one that is larger than a pack, with its number.
    """
    most = integer("nodes", nodes, 1), integer("edges", edges, 0)
    limit = None if depth is None else integer("depth", depth, 1)
    given = np.asarray(sizes if hasattr(sizes, "dtype") else list(sizes))
    if given.ndim != 2 or given.shape[1] != 2 or not len(given) or given.dtype.kind not in "iu":
        raise TypeError(f"sizes must be whole numbers of shape (graphs, 2), not {given.dtype} of shape {given.shape}")
    if given.min() < 0:
        raise ValueError(f"sizes must be from 0 on, not {given.min()}")
    if (given > most).any():
        first = int(np.flatnonzero((given > most).any(axis=1))[0])
        raise ValueError(
            f"graph {first:,} has {given[first, 0]:,} nodes and {given[first, 1]:,} edges, more than a pack of "
            f"{most[0]:,} and {most[1]:,}"
        )
    whole = np.maximum(most, 1).astype(np.float64)
    order = np.argsort(-(given / whole).max(axis=1), kind="stable")
    # Packs of equal contents are interchangeable: those that are open stand by what they hold.
    opened: dict[tuple[int, int, int], list[int]] = {}
    used: list[tuple[int, int]] = []
    pack = np.empty(len(given), np.int64)
    for graph in order.tolist():
        size = int(given[graph, 0]), int(given[graph, 1])
        held = _fullest(opened, size, most)
        if held is None:
            number, before, count = len(used), (0, 0), 0
            used.append((0, 0))
        else:
            number, before, count = opened[held].pop(), held[:2], held[2]
            if not opened[held]:
                del opened[held]
        after = before[0] + size[0], before[1] + size[1]
        used[number], pack[graph] = after, number
        if count + 1 != limit and after[0] < most[0]:
            opened.setdefault((*after, count + 1), []).append(number)
    return PackedGraphs(pack, *most, np.array(used))


def _fullest(
    opened: dict[tuple[int, int, int], list[int]], size: tuple[int, int], most: tuple[int, int]
) -> tuple[int, int, int] | None:
    """What the fullest open pack holds that a graph fits into; None: it fits into none."""
    fitting = [held for held in opened if held[0] + size[0] <= most[0] and held[1] + size[1] <= most[1]]
    return max(fitting, key=lambda held: (max(held[0] / most[0], held[1] / max(most[1], 1)), held), default=None)
