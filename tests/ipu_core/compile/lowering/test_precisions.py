"""Every operation in every precision that a chip has, vertex by vertex: the bits of whole arrays."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import choose_accumulations
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.placement.orders import OrderRule
from tests.ipu_core.compile.lowering.test_operations import CASES

LINKS = {name for name in CASES if name.startswith(("all_reduce", "shards"))}  # which a C600 has none of
PRODUCTS = {name for name in CASES if name.startswith(("dot", "scaled_dot", "conv")) and "mask" not in name}
SCALED = {name for name in PRODUCTS if name.startswith("scaled_dot")}
CONVOLUTIONS = {name for name in PRODUCTS if name.startswith("conv2d")}
HALVES = FloatingPointControl(esr=True)


class Way(NamedTuple):
    """A precision, a chip that has it, what the chip lacks of the cases, and how large their inputs are."""

    precision: str
    chip: str = "gc200"
    lacks: frozenset[str] | set[str] = frozenset()
    control: FloatingPointControl = FloatingPointControl()  # frozen
    factor: float = 1.0


WAYS = [
    Way("fp32.32"),
    Way("fp16.32/nearest", lacks=SCALED),  # whose scale is float32 where a precision makes them
    Way("fp16.32/stochastic", lacks=SCALED, control=HALVES),
    Way("fp16.16/nearest", lacks=SCALED),
    Way("fp16.16/stochastic", lacks=SCALED, control=HALVES),
    Way("bf16.32", lacks=PRODUCTS),
    Way("fp8.16", "c600", SCALED | CONVOLUTIONS | LINKS),
    Way("fp8.16/stochastic", "c600", SCALED | CONVOLUTIONS | LINKS, HALVES),
    Way("fp16.16/stochastic", lacks=SCALED, control=HALVES, factor=1e4),
    Way("fp16.16/nearest", lacks=SCALED, control=FloatingPointControl(nanoo=True), factor=1e4),
    Way("fp8.16", "c600", SCALED | CONVOLUTIONS | LINKS, FloatingPointControl(nanoo=True), 1e4),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.precision} x {way.factor:g}{' nanoo' * way.control.nanoo}")
def test_vertices_have_the_bits_of_whole_arrays(way: Way) -> None:
    precision, target = Precision.parse(way.precision), Target(way.chip, tiles=5)
    wrong, seen = [], 0
    for name in CASES.keys() - way.lacks:
        function, given = CASES[name]
        arrays = [x if x.dtype.kind == "i" else x.astype(np.float32) * np.float32(way.factor) for x in given]
        ideal = trace(function, *arrays)
        block = precision.apply(ideal)
        inputs: list[Any] = [
            x if isinstance(var.type.format, str) else np.clip(x, -6e4, 6e4).astype(var.type.format.dtype)
            for x, var in zip(arrays, block.inputs, strict=True)
        ]
        orders = choose_accumulations(ideal, OrderRule.of(target), block)
        machine, direct = Machine.build(block, target, orders, way.control), Executable(block, orders, way.control)
        for got, wanted in zip(machine.run(inputs, 3), direct.run(inputs, 3), strict=True):
            same = (got.dtype, got.shape, got.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())
            wrong += [] if same else [name]
        seen += 1
    assert wrong == []
    assert seen > 70
