"""Our figures of packing, recipes, unit scaling and moments in 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

import lowprec
from ipu_core import nn
from ipu_core.ir.block import Block, Equation, Literal
from ipu_core.ir.pytree import flatten
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.unit_scaling import unit_scale
from ipu_core.packing.histogram import Histogram
from ipu_core.packing.plan import Packing
from ipu_core.packing.strategies import nnlshp, spfhp
from ipu_core.reproduce import packed as reproduced
from ipu_core.study.models import molecules, uno
from ipu_core.train.optim import Lamb
from ipu_core.train.recipes import recipe
from lowprec import Key

ELEMENTS = 2_000
FIGURES: dict[str, Callable[[Packing], float]] = {
    "packs": lambda plan: plan.packs,
    "millions": lambda plan: plan.packs / 1e6,
    "efficiency": lambda plan: 100 * plan.efficiency,
    "factor": lambda plan: plan.factor,
    "strategies": lambda plan: len(plan.strategies),
    "tokens": lambda plan: plan.tokens,
    "padding": lambda plan: plan.padding,
}


@lru_cache(64)
def _plan(histogram: str, strategy: str, depth: int) -> Packing:
    lengths, length = Histogram.named(histogram)
    return nnlshp(lengths, length) if strategy == "nnlshp" else spfhp(lengths, length, depth or None)


def packed(histogram: str, depth: int, figure: str, strategy: str = "spfhp") -> float:
    """A figure of a packing, one of FIGURES; depth 0: as deep as it goes."""
    return FIGURES[figure](_plan(histogram, strategy, depth))


@lru_cache(64)
def _speeds() -> dict[tuple[int, str], tuple[float, float]]:
    return reproduced.speeds(reproduced.SIZE)


def packing_speed(depth: int, strategy: str) -> float:
    """How many times as many sequences a second packed BERT takes by the account of a GC200, a small model."""
    return _speeds()[depth, strategy][1]


def recipe_says(field: str, chips: int = 16, name: str = "mlperf-bert-v2") -> float:
    """A figure of a published recipe as this library has it; of LAMB, "eps", whatever the recipe."""
    if field == "eps":
        return Lamb(1.0).eps
    unknown: dict[str, Any] = {}
    if name != "mlperf-bert-v2":
        unknown = {"beta1": 0.9, "weight_decay": 0.01}
    if (name, chips) != ("mlperf-bert-v1.1", 16):
        unknown["gradient_sum"] = "running_mean"
    made = recipe(name, chips=chips, learning_rate=1.0, **unknown)
    if field in ("micro_batches", "loss_scale"):
        value = getattr(made, field)
        return 1.0 if value is None else float(getattr(value, "scale", value))
    if field in ("first_scale", "second_scale"):
        return made.precision.scaled_state ** (1 if field == "first_scale" else 2)
    return float(getattr(made.optimizer, field))


def vanishing(beta2: float, scale: float) -> float:
    """The size of gradient below which the increment (1 - beta2) g^2, times a scale, is zero in float16 to nearest."""
    low, high = 1e-8, 1.0
    # whether it is zero changes once: bisection by the rounding itself
    while high / low > 1.0001:
        middle = (low * high) ** 0.5
        increment = np.float32((1 - beta2) * scale * middle**2)
        low, high = (middle, high) if float(lowprec.round(increment, "float16")) == 0 else (low, middle)
    return high


def second_moment(fmt: str, beta2: float, sigma: float, rounding: str, steps: int = 6000) -> float:
    """The mean of stored second moments over the true one, for normal gradients; fewer elements than published."""
    generator, v = np.random.Generator(np.random.Philox(0)), np.zeros(ELEMENTS, np.float32)
    for step in range(steps):
        g = generator.standard_normal(ELEMENTS, np.float32) * np.float32(sigma)
        new = np.float32(beta2) * v + np.float32(1 - beta2) * (g * g)
        how: dict[str, Any] = {"rounding": rounding, "overflow": "saturate"}
        how |= {"key": Key(step)} if rounding == "stochastic" else {}
        v = np.asarray(lowprec.round(new, fmt, **how))
    return float(np.mean(v, dtype=np.float64) / sigma**2)


def unit_factor(function: str, backward: bool) -> float:
    """The factor of a nonlinearity's result under unit scaling, or that of its gradient; "matmul": of 64 terms."""
    x, w = np.zeros((24, 64), np.float32), np.zeros((64, 16), np.float32)
    if function == "matmul":
        block = trace(unit_scale(lambda p, x: _summed((x @ p) @ np.ones((16, 1), np.float32))), w, x)
        return _factor_after(block, next(e for e in block.equations if e.op == "dot"))
    f = getattr(nn, function)
    block = trace(unit_scale(lambda p, x: _summed(f(x @ p) @ np.ones((16, 1), np.float32))), w, x)
    made = next(e for e in block.equations if e.op == function)
    if not backward:
        return _factor_after(block, made)
    return float(next(e for e in block.equations if e.output is made.operands[0]).params["factor"])


def _factor_after(block: Block, made: Equation) -> float:
    scale = next(e for e in block.equations if e.op == "scale" and made.output in e.operands)
    assert isinstance(scale.inputs[1], Literal)
    return float(scale.inputs[1].value)


def _summed(y: Any) -> Any:
    return nn.mse(y, np.zeros(y.shape, np.float32))


def parameters(model: str) -> float:
    """Millions of parameters of a talk's model at the talk's size: "gin" or "uno"."""
    layout = uno.layout(uno.SIZES["talk"]) if model == "uno" else molecules.layout(molecules.SIZES["talk"])
    return sum(int(np.prod(leaf.shape)) for leaf in flatten(layout)[0]) / 1e6
