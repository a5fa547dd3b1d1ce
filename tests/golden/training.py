"""Golden bits of 20 training steps in every precision, with the orders of all sums pinned."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

import lowprec as lp
from ipu_core import Lamb, Precision, Sgd, nn
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.execute import Executable
from ipu_core.train.optim import Optimizer, nothing
from ipu_core.train.step import initial_state, step_block
from lowprec import Accumulation

STEPS = 20
ORDERS = {"dot": Accumulation(group=16, splits=2), "reduce_sum": Accumulation(group=8)}
RUNS: dict[str, Optimizer] = {
    "fp32.32": Sgd(0.1),
    "fp16.32": Sgd(0.1),
    "fp16.16/nearest": Sgd(0.1),
    "fp16.16/stochastic": Sgd(0.1, momentum=0.5),
    "mlperf-bert-pod16": Lamb(0.02, weight_decay=0.01, scaled_state=64.0, ratio_one=nothing),
}


def loss(params: Any, batch: Any) -> Any:
    """Cross-entropy of a small perceptron with gelu."""
    return nn.softmax_cross_entropy(nn.mlp(params, batch[0], nn.gelu), batch[1])


def run(spec: str, optimizer: Optimizer, steps: int = STEPS) -> dict[str, Any]:
    """The losses of a run and a digest of the state it ends with."""
    params = nn.mlp_parameters(1, [20, 24, 7])
    batch = (nn.uniform(2, (40, 20)), lp.random_bits(3, 40).astype(np.int32) % 7)
    precision = Precision.parse(spec)
    block = precision.apply(step_block(loss, optimizer, params, batch))
    orders = {e.number: ORDERS[e.op] for e in block.equations if e.op in ORDERS}
    program, key = Executable(block, orders), lp.Key(4)
    state, losses = flatten(precision.cast_state(block, initial_state(params, optimizer)))[0], []
    for step in range(steps):
        *state, value = program.run([*state, *batch, np.float32(optimizer.lr)], key.fold_in(step))
        losses.append(float(value).hex())
    return {"losses": losses, "state": hashlib.sha256(b"".join(x.tobytes() for x in state)).hexdigest()}


def build() -> dict[str, Any]:
    """The golden file of training runs."""
    return {"training.json": {spec: run(spec, optimizer) for spec, optimizer in RUNS.items()}}
