"""Attention on tiles, without a training layer: heads, causal, padding and segment masks, rotary positions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipu_core.graph.graph import Graph
from ipu_core.graph.program import Program
from ipu_core.graph.tensor import Tensor
from ipu_core.library.elementwise import add_array, map_array
from ipu_core.library.moves import concatenate
from ipu_core.library.sides import copied
from ipu_core.library.softmax import softmax
from ipu_core.library.steps import Steps


def causal_mask(graph: Graph, queries: int, keys: int | None = None, *, name: str = "causal_mask") -> Tensor:
    """Adds a constant, 1 where a query may look at a key, at its own place or before, else 0.

    Args:
        graph: where.
        queries: how many.
        keys: how many; None: as many as queries. The last query is at the last key.
        name: for profiles.

    Returns:
        (queries, keys), float32.
    """
    keys = queries if keys is None else keys
    return map_array(graph, graph.add_constant("float32", np.tri(queries, keys, keys - queries), name))


def padding_mask(
    graph: Graph, lengths: Tensor, keys: int, programs: list[Program], *, name: str = "padding_mask"
) -> Tensor:
    """Adds 1 for the keys that are there, else 0.

    Args:
        graph: where.
        lengths: mapped int32 (..): how many keys of each row are there.
        keys: how many there are places for.
        programs: what is to be run is appended to it.
        name: for profiles.

    Returns:
        (.., 1, keys), float32: it fits scores (.., queries, keys); for scores with heads give lengths (rows, 1).
    """
    places = map_array(graph, graph.add_constant("int32", np.arange(keys), f"{name}: places"))
    return Steps(graph, programs, name).elementwise("greater", lengths[..., None, None], places)


def segment_mask(
    graph: Graph,
    segments: Tensor,
    programs: list[Program],
    *,
    count: int | None = None,
    keys: Tensor | None = None,
    name: str = "segment_mask",
) -> Tensor:
    """Adds 1 where query and key are of one segment of a packed row, else 0: int32 numbers are compared.

    Args:
        graph: where.
        segments: mapped int32 (.., places): the segment of each.
        programs: what is to be run is appended to it.
        count: only numbers in [0, count) are segments', and a place of another (padding) looks nowhere and is looked at
            by none; None: all are.
        keys: mapped int32 (.., keys): the segments of the keys; None: as of the queries.
        name: for profiles.

    Returns:
        (.., places, keys), float32; for scores with heads give segments (rows, 1, places).
    """
    steps, rows = Steps(graph, programs, name), segments[..., None]
    same = steps.elementwise("equal", rows, (segments if keys is None else keys)[..., None, :])
    if count is None:
        return same
    known = steps.elementwise(
        "select", steps.elementwise("greater", rows, -1), steps.elementwise("greater", count, rows), 0.0
    )
    return steps.elementwise("select", same, known, 0.0)


def additive_mask(
    graph: Graph,
    mask: Tensor,
    programs: list[Program],
    *,
    lowest: float = -10000.0,
    out_format: Any = None,
    name: str = "additive_mask",
) -> Tensor:
    """Adds 0 where a mask is not 0, else a number so low that its exponential is 0: a `bias` of attention.

    Args:
        graph: where.
        mask: mapped, any shape.
        programs: what is to be run is appended to it.
        lowest: -10,000 is a float16 and leaves room for the score that is added to it.
        out_format: of the result; None: that of the mask.
        name: for profiles.
    """
    fmt = mask.format if out_format is None else out_format
    return Steps(graph, programs, name).elementwise("select", mask, 0.0, lowest, fmt=fmt)


def attention(
    graph: Graph,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    programs: list[Program],
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    accumulate: Any = "float32",
    stochastic: bool = False,
    operation: int = 0,
    name: str = "attention",
) -> Tensor:
    """Adds values weighted by the softmax of query times key over the root of the width, in the format of the query.

    Args:
        graph: where.
        query: mapped (.., queries, width); scaled before the product, so that halves do not overflow in it.
        key: mapped (.., keys, width).
        value: mapped (.., keys, outputs); the three have one format and the same leading axes.
        programs: what is to be run is appended to it.
        mask: mapped, fits (.., queries, keys): 0 where a query must not look; None: everywhere it may. A query that may
            look nowhere weighs all values equally.
        bias: mapped, in the format of the query, added to the scores, which it fits; None: nothing.
        accumulate: format of the partial sums of products.
        stochastic: round results narrower than float32 stochastically.
        operation: number folded into the engine's key for the first of them; the other two take the next.
        name: for profiles.

    Returns:
        A new array (.., queries, outputs).

    Raises:
        ValueError: shapes that do not fit.
    """
    shapes = query.shape, key.shape, value.shape
    lead, width = query.shape[:-2], query.shape[-1]
    if key.shape != (*lead, key.shape[-2], width) or value.shape[:-1] != key.shape[:-1]:
        raise ValueError(
            f"query, key and value must fit (.., queries, width), (.., keys, width), (.., keys, n): {shapes}"
        )
    steps, fmt = Steps(graph, programs, name, stochastic, operation), query.format
    scaled = steps.elementwise("multiply", query, width**-0.5, fmt=fmt)
    axes = range(key.ndim)
    turned = key.transpose(*axes[:-2], axes[-1], axes[-2])
    scores = steps.matmul(scaled, turned, fmt=fmt, accumulate=accumulate)
    if bias is not None:
        scores = steps.elementwise("add", scores, bias, fmt=fmt)
    rounding: dict[str, Any] = {"stochastic": stochastic, "operation": steps.operation}
    weights = softmax(graph, scores, programs, mask=mask, name=f"{name}: softmax", **rounding)
    steps.operation += 1
    return steps.matmul(weights, value, fmt=fmt, accumulate=accumulate)


def multi_head_attention(
    graph: Graph,
    weights: Mapping[str, Mapping[str, Tensor]],
    x: Tensor,
    heads: int,
    programs: list[Program],
    *,
    mask: Tensor | None = None,
    rotary: bool = False,
    accumulate: Any = "float32",
    stochastic: bool = False,
    operation: int = 0,
    name: str = "attention",
) -> Tensor:
    """Adds self-attention in several heads, in the format of x.

    Args:
        graph: where.
        weights: {"qkv": a linear layer to three times the width (queries, keys, values, each head by head), "out": a
            linear layer}, each {"weight": (width, ..), "bias": (..)}, mapped, in the format of x.
        x: mapped (rows, places, width).
        heads: how many; they divide the width.
        programs: what is to be run is appended to it.
        mask: as for `attention`; fits (rows, heads, places, places).
        rotary: whether queries and keys are turned by their places.
        accumulate, stochastic, name: as for `attention`.
        operation: number folded into the engine's key for the first of the results; the other four take the next.

    Returns:
        A new array of x's shape.

    Raises:
        ValueError: heads that do not divide the width, weights whose sizes do not fit, or an x whose leading axes
            cannot be viewed as one.
    """
    (rows, places, width), fmt = x.shape, x.format
    if heads < 1 or width % heads:
        raise ValueError(f"{heads} heads do not divide a width of {width}")
    wanted = {"qkv": ((width, 3 * width), (3 * width,)), "out": ((width, width), (width,))}
    given = {layer: (weights[layer]["weight"].shape, weights[layer]["bias"].shape) for layer in wanted}
    if given != wanted:
        raise ValueError(f"weights must have the shapes {wanted}, not {given}")
    steps = Steps(graph, programs, name, stochastic, operation)

    def linear(x: Tensor, layer: Mapping[str, Tensor]) -> Tensor:
        rows = x.reshape(-1, width)
        made = steps.matmul(rows, layer["weight"], fmt=fmt, accumulate=accumulate)
        return steps.elementwise("add", made, layer["bias"], fmt=fmt)

    parts = linear(x, weights["qkv"]).reshape(rows, places, 3, heads, width // heads)
    query, key, value = (parts.transpose(2, 0, 3, 1, 4)[i] for i in range(3))
    if rotary:
        query, key = (rotary_embedding(graph, part, programs, name=f"{name}: rotary") for part in (query, key))
    how: dict[str, Any] = {"accumulate": accumulate, "stochastic": stochastic, "operation": steps.operation}
    mixed = attention(graph, query, key, value, programs, mask=mask, name=name, **how).transpose(0, 2, 1, 3)
    steps.operation += 3
    joined = copied(graph, programs, mixed, f"{name}: heads").reshape(rows, places, width)
    return linear(joined, weights["out"]).reshape(rows, places, width)


def rotary_embedding(
    graph: Graph,
    x: Tensor,
    programs: list[Program],
    *,
    first: int = 0,
    base: float = 10000.0,
    name: str = "rotary",
) -> Tensor:
    """Adds pairs of elements turned by an angle that grows with the place (Su et al., arXiv 2104.09864).

    Element i of the first half of a vector is paired with element i of the second. Products and sums are in the format
    of x, to nearest even, with cosines and sines in that format too.

    Args:
        graph: where.
        x: mapped (.., places, width), an even width.
        programs: what is to be run is appended to it.
        first: the number of the first place.
        base: element pair i turns by place * base**(-2 i / width).
        name: for profiles.

    Returns:
        A new array of x's shape.

    Raises:
        ValueError: an odd width.
    """
    places, width = x.shape[-2:]
    if width % 2:
        raise ValueError(f"rotary embedding pairs elements: a width of {width} is odd")
    half, fmt, steps = width // 2, x.format, Steps(graph, programs, name)
    angle = (first + np.arange(places))[:, None] * base ** (-np.arange(half) / half)
    cosine, sine = (map_array(graph, graph.add_constant(fmt, f(angle), f"{name}: angles")) for f in (np.cos, np.sin))
    a, b = x[..., :half], x[..., half:]

    def combined(a: Tensor, b: Tensor, op: str) -> Tensor:
        products = (steps.elementwise("multiply", part, by, fmt=fmt) for part, by in ((a, cosine), (b, sine)))
        return steps.elementwise(op, *products, fmt=fmt)

    out = add_array(graph, fmt, x.shape, name)
    programs += concatenate([combined(a, b, "subtract"), combined(b, a, "add")], out, x.ndim - 1, name=name)
    return out
