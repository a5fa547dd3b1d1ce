"""Sensible arguments of ipu_core's public calls, small enough to be run many thousand times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import ipu_core
from ipu_core import nn
from ipu_core.errors import OutOfTileMemory
from tests.fuzz.lowprec_calls import hadamard_arguments
from tests.fuzz.wild import Draw

Arguments = dict[str, Any]
FLOAT = ("float32",)
FEW = ipu_core.Target("gc200", tiles=4)


def loss(params: Any, batch: Any) -> Any:
    """A perceptron's."""
    hidden = nn.relu(nn.linear(batch["x"], params["w"], params["b"]))
    return nn.softmax_cross_entropy(hidden @ params["v"], batch["y"])


def _training(d: Draw) -> Arguments:
    rows = d.integer(1, 4)
    params = {"w": d.numbers.standard_normal((3, 4)).astype("f4"), "b": np.zeros(4, "f4"), "v": np.ones((4, 2), "f4")}
    batch = {"x": np.ones((rows, 3), "f4"), "y": np.zeros(rows, "i4")}
    return {
        "loss": loss, "params": params, "batch": batch, "optimizer": ipu_core.Sgd(0.1), "target": FEW,
        "precision": d.one_of(("fp32.32", "fp16.16/stochastic", "fp16.32")), "engine": d.one_of(("direct", "tiles")),
        "key": d.integer(0, 9),
    }  # fmt: skip


def train(steps: int = 1, **arguments: Any) -> Any:
    """A loop that runs a step or more."""
    loop = ipu_core.TrainLoop(**arguments)
    return [loop.update(arguments["batch"]) for _ in range(steps)] if hasattr(loop, "update") else loop


def _compare(d: Draw) -> Arguments:
    found = _training(d)
    batch = found.pop("batch")
    return {"loss": found["loss"], "params": found["params"], "batches": [batch], "precisions": [found["precision"]],
            "optimizer": ipu_core.Sgd(0.1), "engine": "direct", "target": FEW}  # fmt: skip


def _one(name: str) -> Callable[[Draw], Arguments]:
    return lambda d: {"x": d.array(None, FLOAT)}


def _trace(d: Draw) -> Arguments:
    return {"f": lambda x: nn.relu(x * 2.0), "example": d.array((2, 3), FLOAT)}


def trace(f: Any, example: Any) -> Any:
    """A function traced, typed and planned."""
    block = ipu_core.trace(f, example)
    ipu_core.plan(block, FEW)
    return ipu_core.evaluate(block, example)


def build(steps: tuple[str, ...], tile: Any, shape: Any, fmt: Any, values: Any) -> Any:
    """A small graph, mapped, copied and run."""
    graph = ipu_core.Graph(FEW)
    source = graph.add_constant(fmt, values, "source")
    to = graph.add_variable(fmt, shape, "to")
    if "map" in steps:
        graph.set_tile_mapping(source, tile)
        graph.set_tile_mapping(to, tile)
    engine = ipu_core.Engine(graph, ipu_core.Repeat(2, ipu_core.Copy(source, to)))
    engine.run(0)
    return engine.read(to)


def _build(d: Draw) -> Arguments:
    shape = d.shape(2)
    return {"steps": d.one_of((("map",), ("map",), ())), "tile": d.integer(0, 4), "shape": shape,
            "fmt": d.one_of(("float32", "float16", "int32")), "values": np.ones(shape)}  # fmt: skip


CALLS: dict[str, tuple[Callable[..., Any], Callable[[Draw], Arguments]]] = {
    "Target": (ipu_core.Target, lambda d: {
        "name": d.one_of(("gc2", "gc200", "bow", "c600")), "tiles": d.integer(1, 2000), "tile_memory": 2**17}),
    "FloatingPointControl": (ipu_core.FloatingPointControl, lambda d: {
        name: d.chance(0.5) for name in ("inv", "div0", "oflo", "esr", "nanoo")}),
    "Sgd": (ipu_core.Sgd, lambda d: {"lr": 0.1}),
    "Adam": (ipu_core.Adam, lambda d: {"lr": 0.1}),
    "Lamb": (ipu_core.Lamb, lambda d: {"lr": 0.1}),
    "Precision.parse": (ipu_core.Precision.parse if hasattr(ipu_core.Precision, "parse") else ipu_core.Precision,
                        lambda d: {}),
    **{f"nn.{name}": (getattr(nn, name), _one(name)) for name in (
        "exp", "log", "sqrt", "rsqrt", "square", "sin", "cos", "erf", "relu", "gelu", "tanh", "sigmoid", "softmax",
        "log_softmax")},
    "nn.maximum": (nn.maximum, lambda d: {"a": d.array((2, 3), FLOAT), "b": d.array((2, 3), FLOAT)}),
    "nn.one_hot": (nn.one_hot, lambda d: {"labels": d.integers((4,), 3), "classes": 3}),
    "nn.dropout": (nn.dropout, lambda d: {"x": d.array((2, 3), FLOAT), "rate": 0.5, "key": 1}),
    "nn.linear": (nn.linear, lambda d: {"x": d.array((2, 3), FLOAT), "weight": d.array((3, 4), FLOAT)}),
    "nn.embedding": (nn.embedding, lambda d: {"table": d.array((5, 3), FLOAT), "indices": d.integers((4,), 5)}),
    "nn.softmax_cross_entropy": (nn.softmax_cross_entropy, lambda d: {
        "logits": d.array((4, 3), FLOAT), "labels": d.integers((4,), 3)}),
    "nn.mse": (nn.mse, lambda d: {"prediction": d.array((4, 3), FLOAT), "target": d.array((4, 3), FLOAT)}),
    "nn.layer_norm": (nn.layer_norm, lambda d: {
        "x": d.array((4, 3), FLOAT), "scale": d.array((3,), FLOAT), "bias": d.array((3,), FLOAT)}),
    "nn.rms_norm": (nn.rms_norm, lambda d: {"x": d.array((4, 3), FLOAT), "scale": d.array((3,), FLOAT)}),
    "nn.hadamard": (nn.hadamard, lambda d: hadamard_arguments(d, FLOAT)),
    "trace": (trace, _trace),
    "graph": (build, _build),
    "TrainLoop": (train, _training),
    "compare": (partial(ipu_core.compare, steps=2, seeds=1), _compare),
    "OutOfTileMemory": (OutOfTileMemory, lambda d: {
        "tile": 1, "needed": 3, "capacity": 2, "categories": {}, "largest": [], "step": "a"}),
}  # fmt: skip
HEAVY = ("TrainLoop", "compare")
