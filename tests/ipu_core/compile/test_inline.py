"""A traced function in a user's graph: the bits of `execute`, wherever tensors lie and whichever tiles compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pytest

from ipu_core import (
    Accumulation,
    Block,
    Codelet,
    Copy,
    Engine,
    Execute,
    Graph,
    If,
    Input,
    Output,
    Precision,
    Repeat,
    Sequence,
    Target,
    Tensor,
    add_traced,
    execute,
    nn,
    plan,
    trace,
    value_and_grad,
)
from ipu_core.compile.lowering import lower
from ipu_core.compile.machine import Machine
from ipu_core.compile.schedule.residency import scheduled
from ipu_core.errors import UnmappedTensor, UnsupportedByTarget
from ipu_core.graph.program import Program
from ipu_core.ir.pytree import flatten, map_leaves
from lowprec import Key, astype
from tests.examples import first

TILES, RNG = 12, np.random.default_rng(5)
Array = np.ndarray[Any, np.dtype[Any]]
CHIPS = {name: Target(name, tiles=TILES) for name in ("gc200", "c600")}


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape)


def heads(weights: Any, x: Any) -> Any:
    return nn.multi_head_attention(weights, x, 2, nn.causal_mask(6), rotary=True)


def classified(params: Any, x: Any, labels: Any) -> Any:
    return nn.softmax_cross_entropy(
        nn.dropout(nn.relu(x @ params["in"]), 0.25) @ params["out"] + params["bias"], labels
    )


def running(x: Any) -> Any:
    return nn.scan(lambda total, row: (total + row, total + row), np.zeros(7, np.float32), x)


def views(x: Any) -> Any:
    y = nn.tanh(x)
    return {"turned": y.T, "rows": [y[1:3], y[:, ::2]], "itself": (y, y)}


LABELS = np.array([3, 0, 1, 1, 2], np.int32)
PARAMS = {"in": normal(6, 8), "out": normal(8, 4), "bias": normal(4)}
LSTM = {"input": normal(5, 12), "hidden": normal(3, 12), "bias": normal(12)}
GRU = {"input": normal(5, 9), "hidden": normal(3, 9), "bias": normal(9), "hidden_bias": normal(9)}
HEADS = {layer: {"weight": normal(8, n) / 2, "bias": normal(n)} for layer, n in (("qkv", 24), ("out", 8))}
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (nn.softmax, (normal(9, 10) * 3,)),
    "layer_norm": (nn.layer_norm, (normal(9, 10), normal(10), normal(10))),
    "batch_norm": (
        lambda x, s, b, running: nn.batch_norm(x, s, b, running, training=True),
        (normal(3, 4, 5, 6), normal(6), normal(6), {"mean": normal(6), "variance": normal(6) ** 2})),
    "pooling": (lambda x: [nn.max_pool2d(x), nn.avg_pool2d(x, 3, 1)], (normal(2, 6, 5, 4),)),
    "convolution": (lambda x, w: nn.conv2d(x, w, padding=1), (normal(2, 5, 5, 4), normal(3, 3, 4, 6))),
    "attention": (heads, (HEADS, normal(2, 6, 8))),
    "lstm": (nn.lstm, (LSTM, normal(4, 3, 5))),
    "gru": (nn.gru, (GRU, normal(4, 3, 5))),
    "loss": (classified, (PARAMS, normal(5, 6), LABELS)),
    "gradients": (value_and_grad(classified), (PARAMS, normal(5, 6), LABELS)),
    "sort": (lambda x: nn.topk(x, 11), (normal(6, 11),)),
    "scan": (running, (normal(5, 7),)),
    "embedding": (lambda table, rows: nn.embedding(table, rows) * 2.0, (normal(9, 6), LABELS)),
    "views": (views, (normal(4, 6),)),
    "a number": (lambda x: x * 3.0 + x.sum(), (normal(),)),
}  # fmt: skip
SPECS = {
    "fp32.32": ("gc200", "float32", "fp32.32"),
    "fp32.32 of halves": ("gc200", "float16", "fp32.32"),
    "fp16.32": ("gc200", "float32", "fp16.32/stochastic"),
    "fp16.16/nearest": ("gc200", "float16", "fp16.16/nearest"),
    "fp16.16/stochastic": ("gc200", "float16", "fp16.16/stochastic"),
    "fp8": ("c600", "float16", "fp8.16/stochastic"),
    "of bytes": ("c600", "float8_e4m3fnuz", "fp8.16"),
}
"""The chip, the format of the arguments and the precision."""


def linear(graph: Graph, fmt: str, shape: tuple[int, ...], seed: int) -> Tensor:
    x = graph.add_variable(fmt, shape, "x")
    graph.map_linearly(x, seed % TILES + 1)
    return x


def scattered(graph: Graph, fmt: str, shape: tuple[int, ...], seed: int) -> Tensor:
    x = graph.add_variable(fmt, shape, "x")
    starts = np.arange(0, x.size, 3)
    graph.map_intervals(x, starts, np.random.default_rng(seed).integers(0, TILES, starts.size))
    return x


def part(graph: Graph, fmt: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Every second row of a larger array."""
    if not shape:
        return linear(graph, fmt, (3,), seed)[1]
    return linear(graph, fmt, (2 * shape[0] + 1, *shape[1:]), seed)[1::2]


