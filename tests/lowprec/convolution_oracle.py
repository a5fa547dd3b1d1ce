"""Convolutions as the docstring of lowprec.convolution tells them: loops over every product, sums by `sum_oracle`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.lowprec.sum_oracle import Sum, Term, groups_of


@dataclass(frozen=True)
class Shape:
    """Of a convolution in NHWC; weights (kh, kw, channels / groups, outputs)."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def count(self, size: Sequence[int], kernel: Sequence[int]) -> list[int]:
        return [
            len(range(0, size[i] + sum(self.padding[i]) - (kernel[i] - 1) * self.dilation[i], self.stride[i]))
            for i in (0, 1)
        ]

    def source(self, output: int, position: int, axis: int) -> int:
        return output * self.stride[axis] + position * self.dilation[axis] - self.padding[axis][0]


def at(x: Any, image: int, y: int, z: int, channel: int) -> Any:
    """An element, or 0 outside of the image."""
    inside = 0 <= y < x.shape[1] and 0 <= z < x.shape[2]
    return x[image, y, z, channel] if inside else x.dtype.type(0)


def forward(x: Any, w: Any, shape: Shape, how: Sum, offset: tuple[int, int] = (0, 0)) -> Any:
    high, wide = shape.count(x.shape[1:3], w.shape)
    each, outputs = x.shape[3] // shape.groups, w.shape[3] // shape.groups
    result = np.zeros((x.shape[0], high, wide, w.shape[3]))
    for row, (n, oy, ox) in enumerate(np.ndindex(x.shape[0], high, wide)):
        for q, o in np.ndindex(shape.groups, outputs):
            groups: list[Sequence[Term]] = []
            for ky, kx in np.ndindex(*w.shape[:2]):
                y, z = shape.source(oy, ky, 0), shape.source(ox, kx, 1)
                terms = [(at(x, n, y, z, q * each + c), w[ky, kx, c, q * outputs + o]) for c in range(each)]
                groups += groups_of(terms, how.group or len(terms) or 1)
            result[n, oy, ox, q * outputs + o] = how.of_groups(groups, q, offset[0] + row, offset[1] + o)
    return result


def input_gradient(g: Any, w: Any, size: tuple[int, int], shape: Shape, how: Sum) -> Any:
    each, outputs = w.shape[2], w.shape[3] // shape.groups
    result = np.zeros((g.shape[0], *size, each * shape.groups))
    rows: dict[tuple[int, int], itertools.count[int]] = {}
    for n, y, x in np.ndindex(g.shape[0], *size):
        phase = (y + shape.padding[0][0]) % shape.stride[0], (x + shape.padding[1][0]) % shape.stride[1]
        row = next(rows.setdefault(phase, itertools.count()))
        for q, c in np.ndindex(shape.groups, each):
            groups: list[Sequence[Term]] = []
            for ky, kx in itertools.product(range(w.shape[0])[::-1], range(w.shape[1])[::-1]):
                oy, rest_y = divmod(y + shape.padding[0][0] - ky * shape.dilation[0], shape.stride[0])
                ox, rest_x = divmod(x + shape.padding[1][0] - kx * shape.dilation[1], shape.stride[1])
                if rest_y or rest_x:
                    continue
                o = range(q * outputs, (q + 1) * outputs)
                terms = [(at(g, n, oy, ox, i), w[ky, kx, c, i]) for i in o]
                groups += groups_of(terms, how.group or len(terms) or 1)
            batch = (phase[0] * shape.stride[1] + phase[1]) * shape.groups + q
            result[n, y, x, q * each + c] = how.of_groups(groups, batch, row, c)
    return result


def weight_gradient(x: Any, g: Any, kernel: tuple[int, int], shape: Shape, how: Sum) -> Any:
    each, outputs = x.shape[3] // shape.groups, g.shape[3] // shape.groups
    result = np.zeros((*kernel, each, g.shape[3]))
    for row, (ky, kx, c) in enumerate(np.ndindex(*kernel, each)):
        for q, o in np.ndindex(shape.groups, outputs):
            terms = []
            for n, oy, ox in np.ndindex(*g.shape[:3]):
                y, z = shape.source(oy, ky, 0), shape.source(ox, kx, 1)
                terms.append((at(x, n, y, z, q * each + c), g[n, oy, ox, q * outputs + o]))
            result[ky, kx, c, q * outputs + o] = how.of(terms, q, row, o)
    return result
