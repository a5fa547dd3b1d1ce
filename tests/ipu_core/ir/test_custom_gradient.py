"""Gradients that are given: against hand-written derivatives, against autodiff where they are true, and refusals."""

import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from ipu_core import Precision, Predictor, Sgd, TrainLoop, custom_gradient, nn, unit_scale, value_and_grad
from ipu_core.ir.block import Block, Equation
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.gradient_rule import calls_of
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.passes.autodiff import differentiate
from ipu_core.ir.passes.schedule import as_it_runs
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.tracing import interpret, trace
from ipu_core.ir.verify import verify
from ipu_core.train.step import step_block

RNG = np.random.default_rng(11)
X, W, V = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 5)), RNG.normal(size=(5, 2))


def _layer(x: Any, w: Any) -> Any:
    y = np.tanh(x @ w)
    return y, (x, w, y)


def _layer_backward(kept: Any, dy: Any) -> Any:
    x, w, y = kept
    inner = dy * (1.0 - nn.square(y))
    return inner @ w.T, x.T @ inner


layer = custom_gradient(_layer, _layer_backward)


def plain_layer(x: Any, w: Any) -> Any:
    return np.tanh(x @ w)


class Pair(NamedTuple):
    left: Any
    right: Any


def _products(x: Any, pair: Any, factor: Any) -> Any:
    return {"a": x["u"] * pair.left * factor, "b": [x["u"] + x["v"], pair.right]}, (x, pair, factor)


def _products_backward(kept: Any, dy: Any) -> Any:
    x, pair, factor = kept
    both = dy["a"] * factor
    return {"u": both * pair.left + dy["b"][0], "v": dy["b"][0]}, Pair(both * x["u"], dy["b"][1]), None


products = custom_gradient(_products, _products_backward)


def _sum_of(made: Any) -> Any:
    return sum(np.sum(leaf * leaf * float(number + 1)) for number, leaf in enumerate(flatten(made)[0]))


def both_ways(loss: Callable[[Any, Any], Any], with_rule: Any, plain: Any, params: Any) -> None:
    """The loss and the gradients of a function with a rule, in float64, are those of the plain one."""
    value, gradients = value_and_grad(lambda p: loss(with_rule, p))(params)
    wanted, true = value_and_grad(lambda p: loss(plain, p))(params)
    assert value == wanted
    for given, one in zip(flatten(gradients)[0], flatten(true)[0], strict=True):
        np.testing.assert_allclose(given, one, rtol=1e-9, atol=1e-12)


def test_a_true_derivative_is_autodiff_s() -> None:
    def loss(f: Any, p: Any) -> Any:
        return np.sum(nn.square(f(p["x"], p["w"]) @ V))

    both_ways(loss, layer, plain_layer, {"x": X, "w": W})


def test_nested_arguments_and_results() -> None:
    p = {"x": {"u": X, "v": X + 1.0}, "pair": Pair(X * 2.0, X - 0.5)}

    def loss(f: Any, p: Any) -> Any:
        return _sum_of(f(p["x"], p["pair"], 3.0))

    both_ways(loss, products, lambda *x: _products(*x)[0], p)


def test_several_applications_one_in_another_and_twice_of_one_value() -> None:
    def loss(f: Any, p: Any) -> Any:
        first = f(p["x"], p["w"])
        return np.sum(f(f(p["x"], p["w"]) + first, p["s"]) * f(p["x"], p["w"]))

    both_ways(loss, layer, plain_layer, {"x": X, "w": W, "s": RNG.normal(size=(5, 5))})


def test_one_within_another_and_in_a_backward() -> None:
    def outer(x: Any, w: Any) -> Any:
        return layer(x, w) * 2.0, (x, w)

    def outer_backward(kept: Any, dy: Any) -> Any:
        x, w = kept
        y = layer(x, w)
        inner = dy * (2.0 * (1.0 - nn.square(y)))
        return inner @ w.T, x.T @ inner

    def loss(f: Any, p: Any) -> Any:
        return np.sum(nn.square(f(p["x"], p["w"])))

    both_ways(loss, custom_gradient(outer, outer_backward), lambda x, w: plain_layer(x, w) * 2.0, {"x": X, "w": W})


