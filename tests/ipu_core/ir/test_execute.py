"""Execution: bit for bit what every equation declares, close to the ideal, and refusals of wrong inputs."""

import math
import tracemalloc

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.chip.arrays import LINE
from ipu_core.chip.control import FloatingPointControl
from ipu_core.errors import FloatingPointException
from ipu_core.ir.block import Type
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import PRESETS, Precision
from ipu_core.ir.pytree import flatten, map_leaves, unflatten
from ipu_core.ir.run.evaluate import evaluate as evaluate_nested
from ipu_core.ir.run.evaluate import evaluate_flat as evaluate
from ipu_core.ir.run.execute import Executable, execute
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import apply, broadcast, concatenate, convert, topk
from ipu_core.train.optim import Adam, Lamb, Sgd, nothing
from ipu_core.train.step import initial_state, step_block
from lowprec import Accumulation, Key, float16, matmul
from lowprec.testing import backend

RNG = np.random.default_rng(11)
A, B = RNG.normal(size=(6, 7)).astype(np.float32), RNG.normal(size=(6, 7)).astype(np.float32)
LABELS = RNG.integers(0, 5, 6).astype(np.int32)
KEY = Key(99)


def assert_same_bits(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))


def test_outputs_that_are_not_copied_are_the_same_numbers():
    a, b = (np.random.default_rng(n).normal(size=(6, 7)).astype(np.float32) for n in (0, 1))
    program = Executable(trace(lambda a, b: [a, a.T, (a + b).T, nn.softmax(a), 2.0 * b], a, b))
    for x, y in ((a, b), (b, a)):
        own = [result.copy() for result in program.run([x, y], 0, copied=False)]
        assert_same_bits(own, program.run([x, y], 0))
    first = program.run([a, b], 0, copied=False)[3]
    assert first is program.run([b, a], 0, copied=False)[3]  # the memory of the run


def index(a, b):
    """int32 numbers that a program makes."""
    return np.where(a > b, LABELS[:, None], -1)