def turned(graph: Graph, fmt: str, shape: tuple[int, ...], seed: int) -> Tensor:
    return scattered(graph, fmt, shape[::-1], seed).T


def made(graph: Graph, fmt: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """As results of functions lie, on all tiles."""
    x = linear(graph, fmt, shape, seed)
    precision = {"float32": "fp32.32", "float16": "fp16.16/nearest"}.get(fmt)
    return x if precision is None else add_traced(graph, lambda x: x * 2, [x], precision=precision)[1]


WAYS: list[Callable[[Graph, str, tuple[int, ...], int], Tensor]] = [linear, scattered, part, turned, made]


class Added(NamedTuple):
    """A function in a graph, its arguments there and as arrays, and its Block as `execute` takes it."""

    graph: Graph
    tensors: Any
    arrays: Any
    program: Any
    results: Any
    block: Block
    orders: Mapping[int, Accumulation]

    def engine(self, *others: Program, key: int | None = 11) -> Engine:
        """One that runs the function, or other programs, with the arguments in place."""
        engine = Engine(self.graph, others or self.program, key=key)
        for tensor, array in zip(flatten(self.tensors)[0], flatten(self.arrays)[0], strict=True):
            engine.write(tensor, array)
        return engine

    def expected(self, key: Key) -> Any:
        return execute(self.block, *self.arrays, key=key, accumulations=self.orders)


def stand_in(fmt: str, x: Array) -> Array:
    return x if x.dtype == np.int32 else np.asarray(astype(x, fmt))


def added(name: str, spec: str, seed: int = 0, *, ways: Any = WAYS, graph: Graph | None = None, **how: Any) -> Added:
    """A function with its arguments lying in some ways, beginning with that of the seed."""
    (f, values), (chip, fmt, precision) = FUNCTIONS[name], SPECS[spec]
    arrays = map_leaves(partial(stand_in, fmt), values)
    graph, numbers = graph or Graph(CHIPS[chip]), count(seed)

    def placed(x: Array) -> Tensor:
        at = next(numbers)
        return ways[at % len(ways)](graph, "int32" if x.dtype == np.int32 else fmt, x.shape, at)

    tensors = map_leaves(placed, arrays)
    program, results = add_traced(graph, f, tensors, precision=precision, **how)
    ideal = trace(f, *map_leaves(partial(stand_in, "float32"), values))
    given = [tensor.format for tensor in flatten(tensors)[0]]
    block = Precision.parse(precision).apply(ideal, inputs=given)
    return Added(graph, tensors, arrays, program, results, block, plan(block, CHIPS[chip]).accumulations)


def check(engine: Engine, results: Any, wanted: Any) -> None:
    (tensors, tree), (arrays, other) = flatten(results), flatten(wanted)
    assert tree == other
    for tensor, array in zip(tensors, arrays, strict=True):
        got = engine.read(tensor)
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert got.tobytes() == array.tobytes()


def tiles_of(graph: Graph, variables: int, compute_sets: int) -> set[int]:
    """The tiles of variables and vertices from some on."""
    maps = [variable.mapping.tiles for variable in graph.variables[variables:] if variable.size]
    groups = [group.tiles.ravel() for each in graph.compute_sets[compute_sets:] for group in each.groups]
    return {int(tile) for tile in np.concatenate([*maps, *groups])}


SOME: list[Any] = [None, range(3, 9), [7, 0, 11, 4, 2], [5]]


ROUNDS = [(spec, name, seed) for seed in range(8) for spec in SPECS for name in FUNCTIONS]


@pytest.mark.parametrize("spec, name, seed", first(len(SPECS) * len(FUNCTIONS), ROUNDS))
def test_the_bits_are_those_of_execute(spec: str, name: str, seed: int) -> None:
    rng = np.random.default_rng([seed, len(spec), *name.encode()])
    tiles, number = SOME[rng.integers(len(SOME))], int(rng.integers(2**32))
    if name == "convolution" and SPECS[spec][0] == "c600":
        with pytest.raises(UnsupportedByTarget, match="c600 has no figure for float32 x float32"):
            added(name, spec)  # its scaled convolutions are the direct engine's alone
        return
    one = added(name, spec, int(rng.integers(99)), tiles=tiles, operation=number)
    before = map_leaves(np.copy, one.arrays)
    engine = one.engine()
    engine.run()
    check(engine, one.results, one.expected(Key(11).fold_in(0).fold_in(number)))
    check(engine, one.tensors, before)  # nothing is written over
    assert engine.profile().cycles > 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_the_bits_of_execute_on_a_few_tiles_here_and_there(name: str) -> None:
    tiles = [7, 0, 11, 4, 2]
    one = added(name, "fp16.16/stochastic", len(name), tiles=tiles, operation=3)
    engine = one.engine()
    engine.run()
    check(engine, one.results, one.expected(Key(11).fold_in(0).fold_in(3)))
    graph = Graph(CHIPS["gc200"])
    tensors = map_leaves(lambda x: linear(graph, "int32" if x is LABELS else "float16", x.shape, 0), FUNCTIONS[name][1])
    counts = len(graph.variables), len(graph.compute_sets)
    add_traced(graph, FUNCTIONS[name][0], tensors, precision="fp16.16/nearest", tiles=tiles)
    found = tiles_of(graph, *counts)
    assert {7} <= found <= set(tiles)


def lowered_cycles(one: Added, tiles: int) -> int:
    """Cycles of the same Block on a machine of so many tiles, without its streams."""
    target = Target("gc200", tiles=tiles)
    block = scheduled(one.block, target)
    machine = Machine(lower(block, plan(block, target, apart=False), share=True))
    return sum(step.cycles for step in machine.profile.steps if step.kind != "stream")


@pytest.mark.parametrize("tiles", [range(TILES), range(4, 10)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_computed_costs_what_the_compiler_pays_on_as_many_tiles(name: str, tiles: range) -> None:
    one = added(name, "fp32.32", ways=[made], tiles=tiles)
    assert one.engine().profile().cycles == lowered_cycles(one, len(tiles)) + copied(one)


def copied(one: Added) -> int:
    """Cycles of copies of arguments."""
    return sum(step.cycles for step in one.engine().profile().steps if ".input." in step.name)


def test_tensors_that_lie_elsewhere_are_copied_by_steps_of_the_account() -> None:
    graph = Graph(CHIPS["gc200"])
    x = scattered(graph, "float32", (9, 10), 1)
    first, y = add_traced(graph, nn.softmax, [x], precision="fp32.32")
    second, _ = add_traced(graph, nn.log, [y], precision="fp32.32", name="again")
    apart, _ = add_traced(graph, nn.log, [y], precision="fp32.32", tiles=range(6, 12), name="apart")
    engine = Engine(graph, [first, second, apart])
    names = [[step.name for step in engine.profile(n).steps] for n in range(3)]
    assert names[0][0] == "softmax.input.x"
    assert names[1] == ["again.forward.log.0"]
    assert names[2] == ["apart.input.x", "apart.forward.log.0"]
    copy = engine.profile(0).steps[0]
    assert copy.exchanged > 0
    assert copy.cycles > 0
    assert engine.profile(0).cycles == sum(step.cycles for step in engine.profile(0).steps)
    assert all(name.split(".")[0] in ("x", "softmax", "again", "apart") for name, _ in engine.memory.largest)
    assert any(name.startswith("softmax.") for name, _ in engine.memory.largest)


@pytest.mark.parametrize("spec", ["fp32.32", "fp16.16/stochastic"])
def test_the_program_runs_many_times_beside_the_users_own(spec: str) -> None:
    class Halve(Codelet):
        x, y = Input(None, ndim=1), Output(None, ndim=1)

        def compute(self) -> None:
            self.y = self.x / 2

        def cycles(self, target: Target) -> int:
            return 5

    f, (fmt, precision) = (lambda x: nn.dropout(nn.tanh(x) * 3.1, 0.5)), SPECS[spec][1:]
    graph = Graph(CHIPS["gc200"])
    x, flag = linear(graph, fmt, (40,), 4), graph.add_constant("int32", [1])
    graph.set_tile_mapping(flag, 0)
    program, y = add_traced(graph, f, [x], precision=precision, operation=5, tiles=[8, 3])
    halve = graph.add_compute_set("halve")
    graph.add_vertex(halve, Halve, 1, {"x": y, "y": x})
    step = Sequence(program, Execute(halve))
    engine = Engine(graph, [Repeat(3, step), If(flag, Sequence(step, step)), Sequence()], key=2)
    values = normal(40).astype(fmt)
    block = Precision.parse(precision).apply(trace(f, np.float32(values)), inputs=[fmt])

    def after(key: Key, rounds: int) -> Array:
        now = values
        for number in range(rounds):
            inner = key.fold_in((1 << 32) + number) if number else key
            now = execute(block, now, key=inner.fold_in(5)) / np.asarray(2, fmt)
        return now

    engine.write(x, values)
    engine.run(0)
    np.testing.assert_array_equal(engine.read(x), after(Key(2).fold_in(0), 3))
    engine.write(x, values)
    engine.run(1)  # twice in one iteration: the same bits
    once = execute(block, values, key=Key(2).fold_in(1).fold_in(5)) / np.asarray(2, fmt)
    np.testing.assert_array_equal(
        engine.read(x), execute(block, once, key=Key(2).fold_in(1).fold_in(5)) / np.asarray(2, fmt)
    )


def test_every_call_draws_bits_of_its_own_unless_they_have_one_number() -> None:
    graph = Graph(CHIPS["gc200"])
    x = linear(graph, "float32", (500,), 3)
    how: list[dict[str, Any]] = [{}, {}, {"operation": 3}, {"operation": 3, "tiles": range(5)}, {"operation": 4}]
    programs, masks = zip(
        *(add_traced(graph, lambda x: nn.dropout(x, 0.5), [x], precision="fp32.32", **each) for each in how),
        strict=True,
    )
    engine = Engine(graph, Sequence(*programs), key=0)
    engine.write(x, np.ones(500))
    engine.run()
    drawn = [engine.read(mask) for mask in masks]
    np.testing.assert_array_equal(drawn[2], drawn[3])
    assert len({mask.tobytes() for mask in drawn}) == 4
    with pytest.raises(ValueError, match="draws random bits: give the engine a key"):
        Engine(graph, programs[0]).run()


def test_two_models_train_on_tiles_of_their_own() -> None:
    def update(params: Any, gradients: Any) -> Any:
        return map_leaves(lambda w, g: w - 0.5 * g, params, gradients)

    graph, (params, x, labels) = Graph(CHIPS["gc200"]), FUNCTIONS["loss"][1]
    data = linear(graph, "float32", x.shape, 3), linear(graph, "int32", labels.shape, 2)
    losses, half = value_and_grad(classified), "fp16.32/stochastic"
    models, rounds = [], []
    for tiles in (range(6), range(6, 12)):
        state = map_leaves(lambda w: linear(graph, "float32", w.shape, 5), params)
        forth, (loss, gradients) = add_traced(
            graph, losses, (state, *data), precision=half, tiles=tiles, operation=tiles[0]
        )
        back, new = add_traced(graph, update, (state, gradients), precision="fp32.32", tiles=tiles)
        rounds += [forth, back, *map(Copy, flatten(new)[0], flatten(state)[0])]
        models.append((state, loss, tiles[0]))
    engine = Engine(graph, Repeat(4, Sequence(*rounds)), key=1)
    engine.write(data[0], x)
    engine.write(data[1], labels)
    for state, _, _ in models:
        map_leaves(engine.write, state, params)
    engine.run()
    typed = Precision.parse(half).apply(trace(losses, params, x, labels))
    for state, loss, number in models:
        now = map_leaves(np.float32, params)
        for at in range(4):
            key = Key(1).fold_in(0)
            key = key.fold_in((1 << 32) + at) if at else key
            value, gradients = execute(typed, now, np.float32(x), labels, key=key.fold_in(number))
            now = map_leaves(lambda w, g: w - np.float32(0.5) * np.float32(g), now, gradients)
        check(engine, (state, loss), (now, value))
    assert engine.read(models[0][1]) != engine.read(models[1][1])


def test_pinned_orders_are_taken() -> None:
    graph = Graph(CHIPS["gc200"])
    x = linear(graph, "float32", (3, 640), 7)
    block = trace(lambda x: x.sum(-1), np.zeros((3, 640), np.float32))
    (number,) = plan(block, graph.target).accumulations
    order = Accumulation(group=4, splits=3)
    program, y = add_traced(graph, lambda x: x.sum(-1), [x], precision="fp32.32", accumulations={number: order})
    engine, values = Engine(graph, program), normal(3, 640).astype(np.float32)
    engine.write(x, values)
    engine.run()
    pinned = execute(block, values, key=0, accumulations={number: order})
    assert (pinned != execute(block, values, key=0, accumulations=plan(block, graph.target).accumulations)).any()
    np.testing.assert_array_equal(engine.read(y), pinned)


def test_arguments_that_are_not_read_are_not_moved() -> None:
    graph = Graph(CHIPS["gc200"])
    x, y = linear(graph, "float32", (60,), 7), scattered(graph, "float32", (60,), 7)
    program, _ = add_traced(graph, lambda x, y: 2 * y, (x, y), precision="fp32.32")
    names = [step.name for step in Engine(graph, program).profile().steps]
    assert names == ["traced.input.y", "traced.forward.multiply.0"]


def test_a_plan_leaves_room_for_what_lies_on_its_tiles() -> None:
    chip = Target("gc200", tiles=9)
    graph = Graph(chip)
    held = graph.add_variable("float32", (8 * 75_000,), "held")
    graph.map_linearly(held, range(1, 9))
    a, b = (linear(graph, "float32", (256, 256), 8) for _ in "ab")
    program, _ = add_traced(graph, lambda a, b: a @ b, (a, b), precision="fp32.32", tiles=range(1, 9))
    account = Engine(graph, program).memory  # raises where a tile is too full
    assert 300_000 < account.peak_bytes <= chip.tile_memory


def test_a_function_of_nothing_gives_constants() -> None:
    graph = Graph(CHIPS["gc200"])
    program, (ones, two) = add_traced(graph, lambda: (np.ones(3, np.float32), 2.0), (), precision="fp32.32")
    engine = Engine(graph, program)
    engine.run()
    np.testing.assert_array_equal(engine.read(ones), [1, 1, 1])
    assert engine.read(two) == 2


def test_temporary_results_share_memory_and_are_not_for_the_host() -> None:
    graph = Graph(CHIPS["gc200"])
    x = linear(graph, "float32", (60,), 7)
    program, y = add_traced(graph, nn.tanh, [x], precision="fp32.32", temporary=True)
    with pytest.raises(ValueError, match="temporary and cannot be read by the host"):
        Engine(graph, program).read(y)


@pytest.mark.parametrize("name", ["softmax", "loss", "convolution", "a number"])
@pytest.mark.parametrize("tiles", [None, [7, 0, 11, 4, 2]])
def test_variables_that_lie_nowhere_are_mapped_as_the_plan_wants_them(name: str, tiles: list[int] | None) -> None:
    def fresh(graph: Graph, fmt: str, shape: tuple[int, ...], _: int) -> Tensor:
        return graph.add_variable(fmt, shape, "x")

    one = added(name, "fp32.32", ways=[fresh], tiles=tiles)
    assert not [step for step in one.program.steps if isinstance(step, Copy) and step.source in flatten(one.tensors)[0]]
    assert tiles is None or tiles_of(one.graph, 0, 0) <= set(tiles)
    engine = one.engine()
    engine.run()
    check(engine, one.results, one.expected(Key(11).fold_in(0).fold_in(first_operation(one.graph))))


def first_operation(graph: Graph) -> int:
    return next(group.within for each in graph.compute_sets for group in each.groups if group.within is not None)


def test_a_variable_that_lies_nowhere_must_be_given_whole() -> None:
    graph = Graph(CHIPS["gc200"])
    x = graph.add_variable("float32", (4, 6), "x")
    for view in (x[1:], x.T, x.reshape(24)):
        with pytest.raises(UnmappedTensor, match="x: 24 of 24 elements are mapped to no tile"):
            add_traced(graph, nn.tanh, [view], precision="fp32.32")
    graph.set_tile_mapping(x[:2], 0)
    with pytest.raises(UnmappedTensor, match="x: 12 of 24 elements are mapped to no tile"):
        add_traced(graph, nn.tanh, [x], precision="fp32.32")


def test_what_is_refused_maps_nothing() -> None:
    graph = Graph(CHIPS["gc200"])
    x = graph.add_variable("float32", (4, 6), "x")
    with pytest.raises(ValueError, match="operation must be"):
        add_traced(graph, nn.tanh, [x], precision="fp32.32", operation=-1)
    assert not x.variable.pieces


def test_a_tensor_that_is_no_argument_is_refused_in_words() -> None:
    graph = Graph(CHIPS["gc200"])
    x, y = linear(graph, "float32", (4,), 0), linear(graph, "float32", (4,), 1)
    words = "is a tensor of a graph and holds no values: .* a function for add_traced takes it as an argument"
    for f in (lambda x: x + y, lambda x: x * nn.tanh(y), lambda x: np.add(y, 1.0) * x):
        with pytest.raises(TypeError, match=words):
            add_traced(graph, f, [x], precision="fp32.32")
    with pytest.raises(TypeError, match="holds no values: an engine reads them"):
        np.asarray(y)
