"""NumPy's products on traced values and arrays: each is a matrix product, in its order and formats, and moves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ipu_core.ir.trace.array_moves import ravel
from ipu_core.ir.trace.values import Value, elementwise, matmul, reduce_sum, reshape, shape_of, transpose


def einsum(subscripts: str, *operands: Value) -> Value:
    """Sums of products by letters, from the left: what two operands share and the result lacks is one matrix product.

    Raises:
        ValueError: letters that do not fit the operands, an ellipsis, or a letter twice in one operand.
    """
    terms, arrow, out = subscripts.replace(" ", "").partition("->")
    letters = terms.split(",")
    if "." in subscripts or any(len(set(one)) < len(one) for one in letters):
        raise ValueError(
            f"np.einsum of traced values takes neither ... nor a letter twice in one operand: {subscripts!r}"
        )
    if [len(one) for one in letters] != [len(shape_of(x)) for x in operands]:
        shapes = ", ".join(str(shape_of(x)) for x in operands)
        raise ValueError(f"np.einsum: {subscripts!r} does not fit operands of the shapes {shapes}")
    if not arrow:
        out = "".join(sorted(c for c in set(terms) - {","} if terms.count(c) == 1))
    value, have = operands[0], letters[0]
    for number in range(1, len(operands)):
        later = set(out).union(*letters[number + 1 :])
        kept = "".join(dict.fromkeys(c for c in have + letters[number] if c in later))
        value, have = _contract(value, have, operands[number], letters[number], kept), kept
    value, have = _summed(value, have, out)
    return transpose(value, [have.index(c) for c in out])


def _summed(value: Value, have: str, kept: str) -> tuple[Value, str]:
    """Summed over the letters that are not kept."""
    gone = [n for n, c in enumerate(have) if c not in kept]
    return reduce_sum(value, gone) if gone else value, "".join(c for c in have if c in kept)


def _contract(a: Value, of_a: str, b: Value, of_b: str, kept: str) -> Value:
    a, of_a = _summed(a, of_a, kept + of_b)
    b, of_b = _summed(b, of_b, kept + of_a)
    shared = [c for c in of_a if c in of_b]
    batch, inner = [c for c in shared if c in kept], [c for c in shared if c not in kept]
    own_a, own_b = ([c for c in one if c not in shared] for one in (of_a, of_b))
    a = transpose(a, [of_a.index(c) for c in (*batch, *own_a, *inner)])
    b = transpose(b, [of_b.index(c) for c in (*batch, *inner, *own_b)])
    lead, rows, columns = (
        shape_of(a)[: len(batch)],
        shape_of(a)[len(batch) : len(batch) + len(own_a)],
        shape_of(b)[len(shared) :],
    )
    if inner:
        terms = math.prod(shape_of(b)[len(batch) : len(shared)])
        left, right = reshape(a, (*lead, math.prod(rows), terms)), reshape(b, (*lead, terms, math.prod(columns)))
        product = matmul(left, right)
    else:
        product = elementwise("multiply", reshape(a, (*lead, *rows, *(1,) * len(columns))),
                              reshape(b, (*lead, *(1,) * len(rows), *columns)))  # fmt: skip
    made = [*batch, *own_a, *own_b]
    return transpose(reshape(product, (*lead, *rows, *columns)), [made.index(c) for c in kept])


def tensordot(a: Value, b: Value, axes: Any = 2) -> Value:
    """The sum of products over the last axes of a and the first of b, or over axes named for each."""
    ndims = len(shape_of(a)), len(shape_of(b))
    if isinstance(axes, int):
        first, second = list(range(ndims[0] - axes, ndims[0])), list(range(axes))
    else:
        first, second = ([int(n) % ndim for n in np.atleast_1d(one)] for one, ndim in zip(axes, ndims, strict=True))
    letters = [chr(ord("a") + n) for n in range(sum(ndims))]
    of_a, of_b = letters[: ndims[0]], letters[ndims[0] :]
    for n, m in zip(first, second, strict=True):
        of_b[m] = of_a[n]
    out = [c for c in (*of_a, *of_b) if (c in of_a) != (c in of_b)]
    return einsum(f"{''.join(of_a)},{''.join(of_b)}->{''.join(out)}", a, b)


def dot(a: Value, b: Value) -> Value:
    """The product of matrices or vectors; with a number, element by element."""
    if not shape_of(a) or not shape_of(b):
        return elementwise("multiply", a, b)
    return tensordot(a, b, ([-1], [max(-2, -len(shape_of(b)))]))


def vdot(a: Value, b: Value) -> Value:
    """The sum of the products of all elements, in C order."""
    return dot(ravel(a), ravel(b))


def inner(a: Value, b: Value) -> Value:
    """The sums of products along the last axes of both."""
    return tensordot(a, b, ([-1], [-1]))


def outer(a: Value, b: Value) -> Value:
    """The products of every element with every other."""
    return elementwise("multiply", reshape(a, (-1, 1)), reshape(b, (1, -1)))
