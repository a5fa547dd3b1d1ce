"""Each primitive of JAX that is in the table: values and gradients are those of JAX; others are refused."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipu_core
from ipu_core import from_jax
from ipu_core.errors import NotCovered
from ipu_core.frontends.jax.operations import OPERATIONS
from tests.ipu_core.frontends.jax_peer import check_step, jax

jnp, lax = jax.numpy, jax.lax
jaxprs_in_params = importlib.import_module("jax.extend.core").jaxprs_in_params
Function = Callable[..., Any]

rows = np.array([2, 0, 3, 3], np.int32)
SIGNALS = ("NWC", "WIO", "NWC")
MASK = np.array([[1, 0, 1, 1, 0, 1]] * 4, bool)

UNARY: dict[str, Function] = {
    "neg": lambda x: -x, "abs": jnp.abs, "square": jnp.square, "sqrt": lambda x: jnp.sqrt(x * x + 1),
    "rsqrt": lambda x: lax.rsqrt(x * x + 1), "exp": jnp.exp, "log": lambda x: jnp.log(x * x + 1), "tanh": jnp.tanh,
    "erf": lax.erf, "logistic": lax.logistic, "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan, "exp2": jnp.exp2,
    "expm1": jnp.expm1, "log1p": lambda x: jnp.log1p(x * x), "sinh": jnp.sinh, "cosh": jnp.cosh, "asinh": jnp.arcsinh,
    "atanh": lambda x: jnp.arctanh(x / 8), "erfc": lax.erfc, "sign": jnp.sign,
    "floor": lambda x: jnp.floor(4 * x) * x, "ceil": lambda x: jnp.ceil(4 * x) * x,
    "round": lambda x: (jnp.round(4 * x) + lax.round(4 * x)) * x + lax.round(jnp.round(8 * x) / 2) * x,
    "rem": lambda x: lax.rem(4 * x, x[:1] + 9) + 4 * x % 1.5 + jnp.fmod(4 * x, 0.7) + (4 * x // 0.7) * x,
    "is_finite": lambda x: jnp.where(jnp.isfinite(x), x, 0.0),
    "pow": lambda x: jnp.power(x * x + 1, 2.5) + jnp.power(x * x + 1, 0.3),
    "integer_pow": lambda x: x**3 + (x + 9) ** -2,
    "clamp": lambda x: lax.clamp(-0.5, x, 0.5), "select_n": lambda x: jnp.where(MASK, x, -1.0),
    "stop_gradient": lambda x: x * lax.stop_gradient(x), "add": lambda x: x + 1, "sub": lambda x: 2 - x,
    "add_any": lambda x: jax.grad(lambda y: (jnp.sin(y) + y * y).sum())(x),
    "mul": lambda x: x * x[:1], "div": lambda x: 1 / (x * x + 1), "max": lambda x: jnp.maximum(x, 0.1),
    "min": lambda x: jnp.minimum(x, x[:, :1]), "eq": lambda x: jnp.where(x == x, x, 0.0),
    "ne": lambda x: jnp.where(x != x[0], x, 1.0), "gt": lambda x: jnp.where(x > 0, x, 1.0),
    "lt": lambda x: jnp.where(x < 0, x, 1.0), "ge": lambda x: jnp.where(x >= 0, x, 1.0),
    "le": lambda x: jnp.where(x <= 0, x, 1.0), "and": lambda x: jnp.where((x > 0) & MASK, x, 1.0),
    "or": lambda x: jnp.where((x > 0) | MASK, x, 1.0), "not": lambda x: jnp.where(~(x > 0), x, 1.0),
    "xor": lambda x: jnp.where((x > 0) ^ MASK, x, 1.0),
    "convert_element_type": lambda x: x * (x > 0).astype(jnp.float32),
    "copy": lambda x: jnp.array(x, copy=True), "reduce_precision": lambda x: lax.reduce_precision(x, 8, 23),
}  # fmt: skip
MOVES: dict[str, Function] = {
    "reshape": lambda x: x.reshape(2, 12), "squeeze": lambda x: x[0], "expand_dims": lambda x: jnp.expand_dims(x, 1),
    "broadcast_in_dim": lambda x: jnp.broadcast_to(x[:, None], (4, 3, 6)), "slice": lambda x: x[1:, ::2],
    "transpose": lambda x: x.T, "rev": lambda x: x[::-1, ::-1], "concatenate": lambda x: jnp.concatenate([x, x[:2]]),
    "stack": lambda x: jnp.stack([x, 2 * x], 1), "pad": lambda x: lax.pad(x, 1.5, ((1, 2, 1), (-1, 2, 0))),
    "split": lambda x: jnp.split(x, 3, 1)[1], "tile": lambda x: jnp.tile(x, (2, 3)),
    "gather": lambda x: x[jnp.array([0, 2, -1])] @ x[:, np.array([1, 0, 5, -2, 3, 3])].T @ x,
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (1, 2), (2, 3)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, 2 * x[:2, :2], (1, 3)),
    "scatter-add": lambda x: x.at[jnp.array([0, 2, 2])].add(x[:3] * 2),
    "scatter": lambda x: x.at[1, 2:4].set(7.0) + x.at[np.array([0, 2])].set(3 * x[:2]),
    "scatter-mul": lambda x: x.at[jnp.array([2, 0])].multiply(x[:2], unique_indices=True),
    "scatter-max": lambda x: finite(jax.ops.segment_max(x, rows, 5)),
    "scatter-min": lambda x: finite(jax.ops.segment_min(x, rows, 5)),
}  # fmt: skip
SUMS: dict[str, Function] = {
    "dot_general": lambda x: jnp.einsum("ij,kj->ik", x, x) @ x, "reduce_sum": lambda x: x.sum(0),
    "reduce_max": lambda x: x.max(1), "reduce_min": lambda x: x.min((0, 1)), "reduce_prod": lambda x: (x + 2).prod(1),
    "reduce_and": lambda x: x * (x > -9).all(), "reduce_or": lambda x: x * (x > 0).any(1, keepdims=True),
    "cumsum": lambda x: jnp.cumsum(x, 1) + lax.cumsum(x, 0, reverse=True),
    "cumprod": lambda x: jnp.cumprod(x, 1) + lax.cumprod(x, 0, reverse=True), "top_k": lambda x: lax.top_k(x, 2)[0],
    "sort": lambda x: jnp.sort(x, 0) + jnp.take_along_axis(x, jnp.argsort(-x, 1), 1),
    "argmax": lambda x: x * jax.nn.one_hot(jnp.argmax(x, 1), 6), "argmin": lambda x: x[jnp.argmin(x, 0)],
    "reduce_window_max": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (1, 2), "SAME"),
    "reduce_window_sum": lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (2, 2), "VALID"),
    "conv_general_dilated": lambda x: jax.nn.relu(
        lax.conv_general_dilated(x.reshape(2, 6, 2), x.reshape(3, 2, 4), (1,), "SAME", dimension_numbers=SIGNALS)
    ),
}  # fmt: skip
FUNCTIONS: dict[str, Function] = {
    **{f.__name__: f for f in (jax.nn.gelu, jax.nn.silu, jax.nn.relu6, jax.nn.elu, jax.nn.softplus, jax.nn.log_sigmoid,
                               jax.nn.softmax, jax.nn.log_softmax, jax.nn.logsumexp, jax.nn.standardize)},
    "norm": jnp.linalg.norm, "var": jnp.var, "logaddexp": lambda x: jnp.logaddexp(x, x[0]),
    "roll": lambda x: jnp.roll(x, 2, 1), "repeat": lambda x: jnp.repeat(x, 2, 1), "triangle": lambda x: jnp.tril(x),
    "pad": lambda x: jnp.pad(x, 1, mode="reflect"),
    "diagonal": lambda x: jnp.diagonal(x), "remat": lambda x: jax.checkpoint(jnp.sin)(x),
    "batched product": lambda x: jnp.einsum("bij,bkj->bik", x.reshape(2, 3, 4), x.reshape(2, 3, 4)),
    "scan": lambda x: lax.scan(lambda c, y: (jnp.tanh(c + y), c * y), x[0], x, reverse=True)[1],
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, y: y * 1.5 + i, x),
    "counted": lambda x: lax.fori_loop(0, 3, lambda i, c: (c[0] + 2, jnp.sin(c[1]) + x), (1, x))[1] * x,
    "count": lambda x: lax.fori_loop(0, 3, lambda i, c: (c[0] + 2, jnp.sin(c[1])), (1, x))[0] * x,
    "count of values": lambda x: lax.fori_loop(
        0, 4, lambda i, c: (c[0] + (c[1][0, 0] > 0).astype(jnp.int32), jnp.sin(c[1] + 1.5)), (0, -x)
    )[0] * x,
    "rounds": lambda x: lax.fori_loop(0, 3, lambda i, c: c * x[i], x),
    "branch": lambda x: lax.cond(jnp.array(True), jnp.sin, jnp.cos, x),
    "branch of a value": lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "vmap": lambda x: jax.vmap(lambda r: r @ r)(x),
    "constant draws": lambda x: x * jax.random.bernoulli(jax.random.key(1), 0.5, x.shape),
}  # fmt: skip
INDICES: dict[str, Function] = {
    "rows": lambda x, i: x[i], "columns": lambda x, i: x[:, i], "one of each row": lambda x, i: x[jnp.arange(4), i],
    "along an axis": lambda x, i: jnp.take_along_axis(x, i[:, None], 1), "take": lambda x, i: jnp.take(x, i, 0),
    "ones": lambda x, i: jax.nn.one_hot(i, 6) * x, "numbers": lambda x, i: x * i[:, None],
    "one element": lambda x, i: jnp.median(x) + x.reshape(-1)[i[:1]] * 0.5,
    "sums of segments": lambda x, i: jax.ops.segment_sum(x, i, 7) + jax.ops.segment_sum(x[:, :1], i, num_segments=7),
    "added rows": lambda x, i: x.at[i].add(x * 2), "added columns": lambda x, i: jnp.sin(x).at[:, i].add(x[:, :4]),
    "elements": lambda x, i: x[i, i] + jnp.tile(x, (4, 1)).reshape(4, 4, 6)[i, i, i],
    "rows put": lambda x, i: jnp.sin(x).at[i].set(x * 2), "columns put": lambda x, i: x.at[:, i].set(0.0),
    "rows put that differ": lambda x, i: x.at[i[:3]].set(x[:3] * 2, unique_indices=True),
    "rows multiplied": lambda x, i: x.at[i[:3]].multiply(x[:3], unique_indices=True),
    "elements added": lambda x, i: x.at[i, i].add(x[0, :4]) + x.at[jnp.arange(4), i].add(x[:, 0]),
    "largest": lambda x, i: finite(jax.ops.segment_max(x, i, 5)),
    "smallest": lambda x, i: finite(jax.ops.segment_min(x, i, 5)),
    "dropped": lambda x, i: jax.ops.segment_sum(x, np.array([2, -1, 7, -9]), 4) + jax.ops.segment_sum(x, i, 3).sum(),
    "branches": lambda x, i: lax.switch(i[0], [jnp.sin, jnp.cos, jnp.tanh], x),
    "branch of whole numbers": lambda x, i: x[lax.cond(i[0] > 1, lambda j: j, lambda j: j[::-1], i)],
    "comparison": lambda x, i: jnp.where((i > 1)[:, None], x, 0.0),
}  # fmt: skip


def finite(x: Any) -> Any:
    """0 for the infinity of a segment without rows."""
    return jnp.where(jnp.isinf(x), 0.0, x)


def array(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(4, 6)).astype(np.float32)


def weighed(f: Function) -> Function:
    """A number that depends on every element of a result."""

    def loss(params: Any, batch: Any) -> Any:
        made = f(params, *batch)
        return (made * jnp.asarray(np.random.default_rng(1).normal(size=made.shape), jnp.float32)).sum()

    return loss


def primitives(jaxpr: Any) -> set[str]:
    """Names of all primitives, also in functions in functions."""
    found = set()
    for equation in jaxpr.eqns:
        found.add(equation.primitive.name)
        for inner in jaxprs_in_params(equation.params):
            found |= primitives(getattr(inner, "jaxpr", inner))
    return found


KNOWN = {**UNARY, **MOVES, **SUMS}


@pytest.mark.parametrize("name", KNOWN)
def test_primitives_are_those_of_jax(name: str) -> None:
    check_step(weighed(KNOWN[name]), array(), ())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_those_of_jax(name: str) -> None:
    check_step(weighed(FUNCTIONS[name]), array(), ())


@pytest.mark.parametrize("name", INDICES)
def test_indices_of_the_batch_are_those_of_jax(name: str) -> None:
    check_step(weighed(INDICES[name]), array(), (rows,))


def test_numbers_that_jax_drops_are_dropped_and_clipped() -> None:
    """Of a segment below 0 or beyond the last one; rows by `.at` count from the end, and lie inside."""
    for index in ([2, -1, 3, 9], [-7, 4, 0, 0]):
        check_step(weighed(lambda x, i: jax.ops.segment_sum(x, i, 4)), array(), (np.array(index, np.int32),))
        check_step(weighed(lambda x, i: finite(jax.ops.segment_max(x, i, 4))), array(), (np.array(index, np.int32),))
    both = weighed(lambda x, i: x.at[i].add(x) + jax.ops.segment_sum(x, i, 4))  # one index, read in two ways
    check_step(both, array(), (np.array([2, -1, -4, 0], np.int32),))
    clips = weighed(lambda x, i: jnp.take(x, i, axis=0, mode="clip"))
    check_step(clips, array(), (np.array([2, -1, 9, -9], np.int32),))
    check_step(weighed(lambda x, i: x.at[i].get(mode="clip")), array(), (np.array([2, -1, 9, -4], np.int32),))
    model = from_jax(weighed(lambda x, i: x.at[i].add(x)), array(), (rows,))
    loop = ipu_core.TrainLoop(model, model.params, (rows,), optimizer=ipu_core.Sgd(0.1), precision="fp32.32")
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        loop.train((np.array([4, 0, 0, 0], np.int32),))


def test_a_while_that_constants_end_is_unrolled() -> None:
    """JAX has no derivative of it: the loop of a fixed length beside it has."""

    def loss(loop: Function) -> Function:
        return lambda params, batch: loop(lambda x: jnp.sin(x) * 1.5, params).sum()

    def by_while(f: Function, x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]

    def by_count(f: Function, x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, c: f(c), x)

    blocks = []
    for loop in (by_while, by_count):
        model = from_jax(loss(loop), array(), ())
        blocks.append(
            ipu_core.execute(ipu_core.trace(ipu_core.value_and_grad(model), model.params, ()), array(), (), key=0)
        )
    np.testing.assert_array_equal(blocks[0][1], blocks[1][1])


def test_a_loop_whose_count_nothing_reads_is_a_scan() -> None:
    def loss(params: Any, batch: Any) -> Any:
        return lax.fori_loop(0, 50, lambda i, x: jnp.sin(x) * params, params).sum()

    block = ipu_core.trace(from_jax(loss, array(), ()), array(), ())
    assert len(block.equations) < 5
    assert any(equation.region is not None for equation in block.equations)


def test_of_two_branches_the_one_that_counts_has_the_gradient() -> None:
    """Each batch takes its own branch of one captured step."""

    def loss(params: Any, batch: Any) -> Any:
        return lax.cond(batch > 0, lambda x: (x * x).sum(), lambda x: jnp.sin(x).sum(), params)

    model = from_jax(loss, array(), np.float32(1))
    for batch in (np.float32(1), np.float32(-1)):
        loop = ipu_core.TrainLoop(model, model.params, batch, optimizer=ipu_core.Sgd(1.0), precision="fp32.32")
        value, gradient = jax.value_and_grad(loss)(array(), batch)
        assert loop.train(batch) == pytest.approx(float(value), rel=1e-6)
        np.testing.assert_allclose(loop.params, array() - gradient, rtol=1e-5, atol=1e-6)


def test_every_primitive_of_the_table_is_tested() -> None:
    older = {"copy_p", "expand_dims", "split", "copy", "scatter"}  # have other names in some versions of JAX
    asked = set[str]()
    for name, f in KNOWN.items():
        found = primitives(jax.make_jaxpr(weighed(f))(array(), ()).jaxpr)
        assert name in found | older, f"the test of {name} asks for {sorted(found)}"
        asked |= found
    assert set(OPERATIONS) <= asked | older


@pytest.mark.parametrize(
    ("shape", "kernel", "options"),
    [
        ((2, 5, 6, 3), (3, 3, 3, 4), {"window_strides": (2, 1), "padding": "SAME"}),
        ((2, 5, 6, 4), (2, 3, 2, 6), {"feature_group_count": 2, "rhs_dilation": (1, 2), "padding": ((1, 0), (2, 1))}),
        ((2, 5, 6, 3), (3, 3, 3, 4), {"lhs_dilation": (2, 2), "padding": ((2, 2), (1, 3))}),
        ((2, 3, 5, 6), (4, 3, 3, 3), {"dimension_numbers": ("NCHW", "OIHW", "NHWC"), "padding": "VALID"}),
    ],
)
def test_convolutions_are_those_of_jax(shape: Any, kernel: Any, options: Any) -> None:
    r = np.random.default_rng(2)
    options = {"window_strides": (1, 1), "dimension_numbers": ("NHWC", "HWIO", "NHWC"), **options}
    params = {"x": r.normal(size=shape).astype(np.float32), "w": r.normal(size=kernel).astype(np.float32)}
    check_step(weighed(lambda p: lax.conv_general_dilated(p["x"], p["w"], **options)), params, ())


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x, i: x.reshape(4, 3, 2).at[i, i, i].add(1.0), "places of several axes"),
        (lambda x, i: x.at[i, i].set(1.0), "places of several axes; jnp.where"),
        (lambda x, i: x.at[i].multiply(x), "places may come twice"),
        (lambda x, i: x.at[i].max(x[:4]), "beside what is there: jnp.maximum"),
        (lambda x, i: x.at[i].add(x, mode="clip"), "numbers that are clipped"),
        (lambda x, i: lax.sort((x, x, x), num_keys=2)[0], "an order by several arrays"),
        (lambda x, i: lax.cbrt(x), "cbrt of a jaxpr"),
        (lambda x, i: lax.while_loop(lambda y: y.sum() < 3, lambda y: y + 1, x), "decide how often it runs; lax"),
        (lambda x, i: lax.while_loop(lambda c: c[0] < 5000, lambda c: (c[0] + 1, x), (0, x))[1], "than 4096 times"),
        (lambda x, i: x * x.astype(jnp.int32), "cannot become integers"),
        (lambda x, i: x.reshape(4, 3, 2)[:, i, i], "several indices"),
        (lambda x, i: lax.dynamic_slice(x, (i[0], 0), (2, 3)), "the places are computed"),
        (lambda x, i: x * (i & 1)[:, None], "bits of integers"),
    ],
)  # fmt: skip
def test_others_are_refused(function: Function, why: str) -> None:
    def loss(params: Any, batch: Any) -> Any:
        with jax.named_scope("block/odd"):
            return function(params, *batch).sum()

    with pytest.raises(NotCovered, match=why) as caught:
        from_jax(loss, array(), (rows,))
    assert "test_jax_operations.py" in str(caught.value)
    assert "layer block.odd" in str(caught.value)


@pytest.mark.parametrize(("exponent", "base"), [(0, [np.inf, np.nan, 0.0, -2.0]), (1.7, [0.0, 2.0, 0.0, 1.0])])
def test_powers_at_their_edges_are_jax_s(exponent: float, base: list[float]) -> None:
    def loss(params: Any, batch: Any) -> Any:
        return (params["w"] ** exponent * batch).sum()

    params, batch = {"w": np.array(base, np.float32)}, np.arange(1, 5, dtype=np.float32)
    model = from_jax(loss, params, batch)
    value, gradient = jax.value_and_grad(loss)(params, batch)
    loop = ipu_core.TrainLoop(
        model, model.params, batch, optimizer=ipu_core.Sgd(1.0), precision="fp32.32", engine="direct"
    )
    np.testing.assert_allclose(loop.train(batch), value, rtol=1e-6)
    np.testing.assert_allclose(loop.params["w"], params["w"] - np.asarray(gradient["w"]), rtol=1e-6)


def test_derivatives_of_ones_own_are_refused() -> None:
    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def straight(x: Any) -> Any:
        return jnp.round(x)

    straight.defjvp(lambda primals, tangents: (straight(*primals), tangents[0]))
    with pytest.raises(NotCovered, match="straight has a derivative of its own"):
        from_jax(lambda p, b: straight(p).sum(), array(), ())


@jax.custom_vjp  # type: ignore[untyped-decorator]
def layer(x: Any, w: Any, i: Any) -> Any:
    return jnp.tanh(x @ w)[i]


def _layer(x: Any, w: Any, i: Any) -> Any:
    return layer(x, w, i), (x, w, layer(x, w, np.arange(len(x))), i, 3.0)


def _layer_backward(kept: Any, dy: Any) -> Any:
    x, w, y, _, number = kept
    inner = jnp.stack([dy[0], *[0 * dy[0]] * 3]) * (1 - y * y) * number
    return inner @ w.T, -x.T @ inner, None


layer.defvjp(_layer, _layer_backward)


@jax.custom_vjp  # type: ignore[untyped-decorator]
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, dy: (jnp.clip(dy, -0.5, 0.5),))


@jax.custom_vjp  # type: ignore[untyped-decorator]
def both(x: Any, y: Any) -> Any:
    return jnp.sign(x), x * y


both.defvjp(lambda x, y: (both(x, y), (x, 2.0)), lambda kept, dy: (dy[0] * (abs(kept[0]) < 1) + dy[1], None))
WEIGHT = np.linspace(-1, 1, 30).reshape(6, 5).astype(np.float32)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: layer(x, WEIGHT, rows), id="constants"),
        pytest.param(lambda x: layer(x, x.T, rows), id="twice"),
        pytest.param(lambda x: jax.jit(clipped)(x) ** 2 + clipped(x), id="clipped"),
        pytest.param(lambda x: both(x, x)[0] + both(x, 2 * x)[1], id="several"),
        pytest.param(lambda x: lax.scan(lambda c, y: (clipped(c * y) + c, c), x[0], x)[0], id="scan"),
        pytest.param(lambda x: clipped(jnp.ones(3)) * x.sum(), id="of constants"),
    ],
)
def test_a_gradient_that_is_given_counts(function: Function) -> None:
    def loss(params: Any, batch: Any) -> Any:
        return jnp.sum(jnp.square(function(params * 1.5)))

    check_step(loss, array(), ())


def test_gradients_of_integers_that_are_given_are_refused() -> None:
    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def whole(x: Any) -> Any:
        return x, x.astype(jnp.int32)

    whole.defvjp(lambda x: (whole(x), None), lambda _, dy: (dy[0],))
    with pytest.raises(NotCovered, match="a gradient of integers, or with symbolic zeros, is given"):
        from_jax(lambda p, b: whole(p)[0].sum(), array(), ())


def test_the_page_lists_the_primitives_of_the_table() -> None:
    page = (Path(ipu_core.__file__).parents[1] / "notebooks" / "docs" / "pages" / "how-to" / "jax.md").read_text()
    listed = page.partition("Primitives that are covered: ")[2].partition(";")[0]
    assert re.findall(r"`([\w-]+)`", listed) == sorted(OPERATIONS)
