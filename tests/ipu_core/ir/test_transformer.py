"""A transformer layer end to end: traced, differentiated, typed in every kind of precision, executed as declared."""

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.evaluate import evaluate_flat
from ipu_core.ir.run.execute import Executable
from ipu_core.ir.verify import verify
from ipu_core.train.optim import Adam
from ipu_core.train.step import initial_state, step_block

BATCH, LENGTH, WIDTH, HEADS, WORDS = 3, 5, 16, 2, 11
NAMES = ("query", "key", "value", "out")
MASK = np.triu(np.full((LENGTH, LENGTH), -1e4), 1)


def parameters():
    weights = {name: nn.lecun_normal(i, (WIDTH, WIDTH)) for i, name in enumerate(NAMES)}
    norm = {"scale": np.ones(WIDTH, np.float32), "bias": np.zeros(WIDTH, np.float32)}
    return {**weights, "norm": norm, "embedding": nn.normal(7, (WORDS, WIDTH))}


def heads(x):
    return x.reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)


def loss(params, batch):
    words, following = batch
    x = nn.embedding(params["embedding"], words)
    normal = nn.layer_norm(x, params["norm"]["scale"], params["norm"]["bias"])
    query, key, value = (heads(normal @ params[name]) for name in NAMES[:3])
    attention = nn.softmax(query @ key.transpose(0, 1, 3, 2) * (WIDTH / HEADS) ** -0.5 + MASK)
    mixed = (attention @ value).transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH)
    x = x + mixed @ params["out"]
    return nn.softmax_cross_entropy(x @ params["embedding"].T, following)


@pytest.mark.parametrize(
    "spec",
    [
        "fp32.32",
        "fp16.32",
        "fp16.16/stochastic",
        "fp16.16/stochastic/operands=float8_e4m3fnuz/gradients=float8_e5m2fnuz",
        "fp16.32/operands=bfloat16/gradients=bfloat16/output=bfloat16",
    ],
)
def test_a_transformer_layer_learns_and_is_computed_as_declared(spec):
    tokens = np.arange(BATCH * (LENGTH + 1)).reshape(BATCH, -1) * 3 % WORDS
    batch = (tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32))
    precision = Precision.parse(spec)
    block = verify(precision.apply(step_block(loss, Adam(), parameters(), batch)))
    state = flatten(precision.cast_state(block, initial_state(parameters(), Adam())))[0]
    program, losses = Executable(block), []
    for step in range(40):
        inputs = [*state, *batch, np.float32(0.01)]
        *state, value = outputs = program.run(inputs, step)
        losses.append(float(value))
        if step % 20 == 0:
            for got, want in zip(outputs, evaluate_flat(block, inputs, "declared", key=step), strict=True):
                assert got.tobytes() == want.tobytes()
    assert losses[-1] < 0.5 * losses[0]
