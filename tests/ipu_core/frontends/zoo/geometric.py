"""Nets on graphs of torch_geometric: nodes with edges between them, and graphs that are read out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.ipu_core.frontends.torch_zoo import BATCHES, Made

NODES, EDGES, WIDE, CLASSES = 20, 60, 8, 4


def edges() -> Any:
    return torch.randint(0, NODES, (2, EDGES))


class Stack(nn.Module):
    """Two convolutions with an activation between them."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Any, *graph: Any) -> Any:
        return self.second(F.elu(self.first(x, *graph)), *graph)


class Pooled(nn.Module):
    """A stack whose nodes are read out by graph: four graphs of five nodes."""

    def __init__(self, stack: nn.Module, read: Callable[..., Any]) -> None:
        super().__init__()
        self.stack, self.read = stack, read
        self.register_buffer("batch", torch.arange(NODES) // 5)

    def forward(self, x: Any, *graph: Any) -> Any:
        return self.read(self.stack(x, *graph), self.batch, 4)


def nodes(conv: Callable[[Any], tuple[Callable[[int, int], nn.Module], list[Callable[[], Any]]]], package: Any) -> Made:
    """Labels of nodes by two convolutions, each made for widths."""
    layer, more = conv(package.nn)
    given = [(torch.randn(NODES, WIDE), edges(), *(each() for each in more), torch.randint(0, CLASSES, (NODES,)))
             for _ in range(BATCHES)]  # fmt: skip
    return Stack(layer(WIDE, 16), layer(16, CLASSES)), given, F.cross_entropy


def plain(name: str, **settings: Any) -> Callable[[Any], Any]:
    return lambda layers: (lambda wide, out: getattr(layers, name)(wide, out, **settings), [])


def gin(layers: Any) -> Any:
    return lambda wide, out: layers.GINConv(nn.Sequential(nn.Linear(wide, 16), nn.ReLU(), nn.Linear(16, out)),
                                            train_eps=True), []  # fmt: skip


def relational(layers: Any) -> Any:
    return lambda wide, out: layers.RGCNConv(wide, out, 3), [lambda: torch.randint(0, 3, (EDGES,))]


def relational_at_once(layers: Any) -> Any:
    return lambda wide, out: layers.FastRGCNConv(wide, out, 3), [lambda: torch.randint(0, 3, (EDGES,))]


def by_edge(layers: Any) -> Any:
    return lambda wide, out: layers.NNConv(wide, out, nn.Linear(2, wide * out)), [lambda: torch.randn(EDGES, 2)]


def dynamic(layers: Any) -> Any:
    return lambda wide, out: layers.EdgeConv(
        nn.Sequential(nn.Linear(2 * wide, 16), nn.ReLU(), nn.Linear(16, out)), "max"
    ), []


def principal(layers: Any) -> Any:
    return lambda wide, out: layers.PNAConv(wide, out, ["mean", "max", "std"], ["identity", "amplification"],
                                            torch.tensor([0, 4, 6, 6, 4])), []  # fmt: skip


def read_out(package: Any) -> Made:
    """Labels of graphs, by GIN and sums."""
    model = Pooled(package.nn.GIN(WIDE, 16, 2, CLASSES), package.nn.global_add_pool)
    return (
        model,
        [(torch.randn(NODES, WIDE), edges(), torch.randint(0, CLASSES, (4,))) for _ in range(BATCHES)],
        F.cross_entropy,
    )


def links(package: Any) -> Made:
    """LightGCN: embeddings of nodes alone, an edge's score as their product."""

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = package.nn.LightGCN(NODES, 8, 2)

        def forward(self, graph: Any, asked: Any) -> Any:
            return self.model(graph, asked)

    given = [(edges(), edges(), torch.rand(EDGES).round()) for _ in range(BATCHES)]
    return Scored(), given, F.binary_cross_entropy_with_logits


def gps(package: Any) -> Made:
    """GPS: messages beside attention among the nodes of a graph."""
    conv = package.nn.GINConv(nn.Linear(WIDE, WIDE))
    model = Pooled(package.nn.GPSConv(WIDE, conv, heads=2), package.nn.global_mean_pool)
    return (
        model,
        [(torch.randn(NODES, WIDE), edges(), torch.randint(0, WIDE, (4,))) for _ in range(BATCHES)],
        F.cross_entropy,
    )


def schnet(package: Any) -> Made:
    """SchNet's energies of molecules, from its interaction blocks; the pairs of near atoms are the batch's."""

    class Energies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = package.nn.SchNet(16, 16, 2, 10, cutoff=5.0, interaction_graph=self.pairs)
            self.register_buffer("batch", torch.arange(NODES) // 5)
            self.near: Any = None

        def pairs(self, places: Any, batch: Any) -> Any:
            row, column = self.near
            return self.near, (places[row] - places[column]).norm(dim=-1)

        def forward(self, kinds: Any, places: Any, near: Any) -> Any:
            self.near = near
            return self.model(kinds, places, self.batch)

    def near() -> Any:
        row = torch.arange(NODES).repeat_interleave(4)
        return torch.stack([row, row // 5 * 5 + (row % 5 + torch.arange(4).repeat(NODES) + 1) % 5])

    given = [(torch.randint(1, 9, (NODES,)), torch.randn(NODES, 3), near(), torch.randn(4, 1)) for _ in range(BATCHES)]
    return Energies(), given, F.mse_loss


MODELS: dict[str, Callable[[Any], Made]] = {
    **{
        name: partial(nodes, conv)
        for name, conv in {
            **{each: plain(each) for each in ("GCNConv", "SAGEConv", "TransformerConv", "GraphConv", "TAGConv",
                                              "ARMAConv", "ResGatedGraphConv")},
            **{f"{each}(add_self_loops=False)": plain(each, add_self_loops=False)
               for each in ("GCNConv", "GATConv", "GATv2Conv")},
            "ChebConv": plain("ChebConv", K=3), "GINConv": gin, "RGCNConv": relational, "NNConv": by_edge,
            "FastRGCNConv": relational_at_once, "EdgeConv": dynamic, "PNAConv": principal,
        }.items()
    },
    "GIN": read_out, "LightGCN": links, "GPSConv": gps, "SchNet": schnet,
}  # fmt: skip
