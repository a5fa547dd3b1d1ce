"""Reversible layers: their gradients, what they keep, what they make again, and refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipu_core import Precision, Predictor, Sgd, TrainLoop, nn, unit_scale, value_and_grad
from ipu_core.ir.block import Block
from ipu_core.ir.bodies import equations_of
from ipu_core.ir.gradient_rule import calls_of
from ipu_core.ir.ops import STRUCTURE
from ipu_core.ir.pytree import flatten
from ipu_core.ir.trace.tracing import trace
from ipu_core.ir.verify import verify
from ipu_core.train.step import step_block

RNG = np.random.default_rng(5)


def branch(p: Any, x: Any) -> Any:
    return nn.gelu(x @ p["w"] + p["b"])


def other(p: Any, x: Any) -> Any:
    with nn.name_scope("other", x):
        return np.tanh(nn.layer_norm(x)) @ p["w"] * p["b"]


layer = nn.reversible(branch, other)


def stored(params_f: Any, params_g: Any, x1: Any, x2: Any) -> Any:
    """The same layer, of which autodiff keeps what it needs."""
    y1 = x1 + branch(params_f, x2)
    return y1, x2 + other(params_g, y1)


def weights(width: int, depth: int, dtype: Any = np.float64) -> Any:
    def one() -> Any:
        return {"w": (RNG.normal(size=(width, width)) / np.sqrt(width)).astype(dtype),
                "b": RNG.normal(size=width).astype(dtype)}  # fmt: skip

    layers = [{"f": one(), "g": one()} for _ in range(depth)]
    return {"layers": layers, "out": RNG.normal(size=(2 * width, 1)).astype(dtype)}


def batch_of(rows: int, width: int, dtype: Any = np.float64) -> Any:
    return {"x": RNG.normal(size=(rows, width)).astype(dtype), "y": RNG.normal(size=(rows, 1)).astype(dtype)}


def model(of_layer: Callable[..., Any], between: Callable[..., Any] = lambda x1, x2: (x1, x2)) -> Any:
    def loss(p: Any, batch: Any) -> Any:
        x1 = np.tanh(batch["x"])
        x2 = x1 * 0.5
        for number, one in enumerate(p["layers"]):
            with nn.name_scope(f"block.{number}", x1):
                x1, x2 = of_layer(one["f"], one["g"], x1, x2)
            x1, x2 = between(x1, x2)
        return nn.mse(np.concatenate([x1, x2], 1) @ p["out"], batch["y"])

    return loss


def alike(given: Any, true: Any) -> None:
    for one, two in zip(flatten(given)[0], flatten(true)[0], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


BETWEEN: dict[str, Any] = {
    "nothing": lambda x1, x2: (x1, x2),
    "exchanged": lambda x1, x2: (x2, x1),
    "something": lambda x1, x2: (np.sin(x1), x2 * x1),
    "half": lambda x1, x2: (x1, x2 * 0.5),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN.keys())
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_gradients_are_those_of_stored_activations(between: Any, depth: int) -> None:
    params, batch = weights(6, depth), batch_of(4, 6)
    value, gradients = value_and_grad(model(layer, between))(params, batch)
    wanted, true = value_and_grad(model(stored, between))(params, batch)
    assert value == wanted
    alike(gradients, true)


def test_gradients_of_inputs_and_of_results_used_elsewhere() -> None:
    p = weights(6, 2) | {"x1": RNG.normal(size=(4, 6)), "x2": RNG.normal(size=(4, 6))}

    def loss(of_layer: Any) -> Any:
        def f(p: Any) -> Any:
            a, b = p["layers"]
            y1, y2 = of_layer(a["f"], a["g"], p["x1"], p["x2"])
            z1, _ = of_layer(b["f"], b["g"], y1, y2)
            return np.sum(z1 * y2) + np.sum(np.sin(y1) * p["x1"])

        return f

    alike(value_and_grad(loss(layer))(p), value_and_grad(loss(stored))(p))


def test_second_derivatives() -> None:
    params, batch = weights(4, 2), batch_of(3, 4)

    def slope(of_layer: Any) -> Any:
        return lambda p: np.sum(value_and_grad(model(of_layer))(p, batch)[1]["layers"][0]["f"]["w"] * np.eye(4))

    alike(value_and_grad(slope(layer))(params)[1], value_and_grad(slope(stored))(params)[1])


def test_arrays_are_computed_at_once() -> None:
    params = weights(6, 1)["layers"][0]
    x1, x2 = RNG.normal(size=(2, 4, 6))
    for one, two in zip(layer(params["f"], params["g"], x1, x2), stored(params["f"], params["g"], x1, x2), strict=True):
        np.testing.assert_array_equal(one, two)


# What is kept -------------------------------------------------------------------------------------------------------


def kept(block: Block) -> dict[str, int]:
    """The arrays of a batch's rows that the forward part makes before the loss and gradients read, by operation."""
    equations = list(equations_of(block))
    first = next(i for i, e in enumerate(equations) if e.role in ("grad_input", "grad_weight"))
    views = {e.output: e.operands[0] for e in equations if e.op in STRUCTURE and len(e.operands) == 1}

    def root(var: Any) -> Any:
        while var in views:
            var = views[var]
        return var

    made = {e.output: e for e in equations[:first]}
    read = {root(var) for e in equations[first:] for var in e.operands if e.op not in STRUCTURE}
    return {str(var): var.type.size for var in read & made.keys() if var.type.shape[:1] == (32,)}


