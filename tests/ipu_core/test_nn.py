"""Layers and losses against plain float64 NumPy, on arrays and traced, and the families they are made in."""

import math

import numpy as np
import pytest

import lowprec
from ipu_core import nn
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.run.evaluate import evaluate_flat as evaluate
from ipu_core.ir.trace.tracing import trace
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd

RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 10)) * 3
SCALE, BIAS = RNG.normal(size=10), RNG.normal(size=10)
LABELS = RNG.integers(0, 10, 6)
PROBABILITIES = np.exp(X) / np.exp(X).sum(1, keepdims=True)
PHI = np.array([[0.5 * (1 + math.erf(v / math.sqrt(2))) for v in row] for row in X])
CENTRED = X - X.mean(1, keepdims=True)

CASES = {
    "relu": (nn.relu, [X], np.where(X > 0, X, 0)),
    "gelu": (nn.gelu, [X], X * PHI),
    "tanh": (nn.tanh, [X], np.tanh(X)),
    "sigmoid": (nn.sigmoid, [X], 1 / (1 + np.exp(-X))),
    "softmax": (nn.softmax, [X], PROBABILITIES),
    "softmax of large numbers": (nn.softmax, [X + 1e4], np.exp(X) / np.exp(X).sum(1, keepdims=True)),
    "softmax down": (lambda x: nn.softmax(x, 0), [X], np.exp(X) / np.exp(X).sum(0)),
    "log_softmax": (nn.log_softmax, [X], np.log(PROBABILITIES)),
    "softmax_cross_entropy": (
        nn.softmax_cross_entropy, [X, LABELS], -np.log(PROBABILITIES[np.arange(6), LABELS]).mean()),
    "cross_entropy_rows": (nn.cross_entropy_rows, [X, LABELS], -np.log(PROBABILITIES[np.arange(6), LABELS])),
    "mse": (nn.mse, [X, X[::-1].copy()], ((X - X[::-1]) ** 2).mean()),
    "layer_norm": (
        nn.layer_norm, [X, SCALE, BIAS],
        CENTRED / np.sqrt((CENTRED**2).mean(1, keepdims=True) + 1e-5) * SCALE + BIAS),
    "rms_norm": (nn.rms_norm, [X, SCALE], X / np.sqrt((X**2).mean(1, keepdims=True) + 1e-6) * SCALE),
    "embedding": (nn.embedding, [X, LABELS[:, None] % 6], X[LABELS[:, None] % 6]),
    "linear": (nn.linear, [X, X.T[:, :3], BIAS[:3]], X @ X.T[:, :3] + BIAS[:3]),
    "linear on three axes": (nn.linear, [X.reshape(2, 3, 10), X.T], (X @ X.T).reshape(2, 3, 6)),
    "mlp": (
        lambda x, w, b: nn.mlp([{"weight": w, "bias": b}, {"weight": w, "bias": b}], x),
        [X, np.outer(SCALE, BIAS), BIAS],
        np.maximum(X @ np.outer(SCALE, BIAS) + BIAS, 0) @ np.outer(SCALE, BIAS) + BIAS),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_on_arrays_and_traced_alike(name):
    f, arguments, want = CASES[name]
    np.testing.assert_allclose(f(*arguments), want, rtol=1e-9, atol=1e-9)
    (traced,) = evaluate(trace(f, *arguments), arguments)
    np.testing.assert_allclose(traced, want, rtol=1e-9, atol=1e-9)


def test_the_gradient_of_cross_entropy_is_probability_less_one_hot():
    _, gradient = value_and_grad(nn.softmax_cross_entropy)(X, LABELS)
    np.testing.assert_allclose(gradient, (PROBABILITIES - np.eye(10)[LABELS]) / 6, atol=1e-12)


@pytest.mark.parametrize("f", [nn.layer_norm, lambda x, *_: nn.softmax(x), lambda x, *_: nn.log_softmax(x)])
def test_gradients_are_finite_differences(f):
    weights = RNG.normal(size=X.shape)
    loss = lambda p: (f(*p) * weights).sum()  # noqa: E731
    operands = [X, SCALE, BIAS]
    _, gradients = value_and_grad(loss)(operands)
    for position, gradient in enumerate(gradients):
        direction = RNG.normal(size=gradient.shape)
        up, down = ([x + sign * 1e-5 * direction if i == position else x for i, x in enumerate(operands)]
                    for sign in (1, -1))  # fmt: skip
        slope = (loss(up) - loss(down)) / 2e-5
        assert (gradient * direction).sum() == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_families_mark_what_is_float32_inside():
    loss = trace(nn.softmax_cross_entropy, X, LABELS)
    assert {e.family for e in loss.equations} == {"loss", "structure"}
    norm = [e for e in trace(nn.layer_norm, X, SCALE, BIAS).equations if e.family != "structure"]
    assert [e.family for e in norm[-2:]] == ["elementwise", "elementwise"]
    assert {e.family for e in norm[:-2]} == {"norm"}
    softmax = [e.family for e in trace(nn.softmax, X).equations if e.family != "structure"]
    assert softmax[:-1] == ["softmax"] * (len(softmax) - 1)
    assert softmax[-1] == "nonlinearity"


TIED = np.array([[1.0, 3.0, np.nan, 3.0, -np.inf, 3.0], [-0.0, 0.0, -1.0, 0.0, -0.0, np.inf]])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_largest_in_order_and_of_equal_ones_the_first(dtype):
    x = TIED.astype(dtype)
    for f, wanted in (
        (lambda x: nn.topk(x, 6), [[2, 1, 3, 5, 0, 4], [5, 0, 1, 3, 4, 2]]),
        (lambda x: nn.topk(x, 1), [[2], [5]]),
        (lambda x: nn.topk(x, 6, largest=False), [[2, 4, 0, 1, 3, 5], [2, 0, 1, 3, 4, 5]]),
    ):
        values, indices = f(x)
        traced = evaluate(trace(f, x), [x], "declared" if dtype != np.float64 else "exact")
        for got in (indices, traced[1]):
            np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(values, np.take_along_axis(x, np.array(wanted), 1))
        np.testing.assert_array_equal(np.signbit(traced[0]), np.signbit(values))
        assert (values.dtype, indices.dtype) == (dtype, np.int32)


def test_topk_is_pytorchs_with_its_gradient():
    torch = pytest.importorskip("torch")
    weights = RNG.normal(size=(6, 4))
    for largest in (True, False):
        tensor = torch.tensor(X, requires_grad=True)
        values, indices = torch.topk(tensor, 4, largest=largest)
        (values * torch.tensor(weights)).sum().backward()
        ours = nn.topk(X, 4, largest=largest)
        np.testing.assert_array_equal(ours[0], values.detach().numpy())
        np.testing.assert_array_equal(ours[1], indices.numpy())
        _, gradient = value_and_grad(lambda x, s=largest: (nn.topk(x, 4, largest=s)[0] * weights).sum())(X)
        np.testing.assert_array_equal(gradient, tensor.grad.numpy())


def test_the_gradient_of_topk_goes_to_the_chosen():
    value, gradient = value_and_grad(lambda x: (nn.topk(x, 2)[0] * np.array([10.0, 1.0])).sum())(
        np.array([1, 3.0, 3, 2])
    )
    assert value == 33
    np.testing.assert_array_equal(gradient, [0, 10, 1, 0])
    for k in (0, 5):
        with pytest.raises(ValueError, match=rf"there are no {k} largest along the last axis of \(4,\)"):
            nn.topk(np.ones(4), k)


MASKED = np.ma.masked_greater(RNG.normal(size=(2, 4, 4, 3)), 1)


@pytest.mark.parametrize("f", [
    lambda x: nn.conv2d(x, np.ones((1, 1, 3, 1))), lambda x: nn.conv2d(np.ones((1, 4, 4, 2)), x[:, :2, :2, :]),
    nn.max_pool2d, nn.avg_pool2d, lambda x: nn.dropout(x, 0.5, key=1), nn.relu, nn.softmax, nn.flatten,
    lambda x: nn.matmul(x, np.ones((3, 2))), lambda x: trace(lambda y: y + x, np.ones(3)),
    lambda x: evaluate(trace(nn.relu, np.ones(x.shape, np.float32)), [x]),
])  # fmt: skip
def test_masked_elements_are_refused_as_in_sums(f):
    with pytest.raises(TypeError, match=r"no masked elements \(\d+ here\).*fill them first"):
        f(MASKED)
    f(MASKED.filled(0))
    f(np.ma.masked_array(MASKED.filled(0)))  # none of them masked


def test_truth_values_are_zeros_and_ones_everywhere():
    true = X > 0
    for f in (nn.relu, nn.softmax, lambda x: nn.layer_norm(x, SCALE, BIAS)):
        np.testing.assert_array_equal(f(true), f(true.astype(np.float32)))
        assert str(trace(f, true).inputs[0].type) == "float32[6,10]"


def test_shapes_that_would_fit_by_broadcasting_alone_are_refused():
    with pytest.raises(ValueError, match=r"bias must have the shape \(10,\), one number per output, not \(6, 1\)"):
        nn.linear(X, np.eye(10), X[:, :1])
    with pytest.raises(ValueError, match=r"labels must have the shape \(6,\) of the rows, not \(1,\)"):
        nn.softmax_cross_entropy(X, LABELS[:1])


def test_bad_arguments_say_what_is_allowed():
    for classes in ("3", 2.5):
        with pytest.raises(TypeError, match="classes must be an integer, not"):
            nn.one_hot(LABELS, classes)
    with pytest.raises(ValueError, match="classes must be an integer of at least 0, not -1"):
        nn.one_hot(LABELS, -1)
    with pytest.raises(ValueError, match="classes must be an integer of at most 2147483647, not 2147483648"):
        nn.one_hot(LABELS, 1 << 31)
    for shape in (5, (), (2.5, 3), (-1, 3)):
        with pytest.raises(ValueError, match="a weight's shape is integers"):
            nn.glorot_uniform(1, shape)
    with pytest.raises(ValueError, match="at least one layer"):
        nn.mlp([], X)
    with pytest.raises(TypeError, match=r"operand 0 must be int32 numbers, not float64$"):
        nn.one_hot(X, 3)
    assert nn.he_normal(1, (0, 5)).shape == (0, 5)


INITIALS = {
    nn.he_uniform: 2 / 200, nn.he_normal: 2 / 200, nn.lecun_uniform: 1 / 200, nn.lecun_normal: 1 / 200,
    nn.glorot_uniform: 2 / 500, nn.normal: 1.0, nn.uniform: 1 / 3,
}  # fmt: skip


@pytest.mark.parametrize("f", INITIALS)
def test_initial_values_have_their_variance_and_depend_on_the_key_alone(f):
    x = f(7, (200, 300))
    assert x.dtype == np.float32
    assert x.shape == (200, 300)
    deviation = np.sqrt(INITIALS[f])
    assert x.std() == pytest.approx(deviation, rel=0.02)
    assert abs(x.mean()) < 5 * deviation / np.sqrt(x.size)
    np.testing.assert_array_equal(x, f(lowprec.Key(7), (200, 300)))
    assert (x != f(8, (200, 300))).any()


def test_a_perceptron_has_a_layer_between_every_two_widths():
    layers = nn.mlp_parameters(3, [5, 4, 2])
    assert [(layer["weight"].shape, layer["bias"].shape) for layer in layers] == [((5, 4), (4,)), ((4, 2), (2,))]
    with pytest.raises(ValueError, match=r"at least two widths, not \[5\]"):
        nn.mlp_parameters(3, [5])
    with pytest.raises(ValueError, match="at least two widths, not 5"):
        nn.mlp_parameters(3, 5)


def test_mse_does_not_compare_every_row_with_every_other() -> None:
    with pytest.raises(ValueError, match=r"shape \(4, 1\) needs a target of the same shape, not \(4,\)"):
        nn.mse(np.ones((4, 1), np.float32), np.ones(4, np.float32))


CLOSED = np.where(np.arange(10) % 3 == 0, -np.inf, X)
OPEN = LABELS // 3 * 3 % 9 + 1  # labels that are not masked


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_class_of_logit_minus_infinity_has_neither_probability_nor_gradient(dtype):
    logits, tolerance = CLOSED.astype(dtype), {np.float64: 1e-12, np.float32: 1e-6, np.float16: 2e-3}[dtype]
    left = [c for c in range(10) if c % 3]
    value, gradient = value_and_grad(nn.softmax_cross_entropy)(logits, OPEN)
    wanted, inner = value_and_grad(nn.softmax_cross_entropy)(X[:, left], np.searchsorted(left, OPEN))
    assert float(value) == pytest.approx(float(wanted), rel=tolerance)
    np.testing.assert_allclose(gradient[:, left], inner, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(gradient[:, ::3], np.zeros((6, 4)))
    assert gradient.dtype == dtype
    assert nn.softmax_cross_entropy(np.array([[1.0, 2.0, -np.inf]]), np.array([1])) == pytest.approx(
        0.31326168751822286
    )


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
def test_masked_classes_train_alike_on_both_engines(precision):
    mask = np.where(np.arange(10) % 3 == 0, -np.inf, 0).astype(np.float32)
    loss = lambda p, batch: nn.softmax_cross_entropy(batch[0] @ p + mask, batch[1])  # noqa: E731
    ends = []
    for engine in ("direct", "tiles"):
        batch = (X.astype(np.float32), OPEN)
        made = TrainLoop(
            loss, np.zeros((10, 10), np.float32), batch, optimizer=Sgd(0.5), precision=precision, engine=engine
        )
        losses = made.run([batch] * 9, 9)
        assert losses[-1] < 0.7 * losses[0]
        assert losses[0] == pytest.approx(math.log(6), rel=1e-3)
        np.testing.assert_array_equal(made.params[:, ::3], np.zeros((10, 4)))
        ends.append(made.params.tobytes())
    assert ends[0] == ends[1]


def test_labels_that_are_no_classes_are_refused_wherever_they_are_seen():
    for labels, words in (
        ([1, 3, 10, 0, 0, 0], "the label 10 is none"),
        ([0, 0, 0, -1, 10, 0], "the label -1 is none"),
    ):
        for f in (nn.softmax_cross_entropy, nn.cross_entropy_rows, value_and_grad(nn.softmax_cross_entropy)):
            with pytest.raises(ValueError, match=words):
                f(X, np.array(labels))
        with pytest.raises(ValueError, match=words):
            trace(lambda x, labels=labels: nn.softmax_cross_entropy(x, np.array(labels)), X)
