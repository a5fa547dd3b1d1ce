"""The tiles' own generators in programs: against a machine that draws word by word, vertex by vertex."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ipu_core.chip import tile, tile_random
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.hardware_random import Draws, HardwareRandom, TileRandom
from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.engine.engine import Engine
from ipu_core.errors import Unvalidated
from ipu_core.graph import program as p
from ipu_core.graph.tensor import Tensor
from ipu_core.graph.vertices import VertexGroup
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.trace.tracing import trace
from ipu_core.library.matmul.chains import BlockPosition
from lowprec import Accumulation, Rounding, Xoroshiro128aox

TARGET = Target("gc200", tiles=5)
SEED = HardwareRandom((0x12345678, 0x9ABCDEF0), modifier=3)
Array = np.ndarray[Any, np.dtype[Any]]


class WordByWord:
    """The generator of every worker of every tile, asked for one result at a time."""

    def __init__(self, start: HardwareRandom, tiles: int, workers: int) -> None:
        self.workers = workers
        self.of = [
            [Xoroshiro128aox.for_tile(start.seed, modifier=start.modifier, tile=t, worker=w) for w in range(workers)]
            for t in range(tiles)
        ]

    def numbers(self, tile: int, count: int) -> Iterator[int]:
        """16 bits for each of so many results of a vertex."""
        for result in range(count):
            vector, lane = divmod(result, 4)
            if lane == 0:
                generator = self.of[tile][vector % self.workers]
                output = generator.next()
                generator.next()
            yield output >> 16 * lane & 0xFFFF


def to_half(value: np.float32, number: int) -> np.float16:
    """A normal float32 to half: 13 random bits added to the 13 that half has not."""
    bits = int(np.float32(value).view(np.uint32)) + (number & 0x1FFF)
    return np.float16(np.uint32(bits >> 13 << 13).view(np.float32))


class SlowMachine:
    """Runs a lowered program element by element."""

    def __init__(self, machine: Machine) -> None:
        self.random = WordByWord(SEED, TARGET.tiles, TARGET.workers)
        graph = machine.lowered.graph
        self.memory = {v: np.zeros(v.size, v.dtype) for v in graph.variables}
        for variable, values in self.memory.items():
            if variable.initial is not None:
                values[...] = variable.initial

    def write(self, tensor: Tensor, values: Array) -> None:
        self.memory[tensor.variable][tensor.indices()] = values

    def read(self, tensor: Tensor) -> Array:
        return self.memory[tensor.variable][tensor.indices()]

    def run(self, program: p.Program) -> None:
        match program:
            case p.Sequence(steps):
                for step in steps:
                    self.run(step)
            case p.Copy(source, destination):
                self.write(destination, self.read(source))
            case p.Execute(compute_set):
                for group in compute_set.all_groups(TARGET.tiles):
                    for vertex in np.ndindex(group.tiles.shape):
                        self.vertex(group, vertex)

    def vertex(self, group: VertexGroup, vertex: tuple[int, ...]) -> None:
        at = {
            name: (operand.tensor.indices() if operand.tensor is not None else operand.indices)[vertex]
            for name, operand in group.operands.items()
        }
        fields = {name: self.memory[group.operands[name].variable][at[name]] for name in at}
        out = self.memory[group.operands["out"].variable]
        tile = int(group.tiles[vertex])
        match group.codelet.__name__:
            case "MatmulChains<stochastic>":
                a, b = (fields[name].astype(np.float32) for name in "ab")
                terms = np.moveaxis(a[:, :, None] * b[None], 1, 0)  # exact: products of halves
                self.chain(out, at["out"], terms, tile, group.params["accumulation"])
            case "ReduceChains<stochastic>":
                terms = np.moveaxis(fields["x"].astype(np.float32), 1, 0)
                self.chain(out, at["out"], terms, tile, group.params["accumulation"])
            case "SumParts<stochastic>":
                total = fields["parts"][0].astype(np.float32)
                for part in fields["parts"][1:]:
                    total = total + part.astype(np.float32)
                self.store(out, at["out"], total, tile)
            case "ElementwiseVertex<stochastic>":
                given = [fields[item] if isinstance(item, str) else item for item in group.params["operands"]]
                x, *others = (np.asarray(value, np.float32) for value in given)
                assert (group.params["op"], len(others)) in (("identity", 0), ("divide", 1))
                self.store(out, at["out"], x / others[0] if others else x, tile)
            case name:
                raise NotImplementedError(name)

    def chain(self, out: Array, at: Array, terms: Array, tile: int, order: Accumulation) -> None:
        """Adds terms (terms, m, n), rounding after every group."""
        group = order.group_of(len(terms))
        out[at] = 0
        for first in range(0, len(terms), group):
            total = out[at].astype(np.float32)
            for term in terms[first : first + group]:
                total = total + term
            self.store(out, at, total, tile)

    def store(self, out: Array, at: Array, values: Array, tile: int) -> None:
        numbers = self.random.numbers(tile, at.size)
        for place, value, number in zip(at.ravel(), values.ravel(), numbers, strict=True):
            out[place] = to_half(value, number)


def f(x: Any, w: Any) -> Any:
    y = x @ w
    z = y / 3.0
    return y, z, z.sum(axis=0)


def test_a_program_draws_as_one_that_draws_word_by_word() -> None:
    rng = np.random.default_rng(2)
    x, w = (rng.uniform(1, 2, shape).astype(np.float32) for shape in ((9, 40), (40, 7)))
    block = Precision.parse("fp16.16/stochastic").apply(trace(f, x, w))
    orders = {e.number: Accumulation(group=16, splits=2) for e in block.equations if e.op in ("dot", "reduce_sum")}
    state = SEED.state(TARGET.tiles, TARGET.workers)
    with pytest.warns(Unvalidated, match="not validated on hardware"):
        machine = Machine.build(block, TARGET, orders, FloatingPointControl(esr=True), random=state)
    slow = SlowMachine(machine)
    for _ in range(2):  # the second run goes on from where the generators are
        outputs = machine.run([x, w], None)
        for var, values in zip(block.inputs, (x, w), strict=True):
            slow.write(machine.lowered.tensors[var], values)
        slow.run(machine.lowered.program)
        for var, values in zip(block.outputs, outputs, strict=True):
            np.testing.assert_array_equal(values, slow.read(machine.lowered.tensors[var]))
    kinds = {g.codelet.__name__ for s in machine.lowered.graph.compute_sets for g in s.groups}
    assert kinds == {
        "MatmulChains<stochastic>", "ReduceChains<stochastic>", "SumParts<stochastic>", "ElementwiseVertex<stochastic>"
    }  # fmt: skip
    drawn = machine.engine.random_state
    assert drawn is not None
    for number in range(TARGET.tiles):
        for worker in range(TARGET.workers):
            one = slow.random.of[number][worker]
            assert (int(drawn.s0[number, worker]), int(drawn.s1[number, worker])) == (one.s0, one.s1)


@pytest.mark.parametrize("count", [0, 1, 4, 23, 24, 25, 60])
def test_vertices_of_a_tile_draw_one_after_another(count: int) -> None:
    with pytest.warns(Unvalidated):
        random = TileRandom(SEED.state(TARGET.tiles, TARGET.workers))
    slow = WordByWord(SEED, TARGET.tiles, TARGET.workers)
    tiles = np.array([3, 1, 3, 0, 3, 1])
    for _ in range(2):
        drawn = random.draw(tiles, count)
        assert drawn.tolist() == [list(slow.numbers(tile, count)) for tile in tiles.tolist()]


def test_a_state_of_generators_is_that_of_the_tiles() -> None:
    block = trace(lambda x: x + 1.0, np.ones(3, np.float32))
    state = SEED.state(TARGET.tiles, TARGET.workers)
    engine = Machine.build(block, TARGET).engine
    assert isinstance(engine, Engine)
    assert engine.random_state is None
    with pytest.raises(ValueError, match="are its key's"):
        engine.random_state = state
    with pytest.warns(Unvalidated):
        engine = Machine.build(block, TARGET, random=state).engine
    with pytest.raises(ValueError, match="no state of shape"):
        engine.random_state = SEED.state(2, 6)


@pytest.mark.parametrize("adder", ["sequential", "dot4", "pairwise"])
def test_sums_in_float32_draw_nothing_and_are_the_tiles(adder: str) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.normal(size=shape).astype(np.float16) for shape in ((2, 5, 37), (2, 37, 3)))
    x = rng.normal(size=(2, 5, 37, 3)).astype(np.float32) * np.exp2(rng.integers(-20, 20, (37, 1))).astype(np.float32)
    order = Accumulation(group=16, accumulate="float32", adder=adder)
    plain = Accumulation(group=16, accumulate="float32")  # sums without products know no adder
    control, place = FloatingPointControl(), BlockPosition()
    with pytest.warns(Unvalidated):
        random = TileRandom(SEED.state(TARGET.tiles, TARGET.workers))
    before = random.state.s0.copy()
    draws = Draws(random, np.arange(2))
    initial = rng.normal(size=(2, 5, 3)).astype(np.float32)
    parts = np.ascontiguousarray(np.moveaxis(x, -2, 0))
    ours, theirs = ([np.empty((2, 5, 3), np.float32) for _ in range(4)] for _ in range(2))
    for first, out in ((None, ours[0]), (initial, ours[1])):
        tile_random.matmul_part(a, b, out, order, control, draws, first)(None)
    tile_random.reduce_part(x, ours[2], plain, control, draws)(None)
    tile_random.sum_parts(parts, ours[3], "float32", control, draws)(None)
    for first, out in ((None, theirs[0]), (initial, theirs[1])):
        tile.matmul_part(a, b, out, order, place, Rounding(), control, first)(None)
    tile.reduce_part(x, theirs[2], plain, place, Rounding(), control)(None)
    tile.sum_parts(np.moveaxis(x, -2, 1).copy(), theirs[3], "float32", "output", 0, place, Rounding(), control)(None)
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(own, other)
    np.testing.assert_array_equal(random.state.s0, before)
