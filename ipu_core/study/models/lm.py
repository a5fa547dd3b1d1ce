"""A language model over bytes, as a study's problem: a transformer with norms before each part (GPT-2's design)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.ir.precision.precision import Precision
from ipu_core.placement.orders import OrderRule
from ipu_core.study.models.size import Size
from ipu_core.study.models.start import ParameterStart, stand_ins
from ipu_core.study.models.start import initial as initial
from ipu_core.study.models.unit_scaled import UnitScaling
from ipu_core.study.point import Problem
from ipu_core.train.data import text
from ipu_core.train.predictor import EVALUATION, evaluated
from ipu_core.train.units import in_units
from lowprec import Key

MLP_RATIO = 4
TESTED = 64  # rows of the test part, evenly spread
SMALL = 0.02  # deviation of embeddings and of the last layer, as GPT-2's


def problem(
    size: Size,
    task: text.Text,
    batch: int,
    scaling: UnitScaling = UnitScaling(),  # noqa: B008  # frozen
    target: Target = Target(),  # noqa: B008  # frozen
) -> Problem:
    """The language model of these sizes on a text, under unit scaling or not, tested with the sums of a target.

    Raises:
        ValueError: the text is too short for the context.
    """
    # Refuses a text that is too short before anything is trained.
    text.batches(task, batch, size.context, 0)
    starts, scaled = layout(size), scaling.of(functools.partial(loss, size.heads))
    return Problem(
        scaled,
        scaling.begun(functools.partial(initial, starts)),
        functools.partial(text.batches, task, batch, size.context),
        functools.partial(evaluate, size, task, scaled, target=target),
        stand_ins(starts),
    )


def layout(size: Size) -> Any:
    """How every parameter begins, nested as they are; weights that write to the residual stream begin smaller."""
    width, inner = size.width, MLP_RATIO * size.width
    # As GPT-2: two parts a block add to the residual stream, whose variance so does not grow with the depth.
    share = (2 * size.layers) ** -0.5

    def linear(rows: int, columns: int, factor: float = 1.0) -> Any:
        return {"weight": ParameterStart((rows, columns), factor * rows**-0.5), "bias": ParameterStart((columns,))}

    def norm() -> Any:
        return {"scale": ParameterStart((width,), value=1.0), "bias": ParameterStart((width,))}

    def block() -> Any:
        return {
            "attention": {"norm": norm(), "qkv": linear(width, 3 * width), "out": linear(width, width, share)},
            "perceptron": {"norm": norm(), "up": linear(width, inner), "down": linear(inner, width, share)},
        }

    return {
        "embedding": ParameterStart((text.SYMBOLS, width), SMALL),
        "position": ParameterStart((size.context, width), SMALL),
        "blocks": [block() for _ in range(size.layers)],
        "norm": norm(),
        "head": ParameterStart((width, text.SYMBOLS), SMALL),
    }


def logits(heads: int, params: Any, x: Any) -> Any:
    """Bytes (rows, places) -> scores of the byte that follows each, (rows, places, 256)."""
    places = x.shape[1]
    h = nn.embedding(params["embedding"], x) + params["position"][:places]
    mask = nn.causal_mask(places)
    for number, block in enumerate(params["blocks"]):
        with nn.name_scope(f"blocks.{number}.attention", h):
            part = block["attention"]
            h = h + nn.multi_head_attention(part, _normed(part, h), heads, mask)
        with nn.name_scope(f"blocks.{number}.perceptron", h):
            part = block["perceptron"]
            h = h + nn.linear(nn.gelu(nn.linear(_normed(part, h), **part["up"])), **part["down"])
    return nn.matmul(_normed(params, h), params["head"])


def _normed(part: Any, h: Any) -> Any:
    return nn.layer_norm(h, **part["norm"])


def loss(heads: int, params: Any, batch: tuple[Any, Any]) -> Any:
    """The mean over all places of the cross-entropy of the byte that follows, in nats."""
    x, y = batch
    return nn.softmax_cross_entropy(logits(heads, params, x), y)


def evaluate(
    size: Size, task: text.Text, own: Callable[..., Any], params: Any, precision: Precision, *, target: Target
) -> dict[str, float]:
    """The loss on rows spread over the test part, in nats a byte, computed forward in the precision itself."""
    # The same rows for every point, so that losses differ by the training alone.
    starts = np.linspace(0, max(0, len(task.test) - size.context - 1), TESTED).astype(np.int64)
    batch = text.windows(task.test, starts, min(size.context, len(task.test) - 1))
    return {
        "test_loss": float(
            evaluated(in_units(own, precision), precision, OrderRule.of(target), Key(EVALUATION), params, batch)
        )
    }
