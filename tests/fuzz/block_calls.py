"""Sensible arguments of what makes, changes, plans and runs Blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import ipu_core
import lowprec
from ipu_core import nn
from tests.fuzz.machine_calls import FEW, Arguments, Calls, spread
from tests.fuzz.wild import Draw

PRECISIONS = ("fp32.32", "fp16.16/stochastic", "fp16.32", "fp8", "bf16.32", "unit-fp8", "mxfp8")


def loss(params: Any, batch: Any) -> Any:
    """A perceptron's."""
    hidden = nn.relu(nn.linear(batch["x"], params["w"], params["b"]))
    return nn.softmax_cross_entropy(hidden @ params["v"], batch["y"])


def parameters() -> dict[str, Any]:
    """Of the perceptron."""
    return {"w": np.full((3, 4), 0.5, "f4"), "b": np.zeros(4, "f4"), "v": np.ones((4, 2), "f4")}


def batch_of(rows: int) -> dict[str, Any]:
    """Of the perceptron."""
    return {"x": np.ones((rows, 3), "f4"), "y": np.zeros(rows, "i4")}


def _function(x: Any, y: Any) -> Any:
    return nn.relu(x @ y) * 2.0


def _examples() -> list[Any]:
    return [np.ones((2, 3), "f4"), np.ones((3, 4), "f4")]


@cache
def block_of(what: str) -> Any:
    """A Block: of a product, or of a loss."""
    return ipu_core.trace(_function, *_examples()) if what == "product" else ipu_core.trace(
        loss, parameters(), batch_of(2))  # fmt: skip


@cache
def _planned(what: str) -> Any:
    return ipu_core.plan(block_of(what), FEW)


def _inputs(what: str) -> list[Any]:
    return _examples() if what == "product" else [parameters(), batch_of(2)]


def _run(d: Draw) -> Arguments:
    what = d.one_of(("product", "loss"))
    return {"arguments": [block_of(what), *_inputs(what)], "key": d.integer(0, 9)} | (
        {"accumulations": {}} if d.chance(0.3) else {})  # fmt: skip


def machine(what: str = "product") -> ipu_core.Machine:
    """A Block on a few tiles."""
    return ipu_core.Machine.build(block_of(what), FEW)


def _flat() -> list[Any]:
    return _examples()


def _on(what: Callable[[], Any], name: str) -> Callable[..., Any]:
    return lambda **given: getattr(what(), name)(**given)


def _fmt(d: Draw) -> Any:
    return lowprec.formats[d.one_of(sorted(lowprec.formats))]


def _precision(d: Draw) -> Any:
    return d.one_of((d.one_of(PRECISIONS), ipu_core.Precision.parse(d.one_of(PRECISIONS))))


def _scaling(d: Draw) -> Arguments:
    return {"forward": _fmt(d), "backward": _fmt(d), "how": d.one_of(("current", "delayed", "constant")),
            "margin": d.integer(0, 2), "power_of_two": d.chance(0.5), "amax_history_len": d.integer(1, 9)}  # fmt: skip


def _of_precision(name: str) -> Callable[..., Any]:
    return lambda precision, **given: getattr(ipu_core.Precision.parse(precision), name)(**given)


def _unit(f: Any, examples: Any, **how: Any) -> Any:
    scaled = ipu_core.unit_scale(f, **how)
    return scaled(*examples) if callable(scaled) else scaled


def _gradient(f: Any, examples: Any, **how: Any) -> Any:
    found = ipu_core.value_and_grad(f, **how)
    return found(*examples) if callable(found) else found


def _of_loss(d: Draw) -> Arguments:
    return {"f": d.one_of((loss, loss, block_of("loss"))), "examples": [parameters(), batch_of(2)]}


def _lowered(d: Draw) -> Arguments:
    what = d.one_of(("product", "loss"))
    return {"block": block_of(what), "plan": _planned(what), "overlap": d.chance(0.2), "share": d.chance(0.2)}


