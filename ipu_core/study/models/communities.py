"""A graph convolutional net on clusters of a graph (Chiang et al., Cluster-GCN, 2019, arXiv 1905.07953).

The graph is made here: communities whose nodes are linked among themselves more than to others (a stochastic block
model). A node's features say its class weakly, its neighbours' together well: a net that adds up neighbours finds
nearly all, one that does not finds few. A step has some communities and all links between them, as Cluster-GCN's
batches have clusters; METIS would find such clusters in such a graph, here they are known.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.initial import normal, uniform
from ipu_core.ir.precision.precision import Precision
from ipu_core.placement.orders import OrderRule
from ipu_core.study.models.made import Made, sized
from ipu_core.study.models.start import ParameterStart, initial, stand_ins
from ipu_core.study.models.unit_scaled import UnitScaling
from ipu_core.study.point import Problem
from ipu_core.train.data.dataset import shuffled
from ipu_core.train.predictor import EVALUATION, evaluated
from ipu_core.train.units import in_units
from lowprec import Accumulation, Key, random_bits
from lowprec.types import Array


@dataclass(frozen=True)
class Size:
    """Of the graph and the net.

    Attributes:
        communities, nodes: how many, and nodes of each.
        classes, features: of a node; community c has class c modulo classes.
        inside, outside: links of a node to its community and to all, on average.
        signal: by how much the classes' centres are apart, beside noise of deviation 1.
        width, layers: of the net.
    """

    communities: int
    nodes: int
    classes: int
    features: int
    inside: float
    outside: float
    signal: float
    width: int
    layers: int

    def __str__(self) -> str:
        count = self.communities * self.nodes
        return f"{self.layers} layers of width {self.width}, {count:,} nodes in {self.communities} clusters"


SIZES = {
    "small": Size(48, 40, 6, 16, 8.0, 2.0, 0.25, 64, 2),
    "large": Size(1000, 50, 40, 50, 12.0, 3.0, 0.35, 512, 4),
}
TRAINED = 0.5
"""Share of the nodes whose class is trained on; the others are the test."""


def data(size: str) -> Made:
    """The graph: "features", "labels", "trained" (nodes,), "edges" (2, links), both ways, sorted by where they go.

    Raises:
        ValueError: no such size.
    """
    return _made(sized(SIZES, size))


@functools.lru_cache(maxsize=2)
def _made(size: Size) -> Made:
    keys = Key(41).split(7)
    count = size.communities * size.nodes
    community = np.arange(count) // size.nodes
    labels = (community % size.classes).astype(np.int32)
    # Each link is drawn once and goes both ways: half as many draws as links.
    own, other = round(count * size.inside / 2), round(count * size.outside / 2)
    near = _whole(keys[0], own, count)
    links = np.concatenate(
        [
            np.stack([near, community[near] * size.nodes + _whole(keys[1], own, size.nodes)]),
            np.stack([_whole(keys[2], other, count), _whole(keys[3], other, count)]),
        ],
        axis=1,
    )
    links = links[:, links[0] != links[1]]
    edges = np.unique(np.concatenate([links, links[::-1]], axis=1), axis=1)
    # Where they go first: sums of a node's neighbours are of rows side by side.
    edges = edges[:, np.lexsort((edges[0], edges[1]))].astype(np.int32)
    centres = normal(keys[4], (size.classes, size.features), size.signal)
    features = (centres[labels] + normal(keys[5], (count, size.features))).astype(np.float32)
    trained = uniform(keys[6], (count,)) * 0.5 + 0.5 < TRAINED
    name = f"communities ({count:,} nodes, {edges.shape[1]:,} links)"
    return Made(name, size, {"features": features, "labels": labels, "trained": trained, "edges": edges})


def _whole(key: Key, count: int, below: int) -> Array:
    # Of 32 bits, and a remainder: what that favours is less than one in 2^20.
    return (random_bits(key, (count,), 32) % np.uint32(below)).astype(np.int64)


def problem(
    task: Made, batch: int, scaling: UnitScaling, target: Target, accumulation: Accumulation | None = None,
    shuffle: bool = False,
) -> Problem:  # fmt: skip
    """The net on this graph, `batch` clusters a step.

    Args:
        task, batch, scaling, target: what is trained, and how.
        accumulation: of the sums over neighbours; None: in float32.
        shuffle: whether the links of a step come in an order of their own.

    Raises:
        ValueError: more clusters than there are.
    """
    clusters = Clusters(task, batch, shuffle)
    clusters.of(0)
    starts, scaled = layout(task.size), scaling.of(functools.partial(loss, accumulation))
    whole = Clusters(task, task.size.communities).of(0)(0)
    own = scaling.of(functools.partial(scores, accumulation))
    return Problem(
        scaled, scaling.begun(functools.partial(initial, starts)), clusters.of,
        functools.partial(evaluate, own, task, whole, target=target), stand_ins(starts),
    )  # fmt: skip


@dataclass(frozen=True)
class Clusters:
    """Batches of a graph: some clusters, and the links among them."""

    task: Made
    batch: int
    shuffle: bool = False

    def of(self, seed: int) -> Callable[[int], dict[str, Array]]:
        """The batch of any step."""
        rows = shuffled(self.task.size.communities, self.batch, seed)
        return lambda step: self.made(np.sort(rows(step)), (seed, step))

    def made(self, chosen: Array, seed: tuple[int, int] = (0, 0)) -> dict[str, Array]:
        """Nodes of these clusters: "features", "labels", "weights" (of the loss); "sources", "targets" and "shares".

        A share is one over the root of both ends' links, the node itself among them (Kipf and Welling 2017), of the
        links in the batch. Places that are left over link the first node to itself with a share of 0.
        """
        task, size = self.task, self.task.size
        nodes = (chosen[:, None] * size.nodes + np.arange(size.nodes)).reshape(-1)
        place = np.full(size.communities * size.nodes, -1, np.int64)
        place[nodes] = np.arange(len(nodes))
        ends = place[task["edges"]]
        ends = ends[:, (ends >= 0).all(axis=0)]
        ends = np.concatenate([ends, np.tile(np.arange(len(nodes)), (2, 1))], axis=1)
        order = np.argsort(ends[1], kind="stable")
        if self.shuffle:
            words = np.random.Philox(key=np.array(seed, np.uint64)).random_raw(ends.shape[1])
            order = np.argsort(words, kind="stable")
        ends = ends[:, order]
        degree = np.bincount(ends[1], minlength=len(nodes)).astype(np.float64)
        shares = 1 / np.sqrt(degree[ends[0]] * degree[ends[1]])
        left = self.links - ends.shape[1]
        return {
            "features": task["features"][nodes],
            "labels": task["labels"][nodes],
            "weights": task["trained"][nodes].astype(np.float32),
            "sources": np.pad(ends[0], (0, left)).astype(np.int32),
            "targets": np.pad(ends[1], (0, left)).astype(np.int32),
            "shares": np.pad(shares, (0, left)).astype(np.float32),
        }

    @functools.cached_property
    def links(self) -> int:
        """More than any batch has: all links of the clusters that have most, and a node to itself each."""
        size = self.task.size
        each = np.bincount(self.task["edges"][1] // size.nodes, minlength=size.communities)
        return int(np.sort(each)[-self.batch :].sum()) + self.batch * int(size.nodes)


def layout(size: Size) -> Any:
    """How every parameter begins."""
    widths = [size.features, *[size.width] * (size.layers - 1), size.classes]
    return [
        {"weight": ParameterStart((rows, columns), (2 / rows) ** 0.5), "bias": ParameterStart((columns,))}
        for rows, columns in itertools.pairwise(widths)
    ]


def scores(accumulation: Accumulation | None, params: Any, batch: Any) -> Any:
    """Scores of each node's class: (nodes, classes)."""
    h = batch["features"]
    nodes, links = np.shape(h)[0], np.shape(batch["sources"])[0]
    shares = nn.reshape(batch["shares"], (links, 1))
    for number, layer in enumerate(params):
        with nn.name_scope(f"layers.{number}", h):
            made = nn.matmul(h, layer["weight"])
            messages = nn.embedding(made, batch["sources"]) * shares
            h = nn.segment_sum(messages, batch["targets"], nodes, accumulation=accumulation) + layer["bias"]
            h = h if number == len(params) - 1 else nn.relu(h)
    return h


def loss(accumulation: Accumulation | None, params: Any, batch: Any) -> Any:
    """The mean cross-entropy of the nodes that are trained on, in nats."""
    return nn.softmax_cross_entropy(scores(accumulation, params, batch), batch["labels"], batch["weights"])


def evaluate(
    own: Callable[..., Any], task: Made, whole: Any, params: Any, precision: Precision, *, target: Target
) -> dict[str, float]:
    """The share of the test nodes that are classified correctly, on the whole graph."""
    made = evaluated(in_units(own, precision), precision, OrderRule.of(target), Key(EVALUATION), params, whole)
    right = np.asarray(made, np.float32).argmax(axis=1) == task["labels"]
    return {"test_accuracy": float(right[~task["trained"]].mean())}
