"""Graph nets: clusters as batches, packed graphs, and the order in which neighbours are added up.

Chiang et al. (Cluster-GCN, arXiv 1905.07953, 2019): batches of several clusters train as the whole graph does. Krell et
al. (Tuple packing, arXiv 2209.06354, 2022): small graphs packed by nodes and edges leave little padding. A sum over
neighbours is a scatter, and its order and accumulator are an `Accumulation` of the model: what that does to bits and to
what is learnt has no paper, and is measured here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.trace.tracing import trace
from ipu_core.reproduce.byte_model import of_rows
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.reproduce.seeds import above, below, beside, every
from ipu_core.study.models import communities, molecules
from ipu_core.study.models.made import Made
from ipu_core.study.models.start import initial
from ipu_core.study.models.unit_scaled import UnitScaling
from ipu_core.study.point import Recipe, make_loop
from ipu_core.study.settings import Point
from ipu_core.train.optim import Adam
from lowprec import Accumulation

STEPS, RATE, CLUSTERS = 200, 0.003, 8
PRECISION = "fp16.16/stochastic"
EXACT = 1e-12
HUB = 4096
"""Links of a node that many others link to."""


class Row(NamedTuple):
    """How one training adds up neighbours, and on how many clusters.

    Attributes:
        accumulation: of the sums; None: in float32.
        shuffle: whether links come in an order of their own in every step.
        clusters: of a step; None: all, the whole graph.
        precision: of the training.
    """

    accumulation: Accumulation | None = None
    shuffle: bool = False
    clusters: int | None = CLUSTERS
    precision: str = PRECISION


ROWS: Mapping[str, Row] = {
    "float32": Row(),
    "float32, shuffled": Row(shuffle=True),
    "half after each": Row(Accumulation(1, accumulate="float16")),
    "half after each, shuffled": Row(Accumulation(1, accumulate="float16"), shuffle=True),
    "bfloat16 after each": Row(Accumulation(1, accumulate="bfloat16")),
    "e4m3 after each": Row(Accumulation(1, accumulate="float8_e4m3fn")),
    "FP32.32": Row(precision="fp32.32"),
    "one cluster": Row(clusters=1),
    "whole graph": Row(clusters=None),
}
"""Accuracies are compared with the first; the last two are other batches, after as many nodes."""


@dataclass(frozen=True)
class Sums:
    """What orders do to one sum over neighbours.

    Attributes:
        changed: by row: share of the elements whose bits differ from the sorted sum in float32.
        error: by row: root of the mean square of the error, over that of the sums.
        hub: by accumulation: the sum of HUB ones at one node.
    """

    changed: Mapping[str, float]
    error: Mapping[str, float]
    hub: Mapping[str, float]


def train(row: str, steps: int, seed: int) -> float:
    """The share of the test nodes that are right at the end."""
    how, task = ROWS[row], communities.data("small")
    clusters = how.clusters or task.size.communities
    problem = communities.problem(task, clusters, UnitScaling(), Target(), how.accumulation, how.shuffle)
    count = max(1, round(steps * CLUSTERS / clusters))
    recipe = Recipe.of(count, optimizer=Adam(RATE), engine="direct", loss_scale="automatic")
    loop = make_loop(problem, recipe, Point(how.precision, seed))
    loop.run(problem.batches(seed), count)
    assert problem.evaluate is not None
    return problem.evaluate(loop.params, loop.precision)["test_accuracy"]


def sums() -> Sums:
    """Of the first layer's messages of one batch, in halves."""
    task = communities.data("small")
    params = initial(communities.layout(task.size), 0)
    plain, shuffled = (communities.Clusters(task, CLUSTERS, each).of(0)(0) for each in (False, True))

    def added(batch: Mapping[str, Any], accumulation: Accumulation | None, fmt: Any) -> Any:
        made = np.asarray(batch["features"] @ params[0]["weight"], np.float32)
        messages = made[batch["sources"]] * batch["shares"][:, None]
        nodes = len(batch["features"])
        return nn.segment_sum(messages.astype(fmt), batch["targets"], nodes, accumulation=accumulation)

    halves = added(plain, None, np.float16)
    exact = np.zeros(halves.shape)
    made = np.asarray(plain["features"] @ params[0]["weight"], np.float32)
    messages = (made[plain["sources"]] * plain["shares"][:, None]).astype(np.float16)
    np.add.at(exact, plain["targets"], messages.astype(np.float64))
    changed, error = {}, {}
    for name, row in ROWS.items():
        if row.clusters == CLUSTERS and row.precision == PRECISION:
            own = added(shuffled if row.shuffle else plain, row.accumulation, np.float16)
            changed[name] = float((own != halves).mean())
            off = np.asarray(own, np.float64) - exact
            error[name] = float(np.sqrt((off**2).mean() / (exact**2).mean()))
    orders = {"float32": None, "half after each": 1, "half after every 16th": 16}
    ones, there = np.ones((HUB, 1), np.float16), np.zeros(HUB, np.int32)
    hub = {
        name: float(
            nn.segment_sum(
                ones, there, 1, accumulation=None if group is None else Accumulation(group, accumulate="float16")
            )[0, 0]
        )
        for name, group in orders.items()
    }
    return Sums(changed, error, hub)


