"""NumPy's functions on traced values, composed of a Block's operations; sums, products and rounding are those of these.

`log1p` and `expm1` are formulas of several roundings. Statistics (`var`, `std`, `norm`) are in float32 in every
precision, as those of norms are. Everything else is in the precision's formats: `einsum`, `tensordot` and `cumsum` are
products, what moves elements is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.ir.block import dtype_of
from ipu_core.ir.ops import ELEMENTWISE
from ipu_core.ir.trace.array_formulas import (
    arccos,
    arcsin,
    arctan,
    arctan2,
    argsort,
    broadcast_arrays,
    cosh,
    cross,
    cumprod,
    diagonal,
    hypot,
    matrix_power,
    meshgrid,
    odd,
    prod,
    sort,
    tan,
    unstack,
    vecdot,
)
from ipu_core.ir.trace.array_moves import (
    Axis,
    array_split,
    expand_dims,
    flip,
    hstack,
    moveaxis,
    pad,
    ravel,
    repeat,
    roll,
    split,
    squeeze,
    stack,
    swapaxes,
    take,
    take_along_axis,
    tile,
    trace,
    tril,
    triu,
    vstack,
)
from ipu_core.ir.trace.array_products import dot, einsum, inner, outer, tensordot, vdot
from ipu_core.ir.trace.values import (
    Traced,
    Value,
    apply,
    axes_of,
    broadcast,
    concatenate,
    convert,
    elementwise,
    index_basic,
    logical_and,
    logical_not,
    logical_or,
    matmul,
    mean,
    power,
    reduce_max,
    reduce_sum,
    reshape,
    scope,
    shape_of,
    transpose,
    where,
)
from ipu_core.ir.trace.whole_numbers import ceil, divmod_of, floor_divide, remainder, round_decimals, trunc


def reduce_min(a: Value, axis: Axis = None, keepdims: bool = False) -> Value:
    """The minimum over axes; NaN if there is one."""
    return elementwise("negative", reduce_max(elementwise("negative", a), axis, keepdims))


def any_of(a: Value, axis: Axis = None, keepdims: bool = False) -> Value:
    """1 where one element is not 0, else 0."""
    return reduce_max(_truth(a), axis, keepdims)


def all_of(a: Value, axis: Axis = None, keepdims: bool = False) -> Value:
    """1 where no element is 0, else 0."""
    return logical_not(reduce_max(logical_not(a), axis, keepdims))


def count_nonzero(a: Value, axis: Axis = None, keepdims: bool = False) -> Value:
    """How many elements are not 0, as a sum in the precision's formats."""
    return reduce_sum(_truth(a), axis, keepdims)


def argmax(a: Value, axis: int | None = None, keepdims: bool = False) -> Value:
    """The int32 index of the largest, the first of equal ones; of a NaN if there is one."""
    if axis is None:
        found = argmax(ravel(a), 0)
        return reshape(found, (1,) * len(shape_of(a))) if keepdims else found
    (place,) = axes_of(a, axis)
    found = moveaxis(apply("top_indices", moveaxis(a, place, -1), k=1), -1, place)
    return found if keepdims else squeeze(found, place)


def argmin(a: Value, axis: int | None = None, keepdims: bool = False) -> Value:
    """The int32 index of the smallest, the first of equal ones; of a NaN if there is one."""
    return argmax(elementwise("negative", a), axis, keepdims)


def cumsum(a: Value, axis: int | None = None) -> Value:
    """The sums of the elements up to each, along an axis: a product with a triangle of ones.

    Each is a sum of its own, in the order and the formats of a product, not the one before it and a term; what comes
    after it is multiplied by 0, so that an infinity or a NaN makes NaN of all sums along the axis.
    """
    if axis is None:
        a, axis = ravel(a), 0
    (place,) = axes_of(a, axis)
    ones = np.tri(shape_of(a)[place], dtype=np.float32).T
    return moveaxis(matmul(moveaxis(a, place, -1), ones), -1, place)


def diff(a: Value, n: int = 1, axis: int = -1) -> Value:
    """Differences of neighbours along an axis, n times."""
    (place,) = axes_of(a, axis)
    before = (slice(None),) * place
    for _ in range(n):
        after, first = index_basic(a, (*before, slice(1, None))), index_basic(a, (*before, slice(0, -1)))
        a = elementwise("subtract", after, first)
    return a


