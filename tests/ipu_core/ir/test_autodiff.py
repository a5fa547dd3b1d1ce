"""Gradients of every operation against finite differences, roles, and refusals."""

from collections import Counter

import numpy as np
import pytest
from ml_dtypes import bfloat16

from ipu_core import nn
from ipu_core.ir.ops import OPS
from ipu_core.ir.passes.autodiff import differentiate, value_and_grad
from ipu_core.ir.passes.cotangents import COTANGENTS
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat as evaluate
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.trace.values import apply, concatenate, convert, topk, where
from ipu_core.ir.verify import verify

RNG = np.random.default_rng(2)
A, B, C = (RNG.normal(size=(3, 4)) for _ in range(3))
POSITIVE = RNG.uniform(0.5, 2.0, (3, 4))
INDICES = np.array([[1, 0, 2, 1], [0, 0, 1, 2]])
LABELS = np.array([1, 0, 3])
ALONG = np.array([[1, 3], [2, 2], [0, 1]])
ROWS, ALL_ALONG = np.array([2, 0, 0]), np.array([[1, 3, 0, 0], [2, 2, 2, 1], [3, 0, 1, 2]])

UNARY = ["negative", "absolute", "relu", "square", "exp", "tanh", "erf", "sigmoid", "sin", "cos", "gelu"]
UNARY += ["gelu_gradient"]
WHERE = {"stride": (2, 1), "padding": ((1, 0), (0, 1)), "dilation": (1, 1), "groups": 2}
IMAGES, KERNEL, PLACES = (np.random.default_rng(7).normal(size=n) for n in ((1, 3, 3, 4), (2, 2, 2, 2), (1, 2, 3, 2)))
CASES = {
    **{op: (lambda x, op=op: apply(op, x), (A,)) for op in UNARY},
    **{op: (lambda x, op=op: apply(op, x), (POSITIVE,)) for op in ("reciprocal", "sqrt", "rsqrt", "log")},
    **{op: (lambda x, y, op=op: apply(op, x, y), (A, B)) for op in
       ("add", "subtract", "multiply", "maximum", "minimum")},
    "divide": (lambda x, y: x / y, (A, POSITIVE)),
    "select": (lambda x, y: where(C > 0, x, y), (A, B)),
    "scaled_add": (lambda x, y, s: apply("scaled_add", x, y, s), (A, B, np.float64(0.7))),
    "fmod": (lambda x, y: apply("fmod", x, y) * B, (3 * A, POSITIVE)),
    "convert": (lambda x: convert(x * 1.0, "float16"), (A,)),
    "reduce_sum": (lambda x: x.sum(1) * np.arange(3.0), (A,)),
    "reduce_max": (lambda x: x.max((0,), keepdims=True) * np.arange(4.0), (A,)),
    "dot": (lambda x, y: x @ y, (A, B.T)),
    "dot batched": (lambda x, y: x @ y, (RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 4, 2)))),
    "dot shared": (lambda x, y: x @ y, (RNG.normal(size=(2, 3, 4)), RNG.normal(size=(4, 2)))),
    "dot vector": (lambda x, y: (x @ y) * np.arange(3.0), (A, RNG.normal(size=4))),
    "conv2d": (lambda x, w: apply("conv2d", x, w, **WHERE), (IMAGES, KERNEL)),
    "conv2d_input_gradient": (
        lambda g, w: apply("conv2d_input_gradient", g, w, **WHERE, size=(3, 3)), (PLACES, KERNEL)),
    "conv2d_weight_gradient": (
        lambda x, g: apply("conv2d_weight_gradient", x, g, **WHERE, kernel=(2, 2)), (IMAGES, PLACES)),
    "scale": (lambda x: nn.scale(x, 2.0, 2.0), (A,)),
    "scale_gradient": (lambda x: apply("scale_gradient", nn.scale(x, 3.0), factor=3.0), (A,)),
    "transpose": (lambda x: x.transpose(2, 0, 1) * np.arange(3.0)[:, None, None], (RNG.normal(size=(2, 2, 3)),)),
    "reshape": (lambda x: x.reshape(2, -1) * np.arange(6.0), (A,)),
    "broadcast": (lambda x, y: x * A + y * B, (RNG.normal(size=4), RNG.normal(size=(3, 1)))),
    "slice": (lambda x: x[1:, ::3] * np.arange(4.0).reshape(2, 2) + x[0, None, -1], (A,)),
    "concatenate": (lambda x, y: concatenate([x, y], 1) * np.arange(8.0), (A, B)),
    "pad": (lambda x: apply("pad", x, low=(1, 0), high=(0, 2), interior=(2, 1)) * np.arange(9.0), (A,)),
    "gather": (lambda x: x[INDICES] * np.arange(8.0).reshape(2, 4, 1), (A,)),
    "scatter_add": (lambda x: apply("scatter_add", INDICES, x, rows=3) ** 2, (RNG.normal(size=(2, 4, 2)),)),
    "scatter_max": (lambda x: apply("scatter_max", INDICES, x, rows=3) ** 2, (RNG.normal(size=(2, 4, 2)),)),
    "take_along": (lambda x: apply("take_along", x, ALONG) * np.arange(6.0).reshape(3, 2), (A,)),
    "put_along": (lambda x: apply("put_along", ALONG, x[:, :2], size=5) ** 2, (A,)),
    "set_row": (lambda r, x: apply("set_row", r, np.array([1], np.int32), x) * B, (A[:1], B)),
    "gather of as many rows": (lambda x: x[ROWS] * B, (A,)),
    "scatter_add of as many rows": (lambda x: apply("scatter_add", ROWS, x, rows=3) * B, (A,)),
    "take_along of as many": (lambda x: apply("take_along", x, ALL_ALONG) * B, (A,)),
    "put_along of as many": (lambda x: apply("put_along", ALL_ALONG, x, size=4) * B, (A,)),
    "topk": (lambda x: topk(x, 3)[0] * np.arange(9.0).reshape(3, 3), (A,)),
    "one_hot": (lambda x: apply("one_hot", LABELS, classes=4) * x, (A,)),
    "to_blocks": (lambda x: apply("to_blocks", x, format="mxfp8_e4m3", axis=1, rule="floor"), (A,)),
    "hadamard": (lambda x: apply("hadamard", x, axis=1, block=2) * np.arange(4.0), (A,)),
    "scaled_dot": (lambda s, x, y: apply("scaled_dot", x, y.T, s), (np.float64(0.7), A, B)),
    "all_reduce": (lambda x: apply("all_reduce", x * x, replicas=3, collective=None), (A,)),
    "group_all_reduce": (lambda x: apply("group_all_reduce", x * x, replicas=2, collective=None), (A,)),
    "scalar": (lambda x, y: x * y + x, (np.float64(0.3), A)),
    "scalar of a mean": (lambda x, y: (x + y).mean(), (np.float64(0.3), A)),
    "scalar scale": (lambda s, x, y: apply("scaled_add", x, y, s).sum(), (np.float64(0.3), A, B)),
    "two uses": (lambda x: x * x.T.sum() + x, (A,)),
}  # fmt: skip


