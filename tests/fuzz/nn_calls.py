"""Sensible arguments of `ipu_core.nn`: on arrays, and on traced values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ipu_core
from ipu_core import nn
from tests.fuzz.lowprec_calls import hadamard_arguments
from tests.fuzz.machine_calls import Arguments, Calls, Make
from tests.fuzz.wild import Draw

FLOAT = ("float32", "float32", "float16", "float64")
ONE = (
    "exp", "log", "sqrt", "rsqrt", "square", "sin", "cos", "erf", "relu", "gelu", "tanh", "sigmoid", "softmax",
    "log_softmax", "silu", "softplus", "leaky_relu", "stop_gradient", "log_sum_exp", "logsumexp", "mean", "reduce_sum",
    "reduce_max", "scale", "floor", "ceil", "trunc", "rint",
)  # fmt: skip
INITIAL = ("glorot_uniform", "he_normal", "he_uniform", "lecun_normal", "lecun_uniform", "normal", "uniform")


def floats(*shape: int) -> Make:
    """An array for x."""
    return lambda d: {"x": d.array(shape, FLOAT)}


def _cell(gates: int, **more: tuple[int, ...]) -> Callable[[Draw], Any]:
    shapes = {"input": (3, gates * 2), "hidden": (2, gates * 2), "bias": (gates * 2,), **more}
    return lambda d: {name: d.array(shape, ("float32",)) for name, shape in shapes.items()}


_lstm, _gru = _cell(4), _cell(3, hidden_bias=(6,))


def _image(d: Draw) -> Arguments:
    return {"x": d.array((2, 5, 4, 3), FLOAT), "weight": d.array((2, 2, 3, 4), FLOAT), "stride": d.integer(1, 2),
            "padding": d.one_of((0, 1, "same", "valid", (1, 0)))}  # fmt: skip


def _heads(d: Draw) -> Arguments:
    sizes = {"qkv": 12, "out": 4}
    layers = {
        name: {"weight": d.array((4, size), ("float32",)), "bias": np.zeros(size, "f4")} for name, size in sizes.items()
    }
    return {"params": layers, "x": d.array((2, 3, 4), ("float32",)), "heads": 2, "rotary": d.chance(0.5)}


def _three(d: Draw) -> Arguments:
    return {name: d.array((2, 3, 4), FLOAT) for name in ("query", "key", "value")}


def _norm(d: Draw) -> Arguments:
    return {"x": d.array((4, 3), FLOAT), "scale": d.array((3,), FLOAT), "bias": d.array((3,), FLOAT)}


def _two(first: str, second: str) -> Make:
    return lambda d: {first: d.array((4, 3), FLOAT), second: d.array((4, 3), FLOAT)}


def _labelled(d: Draw) -> Arguments:
    return {"logits": d.array((4, 3), FLOAT), "labels": d.integers((4,), 3)}


def _named(name: Any, values: Any) -> Any:
    with nn.name_scope(name, values):
        return nn.relu(values)


def traced(f: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same function on a traced value in the place of an argument that is an array."""

    def call(**given: Any) -> Any:
        if not isinstance(given.get(name), np.ndarray):
            return f(**given)
        return ipu_core.trace(lambda x: f(**{**given, name: x}), given[name])

    return call


