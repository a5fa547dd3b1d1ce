"""BERT and GPT-2 with the sizes, cuts and settings that were published."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ipu_core import nn
from ipu_core.ir.block import Type
from ipu_core.study.point import stand_in
from ipu_core.train.optim import AdamW, Lamb
from ipu_core.workloads.cuts import cut
from ipu_core.workloads.published import NORMS_OF_HALVES, Measured, Part, Stage, Workload
from lowprec.checks import integer

MLP_RATIO = 4
VOCABULARY = {"bert": 30_528, "gpt2": 50_257}
"""BERT's 30,522 word pieces are filled up to a multiple of 16, as its submissions do."""
MASKED = 20
"""Masked tokens of a sequence that are predicted at most (BERT's max_predictions_per_seq for 128; 76 for 512)."""


def _linear(rows: int, columns: int) -> Any:
    return {"weight": stand_in(rows, columns), "bias": stand_in(columns, zero=True)}


def _norm(width: int) -> Any:
    return {"scale": stand_in(width), "bias": stand_in(width, zero=True)}


def _attention(width: int) -> Any:
    return {"norm": _norm(width), "qkv": _linear(width, 3 * width), "out": _linear(width, width)}


def _perceptron(width: int) -> Any:
    inner = MLP_RATIO * width
    return {"norm": _norm(width), "up": _linear(width, inner), "down": _linear(inner, width)}


def _of(params: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: params[name] for name in names}


def _post_attention(name: str, heads: int, dropout: float, params: Any, h: Any, batch: Any) -> Any:
    own, (rows, places) = params[name], batch["segments"].shape
    mask = nn.segment_mask(nn.reshape(batch["segments"], (rows, 1, places)))
    mixed = nn.multi_head_attention(_of(own, "qkv", "out"), h, heads, mask, dropout=dropout)
    return nn.layer_norm(h + mixed, **own["norm"])


def _post_perceptron(name: str, params: Any, h: Any, batch: Any) -> Any:
    own = params[name]
    return nn.layer_norm(h + nn.linear(nn.gelu(nn.linear(h, **own["up"])), **own["down"]), **own["norm"])


def _bert_embeddings(params: Any, _: Any, batch: Any) -> Any:
    own = params["embeddings"]
    h = nn.embedding(own["word"], batch["tokens"]) + nn.embedding(own["position"], batch["positions"])
    return nn.layer_norm(h + nn.embedding(own["type"], batch["types"]), **own["norm"])


def _bert_head(masked: int, params: Any, h: Any, batch: Any) -> Any:
    own, words = params["head"], params["embeddings"]["word"]
    # The masked tokens stand first in each row, as the submissions' data has them.
    asked = nn.layer_norm(nn.gelu(nn.linear(h[:, :masked], **own["dense"])), **own["norm"])
    scores = nn.matmul(asked, words.transpose(1, 0)) + own["bias"]
    after = nn.linear(nn.tanh(nn.linear(h[:, 0], **own["pool"])), **own["classes"])
    return nn.softmax_cross_entropy(scores, batch["masked"]) + nn.softmax_cross_entropy(after, batch["next"])


def _bert(layers: int, width: int, heads: int, rows: int, places: int, dropout: float) -> dict[str, Any]:
    integer("micro_batch", rows, 1), integer("places", places, 1)
    vocabulary, masked = VOCABULARY["bert"], min(places, 76 if places > 128 else MASKED)
    embeddings = {
        "word": stand_in(vocabulary, width), "position": stand_in(places, width), "type": stand_in(2, width),
        "norm": _norm(width),
    }  # fmt: skip
    parts = [Part("embeddings", embeddings, _bert_embeddings, reads=("tokens", "positions", "types"))]
    for number in range(layers):
        attention, perceptron = f"{number}.attention", f"{number}.feed_forward"
        run = functools.partial(_post_attention, attention, heads, dropout)
        parts += [
            Part(attention, _attention(width), run, layer=True, reads=("segments",)),
            Part(perceptron, _perceptron(width), functools.partial(_post_perceptron, perceptron), layer=True),
        ]
    head = {
        "dense": _linear(width, width), "norm": _norm(width), "bias": stand_in(vocabulary, zero=True),
        "pool": _linear(width, width), "classes": _linear(width, 2),
    }  # fmt: skip
    run = functools.partial(_bert_head, masked)
    parts.append(Part("head", head, run, shares=("embeddings",), reads=("masked", "next")))
    each = Type((rows, places), "int32")
    batch = {name: each for name in ("tokens", "types", "positions", "segments")}
    batch |= {"masked": Type((rows, masked), "int32"), "next": Type((rows,), "int32")}
    return {"parts": tuple(parts), "batch": batch, "between": (rows, places, width)}