def test_value_and_grad_within_a_backward() -> None:
    """What is computed forwards again is forward, and the rest has the roles of gradients."""

    def again(x: Any, w: Any) -> Any:
        return plain_layer(x, w), (x, w)

    def backward(kept: Any, dy: Any) -> Any:
        return value_and_grad(lambda x, dy: np.sum(plain_layer(*x) * dy))(kept, dy)[1]

    def loss(f: Any, p: Any) -> Any:
        return np.sum(nn.square(f(p["x"], p["w"])))

    f = custom_gradient(again, backward)
    both_ways(loss, f, plain_layer, {"x": X, "w": W})
    step = step_block(lambda p, _: loss(f, p), Sgd(0.1), f32({"x": X, "w": W}), BATCH)  # traced in traces: none are one
    assert [e.role for e in step.equations if e.op == "tanh"] == ["forward", "forward"]
    assert [e.role for e in step.equations if e.op == "dot"] == ["forward", "forward", "grad_weight", "grad_weight"]


def sign(x: Any) -> Any:
    return np.where(x > 0, 1.0, -1.0)


# What is not the derivative -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "backward", "value", "gradient"),
    [
        pytest.param(lambda x: (sign(x), None), lambda _, dy: (dy,), np.sign(X), 2 * np.sign(X), id="straight"),
        pytest.param(lambda x: (x, None), lambda _, dy: (-0.5 * dy,), X, -X, id="reversal"),
        pytest.param(
            lambda x: (x, None), lambda _, dy: (np.clip(dy, -1.0, 1.0),), X, np.clip(2 * X, -1, 1), id="clipped"
        ),
        pytest.param(lambda x: (x * x, x), lambda x, dy: dy / (1 + x * x), X * X, 2 * X * X / (1 + X * X), id="alone"),
        pytest.param(lambda x: (x * 3.0, None), lambda _, dy: (None,), X * 3.0, 0 * X, id="none"),
        pytest.param(lambda x: (x, None), lambda _, dy: (np.ones((4, 3)),), X, np.ones((4, 3)), id="constant"),
    ],
)  # fmt: skip
def test_what_is_given_counts(f: Any, backward: Any, value: Any, gradient: Any) -> None:
    given = custom_gradient(f, backward)
    loss, found = value_and_grad(lambda p: np.sum(nn.square(given(p["x"]))))({"x": X})
    assert loss == np.sum(value * value)
    np.testing.assert_allclose(found["x"], gradient, rtol=1e-9, atol=0)
    np.testing.assert_array_equal(given(X), value)


def test_what_the_loss_does_not_depend_on_has_the_cotangent_zero() -> None:
    def f(x: Any) -> Any:
        return (x * 2.0, x * 3.0, x * 5.0), x

    def backward(x: Any, dy: Any) -> Any:
        return (dy[0] + 10.0 * dy[1] + 100.0 * dy[2] + x,)

    g = custom_gradient(f, backward)
    _, found = value_and_grad(lambda p: np.sum(g(p)[1] * X))(X)
    np.testing.assert_allclose(found, 10.0 * X + X, rtol=1e-12)
    _, none = value_and_grad(lambda p: np.sum(p) + 0.0 * np.sum(nn.stop_gradient(g(p)[0])))(X)
    np.testing.assert_array_equal(none, np.ones_like(X))


def test_integers_have_no_cotangent_on_either_side() -> None:
    labels = np.array([2, 0, 1, 1], np.int32)
    seen = []

    def f(x: Any, index: Any) -> Any:
        return {"picked": x[index], "index": index}, (index, x)

    def backward(kept: Any, dy: Any) -> Any:
        index, _ = kept
        seen.append(dy["index"])
        return (nn.one_hot(index, 4).T @ dy["picked"]) * 2.0, None

    g = custom_gradient(f, backward)
    _, found = value_and_grad(lambda p, i: np.sum(g(p, i)["picked"] * X))(X, labels)
    wanted = np.zeros_like(X)
    np.add.at(wanted, labels, 2 * X)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    assert seen == [None]


def test_what_is_not_traced_stays_as_it_is() -> None:
    """Arrays and numbers among arguments and kept are constants."""

    def f(x: Any, table: Any, power: int) -> Any:
        assert isinstance(table, np.ndarray)
        assert isinstance(power, int)
        return x * table * power, (table, power, None)

    def backward(kept: Any, dy: Any) -> Any:
        table, power, nothing = kept
        assert isinstance(table, np.ndarray)
        assert nothing is None
        return dy * table * float(power), np.zeros_like(table), None

    g = custom_gradient(f, backward)
    _, found = value_and_grad(lambda p: np.sum(nn.square(g(p, X, 2))))(X)
    np.testing.assert_allclose(found, 8 * X**3, rtol=1e-9)


