"""Tracing: operators, indexing, NumPy's functions, trees, printing and helpful refusals."""

import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.ir.block import Type, text
from ipu_core.ir.parameters import name_parameters
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten, map_leaves, paths, unflatten
from ipu_core.ir.run.evaluate import evaluate_flat as evaluate
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import apply
from ipu_core.ir.verify import verify
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd

RNG = np.random.default_rng(1)
A, B = RNG.normal(size=(3, 4)), RNG.uniform(0.5, 1, (3, 4))
V = RNG.normal(size=4)

PROGRAMS = {
    "operators": lambda a, b: (-a + 2 * b - 1 / b) / (3 - a * b) + abs(a) - 0.5,
    "powers": lambda a, b: b**0.5 + b**-0.5 + a**2 + a**3 + b**-1 + a**7,
    "comparisons": lambda a, b: (a > b) + 2 * (a < b) + 4 * (a >= 0) + 8 * (a <= a) + 16 * (a == b) + 32 * (a != b),
    "reductions": lambda a, b: a.sum() + a.mean(1) + b.max((0, -1)) + b.sum(axis=-1, keepdims=True).T[0],
    "numpy": lambda a, b: np.sum(np.exp(np.tanh(a)) * np.sqrt(b) + np.maximum(a, np.sin(b)), axis=0) + np.mean(a),
    "matrix": lambda a, b: (a @ b.T @ a) @ V + V @ b.T,
    "numpy on the left": lambda a, b: A * a + np.float32(2) * b + V,
    "indexing": lambda a, b: (
        a[1] + a[-1, None] + a[..., 2:][:, 0][0] + a[:, 1:3].sum() + b[0:0].sum() + a[::2, ::3][1, 1]
    ),
    "gather": lambda a, b: a[np.array([[0, 2], [1, 1]])],
    "shapes": lambda a, b: a.reshape(2, -1)[0] + b.T.reshape((6, 2))[:, 1] + np.broadcast_to(a[0, 0], (6,)),
    "where": lambda a, b: np.where(a > 0, a, b) + np.concatenate([a[:1], b[1:]], 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_traced_program_computes_what_numpy_computes(name):
    f = PROGRAMS[name]
    block = verify(trace(f, A, B))
    (got,) = evaluate(block, [A, B])
    want = np.asarray(f(A, B), np.float64)
    if name == "comparisons":
        want = (A > B) + 2 * (A < B) + 4 * (A >= 0) + 8 * (A <= A) + 16 * (A == B) + 32 * (A != B)
    assert got.shape == want.shape == block.outputs[0].type.shape
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


IDS, OTHERS = np.array([[3, -2, 16777217, 0], [2, 2, 16777216, -5]]), np.array([2, -2, 16777216, 7])
OF_INTEGERS = {
    "comparisons": (lambda i, j: [i == j, i != j, i < j, i <= j, i > j, i >= j],) * 2,
    "with numbers": (lambda i, j: [i == 2, i != 2, i > 2, i <= 1.5, i > np.int32(-3), i <= 2.5],) * 2,
    "combined": (
        lambda i, j: [(i > 0) & (i < j), (i > 0) | (j < 0), ~(i == j), ~((i > 0) & ~(j > 0)), 1 & (i > j)],
        lambda i, j: [(i > 0) & (i < j), (i > 0) | (j < 0), i != j, ~((i > 0) & ~(j > 0)), i > j]),
    "chosen": (lambda i, j: [np.where(i > j, i, j), np.where(i < 0, 0, i), np.maximum(i, j), np.minimum(i, 2)],) * 2,
    "rows": (lambda i, j: [i[np.array([1, 0, 1])], (i[:, :, None] == i[:, None]).sum(-1)],) * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_integers_are_compared_and_chosen_as_numpy_does(name):
    f, theirs = OF_INTEGERS[name]
    block = verify(trace(f, IDS, OTHERS))
    for got, out, want in zip(evaluate(block, [IDS, OTHERS]), block.outputs, theirs(IDS, OTHERS), strict=True):
        np.testing.assert_array_equal(got, want)
        integers = name == "chosen" or got.shape == (3, 4)
        assert got.dtype == (np.int64 if integers else np.float64)
        assert (out.type.format == "int32") == integers


def test_trees_go_in_and_come_out():
    f = lambda state, x: ({"b": state["b"] + x, "a": [state["a"][0] * 2, (3.0, x)]}, None)  # noqa: E731
    block = trace(f, {"a": [A], "b": V}, V)
    assert [var.name for var in block.inputs] == ["state.a.0", "state.b", "x"]
    outputs = evaluate(block, flatten(({"a": [A], "b": V}, V))[0])
    new, nothing = unflatten(block.result, outputs)
    assert nothing is None
    assert paths(flatten(new)[1]) == ["a.0", "a.1.0", "a.1.1", "b"]
    np.testing.assert_array_equal(new["a"][0], 2 * A)


def test_map_leaves_refuses_other_structures():
    assert map_leaves(lambda x, y: x + y, {"a": (1, 2)}, {"a": (10, 20)}) == {"a": (11, 22)}
    with pytest.raises(ValueError, match=r"\{a\} and \{b\}"):
        map_leaves(lambda x, y: x, {"a": 1}, {"b": 1})


def test_a_block_prints_one_line_per_equation():
    block = trace(lambda x, w: np.maximum(x @ w, 0).sum(), A, A.T)
    assert str(block).splitlines() == [
        "block(%x: float32[3,4], %w: float32[4,3])",
        "  %0: float32[3,3] = dot(%x, %w)  # forward.dot.0 matmul",
        "  %1: float32[3,3] = maximum(%0, 0)  # forward.maximum.1 elementwise",
        "  %2: float32[] = reduce_sum(%1, axis=(0, 1), keepdims=False)  # forward.reduce_sum.2 reduction",
        "  return %2",
    ]


def test_digests_are_made_of_lines_in_which_equal_equations_are_equal():
    def f(x, w):
        with nn.name_scope("layer", x):
            return x @ w

    block = name_parameters(trace(f, A, A.T), {})
    named = name_parameters(block, {block.inputs[1]: "w"})
    typed = Precision.parse("fp16.16/stochastic").apply(named, whole=False)
    lines = [text(each).splitlines()[-2] for each in (block, named, typed)]
    assert lines[0] == "  %0: float32[3,3] = dot(%x, %w)  # forward matmul"
    assert lines[1] == "  %0: float32[3,3] = dot(%x, %w)  # forward matmul w"
    assert lines[2].endswith("  # forward matmul w accumulate float16 stochastic")
    assert [str(each).splitlines()[1].rpartition("# ")[2] for each in (block, named)] == [
        "layer.forward.dot.0 matmul", "w.forward.dot.0 matmul",
    ]  # fmt: skip


def test_a_value_computed_twice_is_one_equation_and_an_unused_one_none():
    def f(x):
        unused = np.exp(x)  # noqa: F841
        return np.tanh(x) + np.tanh(x)

    assert [e.op for e in trace(f, A).equations] == ["tanh", "add"]


def test_neutral_numbers_are_nothing():
    block = trace(lambda x: sum([x * 1, 1.0 * x, x / 1, x - 0.0]) + 0 - x, A)
    assert [e.op for e in block.equations] == ["add", "add", "add", "subtract"]


def test_examples_give_types_and_types_are_examples():
    block = trace(lambda a, b, i: (a, b, i), A, A.astype(np.float16), np.array([1, 2]))
    assert [str(var.type) for var in block.inputs] == ["float32[3,4]", "float16[3,4]", "int32[2]"]
    assert trace(lambda a: a + 1, block.inputs[1].type).outputs[0].type == Type((3, 4), block.inputs[1].type.format)


def test_a_carried_state_is_marked_and_checked():
    block = trace(lambda s, x: ({"w": s["w"] + x}, x), {"w": V}, V, carry=True)
    assert block.carried == 1
    with pytest.raises(ValueError, match="not nested"):
        trace(lambda s, x: ({"v": s["w"]}, x), {"w": V}, V, carry=True)
    with pytest.raises(ValueError, match=r"shape \(3, 4\), the old \(4,\)"):
        trace(lambda s, x: ({"w": s["w"] + A}, x), {"w": V}, V, carry=True)
    with pytest.raises(TypeError, match="tuple"):
        trace(lambda s, x: s["w"], {"w": V}, V, carry=True)


def test_blocks_pickle():
    block = trace(lambda x: x @ A.T + 1, A)
    copy = verify(pickle.loads(pickle.dumps(block)))
    assert str(copy) == str(block)
    np.testing.assert_array_equal(evaluate(copy, [A])[0], evaluate(block, [A])[0])


REFUSALS = {
    r"dot: \(3, 4\) @ \(3, 4\): inner sizes 4 and 3 differ": (ValueError, lambda x: x @ B),
    r"add: the shapes \(3, 4\) and \(3,\) do not fit": (ValueError, lambda x: x + x[:, 0]),
    r"reshape: cannot make \(5,\) of \(3, 4\)": (ValueError, lambda x: x.reshape(5)),
    r"use where": (TypeError, lambda x: x if x.sum() > 0 else -x),
    r"cannot become a NumPy array": (TypeError, lambda x: np.asarray(x)),
    r"np.frexp cannot be traced; these can: .*exp": (TypeError, lambda x: np.frexp(x)),
    r"np.nanmean cannot be traced": (TypeError, lambda x: np.nanmean(x)),
    r"axis 2 is no axis": (ValueError, lambda x: x.sum(2)),
    r"index 7 is outside": (ValueError, lambda x: x[7]),
    r"go forwards": (ValueError, lambda x: x[::-1]),
    r"cannot index with": (TypeError, lambda x: x["a"]),
    r"equal: int32 and float32 do not mix; convert the integers first": (
        TypeError, lambda x: x[0] == np.array([1, 2, 3, 4])),
    r"select: the number 0.5 beside int32 numbers must be one too": (
        TypeError, lambda x: np.where(x[0] > 0, np.array([1, 2, 3, 4]), 0.5)),
    r"operand 1 must be floats": (TypeError, lambda x: x[0] + np.array([1, 2, 3, 4])),
    r"must hold int32 numbers, not float32": (TypeError, lambda x: x[x]),
    r"a power must be": (ValueError, lambda x: x**0.3),
    r"must give arrays or numbers, not str": (TypeError, lambda x: "no"),
    r"neither floats nor integers": (TypeError, lambda x: x + np.array(["a"])),
    r"exp: its parameters are none; given were base": (ValueError, lambda x: apply("exp", x, base=2)),
    r"reduce_sum: its parameters are axis, keepdims, shards; given were axis": (
        ValueError, lambda x: apply("reduce_sum", x, axis=(0,))),
    r"unknown operation 'cosh'; there are absolute, add": (ValueError, lambda x: apply("cosh", x)),
    r"no len": (TypeError, lambda x: len(x.sum())),
    r"cannot become a Python number": (TypeError, lambda x: float(x.sum())),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals_say_what_was_given(message):
    error, f = REFUSALS[message]
    with pytest.raises(error, match=message):
        trace(f, A)


def test_values_of_two_traces_do_not_mix():
    kept = []
    trace(lambda x: kept.append(x) or x, A)
    with pytest.raises(ValueError, match="two different traces"):
        trace(lambda x: x + kept[0], A)


def test_inputs_are_checked():
    block = trace(lambda x: x + 1, A)
    with pytest.raises(ValueError, match=r"input %x must have shape \(3, 4\), not \(4,\)"):
        evaluate(block, [V])
    with pytest.raises(ValueError, match="1 inputs, 2 were given"):
        evaluate(block, [A, A])


def test_every_equation_knows_the_line_that_asked_for_it():
    def loss(w, x):
        hidden = nn.tanh(x @ w)
        return nn.softmax(hidden).sum()

    first = inspect.getsourcelines(loss)[1]
    name = Path(__file__).name
    block = value_and_grad(trace(loss, np.ones((3, 2), np.float32), np.ones((4, 3), np.float32)))
    lines = {e.op: e.source for e in block.equations if e.role == "forward"}
    assert lines["dot"] == lines["tanh"] == f"{name}:{first + 1}"
    assert lines["exp"] == f"{name}:{first + 2}"
    back = {(e.role, e.op): e.source for e in block.equations}
    assert back["grad_weight", "dot"] == f"{name}:{first + 1}"


def test_what_no_line_of_a_users_asked_for_has_none():
    loop = TrainLoop(
        lambda w, x: (x @ w).sum(), np.ones((3, 2), np.float32), np.ones((4, 3), np.float32),
        optimizer=Sgd(0.1), precision="fp16.32/stochastic", engine="direct",
    )  # fmt: skip
    assert {e.source for e in loop.block.equations if e.role in ("optimizer", "update")} == {None}
    assert all(e.source.startswith(Path(__file__).name) for e in loop.block.equations if e.op == "dot")


def test_the_line_is_no_part_of_what_is_computed():
    one, other = (trace(f, np.ones(3, np.float32)) for f in (
        lambda x: x * 2.0,
        lambda x: x * 2.0,
    ))  # fmt: skip
    assert one.equations[0].source != other.equations[0].source
    assert str(one) == str(other)