def _loss(f):
    def loss(operands):
        y = f(*operands)
        return (y * y).sum()

    return loss


@pytest.mark.parametrize("case", CASES)
def test_gradient_is_the_finite_difference(case):
    f, operands = CASES[case]
    block = verify(differentiate(trace(_loss(f), list(operands))))
    value, *gradients = evaluate(block, operands)
    forward = trace(_loss(f), list(operands))
    assert value == evaluate(forward, operands)[0]
    step = 1e-6
    for position, (operand, gradient) in enumerate(zip(operands, gradients, strict=True)):
        assert gradient.shape == np.shape(operand)
        for index in np.ndindex(np.shape(operand)):
            nudged = [np.array(x, float) for x in operands]
            nudged[position][index] += step
            up = evaluate(forward, nudged)[0]
            nudged[position][index] -= 2 * step
            down = evaluate(forward, nudged)[0]
            assert gradient[index] == pytest.approx((up - down) / (2 * step), rel=2e-5, abs=2e-6)


def test_every_differentiable_operation_has_a_case_and_the_others_are_constant():
    constant = {
        "step",
        "floor",
        "rint",
        "greater",
        "equal",
        "stop_gradient",
        "dropout_mask",
        "top_indices",
        "all_reduce_max",
        "reduce_scatter",
        "all_gather",
        "first_replica",
        "each_replica",
        "custom_gradient",  # has tests of its own
    }  # the mask is tested by itself
    assert set(OPS) - constant == set(CASES) & set(OPS)
    assert set(OPS) - constant - {"one_hot", "concatenate"} == set(COTANGENTS)