def test_constants_of_a_backward_keep_their_dtype() -> None:
    order = np.array([1, 0, 2, 3], np.int32)
    g = custom_gradient(lambda x: (x, None), lambda _, dy: (dy[order] * np.float32(2),))
    x = X.astype(np.float32)
    _, found = value_and_grad(lambda p: np.sum(nn.square(g(p))))(x)
    np.testing.assert_allclose(found, 4 * x[order], rtol=1e-6)


# A training step ----------------------------------------------------------------------------------------------------

PARAMS = {"first": {"w": RNG.normal(size=(3, 8)) * 0.5, "b": RNG.normal(size=8)}, "last": RNG.normal(size=(8, 2))}
BATCH = {"x": RNG.normal(size=(8, 3)).astype("f"), "y": RNG.normal(size=(8, 2)).astype("f")}


def _dense(x: Any, p: Any) -> Any:
    with nn.name_scope("inner", x):
        y = np.tanh(x @ p["w"] + p["b"])
    return y, (x, p["w"], y)


def _dense_backward(kept: Any, dy: Any) -> Any:
    x, w, y = kept
    with nn.name_scope("inner", x):
        inner = dy * (1.0 - nn.square(y))
        return inner @ w.T, {"w": x.T @ inner, "b": np.sum(inner, 0)}


dense = custom_gradient(_dense, _dense_backward)


def model(f: Any) -> Any:
    def loss(p: Any, batch: Any) -> Any:
        with nn.name_scope("block", batch["x"]):
            hidden = f(batch["x"] * 1.5, p["first"])
        return nn.mse(hidden @ p["last"], batch["y"])

    return loss


def plain_dense(x: Any, p: Any) -> Any:
    return _dense(x, p)[0]


def f32(tree: Any) -> Any:
    return {k: f32(v) if isinstance(v, dict) else v.astype(np.float32) for k, v in tree.items()}


def about(block: Block) -> list[tuple[Any, ...]]:
    kinds = [e for e in equations_of(block) if e.op not in STRUCTURE]
    return sorted((e.op, e.role, e.family, e.parameter or "", e.layer or "", str(e.output.type)) for e in kinds)


@pytest.mark.parametrize("name", ["fp32.32", "fp16.16/stochastic", "fp8"])
def test_equations_have_the_roles_and_names_of_derivatives(name: str) -> None:
    blocks = [Precision.parse(name).apply(step_block(model(f), Sgd(0.1), f32(PARAMS), BATCH))
              for f in (dense, plain_dense)]  # fmt: skip
    assert about(blocks[0]) == about(blocks[1])
    verify(blocks[0])
    assert not calls_of(blocks[0])
    numbers = [e.draws for e in equations_of(blocks[0]) if e.draws is not None]
    assert len(set(numbers)) == len(numbers)


def test_roles_layers_and_parameters_by_name() -> None:
    block = step_block(model(dense), Sgd(0.1), f32(PARAMS), BATCH)
    names = {re.sub(r"\.\d+$", "", e.name) for e in equations_of(block) if e.role in ("grad_input", "grad_weight")}
    assert {"first.w.grad_weight.dot", "first.b.grad_weight.reduce_sum", "block.inner.grad_input.multiply"} <= names
    made = [e for e in equations_of(block) if e.role == "grad_weight" and e.parameter in ("first.w", "first.b")]
    assert {e.layer for e in made} == {"block.inner"}
    assert all(e.source is not None and e.source.startswith("test_custom_gradient") for e in made)


def test_a_gradient_reads_a_parameter_by_name() -> None:
    """As the derivative of a product does, which rules of a precision know by the weight's name."""

    def loss(p: Any, batch: Any) -> Any:
        return nn.mse(dense(np.tanh(batch["x"] @ p["zero"]), p["first"]) @ p["last"], batch["y"])

    params = f32(PARAMS | {"zero": RNG.normal(size=(3, 3))})
    block = step_block(loss, Sgd(0.1), params, BATCH)
    (found,) = [e for e in equations_of(block) if (e.op, e.role, e.parameter) == ("dot", "grad_input", "first.w")]
    assert found.output.type.shape == (8, 3)


LOOPS: dict[str, dict[str, Any]] = {
    "fp32.32": {"precision": "fp32.32"},
    "fp16.16/nearest": {"precision": "fp16.16/nearest", "loss_scale": 64.0},
    "micro-batches": {"precision": "fp16.32", "micro_batches": 4},
    "recompute": {"precision": "fp16.32", "recompute": True},
    "fp8": {"precision": "fp8"},
}


