"""BraggNN (Liu et al. 2022, IUCrJ 9, arXiv 2008.08198): the place of a diffraction peak in a patch of 11 x 11 pixels.

One of the models of Graphcore's talk at Argonne, which moved the augmentation onto the chip: here too each step shifts
its patches itself, by two products with matrices of zeros and ones, exact in every format. Peaks are made here, so
that their places are known: two-dimensional pseudo-Voigt shapes with counting noise, where the paper has those of
fits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.chip.target import Target
from ipu_core.initial import normal, uniform
from ipu_core.ir.precision.precision import Precision
from ipu_core.placement.orders import OrderRule
from ipu_core.study.models.made import Made, sized
from ipu_core.study.models.start import ParameterStart, initial, stand_ins
from ipu_core.study.models.unit_scaled import UnitScaling
from ipu_core.study.point import Problem
from ipu_core.train.data.dataset import shuffled
from ipu_core.train.predictor import EVALUATION, evaluated
from ipu_core.train.units import in_units
from lowprec import Key, random_bits
from lowprec.types import Array

SIDE, SHIFT = 11, 2
"""Pixels of a patch, and by how many it is shifted at most, both ways."""
WIDE = SIDE + 2 * SHIFT
DENSE = (64, 32, 16, 8, 2)
INSIDE = 0.5
"""Width of the attention inside, as a share of the first convolution's channels."""
TESTED = 1000


@dataclass(frozen=True)
class Size:
    """Of the data and the net.

    Attributes:
        peaks: how many are trained on.
        channels: of the three convolutions.
    """

    peaks: int
    channels: tuple[int, int, int]

    def __str__(self) -> str:
        return f"channels {'-'.join(map(str, self.channels))}, {self.peaks:,} peaks"


SIZES = {"small": Size(6000, (16, 8, 4)), "talk": Size(70_000, (64, 32, 8))}


def data(size: str) -> Made:
    """Peaks: "patches" (peaks, 15, 15) from 0 to 1, and "centres" (peaks, 2), row and column in pixels from the middle.

    Raises:
        ValueError: no such size.
    """
    return _made(sized(SIZES, size))


@functools.lru_cache(maxsize=2)
def _made(size: Size) -> Made:
    count = size.peaks + TESTED
    keys = Key(47).split(6)
    centres = uniform(keys[0], (count, 2), 1.5)
    widths = 1.2 + 0.5 * uniform(keys[1], (count, 2))
    mixed = 0.5 + 0.5 * uniform(keys[2], (count, 1, 1))
    bright = 60 * 2 ** (2 * uniform(keys[3], (count, 1, 1)))
    axis = np.arange(WIDE) - WIDE // 2
    # Squares of distances in half widths, rows and columns.
    down = ((axis - centres[:, :1]) / widths[:, :1]) ** 2
    along = ((axis - centres[:, 1:]) / widths[:, 1:]) ** 2
    square = (down[:, :, None] + along[:, None, :]).astype(np.float64)
    # 2^-x and 1 / (1 + x) are both a half at one half width.
    shape = bright * (mixed * 2.0**-square + (1 - mixed) / (1 + square))
    noise = normal(keys[4], square.shape) * np.sqrt(shape + 4)  # of counts, and of the detector
    patches = np.maximum(shape + noise, 0)
    patches /= patches.max(axis=(1, 2), keepdims=True)
    name = f"peaks ({size.peaks:,} of {SIDE} x {SIDE} pixels)"
    return Made(name, size, {"patches": patches.astype(np.float32), "centres": centres.astype(np.float32)})


def problem(task: Made, batch: int, scaling: UnitScaling, target: Target) -> Problem:
    """The net on these peaks, `batch` of them a step.

    Raises:
        ValueError: more than there are.
    """
    shuffled(task.size.peaks, batch, 0)
    starts = layout(task.size)
    return Problem(
        scaling.of(loss), scaling.begun(functools.partial(initial, starts)),
        functools.partial(batches, task, batch),
        functools.partial(evaluate, scaling.of(places), task, target=target), stand_ins(starts),
    )  # fmt: skip


