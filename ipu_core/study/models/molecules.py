"""A graph isomorphism net on packed graphs (Xu et al., GIN, arXiv 1810.00826, 2019), of the shape of the talk's.

The talk's data are graphs of 25.5 nodes with 9 features; these are made here: trees with some rings, their nodes of
eight kinds. A graph is of the first class where it has more links between kinds 0 and 1 than half of all graphs have:
what a net that adds up neighbours can count, and nothing that looks at nodes alone. Norms are over a node's features.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.initial import normal
from ipu_core.ir.precision.precision import Precision
from ipu_core.packing.graphs import pack_graphs
from ipu_core.placement.orders import OrderRule
from ipu_core.study.models.made import Made, sized
from ipu_core.study.models.start import ParameterStart, initial, stand_ins
from ipu_core.study.models.unit_scaled import UnitScaling
from ipu_core.study.point import Problem
from ipu_core.train.data.dataset import shuffled
from ipu_core.train.predictor import EVALUATION, evaluated
from ipu_core.train.units import in_units
from lowprec import Key, random_bits
from lowprec.types import Array

FEATURES, KINDS = 9, 8
MEAN, DEVIATION, LEAST, MOST = 25.5, 8.0, 6, 60
"""Nodes of a graph."""
RINGS = 0.08
"""Links beyond those of a tree, by node."""
TESTED = 0.2
"""Share of the packs that are the test."""


@dataclass(frozen=True)
class Size:
    """Of the data and the net.

    Attributes:
        graphs: how many.
        nodes, edges, depth: most of a pack; a link is two edges.
        width, layers: of the net; its perceptrons are twice as wide inside.
    """

    graphs: int
    nodes: int
    edges: int
    depth: int
    width: int
    layers: int

    def __str__(self) -> str:
        packs = f"packs of {self.nodes} nodes and {self.edges} edges"
        return f"{self.layers} layers of width {self.width}, {self.graphs:,} graphs in {packs}"


SIZES = {"small": Size(6000, 128, 280, 8, 48, 3), "talk": Size(41_127, 256, 560, 16, 288, 5)}


def data(size: str) -> Made:
    """The graphs in packs: see `_packed`.

    Raises:
        ValueError: no such size.
    """
    return _made(sized(SIZES, size))


@functools.lru_cache(maxsize=2)
def _made(size: Size) -> Made:
    keys = Key(43).split(6)
    drawn = np.asarray(normal(keys[0], (size.graphs,)), np.float64) * DEVIATION + MEAN
    nodes = np.clip(np.rint(drawn), LEAST, MOST).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(nodes)])
    total, graph = int(starts[-1]), np.repeat(np.arange(size.graphs), nodes)
    place = np.arange(total) - starts[graph]
    # A tree: every node but the first hangs on one before it. Rings: links between any two of a graph.
    parents = random_bits(keys[1], (total,), 32) % np.maximum(place, 1)
    rings = (random_bits(keys[2], (total,), 16) < RINGS * 2**16) & (place > 1)
    partners = random_bits(keys[3], (total,), 32) % np.maximum(place, 1)
    every = np.arange(total)
    links = np.concatenate(
        [
            np.stack([every, starts[graph] + parents])[:, place > 0],
            np.stack([every, starts[graph] + partners])[:, rings & (partners != parents)],
        ],
        axis=1,
    ).astype(np.int64)
    features = (random_bits(keys[4], (total, FEATURES), 16) % KINDS).astype(np.int32)
    kinds = features[links, 0]
    counted = np.bincount(graph[links[0]], (np.sort(kinds, axis=0) == [[0], [1]]).all(axis=0), size.graphs)
    labels = (counted > np.median(counted)).astype(np.int32)
    return _packed(size, nodes, starts, graph, links, features, labels)


def _packed(
    size: Size, nodes: Array, starts: Array, graph: Array, links: Array, features: Array, labels: Array
) -> Made:
    """Packs: "features" (packs, nodes, 9), "graphs" (packs, nodes), "sources", "targets" (packs, edges), "labels" and
    "there" (packs, depth). What is left over is of graph `depth`, and links to node `nodes`, which are none."""
    edges = np.bincount(graph[links[0]], minlength=size.graphs)
    plan = pack_graphs(np.stack([nodes, 2 * edges], axis=1), size.nodes, size.edges, depth=size.depth)
    made = {
        "features": np.zeros((plan.packs, size.nodes, FEATURES), np.int32),
        "graphs": np.full((plan.packs, size.nodes), size.depth, np.int32),
        "sources": np.zeros((plan.packs, size.edges), np.int32),
        "targets": np.full((plan.packs, size.edges), size.nodes, np.int32),
        "labels": np.zeros((plan.packs, size.depth), np.int32),
        "there": np.zeros((plan.packs, size.depth), np.float32),
    }
    order = np.argsort(graph[links[0]], kind="stable")
    links, ends = links[:, order], np.concatenate([[0], np.cumsum(edges)])
    used = np.zeros((plan.packs, 3), np.int64)  # nodes, edges and graphs of each so far
    for number, pack in enumerate(plan.pack):
        node, edge, slot = used[pack]
        count, own = nodes[number], links[:, ends[number] : ends[number + 1]] - starts[number] + node
        both = np.concatenate([own, own[::-1]], axis=1)
        both = both[:, np.lexsort((both[0], both[1]))]
        made["features"][pack, node : node + count] = features[starts[number] : starts[number + 1]]
        made["graphs"][pack, node : node + count] = slot
        made["sources"][pack, edge : edge + both.shape[1]], made["targets"][pack, edge : edge + both.shape[1]] = both
        made["labels"][pack, slot], made["there"][pack, slot] = labels[number], 1
        used[pack] += count, both.shape[1], 1
    filled = plan.efficiency
    name = f"molecules ({size.graphs:,} graphs, {filled[0]:.0%} of nodes and {filled[1]:.0%} of edges filled)"
    return Made(name, size, made)


def problem(task: Made, batch: int, scaling: UnitScaling, target: Target) -> Problem:
    """The net on these graphs, `batch` packs a step.

    Raises:
        ValueError: more packs than there are.
    """
    packs = len(task["labels"])
    trained = packs - max(1, round(TESTED * packs))
    shuffled(trained, batch, 0)
    starts = layout(task.size)
    scaled = scaling.of(functools.partial(loss, task.size.depth))
    own = scaling.of(functools.partial(scores, task.size.depth))
    return Problem(
        scaled, scaling.begun(functools.partial(initial, starts)), functools.partial(batches, task, trained, batch),
        functools.partial(evaluate, own, task, trained, target=target), stand_ins(starts),
    )  # fmt: skip


def batches(task: Made, trained: int, batch: int, seed: int) -> Callable[[int], dict[str, Array]]:
    """The batch of any step."""
    rows = shuffled(trained, batch, seed)
    return lambda step: joined(task, rows(step))


def joined(task: Made, packs: Array) -> dict[str, Array]:
    """Packs as one graph: numbers of nodes and graphs go on from pack to pack; the last of both are none."""
    size, count = task.size, len(packs)
    # One table for all features, each with rows of its own.
    rows = task["features"][packs] + np.arange(FEATURES, dtype=np.int32) * KINDS
    ahead = np.arange(count, dtype=np.int32)[:, None]
    graphs, targets = task["graphs"][packs], task["targets"][packs]
    return {
        "features": rows.reshape(-1, FEATURES),
        "graphs": np.where(graphs == size.depth, count * size.depth, graphs + ahead * size.depth).reshape(-1),
        "sources": (task["sources"][packs] + ahead * size.nodes).reshape(-1),
        "targets": np.where(targets == size.nodes, count * size.nodes, targets + ahead * size.nodes).reshape(-1),
        "labels": task["labels"][packs].reshape(-1),
        "there": task["there"][packs].reshape(-1),
    }


def layout(size: Size) -> Any:
    """How every parameter begins."""
    width = size.width

    def linear(rows: int, columns: int) -> Any:
        return {"weight": ParameterStart((rows, columns), (2 / rows) ** 0.5), "bias": ParameterStart((columns,))}

    def layer() -> Any:
        norm = {"scale": ParameterStart((width,), value=1.0), "bias": ParameterStart((width,))}
        return {
            "self": ParameterStart((1,)),
            "in": linear(width, 2 * width),
            "out": linear(2 * width, width),
            "norm": norm,
        }

    return {
        "tables": ParameterStart((FEATURES * KINDS, width), FEATURES**-0.5),
        "layers": [layer() for _ in range(size.layers)],
        "classes": linear(width, 2),
    }


def scores(depth: int, params: Any, batch: Any) -> Any:
    """Scores of each graph's class: (graphs, 2)."""
    nodes = np.shape(batch["features"])[0]
    graphs = np.shape(batch["labels"])[0]
    h = nn.embedding(params["tables"], batch["features"]).sum(axis=1)
    for number, layer in enumerate(params["layers"]):
        with nn.name_scope(f"layers.{number}", h):
            around = nn.segment_sum(nn.embedding(h, batch["sources"]), batch["targets"], nodes + 1)[:nodes]
            mixed = h * (layer["self"] + 1.0) + around
            inner = nn.relu(nn.linear(mixed, **layer["in"]))
            h = h + nn.layer_norm(nn.linear(inner, **layer["out"]), **layer["norm"])
    # A sum, since graphs are told apart by counts; over the usual number of nodes, so that halves have room.
    pooled = nn.segment_sum(h, batch["graphs"], graphs + 1)[:graphs] * (1 / MEAN)
    return nn.linear(pooled, **params["classes"])


def loss(depth: int, params: Any, batch: Any) -> Any:
    """The mean cross-entropy of the graphs that are there, in nats."""
    return nn.softmax_cross_entropy(scores(depth, params, batch), batch["labels"], batch["there"])


def evaluate(
    own: Callable[..., Any], task: Made, trained: int, params: Any, precision: Precision, *, target: Target
) -> dict[str, float]:
    """The share of the test graphs that are classified correctly."""
    batch = joined(task, np.arange(trained, len(task["labels"])))
    made = evaluated(in_units(own, precision), precision, OrderRule.of(target), Key(EVALUATION), params, batch)
    right = np.asarray(made, np.float32).argmax(axis=1) == batch["labels"]
    return {"test_accuracy": float(right[batch["there"] > 0].mean())}