_V2 = "mlperf-bert-v2/gradient_sum=float16/running_mean=true/norms=operands"
_BERT_SOURCES = (
    "sizes: Devlin et al., arXiv 1810.04805; word pieces filled up to 30,528",
    NORMS_OF_HALVES,
    "MLPerf Training v2.0, closed, on Bow: replicas of 8 chips, 2 on 16 chips (256 micro-batches an update), 8 on 64 "
    "(96), 16 on 128 (64); micro-batches of 3 packs of 512 places; LAMB, moments in FP16 on chip, half partials, "
    "stochastic rounding",
    "stage cut: the slowest holds 4 attention and 3 feed-forward layers of 24 each; that of the others is not known, "
    "nor whether gradients are added as a sum or a running mean, which is taken here",
    "attention's dropout is on; its share is not said, BERT's 0.1 is taken. Not in the account: loss scaling by 10, "
    "stashes' rounding to 8 bits (they are kept in FP16 here)",
)


_BERT_GC200_SOURCES = (
    "sizes: Devlin et al., arXiv 1810.04805; word pieces filled up to 30,528",
    NORMS_OF_HALVES,
    "MLPerf Training v1.1, closed: 64 GC200 chips, 8 replicas of 8 chips, or 16, 4 of 4 with streamed moments; "
    "micro-batches of 2 packs of 512 places, 96 or 192 an update; half partials, stochastic rounding",
    "stage cuts are not known: on 8 chips that of v2.0 is taken, on 4 ours; nor whether gradients are added as a sum "
    "or a running mean, which is taken; the first moment is FP16 (as on 128 chips)",
    "attention's dropout is on; its share is not said, BERT's 0.1 is taken",
)
_V1 = "fp16.16/stochastic/first_moment=float16/gradient_sum=float16/running_mean=true/norms=operands"


def bert_large(
    micro_batch: int | None = None, places: int = 512, target: str = "bow", stages: int | None = None
) -> Workload:
    """BERT-Large on packed rows, as MLPerf Training v2.0 ran it on Bow, or v1.1 on GC200.

    Args:
        micro_batch: rows; None: 3, on GC200 2.
        places: of a row.
        target: "gc200" is v1.1's run; any other chip has the settings of Bow's.
        stages: chips of a replica: 8 if None; on GC200 with 4 the moments stream, as there.
    """
    first = target == "gc200"
    rows = (2 if first else 3) if micro_batch is None else micro_batch
    # An attention first: its layer's other half is the stage's too, of all but the last.
    slowest = Stage(
        "4 attention and 3 feed-forward layers",
        tuple(f"{8 + n // 2}.{('attention', 'feed_forward')[n % 2]}" for n in range(7)),
        stashes=2 * 4,
    )
    made = Workload(
        name="bert-large", title=f"BERT-Large, {rows} x {places}", **_bert(24, 1024, 16, rows, places, 0.1),
        stages=(slowest,), target=target, precision=_V2, rows=rows, micro_batches=256, pipeline=8, recompute="layers",
        optimizer=Lamb(1e-3, b1=0.55, b2=0.885, weight_decay=1e-3, clip_norm=None, bias_correction=False),
        samples=2 * rows, logged="bert", sources=_BERT_SOURCES,
        update_overhead=0.1576 if target == "bow" else 0.0, overhead_run="MLPerf v2.0, 64 Bow chips",
        measured=(
            Measured(
                (7.9e6, 8.2e6), "bow", 1, 3,
                "MLPerf v2.0 logs: 4.26 to 4.45 ms, the slope of an update's time over micro-batches between runs of "
                "16, 64 and 128 chips; not a measurement of one chip",
            ),
        ),
    )  # fmt: skip
    if first:
        made = made.changed(
            precision=_V1, micro_batches=96, sources=_BERT_GC200_SOURCES, measured=(), update_overhead=0.1704,
            optimizer=Lamb(1e-3, b2=0.996, weight_decay=1e-3, clip_norm=None, bias_correction=False),
            overhead_run="MLPerf v1.1, 64 GC200 chips",
        )  # fmt: skip
    made = made if stages is None else cut(made, stages)
    few = first and made.pipeline == 4
    return made.changed(precision=f"{_V1}/streamed", micro_batches=192) if few else made


