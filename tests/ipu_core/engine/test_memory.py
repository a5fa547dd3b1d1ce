"""Memory: categories, always-live and shared temporaries, the peak, and models that just fit and just do not."""

import numpy as np
import pytest

from ipu_core.chip.target import Target
from ipu_core.engine import Engine
from ipu_core.engine.liveness import live_points
from ipu_core.errors import OutOfTileMemory
from ipu_core.graph import (
    Codelet,
    Copy,
    Execute,
    Graph,
    If,
    Input,
    Output,
    Program,
    Repeat,
    RepeatWhile,
    Sequence,
    Tensor,
    WriteUndef,
)

CODE, STATE = 512, 4 + 8 + 8  # of one Move vertex: list entry, two fields with pointer and length


class Move(Codelet):
    x = Input(ndim=1)
    y = Output(ndim=1)

    def compute(self) -> None:
        self.y = self.x

    def cycles(self, target: Target) -> int:
        return 1


class Graphs:
    """A graph of 8-element float16 chains on tile 0; variables are 16 bytes."""

    def __init__(self, **target: int) -> None:
        self.graph = Graph(Target("gc200", tiles=4, **target))

    def variable(self, name: str, *, temporary: bool = True, size: int = 8, tile: int = 0) -> Tensor:
        tensor = self.graph.add_variable("float16", (size,), name, temporary=temporary)
        self.graph.set_tile_mapping(tensor, tile)
        return tensor

    def move(self, x: Tensor, y: Tensor, tile: int = 0) -> Program:
        cs = self.graph.add_compute_set(f"{x.variable.name} to {y.variable.name}")
        self.graph.add_vertex(cs, Move, tile, {"x": x, "y": y})
        return Execute(cs)

    def account(self, *programs: Program) -> dict[str, int]:
        memory = Engine(self.graph, programs).memory
        return {"tile": memory.tile, "peak": memory.peak_bytes} | memory.categories


def test_categories_of_one_step() -> None:
    g = Graphs()
    x, y = g.variable("x", temporary=False, size=5), g.variable("y", temporary=False, tile=1)
    c = g.graph.add_constant("float16", np.zeros(8), "c")
    g.graph.set_tile_mapping(c, 0)
    memory = Engine(g.graph, Sequence(g.move(x, y[:5]), g.move(c, y, tile=1))).memory
    assert memory.tile == 0
    assert memory.categories == {
        "variables": 10,
        "constants": 16,
        "vertex state": STATE,
        "code": CODE,
        "padding": 6,
        "temporaries": 0,
        "gathered operands": 0,
        "exchange buffers": 10,  # the results that wait to be sent to tile 1
        "scratch": 0,
    }
    assert memory.peak.tolist() == [10 + 16 + STATE + CODE + 6 + 10, 16 + STATE + CODE + 16, 0, 0]
    assert memory.step == "x to y"
    assert memory.largest == (("c", 16), ("x", 10))
    assert memory.always["padding"].tolist() == [6, 0, 0, 0]


def test_chained_temporaries_share_space() -> None:
    g = Graphs()
    x, y = g.variable("x", temporary=False), g.variable("y", temporary=False)
    t = [g.variable(f"t{i}") for i in range(6)]
    chain = [g.move(a, b) for a, b in zip([x, *t], [*t, y], strict=True)]
    memory = Engine(g.graph, Sequence(*chain)).memory
    assert memory.categories["temporaries"] == 32  # never more than the operand and the result
    assert memory.temporary_bytes == 96
    assert [place.fullest for place in memory.lifetimes] == [
        32 + 7 * STATE + CODE + extra for extra in [16, *[32] * 5, 16]
    ]


def test_a_temporary_read_late_lives_in_between() -> None:
    g = Graphs()
    x, y = g.variable("x", temporary=False), g.variable("y", temporary=False)
    a, b, c = (g.variable(name) for name in "abc")
    steps = [g.move(x, a), g.move(x, b), g.move(b, c), g.move(c, y), g.move(a, y)]
    assert g.account(Sequence(*steps))["temporaries"] == 48