def test_ties_of_a_maximum_share_its_gradient():
    _, gradient = value_and_grad(lambda x: x.max())(np.array([1.0, 3.0, 3.0]))
    np.testing.assert_array_equal(gradient, [0, 0.5, 0.5])


@pytest.mark.parametrize("op, larger", [("maximum", 1.0), ("minimum", 0.0)])
def test_ties_of_two_share_the_gradient(op, larger):
    a, b = np.array([1.0, 2.0, 3.0, 0.0, -1.0]), np.array([2.0, 2.0, 1.0, -0.0, -1.0])
    _, (first, second) = value_and_grad(lambda p: (apply(op, p[0], p[1]) * 4.0).sum())([a, b])
    np.testing.assert_array_equal(first, 4 * np.array([1 - larger, 0.5, larger, 0.5, 0.5]))
    np.testing.assert_array_equal(first + second, np.full(5, 4.0))
    _, gradient = value_and_grad(lambda x: apply(op, x, 2.0).sum())(a)
    np.testing.assert_array_equal(gradient, np.array([1 - larger, 0.5, larger, 1 - larger, 1 - larger]))


def test_the_gradient_of_absolute_at_zero_is_zero():
    _, gradient = value_and_grad(lambda x: (abs(x) * 3.0).sum())(np.array([-2.0, -0.0, 0.0, 5.0]))
    np.testing.assert_array_equal(gradient, [-3, 0, 0, 3])


def test_a_stopped_gradient_is_zero():
    loss = lambda p: (apply("stop_gradient", p["a"]) * p["b"]).sum()  # noqa: E731
    _, gradient = value_and_grad(loss)({"a": A, "b": B})
    np.testing.assert_array_equal(gradient["a"], np.zeros_like(A))
    np.testing.assert_array_equal(gradient["b"], A)


def mlp(params, x, t):
    h = np.maximum(x @ params["w0"] + params["b0"], 0)
    return ((h @ params["w1"] - t) ** 2).mean()


PARAMS = {"w0": RNG.normal(size=(4, 5)), "b0": RNG.normal(size=5), "w1": RNG.normal(size=(5, 2))}
X, T = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 2))


def test_roles_and_parameter_names_of_a_layered_network():
    block = differentiate(trace(mlp, PARAMS, X, T))
    dots = Counter((e.role, e.parameter) for e in block.equations if e.op == "dot")
    assert dots == {("forward", "w0"): 1, ("forward", "w1"): 1, ("grad_input", "w1"): 1,
                    ("grad_weight", "w0"): 1, ("grad_weight", "w1"): 1}  # fmt: skip
    (bias,) = (e for e in block.equations if e.op == "reduce_sum" and e.role != "forward")
    assert (bias.role, bias.parameter) == ("grad_weight", "b0")


def test_what_is_made_of_two_parameters_is_called_after_neither():
    """A rule for one of them would else be the other's too."""
    both = {"a": A, "b": B}
    block = differentiate(trace(lambda p, x: (x @ apply("tanh", p["a"] * p["b"])).sum(), both, X[:, :3]))
    named = {(e.role, e.op): e.parameter for e in block.equations}
    assert named["forward", "tanh"] is named["forward", "dot"] is named["grad_weight", "dot"] is None
    split = {e.parameter for e in block.equations if e.role == "grad_weight" and e.op == "multiply"}
    assert split == {"a", "b", None}  # each one's own gradient, and that of the product


def test_no_gradient_is_computed_for_data():
    block = differentiate(trace(mlp, PARAMS, X, T))
    assert not any(e.output.type.shape == X.shape for e in block.equations)