def batches(task: Made, batch: int, seed: int) -> Callable[[int], dict[str, Array]]:
    """The batch of any step: patches of 15 x 15, and by how much each is shifted, (peaks, 2) from 0 to 4."""
    rows, shifts = shuffled(task.size.peaks, batch, seed), Key(seed).fold_in(53)

    def made(step: int) -> dict[str, Array]:
        chosen = rows(step)
        # Of 16 bits, and a remainder: no shift is more frequent than another by more than one in 13,000.
        moved = random_bits(shifts.fold_in(step), (batch, 2), 16) % (2 * SHIFT + 1)
        return {
            "patches": task["patches"][chosen],
            "centres": task["centres"][chosen],
            "shifts": moved.astype(np.int32),
        }

    return made


def layout(size: Size) -> Any:
    """How every parameter begins."""
    first, second, third = size.channels
    inner = round(INSIDE * first)

    def conv(side: int, rows: int, columns: int) -> Any:
        deviation = (2 / (side * side * rows)) ** 0.5
        return {"weight": ParameterStart((side, side, rows, columns), deviation), "bias": ParameterStart((columns,))}

    def linear(rows: int, columns: int) -> Any:
        return {"weight": ParameterStart((rows, columns), (2 / rows) ** 0.5), "bias": ParameterStart((columns,))}

    left = (SIDE - 6) ** 2 * third
    widths = (left, *DENSE)
    return {
        "convs": [conv(3, 1, first), conv(3, first, second), conv(3, second, third)],
        "attention": {name: linear(first, inner) for name in ("query", "key", "value")} | {"out": linear(inner, first)},
        "dense": [linear(*pair) for pair in itertools.pairwise(widths)],
    }


def shifted(patches: Any, shifts: Any) -> Any:
    """The 11 x 11 pixels of each patch that begin at its shift."""
    # Of each shift the matrix that takes these rows: one element of a row is 1.
    takes = np.stack([np.eye(SIDE, WIDE, k, np.float32) for k in range(2 * SHIFT + 1)])
    rows = np.shape(patches)[0]
    down, along = (
        nn.reshape(nn.embedding(takes.reshape(len(takes), -1), shifts[:, axis]), (rows, SIDE, WIDE)) for axis in (0, 1)
    )
    return nn.matmul(nn.matmul(down, patches), along.transpose(0, 2, 1))


def places(params: Any, patches: Any) -> Any:
    """The peak of each patch of 11 x 11: row and column in pixels from its middle, (peaks, 2)."""
    rows = np.shape(patches)[0]
    h = nn.reshape(patches, (rows, SIDE, SIDE, 1))
    for number, conv in enumerate(params["convs"]):
        h = nn.leaky_relu(nn.conv2d(h, conv["weight"], conv["bias"]))
        h = _attended(params["attention"], h) if number == 0 else h
    h = nn.flatten(h)
    for number, layer in enumerate(params["dense"]):
        h = nn.linear(h, **layer)
        h = h if number == len(DENSE) - 1 else nn.leaky_relu(h)
    return h


def _attended(part: Any, h: Any) -> Any:
    """The paper's non-local block: every pixel looks at all of them; what it sees is added."""
    rows, high, wide, channels = np.shape(h)
    flat = nn.reshape(h, (rows, high * wide, channels))
    query, key, value = (nn.linear(flat, **part[name]) for name in ("query", "key", "value"))
    seen = nn.matmul(nn.softmax(nn.matmul(query, key.transpose(0, 2, 1))), value)
    return h + nn.reshape(nn.linear(seen, **part["out"]), (rows, high, wide, channels))


def loss(params: Any, batch: Any) -> Any:
    """The mean square of the distance in pixels, of patches that the step shifts."""
    patches = shifted(batch["patches"], batch["shifts"])
    # A patch that begins further down has its peak further up.
    wanted = batch["centres"] - (batch["shifts"].astype(np.float32) - float(SHIFT))
    return nn.mse(places(params, patches), wanted)


def evaluate(
    own: Callable[..., Any], task: Made, params: Any, precision: Precision, *, target: Target
) -> dict[str, float]:
    """Distances of the test peaks from where they are, in pixels: the mean, and the 95th percentile."""
    patches = task["patches"][-TESTED:, SHIFT:-SHIFT, SHIFT:-SHIFT]
    found = evaluated(in_units(own, precision), precision, OrderRule.of(target), Key(EVALUATION), params, patches)
    off = np.linalg.norm(np.asarray(found, np.float64) - task["centres"][-TESTED:], axis=1)
    return {"pixel_error": float(off.mean()), "pixel_error_95": float(np.sort(off)[round(0.95 * TESTED)])}
