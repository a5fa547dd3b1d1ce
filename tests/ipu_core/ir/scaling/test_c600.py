"""The scales of a C600: powers of two, taken out inside of products."""

from __future__ import annotations

import numpy as np
import pytest

import lowprec
from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.compile.planning import choose_accumulations, plan
from ipu_core.errors import UnsupportedByTarget
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.evaluate import evaluate
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.placement.orders import OrderRule
from lowprec import float8_e4m3fnuz, float32
from tests.ipu_core.ir.scaling.models import value_of


@pytest.mark.parametrize("value, scale", [(2.0**60, 2.0**-31), (2.0**-60, 2.0**32), (240.0, 1.0), (241.0, 0.5)])
def test_a_c600s_scales_have_six_bits(value: float, scale: float) -> None:
    x = np.full((2, 2), value, np.float32)
    block = Precision.parse("fp8.16/operands=float32/partials=float32/output=float32").apply(trace(lambda x: x @ x, x))
    (cast,) = [e for e in block.equations if e.family == "scaled_cast"]
    assert value_of(block, cast.inputs[1], x) == scale


@pytest.mark.parametrize("exponent", [-40, -10, 0, 14])
def test_the_c600_takes_scales_out_before_partial_sums_are_rounded(exponent: int) -> None:
    """As a product of the cast tensors' true values in float32, with half partial sums of 32 products."""
    rng = np.random.default_rng(6)
    x = np.ldexp(rng.normal(size=(9, 100)), min(exponent, 10)).astype(np.float16)
    w = np.ldexp(rng.normal(size=(100, 7)), exponent // 4).astype(np.float16)
    precision = Precision.parse("fp8.16")
    block = verify(precision.apply(trace(lambda x, w: x @ w, x, w)))
    (product,) = [e for e in block.equations if e.op == "scaled_dot"]
    assert [v.type.format for v in product.operands] == [float8_e4m3fnuz, float8_e4m3fnuz, float32]
    orders = choose_accumulations(block, OrderRule.of(Target("c600")))
    assert orders[product.number].group == 32

    def true(a: np.ndarray) -> np.ndarray:
        amax = float(np.abs(a).max())
        scale = np.clip(2.0 ** np.floor(np.log2(240 / amax)), 2.0**-31, 2.0**32) if amax else 1.0
        halves = np.clip(a.astype(np.float64) * scale, -65504, 65504).astype(np.float16)
        return lowprec.astype(halves, float8_e4m3fnuz, overflow="saturate").astype(np.float32) * np.float32(1 / scale)

    order = orders[product.number].with_types("float16")
    wanted = lowprec.matmul(true(x), true(w), accumulation=order, rounding=lowprec.Rounding(overflow="saturate"))
    got = execute(block, x, w, key=0, accumulations=orders)
    np.testing.assert_array_equal(got, wanted)


def test_a_convolution_has_the_scales_of_a_c600_too_and_its_tiles_do_not() -> None:
    rng = np.random.default_rng(8)
    x, w = rng.normal(size=(4, 5, 5, 40)).astype(np.float32), rng.normal(size=(3, 3, 40, 8)).astype(np.float32)
    block = verify(Precision.parse("fp8.16").apply(trace(lambda x, w: nn.conv2d(x, w), x, w)))
    got, exact = execute(block, x, w, key=0), evaluate(block, x, w)
    assert np.linalg.norm(got - exact) < 0.06 * np.linalg.norm(exact)
    with pytest.raises(UnsupportedByTarget, match="no figure for float32"):
        plan(block, Target("c600"))
