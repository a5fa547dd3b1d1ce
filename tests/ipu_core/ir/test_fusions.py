"""Chains: elementwise neighbours that go through pieces together give the bits of single calls on whole arrays."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_core import nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.ir.block import Array, Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.liveness.lifetimes import lifetimes
from ipu_core.ir.passes.guard import guarded
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run import fusions as fusions
from ipu_core.ir.run.buffers import allocate
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.run.fusions import Fusion, computed, in_rows, only_inside, runs_of_fusions
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import apply, scope
from ipu_core.train.optim import Adam, Lamb, Optimizer
from ipu_core.train.step import initial_state, step_block
from lowprec import Accumulation, Key, num_threads
from lowprec.testing import backend

RNG = np.random.default_rng(5)
SHAPE = (6, 40)
A, B = RNG.normal(size=SHAPE).astype(np.float32), RNG.normal(size=SHAPE).astype(np.float32)
SPECS = ["fp32.32", "fp16.32/nearest", "fp16.16/nearest", "fp16.16/stochastic",
         "fp16.16/stochastic/operands=bfloat16/partials=bfloat16"]  # fmt: skip
UNARY = ("exp", "tanh", "gelu", "gelu_gradient", "sigmoid", "square", "negative", "relu", "step", "sin")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "greater", "divide")


def apart(x: Any, sums: Any, shape: tuple[int, ...]) -> Any:
    """x and sums of it that are spread over another shape."""
    return x - np.broadcast_to(sums(x), shape).reshape(SHAPE)


MOVES = {
    "reshape": lambda x: x.reshape(-1, 8).reshape(SHAPE),
    "turned": lambda x: x.T.reshape(SHAPE),
    "flipped axes": lambda x: x.reshape(40, 6).T,
    "one row": lambda x: np.broadcast_to(x[2], SHAPE),
    "one column": lambda x: np.broadcast_to(x[:, 3:4], SHAPE),
    "slice": lambda x: np.concatenate([x[1:], x[:1]]),
    "sums of rows": lambda x: x - x.sum(1, keepdims=True),
    "means of groups": lambda x: (x.reshape(6, 5, 8) / x.reshape(6, 5, 8).mean(-1, keepdims=True)).reshape(SHAPE),
    "sums inside rows": lambda x: (x.reshape(6, 5, 8) - x.reshape(6, 5, 8).sum(1, keepdims=True)).reshape(SHAPE),
    "sums over two axes": lambda x: apart(x, lambda x: x.reshape(6, 5, 2, 4).sum((1, 3), keepdims=True), (6, 5, 2, 4)),
    "sums of what lies apart": lambda x: apart(x, lambda x: x.reshape(6, 5, 8).transpose(1, 0, 2).sum((1, 2)), (48, 5)),
    "softmax": nn.softmax,
    "layer norm": nn.layer_norm,
    "flat sums": lambda x: x + np.broadcast_to(x.reshape(12, 20).sum(0)[:1], SHAPE),
    "sums of columns": lambda x: x * x.sum(0),
    "largest of rows": lambda x: x - x.max(-1, keepdims=True),
    "one number": lambda x: x + x.mean(),
    "product": lambda x: x @ (x.T @ x),
}
steps = st.lists(
    st.tuples(st.sampled_from([*UNARY, *BINARY, "scaled_add", "select", *MOVES]), *[st.integers(0, 9)] * 3),
    min_size=1, max_size=14,
)  # fmt: skip


def program(chosen: list[tuple[str, int, int, int]], held: list[int]) -> Block:
    """A function of two arrays that are carried and one that is not, made of chosen operations on what there is."""

    def f(state: Any, x: Any) -> Any:
        values = [*state, x]
        for op, *places in chosen:
            a, b, c = (values[-1 - place % len(values)] for place in places)
            if op in MOVES:
                values.append(MOVES[op](a))
            else:
                given = (a, b, c)[: 1 if op in UNARY else 2 if op in BINARY else 3]
                values.append(apply(op, *given))
        new = []
        for number, place in enumerate(held[:2]):
            with scope(x, role="update", family="weights", parameter=str(number)):
                new.append(apply("scaled_add", state[number], values[-1 - place % len(values)], 0.25))
        return new, values[-1], values[-1 - held[2] % len(values)]

    return trace(f, [A, B], A, carry=True)


def all_chains(block: Block) -> list[Fusion]:
    return [fusion for run in runs_of_fusions(block) for fusion in run]


def assert_chained_is_single(
    block: Block,
    state: list[Array],
    given: list[Any],
    runs: int = 2,
    order: Accumulation | None = None,
    control: FloatingPointControl = FloatingPointControl(),  # noqa: B008  # frozen
) -> Executable:
    """Runs a Block both ways, from its own results, on one thread and on three; gives the chained one."""
    orders = {
        equation.number: order for equation in equations_of(block) if order and equation.op in ("dot", "reduce_sum")
    }
    together, single = Executable(block, orders, control), Executable(block, orders, control, chained=False)
    for program in (together, single):
        program.write(state)
    for run in range(runs):
        key = Key(run)
        with num_threads(1 + 2 * (run % 2)), np.errstate(all="ignore"):
            outputs = [program.feed(given, key) for program in (together, single)]
        assert_same_bits(*outputs)
        assert_same_bits(together.read(), single.read())
    return together


def assert_same_bits(got: list[Array], wanted: list[Array]) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    steps,
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
    st.sampled_from(SPECS),
    st.sampled_from([1, 7, 64, 999]),
    st.integers(1, 4),
    st.sampled_from([None, Accumulation(group=3, splits=4, stages=2), Accumulation(group=1), Accumulation(group=None)]),
)
def test_pieces_have_the_bits_of_whole_arrays(
    chosen: list[tuple[str, int, int, int]], held: list[int], spec: str, piece: int, rows: int, order: Any
) -> None:
    precision = Precision.parse(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusions, "PIECE", piece)
        patch.setattr(fusions, "SIDE_BY_SIDE", rows)
        block = precision.apply(program(chosen, held))
        assert_chained_is_single(block, precision.cast_state(block, [A, B]), [A], order=order)


def loss(params: Any, batch: Any) -> Any:
    x = nn.dropout(nn.gelu(nn.linear(nn.layer_norm(batch[0], params["scale"], params["shift"]), **params["up"])), 0.25)
    return nn.softmax_cross_entropy(nn.linear(x, **params["down"]), batch[1])


def step(spec: str, optimizer: Optimizer, micro_batches: int, scaled: bool) -> tuple[Block, list[Array], list[Any]]:
    """A typed step, its state, and what it is given beside that."""
    layers = nn.mlp_parameters(3, [20, 24, 5])
    params = {"up": layers[0], "down": layers[1], "scale": np.ones(20, np.float32), "shift": np.zeros(20, np.float32)}
    batch = RNG.normal(size=(12, 20)).astype(np.float32), RNG.integers(0, 5, 12).astype(np.int32)
    precision = Precision.parse(spec)
    ideal = step_block(
        loss, optimizer, params, batch,
        micro_batches=micro_batches, running_mean=precision.running_mean, scaled=scaled,
    )  # fmt: skip
    block = precision.apply(ideal)
    block = guarded(block) if scaled else block
    state = flatten(precision.cast_state(block, initial_state(params, optimizer)))[0]
    return block, state, [*batch, np.float32(0.05), *([np.float32(8)] if scaled else [])]


@pytest.mark.parametrize("piece", [5, 64, 1 << 14])
@pytest.mark.parametrize("optimizer", [Adam(), Lamb(weight_decay=0.01)], ids=["adam", "lamb"])
@pytest.mark.parametrize("spec", ["fp32.32", "fp16.16/stochastic", "fp8/stochastic", "mlperf-bert-pod16"])
def test_training_steps_in_rounds_and_behind_a_guard_are_the_same(
    spec: str, optimizer: Optimizer, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusions, "PIECE", piece)
    monkeypatch.setattr(fusions, "SIDE_BY_SIDE", 2)
    for micro_batches, scaled in ((1, False), (3, False), (1, True)):
        block, state, given = step(spec, optimizer, micro_batches, scaled)
        found = [equation.op for fusion in all_chains(block) for _, equation in computed(block, fusion)]
        assert len(found) > 100
        assert {"reduce_sum", "reduce_max"} <= {*found}
        assert_chained_is_single(block, state, given, runs=3)


def test_a_refused_step_changes_nothing() -> None:
    block, state, given = step("fp16.16/stochastic", Adam(), 1, True)
    given[0][3, 4] = np.inf
    program = assert_chained_is_single(block, state, given, runs=1)
    assert_same_bits(program.read(), state)


@pytest.mark.parametrize("piece", [5, 64, 1 << 14])
@pytest.mark.parametrize("micro_batches, scaled", [(1, False), (3, False), (1, True)])
def test_an_observer_is_told_what_single_calls_compute_and_the_state_goes_on(
    piece: int, micro_batches: int, scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusions, "PIECE", piece)
    block, state, given = step("fp16.16/stochastic", Adam(), micro_batches, scaled)
    moments = {e.number for e in equations_of(block) if e.family == "second_moment"}
    told: list[list[tuple[Any, ...]]] = [[], [], []]
    programs = Executable(block, chained=False), Executable(block), Executable(block)
    for program, seen, among in zip(programs, told, (None, None, moments), strict=True):
        program.write(state)
        before = program.read()

        def observe(e: Any, operands: Any, result: Any, seen: Any = seen, held: Any = program.held) -> None:
            read = [x.tobytes() if isinstance(x, np.ndarray) else x for x in operands]
            seen.append((e.number, read, result.tobytes(), [x.tobytes() for x in held]))

        program.feed(given, Key(0), observe, among)
        assert all(each[3] == [x.tobytes() for x in before] for each in seen)
        program.feed(given, Key(1))
    assert told[0] == told[1]
    assert [each for each in told[0] if each[0] in moments] == told[2]
    assert len(told[0]) > 100
    assert len(told[2]) == 6
    for program in programs[1:]:
        assert_same_bits(programs[0].read(), program.read())


def test_what_no_observer_is_told_of_lies_in_pieces() -> None:
    x = np.ones(1 << 17, np.float32)
    block = trace(lambda x: np.tanh(np.exp(x * 0.5) + x) - x, x)
    program, seen = Executable(block), list[str]()
    program.run([x], 0, lambda e, *_: seen.append(e.op), [e.number for e in equations_of(block) if e.op == "tanh"])
    assert seen == ["tanh"]
    teller = program._teller([e.number for e in equations_of(block) if e.op == "tanh"])
    assert teller.bytes < 3 * x.nbytes + 3 * fusions.PIECE * x.itemsize < program._teller(None).bytes


def test_what_a_run_gives_an_observer_is_held() -> None:
    block, state, given = step("fp16.16/stochastic", Adam(), 1, False)
    program = Executable(block)
    outputs = program.run([*state, *given], 0, lambda *_: None)
    assert_same_bits(program.read(), outputs[: block.carried])


def test_the_reference_computes_equation_by_equation() -> None:
    block = Precision.parse("fp16.16/stochastic").apply(trace(lambda a, b: (np.tanh(a) * b + a) * b, A, B))
    program = Executable(block)
    wanted = program.run([A, B], 3)
    with backend("reference"):
        assert_same_bits(program.run([A, B], 3), wanted)


def test_single_calls_where_an_exception_is_enabled_or_calls_are_wrapped() -> None:
    seen = []

    def wrap(call: Any, equation: Any, operands: Any, output: Any) -> Any:
        seen.append(equation.op)
        return call

    block = trace(lambda a, b: (a + b) * b - a, A, B)
    wanted = Executable(block).run([A, B], 0)
    assert_same_bits(Executable(block, wrap=wrap).run([A, B], 0), wanted)
    assert seen == ["add", "multiply", "subtract"]
    assert_same_bits(Executable(block, control=FloatingPointControl(oflo=True)).run([A, B], 0), wanted)


def test_what_only_a_chain_reads_is_never_whole_in_memory() -> None:
    x = np.ones(1 << 17, np.float32)
    block = trace(lambda x: np.tanh(np.exp(x * 0.5) + x) - x, x)
    ((fusion,),) = runs_of_fusions(block)
    assert [equation.op for _, equation in computed(block, fusion)] == ["multiply", "exp", "add", "tanh", "subtract"]
    assert len(only_inside(block, fusion)) == 4
    program = Executable(block)
    assert program.bytes == x.nbytes + 2 * fusions.PIECE * x.itemsize
    assert program.bytes < Executable(block, chained=False).bytes


ROWS = np.ones((1 << 9, 1 << 8), np.float32)
NORMS = {
    "softmax": (nn.softmax, "reduce_max subtract exp reduce_sum divide"),
    "layer norm": (nn.layer_norm, "reduce_sum multiply subtract square reduce_sum multiply add rsqrt multiply"),
    "mean square": (nn.rms_norm, "square reduce_sum multiply add rsqrt multiply"),
}


@pytest.mark.parametrize("name", NORMS)
def test_rows_that_are_reduced_are_one_chain_with_their_neighbours(name: str) -> None:
    function, ops = NORMS[name]
    block = trace(lambda x: function(x * 0.5) + 1.0, ROWS)
    ((fusion,),) = runs_of_fusions(block)
    assert [equation.op for _, equation in computed(block, fusion)] == ["multiply", *ops.split(), "add"]
    assert (fusion.rows, fusion.piece) == (1 << 9, fusions.PIECE >> 8)
    assert len(only_inside(block, fusion)) == len(ops.split()) + 1
    assert_chained_is_single(block, [], [RNG.normal(size=ROWS.shape).astype(np.float32)])


def test_rows_of_two_lengths_go_together_as_far_as_both_are_whole() -> None:
    def less_sums(x: Any, *shape: int) -> Any:
        rows = x.reshape(*shape)
        return rows - rows.sum(-1, keepdims=True)

    block = trace(lambda x: less_sums(less_sums(x + 1.0, 6, 40), 8, 30), A)
    (fusion,) = all_chains(block)
    assert (fusion.rows, len(computed(block, fusion))) == (2, 5)
    assert_chained_is_single(block, [], [A])


@pytest.mark.parametrize("nanoo", [False, True])
def test_sums_overflow_as_the_control_says(nanoo: bool) -> None:
    block = Precision.parse("fp16.16/stochastic").apply(trace(lambda x: x.sum(1, keepdims=True) + x, A))
    given = [np.full(SHAPE, 3e4, np.float32)]
    program = assert_chained_is_single(block, [], given, control=FloatingPointControl(nanoo=nanoo))
    (total,) = program.run(given, 0)
    assert np.isnan(total).all() if nanoo else (total == np.finfo(np.float16).max).all()


def test_rows_too_long_for_a_piece_and_sums_over_all_rows_are_no_chain() -> None:
    long = np.ones((1 << 6, 2 * fusions.MOST // fusions.SIDE_BY_SIDE), np.float32)
    for function, x in ((lambda x: np.exp(x - x.max(-1, keepdims=True)), long), (lambda x: np.exp(x - x.sum(0)), ROWS)):
        block = trace(function, x)
        assert [equation.op for fusion in all_chains(block) for _, equation in computed(block, fusion)] == [
            "subtract",
            "exp",
        ]


@given(st.permutations([0, 1, 2]), st.integers(1, 24), st.data())
def test_rows_that_lie_in_rows_are_found_as_by_their_numbers(axes: list[int], rows: int, data: Any) -> None:
    part = tuple(data.draw(st.sampled_from([slice(None), slice(1, None), slice(0, 1)])) for _ in range(3))
    times = [data.draw(st.sampled_from([1, 3])) for _ in range(3)]

    def view(x: Any) -> Any:
        x = x.transpose(*axes)[part]
        return np.broadcast_to(x, [n * t if n == 1 else n for n, t in zip(x.shape, times, strict=True)])

    numbers = np.arange(24).reshape(2, 3, 4)
    block = trace(lambda x: np.exp(view(np.exp(x))), numbers.astype(np.float32))
    var, seen = equations_of(block)[-1].operands[0], view(numbers).reshape(-1)
    fitting = 24 % rows == 0 and seen.size % rows == 0
    wanted = fitting and bool((seen.reshape(rows, -1) // (24 // rows) == np.arange(rows)[:, None]).all())
    assert in_rows(var, lifetimes(block).views[var], rows) == wanted


def test_a_result_is_written_over_what_is_dead_by_then() -> None:
    x = np.ones((1 << 9, 1 << 8), np.float32)
    block = trace(lambda x: np.exp(x @ x.T @ x) + 1.0, x)
    product = [equation.output for equation in equations_of(block) if equation.op == "dot"][-1]
    arrays = allocate(block, {}, all_chains(block)).arrays
    assert np.shares_memory(arrays[product], arrays[block.outputs[0]])
    assert_chained_is_single(block, [], [x])


def test_what_is_read_in_another_order_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusions, "PIECE", 7)
    square = RNG.normal(size=(48, 48)).astype(np.float32)
    for view in (np.transpose, lambda x: np.broadcast_to(x[3], x.shape), lambda x: np.broadcast_to(x[:, :1], x.shape)):
        block = trace(lambda x, view=view: (product := x @ x) - view(product), square)
        assert_chained_is_single(block, [], [square])


def test_values_that_are_read_in_another_order_are_whole() -> None:
    block = trace(lambda a: (a * 2.0).reshape(40, 6).T.reshape(-1) + 1.0, A)
    assert [len(run) for run in runs_of_fusions(block)] == [1, 1]
    assert not any(only_inside(block, fusion) for run in runs_of_fusions(block) for fusion in run[:-1])


def test_state_that_is_read_in_another_order_is_replaced_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusions, "PIECE", 7)
    for view in (lambda w: np.broadcast_to(w[0], SHAPE), lambda w: np.broadcast_to(w[:, 1:2], SHAPE)):
        block = trace(lambda w, x, view=view: (w - (view(w) + x), x.sum()), A, B, carry=True)
        assert_chained_is_single(block, [A], [B])
