"""Trainings with one planted fault each, and healthy ones: what `blame` is asked about."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ipu_core import Adam, FloatingPointControl, Sgd, TrainLoop, nn
from ipu_core.ir.precision.precision import Precision
from ipu_core.train.optim import Optimizer

INPUTS, WIDTH, CLASSES, ROWS = 48, 48, 4, 32
HUGE = 2.0**18
TINY = 2.0**-13
SMALL = 2.0**-8
FAR = 16.0


@cache
def parameters(layers: int = 3) -> Any:
    rng = np.random.default_rng(3)
    widths = [INPUTS] + [WIDTH] * (layers - 1) + [CLASSES]
    return {
        f"layer{i}": {
            "weight": rng.normal(size=(n, m), scale=(2 / n) ** 0.5).astype(np.float32),
            "bias": np.zeros(m, np.float32),
        }
        for i, (n, m) in enumerate(itertools.pairwise(widths))
    }


@cache
def teacher() -> Any:
    rng = np.random.default_rng(7)
    return 1.5 * rng.normal(size=(3, 16)), rng.normal(size=(16, CLASSES))


def batch(step: int) -> Any:
    """Classes that depend on few of the inputs, so that the first layer has to learn which."""
    rng = np.random.default_rng([11, step])
    x = rng.normal(size=(ROWS, INPUTS))
    first, second = teacher()
    return x.astype(np.float32), np.argmax(np.tanh(x[:, :3] @ first) @ second, axis=1).astype(np.int32)


def loss(params: Any, data: Any) -> Any:
    x, y = data
    for name in ("layer0", "layer1"):
        x = nn.relu(nn.linear(x, **params[name]))
    return nn.softmax_cross_entropy(nn.linear(x, **params["layer2"]), y)


def loss_with_huge_values(params: Any, data: Any) -> Any:
    x, y = data
    x = nn.relu(nn.linear(x, **params["layer0"]))
    with nn.name_scope("scaled", x):
        x = x * HUGE  # planted: saturates float16
    x = nn.relu(nn.linear(x * (1 / HUGE), **params["layer1"]))
    return nn.softmax_cross_entropy(nn.linear(x, **params["layer2"]), y)


def loss_with_tiny_values(params: Any, data: Any) -> Any:
    x, y = data
    x = nn.relu(nn.linear(x, **params["layer0"]))
    with nn.name_scope("scaled", x):
        x = x * TINY * TINY  # planted: underflows float16
    x = nn.relu(nn.linear((x * (1 / TINY)) * (1 / TINY), **params["layer1"]))
    return nn.softmax_cross_entropy(nn.linear(x, **params["layer2"]), y)


def small_loss(params: Any, data: Any) -> Any:
    return loss(params, data) * SMALL  # planted: so are its gradients


def loss_that_cancels(params: Any, data: Any) -> Any:
    x, y = data
    weight, bias = params["layer0"]["weight"], params["layer0"]["bias"]
    both = nn.concatenate((x + FAR, x - FAR), 1)  # a product of which most cancels
    x = nn.relu(nn.matmul(both, nn.concatenate((weight, weight), 0)) * 0.5 + bias)
    x = nn.relu(nn.linear(x, **params["layer1"]))
    return nn.softmax_cross_entropy(nn.linear(x, **params["layer2"]), y)


@dataclass(frozen=True)
class Fault:
    """A training and what is wrong with it.

    Attributes:
        precision: with the fault.
        cause, part, kinds: what blame must say; part "" where it is everywhere; empty cause: nothing.
        also: causes that may be named after it, which the fault has too.
    """

    name: str
    precision: str | Precision
    cause: str = ""
    part: str = ""
    kinds: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    loss: Callable[..., Any] = loss
    optimizer: Optimizer = field(default_factory=lambda: Sgd(0.1))
    steps: int = 300
    options: Any = field(default_factory=dict)

    def loop(self) -> TrainLoop:
        return TrainLoop(
            self.loss, parameters(), batch(0), optimizer=self.optimizer, precision=self.precision, engine="direct",
            **self.options,
        )  # fmt: skip


FAULTS = (
    Fault("weights of a layer in float16", "fp16.32/layer0:weights=float16", "weights", "layer0", ("lost updates",),
          optimizer=Sgd(0.003), steps=3000),
    Fault("weights of a layer in bfloat16", "fp16.32/layer0:weights=bfloat16", "weights", "layer0", ("lost updates",),
          optimizer=Sgd(0.02), steps=600),
    Fault("a 4-bit accumulator forward", "fp16.32/layer0:forward.partials=float8_e4m3fn", "partials", "layer0",
          ("partial sums",), loss=loss_that_cancels),
    Fault("a 4-bit accumulator for a weight's gradient", "fp16.32/layer0:grad_weight.partials=float8_e4m3fn",
          "partials", "layer0", ("partial sums", "underflow"), loss=small_loss, optimizer=Sgd(0.1 / SMALL)),
    Fault("a gradient in E4M3 without a scale", "fp16.32/layer1:grad_input.gradients=float8_e4m3fn",
          "backward", "layer1", ("underflow",), loss=small_loss, optimizer=Sgd(0.1 / SMALL)),
    Fault("v in raw float16", "fp16.32/second_moment=float16", "second_moment", "", ("underflow", "lost increments"),
          optimizer=Adam(0.003)),
    Fault("m of a layer in E4M3", "fp16.32/layer0:first_moment=float8_e4m3fn", "first_moment", "layer0",
          ("underflow", "lost increments"), loss=small_loss, optimizer=Adam(0.003, eps=1e-12)),
    Fault("saturated values", "fp16.32", "forward", "scaled.multiply", ("overflow",), ("backward",),
          loss=loss_with_huge_values),
    Fault("values that underflow", "fp16.32", "forward", "scaled.multiply", ("underflow",), ("backward",),
          loss=loss_with_tiny_values),
    Fault("sums of gradients in E4M3", "fp16.32/gradient_sum=float8_e4m3fn", "gradient_sum", "",
          ("underflow", "lost increments"), loss=small_loss, optimizer=Sgd(0.1 / SMALL), options={"micro_batches": 4}),
    Fault("operands of a layer in four bits", "fp16.32/layer2:operands=float4_e2m1fn", "forward", "layer2",
          ("underflow", "rounding", "overflow")),
    Fault("a 4-bit accumulator among stochastic halves", "fp16.16/stochastic/layer0:forward.partials=float8_e4m3fn",
          "partials", "layer0", ("partial sums",), loss=loss_that_cancels),
    Fault("nearest weights of a layer among stochastic ones", "fp16.16/stochastic/layer0:weights=bfloat16"
          "/layer0.*:nearest", "weights", "layer0", ("lost updates",), optimizer=Sgd(0.02), steps=600),
    Fault("overflow gives NaN", "fp16.32", "forward", "scaled.multiply", ("overflow",), ("backward",),
          loss=loss_with_huge_values, options={"control": FloatingPointControl(nanoo=True)}),
)  # fmt: skip

TOO_LARGE = Fault("a loss scale that is too large", "fp16.32", "loss scale", options={"loss_scale": 2.0**24})

HEALTHY = (
    Fault("float32", "fp32.32"),
    Fault("float16 over float32", "fp16.32"),
    Fault("float16, stochastic", "fp16.16/stochastic"),
    Fault("float16, stochastic, Adam with scaled moments", "mlperf-bert", optimizer=Adam(0.003)),
    Fault("bfloat16", "bf16.32", optimizer=Adam(0.003)),
)