@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
@pytest.mark.parametrize("options", LOOPS.values(), ids=LOOPS.keys())
@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_a_true_derivative_trains_as_autodiff_s(options: dict[str, Any], engine: str) -> None:
    if options["precision"] == "fp8" and engine == "tiles":
        options = options | {"target": "c600"} | {"precision": "fp8.16"}
    losses = []
    for f in (dense, plain_dense):
        loop = TrainLoop(model(f), f32(PARAMS), BATCH, optimizer=Sgd(0.1), engine=engine, **options)
        losses.append([float(loop.train(BATCH)) for _ in range(3)])
    assert losses[0] == losses[1]


def test_a_predictor_computes_f_alone() -> None:
    def scores(f: Any) -> Any:
        return lambda p, x: f(x, p["first"]) @ p["last"]

    found = [Predictor(scores(f), f32(PARAMS), BATCH["x"], precision="fp16.16/nearest") for f in (dense, plain_dense)]
    assert about(found[0].block) == about(found[1].block)
    np.testing.assert_array_equal(found[0](BATCH["x"]), found[1](BATCH["x"]))


def test_a_block_that_is_run_keeps_nothing() -> None:
    def f(x: Any) -> Any:
        return x * 2.0, np.exp(x)

    g = custom_gradient(f, lambda kept, dy: (dy * kept,))
    block = trace(lambda x: g(x) + 1.0, X)
    assert [e.op for e in block.equations] == ["multiply", "exp", "custom_gradient", "add"]
    assert [e.op for e in as_it_runs(block).equations] == ["multiply", "stop_gradient", "add"]
    verify(block)
    np.testing.assert_allclose(execute(block, X.astype("f"), key=0), 2 * X.astype("f") + 1, rtol=1e-6)
    again = pickle.loads(pickle.dumps(block))
    np.testing.assert_array_equal(evaluate_flat(differentiate_sum(again), [X])[1], np.exp(X))
    assert "rule=f, result=0" in str(block)


def differentiate_sum(block: Block) -> Block:
    return differentiate(trace(lambda x: np.sum(interpret(block, [x])[0]), X))


def test_a_mask_that_is_kept_is_used_again_and_another_is_drawn_anew() -> None:
    def f(x: Any) -> Any:
        y = nn.dropout(x, 0.5)
        return y, np.greater(np.abs(y), 0.0)

    def backward(mask: Any, dy: Any) -> Any:
        return (mask * dy + 0.0 * nn.dropout(dy, 0.5),)

    g = custom_gradient(f, backward)
    block = differentiate(trace(lambda p: np.sum(nn.square(g(p["x"]))), {"x": X}))
    draws = [e.draws for e in block.equations if e.op == "dropout_mask"]
    assert len(set(draws)) == 2
    value, gradient = evaluate_flat(block, [X], key=3)
    kept = gradient != 0
    assert 0 < kept.sum() < kept.size
    np.testing.assert_allclose(gradient[kept], 4 * X[kept], rtol=1e-9)
    assert value == pytest.approx(np.sum((2 * X[kept]) ** 2))


# Second derivatives -------------------------------------------------------------------------------------------------


def test_the_derivative_of_a_given_gradient_is_that_of_its_equations() -> None:
    """And the value keeps its own: sign(x)^3 has 3 sign(x)^2, and of that 6 sign(x), by way of rules of 1."""
    straight = custom_gradient(lambda x: (sign(x), None), lambda _, dy: (dy,))

    def slope(p: Any) -> Any:
        return np.sum(value_and_grad(lambda q: np.sum(straight(q) * straight(q) * straight(q)))(p)[1])

    _, second = value_and_grad(slope)(X)
    np.testing.assert_allclose(second, 6 * np.sign(X), rtol=1e-9)


def test_second_derivatives_of_a_true_derivative() -> None:
    def first(f: Any, p: Any) -> Any:
        _, g = value_and_grad(lambda q: np.sum(nn.square(f(q["x"], q["w"]))))(p)
        return np.sum(g["x"] * X) + np.sum(g["w"] * W)

    both_ways(first, layer, plain_layer, {"x": X, "w": W})


# Unit scaling -------------------------------------------------------------------------------------------------------


def _unit_model(f: Callable[[Any], Any]) -> Any:
    def loss(p: Any, batch: Any) -> Any:
        h = f(np.tanh(batch["x"] @ p["a"])) + batch["x"] @ p["c"]
        return nn.mse(h @ p["b"], batch["y"])

    return loss


