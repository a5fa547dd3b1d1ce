"""Norms of narrow numbers: what is a statistic, formats by equation, bits beside NumPy, both engines alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import Execution, Precision, Sgd, Target, Training, TrainLoop, nn, trace
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import choose_accumulations
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.placement.orders import OrderRule

LEAN = "fp16.16/nearest/norms=operands"
X = np.random.default_rng(1).normal(3, 2, (6, 4, 12)).astype(np.float16)
SCALE, BIAS = (np.random.default_rng(n).normal(1, 0.1, 12).astype(np.float32) for n in (2, 3))
RUNNING = {"mean": np.full(12, 2.5, np.float32), "variance": np.full(12, 3.0, np.float32)}
NORMS: dict[str, Callable[[Any], Any]] = {
    "layer": lambda x: nn.layer_norm(x, SCALE, BIAS),
    "rms": lambda x: nn.rms_norm(x, SCALE),
    "group": lambda x: nn.group_norm(x, SCALE, BIAS, 3),
    "batch": lambda x: nn.batch_norm(x, SCALE, BIAS, RUNNING, training=True)[0],
    "batch, evaluated": lambda x: nn.batch_norm(x, SCALE, BIAS, RUNNING, training=False)[0],
}


def ideal(name: str, *, inner: bool) -> Any:
    """The norm of an input, or of what an equation made of it."""
    return trace(lambda x: NORMS[name](nn.relu(x) if inner else x), X.astype(np.float32))


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_statistics_alone_are_float32(name: str, inner: bool) -> None:
    for equation in equations_of(Precision.parse(LEAN).apply(ideal(name, inner=inner))):
        made = equation.output.type
        if equation.family == "norm" and equation.op != "convert":
            narrow = made.size == X.size and equation.op != "square"
            assert made.format.name == ("float16" if narrow else "float32"), equation
            if narrow:
                assert {x.type.format.name for x in equation.operands} == {"float16"}, equation


def halves(x: Any) -> Any:
    return np.asarray(x, np.float32).astype(np.float16)


def chain(x: Any) -> Any:
    """The sum of the last axis in float32, term by term."""
    return np.add.accumulate(x.astype(np.float32), axis=-1, dtype=np.float32)[..., -1:]


def test_a_layer_norm_has_the_bits_of_its_operations_in_numpy() -> None:
    """Each operation on halves is float32's, rounded once; twelve terms are one chain."""
    block = Precision.parse(LEAN).apply(ideal("layer", inner=False))
    (found,) = evaluate_flat(block, [X], "declared", accumulations=choose_accumulations(block, OrderRule()))
    f = np.float32
    middle = halves(chain(X) * f(1 / 12))
    centred = halves(X.astype(f) - middle.astype(f))
    variance = chain(np.square(centred.astype(f))) * f(1 / 12)
    root = halves(1 / np.sqrt((variance + f(1e-5)).astype(np.float64)))
    normal = halves(centred.astype(f) * root.astype(f))
    scaled = halves(normal.astype(f) * halves(SCALE).astype(f))
    np.testing.assert_array_equal(found, halves(scaled.astype(f) + halves(BIAS).astype(f)))


@pytest.mark.parametrize("name", NORMS)
def test_engines_have_the_same_bits(name: str) -> None:
    block = Precision.parse(LEAN.replace("nearest", "stochastic")).apply(ideal(name, inner=True))
    machine = Machine.build(block, Target("gc200", tiles=5))
    for key in (1, 2):
        wanted = evaluate_flat(block, [X], "declared", key=key, accumulations=machine.plan.accumulations)
        np.testing.assert_array_equal(machine.run([X], key)[0], wanted[0])


def test_gradients_of_statistics_stay_wide_and_all_else_is_narrow() -> None:
    params = {"w": np.eye(12, dtype=np.float32), "scale": SCALE, "bias": BIAS}

    def loss(p: Any, batch: Any) -> Any:
        return nn.softmax_cross_entropy(nn.layer_norm(batch["x"] @ p["w"], p["scale"], p["bias"]), batch["y"])

    batch = {"x": X[:, 0], "y": np.arange(6, dtype=np.int32)}
    training = Training(optimizer=Sgd(0.1), precision=LEAN)
    loop = TrainLoop(loss, params, batch, training=training, execution=Execution(engine="direct"))
    first = [float(loop.train(batch)) for _ in range(20)]
    wide = TrainLoop(loss, params, batch, optimizer=Sgd(0.1), precision="fp16.16/nearest", engine="direct")
    second = [float(wide.train(batch)) for _ in range(20)]
    assert first != second
    np.testing.assert_allclose(first, second, rtol=0.02)
    backward = [e for e in equations_of(loop.block) if e.family == "norm" and e.role == "grad_input"]
    assert {(e.output.type.size == 72, e.output.type.format.name) for e in backward if e.op != "convert"} == {
        (True, "float16"), (False, "float32"),
    }  # fmt: skip


def test_where_everything_is_float32_there_is_nothing_narrow() -> None:
    block = ideal("layer", inner=True)
    plain, lean = (Precision.parse(spec).apply(block) for spec in ("fp32.32", "fp32.32/norms=operands"))
    assert str(plain) == str(lean)
