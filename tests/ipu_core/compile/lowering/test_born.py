"""In a loop nothing that an iteration makes bit by bit lives on into the next."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_core import Graph, Sgd, Target, TrainLoop, nn
from ipu_core.compile.lowering.born import undefined
from ipu_core.graph.program import Copy, Sequence, WriteUndef

ROWS, SIDE, CHANNELS = 4, 32, 32


def test_what_several_steps_write_is_undefined_before_them() -> None:
    graph = Graph(Target("gc200", tiles=4))
    x, twice, once = (graph.add_variable("float32", (4,), name, temporary=True) for name in ("x", "twice", "once"))
    kept = graph.add_variable("float32", (4,), "kept")
    programs = [Copy(x[:2], twice[:2]), Sequence(Copy(x[2:], twice[2:]), Copy(x, once)), Copy(x[:2], kept[:2])]
    programs.append(Copy(x[2:], kept[2:]))
    born = [tensor.variable for tensor in (twice, once, kept)]
    (found,) = undefined(born, programs)
    assert isinstance(found, WriteUndef)
    assert found.tensor.variable is twice.variable
    assert found.tensor.size == 4
    assert undefined([], programs) == []


def loss(params: Any, batch: Any) -> Any:
    """Windows that overlap are put together from nine copies; then larger things are made."""
    pooled = nn.mean(nn.max_pool2d(batch, 3, 1), (1, 2))
    h = nn.matmul(pooled, params["first"])
    for _ in range(3):
        h = nn.tanh(nn.matmul(h, params["second"]))
    return nn.mean(h)


def test_a_loop_needs_little_more_than_its_body() -> None:
    rng = np.random.default_rng(0)
    shapes = {"first": (CHANNELS, 2048), "second": (2048, 2048)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    peaks = []
    for count in (1, 2):
        batch = np.zeros((count * ROWS, SIDE, SIDE, CHANNELS), np.float32)
        loop = TrainLoop(
            loss, params, batch, optimizer=Sgd(0.1), precision="fp32.32", micro_batches=count,
            target=Target("gc200", tiles=64, tile_memory=4_000_000),
        )  # fmt: skip
        assert loop.profile is not None
        peaks.append(loop.profile.memory)
    totals = sum(leaf.nbytes for leaf in params.values()) / 64
    assert peaks[1].peak.mean() < peaks[0].peak.mean() + totals