def test_a_stack_keeps_the_results_of_its_last_layer_alone() -> None:
    found = {}
    for depth in (2, 9):
        params, batch = weights(8, depth, np.float32), batch_of(32, 8, np.float32)
        found[depth] = {len(kept(step_block(model(f), Sgd(0.1), params, batch))) for f in (layer, stored)}
        reversible, plain = (len(kept(step_block(model(f), Sgd(0.1), params, batch))) for f in (layer, stored))
        found[depth] = (reversible, plain)
    assert found[2][0] == found[9][0] <= 4
    assert found[9][1] >= found[2][1] + 7 * 4


def live(depth: int, f: Any, **options: Any) -> int:
    """The most bytes of temporaries that live at a time, on all tiles."""
    params, batch = weights(16, depth, np.float32), batch_of(1024, 16, np.float32)
    loop = TrainLoop(
        model(f), params, batch, optimizer=Sgd(0.1), precision="fp16.16/nearest", engine="tiles", **options
    )
    assert loop.profile is not None
    memory = loop.profile.memory
    return max(point.total for point in memory.lifetimes) - memory.always_bytes


@pytest.mark.filterwarnings("ignore::ipu_core.errors.NothingSaved")  # of a model as small as this
@pytest.mark.parametrize(
    ("few", "many", "options"),
    [
        (4, 16, {}),
        (4, 12, {"reorder": False}),
        (4, 12, {"micro_batches": 2}),
        (8, 16, {"recompute": True}),
    ],  # with 4 the peak lies in the loss
    ids=["plain", "as traced", "micro-batches", "recompute"],
)
def test_live_temporaries_do_not_grow_with_depth(few: int, many: int, options: dict[str, Any]) -> None:
    below, above = (live(depth, layer, **options) for depth in (few, many))
    assert above <= 1.05 * below
    if not options:
        kept = [live(depth, stored, parallel=False) for depth in (few, many)]  # paths take room that is free with few
        assert kept[1] > 2 * kept[0] > 2 * below


# A training step ----------------------------------------------------------------------------------------------------


def test_what_is_made_again_is_forward_and_drawn_anew() -> None:
    params, batch = weights(8, 3, np.float32), batch_of(32, 8, np.float32)
    block = Precision.parse("fp16.16/stochastic").apply(step_block(model(layer), Sgd(0.1), params, batch))
    verify(block)
    draws = [e.draws for e in equations_of(block) if e.draws is not None]
    assert len(set(draws)) == len(draws)
    of_f = [e for e in equations_of(block) if e.op == "gelu"]
    assert [e.role for e in of_f] == ["forward"] * 5  # of the first layer only the derivative reads what is made again
    assert sorted(e.layer or "" for e in of_f) == [f"block.{n}" for n in (0, 1, 1, 2, 2)]
    assert sum(e.op == "subtract" and e.role == "forward" and e.layer == "block.1" and e.family == "elementwise"
               for e in equations_of(block)) == 2  # fmt: skip
    assert all(e.output.type.format == block.inputs[0].type.format for e in of_f)


@pytest.mark.parametrize("name", ["fp32.32", "fp16.16/stochastic", "fp8"])
def test_derivatives_have_the_names_and_roles_of_stored_ones(name: str) -> None:
    params, batch = weights(8, 3, np.float32), batch_of(32, 8, np.float32)

    def about(f: Any) -> list[tuple[str, ...]]:
        block = Precision.parse(name).apply(step_block(model(f), Sgd(0.1), params, batch))
        ops = [e for e in equations_of(block) if e.role in ("grad_input", "grad_weight") and e.op == "dot"]
        return sorted((e.role, e.parameter or "", e.layer or "", str(e.output.type)) for e in ops)

    assert about(layer) == about(stored)


