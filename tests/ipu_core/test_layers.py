"""Attention, norms and recurrent layers: gradients against finite differences and PyTorch, masks, engines."""

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.pytree import flatten, map_leaves
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.trace.tracing import trace
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Adam

RNG = np.random.default_rng(11)
ROWS, PLACES, WIDTH, HEADS = 2, 5, 8, 2
X = RNG.normal(size=(ROWS, PLACES, WIDTH))
LENGTHS = np.array([3, 5])
SEGMENTS = np.array([[0, 0, 1, 1, 2], [0, 1, 1, 1, 1]])
IMAGES = RNG.normal(size=(3, 2, 2, 6))
SCALE, BIAS = RNG.normal(size=(2, 6))
RUNNING = {"mean": RNG.normal(size=6), "variance": RNG.uniform(0.5, 2, 6)}


def layer(rows, columns):
    return {"weight": RNG.normal(size=(rows, columns)) * 0.4, "bias": RNG.normal(size=columns) * 0.4}


KERNEL = RNG.normal(size=(3, WIDTH, 4))
HEADED = {"qkv": layer(WIDTH, 3 * WIDTH), "out": layer(WIDTH, WIDTH)}
LSTM = {"input": RNG.normal(size=(WIDTH, 12)), "hidden": RNG.normal(size=(3, 12)), "bias": RNG.normal(size=12)}
GRU = {"input": RNG.normal(size=(WIDTH, 9)), "hidden": RNG.normal(size=(3, 9)), "bias": RNG.normal(size=9),
       "hidden_bias": RNG.normal(size=9)}  # fmt: skip
PADDED = nn.padding_mask(LENGTHS[:, None], PLACES) * nn.causal_mask(PLACES)

LAYERS = {
    "attention": (lambda p: nn.attention(*p), [X, X + 1, X[..., :3]]),
    "masked softmax": (lambda p: nn.softmax(p, mask=nn.causal_mask(PLACES, WIDTH)), X),
    "causal heads": (lambda p: nn.multi_head_attention(p[0], p[1], HEADS, nn.causal_mask(PLACES)), [HEADED, X]),
    "padded heads": (lambda p: nn.multi_head_attention(p[0], p[1], HEADS, PADDED), [HEADED, X]),
    "rotary heads": (lambda p: nn.multi_head_attention(p[0], p[1], HEADS, rotary=True), [HEADED, X]),
    "rotary": (lambda p: nn.rotary_embedding(p, first=3), X),
    "group norm": (lambda p: nn.group_norm(*p, groups=3), [IMAGES, SCALE, BIAS]),
    "batch norm": (lambda p: nn.batch_norm(*p, RUNNING, training=True)[0], [IMAGES, SCALE, BIAS]),
    "batch norm, evaluated": (lambda p: nn.batch_norm(*p, RUNNING, training=False)[0], [IMAGES, SCALE, BIAS]),
    "lstm": (lambda p: nn.lstm(p[0], p[1])[0], [LSTM, X]),
    "lstm, last cell": (lambda p: nn.lstm(*p)[1][1], [LSTM, X, (X[:, 0, :3], X[:, 1, :3])]),
    "gru": (lambda p: nn.gru(*p)[0], [GRU, X, X[:, 2, :3]]),
    "log_sum_exp": (nn.log_sum_exp, X * 5),
    "log_sum_exp of rows": (lambda p: nn.log_sum_exp(p, 1, keepdims=True), X),
    "cross entropy": (lambda p: nn.cross_entropy(p, SEGMENTS), X),
    "cross entropy, ignoring": (lambda p: nn.cross_entropy(p, SEGMENTS, ignore_index=1), X),
    "cross entropy, smoothed rows": (
        lambda p: nn.cross_entropy(p, SEGMENTS, ignore_index=0, label_smoothing=0.2, reduction="none"), X),
    "cross entropy, summed": (lambda p: nn.cross_entropy(p, SEGMENTS, label_smoothing=0.3, reduction="sum"), X),
    "binary cross entropy": (lambda p: nn.binary_cross_entropy_with_logits(9 * p, 1.0 * (X > 0.3)), X),
    "silu": (nn.silu, X),
    "softplus": (nn.softplus, 20 * X),
    "leaky relu": (lambda p: nn.leaky_relu(p, 0.2), X),
    "gelu, tanh": (lambda p: nn.gelu(p, approximate="tanh"), X),
    "layer norm, plain": (lambda p: nn.layer_norm(p), X),
    "layer norm, scaled": (lambda p: nn.layer_norm(p[0], p[1]), [IMAGES, SCALE]),
    "rms norm, plain": (lambda p: nn.rms_norm(p), X),
    "group norm, plain": (lambda p: nn.group_norm(p, groups=2), IMAGES),
    "conv1d": (lambda p: nn.conv1d(*p, stride=2, padding=1), [X, KERNEL, SCALE[:4]]),
    "conv1d, dilated": (lambda p: nn.conv1d(p[0], p[1], padding=(2, 0), dilation=2, groups=2), [X, KERNEL[:, :4]]),
    "conv1d, same": (lambda p: nn.conv1d(p[0], p[1], padding="same"), [X, KERNEL]),
    "scan": (lambda p: nn.scan(lambda s, x: (s * 0.5 + x, s * x), p[:, 0] * 0.0, p, 1)[1], X),
    "weighted cross entropy": (
        lambda p: nn.softmax_cross_entropy(p, SEGMENTS, (SEGMENTS != 1) * 1.0), X),
}  # fmt: skip


