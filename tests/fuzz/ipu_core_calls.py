"""Sensible arguments of ipu_core's public calls, small enough to be run many thousand times, and odd ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import ipu_core
from ipu_core import nn
from tests.fuzz import block_calls, machine_calls, nn_calls, training_calls
from tests.fuzz.block_calls import batch_of, block_of, parameters
from tests.fuzz.machine_calls import FEW, Calls
from tests.fuzz.wild import Draw

CALLS: Calls = {**machine_calls.CALLS, **nn_calls.CALLS, **block_calls.CALLS, **training_calls.CALLS}
HEAVY: Calls = training_calls.HEAVY


@cache
def _traced() -> Any:
    """A value of a trace that is over."""
    kept: list[Any] = []
    ipu_core.trace(lambda x: (kept.append(x), x * 2.0)[1], np.ones((2, 3), "f4"))
    return kept[0]


ODD: tuple[Callable[[], Any], ...] = (
    training_calls.loop, training_calls.predictor, lambda: block_of("loss"), lambda: block_of("product").equations[0],
    lambda: block_of("loss").inputs[0], lambda: machine_calls.Parts().to,
    lambda: machine_calls.Parts().scratch, lambda: machine_calls.Parts().graph,
    lambda: machine_calls.Parts().programs(),
    lambda: machine_calls.Parts().programs()[1], lambda: machine_calls.Parts().engine(), _traced, lambda: nn.relu,
    lambda: ipu_core.Sgd, lambda: ipu_core.Sgd(0.1), lambda: ipu_core.Precision.parse("fp16.16/nearest"),
    lambda: "fp16.16/nearest",
    lambda: FEW, lambda: "gc200", lambda: ipu_core.Target, lambda: parameters(), lambda: batch_of(3), lambda: {"a": 1},
    lambda: {0: ipu_core.Accumulation()}, lambda: {"w": None}, lambda: [np.ones(3, "f4")], lambda: ([], []),
    lambda: {"w": np.ones(3, "f4"), 1: 2}, lambda: lambda *given, **named: 1.0, lambda: lambda: None, lambda: "tiles",
    lambda: lambda *given: given, lambda: lambda *given: "a",
    lambda: ipu_core.FloatingPointControl(inv=True, oflo=True),
    lambda: machine_calls.Twice, lambda: machine_calls.Parts().compute_set, lambda: machine_calls.Parts().stream,
    lambda: machine_calls.Parts().buffer, lambda: np.ones((2, 3), "f4"), lambda: np.zeros((0, 3), "f4"), lambda: "*",
    lambda: ipu_core.errors.IpuError("a"), lambda: -1.5, lambda: 10**6,
)  # fmt: skip


def odd(d: Draw, value: Any) -> Any:
    """Something else in the place of a value: anything, something of the library, or nearly the same."""
    way = d.integer(0, 5)
    if way < 2:
        return d.wild()
    return d.one_of(ODD)() if way < 4 else nearly(d, value)


def nearly(d: Draw, value: Any) -> Any:
    """A value of the same kind with one thing wrong, somewhere inside."""
    if isinstance(value, dict) and value:
        name = d.one_of(sorted(value, key=str))
        rest = {key: each for key, each in value.items() if key != name}
        return d.one_of((lambda: rest, lambda: value | {"more": d.wild()}, lambda: rest | {name: odd(d, value[name])},
                         lambda: rest | {5: value[name]}))()  # fmt: skip
    if isinstance(value, list | tuple) and value:
        at = d.integer(0, len(value) - 1)
        changed = [*value[:at], odd(d, value[at]), *value[at + 1 :]]
        return type(value)(d.one_of((changed, changed, [*value[:at], *value[at + 1 :]], [*value, *value])))
    if isinstance(value, np.ndarray):
        kind = d.one_of(("c8", "S1", "M8[s]", "O", "?", "u8", "f2", "f8", "i4"))
        return d.one_of((lambda: value[None], lambda: value.ravel(), lambda: value[:0] if value.ndim else value,
                         lambda: np.ones(value.shape, "i4").astype(kind), lambda: value.tolist(),
                         lambda: np.concatenate([value, value]) if value.ndim else value,
                         lambda: np.ma.masked_invalid(np.full(value.shape, np.nan))))()  # fmt: skip
    if isinstance(value, str):
        return d.one_of((value + "x", value[:-1], value.upper(), value.encode(), [value], f"{value}/{value}"))
    if isinstance(value, bool | int | float):
        return d.one_of((-value, value + 0.5, float(value), 10**9, str(value), [value], np.float32(value), None))
    return d.wild()
