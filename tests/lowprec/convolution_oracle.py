"""Convolutions of halves written as loops over every product, with the rounding to half spelt out again.

Nothing here comes from lowprec: products of halves are exact in float32, so NumPy's float32 scalars are the arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tests.lowprec.sum_oracle import OUTPUT, STEP, random16

Term = tuple[Any, Any]


def to_half(x: np.float32, random: int | None) -> np.float32:
    """x on float16's grid: to the nearest, or up with random of 2^16 bits as likely as the discarded fraction says."""
    if random is None:
        return np.float32(np.float16(x))
    if x == 0:
        return x
    quantum = Fraction(2) ** (max(-14, math.frexp(abs(float(x)))[1] - 1) - 10)
    code = math.floor(abs(Fraction(float(x))) / quantum + Fraction(random, 65536))
    return np.float32(math.copysign(float(code * quantum), x))


@dataclass(frozen=True)
class Sum:
    """How an element's groups of terms are added."""

    half: bool
    splits: int = 1
    key: int | None = None

    def rounded(self, x: np.float32, tag: int, place: tuple[int, int, int], number: int) -> np.float32:
        if not self.half:
            return x
        return to_half(x, None if self.key is None else random16(self.key, tag, *place, number))

    def of(self, groups: Sequence[Sequence[Term]], batch: int, row: int, column: int) -> np.float32:
        """At most 15 parts, so one stage."""
        length = math.ceil(len(groups) / self.splits)
        place = (batch, row, column)
        parts = []
        for first in range(0, len(groups), length or 1):
            partial = np.float32(0)
            for g in range(first, min(first + length, len(groups))):
                for a, b in groups[g]:
                    partial = np.float32(partial + np.float32(a) * np.float32(b))
                partial = self.rounded(partial, STEP, place, g)
            parts.append(partial)
        total = parts[0] if parts else np.float32(0)
        for part in parts[1:]:
            total = np.float32(total + part)
        return self.rounded(total, OUTPUT, place, 0)


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


def chunks(terms: Sequence[Term], size: int) -> list[Sequence[Term]]:
    return [terms[i : i + size] for i in range(0, len(terms), size)]


def forward(x: Any, w: Any, shape: Shape, group: int, how: Sum) -> Any:
    high, wide = shape.count(x.shape[1:3], w.shape)
    each, outputs = x.shape[3] // shape.groups, w.shape[3] // shape.groups
    result = np.zeros((x.shape[0], high, wide, w.shape[3]), np.float32)
    for row, (n, oy, ox) in enumerate(np.ndindex(x.shape[0], high, wide)):
        for q, o in np.ndindex(shape.groups, outputs):
            groups: list[Sequence[Term]] = []
            for ky, kx in np.ndindex(*w.shape[:2]):
                y, z = shape.source(oy, ky, 0), shape.source(ox, kx, 1)
                terms = [(at(x, n, y, z, q * each + c), w[ky, kx, c, q * outputs + o]) for c in range(each)]
                groups += chunks(terms, group)
            result[n, oy, ox, q * outputs + o] = how.of(groups, q, row, o)
    return result


def input_gradient(g: Any, w: Any, size: tuple[int, int], shape: Shape, group: int, how: Sum) -> Any:
    each, outputs = w.shape[2], w.shape[3] // shape.groups
    result = np.zeros((g.shape[0], *size, each * shape.groups), np.float32)
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
                groups += chunks([(at(g, n, oy, ox, i), w[ky, kx, c, i]) for i in o], group)
            batch = (phase[0] * shape.stride[1] + phase[1]) * shape.groups + q
            result[n, y, x, q * each + c] = how.of(groups, batch, row, c)
    return result


def weight_gradient(x: Any, g: Any, kernel: tuple[int, int], shape: Shape, group: int, how: Sum) -> Any:
    each, outputs = x.shape[3] // shape.groups, g.shape[3] // shape.groups
    result = np.zeros((*kernel, each, g.shape[3]), np.float32)
    for row, (ky, kx, c) in enumerate(np.ndindex(*kernel, each)):
        for q, o in np.ndindex(shape.groups, outputs):
            terms = []
            for n, oy, ox in np.ndindex(*g.shape[:3]):
                y, z = shape.source(oy, ky, 0), shape.source(ox, kx, 1)
                terms.append((at(x, n, y, z, q * each + c), g[n, oy, ox, q * outputs + o]))
            result[ky, kx, c, q * outputs + o] = how.of(chunks(terms, group), q, row, o)
    return result