def _eager() -> Calls:
    return {
        **{name: (getattr(nn, name), lambda d: {"x": d.array(None, FLOAT)}) for name in ONE},
        **{name: (getattr(nn, name), _two("a", "b")) for name in ("maximum", "minimum")},
        **{name: (getattr(nn, name), _two("x1", "x2")) for name in ("fmod", "remainder", "floor_divide")},
        **{name: (getattr(nn, name), _two("prediction", "target")) for name in ("mse", "mse_loss")},
        "binary_cross_entropy_with_logits": (nn.binary_cross_entropy_with_logits, _two("logits", "target")),
        "matmul": (nn.matmul, lambda d: {"a": d.array((2, 3), FLOAT), "b": d.array((3, 4), FLOAT)}),
        "where": (nn.where, lambda d: {"condition": d.array((4,), FLOAT), "a": d.array((4,), FLOAT), "b": 0.0}),
        "reshape": (nn.reshape, lambda d: {"x": d.array((2, 3), FLOAT), "shape": d.one_of(((3, 2), -1, (-1, 2)))}),
        "flatten": (nn.flatten, floats(2, 3, 4)),
        "convert": (nn.convert, lambda d: {"x": d.array((2, 3), FLOAT), "fmt": d.fmt()}),
        "concatenate": (nn.concatenate, lambda d: {"values": [d.array((2, 3), FLOAT)] * 2, "axis": d.integer(-2, 1)}),
        "topk": (nn.topk, lambda d: {"x": d.array((3, 5), FLOAT), "k": d.integer(1, 5), "largest": d.chance(0.5)}),
        "round": (nn.round, lambda d: {"x": d.array((2, 3), FLOAT), "fmt": d.fmt(), "rounding": "odd"}),
        "quantize": (nn.quantize, lambda d: {
            "x": d.array((2, 3), FLOAT), "fmt": d.fmt(), "gradient": d.one_of(("rounded", lambda x, dy: dy))}),
        "OwnRounding": (nn.OwnRounding, lambda d: {"function": np.round, "draws": d.integer(0, 32), "name": "a"}),
        "checkpoint": (nn.checkpoint, lambda d: {"f": nn.relu, "stash": d.one_of((None, "float16"))}),
        "reversible": (nn.reversible, lambda d: {"f": lambda p, x: x, "g": lambda p, x: x}),
        "one_hot": (nn.one_hot, lambda d: {"labels": d.integers((4,), 3), "classes": 3}),
        "dropout": (nn.dropout, lambda d: {"x": d.array((2, 3), FLOAT), "rate": 0.5, "key": d.one_of((None, 1))}),
        "linear": (nn.linear, lambda d: {
            "x": d.array((2, 3), FLOAT), "weight": d.array((3, 4), FLOAT), "bias": d.array((4,), FLOAT)}),
        "embedding": (nn.embedding, lambda d: {"table": d.array((5, 3), FLOAT), "indices": d.integers((4,), 5)}),
        "cross_entropy_rows": (nn.cross_entropy_rows, _labelled),
        "softmax_cross_entropy": (nn.softmax_cross_entropy, lambda d: {**_labelled(d), "weights": np.ones(4, "f4")}),
        "cross_entropy": (nn.cross_entropy, lambda d: {
            **_labelled(d), "label_smoothing": 0.1, "reduction": d.one_of(("mean", "sum", "none")),
            "ignore_index": d.one_of((None, 1))}),
        "layer_norm": (nn.layer_norm, _norm),
        "rms_norm": (nn.rms_norm, lambda d: {"x": d.array((4, 3), FLOAT), "scale": d.array((3,), FLOAT)}),
        "group_norm": (nn.group_norm, lambda d: {**_norm(d), "x": d.array((2, 2, 3), FLOAT), "groups": 3}),
        "batch_norm": (nn.batch_norm, lambda d: {
            **_norm(d), "running": {"mean": np.zeros(3, "f4"), "variance": np.ones(3, "f4")},
            "training": d.chance(0.5), "momentum": 0.1}),
        "hadamard": (nn.hadamard, lambda d: hadamard_arguments(d, ("float32",))),
        "conv2d": (nn.conv2d, _image),
        "conv1d": (nn.conv1d, lambda d: {
            "x": d.array((2, 5, 3), FLOAT), "weight": d.array((2, 3, 4), FLOAT), "stride": d.integer(1, 2)}),
        **{name: (getattr(nn, name), lambda d: {"x": d.array((2, 4, 4, 3), FLOAT), "window": d.one_of((2, (2, 1)))})
           for name in ("avg_pool2d", "max_pool2d")},
        "mlp": (nn.mlp, lambda d: {
            "layers": [{"weight": d.array((3, 3), ("float32",)), "bias": np.zeros(3, "f4")}] * 2,
            "x": d.array((2, 3), ("float32",)), "activation": nn.tanh}),
        "name_scope": (_named, lambda d: {"name": "a", "values": d.array((2, 3), FLOAT)}),
    }  # fmt: skip