UNIT = {k: RNG.normal(size=n) for k, n in {"a": (3, 32), "c": (3, 32), "b": (32, 2)}.items()}
WIDE = {"x": RNG.normal(size=(8, 3)), "y": RNG.normal(size=(8, 2))}


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_unit_scaling_leaves_a_given_gradient_true(scale: float) -> None:
    """Gradients are those of the function with its factors, up to one positive number for each parameter."""

    def f(x: Any) -> Any:
        return np.exp(x * scale) * 0.25, np.exp(x * scale)

    given = custom_gradient(f, lambda kept, dy: (dy * kept * (0.25 * scale),))
    found = value_and_grad(unit_scale(_unit_model(given)))(UNIT, WIDE)
    h = 1e-6
    for name, gradient in found[1].items():
        step = RNG.normal(size=gradient.shape)
        loss = unit_scale(_unit_model(given))
        ends = [loss(UNIT | {name: UNIT[name] + sign * h * step}, WIDE) for sign in (1, -1)]
        slope, factor = (ends[0] - ends[1]) / (2 * h), np.vdot(gradient, step)
        other = RNG.normal(size=gradient.shape)
        ends = [loss(UNIT | {name: UNIT[name] + sign * h * other}, WIDE) for sign in (1, -1)]
        assert (ends[0] - ends[1]) / (2 * h) / np.vdot(gradient, other) == pytest.approx(slope / factor, rel=1e-5)
        assert slope / factor > 0


def test_under_unit_scaling_what_is_not_proportional_gets_the_gradient_itself() -> None:
    """A bound on a gradient is one on the loss's own: a gradient that unit scaling multiplies would meet another."""

    def loss_with(rule: Any) -> Any:
        given = custom_gradient(lambda x, e: (x + e, None), rule)

        def loss(p: Any, batch: Any) -> Any:
            return _unit_model(lambda h: given(h, p["e"]))(p, batch)

        return unit_scale(loss)

    params = UNIT | {"e": np.zeros((8, 32))}
    free = loss_with(lambda _, dy: (dy, dy))
    gradient = value_and_grad(free)(params, WIDE)[1]["e"]
    step = 1e-6 * RNG.normal(size=(8, 32))
    slope = free(params | {"e": step}, WIDE) - free(params | {"e": -step}, WIDE)
    true = gradient * slope / np.vdot(gradient, 2 * step)
    bound = float(np.median(np.abs(true)))
    above = loss_with(lambda _, dy: (dy, np.where(np.abs(dy) > bound, 1.0, 0.0)))
    found = value_and_grad(above)(params, WIDE)[1]["e"]
    np.testing.assert_array_equal(found != 0, np.abs(true) > bound)
    assert abs(np.median(np.abs(gradient)) / bound - 1) > 0.1  # unit scaling has a factor there, if it may


@pytest.mark.parametrize(
    ("backward", "proportional"),
    [
        (lambda kept, dy: -dy * kept, True),
        (lambda kept, dy: np.sum(dy) * kept, True),
        (lambda kept, dy: np.where(kept > 0, dy, 0.0), True),
        (lambda kept, dy: np.maximum(dy, 0.0), True),
        (lambda kept, dy: nn.reshape(dy, (3, 4)).T.reshape(4, 3), True),
        (lambda kept, dy: (dy @ kept.T) @ kept, True),
        (lambda kept, dy: np.clip(dy, -1.0, 1.0), False),
        (lambda kept, dy: dy * dy, False),
        (lambda kept, dy: dy + kept, False),
        (lambda kept, dy: kept / dy, False),
        (lambda kept, dy: np.where(dy > 0, dy, kept), False),
        (lambda kept, dy: kept * 1.0, False),
        (lambda kept, dy: np.tanh(dy), False),
    ],
)
def test_which_rules_pass_factors_on(backward: Any, proportional: bool) -> None:
    g = custom_gradient(lambda x: (x, x * 2.0), lambda kept, dy: (backward(kept, dy),))
    (call,) = calls_of(trace(lambda x: g(x) * 1.5, X)).values()
    assert call.rule.proportional is proportional


# Refusals -----------------------------------------------------------------------------------------------------------


def _identity(x: Any) -> Any:
    return x, None


def _two(x: Any, w: Any) -> Any:
    return x @ w, None