PROGRAMS = {
    "functions": lambda a, b: [apply(op, a) for op in ("exp", "tanh", "erf", "sigmoid", "sin", "cos", "gelu",
                                                      "gelu_gradient", "square", "negative", "absolute", "relu",
                                                      "step")],
    "positive": lambda a, b: [apply(op, abs(a) + 0.1) for op in ("log", "sqrt", "rsqrt", "reciprocal")],
    "pairs": lambda a, b: [apply(op, a, b) for op in ("add", "subtract", "multiply", "divide", "maximum", "minimum",
                                                      "greater", "equal", "fmod")],
    "whole numbers": lambda a, b: [apply("floor", 9 * a), apply("rint", 9 * b), 9 * a // b, 9 * a % b, round(a, 1)],
    "three": lambda a, b: [apply("select", a > 0, a, b), apply("scaled_add", a, b, 0.3), a + a[0, 0] * b],
    "sums": lambda a, b: [a.sum(), a.sum(0), a.sum(1, keepdims=True), b.mean(), a.reshape(2, 3, 7).sum((0, 2))],
    "maxima": lambda a, b: [a.max(), a.max(0), b.max(1, keepdims=True), a.reshape(2, 3, 7).max((0, 2))],
    "products": lambda a, b: [a @ b.T, a.T @ b, a.reshape(2, 3, 7) @ b.reshape(2, 3, 7).transpose(0, 2, 1),
                              a[::2, 1:] @ b.T[1:, ::2]],
    "moves": lambda a, b: [a.T.reshape(6, 7), a[1:5:2, ::3], np.broadcast_to(a[0], (3, 7)), concatenate([a, b[:2]]),
                           apply("pad", a, low=(1, 0), high=(0, 2), interior=(1, 0)), a.T.reshape(-1).reshape(7, 6).T],
    "indices": lambda a, b: [a[LABELS], apply("one_hot", LABELS, classes=5), apply("scatter_add", LABELS, b, rows=7),
                             a[LABELS].T @ b],
    "integers": lambda a, b: [a * (broadcast(LABELS[:, None], (6, 7)) == index(a, b)), index(a, b) > 0,
                               a[np.maximum(index(a, b), 0)[0]], convert(index(a, b), "float16")],
    "largest": lambda a, b: [*topk(a * b, 3), topk(a > b, 7)[1], topk(b, 1, largest=False)[1],
                             apply("put_along", topk(a, 2)[1], b[:, :2], size=8)],
    "layers": lambda a, b: [nn.softmax(a @ b.T), nn.log_softmax(a), nn.layer_norm(a, b[0], b[1]),
                            nn.softmax_cross_entropy(a, LABELS), nn.mse(a, b)],
    "outputs that are inputs, views or constants": lambda a, b: [a, a.T, (a + b).T, 2.0, a[0]],
}  # fmt: skip
SPECS = ["fp32.32", "fp16.32", "fp16.32/stochastic", "fp16.16/nearest", "fp16.16/stochastic",
         "fp16.16/stochastic/operands=bfloat16/partials=bfloat16"]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_execute_is_declared_bit_for_bit(name, spec):
    block = Precision.parse(spec).apply(trace(PROGRAMS[name], A, B))
    got = Executable(block).run([A, B], KEY)
    assert_same_bits(got, evaluate(block, [A, B], "declared", key=KEY))
    with backend("reference"):
        assert_same_bits(got, evaluate(block, [A, B], "declared", key=KEY))


SIZES = (8, 12, 3)
PARAMS = nn.mlp_parameters(4, SIZES)
BATCH = (RNG.normal(size=(16, 8)).astype(np.float32), RNG.integers(0, 3, 16).astype(np.int32))


def loss(params, batch):
    return nn.softmax_cross_entropy(nn.mlp(params, batch[0], nn.gelu), batch[1])


def typed_step(spec, optimizer):
    precision = Precision.parse(spec)
    block = precision.apply(step_block(loss, optimizer, PARAMS, BATCH))
    return block, flatten(precision.cast_state(block, initial_state(PARAMS, optimizer)))[0]


@pytest.mark.parametrize("spec", [name + "/" + r for name in PRESETS for r in ("nearest", "stochastic")])
def test_training_steps_are_declared_bit_for_bit(spec):
    block, state = typed_step(spec, Lamb(weight_decay=0.01))
    program = Executable(block)
    declared = state
    for step in range(3):
        key = KEY.fold_in(step)
        *state, _ = outputs = program.run([*state, *BATCH, 0.01], key)
        declared = evaluate(block, [*declared, *BATCH, np.float32(0.01)], "declared", key=key)
        assert_same_bits(outputs, declared)
        declared = declared[:-1]


@pytest.mark.parametrize("optimizer", [Sgd(), Sgd(momentum=0.9), Adam()])
def test_float32_follows_the_ideal_for_50_steps(optimizer):
    block, state = typed_step("fp32.32", optimizer)
    ideal, program = list(state), Executable(block)
    for step in range(50):
        *state, value = program.run([*state, *BATCH, 0.1 if isinstance(optimizer, Sgd) else 0.01], step)
        *ideal, wanted = evaluate(block, [*ideal, *BATCH, 0.1 if isinstance(optimizer, Sgd) else 0.01])
        assert value == pytest.approx(wanted, rel=1e-4)
    assert value < 0.8


def test_runs_are_repeatable_and_outputs_are_new_arrays():
    block, state = typed_step("fp16.16/stochastic", Sgd())
    program = Executable(block)
    first = program.run([*state, *BATCH, 0.1], 5)
    kept = [x.copy() for x in first]
    other = program.run([*state, *BATCH, 0.1], 6)
    assert_same_bits(first, kept)
    assert_same_bits(program.run([*state, *BATCH, 0.1], 5), kept)
    assert any((a != b).any() for a, b in zip(other, kept, strict=True))


@pytest.mark.parametrize("optimizer", [Sgd(), Adam()])
def test_steps_go_on_from_the_state_that_is_held(optimizer):
    block, state = typed_step("fp16.16/stochastic", optimizer)
    program, held = Executable(block), Executable(block)
    held.write(state)
    for step in range(4):
        *state, value = program.run([*state, *BATCH, 0.1], step)
        assert held.step(BATCH, 0.1, step) == value
        assert_same_bits(held.read(), state)
    with pytest.raises(ValueError, match="inputs, 1 were given"):
        held.write(state[:1])


STATES = {
    "exchanged": lambda s, lr: ([s[1], s[0]], ((s[0] - s[1]) * lr).sum()),
    "handed on": lambda s, lr: ([s[0] * lr, s[0]], s[0].sum()),
    "twice the same": lambda s, lr: ([(new := s[0] + s[1] * lr), new], new.sum()),
    "seen otherwise": lambda s, lr: ([s[1].T.T, s[0].reshape(42).reshape(6, 7)], s[0][0, 0] * lr),
    "given out as it was": lambda s, lr: ([s[0] * 2.0, s[1] + lr], s[1][0, 0]),
}


@pytest.mark.parametrize("name", STATES)
def test_new_state_lies_where_the_old_did_and_meets_no_half_written_array(name):
    block = trace(STATES[name], [A, B], np.float32(0), carry=True)
    program, held, state = Executable(block), Executable(block), [A, B]
    held.write(state)
    for _ in range(3):
        wanted = evaluate(block, [*state, np.float32(0.5)], "declared")
        assert_same_bits(program.run([*state, 0.5], 0), wanted)
        *state, value = wanted
        assert held.step([], 0.5, 0) == value
        assert_same_bits(held.read(), state)


def test_a_step_that_raises_an_exception_leaves_the_old_state():
    def step(s, b, lr):
        return [s[0] + b, s[1] * 1e30], s[0].sum() * lr

    block = trace(step, [A, B], A, np.float32(0), carry=True)
    program = Executable(block, control=FloatingPointControl(oflo=True))
    program.write([A, B])
    program.step([A], 1.0, 0)
    once = program.read()
    with pytest.raises(FloatingPointException):
        program.step([A], 1.0, 0)
    assert_same_bits(program.read(), once)


@pytest.mark.parametrize("op", ["scatter_add", "put_along"])
def test_sums_at_indices_raise_an_enabled_overflow(op):
    indices = np.zeros((6, 2) if op == "put_along" else 6, np.int32)
    about = {"size": 4} if op == "put_along" else {"rows": 4}
    large = np.full((6, 2), 3e38, np.float32)
    block = trace(lambda i, x: apply(op, i, x, **about), indices, large)
    assert np.isinf(execute(block, indices, large, key=0, control=FloatingPointControl(inv=True))).any()
    with pytest.raises(FloatingPointException, match=f"{op}: overflow: a result of at least"):
        execute(block, indices, large, key=0, control=FloatingPointControl(oflo=True))


def test_buffers_are_shared_where_lifetimes_do_not_meet():
    def chain(x):
        for _ in range(10):
            x = np.tanh(x) + x
        return x

    block = trace(chain, A)
    one = math.ceil(A.nbytes / LINE) * LINE  # each begins at a cache line
    for chained, most in ((False, 3 * one), (True, 2 * one)):  # in a chain a sum is written over what it is made of
        program = Executable(block, chained=chained)
        assert program.bytes == most
        assert_same_bits(program.run([A], 0), evaluate(block, [A], "declared"))


def test_an_observer_sees_every_update():
    block, state = typed_step("fp16.16/stochastic", Sgd())
    seen = {}

    def observe(equation, operands, result):
        if equation.role == "update":
            seen[equation.parameter] = (*(np.array(x) for x in operands), result.copy())

    *new, _ = Executable(block).run([*state, *BATCH, 0.1], KEY, observe)
    assert sorted(seen) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    for old, updated, (weight, direction, scale, result) in zip(
        state, new, (seen[k] for k in sorted(seen)), strict=True
    ):
        assert_same_bits([weight, result], [old, updated])
        assert direction.dtype == np.float16
        assert scale == np.float32(-0.1)


def test_accumulations_order_the_sums():
    block = Precision.parse("fp16.16/nearest").apply(trace(lambda a, b: (a @ b).sum(), A, B.T))
    numbers = {e.op: e.number for e in block.equations}
    plain = Executable(block).run([A, B.T], KEY)
    for op, size in {"dot": 7, "reduce_sum": 36}.items():
        orders = {numbers[op]: Accumulation(group=1, splits=3)}
        changed = Executable(block, orders).run([A, B.T], KEY)
        assert_same_bits(changed, evaluate(block, [A, B.T], "declared", key=KEY, accumulations=orders))
        assert changed[0] != plain[0], (op, size)
    with pytest.raises(ValueError, match=r"not in the block: \[77\]"):
        Executable(block, {77: Accumulation()})


@pytest.mark.parametrize("spec, accumulate", [("fp16.32/nearest", "float32"), ("fp16.16/nearest", "float16")])
def test_products_add_in_the_partials_of_the_precision(spec, accumulate):
    a, b = RNG.normal(size=(5, 200)).astype(np.float16), RNG.normal(size=(200, 4)).astype(np.float16)
    block = Precision.parse(spec).apply(trace(lambda a, b: a @ b, a, b))
    order = Accumulation(group=16, splits=3)
    numbers = [e.number for e in block.equations if e.op == "dot"]
    [got] = Executable(block, dict.fromkeys(numbers, order)).run([a, b], KEY)
    wanted, other = (
        matmul(a, b, accumulate=partials, splits=3, out_format="float16")
        for partials in (accumulate, "float16" if accumulate == "float32" else "float32")
    )
    assert_same_bits([got.astype(np.float16)], [wanted])
    assert (wanted != other).any()


def test_execute_takes_and_gives_trees():
    block = trace(lambda p, x: {"y": p["a"] + x, "z": (x, p["b"])}, {"a": A, "b": B}, A)
    for result in (execute(block, {"a": A, "b": B}, B, key=0), evaluate_nested(block, {"a": A, "b": B}, B)):
        np.testing.assert_allclose(result["y"], A + B, rtol=1e-6)
        np.testing.assert_array_equal(result["z"][1], B)
    with pytest.raises(ValueError, match="unknown arithmetic 'fast'; there are exact, declared"):
        evaluate_nested(block, {"a": A, "b": B}, B, arithmetic="fast")


def test_inputs_are_checked():
    program = Executable(trace(lambda a, s, i: (a + s)[i], A, np.float32(0), LABELS))
    np.testing.assert_array_equal(program.run([A, 1, LABELS.astype(np.int64)], 0)[0], (A + 1)[LABELS])
    np.testing.assert_array_equal(program.run([A.T.copy().T, 1.0, LABELS], 0)[0], (A + 1)[LABELS])
    for inputs, error, message in [
        ([A, 1], ValueError, "3 inputs, 2 were given"),
        ([A.T, 1, LABELS], ValueError, r"input %a must have shape \(6, 7\), not \(7, 6\)"),
        ([A.astype(np.float64), 1, LABELS], TypeError, "input %a must be float32, not float64"),
        ([A, 1, LABELS.astype(np.float32)], TypeError, "input %i must be int32, not float32"),
        ([A, 1, LABELS + 9], IndexError, "out of bounds"),
    ]:
        with pytest.raises(error, match=message):
            program.run(inputs, 0)


@pytest.mark.parametrize("indices, fine", [([0, -6, 5], True), ([[-1], [2]], True), ([6, 0], False), ([0, -7], False)])
def test_rows_are_looked_up_as_numpy_does(indices, fine):
    indices = np.array(indices, np.int32)
    for table in (A, A.astype(np.float16)):
        program = Executable(trace(lambda a, i: (a[i], a.T[i]), table, indices))
        if fine:
            assert_same_bits(program.run([table, indices], 0), [table[indices], table.T[indices]])
        else:
            with pytest.raises(IndexError, match="out of bounds for 6 rows"):
                program.run([table, indices], 0)


def test_a_step_allocates_no_arrays():
    rows, width = 512, 256
    x = RNG.normal(size=(rows, width)).astype(np.float32)
    params = {"weight": RNG.normal(size=(width, width)).astype(np.float32) / 16, "table": x.copy()}
    batch = (x, RNG.integers(0, width, rows).astype(np.int32))

    def model(params, batch):
        y = nn.embedding(params["table"], batch[1]) @ params["weight"]
        y = concatenate(
            [y[:256] * batch[0][:256], y[256:].reshape(4, 64, width).transpose(1, 0, 2).reshape(256, width)]
        )
        return nn.softmax_cross_entropy(nn.layer_norm(y, params["weight"][0], params["weight"][1]), batch[1])

    precision, optimizer = Precision.parse("fp16.16/stochastic"), Adam()
    block = precision.apply(step_block(model, optimizer, params, batch))
    assert {"pad", "gather", "scatter_add", "concatenate", "one_hot"} <= {e.op for e in block.equations}
    program = Executable(block)
    program.write(flatten(precision.cast_state(block, initial_state(params, optimizer)))[0])
    program.step(batch, 0.1, 0)
    tracemalloc.start()
    program.step(batch, 0.1, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows * width  # bytes: less than any array, more than NumPy buffers


@pytest.mark.parametrize("spec", ["fp32.32", "fp16.16/stochastic"])
def test_sums_over_parted_axes_allocate_no_arrays(spec):
    x = RNG.normal(size=(32, 4, 32, 4, 8)).astype(np.float32)
    function = lambda x: [x.sum((1, 3)), x.max((1, 3)), (x + 1.0).sum((0, 2)), x[1:, :, ::2].sum((1, 4))]  # noqa: E731
    block = Precision.parse(spec).apply(trace(function, x))
    program = Executable(block)
    for given in (x, -x):
        assert_same_bits(program.run([given], KEY), evaluate(block, [given], "declared", key=KEY))
    tracemalloc.start()
    program.feed([x], KEY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.size


@pytest.mark.parametrize("count", [1, 8])
def test_what_sums_copy_on_their_way_takes_the_memory_of_one(count):
    x = np.ones((32, 64, 128), np.float32)
    block = trace(lambda x: [(x * (1.0 + n)).sum((0, 2)) for n in range(count)], x)
    tracemalloc.start()
    program = Executable(block)
    program.feed([x], KEY)
    held = tracemalloc.get_traced_memory()[0] - program.bytes
    tracemalloc.stop()
    assert held < 2.5 * x.nbytes  # the input and one copy


def test_stochastic_rounding_needs_a_key():
    block = Precision.parse("fp16.16/stochastic").apply(trace(lambda a: np.exp(a), A))
    with pytest.raises(ValueError, match="key"):
        evaluate(block, [A], "declared")


def test_arrays_are_computed_with_as_their_format_declares():
    half = A.astype(np.float16)
    assert_same_bits([np.asarray(nn.exp(half))], [np.exp(A.astype(np.float16).astype(np.float64)).astype(np.float16)])
    block = trace(lambda x: nn.tanh(x) @ x.T, Type(A.shape, float16))
    assert_same_bits([nn.matmul(nn.tanh(half), half.T)], execute_all(block, [half]))
    assert nn.softmax(half).dtype == np.float16
    assert nn.softmax_cross_entropy(half, LABELS).dtype == np.float32
    assert convert(A, "float16").dtype == np.float16


def execute_all(block, inputs):
    return Executable(block).run(inputs, 0)


@pytest.mark.parametrize("scale", [2.0**-7, 2.0**9])
def test_a_scaled_state_is_the_same_mathematics_bit_for_bit(scale):
    losses = []
    for optimizer in (Lamb(weight_decay=0.01), Lamb(weight_decay=0.01, scaled_state=scale)):
        block, state = typed_step("fp32.32", optimizer)
        program = Executable(block)
        for step in range(20):
            *state, value = program.run([*state, *BATCH, 0.02], step)
        params = state[-len(flatten(PARAMS)[0]) :]
        losses.append([np.asarray(value), *params])
    assert_same_bits(*losses)


def test_lamb_in_float32_is_optax():
    optax = pytest.importorskip("optax")
    from tests.ipu_core.frontends.jax_peer import compiled

    block, state = typed_step("fp32.32", Lamb(weight_decay=0.01, exclude=nothing, ratio_one=nothing))
    program, shape = Executable(block), flatten(PARAMS)[1]
    gradient_of = Executable(trace(value_and_grad(loss), PARAMS, BATCH))
    reference = optax.lamb(1.0, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01)
    params = unflatten(shape, [np.asarray(x, np.float32) for x in flatten(PARAMS)[0]])
    memory = reference.init(params)

    @compiled
    def update(gradients, memory, params):
        updates, memory = reference.update(gradients, memory, params)
        return optax.apply_updates(params, map_leaves(lambda u: u * 0.02, updates)), memory

    for step in range(20):
        *state, _ = program.run([*state, *BATCH, 0.02], step)
        _, *gradients = gradient_of.run([*(np.asarray(x) for x in flatten(params)[0]), *BATCH], 0)
        params, memory = update(unflatten(shape, list(gradients)), memory, params)
    ours = state[-len(flatten(PARAMS)[0]) :]
    for got, want in zip(ours, flatten(params)[0], strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("nanoo", [False, True])
@pytest.mark.parametrize("spec", ["fp16.32", "fp16.16/nearest"])
def test_halves_overflow_as_the_control_register_says(spec, nanoo):
    large = np.full((2, 3), 300, np.float32)
    block = Precision.parse(spec).apply(trace(lambda a: [a @ a.T, (a * a).sum(), a * a, (a * 200).sum(1)], large))
    control = FloatingPointControl(nanoo=nanoo)
    got = Executable(block, control=control).run([large], 0)
    assert_same_bits(got, evaluate(block, [large], "declared", control=control))
    for result in got:
        assert np.isnan(result).all() if nanoo else (result == 65504).all()


REFUSED = {
    "dot": lambda a, b: a @ b.T,
    "scaled_dot": lambda a, b: apply("scaled_dot", a, b.T, a[0, 0]),
    "conv2d": lambda a, b: nn.conv2d(a.reshape(1, 6, 7, 1), b[:3, :3].reshape(3, 3, 1, 1)),
    "conv2d_input_gradient": lambda a, b: value_and_grad(lambda y, w: nn.conv2d(y, w).sum())(
        a.reshape(1, 6, 7, 1), b[:3, :3].reshape(3, 3, 1, 1)
    )[1],
}


@pytest.mark.parametrize("op", REFUSED)
def test_an_order_that_takes_no_float32_is_refused_before_a_run(op):
    block = trace(REFUSED[op], A, B)
    orders = {equation.number: Accumulation(adder="dot4") for equation in block.equations if equation.op == op}
    assert len(orders) == 1
    with pytest.raises(ValueError, match="adder='dot4' takes significands of at most 11 bits"):
        Executable(block, orders)