def _sequences() -> Calls:
    return {
        "lstm_cell": (nn.lstm_cell, lambda d: {
            "params": _lstm(d), "x": d.array((5, 3), FLOAT), "state": (np.zeros((5, 2), "f4"), np.ones((5, 2), "f4"))}),
        "gru_cell": (nn.gru_cell, lambda d: {
            "params": _gru(d), "x": d.array((5, 3), FLOAT), "hidden": np.zeros((5, 2), "f4")}),
        "lstm": (nn.lstm, lambda d: {"params": _lstm(d), "x": d.array((5, 2, 3), FLOAT), "state": None}),
        "gru": (nn.gru, lambda d: {"params": _gru(d), "x": d.array((5, 2, 3), FLOAT), "hidden": None}),
        "scan": (nn.scan, lambda d: {
            "f": lambda state, x: (state + x, x), "state": np.zeros(3, "f4"), "x": d.array((2, 3), ("float32",)),
            "axis": 0}),
        "causal_mask": (nn.causal_mask, lambda d: {"queries": d.integer(1, 5), "keys": d.one_of((None, 5))}),
        "padding_mask": (nn.padding_mask, lambda d: {"lengths": d.integers((3,), 4), "keys": 4}),
        "segment_sum": (nn.segment_sum, lambda d: {
            "x": d.array((5, 3), FLOAT), "index": d.integers((5,), 4), "count": d.integer(4, 6)}),
        "segment_max": (nn.segment_max, lambda d: {
            "x": d.array((4, 2)), "index": np.zeros(4, np.int32), "count": 2}),
        "segment_mean": (nn.segment_mean, lambda d: {
            "x": d.array((5, 3), FLOAT), "index": d.integers((5,), 4), "count": d.integer(4, 6)}),
        "scatter_add": (nn.scatter_add, lambda d: {
            "x": d.array((4, 3), FLOAT), "index": d.integers((5,), 4), "updates": d.array((5, 3), FLOAT)}),
        "segment_mask": (nn.segment_mask, lambda d: {"segments": d.integers((2, 4), 3), "count": d.one_of((None, 3))}),
        "additive_mask": (nn.additive_mask, lambda d: {"mask": d.array((2, 4), FLOAT), "lowest": -1e4}),
        "attention": (nn.attention, _three),
        "multi_head_attention": (nn.multi_head_attention, _heads),
        "rotary_embedding": (nn.rotary_embedding, lambda d: {
            "x": d.array((2, 3, 4), FLOAT), "first": 0, "base": 10000.0}),
        **{name: (getattr(nn, name), lambda d: {"key": d.integer(0, 9), "shape": (3, 4)}) for name in INITIAL},
        "mlp_parameters": (nn.mlp_parameters, lambda d: {"key": 1, "widths": [3, 4, 2]}),
        "unit_parameters": (nn.unit_parameters, lambda d: {"key": 1, "params": {"w": np.ones((2, 3), "f4")}}),
    }  # fmt: skip


def _functions_of_values() -> Calls:
    """What an array offers inside a traced function."""

    def of(name: str, **how: Any) -> Callable[..., Any]:
        return lambda given: ipu_core.trace(lambda x: getattr(x, name)(*given, **how), np.ones((2, 3), "f4"))

    return {
        **{f"traced.{name}": (of(name), lambda d: {"given": ()}) for name in ("sum", "mean", "max")},
        "traced.reshape": (of("reshape"), lambda d: {"given": ((3, 2),)}),
        "traced.transpose": (of("transpose"), lambda d: {"given": (1, 0)}),
        "traced.astype": (of("astype"), lambda d: {"given": ("float16",)}),
        "traced.__getitem__": (of("__getitem__"), lambda d: {"given": (d.one_of((0, slice(1), (0, 1), ([0, 1],))),)}),
        **{f"traced.{name}": (of(name), lambda d: {"given": (d.one_of((2.0, np.ones(3, "f4"))),)})
           for name in ("__add__", "__mul__", "__truediv__", "__pow__", "__gt__")},
        "traced.__matmul__": (of("__matmul__"), lambda d: {"given": (np.ones((3, 2), "f4"),)}),
    }  # fmt: skip


EAGER = {**_eager(), **_sequences()}
CALLS: Calls = {
    **{f"nn.{name}": call for name, call in EAGER.items()},
    **{f"traced nn.{name}": (traced(f, "logits" if "logits" in make(Draw(0)) else "x"), make)
       for name, (f, make) in EAGER.items() if {"x", "logits"} & make(Draw(0)).keys()},
    **_functions_of_values(),
}  # fmt: skip
