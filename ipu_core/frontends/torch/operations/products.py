"""Products: linear layers, matrix products, einsum, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall, combined
from ipu_core.frontends.torch.operations.shapes import repeated_along
from ipu_core.ir.trace.values import (
    Traced,
    Value,
    matmul,
    reduce_max,
    reduce_sum,
    reshape,
    shape_of,
    swap,
    transpose,
    where,
)
from ipu_core.nn import dropout, softmax


def linear(call: NodeCall, x: Value, weight: Value, bias: Value | None = None) -> Value:
    product = matmul(x, transpose(weight))
    return product if bias is None else combined("add", product, bias)


def product(call: NodeCall, a: Value, b: Value, *_: Any) -> Value:
    return reshape(matmul(a, b), call.shape)  # of two vectors a number


def plus_product(call: NodeCall, x: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> Value:
    made = combined("multiply", matmul(a, b), alpha)
    # torch does not read x where beta is 0: it may hold NaN
    return combined("add", combined("multiply", x, beta), made) if beta else made


def outer(call: NodeCall, a: Value, b: Value) -> Value:
    return combined("multiply", reshape(a, (-1, 1)), b)


def bilinear(call: NodeCall, a: Value, b: Value, weight: Value, bias: Value | None = None) -> Value:
    made = einsum(call, "...i,oij,...j->...o", [a, weight, b])
    return made if bias is None else combined("add", made, bias)


def attention(
    call: NodeCall, query: Value, key: Value, value: Value, mask: Value | None = None, rate: float = 0.0,
    causal: bool = False, scale: float | None = None, grouped: bool = False,
) -> Value:  # fmt: skip
    """Attention with torch's masks: truth values or numbers to add; the causal one begins at the first key.

    A query that no key is left for gives 0, and has no gradient.
    """
    if grouped:
        times = shape_of(query)[-3] // shape_of(key)[-3]
        key, value = (repeated_along(x, len(shape_of(x)) - 3, times) for x in (key, value))
    factor = shape_of(query)[-1] ** -0.5 if scale is None else scale
    scores = matmul(combined("multiply", query, factor), swap(key))
    allowed = seen = None
    if causal:
        # torch aligns the causal mask at the first key, `nn.causal_mask` at the last
        allowed = np.tri(*shape_of(scores)[-2:], dtype=np.float32)
    elif mask is not None and call.kind(3) == "bool":
        allowed, seen = mask, reduce_max(mask, -1, True)
    elif mask is not None:
        # a row of -inf alone would make the softmax NaN: it is left out before and cleared after
        seen = combined("greater", reduce_max(mask, -1, True), -math.inf)
        scores = combined("add", scores, mask if _whole(seen) else where(seen, mask, 0.0))
    weights = softmax(scores, mask=allowed)
    if seen is not None and not _whole(seen):
        # without a key all weights are equal; torch gives 0
        weights = where(seen, weights, 0.0)
    return matmul(dropout(weights, rate) if rate else weights, value)


def _whole(seen: Value) -> bool:
    """Whether every query is known to see a key."""
    return not isinstance(seen, Traced) and bool(np.all(seen))


def einsum(call: NodeCall, equation: str, operands: Sequence[Value], *_: Any) -> Value:
    """A sum of products by the names of axes, operand by operand from the left."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    # the axes of an ellipsis get letters of their own, aligned at the last
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    sizes = [len(shape_of(x)) - len(t.replace("...", "")) for x, t in zip(operands, terms, strict=True) if "..." in t]
    dots = "".join(spare[: max(sizes, default=0)])
    terms = [t.replace("...", dots[len(dots) - (len(shape_of(x)) - len(t.replace("...", ""))) :] if "..." in t else "")
             for x, t in zip(operands, terms, strict=True)]  # fmt: skip
    if not arrow:
        letters = "".join(terms)
        right = dots + "".join(sorted(c for c in set(letters) - set(dots) if letters.count(c) == 1))
    right = right.replace("...", dots)
    if any(len(set(t)) < len(t) for t in terms):
        raise NotImplementedError("a diagonal")
    term, x = terms[0], operands[0]
    for position in range(1, len(terms)):
        later = set(right).union(*terms[position + 1 :])
        term, x = _pair(term, x, terms[position], operands[position], later)
    lost = [i for i, c in enumerate(term) if c not in right]
    x, term = reduce_sum(x, lost) if lost else x, "".join(c for c in term if c in right)
    return transpose(x, [term.index(c) for c in right])


def _pair(first: str, a: Value, second: str, b: Value, later: set[str]) -> tuple[str, Value]:
    """Two operands as one matrix product: axes of both that stay, of the first, of the second, and summed ones."""
    for_first, for_second = (
        [i for i, c in enumerate(own) if c not in other and c not in later]
        for own, other in ((first, second), (second, first))
    )
    # an axis of one operand alone is summed before the product, which it would make larger
    a, first = (reduce_sum(a, for_first), _without(first, for_first)) if for_first else (a, first)
    b, second = (reduce_sum(b, for_second), _without(second, for_second)) if for_second else (b, second)
    batch = [c for c in first if c in second and c in later]
    summed = [c for c in first if c in second and c not in later]
    rows, columns = [c for c in first if c not in second], [c for c in second if c not in first]
    size = {**dict(zip(first, shape_of(a), strict=True)), **dict(zip(second, shape_of(b), strict=True))}
    count = [math.prod(size[c] for c in group) for group in (rows, summed, columns)]
    lead = [size[c] for c in batch]
    a = reshape(transpose(a, [first.index(c) for c in (*batch, *rows, *summed)]), (*lead, count[0], count[1]))
    b = reshape(transpose(b, [second.index(c) for c in (*batch, *summed, *columns)]), (*lead, count[1], count[2]))
    made = (*batch, *rows, *columns)
    return "".join(made), reshape(matmul(a, b), [size[c] for c in made])


def _without(term: str, places: Sequence[int]) -> str:
    return "".join(c for i, c in enumerate(term) if i not in places)


TABLE: dict[str, Callable[..., Any]] = {
    "linear": linear, "matmul": product, "mm": product, "bmm": product, "mv": product,
    "dot": product, "vdot": product,
    "addmm": plus_product, "baddbmm": plus_product, "addmv": plus_product,
    "outer": outer, "ger": outer, "bilinear": bilinear, "einsum": einsum,
    "scaled_dot_product_attention": attention,
}  # fmt: skip