def test_on_functions_eager_traced_and_on_blocks_alike():
    value, gradients = value_and_grad(mlp)(PARAMS, X, T)
    inlined = trace(value_and_grad(mlp), PARAMS, X, T)
    block = value_and_grad(trace(mlp, PARAMS, X, T))
    leaves = flatten((PARAMS, X, T))[0]
    for other in (evaluate(inlined, leaves), evaluate(block, leaves)):
        for a, b in zip([value, *flatten(gradients)[0]], other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert [e.role for e in inlined.equations] == [e.role for e in block.equations]


def test_second_derivatives():
    slope = lambda x: value_and_grad(lambda v: np.exp(v) * v)(x)[1]  # noqa: E731
    value, curvature = value_and_grad(slope)(np.float64(0.4))
    assert value == pytest.approx(1.4 * np.exp(0.4))
    assert curvature == pytest.approx(2.4 * np.exp(0.4))


def test_refusals():
    with pytest.raises(ValueError, match=r"one number without axes.*float32\[3,4\]"):
        value_and_grad(lambda x: x * 2)(A)
    with pytest.raises(TypeError, match="integers"):
        value_and_grad(lambda p: p["x"][p["i"]].sum())({"x": A, "i": LABELS})


def test_a_gradient_that_is_one_number_is_an_array_only_where_it_must_be() -> None:
    def numbers(f):
        return list(differentiate(trace(f, X)).constants.values())

    assert [c.shape for c in numbers(lambda x: (2.0 * x.T.reshape(2, -1)).mean())] == [X.shape]  # the gradient itself
    assert [c.shape for c in numbers(lambda x: (x.T @ x).sum())] == [(X.shape[1], X.shape[1])]
    assert numbers(lambda x: (x * x).sum()) == []


def test_a_gradient_that_is_one_number_goes_to_one_element():
    place, x = np.array(2, np.int32), A[0].ravel()
    value, gradient = evaluate(trace(value_and_grad(lambda x, i: 0.5 * x[i]), x, place), [x, place])
    assert value == 0.5 * x[2]
    np.testing.assert_array_equal(gradient, [0.5 * (n == 2) for n in range(len(x))])


def test_a_gradient_full_of_one_number_is_summed_where_its_operand_was_repeated():
    _, gradient = value_and_grad(lambda x: np.broadcast_to(x, (5, 3, 4)).sum())(A)
    np.testing.assert_array_equal(gradient, np.full((3, 4), 5.0))
    _, gradient = value_and_grad(lambda x: (np.broadcast_to(x, (3, 4)) * 2.0).mean())(A[:, :1])
    np.testing.assert_allclose(gradient, np.full((3, 1), 2 / 3))
    # that of a value without axes is a sum on the machine like any other, whose order and format count
    block = differentiate(trace(lambda s, x: (x + s).sum(), np.float32(1), A))
    assert [e.op for e in block.equations if e.role == "grad_weight"] == ["reduce_sum"]


THIRDS = {
    "a slice": lambda x: (x[1:] * 1.0).mean() * 5,
    "a product": lambda x: (x.reshape(1, 4) @ np.ones((4, 3))).mean(),
    "the gradient itself": lambda x: x.mean() / 3,
    "a conversion": lambda x: (convert(x, "float32") * (1 / 3)).sum(),
}


@pytest.mark.parametrize("name", THIRDS)
def test_gradients_of_float64_arrays_are_float64(name):
    _, gradient = value_and_grad(THIRDS[name])(np.linspace(1, 2, 4))
    wanted = {"a slice": [0, 5 / 3, 5 / 3, 5 / 3], "a product": [1.0] * 4, "the gradient itself": [1 / 12] * 4,
              "a conversion": [1 / 3] * 4}[name]  # fmt: skip
    np.testing.assert_allclose(gradient, wanted, rtol=1e-15)
    block = differentiate(trace(THIRDS[name], np.linspace(1, 2, 4)))
    np.testing.assert_allclose(evaluate(block, [np.linspace(1, 2, 4)])[1], wanted, rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, bfloat16])
def test_the_gradient_of_an_array_has_its_dtype(dtype):
    x = np.linspace(1, 2, 4).astype(dtype)
    for f in (*THIRDS.values(), lambda x: (x * x).sum()):
        _, gradient = value_and_grad(f)(x)
        assert gradient.dtype == dtype
    _, both = value_and_grad(lambda p: (p[0] * p[1]).sum())([x, x.astype(np.float32)])
    assert [g.dtype for g in both] == [x.dtype, np.float32]


def test_gradients_of_float32_arrays_are_computed_in_float32():
    x = np.linspace(1, 2, 4, dtype=np.float32)
    _, gradient = value_and_grad(lambda x: ((x[1:] * x[1:]) * 1.0).mean())(x)
    third = np.float32(1 / 3)
    np.testing.assert_array_equal(gradient[1:], np.float32(2) * third * x[1:])