def packed_equality() -> float:
    """How far loss and gradients of a pack of graphs are from those of each graph in a pack of its own (float64)."""
    task = molecules.data("small")
    size = task.size
    whole = molecules.joined(task, np.arange(1))
    params = initial(molecules.layout(size), 0)
    exact = _exact(size.depth, params, whole)
    graphs = int(task["there"][0].sum())
    alone = [_exact(size.depth, params, molecules.joined(_only(task, graph), np.arange(1))) for graph in range(graphs)]
    mean = [np.mean([each[i] for each in alone], axis=0) for i in range(len(exact))]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(exact, mean, strict=True))


def _only(task: Made, graph: int) -> Made:
    """A data set of one pack, the first, with one of its graphs."""
    size, arrays = task.size, {name: array[:1].copy() for name, array in task.arrays.items()}
    here = arrays["graphs"][0] == graph
    arrays["graphs"][0] = np.where(here, graph, size.depth)
    ends = arrays["targets"][0]
    # Links to other graphs' nodes go to the one that is none.
    inside = (ends < size.nodes) & here[np.minimum(ends, size.nodes - 1)]
    arrays["targets"][0] = np.where(inside, ends, size.nodes)
    arrays["there"][0] = np.arange(size.depth) == graph
    return Made(task.name, size, arrays)


def _exact(depth: int, params: Any, batch: Any) -> list[Any]:
    block = value_and_grad(trace(functools.partial(molecules.loss, depth), params, batch))
    return evaluate_flat(block, [np.asarray(leaf) for leaf in flatten((params, batch))[0]])


def filled() -> dict[str, float]:
    """Share of the nodes of a row that are a graph's: packed, and with a row of the largest graph's size for each."""
    task = molecules.data("small")
    counts = np.array([np.bincount(row, minlength=task.size.depth)[: task.size.depth] for row in task["graphs"]])
    nodes = counts[counts > 0]
    return {"packed": float(nodes.sum() / task["graphs"].size), "padded": float(nodes.mean() / nodes.max())}


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    steps = max(1, round(share * STEPS))
    found = of_rows(ROWS, lambda row, seed: train(row, steps, seed), seeds, progress, _right)
    return judged(found, sums(), packed_equality(), filled())


def judged(found: Mapping[str, list[float]], added: Sums, equality: float, rows: Mapping[str, float]) -> list[Finding]:
    """The findings in what was measured."""
    base = found["float32"]
    orders = [name for name in list(ROWS)[1:7]]
    tested = int((~communities.data("small")["trained"]).sum())
    right = float(np.mean(found["whole graph"]))
    told = math.sqrt(right * (1 - right) / tested)
    return [
        Finding(
            "batches of several clusters train no worse than the whole graph, after as many nodes (within the standard "
            f"error of {tested} test nodes, {100 * told:.1f} points)",
            f"{_right(base)}; whole graph {_right(found['whole graph'])}, one cluster {_right(found['one cluster'])}",
            above(beside(found, "float32", "whole graph"), -told),
            len(base),
        ),
        Finding(
            "graphs packed by nodes and edges leave less than a tenth of padding",
            f"{rows['packed']:.1%} filled, a row for each {rows['padded']:.1%}",
            rows["packed"] > 0.9,
        ),
        Finding(
            "packed graphs have the loss and the gradients of the graphs alone (float64, to 1e-12)",
            f"off by {equality:.1e}",
            equality <= EXACT,
        ),
        Finding(
            "no claim: another order, or a half as accumulator, of the sums over neighbours changes bits",
            "; ".join(f"{name} {added.changed[name]:.1%}, {added.error[name]:.1e} off" for name in added.changed),
            None,
        ),
        Finding(
            "what is learnt changes by no order that was tried (within the same error)",
            "; ".join(f"{name} {_right(found[name])}" for name in ("float32", *orders)),
            every(*(below(beside(found, "float32", name), told) for name in orders)),
            len(base),
        ),
        Finding(
            f"a half as accumulator stops at 2,048 at a node with {HUB:,} links, in groups of 16 not",
            "; ".join(f"{name} {value:g}" for name, value in added.hub.items()),
            (added.hub["half after each"], added.hub["half after every 16th"]) == (2048, HUB),
        ),
    ]


def _right(values: Sequence[float]) -> str:
    return f"{spread([100 * value for value in values], 1)} %"


GRAPHS = Reproduction(
    "graphs",
    "clusters, packs and the order of a scatter",
    "Chiang et al. 2019, arXiv 1905.07953; Krell et al. 2022",
    run,
)
