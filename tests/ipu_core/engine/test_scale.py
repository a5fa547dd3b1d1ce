"""One product over 1,200 tiles, counted against every vertex and every transfer; and what a run costs in Python."""

import sys
from types import FrameType, SimpleNamespace

import numpy as np

from ipu_core.chip.target import Target
from ipu_core.engine import Engine
from ipu_core.graph import Codelet, Execute, Graph, Input, Output, Tensor
from ipu_core.graph.vertices import ComputeSet

M, K, N = 120, 48, 90
ROWS, COLUMNS = 40, 30


class Product(Codelet):
    supervisor = True
    a = Input("float16", ndim=2)
    b = Input("float16", ndim=2)
    out = Output("float32", ndim=2)

    def compute(self) -> None:
        self.out = np.matmul(self.a, self.b, dtype=np.float32)

    def cycles(self, target: Target) -> np.ndarray:
        return 50 + 3 * np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)


def product() -> tuple[Engine, ComputeSet, tuple[Tensor, Tensor, Tensor]]:
    graph = Graph("gc200")
    a = graph.add_variable("float16", (M, K), "a")
    b = graph.add_variable("float16", (K, N), "b")
    c = graph.add_variable("float32", (M, N), "c")
    for tensor in (a, b, c):
        graph.map_linearly(tensor, grain=4)
    cs = graph.add_compute_set("product")
    fields = {
        "a": a.blocks(ROWS, 1).broadcast_to(ROWS, COLUMNS, M // ROWS, K),
        "b": b.blocks(1, COLUMNS).broadcast_to(ROWS, COLUMNS, K, N // COLUMNS),
        "out": c.blocks(ROWS, COLUMNS),
    }
    graph.add_vertices(cs, Product, np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS), fields)
    return Engine(graph, Execute(cs)), cs, (a, b, c)


def test_a_product_over_1200_tiles_equals_the_count_of_every_transfer(brute: SimpleNamespace) -> None:
    engine, cs, (a, b, c) = product()
    target = engine.target
    groups = cs.all_groups(target.tiles)
    assert np.unique(groups[0].tiles).size == 1200
    account = engine.profile().steps[0].account
    gather, scatter = brute.gather(groups, target), brute.scatter(groups, target)
    for counted, expected in ((account.gather, gather), (account.scatter, scatter)):
        for column, wanted in zip(counted, expected, strict=True):
            np.testing.assert_array_equal(column, wanted)
    busiest = [max((moved.received - moved.shared / 2).max(), moved.sent.max()) for moved in (gather, scatter)]
    phases = sum(100 + -(-size // 4) for size in busiest)
    assert engine.profile().cycles == 50 + 3 * 1199 + phases + 2 * 90
    rng = np.random.default_rng(0)
    left, right = rng.integers(-3, 4, (M, K)), rng.integers(-3, 4, (K, N))
    engine.write(a, left)
    engine.write(b, right)
    engine.run()
    np.testing.assert_array_equal(engine.read(c), left @ right)


class Nothing(Product):
    def compute(self) -> None:
        self.out[...] = 0

    def cycles(self, target: Target) -> int:
        return 1


def many(tiles: int) -> Engine:
    """Six vertices on every tile, each with blocks of its own."""
    graph = Graph("gc200")
    x = graph.add_variable("float16", (tiles, 6, 4, 4), "x")
    out = graph.add_variable("float32", (tiles, 6, 4, 4), "out")
    for tensor in (x, out):
        graph.map_linearly(tensor)
    cs = graph.add_compute_set()
    group = graph.add_vertices(
        cs, Nothing, np.repeat(np.arange(tiles)[:, None], 6, axis=1), {"a": x, "b": x, "out": out}
    )
    assert group.vertices == 6 * tiles
    return Engine(graph, Execute(cs))


def calls_of_a_run(engine: Engine) -> int:
    """Calls of Python's and of C's functions."""
    count, before = 0, sys.getprofile()

    def see(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        engine.run()
    finally:
        sys.setprofile(before)
    return count


def test_a_group_of_many_vertices_costs_no_python_per_vertex() -> None:
    assert 0 < calls_of_a_run(many(1472)) == calls_of_a_run(many(2))