def _precisions() -> Calls:
    equation = block_of("product").equations[0]
    return {
        "Precision": (ipu_core.Precision, lambda d: {"name": "own", "operands": _fmt(d), "partials": _fmt(d)}),
        "Precision.parse": (ipu_core.Precision.parse, lambda d: {"spec": _precision(d)}),
        "Precision.apply": (_of_precision("apply"), lambda d: {
            "precision": d.one_of(PRECISIONS), "block": block_of("loss"),
            "inputs": d.one_of((None, ["float16", "float32", "float16", "float16", "int32"]))}),
        "Precision.at": (_of_precision("at"), lambda d: {"precision": "fp16.16/nearest", "equation": equation}),
        "Precision.rule": (_of_precision("rule"), lambda d: {
            "precision": "fp16.16/nearest", "role": d.one_of(("forward", "update", "grad_input")),
            "family": d.one_of(("product", "norm", "loss", "elementwise"))}),
        "Precision.rounding_of": (_of_precision("rounding_of"), lambda d: {
            "precision": "fp16.16/nearest", "op": "add", "operands": [_fmt(d), _fmt(d)], "output": _fmt(d)}),
        "Precision.cast_state": (_of_precision("cast_state"), lambda d: {
            "precision": "fp16.16/nearest", "block": block_of("product"), "state": []}),
        "PrecisionRule": (ipu_core.PrecisionRule, lambda d: {
            "pattern": "blocks.*", "field": d.one_of(("operands", "partials", "rounding")), "value": _fmt(d)}),
        "PrecisionRule.names": (ipu_core.PrecisionRule("a.*", "operands", ipu_core.Precision("p").operands).names,
                                lambda d: {"name": "a.b"}),
        "PrecisionRule.matches": (ipu_core.PrecisionRule("a.*", "operands", ipu_core.Precision("p").operands).matches,
                                  lambda d: {"equation": equation}),
        "OperandScaling": (ipu_core.OperandScaling, _scaling),
        "OperandScaling.goal": (ipu_core.OperandScaling().goal, lambda d: {"fmt": _fmt(d)}),
    }  # fmt: skip


def _blocks() -> Calls:
    block = block_of("product")
    return {
        "Block": (ipu_core.Block, lambda d: {
            "inputs": block.inputs, "outputs": block.outputs, "equations": block.equations}),
        "trace": (lambda f, examples, **how: ipu_core.trace(f, *examples, **how), lambda d: {
            "f": _function, "examples": _examples(), "carry": d.chance(0.1)}),
        "value_and_grad": (_gradient, lambda d: {**_of_loss(d), "scale": d.one_of((None, 2.0))}),
        "unit_scale": (_unit, lambda d: {**_of_loss(d), "tau": d.one_of(("depth", 0.5, None)), "mup": False}),
        "UnitScaled": (ipu_core.UnitScaled, lambda d: {"function": loss}),
        **{f"UnitScaled.{name}": (spread(getattr(ipu_core.unit_scale(loss), name), "given"),
                                  lambda d: {"given": [parameters(), batch_of(2)]})
           for name in ("__call__", "block", "roles")},
        "evaluate": (spread(ipu_core.evaluate, "arguments"), lambda d: {
            **_run(d), "arithmetic": d.one_of(("exact", "declared"))}),
        "execute": (spread(ipu_core.execute, "arguments"), _run),
        "plan": (ipu_core.plan, lambda d: {"block": block_of("product"), "target": FEW} | (
            {"accumulations": {}, "placements": {}} if d.chance(0.5) else {})),
        "lower": (ipu_core.lower, _lowered),
        "Machine": (ipu_core.Machine, lambda d: {
            "lowered": ipu_core.lower(block_of("product"), _planned("product")), "steps_per_call": d.integer(1, 3)}),
        "Machine.build": (ipu_core.Machine.build, lambda d: {
            "block": block_of(d.one_of(("product", "loss"))), "target": FEW, "overlap": d.chance(0.2),
            "steps_per_call": d.integer(1, 2)}),
        "Machine.write": (_on(machine, "write"), lambda d: {"state": []}),
        "Machine.feed": (_on(machine, "feed"), lambda d: {"inputs": _flat(), "key": 1}),
        "Machine.feed_many": (_on(machine, "feed_many"), lambda d: {
            "inputs": [_flat()], "key": lowprec.Key(1), "first": 0}),
        "Machine.step": (_on(lambda: machine("loss"), "step"), lambda d: {
            "batch": [parameters()["b"], parameters()["v"], parameters()["w"], np.ones((2, 3), "f4")],
            "lr": np.zeros(2, "i4"), "key": 1}),
        "Machine.run": (_on(machine, "run"), lambda d: {"inputs": _flat(), "key": 1}),
        "Accumulation.words": (lambda: machine().plan.words(), lambda d: {}),
    }  # fmt: skip


CALLS: Calls = {**_precisions(), **_blocks()}