def var(
    a: Value, axis: Axis = None, ddof: float = 0, keepdims: bool = False, *, correction: float | None = None
) -> Value:
    """The mean squared distance from the mean, in float32 in every precision."""
    count = math.prod(shape_of(a)[n] for n in axes_of(a, axis))
    # With no degrees of freedom left NumPy divides by 0: here it is NaN as well, without a division.
    left = count - (ddof if correction is None else correction)
    with scope(a, family="norm"):
        far = elementwise("square", elementwise("subtract", a, mean(a, axis, keepdims=True)))
        return elementwise("multiply", reduce_sum(far, axis, keepdims), 1 / left if left > 0 else math.nan)


def std(
    a: Value, axis: Axis = None, ddof: float = 0, keepdims: bool = False, *, correction: float | None = None
) -> Value:
    """The square root of `var`, in float32 in every precision."""
    with scope(a, family="norm"):
        return apply("sqrt", var(a, axis, ddof, keepdims, correction=correction))


def norm(x: Value, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Value:
    """The root of the sum of squares (ord None, 2 of vectors, "fro"), the sum of magnitudes (1) or the largest (inf).

    Sums and root are in float32 in every precision; there is no scaling, so squares may overflow float32.
    """
    vectors = len(shape_of(x)) == 1 or (axis is not None and len(axes_of(x, axis)) == 1)
    with scope(x, family="norm"):
        if ord is None or (ord == 2 and vectors) or ord == "fro":
            return apply("sqrt", reduce_sum(elementwise("square", x), axis, keepdims))
        if ord == 1 and vectors:
            return reduce_sum(elementwise("absolute", x), axis, keepdims)
        if ord == math.inf and vectors:
            return reduce_max(elementwise("absolute", x), axis, keepdims)
    raise ValueError(
        f"np.linalg.norm of a traced value: ord is None or 'fro', of vectors also 1, 2 or inf, not {ord!r}"
    )


def clip(a: Value, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Value:
    """Elements not below one bound nor above another."""
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    a = a if low is None else elementwise("maximum", a, low)
    return a if high is None else elementwise("minimum", a, high)


def log1p(x: Value) -> Value:
    """The logarithm of 1 + x, true to a few roundings for small x too: log(u) * x / (u - 1) for u = 1 + x (Kahan)."""
    u = elementwise("add", x, 1.0)
    log, less = apply("log", u), elementwise("subtract", u, 1.0)
    plain = logical_or(elementwise("equal", u, x), elementwise("equal", u, 0.0))
    return _corrected(log, plain, elementwise("multiply", log, x), less, x)


def expm1(x: Value) -> Value:
    """e^x - 1, true to a few roundings for small x too: (u - 1) * x / log(u) for u = e^x (Kahan)."""
    u = apply("exp", x)
    log, less = apply("log", u), elementwise("subtract", u, 1.0)
    plain = logical_or(elementwise("equal", less, u), elementwise("equal", less, -1.0))
    return _corrected(less, plain, elementwise("multiply", less, x), log, x)


def sinh(x: Value) -> Value:
    """(u + u / (u + 1)) / 2 for u = e^|x| - 1, with the sign of x: true for small x too."""

    def positive(x: Value) -> Value:
        u = expm1(x)
        return elementwise("multiply", u + elementwise("divide", u, u + 1.0), 0.5)

    return odd(positive, x)


def arcsinh(x: Value) -> Value:
    """log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))), with the sign of x: true for small x too."""

    def positive(x: Value) -> Value:
        square = elementwise("square", x)
        return log1p(x + elementwise("divide", square, apply("sqrt", square + 1.0) + 1.0))

    return odd(positive, x)


def arccosh(x: Value) -> Value:
    """log(x + sqrt(x - 1) sqrt(x + 1))."""
    roots = elementwise("multiply", apply("sqrt", x - 1.0), apply("sqrt", x + 1.0))
    return apply("log", elementwise("add", x, roots))


def arctanh(x: Value) -> Value:
    """log1p(2 x / (1 - x)) / 2."""
    return elementwise("multiply", log1p(elementwise("divide", 2.0 * x, 1.0 - x)), 0.5)


def vector_norm(x: Value, *, axis: Axis = None, keepdims: bool = False, ord: Any = 2) -> Value:
    """`norm` of vectors along an axis, or of all elements."""
    if axis is None:
        found = norm(ravel(x), ord)
        return reshape(found, (1,) * len(shape_of(x))) if keepdims else found
    return norm(x, ord, axis, keepdims)


def cumulative_sum(x: Value, *, axis: int | None = None, include_initial: bool = False) -> Value:
    """`cumsum`, with a 0 before it if that is asked for."""
    sums = cumsum(x, axis)
    return _after(sums, 0.0, axis) if include_initial else sums


def cumulative_prod(x: Value, *, axis: int | None = None, include_initial: bool = False) -> Value:
    """`cumprod`, with a 1 before it if that is asked for."""
    products = cumprod(x, axis)
    return _after(products, 1.0, axis) if include_initial else products


def _after(sums: Value, first: float, axis: int | None) -> Value:
    """A number before the elements along an axis."""
    (place,) = axes_of(sums, 0 if axis is None else axis)
    start = index_basic(sums, (*(slice(None),) * place, slice(0, 1)))
    return concatenate([np.full(shape_of(start), first, np.float32), sums], place)


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The dtype that NumPy gives a result of values of the dtypes that they are traced with."""
    return np.result_type(*(dtype_of(x.format) if isinstance(x, Traced) else x for x in arrays_and_dtypes))


def _corrected(rough: Value, plain: Value, above: Value, below: Value, x: Value) -> Value:
    """A rough value, whose derivative is right, plus what it lacks of a fraction, or of x where that is 0 / 0."""
    small = elementwise("equal", below, 0.0)
    # Nothing is divided by 0, so that no division by zero is raised where exceptions are enabled.
    fraction = elementwise("divide", above, where(logical_or(small, plain), 1.0, below))
    lacks = where(plain, 0.0, elementwise("subtract", where(small, x, fraction), rough))
    # The derivative of the rough value is right by itself.
    return elementwise("add", rough, apply("stop_gradient", lacks))


def logaddexp(x1: Value, x2: Value) -> Value:
    """The logarithm of e^x1 + e^x2, shifted by the larger."""
    far = elementwise("negative", elementwise("absolute", elementwise("subtract", x1, x2)))
    return elementwise("add", elementwise("maximum", x1, x2), log1p(apply("exp", far)))


def sign(x: Value) -> Value:
    """1 above 0, -1 below, else x itself; its gradient is 0."""
    x = apply("stop_gradient", x)
    return where(elementwise("greater", x, 0.0), 1.0, where(elementwise("greater", 0.0, x), -1.0, x))


def not_equal(a: Value, b: Value) -> Value:
    """1 where two differ (a NaN from everything), else 0."""
    return logical_not(elementwise("equal", a, b))


def greater_equal(a: Value, b: Value) -> Value:
    """1 where a is not below b and neither is NaN, else 0."""
    return logical_or(elementwise("greater", a, b), elementwise("equal", a, b))


def _truth(x: Value) -> Value:
    return not_equal(x, 0.0)


def _each(*ops: str) -> dict[str, Callable[..., Value]]:
    def one(op: str) -> Callable[..., Value]:
        return lambda *operands: elementwise(op, *operands)

    return {op: one(op) for op in ops}


NUMPY = {name for name, function in vars(np).items() if isinstance(function, np.ufunc)}
UFUNCS: dict[str, Callable[..., Value]] = {
    **_each(*(ELEMENTWISE & NUMPY)),
    "matmul": matmul, "power": power, "float_power": power, "positive": lambda x: x,
    "less": lambda a, b: elementwise("greater", b, a), "less_equal": lambda a, b: greater_equal(b, a),
    "greater_equal": greater_equal, "not_equal": not_equal,
    "logical_and": lambda a, b: logical_and(a, _truth(b)), "logical_or": lambda a, b: logical_or(a, _truth(b)),
    "logical_not": logical_not, "logical_xor": lambda a, b: not_equal(_truth(a), _truth(b)),
    "bitwise_and": logical_and, "bitwise_or": logical_or, "invert": logical_not, "bitwise_xor": not_equal,
    "isnan": lambda x: not_equal(x, x), "isinf": lambda x: elementwise("equal", elementwise("absolute", x), math.inf),
    "isfinite": lambda x: elementwise("greater", math.inf, elementwise("absolute", x)),
    "tan": tan, "arcsin": arcsin, "arccos": arccos, "arctan": arctan, "arctan2": arctan2,
    "sinh": sinh, "cosh": cosh, "arcsinh": arcsinh, "arccosh": arccosh, "arctanh": arctanh,
    "ceil": ceil, "trunc": trunc, "remainder": remainder, "floor_divide": floor_divide, "divmod": divmod_of,
    "hypot": hypot, "vecdot": vecdot, "conjugate": lambda x: x,
    "sign": sign, "log1p": log1p, "expm1": expm1, "logaddexp": logaddexp,
    "log2": lambda x: elementwise("multiply", apply("log", x), 1 / math.log(2)),
    "log10": lambda x: elementwise("multiply", apply("log", x), 1 / math.log(10)),
    "exp2": lambda x: apply("exp", elementwise("multiply", x, math.log(2))),
}  # fmt: skip
"""NumPy's elementwise functions by name."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": reduce_sum, "mean": mean, "max": reduce_max, "amax": reduce_max, "min": reduce_min, "amin": reduce_min,
    "any": any_of, "all": all_of, "count_nonzero": count_nonzero, "argmax": argmax, "argmin": argmin,
    "var": var, "std": std, "linalg.norm": norm, "cumsum": cumsum, "diff": diff,
    "transpose": lambda a, axes=None: transpose(a, axes), "matrix_transpose": lambda x: swapaxes(x, -1, -2),
    "swapaxes": swapaxes, "moveaxis": moveaxis, "reshape": reshape, "ravel": ravel,
    "expand_dims": expand_dims, "squeeze": squeeze,
    "broadcast_to": broadcast, "concatenate": lambda arrays, axis=0: concatenate(
        *(([ravel(x) for x in arrays], 0) if axis is None else (arrays, axis))),
    "stack": stack, "vstack": vstack, "hstack": hstack, "split": split, "array_split": array_split,
    "take": take, "take_along_axis": take_along_axis, "flip": flip, "fliplr": lambda m: flip(m, 1),
    "flipud": lambda m: flip(m, 0), "roll": roll, "repeat": repeat, "tile": tile, "pad": pad,
    "tril": tril, "triu": triu, "trace": trace, "where": where, "clip": clip,
    "dot": dot, "vdot": vdot, "inner": inner, "outer": outer, "tensordot": tensordot, "einsum": einsum,
    "linalg.matmul": matmul, "linalg.tensordot": tensordot, "linalg.vecdot": vecdot, "linalg.outer": outer,
    "linalg.cross": cross, "linalg.diagonal": diagonal, "linalg.matrix_power": matrix_power,
    "linalg.trace": lambda x, *, offset=0: reduce_sum(diagonal(x, offset), -1), "linalg.vector_norm": vector_norm,
    "linalg.matrix_norm": lambda x, *, keepdims=False, ord="fro": norm(x, ord, (-2, -1), keepdims),
    "linalg.matrix_transpose": lambda x: swapaxes(x, -1, -2),
    "round": round_decimals, "around": round_decimals, "fix": trunc,
    "sort": sort, "argsort": argsort, "prod": prod, "cumulative_sum": cumulative_sum, "cumprod": cumprod,
    "cumulative_prod": cumulative_prod, "unstack": unstack,
    "broadcast_arrays": broadcast_arrays, "meshgrid": meshgrid, "real": lambda val: val,
    "imag": lambda val: np.zeros(shape_of(val), np.float32), "result_type": result_type,
    "empty_like": lambda prototype: np.zeros(shape_of(prototype), np.float32),
    "astype": lambda x, dtype: convert(x, dtype), "copy": lambda a: a,
    "zeros_like": lambda a: np.zeros(shape_of(a), np.float32), "ones_like": lambda a: np.ones(shape_of(a), np.float32),
    "full_like": lambda a, fill_value: np.full(shape_of(a), fill_value, np.float32),
    "shape": shape_of, "ndim": lambda a: len(shape_of(a)), "size": lambda a: math.prod(shape_of(a)),
}  # fmt: skip
"""NumPy's other functions by name, with the module's where that is not numpy itself."""

_SORT = "nn.topk orders rows, largest=False from the smallest"
_SHAPE = "shapes may not depend on numbers: use where, or a mask"
_LATER = "there are no numbers yet: compare what evaluate, execute or a training loop gives"
INSTEAD = {
    **dict.fromkeys(("partition", "argpartition", "median", "quantile", "percentile"), _SORT),
    **dict.fromkeys(("nonzero", "flatnonzero", "argwhere", "unique", "histogram"), _SHAPE),
    **dict.fromkeys(("allclose", "isclose", "array_equal"), _LATER),
    **dict.fromkeys(("signbit", "copysign"), "the sign of a zero is not seen: np.where(x < 0, ..., ...)"),
    **dict.fromkeys(("nextafter", "spacing"), "its format is the precision's to say, when it is traced"),
    "searchsorted": "np.sum(x1 < np.expand_dims(x2, -1), -1) counts what lies before",
    "convolve": "nn.conv1d convolves, with its kernel not flipped",
    "modf": "np.fmod(x, 1.0) and np.trunc(x) are its parts",
    "cbrt": "np.exp(np.log(x) / 3) is that of positive numbers",
    "average": "np.sum(x * weights) / np.sum(weights) is it",
}  # fmt: skip
"""What to write instead of functions that cannot be traced."""
