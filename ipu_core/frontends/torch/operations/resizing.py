"""Images of other sizes, by a product with the shares that elements have in the new ones along each axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipu_core.frontends.torch.operations.call import NodeCall
from ipu_core.frontends.torch.operations.shapes import taken
from ipu_core.ir.block import Array
from ipu_core.ir.trace.values import Value, apply, matmul, reshape, shape_of, transpose

CUBIC = -0.75
"""Torch's coefficient of cubic interpolation (Keys 1981 has -0.5)."""


def nearest(shift: float) -> Callable[..., Value]:
    """The element at the place times the ratio of sizes, rounded down; with a shift of a half the nearest one."""

    def resized(call: NodeCall, x: Value, size: Any, *scales: Any) -> Value:
        for dim, ratio in _ratios(call, x, scales):
            places = (np.arange(call.shape[dim], dtype=np.float32) + np.float32(shift)) * np.float32(ratio)
            rows = np.minimum(np.floor(places).astype(np.int32), shape_of(x)[dim] - 1)
            # sizes that are kept cost nothing
            x = x if np.array_equal(rows, np.arange(shape_of(x)[dim])) else taken(x, dim, rows)
        return x

    return resized


def between(shares_of: Callable[[Array, int], Array], *, clamped: bool) -> Callable[..., Value]:
    """Weighted means of the neighbours along each axis.

    Args:
        shares_of: (places among the old elements, their number) -> (old, new) shares.
        clamped: whether places before the first element are it.
    """

    def resized(call: NodeCall, x: Value, size: Any, align: bool, *scales: Any) -> Value:
        for dim, ratio in _ratios(call, x, scales):
            old, new = shape_of(x)[dim], call.shape[dim]
            if old == new and (align or ratio == 1):
                continue
            if align:
                places = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
            else:
                places = (np.arange(new) + 0.5) * ratio - 0.5
            places = np.maximum(places, 0.0) if clamped else places
            x = along(x, dim, shares_of(places, old).astype(call.width))
        return x

    return resized


def along(x: Value, dim: int, shares: Array) -> Value:
    """A product with a matrix along one axis."""
    order = (*(i for i in range(len(shape_of(x))) if i != dim), dim)
    return transpose(matmul(transpose(x, order), shares), np.argsort(order).tolist())


def _ratios(call: NodeCall, x: Value, scales: Sequence[Any]) -> list[tuple[int, float]]:
    """The axes, with how many old elements there are to a new one: by the factor where the user gave one."""
    count = len(shape_of(x)) - 2
    given = scales[0] if len(scales) == 1 and isinstance(scales[0], list | tuple) else scales
    given = given if len(given) == count else (None,) * count
    sizes = zip(range(2, 2 + count), given, strict=True)
    return [(dim, 1 / factor if factor else shape_of(x)[dim] / call.shape[dim]) for dim, factor in sizes]


def linear(places: Array, count: int) -> Array:
    """Shares of the two neighbours of each place."""
    shares = np.zeros((count, len(places)))
    first = np.minimum(np.floor(places).astype(int), count - 1)
    for new, old in enumerate(first):
        share = places[new] - old
        shares[old, new] += 1 - share
        shares[min(old + 1, count - 1), new] += share
    return shares


def cubic(places: Array, count: int) -> Array:
    """Shares of the four neighbours of each place; those beyond the ends are the ends."""
    shares = np.zeros((count, len(places)))
    for new, place in enumerate(places):
        first = math.floor(place)
        for old in range(first - 1, first + 3):
            away = abs(place - old)
            near = ((CUBIC + 2) * away - (CUBIC + 3)) * away * away + 1
            far = ((CUBIC * away - 5 * CUBIC) * away + 8 * CUBIC) * away - 4 * CUBIC
            shares[min(max(old, 0), count - 1), new] += near if away <= 1 else far
    return shares


def windows(call: NodeCall, x: Value, dim: int, size: int, step: int) -> Value:
    """Runs of an axis that begin every so many elements, each along a new last axis."""
    dim %= len(shape_of(x))
    starts = np.arange(0, shape_of(x)[dim] - size + 1, step, dtype=np.int32)
    found = taken(x, dim, starts[:, None] + np.arange(size, dtype=np.int32))
    rest = [i for i in range(len(shape_of(found))) if i != dim + 1]
    return transpose(found, (*rest, dim + 1))


def columns(call: NodeCall, x: Value, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    """Every window of an image as a column."""
    x = x if len(shape_of(x)) == 4 else reshape(x, (1, *shape_of(x)))
    low = (0, 0, *padding)
    x = apply("pad", x, low=low, high=low, interior=(0,) * 4) if any(padding) else x
    places = []
    for size, k, d, s in zip(shape_of(x)[2:], kernel, dilation, stride, strict=True):
        starts = np.arange(0, size - d * (k - 1), s)
        places.append(np.arange(k)[:, None] * d + starts)
    high, wide = places
    rows = high[:, None, :, None] * shape_of(x)[3] + wide[None, :, None, :]
    flat = reshape(x, (*shape_of(x)[:2], -1))
    return reshape(taken(flat, 2, rows.reshape(math.prod(kernel), -1).astype(np.int32)), call.shape)


TABLE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("upsample_nearest1d", "upsample_nearest2d"), nearest(0.0)),
    **dict.fromkeys(("_upsample_nearest_exact1d", "_upsample_nearest_exact2d"), nearest(0.5)),
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d"), between(linear, clamped=True)),
    "upsample_bicubic2d": between(cubic, clamped=False),
    "unfold": windows, "im2col": columns,
}  # fmt: skip
