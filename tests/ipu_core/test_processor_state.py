"""What a caller set the processor to decides no bit of initial values, of programs or of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowprec as lp
from ipu_core import Adam, Clone, Clones, Codelet, Engine, Execute, Graph, Input, Lamb, Output, Predictor, TrainLoop, nn
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.tracing import trace
from tests.processor_state import STATES, control, processor_state

PARAMS = nn.mlp_parameters(1, [20, 24, 7])
X = nn.normal(2, (4, 16, 20), 1e-3)
Y = (lp.random_bits(3, 64).astype(np.int32) % 7).reshape(4, 16)


FAINT = X[0, 0, :16] * np.float32(2.0**-120)
PRECISIONS = ("fp32.32", "fp16.16/stochastic", "mlperf-bert")


def loss(params: Any, batch: Any) -> Any:
    return nn.softmax_cross_entropy(nn.mlp(params, batch[0], nn.gelu), batch[1])


class Scaled(Codelet):
    x, y = Input("float32", ndim=1), Output("float32", ndim=1)

    def compute(self) -> None:
        self.y = self.x * np.float32(0.3)

    def cycles(self, target: Any) -> Any:
        return 10


def trained(engine: str, precision: str) -> Callable[[], Any]:
    def run() -> Any:
        optimizer = Lamb(0.02) if precision == "mlperf-bert" else Adam(0.01)
        loop = TrainLoop(loss, PARAMS, (X[0], Y[0]), optimizer=optimizer, precision=precision, engine=engine, key=3)
        losses = [loop.train(batch) for batch in zip(X, Y, strict=True)]
        return losses, loop.params, loop.predict(nn.mlp, X[0])

    return run


WIDE = X[0].astype(np.float64) * 1.1, Y[0]
"""A batch that is rounded to float32 when it comes."""


def cloned() -> Any:
    models = [Clone(loss, PARAMS, optimizer=Adam(0.01), precision=precision) for precision in PRECISIONS[:2]]
    made = Clones(models, WIDE, engine="direct")
    return made.run([WIDE] * 3, 3), [loop.params for loop in made.loops]


def ran() -> Any:
    graph = Graph("gc200")
    x, y = (graph.add_variable("float32", (16,), name) for name in "xy")
    scaled = graph.add_compute_set("scaled")
    for tensor in (x, y):
        graph.set_tile_mapping(tensor, 0)
    graph.add_vertex(scaled, Scaled, 0, {"x": x, "y": y})
    engine = Engine(graph, Execute(scaled))
    engine.write(x, FAINT)
    engine.run(0)
    return engine.read(y)


SCALED = trace(lambda x, rate: x * rate, X[0], np.float32(0.1))

CALLS: dict[str, Callable[[], Any]] = {
    "initial values": lambda: (nn.mlp_parameters(5, [9, 40, 3]), nn.uniform(1, (99,), 0.3), nn.normal(1, (99,), 0.3)),
    "operations on arrays": lambda: (
        nn.softmax(X[0]),
        nn.layer_norm(X[0], X[0, 0], X[0, 1]),
        loss(PARAMS, (X[0], Y[0])),
    ),
    "ideal arithmetic": lambda: evaluate(trace(loss, PARAMS, (X[0], Y[0])), PARAMS, (X[0], Y[0])),
    "predictor": lambda: Predictor(nn.mlp, PARAMS, X[0], precision="fp16.16/nearest")(X[0]),
    "engine": ran,
    "a number that is given": lambda: execute(SCALED, X[0], 0.1, key=1),
    **{
        f"{e}, {p}": trained(e, p)
        for e in ("tiles", "direct")
        for p in ("fp32.32", "fp16.16/stochastic", "mlperf-bert")
    },
    "direct, fp8": trained("direct", "fp8"),
    "direct, float64": trained("direct", "float64"),
    "clones": cloned,
    "what a step takes": lambda: TrainLoop(
        loss, PARAMS, WIDE, optimizer=Adam(lambda step: 0.01 / (3 + step)), precision="fp32.32", engine="direct"
    ).next_step(WIDE)[0],
}


def digest(result: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in flatten(result)[0]]


@pytest.mark.parametrize("name", CALLS)
def test_the_state_decides_nothing(name: str) -> None:
    want = digest(CALLS[name]())
    for state in ("ftz and daz", "up", "down"):
        with processor_state(**STATES[state]) as as_set:
            result = CALLS[name]()
            assert control() == as_set
        assert digest(result) == want, state