OPTIONS: dict[str, dict[str, Any]] = {
    "fp32.32": {"precision": "fp32.32"},
    "fp16.16/stochastic": {"precision": "fp16.16/stochastic", "loss_scale": 64.0},
    "micro-batches": {"precision": "fp16.32", "micro_batches": 4},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_training_is_the_same_on_both_engines_and_recomputed(options: dict[str, Any]) -> None:
    params, batch = weights(8, 3, np.float32), batch_of(32, 8, np.float32)
    runs = []
    for more in ({"engine": "direct"}, {"engine": "tiles"}, {"engine": "direct", "recompute": True}):
        loop = TrainLoop(model(layer), params, batch, optimizer=Sgd(0.005), **options, **more)
        runs.append(loop.run(lambda step: batch, 4).tobytes())
    assert len(set(runs)) == 1
    plain = TrainLoop(model(stored), params, batch, optimizer=Sgd(0.005), engine="direct", **options)
    near = plain.run(lambda step: batch, 4)
    np.testing.assert_allclose(np.frombuffer(runs[0], np.float32), near, rtol=2e-2)
    assert options["precision"] != "fp32.32" or np.allclose(np.frombuffer(runs[0], np.float32), near, rtol=1e-5)


def test_a_predictor_makes_nothing_again() -> None:
    params, x = weights(8, 2, np.float32), RNG.normal(size=(4, 8)).astype(np.float32)

    def scores(f: Any) -> Any:
        def of(p: Any, x: Any) -> Any:
            x1, x2 = x, x
            for one in p["layers"]:
                x1, x2 = f(one["f"], one["g"], x1, x2)
            return x1 + x2

        return of

    found = [Predictor(scores(f), params, x, precision="fp16.16/nearest") for f in (layer, stored)]
    one, two = (sum(e.op not in STRUCTURE for e in equations_of(p.block)) for p in found)
    assert one == two
    np.testing.assert_array_equal(found[0](x), found[1](x))


def test_under_unit_scaling_gradients_stay_true() -> None:
    """Up to one positive number for each parameter, as everywhere there."""
    params, batch = weights(4, 2), batch_of(4, 4)
    scaled = unit_scale(model(layer))
    assert all(call.rule.proportional for call in calls_of(scaled.block(params, batch)).values())
    _, gradients = value_and_grad(scaled)(params, batch)
    h = 1e-6
    for name in ("f", "g"):
        gradient, ratios = gradients["layers"][0][name]["w"], []
        for _ in range(2):
            step = RNG.normal(size=gradient.shape)
            ends = []
            for sign in (1, -1):
                first = params["layers"][0]
                moved = first | {name: first[name] | {"w": first[name]["w"] + sign * h * step}}
                ends.append(scaled(params | {"layers": [moved, *params["layers"][1:]]}, batch))
            ratios.append((ends[0] - ends[1]) / (2 * h) / np.vdot(gradient, step))
        assert ratios[0] == pytest.approx(ratios[1], rel=1e-4)
        assert ratios[0] > 0


# Refusals -----------------------------------------------------------------------------------------------------------

X = RNG.normal(size=(4, 3))
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "shape": (lambda p, x: x[:, :1], lambda p, x: x, r"f gives the shape \(4, 1\), x1 has \(4, 3\)"),
    "second": (lambda p, x: x, lambda p, x: np.sum(x), r"g gives the shape \(\), x2 has \(4, 3\)"),
    "dropout": (lambda p, x: nn.dropout(x, 0.5), lambda p, x: x, "dropout would draw another mask"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_undone_is_refused(case: Any) -> None:
    f, g, words = case
    with pytest.raises(ValueError, match=words):
        trace(nn.reversible(f, g), None, None, X, X)


def test_functions_and_parameters_from_outside() -> None:
    with pytest.raises(TypeError, match="takes two functions; g is 2"):
        nn.reversible(branch, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="f must give an array"):
        trace(nn.reversible(lambda p, x: None, branch), None, None, X, X)  # type: ignore[arg-type, return-value]

    def loss(p: Any) -> Any:
        return np.sum(nn.reversible(lambda _, x: x @ p["w"], lambda _, x: x)(None, None, p["x"], p["x"])[0])

    with pytest.raises(ValueError, match="uses a traced value that is none of its arguments"):
        value_and_grad(loss)({"w": np.eye(3), "x": X})


def test_branches_without_parameters_or_without_a_gradient() -> None:
    odd = nn.reversible(lambda p, x: np.ones((4, 3)) * p, lambda p, x: np.where(x > 0, 1.0, 0.0))
    _, found = value_and_grad(lambda p: np.sum(nn.square(odd(p["p"], None, p["x"], p["x"])[1])))({"p": 2.0 * X, "x": X})
    y2 = X + np.where(X + 2 * X > 0, 1.0, 0.0)
    np.testing.assert_allclose(found["x"], 2 * y2, rtol=1e-9)
    np.testing.assert_array_equal(found["p"], np.zeros_like(X))
