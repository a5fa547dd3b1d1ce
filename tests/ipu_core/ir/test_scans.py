"""Scans: one body for all places, forward and gradient, with the bits of the places in turn on every engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipu_core import Precision, Sgd, Target, TrainLoop, Watch, blame, custom_gradient, nn, value_and_grad
from ipu_core.compile.machine import Machine
from ipu_core.compile.planning import choose_accumulations
from ipu_core.compile.schedule.residency import scheduled
from ipu_core.ir.block import Block, Equation, Literal
from ipu_core.ir.bodies import equations_of, left_rows, regions_of
from ipu_core.ir.passes.checkpoints import with_checkpoints
from ipu_core.ir.passes.guard import guarded
from ipu_core.ir.passes.recompute import recompute
from ipu_core.ir.passes.streaming import streaming
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.pytree import flatten
from ipu_core.ir.regions import Loop, Scan
from ipu_core.ir.run.evaluate import evaluate, evaluate_flat
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import InvalidBlock, verify
from ipu_core.placement.orders import OrderRule
from ipu_core.train.optim import Adam
from ipu_core.train.step import initial_state, step_block
from lowprec import Key
from tests.examples import examples

TARGET = Target("gc200", tiles=7)
RNG = np.random.default_rng(0)
N, ROWS, PLACES, INPUTS = 3, 2, 4, 2
clipped = custom_gradient(lambda x: (nn.tanh(x), x), lambda x, dy: (np.clip(dy, -1.0, 1.0) * (1.0 - nn.tanh(x) ** 2),))


def array(*shape: int) -> Any:
    return RNG.normal(size=shape)


LSTM = {"input": array(INPUTS, 4 * N), "hidden": array(N, 4 * N), "bias": array(4 * N)}
GRU = {"input": array(INPUTS, 3 * N), "hidden": array(N, 3 * N), "bias": array(3 * N), "hidden_bias": array(3 * N)}
PLAIN = {"input": array(INPUTS, N), "hidden": array(N, N), "start": array(N)}
Model = Callable[[Any, Any, bool], Any]


def lstm(params: Any, x: Any, unroll: bool = False) -> Any:
    def step(state: Any, part: Any) -> Any:
        state = nn.lstm_cell(params, part, state)
        return state, state[0]

    zeros = np.zeros((ROWS, N))
    (hidden, cell), all_hidden = nn.scan(step, (zeros, zeros), x, 1, unroll=unroll)
    return all_hidden.mean(1) + hidden * cell


def gru(params: Any, x: Any, unroll: bool = False) -> Any:
    def step(state: Any, part: Any) -> Any:
        state = nn.gru_cell(params, part, state)
        return state, (state, nn.relu(state))  # results may be nested

    _, (one, other) = nn.scan(step, np.full((ROWS, N), 0.5), x, 1, unroll=unroll)
    return (one * other).sum(1)


def learned_start(params: Any, x: Any, unroll: bool = False) -> Any:
    """What is carried comes in several kinds: numbers, a parameter to begin with, what nothing changes."""

    def step(state: Any, part: Any) -> Any:
        hidden, total, still, _ = state
        new = clipped(part @ params["input"] + hidden @ params["hidden"] + nn.tanh(params["start"]))
        return (new, total + (new**2).sum(), still, hidden), total

    start = (np.ones((ROWS, 1)) * params["start"], 0.5, params["start"], np.zeros((ROWS, N)))
    (hidden, total, still, old), totals = nn.scan(step, start, x, 1, unroll=unroll)
    return hidden * still + old + totals.mean() + total


def nested(params: Any, x: Any, unroll: bool = False) -> Any:
    """A scan in a scan; the inner one carries what the outer one does, and both leave rows."""

    def outer(state: Any, part: Any) -> Any:
        def inner(hidden: Any, column: Any) -> Any:
            hidden = nn.tanh(hidden @ params["hidden"] + column[:, None] * params["start"])
            return hidden, hidden * state[1]

        hidden, rows = nn.scan(inner, state[0], part, 1, unroll=unroll)
        return (hidden, nn.tanh(rows.sum(0))), rows.mean(0)

    zeros = np.zeros((ROWS, N))
    (hidden, other), rows = nn.scan(outer, (zeros, zeros + 1.0), x, 1, unroll=unroll)
    return hidden + other * rows.sum(1)


def again(params: Any, x: Any, unroll: bool = False) -> Any:
    """A part of the body is made again, and what it reads of the body besides its state is kept."""

    def cell(state: Any, part: Any) -> Any:
        return nn.dropout(nn.gru_cell({key: params[key] for key in GRU}, part, state), 0.25)

    def step(state: Any, part: Any) -> Any:
        state = nn.checkpoint(cell)(state, nn.tanh(part) * part)
        return state, nn.relu(state)

    _, rows = nn.scan(step, np.zeros((ROWS, N)), x, 1, unroll=unroll)
    return rows.mean(1)


def sums_alone(params: Any, x: Any, unroll: bool = False) -> Any:
    """What is made again reads a state that no gradient reads; another carry is the same value, but for a cast."""

    def cell(state: Any, part: Any) -> Any:
        return nn.tanh(part @ params["input"] + state)

    def step(state: Any, part: Any) -> Any:
        hidden = nn.checkpoint(cell)(state[0] + 0.5 * state[1], part) + params["start"]
        return (hidden, nn.convert(hidden, "float32")), nn.relu(hidden)

    zeros = np.zeros((ROWS, N))
    _, rows = nn.scan(step, (zeros, zeros), x, 1, unroll=unroll)
    return rows.mean(1)


def both_ways(params: Any, x: Any, unroll: bool = False) -> Any:
    def step(state: Any, part: Any) -> Any:
        state = nn.tanh(part @ params["input"] + state @ params["hidden"])
        return state, state

    _, there = nn.scan(step, np.zeros((ROWS, N)), x, 1, unroll=unroll)
    _, back = nn.scan(step, np.zeros((ROWS, N)), x, 1, reverse=True, unroll=unroll)
    return (there * back).mean(1)


MODELS: dict[str, tuple[Model, Any]] = {
    "lstm": (lstm, LSTM),
    "gru": (gru, GRU),
    "learned start": (learned_start, PLAIN),
    "nested": (nested, PLAIN),
    "both ways": (both_ways, PLAIN),
    "again": (again, GRU),
    "sums alone": (sums_alone, PLAIN),
}
X = array(ROWS, PLACES, INPUTS)


def scalar(model: Model, unroll: bool = False) -> Any:
    return lambda params, x: (model(params, x, unroll) ** 2).sum()


DRAWN = {"again"}  # with a dropout, for which there is no derivative by hand


@pytest.mark.parametrize("name", sorted(MODELS.keys() - DRAWN))
def test_values_and_gradients_are_those_of_the_places_one_after_another(name: str) -> None:
    model, params = MODELS[name]
    for wanted in (lambda f: lambda p, x: f(p, x), lambda f: lambda x, p: f(p, x)):
        arguments = (params, X) if wanted(lambda p, x: p is params)(params, X) else (X, params)
        one, other = (value_and_grad(wanted(scalar(model, unroll)))(*arguments) for unroll in (False, True))
        assert flatten(one)[1] == flatten(other)[1]
        for a, b in zip(flatten(one)[0], flatten(other)[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted(MODELS.keys() - DRAWN))
def test_a_gradient_is_differentiated_again(name: str) -> None:
    """The scan of a gradient goes back, that of its gradient forward."""
    model, params = MODELS[name]
    if name == "learned start":
        pytest.skip("its gradient is given, and clips")

    def norm(unroll: bool) -> Any:
        def of(p: Any) -> Any:
            return sum((leaf**2).sum() for leaf in flatten(value_and_grad(scalar(model, unroll))(p, X)[1])[0])

        return value_and_grad(of)(params)

    for a, b in zip(flatten(norm(False))[0], flatten(norm(True))[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def narrow(tree: Any) -> Any:
    leaves = {name: np.float32(leaf) for name, leaf in tree.items()}
    return leaves | {"out": np.float32(np.arange(N * 3).reshape(N, 3) / 8)}


def loss_of(name: str, dropout: bool = False) -> Any:
    model, _ = MODELS[name]

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        own = {key: leaf for key, leaf in params.items() if key != "out"}
        hidden = model(own, nn.dropout(x, 0.25) if dropout else x, False)
        return nn.softmax_cross_entropy(hidden @ params["out"], y)

    return loss


def step_of(
    name: str, precision: str, rounds: int, *, branch: bool, streamed: Any, again: bool
) -> tuple[Block, list[Any]]:
    """A typed step, and inputs for it."""
    rng, params, optimizer = np.random.default_rng(rounds), narrow(MODELS[name][1]), Adam(0.01)
    x = rng.normal(size=(ROWS * rounds, PLACES, INPUTS)).astype(np.float32)
    batch, table = (x, rng.integers(0, 3, ROWS * rounds).astype(np.int32)), Precision.parse(precision)
    ideal = step_block(
        loss_of(name, True), optimizer, params, batch, micro_batches=rounds, scaled=branch,
        running_mean=table.running_mean,
    )  # fmt: skip
    block = streaming(table.apply(ideal), streamed)
    block = guarded(block) if branch else block
    block = with_checkpoints(block, lambda part: again)
    state = table.cast_state(block, initial_state(params, optimizer))
    numbers = [np.float32(0.05), np.float32(64)] if branch else [np.float32(0.05)]
    return verify(recompute(block) if again else block), [*flatten((state, batch))[0], *numbers]


@examples(quick=8, slow=200)
@example("again", "fp16.16/stochastic", 1, False, (), False, True, True, 0)
@example("sums alone", "fp32.32", 1, False, (), True, True, True, 0)
@example("nested", "fp8.16/delayed", 2, True, (), True, True, True, 0)
@example("lstm", "fp16.16/stochastic", 3, True, ("optimizer.*",), True, False, False, 1)
@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(["fp32.32", "fp16.16/stochastic", "mlperf-bert-pod16", "fp8.16/delayed"]),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([(), ("optimizer.*",), ("params.*", "optimizer.*")]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**63),
)
def test_every_way_to_run_a_step_gives_the_bits_of_the_plain_walk(
    name: str, precision: str, rounds: int, branch: bool, streamed: Any, overlap: bool, again: bool, fine: bool,
    seed: int,
) -> None:  # fmt: skip
    target = Target("c600", tiles=7) if precision.startswith("fp8") else TARGET
    block, inputs = step_of(name, precision, rounds, branch=branch, streamed=streamed, again=again)
    plain, _ = step_of(name, precision, rounds, branch=branch, streamed=streamed, again=False)
    if branch and not fine:
        inputs[-1] = np.float32(np.inf)
    orders, key = choose_accumulations(block, OrderRule.of(target)), Key(seed)
    expected = [x.tobytes() for x in evaluate_flat(block, inputs, "declared", key=key, accumulations=orders)]
    if again:  # the copies have the order of what they are copied of, by which it is pinned
        own = {number: order for number, order in orders.items() if number in {e.number for e in equations_of(plain)}}
        walked = evaluate_flat(plain, inputs, "declared", key=key, accumulations=own)
        assert [x.tobytes() for x in walked] == expected
    if branch and not fine:
        assert expected[: block.carried] == [x.tobytes() for x in inputs[: block.carried]]
    for one in (block, scheduled(block, target)):
        assert [x.tobytes() for x in Executable(verify(one), orders).run(inputs, key)] == expected
    machine = Machine.build(one, target, orders, overlap=overlap, share=overlap)
    assert [x.tobytes() for x in machine.run(inputs, key)] == expected


def scan_of(block: Block) -> Scan:
    (found,) = (scan for scan, _ in regions_of(block, Scan))
    return found


@pytest.mark.parametrize("precision", ["fp16.16/stochastic", "fp32.32"])
def test_place_i_draws_what_its_body_draws_with_the_key_of_i(precision: str) -> None:
    """The body of a place as a Block of its own, run with that key: so a scan can be written out by hand."""
    params, x = narrow(LSTM), np.float32(array(ROWS, 5, INPUTS))
    own = {key: leaf for key, leaf in params.items() if key != "out"}
    typed = Precision.parse(precision).apply(trace(lambda p, x: nn.lstm(p, x), own, x))
    inputs = [cast(leaf, var.type.format) for leaf, var in zip(flatten((own, x))[0], typed.inputs, strict=True)]
    scan, key, made = scan_of(typed), Key(7), dict[Any, Any]()
    before = [equation for equation in typed.equations if equation.region is None]
    first = Block(typed.inputs, scan.body.inputs[len(scan.own) :], tuple(before[: _place(typed)]))
    made |= zip(first.outputs, Executable(first).run(inputs, key), strict=True)
    for (old, _), start in zip(scan.carries, scan.starts, strict=True):
        assert isinstance(start, Literal)
        made[old] = np.full(old.type.shape, start.value, dtype(old))
    for number in range(5):
        made[scan.place] = np.array([number], np.int32)
        own_key = key if number == 0 else key.fold_in((1 << 32) + number)
        results = Executable(scan.body).run([made[var] for var in scan.body.inputs], own_key)
        values = dict(zip(scan.body.outputs, results, strict=True))
        made |= {old: values[new] for old, new in scan.carries}
    results = Executable(typed).run(inputs, key)
    for name, wanted in zip(typed.outputs[1:], results[1:], strict=True):
        (old,) = (old for old, new in scan.carries if new is name)
        assert made[old].tobytes() == wanted.tobytes()
    if precision == "fp32.32":
        return
    other = Executable(typed).run(inputs, Key(8))
    assert any(a.tobytes() != b.tobytes() for a, b in zip(results, other, strict=True))


def _place(block: Block) -> int:
    return next(at for at, equation in enumerate(block.equations) if equation.region is not None)


def dtype(var: Any) -> Any:
    return cast(np.zeros(1, np.float32), var.type.format).dtype


def test_places_add_no_equations_and_only_rows_to_what_is_kept() -> None:
    def step(places: int) -> Block:
        x = np.zeros((ROWS, places, INPUTS), np.float32)
        return step_block(loss_of("lstm"), Sgd(0.1), narrow(LSTM), (x, np.zeros(ROWS, np.int32)))

    few, many = step(2), step(1000)
    assert len(equations_of(few)) == len(equations_of(many)) < 200
    assert [scan.count for scan, _ in regions_of(many, Scan)] == [1000, 1000]
    forward, back = (scan for scan, _ in regions_of(many, Scan))
    assert (forward.backwards, back.backwards) == (False, True)
    # gates, candidate, cell and its tanh, and the two states before; results of the mean besides
    assert len(left_rows(forward)) == 4 + 1 + 2 + 1


def test_what_no_place_changes_is_computed_once() -> None:
    """Also casts that a precision adds, which would draw anew at every place."""
    block = Precision.parse("fp16.16/stochastic").apply(
        step_block(loss_of("learned start"), Sgd(0.1), narrow(PLAIN), (np.float32(X), np.zeros(ROWS, np.int32)))
    )
    inside = {e.number for scan, _ in regions_of(block, Scan) for e in scan.body.equations}
    once = [e for e in equations_of(block) if e.op == "tanh" and e.parameter == "start" and e.drawn is None]
    assert [e.number in inside for e in once] == [False]
    for scan, _ in regions_of(block, Scan):
        made = {*scan.own, *(var for e in scan.body.equations for var in e.outputs)}
        for equation in scan.body.equations:
            assert made & {*equation.operands} or equation.output in {new for _, new in scan.carries}, equation.name


def test_a_result_that_nobody_reads_is_not_kept() -> None:
    def last(params: Any, x: Any) -> Any:
        return nn.lstm(params, x)[1][0]

    block = trace(last, LSTM, X)
    scan = scan_of(block)
    assert not left_rows(scan)
    assert len(scan.carries) == 2


def test_micro_batches_are_around_scans() -> None:
    block, _ = step_of("nested", "fp16.16/stochastic", 2, branch=True, streamed=(), again=False)
    around, *scans = (step for _, step in regions_of(block, Loop))
    assert len(scans) == 4
    assert all(around.first <= scan.first < scan.last <= around.last for scan in scans)


def test_a_profile_counts_every_place() -> None:
    def cycles(places: int) -> int:
        x = np.zeros((ROWS, places, INPUTS), np.float32)
        loop = TrainLoop(loss_of("gru"), narrow(GRU), (x, np.zeros(ROWS, np.int32)), optimizer=Sgd(0.1),
                         precision="fp16.32", engine="tiles", target=TARGET)  # fmt: skip
        return loop.profile.cycles

    one, two, three = (cycles(places) for places in (100, 200, 300))
    assert two - one == pytest.approx(three - two, rel=0.01)
    assert two - one > 50 * 100 * 4


def test_on_arrays_and_with_one_place_it_is_no_loop() -> None:
    assert not regions_of(trace(lambda p, x: nn.lstm(p, x)[0], LSTM, X[:, :1]), Scan)
    assert not regions_of(trace(lambda p, x: lstm(p, x, True), LSTM, X), Scan)
    plain = lstm(LSTM, X)
    np.testing.assert_allclose(evaluate(trace(lstm, LSTM, X), LSTM, X), plain, rtol=1e-12)


def test_whole_numbers_are_carried_and_left() -> None:
    table, start = np.array([3, 0, 2, 1], np.int32), np.array([2], np.int32)

    def walk(table: Any, start: Any, x: Any) -> Any:
        def step(at: Any, part: Any) -> Any:
            return table[at], (at, part * 2.0)

        return nn.scan(step, start, x)

    x = np.float32(array(6, 2))
    block = trace(walk, table, start, x)
    assert len([*regions_of(block, Scan)]) == 1
    at, (seen, twice) = evaluate(block, table, start, x)
    assert seen[:, 0].tolist() == [2, 2, 2, 2, 2, 2]
    assert at.tolist() == [2]
    np.testing.assert_array_equal(twice, 2 * x)
    results = Executable(block).run([table, start, x], 0)
    tiles = Machine.build(block, TARGET).run([table, start, x], 0)
    for one, other in zip(results, tiles, strict=True):
        assert one.tobytes() == other.tobytes()


def grows(state: Any, part: Any) -> Any:
    return np.concatenate([state, part[None]]), part


@pytest.mark.parametrize(
    "f, state, x, error, words",
    [
        (grows, np.zeros((1, 2)), X[0], ValueError, "shape"),
        (lambda s, p: ((s, s), p), np.zeros(2), X[0], ValueError, "nest"),
        (lambda s, p: s, np.zeros(2), X[0], TypeError, "new state, result"),
        (lambda s, p: (p.sum(), p), np.zeros((), np.int32), X[0], TypeError, "whole numbers or floats"),
        (lambda s, p: (s, p), np.zeros(2), X[0, :0], ValueError, "one place at least"),
        (lambda s, p: (s, p["a"]), np.zeros(2), {"a": X[0], "b": X[0, :3]}, ValueError, "as many in every array"),
        (lambda s, p: (nn.scale(s + p, 1.0, 2.0), p), np.zeros(2), X[0], ValueError, "unroll=True"),
    ],
)  # fmt: skip
def test_what_is_no_scan_is_refused_in_words(f: Any, state: Any, x: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        value_and_grad(trace(lambda x: sum(leaf.sum() for leaf in flatten(nn.scan(f, state, x))[0]), x))


def test_a_malformed_scan_is_no_program() -> None:
    block = trace(lstm, LSTM, X)
    at = _place(block)
    equation, scan = block.equations[at], scan_of(block)

    def other(**changes: Any) -> Block:
        new: Equation = replace(equation, region=replace(scan, **changes))
        return replace(block, equations=(*block.equations[:at], new, *block.equations[at + 1 :]))

    verify(other())
    wrong = [
        {"count": 0},
        {"starts": scan.starts[1:]},
        {"starts": (scan.body.inputs[-1], *scan.starts[1:])},
        {"carries": ((scan.carries[0][0], scan.carries[0][0]), *scan.carries[1:])},
    ]
    for changes in wrong:
        with pytest.raises(InvalidBlock):
            verify(other(**changes))


def test_a_mask_is_drawn_at_every_place_also_of_what_no_place_changes() -> None:
    def dropped(still: Any, x: Any) -> Any:
        return nn.scan(lambda state, part: (state + part, nn.dropout(still, 0.5)), np.zeros(40), x)[1]

    ones, x = np.ones(40, np.float32), np.zeros((6, 40), np.float32)
    rows = Executable(trace(dropped, ones, x)).run([ones, x], 3)[0]
    assert len({row.tobytes() for row in rows}) == 6


def test_a_run_with_a_scan_is_watched_and_blamed() -> None:
    batch = np.float32(X), np.zeros(ROWS, np.int32)
    how: Any = {"optimizer": Sgd(0.1), "precision": "fp16.16/stochastic", "watch": Watch(every=1)}
    loop = TrainLoop(loss_of("lstm"), narrow(LSTM), batch, **how)
    loop.run([batch] * 2, 2)
    assert loop.watched is not None
    assert "hidden" in str(loop.watched)
    assert str(blame(loop, [batch], 1))


def test_two_carries_that_become_one_value_have_memory_of_their_own() -> None:
    x = np.float32(array(4, 3))

    def twice(x: Any) -> Any:
        return nn.scan(lambda state, part: ((state[1] + part,) * 2, state[0]), (x[0], x[1]), x)

    block = verify(trace(twice, x))
    news = [new for _, new in scan_of(block).carries]
    assert len({*news}) == len(news)
    wanted = evaluate(block, x, arithmetic="declared")
    for one, other in zip(flatten(wanted)[0], Executable(block).run([x], 0), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("which", ["made inside", "state before", "of the first tracing", "inside the inner one"])
def test_a_value_of_the_body_that_is_read_outside_is_refused(which: str) -> None:
    """Its gradient would be zero, and what it is would depend on the engine."""
    found: list[Any] = []

    def step(state: Any, part: Any) -> Any:
        new = nn.tanh(state + part)
        found.append(state if which == "state before" else new * 2.0)
        return new, new

    def outer(state: Any, part: Any) -> Any:
        state, _ = nn.scan(step, state, part)
        return (state + found[-1] if which == "inside the inner one" else state), state

    def loss(x: Any) -> Any:
        last, _ = nn.scan(outer, x[0, 0], x)
        leaked = 0.0 if which == "inside the inner one" else found[0 if which == "of the first tracing" else -1]
        return (last + leaked).sum()

    with pytest.raises(ValueError, match="part of its new state or of its result"):
        value_and_grad(loss)(array(3, 4, 2))


def test_a_gradient_that_is_given_may_be_a_scan() -> None:
    """Also one that is made by differentiating a scan, of a weight and an input, in a step on both engines."""

    def model(params: Any, x: Any, unroll: bool) -> Any:
        def run(w: Any, x: Any) -> Any:
            return nn.scan(lambda s, part: ((new := nn.tanh(s @ w + part)), new), np.zeros((ROWS, N)), x, 1,
                           unroll=unroll)[1]  # fmt: skip

        def backward(kept: Any, dy: Any) -> Any:
            return value_and_grad(lambda both, dy: (run(*both) * dy).sum())(kept, dy)[1]

        given = custom_gradient(lambda w, x: (run(w, x), (w, x)), backward)
        return given(params["hidden"], nn.relu(x @ params["input"])).mean(1)

    one, other = (value_and_grad(scalar(model, unroll))(PLAIN, X) for unroll in (False, True))
    for a, b in zip(flatten(one)[0], flatten(other)[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    plain = narrow(PLAIN)
    x, y = np.float32(X), np.zeros(ROWS, np.int32)

    def loss(params: Any, batch: Any) -> Any:
        return nn.softmax_cross_entropy(model(params, batch[0], False) @ params["out"], batch[1])

    how: Any = {"optimizer": Sgd(0.1), "precision": "fp16.16/stochastic", "target": TARGET}
    loops = [TrainLoop(loss, plain, (x, y), engine=engine, **how) for engine in ("direct", "tiles")]
    losses = [[loop.train((x, y)) for _ in range(3)] for loop in loops]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
    roles = {(e.op, e.role, e.parameter) for e in equations_of(loops[0].block) if e.op in ("dot", "add")}
    assert {
        ("dot", "grad_weight", "hidden"),
        ("add", "grad_weight", "hidden"),
        ("dot", "grad_input", "hidden"),
    } <= roles
