"""BERT in small, as a study's problem: masked bytes and the next sentence, packed several sequences a row or not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.ir.precision.precision import Precision
from ipu_core.placement.orders import OrderRule
from ipu_core.study.models import sentences
from ipu_core.study.models.sentences import Sentences
from ipu_core.study.models.size import Size
from ipu_core.study.models.start import ParameterStart, initial, stand_ins
from ipu_core.study.models.unit_scaled import UnitScaling
from ipu_core.study.point import Problem
from ipu_core.train.data.text import Text
from ipu_core.train.predictor import EVALUATION, evaluated
from ipu_core.train.units import in_units
from lowprec import Key

MLP_RATIO = 4
SMALL = 0.02  # deviation of embeddings, as BERT's


def problem(
    size: Size,
    task: Text,
    batch: int,
    pack: int = 1,
    scaling: UnitScaling = UnitScaling(),  # noqa: B008  # frozen
    target: Target = Target(),  # noqa: B008  # frozen
    dropout: float = 0.0,
    checkpointed: bool = False,
    strategy: str = "lpfhp",
) -> Problem:
    """BERT of these sizes on pairs of sentences of a text, up to `pack` sequences in each of a batch's rows.

    `dropout` and `checkpointed` are those of a `Shape`, `strategy` is how rows are packed.

    Raises:
        ValueError: the text is too short for the context, or fewer rows than a batch come of it.
    """
    shape = Shape(size.heads, dropout, checkpointed)
    trained = sentences.made(task.train, size.context, pack, strategy)
    sentences.batches(trained, batch, 0)
    starts, scaled = layout(size), scaling.of(functools.partial(loss, shape))
    return Problem(
        scaled,
        scaling.begun(functools.partial(initial, starts)),
        functools.partial(sentences.batches, trained, batch),
        functools.partial(
            evaluate, Shape(size.heads), scaling, sentences.tested(task.test, size.context), target=target
        ),
        stand_ins(starts),
        sequences_of_a_row=trained.factor,
    )


def layout(size: Size) -> Any:
    """How every parameter begins, nested as they are."""
    width, inner = size.width, MLP_RATIO * size.width

    def linear(rows: int, columns: int) -> Any:
        return {"weight": ParameterStart((rows, columns), rows**-0.5), "bias": ParameterStart((columns,))}

    def norm() -> Any:
        return {"scale": ParameterStart((width,), value=1.0), "bias": ParameterStart((width,))}

    def block() -> Any:
        return {
            "attention": {"qkv": linear(width, 3 * width), "out": linear(width, width), "norm": norm()},
            "perceptron": {"up": linear(width, inner), "down": linear(inner, width), "norm": norm()},
        }

    return {
        "embedding": ParameterStart((sentences.SYMBOLS, width), SMALL),
        "position": ParameterStart((size.context, width), SMALL),
        "type": ParameterStart((2, width), SMALL),
        "norm": norm(),
        "blocks": [block() for _ in range(size.layers)],
        "words": {"dense": linear(width, width), "norm": norm(), "bias": ParameterStart((sentences.SYMBOLS,))},
        "next": {"pool": linear(width, width), "classes": linear(width, 2)},
    }


@dataclass(frozen=True)
class Shape:
    """What of a model its parameters do not say.

    Attributes:
        heads: of each attention.
        dropout: share of attention's weights that a training step leaves out.
        checkpointed: whether of each block only what it reads is kept for the gradients, as stages of a pipeline keep
            it: what a stash is of.
    """

    heads: int
    dropout: float = 0.0
    checkpointed: bool = False


def encoded(shape: Shape, params: Any, batch: Any) -> Any:
    """The last layer, (rows, places, width). Sequences of a row see themselves alone, and count places from 0."""
    rows, places = np.shape(batch["tokens"])
    h = nn.embedding(params["embedding"], batch["tokens"]) + nn.embedding(params["position"], batch["positions"])
    h = nn.layer_norm(h + nn.embedding(params["type"], batch["types"]), **params["norm"])
    mask = nn.segment_mask(nn.reshape(batch["segments"], (rows, 1, places)))
    for number, block in enumerate(params["blocks"]):
        run = functools.partial(_block, shape, number)
        h = (nn.checkpoint(run) if shape.checkpointed else run)(block, h, mask)
    return h


def _block(shape: Shape, number: int, block: Any, h: Any, mask: Any) -> Any:
    with nn.name_scope(f"blocks.{number}.attention", h):
        part = block["attention"]
        mixed = nn.multi_head_attention(_layers(part), h, shape.heads, mask, dropout=shape.dropout)
        h = nn.layer_norm(h + mixed, **part["norm"])
    with nn.name_scope(f"blocks.{number}.perceptron", h):
        part = block["perceptron"]
        inner = nn.gelu(nn.linear(h, **part["up"]))
        return nn.layer_norm(h + nn.linear(inner, **part["down"]), **part["norm"])


def _layers(part: Any) -> Any:
    return {name: part[name] for name in ("qkv", "out")}


def _at(h: Any, places: Any) -> Any:
    """Some places of each row: (rows, places, width), (rows, n) -> (rows, n, width)."""
    # By places in the row, not in the batch: a micro-batch has rows of its own.
    return np.take_along_axis(h, nn.reshape(places, (*np.shape(places), 1)), 1)


def scores(shape: Shape, params: Any, batch: Any) -> tuple[Any, Any]:
    """Scores of the bytes that were masked, (rows, masked, symbols), and of the next sentence, (rows, depth, 2)."""
    h = encoded(shape, params, batch)
    words, after = params["words"], params["next"]
    with nn.name_scope("words", h):
        # Of the masked places alone: they are 15 in 100, and each has a score for every symbol.
        asked = nn.gelu(nn.linear(_at(h, batch["places"]), **words["dense"]))
        masked = nn.layer_norm(asked, **words["norm"])
        found = nn.matmul(masked, params["embedding"].transpose(1, 0)) + words["bias"]
    with nn.name_scope("next", h):
        pooled = np.tanh(nn.linear(_at(h, batch["starts"]), **after["pool"]))
        return found, nn.linear(pooled, **after["classes"])


def loss(shape: Shape, params: Any, batch: Any) -> Any:
    """The mean over masked bytes and the mean over sequences, as of the batch unpacked; in nats."""
    found, after = scores(shape, params, batch)
    return nn.softmax_cross_entropy(found, batch["masked"], batch["counts"]) + nn.softmax_cross_entropy(
        after, batch["next"], batch["there"]
    )


def evaluate(
    shape: Shape, scaling: UnitScaling, held_out: Sentences, params: Any, precision: Precision, *, target: Target
) -> dict[str, float]:
    """Loss and accuracies on sequences not trained on, one a row, computed forward in the precision itself."""
    batch = sentences.batches(held_out, len(held_out), 0)(0)
    function: Callable[..., Any] = scaling.of(functools.partial(scores, shape))
    found, after = evaluated(
        in_units(function, precision), precision, OrderRule.of(target), Key(EVALUATION), params, batch
    )
    words, weights = np.asarray(found, np.float64), batch["counts"].astype(np.float64)
    shifted = words - words.max(axis=-1, keepdims=True)
    right = np.take_along_axis(shifted, batch["masked"][..., None], -1)[..., 0]
    losses = np.log(np.exp(shifted).sum(axis=-1)) - right
    hits = words.argmax(axis=-1) == batch["masked"]
    following = np.asarray(after, np.float64).argmax(axis=-1) == batch["next"]
    return {
        "test_loss": float((losses * weights).sum() / weights.sum()),
        "masked_accuracy": float((hits * weights).sum() / weights.sum()),
        "next_accuracy": float((following * batch["there"]).sum() / batch["there"].sum()),
    }
