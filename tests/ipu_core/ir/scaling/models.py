"""A small model, and products of scaled operands in plain NumPy, for the tests of this folder."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.run.evaluate import evaluate
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd

SIZES = (12, 9, 4)
PARAMS = nn.mlp_parameters(3, SIZES)


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(step)
    return rng.normal(size=(16, 12)).astype(np.float32) * 2.0 ** (step % 5), rng.integers(0, 4, 16).astype(np.int32)


def loss(params: Any, given: Any) -> Any:
    return nn.softmax_cross_entropy(nn.mlp(params, given[0], nn.relu), given[1])


def products(block: Block) -> list[Equation]:
    return [e for e in block.equations if e.op == "dot"]


def loop(spec: str, **changes: Any) -> TrainLoop:
    return TrainLoop(loss, PARAMS, batch(0), precision=spec, **{"optimizer": Sgd(0.05), "engine": "direct"} | changes)


def current(a: np.ndarray) -> np.float32:
    return np.float32(448) / np.float32(np.abs(a.astype(np.float16)).max())


def value_of(block: Block, var: Any, *arguments: Any) -> np.ndarray:
    """A value on the way, as declared."""
    shown = Block(block.inputs, (var,), block.equations, block.constants)
    (result,) = evaluate(shown, *arguments, arithmetic="declared")
    return np.asarray(result)


def factor(fmt: str, *tensors: np.ndarray) -> np.float32:
    """What takes the tensor scales out of a product."""
    if fmt != "nvfp4":
        return np.float32(1)
    a, b = (np.float32(1) / (np.float32(6 * 448) / np.abs(x.astype(np.float32)).max()) for x in tensors)
    return a * b