REFUSED: dict[str, tuple[Any, Any, Sequence[Any], type[Exception], str]] = {
    "no pair": (lambda x: x * 2.0, None, (X,), TypeError, r"must give \(result, what is kept\), not TracedArray"),
    "three": (lambda x: (x, x, x), None, (X,), TypeError, "not 3 values"),
    "too few": (_two, lambda k, dy: (dy,), (X, W), ValueError, r"a cotangent for 1 of the 2 arguments \(x, w\)"),
    "too many": (_identity, lambda k, dy: (dy, dy), (X,), ValueError, r"for 2 of the 1 arguments \(x\)"),
    "shape": (_two, lambda k, dy: (None, dy), (X, W), ValueError, r"for w must have its shape \(3, 5\), not \(4, 5\)"),
    "number": (_identity, lambda k, dy: (1.0,), (X,), ValueError, r"for x must have its shape \(4, 3\), not \(\)"),
    "words": (_identity, lambda k, dy: ("dy",), (X,), TypeError, "for x must be an array of floats or None, not 'dy'"),
    "integers": (_identity, lambda k, dy: (np.zeros((4, 3), np.int32),), (X,), TypeError,
                 "for x must hold floats, not int32"),
    "of integers": (lambda x, i: (x[i], None), lambda k, dy: (None, np.ones(2)), (X, np.array([0, 1], np.int32)),
                    TypeError, "for i must be None: that holds int32 numbers"),
    "nested": (lambda p: (p["a"] + p["b"], None), lambda k, dy: ({"a": dy},), ({"a": X, "b": X},), ValueError,
               r"for p is not nested as that is \(a, b\): \{a\}"),
    "leaf": (lambda p: (p["a"] + p["b"], None), lambda k, dy: ({"a": dy, "b": np.sum(dy)},), ({"a": X, "b": X},),
             ValueError, r"for p\.b must have its shape \(4, 3\), not \(\)"),
    "kept": (lambda x: (x, {"name": "x"}), None, (X,), TypeError, "arrays and numbers can be kept, not 'x'"),
    "result": (lambda x: ("x", None), None, (X,), TypeError, "arrays or numbers, not str"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused_by_name(case: Any) -> None:
    f, backward, x, error, words = case
    g = custom_gradient(f, backward or (lambda kept, dy: (dy,)))
    with pytest.raises(error, match=words):
        trace(g, *x)


def test_no_functions() -> None:
    with pytest.raises(TypeError, match="two functions; backward is None"):
        custom_gradient(_identity, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="two functions; f is 3"):
        custom_gradient(3, _identity)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must give"):
        custom_gradient(lambda x: x, _identity)(X)


CLOSURES: dict[str, Callable[[Any, Any], Any]] = {
    "meets": lambda x, w: custom_gradient(lambda x: (x @ w, x), lambda k, dy: (dy @ w.T,))(x),
    "result": lambda x, w: np.sum(custom_gradient(lambda x: ((x, w * 2.0), None), lambda k, dy: (dy[0],))(x)[1]),
    "kept": lambda x, w: custom_gradient(lambda x: (x, w), lambda k, dy: (dy,))(x),
    "of arrays": lambda x, w: custom_gradient(lambda x: (x @ w, None), lambda k, dy: (dy,))(X),
}


@pytest.mark.parametrize("f", CLOSURES.values(), ids=CLOSURES.keys())
def test_a_parameter_from_outside_does_not_lose_its_gradient_in_silence(f: Any) -> None:
    with pytest.raises(ValueError, match="uses a traced value that is none of its arguments, whose gradient would be"):
        value_and_grad(lambda p: np.sum(f(p["x"], p["w"])))({"x": X, "w": W})


@pytest.mark.parametrize("backward", [lambda w: lambda k, dy: (dy @ w.T,), lambda w: lambda k, dy: (w[:, :4].T,)])
def test_a_backward_uses_what_is_kept_alone(backward: Any) -> None:
    def loss(p: Any) -> Any:
        return np.sum(custom_gradient(lambda x, u: (x @ u, None), backward(p["w"]))(p["x"], p["w"]))

    with pytest.raises(ValueError, match=r"its backward, or .* uses a traced value that is neither kept nor"):
        value_and_grad(loss)({"x": X, "w": W})


def test_an_equation_of_a_call_says_what_it_shows() -> None:
    block = trace(lambda x: custom_gradient(_identity, lambda k, dy: (dy,))(x), X)
    (equation,) = block.equations
    assert isinstance(equation, Equation)
    assert str(equation.params) == "rule=_identity, result=0"