def scalar(f, shape):
    weights = np.random.default_rng(3).normal(size=shape)
    return lambda p: (f(p) * weights).sum()


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_finite_differences_and_traced_is_eager(name):
    f, params = LAYERS[name]
    loss = scalar(f, np.shape(f(params)))
    value, gradients = value_and_grad(loss)(params)
    leaves = flatten(params)[0]
    assert evaluate_flat(trace(loss, params), leaves)[0] == pytest.approx(value, rel=1e-12)
    directions = map_leaves(lambda x: RNG.normal(size=np.shape(x)), params)
    up, down = (loss(map_leaves(lambda x, d, s=s: x + s * d, params, directions)) for s in (1e-6, -1e-6))
    slope = sum((g * d).sum() for g, d in zip(flatten(gradients)[0], flatten(directions)[0], strict=True))
    assert slope == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-7)


def test_masks_by_hand():
    np.testing.assert_array_equal(nn.causal_mask(2, 4), [[1, 1, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(nn.padding_mask(np.array([0, 3, 1]), 3)[:, 0], [[0, 0, 0], [1, 1, 1], [1, 0, 0]])
    np.testing.assert_array_equal(nn.segment_mask(np.array([0, 1, 1]), 2), [[1, 0, 0], [0, 1, 1], [0, 1, 1]])
    weights = nn.softmax(np.array([[1e4, 3.0, 3.0], [1.0, 2.0, 3.0]]), mask=np.array([[0, 1, 1], [0, 0, 0]]) > 0)
    np.testing.assert_allclose(weights, [[0, 0.5, 0.5], [1 / 3] * 3], rtol=1e-12)


def test_what_a_mask_hides_changes_nothing():
    f = LAYERS["padded heads"][0]
    changed = X.copy()
    changed[0, 3:] += 100.0
    np.testing.assert_allclose(f([HEADED, changed])[0, :3], f([HEADED, X])[0, :3], rtol=1e-12)
    later = X.copy()
    later[:, 4] += 100.0
    f = LAYERS["causal heads"][0]
    np.testing.assert_allclose(f([HEADED, later])[:, :4], f([HEADED, X])[:, :4])
    packed = nn.multi_head_attention(HEADED, X, HEADS, nn.segment_mask(SEGMENTS[:, None], 3))
    alone = nn.multi_head_attention(HEADED, X[:1, 2:4], HEADS)
    np.testing.assert_allclose(packed[:1, 2:4], alone, rtol=1e-12)


PACKED = np.array([[1, 1, 2, 2, 0], [3, 1, 1, 1, 1]], np.int32)  # 0 pads


def packed_heads(params, batch, segments):
    """The heads' mean square over the places that are no padding."""
    x, segments = batch, segments[:, None]
    mixed = nn.multi_head_attention(params, x, HEADS, nn.segment_mask(segments, 4) * (segments != 0)[..., None])
    return nn.mean(nn.square(mixed) * (segments[:, 0, :, None] != 0))


def test_packed_attention_is_that_of_each_sequence_alone():
    """Values and gradients, the segments being an int32 input of what is traced."""
    block = trace(value_and_grad(packed_heads), HEADED, X, PACKED)
    assert not any(e.op in ("one_hot", "dot") and "int32" in str(e.operands[0].type) for e in block.equations)
    runs = [(0, slice(0, 2)), (0, slice(2, 4)), (1, slice(0, 1)), (1, slice(1, 5))]

    def alone(params):
        return sum(nn.square(nn.multi_head_attention(params, X[r : r + 1, s], HEADS)).sum() for r, s in runs) / X.size

    value, gradients = value_and_grad(alone)(HEADED)
    got = evaluate_flat(block, flatten((HEADED, X, PACKED))[0])
    for ours, theirs in zip(got, [value, *flatten(gradients)[0]], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_masks_of_segments():
    mask = nn.segment_mask(np.array([[0, 1, 1, -1, 2]]), 2)
    np.testing.assert_array_equal(mask[0], [[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0] * 5, [0] * 5])
    across = nn.segment_mask(np.array([5, 7]), keys=np.array([7, 7, 5]))
    np.testing.assert_array_equal(across, [[0, 0, 1], [1, 1, 0]])
    np.testing.assert_array_equal(nn.additive_mask(across), np.where(across, 0, -1e4))
    for dtype, tolerance in ((np.float64, 1e-12), (np.float16, 2e-3)):
        x, mask = X.astype(dtype), nn.segment_mask(SEGMENTS)
        added = nn.attention(x, x, x, bias=nn.additive_mask(mask))
        np.testing.assert_allclose(added, nn.attention(x, x, x, mask), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
def test_packed_rows_train_with_the_same_bits_on_both_engines(precision):
    loss = lambda p, batch: packed_heads(p, *batch) + nn.mean(nn.square(p["out"]["bias"]))  # noqa: E731
    batch, ends = (np.float32(X), PACKED), []
    for engine in ("direct", "tiles"):
        made = TrainLoop(loss, map_leaves(np.float32, HEADED), batch, optimizer=Adam(0.01), precision=precision,
                         engine=engine)  # fmt: skip
        losses = made.run([batch] * 3, 3)
        assert losses[2] < losses[0]
        ends.append({name: a.tobytes() for name, a in made.arrays().items()})
    assert ends[0] == ends[1]


def test_rotary_products_depend_on_the_distance_of_places_alone():
    query, key = (nn.rotary_embedding(np.broadcast_to(v, (9, WIDTH))) for v in X[0, :2])
    products = query @ key.T
    for distance in range(-8, 9):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(query, axis=1), np.linalg.norm(X[0, 0]), rtol=1e-12)
    assert nn.rotary_embedding(X.astype(np.float16)).dtype == np.float16


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: nn.multi_head_attention(HEADED, X, 3), "3 heads do not divide a width of 8"),
        (lambda: nn.rotary_embedding(X[..., :3]), "a width of 3 is odd"),
        (lambda: nn.group_norm(IMAGES, SCALE, BIAS, 4), "4 groups do not divide 6 channels"),
        (lambda: nn.batch_norm(IMAGES[:1, :1, :1], SCALE, BIAS, RUNNING, training=True), "at least two elements"),
        (lambda: nn.softmax_cross_entropy(X, SEGMENTS, np.ones(2)), r"weights must have the shape \(2, 5\)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_other_names_and_numbers_by_hand():
    np.testing.assert_array_equal(nn.dropout(X, p=0.5, key=3), nn.dropout(X, 0.5, key=3))
    with pytest.raises(TypeError, match=r"dropout takes one rate, not rate=0\.1 and p=0\.5"):
        nn.dropout(X, 0.1, p=0.5, key=3)
    with pytest.raises(TypeError, match="must be a number"):
        nn.dropout(X, key=3)
    with pytest.raises(ValueError, match="approximate is 'none' or 'tanh', not 'erf'"):
        nn.gelu(X, approximate="erf")
    with pytest.raises(ValueError, match="reduction is 'mean', 'sum' or 'none', not 'max'"):
        nn.cross_entropy(X, SEGMENTS, reduction="max")
    with pytest.raises(ValueError, match=r"conv1d takes x \(n, length, channels\)"):
        nn.conv1d(X[0], KERNEL)
    with pytest.raises(ValueError, match="scan needs one place"):
        nn.scan(lambda s, x: (s, x), 0.0, X[:, :0], 1)
    labels = np.array([[0, -100, 1, 1, -100], [2, 2, 2, 2, 2]])
    ours, rows = nn.cross_entropy(X, labels, ignore_index=-100), nn.cross_entropy_rows(X, np.maximum(labels, 0))
    assert float(ours) == pytest.approx(rows[labels >= 0].mean(), rel=1e-12)
    assert nn.cross_entropy(X.astype(np.float16), labels, ignore_index=-100).dtype == np.float32
    last, sums = nn.scan(lambda s, x: (s + x, s + x), np.zeros((ROWS, WIDTH)), X, 1)
    np.testing.assert_allclose(sums, np.cumsum(X, 1))
    np.testing.assert_allclose(last, X.sum(1))
    blocks = np.float16(np.full((1, 4), 6e4))
    assert float(nn.layer_norm(np.float16([[1, 2, 3, 4]]))[0, 0]) == pytest.approx(-1.342, abs=2e-3)
    assert np.isfinite(nn.layer_norm(blocks)).all()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_layers_by_hand():
    scores = X @ X.transpose(0, 2, 1) / np.sqrt(WIDTH)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(nn.attention(X, X, X), weights @ X, rtol=1e-12)

    hidden, cell = X[:, 0, :3], X[:, 1, :3]
    i, f, g, o = np.split(X[:, 2] @ LSTM["input"] + hidden @ LSTM["hidden"] + LSTM["bias"], 4, axis=1)
    new = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    got = nn.lstm_cell(LSTM, X[:, 2], (hidden, cell))
    np.testing.assert_allclose(got[1], new, rtol=1e-12)
    np.testing.assert_allclose(got[0], sigmoid(o) * np.tanh(new), rtol=1e-12)

    ours = np.split(X[:, 2] @ GRU["input"] + GRU["bias"], 3, axis=1)
    theirs = np.split(hidden @ GRU["hidden"] + GRU["hidden_bias"], 3, axis=1)
    update = sigmoid(ours[1] + theirs[1])
    candidate = np.tanh(ours[2] + sigmoid(ours[0] + theirs[0]) * theirs[2])
    np.testing.assert_allclose(
        nn.gru_cell(GRU, X[:, 2], hidden), (1 - update) * candidate + update * hidden, rtol=1e-12
    )

    groups = IMAGES.reshape(3, 4, 3, 2)
    normal = (groups - groups.mean((1, 3), keepdims=True)) / np.sqrt(groups.var((1, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(nn.group_norm(IMAGES, SCALE, BIAS, 3), normal.reshape(IMAGES.shape) * SCALE + BIAS)


def test_running_statistics_pass_no_gradient():
    follow = lambda x: nn.batch_norm(x, SCALE, BIAS, RUNNING, training=True)[1]["mean"].sum()  # noqa: E731
    _, gradient = value_and_grad(follow)(IMAGES)
    np.testing.assert_array_equal(gradient, np.zeros(IMAGES.shape))


def torch_gradients(f, leaves):
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(x, requires_grad=True) for x in leaves]
    result = f(torch, *tensors)
    weights = torch.tensor(np.random.default_rng(3).normal(size=tuple(result.shape)), dtype=torch.float64)
    (result * weights).sum().backward()
    return result.detach().numpy(), [t.grad.numpy() for t in tensors]


def torch_heads(torch, bias_o, weight_o, bias, weight, x):
    mask = ~torch.tril(torch.ones(PLACES, PLACES, dtype=torch.bool))
    # torch keeps weights as (outputs, inputs)
    return torch.nn.functional.multi_head_attention_forward(
        x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1), WIDTH, HEADS, weight.T, bias, None, None, False, 0.0,
        weight_o.T, bias_o, need_weights=False, attn_mask=mask,
    )[0].transpose(0, 1)  # fmt: skip


def torch_norm(name, **options):
    def f(torch, x, scale, bias):
        function = getattr(torch.nn.functional, name)
        x = x.permute(0, 3, 1, 2)
        if name == "batch_norm":
            running = [torch.tensor(v) for v in RUNNING.values()]
            return function(x, *running, scale, bias, **options).permute(0, 2, 3, 1)
        return function(x, 3, scale, bias).permute(0, 2, 3, 1)

    return f


def torch_run(name, pick):
    def f(torch, *leaves):
        names = sorted(LSTM if name == "LSTM" else GRU)
        params, (x, *state) = dict(zip(names, leaves, strict=False)), leaves[len(names) :]
        module = getattr(torch.nn, name)(WIDTH, 3, batch_first=True, dtype=torch.float64)
        weights = {
            "weight_ih_l0": params["input"].T, "weight_hh_l0": params["hidden"].T, "bias_ih_l0": params["bias"],
            "bias_hh_l0": params.get("hidden_bias", torch.zeros_like(params["bias"])),
        }  # fmt: skip
        state = tuple(s[None] for s in state)
        given = (x,) if not state else (x, state if name == "LSTM" else state[0])
        return pick(torch.func.functional_call(module, weights, given))

    return f


def torch_rows(**options):
    def f(torch, x):
        kept = options.get("reduction") != "none"
        made = torch.nn.functional.cross_entropy(x.reshape(-1, WIDTH), torch.tensor(SEGMENTS.ravel()), **options)
        return made if kept else made.reshape(SEGMENTS.shape)

    return f


def torch_conv1d(**options):
    def f(torch, x, weight, bias=None):
        made = torch.nn.functional.conv1d(x.transpose(1, 2), weight.permute(2, 1, 0), bias, **options)
        return made.transpose(1, 2)

    return f


TORCH = {
    "cross entropy": torch_rows(),
    "cross entropy, ignoring": torch_rows(ignore_index=1),
    "cross entropy, smoothed rows": torch_rows(ignore_index=0, label_smoothing=0.2, reduction="none"),
    "cross entropy, summed": torch_rows(label_smoothing=0.3, reduction="sum"),
    "binary cross entropy": lambda torch, x: torch.nn.functional.binary_cross_entropy_with_logits(
        9 * x, torch.tensor(1.0 * (X > 0.3))),
    "silu": lambda torch, x: torch.nn.functional.silu(x),
    "softplus": lambda torch, x: torch.nn.functional.softplus(x, threshold=1e9),
    "leaky relu": lambda torch, x: torch.nn.functional.leaky_relu(x, 0.2),
    "gelu, tanh": lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    "layer norm, plain": lambda torch, x: torch.nn.functional.layer_norm(x, (WIDTH,)),
    "rms norm, plain": lambda torch, x: torch.nn.functional.rms_norm(x, (WIDTH,), eps=1e-6),
    "conv1d": torch_conv1d(stride=2, padding=1),
    "conv1d, same": torch_conv1d(padding="same"),
    "causal heads": torch_heads,
    "group norm": torch_norm("group_norm"),
    "batch norm": torch_norm("batch_norm", training=True),
    "batch norm, evaluated": torch_norm("batch_norm", training=False),
    "lstm": torch_run("LSTM", lambda out: out[0]),
    "lstm, last cell": torch_run("LSTM", lambda out: out[1][1][0]),
    "gru": torch_run("GRU", lambda out: out[0]),
    "log_sum_exp": lambda torch, x: torch.logsumexp(x, -1),
    "attention": lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    "weighted cross entropy": lambda torch, x: torch.nn.functional.cross_entropy(
        x.reshape(-1, WIDTH)[(SEGMENTS != 1).ravel()], torch.tensor(SEGMENTS[SEGMENTS != 1])),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCH)
def test_values_and_gradients_are_pytorchs(name):
    f, params = LAYERS[name]
    result, theirs = torch_gradients(TORCH[name], flatten(params)[0])
    np.testing.assert_allclose(f(params), result, rtol=1e-10, atol=1e-10)
    _, ours = value_and_grad(scalar(f, result.shape))(params)
    for got, want in zip(flatten(ours)[0], theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_running_statistics_are_pytorchs():
    torch = pytest.importorskip("torch")
    module = torch.nn.BatchNorm2d(6, momentum=0.3, dtype=torch.float64)
    running = {"mean": np.zeros(6), "variance": np.ones(6)}
    for images in (IMAGES, 2 * IMAGES + 1):
        module(torch.tensor(images).permute(0, 3, 1, 2))
        _, running = nn.batch_norm(images, SCALE, BIAS, running, training=True, momentum=0.3)
    np.testing.assert_allclose(running["mean"], module.running_mean.numpy(), rtol=1e-12)
    np.testing.assert_allclose(running["variance"], module.running_var.numpy(), rtol=1e-12)


def test_running_statistics_by_hand():
    _, new = nn.batch_norm(IMAGES, SCALE, BIAS, RUNNING, training=True, momentum=0.25)
    flat = IMAGES.reshape(-1, 6)
    np.testing.assert_allclose(new["mean"], 0.75 * RUNNING["mean"] + 0.25 * flat.mean(0), rtol=1e-12)
    np.testing.assert_allclose(new["variance"], 0.75 * RUNNING["variance"] + 0.25 * flat.var(0, ddof=1), rtol=1e-12)
    assert nn.batch_norm(IMAGES, SCALE, BIAS, RUNNING, training=False)[1] == RUNNING


TRAINED = {
    "rotary heads": (lambda p, x: nn.multi_head_attention(p, x, HEADS, rotary=True), HEADED, X),
    "padded heads": (lambda p, x: nn.multi_head_attention(p, x, HEADS, PADDED), HEADED, X),
    "group norm": (lambda p, x: nn.group_norm(x * p[0], p[0], p[1], 3) + 1, [SCALE, BIAS], IMAGES),
    "batch norm": (lambda p, x: nn.batch_norm(x, *p, RUNNING, training=True)[0] + 1, [SCALE, BIAS], IMAGES),
    "lstm": (lambda p, x: nn.lstm(p, x)[0], LSTM, X),
    "gru": (lambda p, x: nn.gru(p, x)[0], GRU, X),
}


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
def test_both_engines_train_every_layer_with_the_same_bits(name, precision):
    f, params, x = TRAINED[name]
    params, x, ends = map_leaves(np.float32, params), np.float32(x), []
    loss = lambda p, x: nn.mean(nn.square(f(p, x)))  # noqa: E731
    for engine in ("direct", "tiles"):
        made = TrainLoop(loss, params, x, optimizer=Adam(0.01), precision=precision, engine=engine)
        losses = made.run([x] * 3, 3)
        assert losses[2] < losses[0]
        ends.append({name: a.tobytes() for name, a in made.arrays().items()})
    assert ends[0] == ends[1]
