"""Reversible residual layers (Gomez, Ren, Urtasun and Grosse, arXiv 1707.04585, 2017), in narrow arithmetic.

Their claim: inputs that are made again from outputs are those of the forward pass but for rounding, which in float32
does not matter, and memory does not grow with depth. What they leave open is what rounding does to it in formats of 16
and 8 bits, and where it is stochastic: then what is subtracted is not quite what was added. Here a residual net on
handwritten digits, its branches a norm, a matrix and a gelu.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_core import nn
from ipu_core.ir.passes.autodiff import value_and_grad
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten
from ipu_core.ir.run.execute import execute
from ipu_core.ir.trace.tracing import trace
from ipu_core.reproduce.finding import Finding, Progress, Reproduction, spread
from ipu_core.reproduce.seeds import above
from ipu_core.train.data import dataset
from ipu_core.train.loop import TrainLoop
from ipu_core.train.optim import Sgd
from lowprec import Key

PRECISIONS = {
    "float32": "fp32.32",
    "FP16.16, nearest": "fp16.16/nearest",
    "FP16.16, stochastic": "fp16.16/stochastic",
    "bfloat16": "bf16.32",
    "FP8": "fp8",
}
WIDTH, DEPTH, ROWS, STEPS, RATE = 32, 16, 64, 400, 0.02
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
ROUNDED, TESTED = 2.0**-11, 359  # the unit roundoff of a half; rows of digits to test on
SCALE = 1024.0
"""What losses are multiplied by: a power of two, which float32 does not see."""


def branch(weight: Any, x: Any) -> Any:
    """A residual branch."""
    return nn.gelu(nn.layer_norm(x) @ weight)


def stored(of_f: Any, of_g: Any, x1: Any, x2: Any) -> tuple[Any, Any]:
    """The layer of which the gradient reads what the forward pass kept."""
    y1 = x1 + branch(of_f, x2)
    return y1, x2 + branch(of_g, y1)


LAYERS: dict[str, Callable[..., tuple[Any, Any]]] = {"stored": stored, "reversible": nn.reversible(branch, branch)}


def initial(depth: int, seed: int) -> dict[str, Any]:
    """Weights: normal, with variance 1 / inputs."""
    shapes = {"in": (64, 2 * WIDTH), "out": (2 * WIDTH, 10), **{f"{i:02}": (2, WIDTH, WIDTH) for i in range(depth)}}
    key = Key(seed)
    made = {name: nn.normal(key.fold_in(i), shape) for i, (name, shape) in enumerate(shapes.items())}
    return {name: (array / np.sqrt(array.shape[-2])).astype(np.float32) for name, array in made.items()}


def _stack(params: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [(params[name][0], params[name][1]) for name in sorted(params.keys() - {"in", "out"})]


def _begin(params: dict[str, Any], x: Any) -> tuple[Any, Any]:
    hidden = x @ params["in"]
    return hidden[:, :WIDTH], hidden[:, WIDTH:]


def scores(layer: str, params: dict[str, Any], x: Any) -> Any:
    """The net: (rows, 64) -> (rows, 10)."""
    x1, x2 = _begin(params, x)
    for of_f, of_g in _stack(params):
        x1, x2 = LAYERS[layer](of_f, of_g, x1, x2)
    return np.concatenate([x1, x2], 1) @ params["out"]


def loss_of(layer: str) -> Callable[[Any, Any], Any]:
    """The mean cross-entropy of the net with one kind of layer."""
    return lambda params, batch: nn.softmax_cross_entropy(scores(layer, params, batch[0]), batch[1])


def live_bytes(layer: str, depth: int, rows: int = 1024) -> tuple[int, int]:
    """Bytes of temporaries that live at a time on all tiles, at most, and of the fullest tile, in FP16.16."""
    batch = np.zeros((rows, 64), np.float32), np.zeros(rows, np.int32)
    loop = TrainLoop(
        # In the order of the trace: another one would move what lives, and is not what the paper is about.
        loss_of(layer), initial(depth, 0), batch, optimizer=Sgd(RATE), precision="fp16.16/nearest", engine="tiles",
        reorder=False,
    )  # fmt: skip
    assert loop.profile is not None
    memory = loop.profile.memory
    return max(point.total for point in memory.lifetimes) - memory.always_bytes, memory.peak_bytes


def _batch(seed: int) -> Any:
    return dataset.batches(dataset.digits(), ROWS, seed)(0)


def made_again(precision: str, depth: int, seed: int) -> float:
    """How far the inputs of a stack, made again from its outputs, are off, relative to them."""

    def forth(params: dict[str, Any], x: Any) -> Any:
        x1, x2 = y1, y2 = _begin(params, x)
        for of_f, of_g in _stack(params):
            y1, y2 = stored(of_f, of_g, y1, y2)
        return (x1, x2), (y1, y2)

    def back(params: dict[str, Any], y1: Any, y2: Any) -> Any:
        for of_f, of_g in reversed(_stack(params)):
            # The last half first: it was made of the first one's result.
            y2 = y2 - branch(of_g, y1)
            y1 = y1 - branch(of_f, y2)
        return y1, y2

    table, params, key = Precision.parse(precision), initial(depth, seed), Key(seed)
    given = params, _batch(seed)[0]
    inputs, outputs = execute(table.apply(trace(forth, *given)), *given, key=key)
    # Other random bits than on the way forth, as the equations of a reversible layer's gradient have.
    again = execute(table.apply(trace(back, params, *outputs)), params, *outputs, key=key.fold_in(1))
    true, found = (np.concatenate(each, 1).astype(np.float64) for each in (inputs, again))
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def gradient(precision: str, layer: str, depth: int, seed: int) -> npt.NDArray[np.float64]:
    """The gradients of all matrices of a stack at its beginning, in one line."""
    given = initial(depth, seed), _batch(seed)
    loss = loss_of(layer)
    block = value_and_grad(trace(lambda p, batch: SCALE * loss(p, batch), *given))
    _, found = execute(Precision.parse(precision).apply(block), *given, key=Key(seed))
    return np.concatenate([array.astype(np.float64).ravel() for array in flatten(found)[0]]) / SCALE


class GradientErrors(NamedTuple):
    """Distances relative to the length of what is compared with.

    Attributes:
        stored, reversible: of the gradients of both kinds of layer from float32's with stored activations.
        apart: of the second from the first.
    """

    stored: float
    reversible: float
    apart: float


def gradient_errors(precision: str, depth: int, seed: int) -> GradientErrors:
    """How far the gradients of a stack are off."""
    true = gradient("fp32.32", "stored", depth, seed)
    kept, again = (gradient(precision, layer, depth, seed) for layer in LAYERS)

    def off(found: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
        return float(np.linalg.norm(found - other) / np.linalg.norm(other))

    return GradientErrors(off(kept, true), off(again, true), off(again, kept))


class ReversibleTraining(NamedTuple):
    """A training at its end.

    Attributes:
        losses: of every step.
        accuracy: share of the test rows that are classified right.
    """

    losses: list[float]
    accuracy: float

    @property
    def end(self) -> float:
        """The mean loss of the last tenth of the steps."""
        return float(np.mean(self.losses[-max(1, len(self.losses) // 10) :]))


def train(precision: str, layer: str, seed: int, steps: int = STEPS, depth: int = DEPTH) -> ReversibleTraining:
    """A net trained on the direct engine."""
    data = dataset.digits()
    batches = dataset.batches(data, ROWS, seed)
    loop = TrainLoop(
        loss_of(layer), initial(depth, seed), batches(0), optimizer=Sgd(RATE, momentum=0.9), precision=precision,
        loss_scale=SCALE, engine="direct", key=seed,
    )  # fmt: skip
    losses = [float(x) for x in loop.run(batches, steps)]
    params = {name: np.asarray(array, np.float32) for name, array in loop.params.items()}
    right = np.argmax(scores("stored", params, data.x_test), 1) == data.y_test
    return ReversibleTraining(losses, float(right.mean()))


class ReversibleFigures(NamedTuple):
    """All that is measured, by row and what varies.

    Attributes:
        memory: by layer and depth: live bytes of temporaries, and bytes of the fullest tile.
        again: by precision and depth: errors of inputs made again, of each seed.
        gradients: the same of gradients.
        trained: by precision and layer, of each seed.
    """

    memory: dict[tuple[str, int], tuple[int, int]]
    again: dict[tuple[str, int], list[float]]
    gradients: dict[tuple[str, int], list[GradientErrors]]
    trained: dict[tuple[str, str], list[ReversibleTraining]]


def measure(seeds: Sequence[int], share: float, progress: Progress) -> ReversibleFigures:
    """The memory and errors of every depth, and a training of every row and seed; shorter ones go less deep."""
    depths = [depth for depth in DEPTHS if depth <= max(4, round(share * DEPTHS[-1]))]
    steps = max(2, round(share * STEPS))
    found = ReversibleFigures({}, {}, {}, {})
    for layer in LAYERS:
        for depth in (4, 16):
            found.memory[layer, depth] = live_bytes(layer, depth)
        few, many = (found.memory[layer, depth] for depth in (4, 16))
        progress(f"{layer}: {few[0]:,} live bytes of temporaries with 4 layers, {many[0]:,} with 16")
    for name, precision in PRECISIONS.items():
        for depth in depths:
            found.again[name, depth] = [made_again(precision, depth, seed) for seed in seeds]
            found.gradients[name, depth] = [gradient_errors(precision, depth, seed) for seed in seeds]
        last = found.gradients[name, depths[-1]]
        shown = [np.mean(found.again[name, depths[-1]]), *np.mean(last, axis=0)]
        progress(f"{name}, {depths[-1]} layers: inputs off by {shown[0]:.1e}, gradients of stored activations by "
                 f"{shown[1]:.1e}, reversible by {shown[2]:.1e}")  # fmt: skip
    for name, precision in PRECISIONS.items():
        for layer in LAYERS:
            found.trained[name, layer] = [train(precision, layer, seed, steps) for seed in seeds]
            made = found.trained[name, layer]
            right = spread([100 * each.accuracy for each in made], 1)
            progress(f"{name}, {layer}: loss {spread([each.end for each in made])}, {right} % right")
    return found


def run(seeds: Sequence[int], share: float, progress: Progress) -> list[Finding]:
    """The findings; see `Reproduction`."""
    return judged(measure(seeds, share, progress))


def judged(found: ReversibleFigures) -> list[Finding]:
    """The findings in what was measured."""
    deepest = max(depth for _, depth in found.again)
    memory = {key: live for key, (live, _) in found.memory.items()}
    fullest = [full for (layer, _), (_, full) in found.memory.items() if layer == "reversible"]
    more = {layer: memory[layer, 16] - memory[layer, 4] for layer in LAYERS}
    grown = {layer: memory[layer, 16] / memory[layer, 4] for layer in LAYERS}
    ends = {key: [each.end for each in made] for key, made in found.trained.items()}
    right = {key: float(np.mean([each.accuracy for each in made])) for key, made in found.trained.items()}

    def errors(name: str) -> str:
        again, gradients = np.mean(found.again[name, deepest]), np.mean(found.gradients[name, deepest], axis=0)
        return f"inputs off by {again:.1e}; gradients by {gradients[1]:.1e}, stored {gradients[0]:.1e}"

    def training(name: str) -> str:
        of = [f"{spread(ends[name, layer])}, {100 * right[name, layer]:.1f} %" for layer in LAYERS]
        return f"loss and share right: stored {of[0]}; reversible {of[1]}"

    pair = [found.trained["float32", layer] for layer in LAYERS]
    share = right["float32", "stored"]
    told = math.sqrt(share * (1 - share) / TESTED)
    exact = float(np.mean([each.apart for each in found.gradients["float32", deepest]]))
    return [
        Finding(
            "activations need not be kept: memory does not grow with depth (4 to 16 layers: by less than one layer's)",
            f"live temporaries times {grown['reversible']:.3f}, stored times {grown['stored']:.2f}; fullest tile "
            f"{fullest[0]:,} and {fullest[-1]:,} bytes",
            more["reversible"] < more["stored"] / 12,
        ),
        Finding(
            f"in float32 what is made again is as good as what is kept (gradients of {deepest} layers within a "
            f"rounding to a half, {ROUNDED:.1e})",
            errors("float32"),
            exact <= ROUNDED,
        ),
        Finding(
            f"so that nets train as well (share right no less by the standard error of {TESTED} test rows, "
            f"{100 * told:.1f} points)",
            training("float32"),
            above([other.accuracy - one.accuracy for one, other in zip(*pair, strict=True)], -told),
            len(pair[0]),
        ),
        *(
            Finding(f"{name} (no claim is tested; {deepest} layers, then training)",
                    f"{errors(name)}; {training(name)}", None)
            for name in PRECISIONS if name != "float32"
        ),
    ]  # fmt: skip


REVERSIBLE = Reproduction("reversible", "layers that keep no activations", "Gomez et al. 2017, arXiv 1707.04585", run)
