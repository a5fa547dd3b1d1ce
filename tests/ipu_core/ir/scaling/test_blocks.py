"""Operands of products in blocks, along the axis that is summed."""

from __future__ import annotations

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
from tests.ipu_core.ir.scaling.models import factor, value_of


def in_blocks(a: np.ndarray, fmt: str, axis: int) -> np.ndarray:
    """A tensor's values in a block format; NVFP4's have a tensor scale in front, in float32."""
    values = a.astype(np.float32)
    if fmt == "nvfp4":
        values = values * (np.float32(6 * 448) / np.abs(values).max())
    return lowprec.to_blocks(values, fmt, axis, scale_rule=None if fmt == "nvfp4" else "rceil").dequantize()


@pytest.mark.parametrize("spec, fmt", [("mxfp8", "mxfp8_e4m3"), ("nvfp4", "nvfp4")])
def test_blocks_lie_along_the_summed_axis_in_all_three_products(spec: str, fmt: str) -> None:
    rng = np.random.default_rng(7)
    x, w, g = (
        (rng.normal(size=shape) * np.exp2(rng.integers(-8, 8, shape))).astype(np.float16).astype(np.float32)
        for shape in ((70, 50), (50, 40), (70, 40))
    )
    ideal = trace(lambda params, g: ((params[1] @ params[0]) * g).sum(), [w, x], g)
    block = verify(Precision.parse(f"{spec}/output=float32").apply(value_and_grad(ideal)))
    _, (dw, dx) = execute(block, [w, x], g, key=0)
    g = g.astype(np.float16)

    def of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return lowprec.matmul(in_blocks(a, fmt, 1), in_blocks(b, fmt, 0)) * factor(fmt, a, b)

    np.testing.assert_array_equal(dx, of(g, w.T))
    np.testing.assert_array_equal(dw, of(x.T, g))
    (forward,) = [e for e in block.equations if e.op == "dot" and e.role == "forward"]
    casts = {e.output: e.params["axis"] for e in block.equations if e.op == "to_blocks"}
    assert [casts[v] for v in forward.operands] == [1, 0]
    wide = value_of(block, forward.output, [w, x], g)
    np.testing.assert_array_equal(wide, lowprec.matmul(in_blocks(x, fmt, 1), in_blocks(w, fmt, 0)))


@pytest.mark.parametrize("spec", ["fp8", "mxfp8", "nvfp4"])
def test_convolutions_sum_blocks_of_channels_and_for_the_weights_of_images(spec: str) -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(34, 5, 5, 3)).astype(np.float32)
    w = rng.normal(size=(3, 3, 3, 8)).astype(np.float32)
    ideal = value_and_grad(trace(lambda p: (nn.conv2d(p[1], p[0], padding=1) ** 2).mean(), [w, x]))
    block = verify(Precision.parse(spec).apply(ideal))
    casts = {e.output: e.params["axis"] for e in block.equations if e.op == "to_blocks"}
    axes = {e.op: [casts.get(v) for v in e.operands] for e in block.equations if e.op.startswith("conv2d")}
    blocks = {"conv2d": [3, 2], "conv2d_input_gradient": [3, 3], "conv2d_weight_gradient": [0, 0]}
    assert axes == ({op: [None, None] for op in blocks} if spec == "fp8" else blocks)
    got, wanted = execute(block, [w, x], key=0), evaluate(block, [w, x], arithmetic="declared")
    assert all(a.tobytes() == b.tobytes() for a, b in zip(flatten(got)[0], flatten(wanted)[0], strict=True))
    exact = flatten(evaluate(block, [w, x]))[0]
    for a, b in zip(flatten(got)[0], exact, strict=True):
        assert np.linalg.norm(a - b) < (0.25 if spec == "nvfp4" else 0.1) * np.linalg.norm(b)


def test_blocks_whose_largest_saturate_shrink_gradients() -> None:
    """One number in a block counts, as in the cotangent of a softmax: by OCP's rule 1.875 becomes 1.75."""
    x = np.zeros((64, 64), np.float32)
    np.fill_diagonal(x, 1.875)
    for spec, share in (("mxfp8", 1.0), ("mxfp8/scale_rule=floor", 1.75 / 1.875)):
        block = Precision.parse(spec).apply(trace(lambda x, w: x @ w, x, np.eye(64, dtype=np.float32)))
        np.testing.assert_array_equal(execute(block, x, np.eye(64, dtype=np.float32), key=0), x * np.float32(share))
