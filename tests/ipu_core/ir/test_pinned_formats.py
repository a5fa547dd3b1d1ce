"""What a function says of formats itself: conversions that a precision keeps to, and losses typed as what they are."""

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd
from ipu_core.train.step import step_block

A, B, X = np.zeros((3, 4)), np.zeros((4, 4)), np.zeros((2, 3))
HALF, SINGLE = "float16", "float32"


def formats_of(f, *operands, spec="fp16.16/nearest"):
    """(operation, format) of every result that is computed, conversions by the precision left out."""
    plain = trace(f, *operands)
    block = verify(Precision.parse(spec).apply(plain))
    given = {e.number for e in plain.equations}
    return [(e.op, e.output.type.format.name) for e in block.equations if e.number in given and e.op not in STRUCTURE]


CONVERSIONS = {
    "a conversion": (lambda a, x: nn.convert(x @ a, "float32"), [("dot", HALF), ("convert", SINGLE)]),
    "astype": (lambda a, x: (x @ a).astype(np.float32), [("dot", HALF), ("convert", SINGLE)]),
    "what follows element by element": (
        lambda a, x: np.tanh(nn.convert(x @ a, "float32") * a[0] + 1.0),
        [("dot", HALF), ("convert", SINGLE), ("multiply", SINGLE), ("add", SINGLE), ("tanh", SINGLE)],
    ),
    "a sum": (lambda a, x: nn.convert(x @ a, "float32").sum(0),
              [("dot", HALF), ("convert", SINGLE), ("reduce_sum", SINGLE)]),
    "until another conversion": (
        lambda a, x: (nn.convert(x @ a, "float32") + 1.0).astype("float16") * 2.0,
        [("dot", HALF), ("convert", SINGLE), ("add", SINGLE), ("convert", HALF), ("multiply", HALF)],
    ),
    "a product with a weight of the precision": (
        lambda a, x: nn.convert(x, "float32") @ a, [("dot", HALF)]),
    "a product of two": (
        lambda a, x: nn.convert(x * 2.0, "float32") @ a.astype("float32"),
        [("multiply", HALF), ("convert", SINGLE), ("convert", SINGLE), ("dot", SINGLE)]),
    "truth values": (
        lambda a, x: np.where(nn.convert(x @ a, "float32") > 0, x @ a, 0.0),
        [("dot", HALF), ("convert", SINGLE), ("greater", HALF), ("select", HALF)]),
    "narrower": (lambda a, x: nn.convert(x @ a, "float8_e4m3fn") * 2.0,
                 [("dot", HALF), ("convert", "float8_e4m3fn"), ("multiply", HALF)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_precision_keeps_to_conversions(name):
    f, wanted = CONVERSIONS[name]
    got = formats_of(f, A.astype(np.float16) if name == "a product of two" else A, X)
    if name == "a product with a weight of the precision":  # which decides for products; x is float32 as it comes
        assert got == wanted
    else:
        assert [one for one in got if one in wanted] == wanted


def test_what_is_asked_for_is_computed():
    x = np.full((2, 3), 300.0, np.float32)
    squares = lambda x: (np.square(nn.convert(x * 1.5, "float32")).sum(), np.square(x * 1.5).sum())  # noqa: E731
    wide, narrow = evaluate_flat(Precision.parse("fp16.16/nearest").apply(trace(squares, x)), [x], "declared")
    assert float(wide) == 6 * 450.0**2
    assert not float(narrow) > 65504


def test_arrays_are_converted_as_asked_inside_and_outside_of_derivatives():
    x = np.linspace(0.1, 1, 5)
    assert nn.convert(x, "float32").dtype == np.float32
    value, gradient = value_and_grad(lambda x: (nn.convert(x * 1.0, "float16") * 2.0).sum())(x)
    assert float(value) == pytest.approx(2 * x.astype(np.float16).astype(float).sum(), rel=1e-3)
    np.testing.assert_array_equal(gradient, np.full(5, 2.0))
    assert gradient.dtype == np.float64


def test_float32_needs_no_conversion():
    block = Precision.parse("fp32.32").apply(trace(lambda x: nn.convert(x * 2.0, "float32") + 1.0, X))
    assert [e.op for e in block.equations] == ["multiply", "add"]


def test_gradients_have_the_formats_of_the_precision():
    loss = lambda p, x: nn.mse(np.tanh(nn.convert(x @ p, "float32")), x @ p)  # noqa: E731
    block = verify(Precision.parse("fp16.16/nearest").apply(step_block(loss, Sgd(0.1), A, X)))
    backward = [e for e in block.equations if e.role == "grad_input" and e.family != "loss"]
    assert backward
    assert {e.output.type.format.name for e in backward} == {HALF}


def far(params, batch):
    """The loss of the README, some hundreds away from the target."""
    x, y = batch
    return np.mean((np.tanh(x @ params["in"]) @ params["out"] - y) ** 2)


def sums(params, batch):
    """Two losses, a scale and a penalty."""
    x, y = batch
    error = np.tanh(x @ params["in"]) @ params["out"] - y
    return 8.0 * (far(params, batch) + nn.mean(abs(error))) + 1e3 * (params["in"] ** 2).sum()


def norms(params, batch):
    """A distance and a spread of what is near to numbers that float16 does not hold."""
    error = np.tanh(batch[0] @ params["in"]) @ params["out"] - (batch[1] + 2.0**-6)
    return np.mean(np.linalg.norm(error, axis=1) + 1e3 * np.std(error + batch[0] * 2.0**-3, axis=1))


RNG = np.random.default_rng(0)
PARAMS = {"in": RNG.normal(size=(8, 16)).astype(np.float32), "out": np.zeros((16, 1), np.float32)}
BATCH = (RNG.normal(size=(32, 8)).astype(np.float32), np.full((32, 1), 700, np.float32))


@pytest.mark.parametrize("loss", [far, sums, norms])
@pytest.mark.parametrize("options", [{}, {"micro_batches": 4}, {"loss_scale": 2.0**10}])
@pytest.mark.parametrize("spec", ["fp16.16/nearest", "fp16.32", "mlperf-bert"])
def test_a_loss_made_by_hand_is_true(loss, options, spec):
    made = TrainLoop(loss, PARAMS, BATCH, optimizer=Sgd(0.0), precision=spec, engine="direct", **options)
    reported = made.run([BATCH], 1)[0]
    assert reported == pytest.approx(float(loss(PARAMS, BATCH)), rel=2e-3)


def test_what_a_loss_is_made_of_is_float32_and_activations_are_not():
    def model(params, batch):
        hidden = np.tanh(batch[0] @ params["in"])
        error = (hidden @ params["out"] + params["bias"]) - batch[1]
        return np.mean(np.sum(error * error, axis=1)) + 1e-3 * np.mean(np.square(hidden))

    params = {**PARAMS, "bias": np.zeros(1, np.float32)}
    plain = step_block(model, Sgd(0.1), params, BATCH)
    loss = [e for e in plain.equations if e.family == "loss" and e.role == "forward"]
    assert [e.op for e in loss] == ["add", "subtract", "multiply", "reduce_sum", "reduce_sum", "multiply", "square",
                                    "reduce_sum", "multiply", "multiply", "add"]  # fmt: skip
    block = Precision.parse("fp16.16/nearest").apply(plain)
    named = {e.number: e.output.type.format.name for e in block.equations}
    assert {named[e.number] for e in loss} == {SINGLE}
    assert {named[e.number] for e in plain.equations if e.op in ("tanh", "dot")} == {HALF}


def test_what_has_other_uses_is_no_part_of_the_loss():
    def model(params, batch):
        logits = batch[0] @ params["in"] + 1.0
        return np.mean(logits * logits) + np.mean(np.tanh(logits) @ params["out"])

    ops = [e.op for e in step_block(model, Sgd(0.1), PARAMS, BATCH).equations if e.family == "loss"]
    assert "tanh" not in ops
    assert ops[0] == "multiply"