def test_a_temporary_read_before_written_lives_always() -> None:
    g = Graphs()
    x, a = g.variable("x", temporary=False), g.variable("a")
    assert g.account(Sequence(g.move(a, x), g.move(x, a)))["variables"] == 32
    assert g.account(g.move(x, a), g.move(a, x))["variables"] == 32  # written by one program, read by another


def test_loops_carry_what_the_next_round_needs() -> None:
    g = Graphs()
    x, y = g.variable("x", temporary=False), g.variable("y", temporary=False)
    a, b, c = (g.variable(name) for name in "abc")
    into, body = g.move(x, a), [g.move(a, b), g.move(b, c), g.move(c, y)]
    assert g.account(Sequence(into, *body))["temporaries"] == 32
    assert g.account(Sequence(into, Repeat(3, Sequence(*body))))["temporaries"] == 48  # a is read in every iteration
    assert g.account(Sequence(Repeat(3, Sequence(into, *body))))["temporaries"] == 32


def test_a_value_made_in_one_round_lives_until_the_next_reads_it() -> None:
    g = Graphs()
    x, y = g.variable("x", temporary=False), g.variable("y", temporary=False)
    a, b, c = (g.variable(name) for name in "abc")
    into, chain = g.move(x, a), [g.move(x, b), g.move(b, c), g.move(c, y)]
    carried = [*chain, g.move(a, y), g.move(x, a)]  # read, then made anew for the iteration after
    dead = [g.move(x, a), g.move(a, y), *chain]
    assert g.account(Sequence(into, Repeat(3, Sequence(*carried))))["temporaries"] == 48
    assert g.account(Sequence(Repeat(3, Sequence(*dead))))["temporaries"] == 32
    assert g.account(Sequence(*dead, Repeat(3, Sequence(*carried[:3]))))["temporaries"] == 32


def test_branches_and_while_loops() -> None:
    g = Graphs()
    x, y = g.variable("x", temporary=False), g.variable("y", temporary=False)
    flag = g.variable("flag", temporary=False, size=1)
    a, b = g.variable("a"), g.variable("b")
    assert g.account(Sequence(g.move(x, a), If(flag, g.move(a, y), g.move(x, b))))["temporaries"] == 16
    loop = RepeatWhile(g.move(a, b), flag, g.move(b, y))
    assert g.account(Sequence(g.move(x, a), loop))["temporaries"] == 32
    assert g.account(loop)["variables"] == 16 * 3 + 2  # a is never written


def test_a_variable_written_in_pieces_lives_from_the_first() -> None:
    g = Graphs()
    x, y = g.variable("x", temporary=False), g.variable("y", temporary=False)
    a, b = g.variable("a"), g.variable("b")
    pieces = [g.move(x[:4], a[:4]), g.move(x, b), g.move(b, y), g.move(x[4:], a[4:]), g.move(a, y)]
    assert g.account(Sequence(*pieces))["temporaries"] == 32
    forgotten = [g.move(x, a), g.move(a[:4], y[:4]), WriteUndef(a), g.move(x, b), g.move(b, y), g.move(x[:4], a[:4])]
    assert g.account(Sequence(*forgotten, g.move(a[:4], y[:4])))["temporaries"] == 16


def test_a_copy_to_a_piece_keeps_the_other_piece() -> None:
    g = Graphs()
    x, y = g.variable("x", temporary=False), g.variable("y", temporary=False)
    a, b = g.variable("a"), g.variable("b")
    first, between = g.move(x[:4], a[:4]), [g.move(x, b), g.move(b, y)]
    assert g.account(Sequence(first, *between, Copy(x[4:], a[4:]), g.move(a, y)))["temporaries"] == 32
    assert g.account(Sequence(first, *between, Copy(x, a), g.move(a, y)))["temporaries"] == 16  # all of it anew


