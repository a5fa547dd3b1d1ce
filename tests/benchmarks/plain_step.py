"""The training step as users of NumPy write it: in float32, and with half partial sums by a loop over chunks of K."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ipu_core.study.models import mlp
from ipu_core.train.data import dataset as data

Array = npt.NDArray[Any]
CHUNK = 16  # products between two roundings of a partial sum
DISCARDED = np.uint32((1 << 13) - 1)  # bits of a float32 that a half of normal size has no room for


class Float32Step:
    """A perceptron's step in float32, updating in place."""

    storage: Any = np.float32

    def __init__(self, params: mlp.Params, lr: float) -> None:
        self.lr = np.float32(lr)
        self.layers = [[self.stored(layer[name]) for name in ("weight", "bias")] for layer in params]

    def product(self, a: Array, b: Array) -> Array:
        """The matrix product."""
        return a @ b

    def total(self, x: Array) -> Array:
        """The sum over rows."""
        return x.sum(axis=0)

    def rounded(self, x: Array) -> Array:
        """A result of elementwise operations as it is stored."""
        return x

    def updated(self, old: Array, gradient: Array) -> Array:
        """A parameter after its update."""
        old -= self.lr * gradient
        return old

    def stored(self, x: Array) -> Array:
        """A copy in the format of the parameters."""
        return x.astype(self.storage)

    def train(self, batch: data.Batch) -> float:
        """One update on one batch; gives its loss."""
        x, y = batch
        activations = [self.rounded(x)]
        for weight, bias in self.layers:
            z = self.rounded(self.product(activations[-1], weight) + bias)
            activations.append(np.maximum(z, 0) if len(activations) < len(self.layers) else z)
        scores = activations.pop().astype(np.float32)
        scores = scores - scores.max(axis=1, keepdims=True)
        exponentials = np.exp(scores)
        sums = exponentials.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = float(np.mean(np.log(sums[:, 0]) - scores[rows, y]))
        wide = exponentials / sums
        wide[rows, y] -= 1
        wide /= len(y)
        gradient = self.rounded(wide)
        for index in reversed(range(len(self.layers))):
            weight, bias = self.layers[index]
            below = self.product(gradient, weight.T) * (activations[index] > 0) if index else gradient
            self.layers[index] = [
                self.updated(weight, self.product(activations[index].T, gradient)),
                self.updated(bias, self.total(gradient)),
            ]
            gradient = below
        return loss


class ChunkedStep(Float32Step):
    """Half operands and half partial sums: a float32 product per chunk of K, rounded to half after each."""

    storage = np.float16

    def product(self, a: Array, b: Array) -> Array:
        """The matrix product, chunk by chunk."""
        a, b = a.astype(np.float32), b.astype(np.float32)
        partial = np.zeros((a.shape[0], b.shape[1]), np.float16)
        for k in range(0, a.shape[1], CHUNK):
            partial = self.half(partial.astype(np.float32) + a[:, k : k + CHUNK] @ b[k : k + CHUNK])
        return partial

    def total(self, x: Array) -> Array:
        """The sum over rows, chunk by chunk."""
        partial = np.zeros(x.shape[1], np.float16)
        for k in range(0, x.shape[0], CHUNK):
            partial = self.half(partial.astype(np.float32) + x[k : k + CHUNK].astype(np.float32).sum(axis=0))
        return partial

    def rounded(self, x: Array) -> Array:
        """To half, to nearest."""
        return x.astype(np.float16)

    def updated(self, old: Array, gradient: Array) -> Array:
        """In float32, then rounded as the partial sums are."""
        return self.half(old.astype(np.float32) - self.lr * gradient.astype(np.float32))

    def half(self, x: Array) -> Array:
        """A partial sum rounded to half."""
        return x.astype(np.float16)


class StochasticStep(ChunkedStep):
    """The same, partial sums and updates rounded stochastically."""

    def __init__(self, params: mlp.Params, lr: float) -> None:
        super().__init__(params, lr)
        self.random = np.random.Generator(np.random.SFC64(0))

    def half(self, x: Array) -> Array:
        """To half: random bits are added to those that are discarded."""
        bits = x.astype(np.float32).view(np.uint32)
        bits = bits + self.random.integers(0, DISCARDED, bits.shape, np.uint32, endpoint=True)
        return (bits & ~DISCARDED).view(np.float32).astype(np.float16)


PLAIN: dict[str, type[Float32Step]] = {
    "fp32.32": Float32Step,
    "fp16.16/nearest": ChunkedStep,
    "fp16.16/stochastic": StochasticStep,
}
