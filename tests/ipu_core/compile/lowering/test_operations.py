"""Every operation of a Block on tiles equals `execute`, bit for bit, on few tiles and on many."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import custom_gradient, nn
from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.target import Target
from ipu_core.compile.machine import Machine
from ipu_core.ir.ops import OPS
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import apply, broadcast, elementwise
from lowprec import Collective

X = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float16)
Y = np.random.default_rng(1).normal(size=(6, 10)).astype(np.float32)
BIG = np.random.default_rng(2).normal(size=(3, 5, 24)).astype(np.float16)
IMAGES = np.random.default_rng(3).normal(size=(2, 7, 5, 3)).astype(np.float16)
KERNEL = np.random.default_rng(4).normal(size=(3, 2, 3, 4)).astype(np.float16)
ROWS = np.array([[2, 0], [5, 5]], np.int32)
ONE = np.float32(0.25)
WIRE = Collective("tree", wire="bfloat16", rounding="stochastic")

UNARY = ("negative", "absolute", "relu", "step", "square", "reciprocal", "exp", "tanh", "erf", "sigmoid", "sin", "cos",
         "gelu", "gelu_gradient", "floor", "rint")  # fmt: skip
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "greater", "equal", "fmod")

Case = tuple[Callable[..., Any], tuple[Any, ...]]

CASES: dict[str, Case] = {
    **{op: (lambda x, op=op: elementwise(op, x), (X,)) for op in UNARY},
    **{op: (lambda x, op=op: elementwise(op, elementwise("square", x)), (Y,)) for op in ("sqrt", "rsqrt", "log")},
    **{op: (lambda x, y, op=op: elementwise(op, x, y), (X, Y)) for op in BINARY},
    "select": (lambda x, y: elementwise("select", x > 0, y, 0.0), (X, Y)),
    "scaled_add": (lambda x, y, s: elementwise("scaled_add", x, y, s), (X, Y, ONE)),
    "custom_gradient": (lambda x: custom_gradient(lambda v: (nn.tanh(v), v), lambda kept, dy: (dy,))(x), (X,)),
    "convert": (lambda y: nn.convert(y, "float16"), (Y,)),
    "convert to fp8": (lambda y: nn.convert(y, "float8_e4m3fnuz"), (Y,)),
    "literal first": (lambda x: 2.0 - x, (X,)),
    "scalars": (lambda s: elementwise("exp", s) * 3.0, (ONE,)),
    "transpose": (lambda x: x.T * 2.0, (X,)),
    "transpose out": (lambda x: x.T, (X,)),
    "broadcast rows": (lambda x: broadcast(x, (4, 6, 10)) + 1.0, (X,)),
    "broadcast columns": (lambda x: broadcast(x[:, :1], (6, 10)) * x, (X,)),
    "broadcast of one number": (lambda s: broadcast(s.reshape(1, 1), (6, 10)) * 2.0, (ONE,)),
    "broadcast of two numbers": (lambda s, x: broadcast(s, (6, 10)) + broadcast(x[0, 0], (6, 10)), (ONE, X)),
    "reshape": (lambda x: x.reshape(15, 4) + 1.0, (X,)),
    "reshape of transposed": (lambda x: x.T.reshape(4, 15) + 1.0, (X,)),
    "slice": (lambda x: x[1:6:2, 3:] + x[:3, :7], (X,)),
    "stop_gradient": (lambda x: nn.stop_gradient(x) + x, (X,)),
    "scale": (lambda x: nn.scale(x, 0.3, 0.7) + x, (X,)),
    "concatenate": (lambda x, z: nn.concatenate([x, z], 1), (X, X[:, :3])),
    "pad": (lambda x: apply("pad", x, low=(1, 0), high=(2, 3), interior=(1, 2)), (X,)),
    "gather": (lambda x, i: x[i], (X, ROWS)),
    "gather of more axes": (lambda x, i: x[i] * 2.0, (BIG, np.array([2, 1, 2, 0], np.int32))),
    "scatter_add": (lambda i, u: apply("scatter_add", i, u, rows=7), (ROWS, BIG[:2, :2])),
    "scatter_max": (lambda i, u: apply("scatter_max", i, u, rows=7), (ROWS, BIG[:2, :2])),
    "one_hot": (lambda i: nn.one_hot(i, 7), (ROWS,)),
    "comparisons of integers": (lambda i, j: [i == j, i > j, i <= 2, (i > 0) & ~(i == j)], (ROWS, ROWS[:1])),
    "choices of integers": (
        lambda i, j, x: [np.where(i > j, i, 7), np.maximum(i, j), np.minimum(i, 3), np.where(x[:2, :2] > 0, i, j)],
        (ROWS, ROWS[:1], X),
    ),
    "table of integers": (lambda i, j: i[j], (ROWS, ROWS[0] // 2)),
    "integers to floats": (lambda i, x: nn.convert(i, "float16") * x[:2, :2], (ROWS, X)),
    "topk": (lambda x: [*nn.topk(x, 4), nn.topk(x > 0, 10)[1], nn.topk(x, 1, largest=False)[0]], (X,)),
    "topk of more axes": (lambda x: nn.topk(x.transpose(2, 0, 1), 2), (BIG,)),
    "topk of one row": (lambda y: nn.topk(y.reshape(60), 7), (Y,)),
    "the gradient of topk": (lambda x: value_and_grad(lambda x: (nn.topk(x, 3)[0] ** 2).sum())(x)[1], (BIG,)),
    "put_along": (lambda i, x: apply("put_along", i, x[:2, :2], size=6), (ROWS, X)),
    "set_row": (lambda i, x: apply("set_row", x[2:3] * 2.0, i[:1, 0], x), (ROWS, X)),
    "all_reduce": (
        lambda x, y: [apply("all_reduce", x, replicas=4, collective=how) + y for how in (None, WIRE)],
        (X, Y),
    ),
    "shards": (
        lambda x: (
            apply(
                "all_gather", apply("reduce_scatter", x, replicas=7, collective=None) * 0.5, replicas=7, shape=(6, 10)
            )
            + x
        ),
        (X,),
    ),
    "all_reduce of a group": (lambda x: apply("group_all_reduce", x, replicas=2, collective=None) * x, (X,)),
    "all_reduce of numbers": (lambda x: apply("all_reduce", x.sum(), replicas=3, collective=None) * x, (X,)),
    "all_reduce_max, the first replica and each": (
        lambda x: [apply(op, x[1:3] * 2.0, replicas=4) for op in ("all_reduce_max", "first_replica", "each_replica")],
        (X,),
    ),
    "reduce_sum": (lambda x: x.sum(0), (X,)),
    "reduce_sum last": (lambda x: x.sum(1, keepdims=True) * 2.0, (X,)),
    "reduce_sum two axes": (lambda x: x.sum((0, 2)), (BIG,)),
    "reduce_sum all": (lambda x: x.sum(), (BIG,)),
    "reduce_sum of a slice": (lambda x: x[:, 1:].sum(0), (X,)),
    "reduce_max": (lambda x: x.max(1), (X,)),
    "reduce_max two axes": (lambda x: x.max((0, 2), keepdims=True), (BIG,)),
    "dot": (lambda x, y: x @ y, (X, BIG[0, :, :].T[:10])),
    "dot transposed": (lambda x, y: x.T @ y, (X, X[:, :4])),
    "dot by itself": (lambda x: x @ x.T, (X,)),
    "dot of a slice": (lambda x, y: x[:, 2:5] @ y[:3], (X, X)),
    "dot batched": (lambda x, y: x @ y, (BIG, BIG.transpose(0, 2, 1).copy())),
    "dot batched transposed": (lambda x: x @ (x * 1.0).transpose(0, 2, 1), (BIG,)),
    "dot of one row": (lambda x, y: x[:1] @ y, (X, BIG[0, :, :].T[:10])),
    "scaled_dot": (lambda x, y, s: apply("scaled_dot", x, y, s), (X, X.T.copy(), np.float32(2**-5))),
    "scaled_dot of a batch": (
        lambda x, s: apply("scaled_dot", nn.convert(x, "float8_e4m3fnuz").transpose(0, 2, 1), x, s),
        (np.stack([X, X + 1, X * 2]), np.float32(4)),
    ),
    "dot of no terms": (lambda x, y: x[:, :0] @ y[:0], (X, X)),
    "dot of no rows": (lambda x, y: x[:0] @ y[:, :3], (X, X.T.copy())),
    "conv2d": (lambda x, w: nn.conv2d(x, w, stride=(2, 1), padding="same"), (IMAGES, KERNEL)),
    "conv2d of a view": (lambda x, w: nn.conv2d(x.transpose(0, 2, 1, 3)[1:, ::2], w[1:]), (IMAGES, KERNEL)),
    "conv2d_input_gradient": (
        lambda x, w: value_and_grad(lambda y, w: (nn.conv2d(y, w, stride=2) ** 2).sum())(x, w)[1],
        (IMAGES, KERNEL),
    ),
    "conv2d_weight_gradient": (
        lambda x, w: value_and_grad(lambda w, x: (nn.conv2d(x, w, padding=1) ** 2).sum())(w, x)[1],
        (IMAGES, KERNEL),
    ),
    "pooling": (lambda x: nn.max_pool2d(x, 2) + nn.avg_pool2d(x, 2), (IMAGES,)),
    "overlapping pooling": (lambda x: nn.max_pool2d(x, 3, 1), (IMAGES,)),
    "dropout_mask": (lambda x: nn.dropout(x, 0.3), (X,)),
    "sum of nothing": (lambda x: x[:0].sum(0) + x[:, :0].sum(), (X,)),
    "nothing": (lambda x: (x[:0] * 2.0).reshape(0), (X,)),
    "input": (lambda x: x, (X,)),
    "constant": (lambda x: x + np.arange(10, dtype=np.float16), (X,)),
    "softmax": (lambda y: nn.softmax(y), (Y,)),
    "layer norm": (lambda y: nn.layer_norm(y, np.ones(10, np.float32), np.zeros(10, np.float32)), (Y,)),
}


def both(case: Case, tiles: int, stochastic: bool = False) -> None:
    """Runs a case vertex by vertex and on whole arrays; compares all bits."""
    function, arguments = case
    block = trace(function, *arguments)
    control = FloatingPointControl(esr=stochastic)
    machine = Machine.build(block, Target("gc200", tiles=tiles), control=control)
    direct = Executable(block, machine.plan.accumulations, control)
    for key in (1, 2):
        for got, wanted in zip(machine.run(arguments, key), direct.run(arguments, key), strict=True):
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(wanted, np.float64))


@pytest.mark.parametrize("name", CASES)
def test_operations_equal_execute(name: str) -> None:
    both(CASES[name], 1472)


@pytest.mark.parametrize("name", CASES)
def test_operations_equal_execute_on_few_tiles(name: str) -> None:
    both(CASES[name], 3)


def test_every_operation_is_among_the_cases() -> None:
    used = set()
    for function, arguments in CASES.values():
        used |= {equation.op for equation in trace(function, *arguments).equations}
    assert used == set(OPS) - {"to_blocks", "hadamard"}  # which no chip has


def test_an_index_outside_the_table_is_refused() -> None:
    block = trace(lambda x, i: x[i], X, ROWS)
    for runner in (Machine.build(block, Target("gc200", tiles=4)), Executable(block)):
        with pytest.raises(IndexError):
            runner.run([X, ROWS + 4], 0)


def test_what_rounds_to_nearest_needs_no_key() -> None:
    machine = Machine.build(trace(lambda x: x * 2.0, X), Target("gc200", tiles=4))
    np.testing.assert_array_equal(machine.run([X], None)[0], X * 2)


def test_wrong_inputs_are_named() -> None:
    machine = Machine.build(trace(lambda x: x * 2.0, X), Target("gc200", tiles=4))
    with pytest.raises(ValueError, match="the block takes 1 inputs, 2 were given"):
        machine.feed([X, X], None)
    with pytest.raises(ValueError, match="takes shape"):
        machine.feed([X[:2]], None)
