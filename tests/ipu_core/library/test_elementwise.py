"""Elementwise operations on tiles, usable without the training layer: bits, random bits, cycles, refusals."""

from typing import Any

import numpy as np
import pytest

from ipu_core.chip import cost
from ipu_core.chip.target import Target
from ipu_core.engine.engine import Engine
from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Sequence
from ipu_core.library.elementwise import add_array, elementwise
from ipu_core.placement.layout import linear_layout
from lowprec import Key
from lowprec.elementwise import float32_op

SHAPES = [(5,), (64, 10), (64, 256), (7, 13), (3, 4, 24), (1, 1009), (31, 1), (0, 4), ()]


def run(op: str, values: list[Any], shape: tuple[int, ...], *, tiles: int, out: str = "float16", **options: Any) -> Any:
    """One operation on a fresh graph; Python numbers stay numbers."""
    graph = Graph(Target("gc200", tiles=tiles))
    tensors = [x if isinstance(x, float) else add_array(graph, x.dtype, x.shape, temporary=False) for x in values]
    result = add_array(graph, out, shape, temporary=False)
    engine = Engine(graph, Sequence(*elementwise(graph, op, tensors, result, **options)), key=5)
    for tensor, value in zip(tensors, values, strict=True):
        if not isinstance(tensor, float):
            engine.write(tensor, value)
    engine.run()
    return engine.read(result), engine.profile()


def cycles_in_the_layout(target: Target, shape: tuple[int, ...]) -> int:
    """Of an addition with float32 operands: a barrier, and the vertices of the first tile one after the other."""
    layout = linear_layout(target, shape)
    elements = min(layout.size, layout.rows * layout.columns)
    if not elements:
        return 0
    vertices = min(layout.per_tile, -(-layout.size // elements))
    return vertices * int(cost.elementwise(target, "add", elements, 4)) + target.sync_cycles


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tiles", [1, 6, 1472])
def test_any_shape_on_any_number_of_tiles(shape: tuple[int, ...], tiles: int) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=shape).astype(np.float16), rng.normal(size=shape).astype(np.float32)
    got, profile = run("add", [x, y], shape, tiles=tiles, stochastic=True, operation=3)
    wanted = float32_op(
        "add", x, y, fmt="float16", rounding="stochastic", key=Key(5).fold_in(0).fold_in(3), overflow="saturate"
    )
    np.testing.assert_array_equal(got, wanted)
    assert profile.cycles == cycles_in_the_layout(Target("gc200", tiles=tiles), shape)
    assert profile.exchanged == 0


def test_broadcast_operands_numbers_and_scalars() -> None:
    rng = np.random.default_rng(2)
    x, row, column = (rng.normal(size=shape).astype(np.float32) for shape in ((12, 30), (30,), (12, 1)))
    for tiles in (1, 5, 200):
        for other in (row, column, np.float32(3).reshape(()), 2.5):
            got, _ = run("multiply", [x, other], x.shape, tiles=tiles, out="float32")
            np.testing.assert_array_equal(got, x * np.float32(other))


def test_an_operand_that_no_strides_describe() -> None:
    graph = Graph(Target("gc200", tiles=7))
    x = add_array(graph, "float32", (6, 10), temporary=False)
    y = add_array(graph, "float32", (3, 20), temporary=False)
    out = add_array(graph, "float32", (3, 4, 5), temporary=False)
    view = x.transpose().reshape(10, 3, 2).transpose(1, 0, 2)[:, :4]  # three axes that do not join
    wide = view.transpose(2, 0, 1)[:1].transpose(1, 2, 0).broadcast_to(3, 4, 5)
    engine = Engine(graph, Sequence(*elementwise(graph, "identity", [wide], out)))
    values = np.arange(60, dtype=np.float32).reshape(6, 10)
    engine.write(x, values)
    engine.run()
    expected = values.T.reshape(10, 3, 2).transpose(1, 0, 2)[:, :4, :1]
    np.testing.assert_array_equal(engine.read(out), np.broadcast_to(expected, (3, 4, 5)))
    assert y.shape == (3, 20)


def test_in_place() -> None:
    graph = Graph(Target("gc200", tiles=9))
    x = add_array(graph, "float16", (5, 16), temporary=False)
    engine = Engine(graph, Sequence(*elementwise(graph, "multiply", [x, 3.0], x)))
    values = np.arange(80, dtype=np.float16).reshape(5, 16)
    engine.write(x, values)
    engine.run()
    np.testing.assert_array_equal(engine.read(x), values * 3)


def test_unknown_operations_are_named() -> None:
    graph = Graph(Target("gc200", tiles=2))
    x = add_array(graph, "float16", (4,), temporary=False)
    programs = elementwise(graph, "pow", [x], x)
    with pytest.raises(ValueError, match="unknown operation 'pow'"):
        Engine(graph, Sequence(*programs))
