"""Attention and what goes with it: heads, causal, padding and segment masks, rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipu_core.ir.block import Array
from ipu_core.ir.trace.eager import as_array
from ipu_core.ir.trace.values import (
    Traced,
    Value,
    concatenate,
    elementwise,
    logical_and,
    matmul,
    reshape,
    shape_of,
    swap,
    transpose,
    where,
)
from ipu_core.nn.operations import dropout as dropped_out
from ipu_core.nn.operations import embedding, linear, softmax, table_like
from lowprec.checks import entries, integer, number, sizes, truth


def causal_mask(queries: int, keys: int | None = None) -> Array:
    """1 where a query may look at a key, at its own place or before, else 0: (queries, keys), the last at the last."""
    queries, keys = sizes("queries and keys", (queries, queries if keys is None else keys))
    # aligned at the last key: with keys of earlier steps the last query sees all of them
    return np.tri(queries, keys, keys - queries, dtype=np.float32)


def padding_mask(lengths: Value, keys: int) -> Value:
    """1 for the keys that are there, else 0.

    Args:
        lengths: int32 in [0, keys], (...): how many keys of each row are there.
        keys: how many there are places for.

    Returns:
        (..., 1, keys), so that it fits scores (..., queries, keys); for scores with heads give lengths (rows, 1).
    """
    # the table has a row for each length, from none to all: keys + 1
    keys, _ = sizes("keys and lengths", (keys, integer("keys", keys) + 1))
    # a look-up in a constant table: lengths come with the batch, and the shape may not depend on them
    rows = embedding(np.tri(keys + 1, keys, -1, dtype=np.float32), lengths)
    return reshape(rows, (*shape_of(rows)[:-1], 1, keys))


def segment_mask(segments: Value, count: int | None = None, *, keys: Value | None = None) -> Value:
    """1 where query and key are of one segment of a packed row, else 0: int32 numbers compared in the step.

    Args:
        segments: int32 (..., places): the segment of each.
        count: only numbers in [0, count) are segments', and a place of another (padding) looks nowhere and is looked at
            by none; None: all are.
        keys: int32 (..., keys): the segments of the keys; None: as of the queries.

    Returns:
        (..., places, keys), float32; for scores with heads give segments (rows, 1, places).
    """
    lead, other = shape_of(segments), segments if keys is None else keys
    if not lead or not shape_of(other):
        raise ValueError(f"segments have an axis of places: (..., places), not {lead} and {shape_of(other)}")
    if count is not None:
        integer("count", count, 0)
    rows = reshape(segments, (*lead, 1))
    same = elementwise("equal", rows, reshape(other, (*shape_of(other)[:-1], 1, shape_of(other)[-1])))
    if count is None:
        return same
    # only the query's number is asked: a key of the same number is known by that
    known = logical_and(elementwise("greater", rows, -1), elementwise("greater", count, rows))
    return logical_and(same, known)


def additive_mask(mask: Value, lowest: float = -10000.0) -> Value:
    """0 where a mask is not 0, else a number so low that its exponential is 0: a `bias` of attention.

    Args:
        mask: of any shape; its format is the result's.
        lowest: -10,000 is a float16 and leaves room for the score that is added to it.
    """
    return where(mask, 0.0, lowest)


def attention(
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    *,
    bias: Value | None = None,
    dropout: float = 0.0,
) -> Value:
    """Values weighted by the softmax of query times key over the root of the width.

    Args:
        query: (..., queries, width); scaled before the product, so that halves do not overflow in it.
        key: (..., keys, width).
        value: (..., keys, outputs).
        mask: fits (..., queries, keys): 0 where a query must not look; None: everywhere it may. A query that may look
            nowhere weighs all values equally.
        bias: added to the scores, which it fits: an `additive_mask`, or what depends on distances; None: nothing.
        dropout: share of the weights that a training step sets to 0; leave it out to evaluate a model.
    """
    if min(map(len, map(shape_of, (query, key, value)))) < 2 or not shape_of(query)[-1]:
        shapes = ", ".join(str(shape_of(x)) for x in (query, key, value))
        raise ValueError(f"attention takes query, key and value of shapes (..., places, width), not {shapes}")
    if mask is not None and not isinstance(mask, Traced) and not bool(np.all(np.asarray(mask, np.float64) >= 0)):
        # Taken as a mask it would be the other way round: every lowest number is "may look".
        raise ValueError("a mask is 0 where a query must not look, else 1; one that is added to scores is bias=")
    # before the product: scores of width 64 are up to 8 times as large before they are divided
    scaled = elementwise("multiply", query, shape_of(query)[-1] ** -0.5)
    scores = matmul(scaled, swap(key))
    if bias is not None:
        scores = elementwise("add", scores, bias)
    return matmul(_dropped(softmax(scores, mask=mask), dropout), value)


def _dropped(weights: Value, share: float) -> Value:
    # A rate of no kind is refused by `dropout`, which 0 needs no key of.
    return weights if isinstance(share, int | float) and share == 0 else dropped_out(weights, share)


def multi_head_attention(
    params: Mapping[str, Mapping[str, Value]],
    x: Value,
    heads: int,
    mask: Value | None = None,
    *,
    rotary: bool = False,
    dropout: float = 0.0,
) -> Value:
    """Self-attention in several heads.

    Args:
        params: {"qkv": a linear layer to three times the width (queries, keys, values, each head by head), "out": a
            linear layer}, each {"weight": ..., "bias": ...}.
        x: (rows, places, width).
        heads: how many; they divide the width.
        mask: see `attention`; fits (rows, heads, places, places): (places, places) for all rows, (rows, 1, places,
            places) for each.
        rotary: whether queries and keys are turned by their places.
        dropout: of the attention's weights, see `attention`.

    Raises:
        ValueError: heads that do not divide the width.
    """
    qkv, out = entries("params", params, ("qkv", "out"))
    if len(shape_of(x)) != 3:
        raise ValueError(f"multi_head_attention takes (rows, places, width), not the shape {shape_of(x)}")
    rows, places, width = shape_of(x)
    if integer("heads", heads, 1) > width or width % heads:
        raise ValueError(f"{heads} heads do not divide a width of {width}")
    if mask is not None and len(shape_of(mask)) == 3 and shape_of(mask)[0] == rows > 1:
        raise ValueError(
            f"a mask of each row has an axis of heads too, (rows, 1, places, places): {shape_of(mask)} would be one of "
            "each head"
        )
    rotary = truth("rotary", rotary)
    parts = reshape(linear(x, *_layer("qkv", qkv)), (rows, places, 3, heads, width // heads))
    # one transposition for all three: rows and heads become the batch of the products
    query, key, value = (transpose(parts, (2, 0, 3, 1, 4))[i] for i in range(3))
    if rotary:
        query, key = rotary_embedding(query), rotary_embedding(key)
    mixed = transpose(attention(query, key, value, mask, dropout=dropout), (0, 2, 1, 3))
    return linear(reshape(mixed, (rows, places, width)), *_layer("out", out))


def _layer(name: str, params: Any) -> tuple[Value, Value | None]:
    """Weight and bias of a linear layer; a bias may be missing."""
    (weight,) = entries(f"params[{name!r}]", params, ("weight",))
    if unknown := sorted(map(str, params.keys() - {"weight", "bias"})):
        raise ValueError(f"params[{name!r}] must be a dict of weight and bias, without {', '.join(unknown)}")
    return weight, params.get("bias")


def rotary_embedding(x: Value, *, first: int = 0, base: float = 10000.0) -> Value:
    """Pairs of elements turned by an angle that grows with the place (Su et al., arXiv 2104.09864).

    Element i of the first half of a vector is paired with element i of the second (as GPT-NeoX does).

    Args:
        x: (..., places, width), an even width.
        first: the number of the first place.
        base: element pair i turns by place * base**(-2 i / width).

    Raises:
        ValueError: an odd width.
    """
    if len(shape_of(x)) < 2:
        raise ValueError(f"rotary embedding takes (..., places, width), not the shape {shape_of(x)}")
    # `table_like` gives its tables the dtype of x, which a list has not
    x = x if isinstance(x, Traced) else as_array(x)
    begin, base = number("first", integer("first", first)), number("base", base)
    if not base > 0:
        raise ValueError(f"base must be above 0, not {base!r}")
    places, width = shape_of(x)[-2:]
    if width % 2:
        raise ValueError(f"rotary embedding pairs elements: a width of {width} is odd")
    half = width // 2
    # in float64, and rounded once to the table: the angles of late places are large
    angle = (begin + np.arange(places))[:, None] * base ** (-np.arange(half) / half)
    cosine, sine = (table_like(f(angle), x) for f in (np.cos, np.sin))
    a, b = x[..., :half], x[..., half:]
    turned = (_combined(a, cosine, b, sine, "subtract"), _combined(b, cosine, a, sine, "add"))
    return concatenate(turned, len(shape_of(x)) - 1)


def _combined(a: Value, cosine: Array, b: Value, sine: Array, op: str) -> Value:
    return elementwise(op, elementwise("multiply", a, cosine), elementwise("multiply", b, sine))