def bert_base(micro_batch: int = 3, places: int = 512) -> Workload:
    """BERT-Base in the settings of `bert_large`, a stage of three layers; no run of it is measured here.

    Args:
        micro_batch: rows.
        places: of a row.
    """
    names = tuple(f"{n // 2}.{('attention', 'feed_forward')[n % 2]}" for n in range(6))
    return Workload(
        name="bert-base", title=f"BERT-Base, {micro_batch} x {places}",
        **_bert(12, 768, 12, micro_batch, places, 0.1),
        stages=(Stage("3 layers", names, stashes=2 * 3),),
        target="bow", precision=_V2, rows=micro_batch, micro_batches=256, pipeline=4, recompute="layers",
        optimizer=Lamb(1e-3, weight_decay=1e-3, bias_correction=False),
        samples=2 * micro_batch,
        sources=("sizes: Devlin et al., arXiv 1810.04805", "settings as of bert-large, the cut into 4 chips is ours"),
    )  # fmt: skip


def _gpt2_embeddings(params: Any, _: Any, batch: Any) -> Any:
    own = params["embeddings"]
    return nn.embedding(own["word"], batch["x"]) + own["position"]


def _pre_attention(name: str, heads: int, params: Any, h: Any, _: Any) -> Any:
    own = params[name]
    normed = nn.layer_norm(h, **own["norm"])
    return h + nn.multi_head_attention(_of(own, "qkv", "out"), normed, heads, nn.causal_mask(h.shape[1]))


def _pre_perceptron(name: str, params: Any, h: Any, _: Any) -> Any:
    own = params[name]
    return h + nn.linear(nn.gelu(nn.linear(nn.layer_norm(h, **own["norm"]), **own["up"])), **own["down"])


def _gpt2_layer(name: str, heads: int, params: Any, h: Any, batch: Any) -> Any:
    own = params[name]
    h = _pre_attention("attention", heads, own, h, batch)
    return _pre_perceptron("perceptron", own, h, batch)


def _gpt2_head(params: Any, h: Any, batch: Any) -> Any:
    words = params["embeddings"]["word"]
    scores = nn.matmul(nn.layer_norm(h, **params["head"]["norm"]), words.transpose(1, 0))
    return nn.softmax_cross_entropy(scores, batch["y"])


def gpt2(micro_batch: int = 1, places: int = 1024) -> Workload:
    """GPT-2 small, as Argonne measured it on a Bow Pod.

    Args:
        micro_batch: rows.
        places: context.
    """
    layers, width, heads = 12, 768, 12
    integer("micro_batch", micro_batch, 1), integer("places", places, 1)
    words = {"word": stand_in(VOCABULARY["gpt2"], width), "position": stand_in(places, width)}
    parts = [Part("embeddings", words, _gpt2_embeddings, reads=("x",))]
    for number in range(layers):
        params = {"attention": _attention(width), "perceptron": _perceptron(width)}
        parts.append(Part(f"{number}", params, functools.partial(_gpt2_layer, f"{number}", heads), layer=True))
    parts.append(Part("head", {"norm": _norm(width)}, _gpt2_head, shares=("embeddings",), reads=("y",)))
    cut = [tuple(f"{n}" for n in range(first, first + 4)) for first in (0, 4, 8)]
    return Workload(
        name="gpt2", title=f"GPT-2 small, {micro_batch} x {places}", parts=tuple(parts),
        batch={name: Type((micro_batch, places), "int32") for name in ("x", "y")},
        between=(micro_batch, places, width),
        stages=(
            Stage("layers 0 to 3", cut[0], stashes=4), Stage("layers 4 to 7", cut[1], stashes=2),
            Stage("layers 8 to 11", cut[2]), Stage("embeddings and head", ("embeddings", "head"), stashes=6),
        ),
        target="bow", precision="fp16.16/stochastic/norms=operands", optimizer=AdamW(1e-4), rows=micro_batch,
        micro_batches=2048, pipeline=4, recompute="layers",
        sources=(
            "sizes: Radford et al. 2019; 50,257 words, embeddings and head share their table",
            NORMS_OF_HALVES,
            "4 chips (embeddings and head on the first, then 4 + 4 + 4 layers) x 4 replicas, micro-batches of one row, "
            "2,048 an update, AdamW, half partials, recomputation of every layer: Argonne's user guide",
            "the formats of the moments are not said: float32, on chip, are taken; dropout is not said and left out",
        ),
        measured=(
            Measured(
                (6.94e6, 6.94e6), "bow", 1, 1,
                "1,064.3 samples a second on 16 Bow chips, measured by Argonne: 3.75 ms a micro-batch of the slowest",
            ),
        ),
    )  # fmt: skip