def test_copies_and_their_operands_are_live() -> None:
    g = Graphs()
    x, y = g.variable("x", temporary=False), g.variable("y", temporary=False, tile=1)
    a, b = g.variable("a", tile=1), g.variable("b", tile=2)
    memory = Engine(g.graph, Sequence(Copy(x, a), Copy(a, b), Copy(b, y))).memory
    assert [place.total for place in memory.lifetimes] == [32 + 16, 32 + 32, 32 + 16]


def test_a_model_that_just_fits_and_one_that_does_not() -> None:
    needed = 3 * 16 + STATE + CODE

    def build(tile_memory: int, **options: bool) -> Engine:
        g = Graphs(tile_memory=tile_memory)
        x, y = g.variable("x", temporary=False), g.variable("weights", temporary=False)
        far = g.variable("far", temporary=False, tile=3)
        return Engine(g.graph, Sequence(g.move(far, x), Copy(x, y)), **options)

    assert build(needed).memory.peak_bytes == needed
    with pytest.raises(OutOfTileMemory) as caught:
        build(needed - 1)
    error = caught.value
    assert (error.tile, error.needed, error.available, error.step) == (0, needed, needed - 1, "far to x")
    assert error.variables == [("x", 16), ("weights", 16)]
    assert error.categories["gathered operands"] == 16
    assert f"tile 0 needs {needed} bytes of {needed - 1} at step 'far to x'" in str(error)
    assert "variables 32" in str(error)
    assert build(needed - 1, allow_out_of_memory=True).memory.peak_bytes == needed


@pytest.mark.parametrize("seed", range(10))
def test_mapped_bytes_are_the_variables_bytes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = Graph(Target("gc200", tiles=20))
    total = 0
    for i in range(10):
        tensor = graph.add_variable(rng.choice(["float16", "float32", "int32"]), (int(rng.integers(1, 500)),), f"v{i}")
        graph.map_linearly(tensor, rng.permutation(20)[: rng.integers(1, 20)], int(rng.integers(1, 9)))
        total += tensor.variable.nbytes
    memory = Engine(graph, Sequence()).memory
    assert int(memory.always["variables"].sum()) == total
    assert memory.always_bytes == total + int(memory.always["padding"].sum())


@pytest.mark.parametrize("seed", range(30))
def test_memory_that_is_not_live_may_hold_anything(seed: int) -> None:
    """Scrambling every temporary where the account says that it is dead changes no result."""
    rng = np.random.default_rng(seed)
    g = Graphs()
    kept = [g.variable(f"k{i}", temporary=False) for i in range(2)]
    variables = kept + [g.variable(f"t{i}") for i in range(5)]
    written = np.array([[True] * 8] * 2 + [[False] * 8] * 5)
    steps: list[Program] = []
    while len(steps) < 25:
        source, to = rng.choice(7, 2, replace=False)
        part = [slice(None), slice(0, 4), slice(4, 8)][rng.integers(0, 3)]
        if written[source, part].all():  # a temporary's elements hold nothing before they are written
            steps.append(g.move(variables[source][part], variables[to][part]))
            written[to, part] = True
    engine = Engine(g.graph, Sequence(*steps))
    points, early = live_points(engine._account.trees[0], engine._account.steps, 0b11)
    assert early & ~0b11 == 0

    def results(*, scramble: bool) -> list[np.ndarray]:
        for tensor in kept:
            engine.write(tensor, np.arange(8) + tensor.variable.number * 100)
        for point, call in zip(points, engine._calls[0], strict=True):
            for tensor in variables[2:] if scramble else []:
                if not point.live >> tensor.variable.number & 1:
                    engine._storage[tensor.variable][:] = rng.integers(-99, 0, 8)
            call()
        return [engine.read(tensor) for tensor in kept]

    np.testing.assert_array_equal(results(scramble=True), results(scramble=False))
