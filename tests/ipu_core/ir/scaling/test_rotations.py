"""Rotated operands of products, and roundings of their own for what goes forward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowprec
from ipu_core import nn
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.train.optim import Sgd
from ipu_core.train.step import step_block
from tests.ipu_core.ir.scaling.models import PARAMS, batch, loop, loss


def test_activations_and_weights_may_be_rounded_stochastically_alone() -> None:
    spec = "mxfp4/forward_rounding=stochastic"
    block = Precision.parse(spec).apply(step_block(loss, Sgd(0.1), PARAMS, batch(0)))
    stochastic = [e for e in block.equations if e.arithmetic.stochastic]
    assert {e.op for e in stochastic} == {"to_blocks"}
    assert {e.role for e in stochastic} == {"forward"}
    assert Precision.parse(spec).stochastic
    assert not Precision.parse("mxfp4").stochastic


def rotated(a: np.ndarray, axis: int, signs: np.ndarray | None, block: int) -> np.ndarray:
    whole = a if signs is None else a * signs.reshape([-1 if i == axis else 1 for i in range(a.ndim)])
    return lowprec.hadamard(whole, axis, block=block)


@pytest.mark.parametrize("rotation", ["fixed", "random"])
@pytest.mark.parametrize("length, block", [(96, 32), (40, 8)])
def test_both_operands_are_rotated_alike_along_the_summed_axis(rotation: str, length: int, block: int) -> None:
    rng = np.random.default_rng(3)
    x, w, g = (rng.normal(size=shape).astype(np.float32) for shape in ((64, length), (length, 32), (64, 32)))
    spec = f"mxfp4/operands=float32/gradients=float32/output=float32/rotation={rotation}"
    ideal = trace(lambda params, g: ((params[1] @ params[0]) * g).sum(), [w, x], g)
    block_of = verify(Precision.parse(spec).apply(value_and_grad(ideal)))
    _, (dw, dx) = execute(block_of, [w, x], g, key=5)
    masks = [e for e in block_of.equations if e.op == "dropout_mask"]
    assert len(masks) == (0 if rotation == "fixed" else 3)  # one for each of the three products
    wanted = {}
    for name, a, b, size in (("grad_weight", x.T, g, 32), ("grad_input", g, w.T, 32)):
        signs = None
        if masks:
            (mask,) = [e for e in masks if e.role != "forward" and e.output.type.shape == (a.shape[1],)]
            bits = lowprec.random_bits(lowprec.Key(5).fold_in(mask.params["operation"]), a.shape[1], use="dropout")
            signs = np.where(bits >= 2**15, 1, -1).astype(np.float32)
            assert set(signs) == {-1, 1}
        left, right = (rotated(v, axis, signs, size) for v, axis in ((a, 1), (b, 0)))
        cast = [lowprec.to_blocks(v, "mxfp4_e2m1", axis).dequantize() for v, axis in ((left, 1), (right, 0))]
        wanted[name] = lowprec.matmul(*cast)
    np.testing.assert_array_equal(dw, wanted["grad_weight"])
    np.testing.assert_array_equal(dx, wanted["grad_input"])
    assert {e.params["block"] for e in block_of.equations if e.op == "hadamard"} == {32, block}
    declared = evaluate(block_of, [w, x], g, arithmetic="declared", key=5)
    for ours, theirs in zip(flatten(declared)[0], flatten(execute(block_of, [w, x], g, key=5))[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("rotation", ["fixed", "random"])
def test_rotations_alone_change_no_product(rotation: str) -> None:
    """Operands that are not narrowed give the product there was, in ideal arithmetic to the last bits of float64."""
    spec = f"fp8/unscaled/forward=float32/backward=float32/operands=float32/output=float32/rotation={rotation}"
    x, w = (np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32) for seed in (1, 2))
    block = Precision.parse(spec).apply(trace(lambda x, w: x @ w, x, w))
    np.testing.assert_allclose(execute(block, x, w, key=1), x @ w, atol=2e-5)
    np.testing.assert_allclose(evaluate(block, x, w, key=1), x.astype(np.float64) @ w, atol=1e-13)


def test_random_signs_are_new_in_every_step_and_fixed_rotations_have_none() -> None:
    for rotation, differs in (("random", True), ("fixed", False)):
        block = Precision.parse(f"mxfp4/rotation={rotation}").apply(trace(nn.mlp, PARAMS, batch(0)[0]))
        ends = [np.asarray(execute(block, PARAMS, batch(0)[0], key=key)) for key in (1, 2)]
        assert (ends[0].tobytes() != ends[1].tobytes()) is differs


@pytest.mark.parametrize("spec, words", [
    ("mxfp4/rotation=often", "rotation is fixed or random, not 'often'"),
    ("mxfp4/rotation_block=24", "rotation_block must be a power of two, not 24"),
    ("fp8/delayed/rotation=fixed", "have no history"),
    ("mxfp4/forward_rounding=upwards", "unknown rounding 'upwards'"),
])  # fmt: skip
def test_rotations_and_roundings_that_there_are_not(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Precision.parse(spec)


@pytest.mark.parametrize("settings_of", [{"micro_batches": 4}, {"recompute": True}, {"loss_scale": "automatic"}])
def test_rotated_operands_in_rounds_and_made_again(settings_of: dict[str, Any]) -> None:
    """The same training twice; where values are only made again, the same as without."""
    one, other = (loop("mxfp4/rotation=random/backward_rounding=stochastic", **settings_of) for _ in range(2))
    losses = one.run(batch, 4)
    assert np.isfinite(losses).all()
    assert losses.tobytes() == other.run(batch, 4).tobytes()
    if "recompute" in settings_of:
        plain = loop("mxfp4/rotation=random/backward_rounding=stochastic")
        assert losses.tobytes() == plain.run(batch, 4).tobytes()
