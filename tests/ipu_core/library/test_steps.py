"""Steps of layers alone: the orders of sums that they choose."""

from __future__ import annotations

import numpy as np
import pytest

import lowprec
from ipu_core.engine.engine import Engine
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Copy, Program, Sequence
from ipu_core.library.elementwise import add_array
from ipu_core.library.steps import Steps
from ipu_core.plan.orders import OrderRule, product_order
from ipu_core.target import Target


@pytest.mark.parametrize("operands, group", [("float8_e4m3fnuz", 32), ("float16", 16)])
def test_a_product_is_added_in_groups_of_its_operands_unit(operands: str, group: int) -> None:
    rng, chip = np.random.default_rng(2), Target("c600", tiles=8)
    graph, programs = Graph(chip), list[Program]()
    a, b = (add_array(graph, operands, shape, "x", temporary=False) for shape in ((6, 200), (200, 4)))
    out = Steps(graph, programs, "layer").matmul(a, b, fmt="float16", accumulate="float16")
    kept = add_array(graph, "float16", (6, 4), "kept", temporary=False)
    engine = Engine(graph, Sequence(*programs, Copy(out, kept)))
    arrays = [lowprec.astype(rng.normal(size=x.shape).astype(np.float32), operands) for x in (a, b)]
    for tensor, array in zip((a, b), arrays, strict=True):
        engine.write(tensor, array)
    engine.run()
    order = product_order(OrderRule.of(chip), 6, 200, 4, operands=operands).with_types("float16")
    assert order.group == group
    wanted = lowprec.matmul(*arrays, accumulation=order, rounding=lowprec.Rounding(overflow="ipu"))
    np.testing.assert_array_equal(engine.read(kept), wanted)
