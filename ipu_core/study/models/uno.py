"""UNO, one of CANDLE's benchmarks and of Graphcore's talk at Argonne: how much a drug at a dose lets a cell line grow.

A tower of dense layers for each kind of feature (a cell's gene expression, a drug's descriptors and its fingerprint);
what they give, beside the dose, goes through further dense layers to one number. The benchmark's data are not here:
these are made, of the same widths, from a few hidden numbers of each cell and drug and a curve of Hill's, so that what
there is to find is known.
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
from ipu_core.ir.trace.values import concatenate
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

TOWERS = ("cell", "descriptors", "fingerprint")
HIDDEN = 6
"""Numbers that say all of a cell, and of a drug."""
NOISE = 0.05
TESTED = 0.2


@dataclass(frozen=True)
class Size:
    """Of the data and the net.

    Attributes:
        cells, drugs, rows: how many, and doses that were tried.
        features: of each of the towers.
        width, deep, layers: units of a layer, layers of a tower, and those behind.
    """

    cells: int
    drugs: int
    rows: int
    features: tuple[int, int, int]
    width: int
    deep: int
    layers: int

    def __str__(self) -> str:
        towers = " + ".join(f"{count:,}" for count in self.features)
        return f"towers of {towers} features, {self.deep} and {self.layers} layers of width {self.width:,}"


SIZES = {
    "small": Size(60, 200, 20_000, (64, 96, 64), 64, 3, 3),
    "talk": Size(60, 200, 20_000, (942, 5270, 2048), 1000, 3, 5),
}


def data(size: str) -> Made:
    """ "cell" (cells, features), "descriptors" and "fingerprint" (drugs, features); of each row "which" (rows, 2), the
    cell and the drug, "dose" (rows, 1) and "growth" (rows,).

    Raises:
        ValueError: no such size.
    """
    return _made(sized(SIZES, size))


@functools.lru_cache(maxsize=2)
def _made(size: Size) -> Made:
    keys = Key(59).split(10)
    of_cell, of_drug = normal(keys[0], (size.cells, HIDDEN)), normal(keys[1], (size.drugs, HIDDEN))

    def seen(hidden: Array, features: int, key: Key) -> Array:
        """Hidden numbers through a random matrix and a bend, with noise; deviation near 1."""
        mixed = hidden @ normal(key.fold_in(0), (HIDDEN, features), HIDDEN**-0.5)
        bent: Array = np.tanh(mixed) * 1.5 + normal(key.fold_in(1), mixed.shape, 0.3)
        return bent

    which = np.stack([random_bits(keys[2], (size.rows,), 32) % size.cells,
                      random_bits(keys[3], (size.rows,), 32) % size.drugs], axis=1).astype(np.int32)  # fmt: skip
    dose = uniform(keys[4], (size.rows, 1), 2.0)
    # Hill's curve of the dose's logarithm, whose middle is the cell's answer to the drug.
    middle = ((of_cell[which[:, 0]] * of_drug[which[:, 1]]).sum(axis=1) / HIDDEN**0.5).astype(np.float64)
    growth = 1 / (1 + np.exp(2 * (dose[:, 0] - middle))) + normal(keys[5], (size.rows,), NOISE)
    arrays = {
        "cell": seen(of_cell, size.features[0], keys[6]),
        "descriptors": seen(of_drug, size.features[1], keys[7]),
        # A fingerprint is of bits.
        "fingerprint": (seen(of_drug, size.features[2], keys[8]) > 0).astype(np.float32),
        "which": which,
        "dose": dose,
        "growth": growth,
    }
    made = {name: x if x.dtype.kind == "i" else x.astype(np.float32) for name, x in arrays.items()}
    return Made(f"doses ({size.rows:,} of {size.cells} cells and {size.drugs} drugs)", size, made)


def problem(task: Made, batch: int, scaling: UnitScaling, target: Target) -> Problem:
    """The net on these doses, `batch` of them a step.

    Raises:
        ValueError: more than there are.
    """
    trained = task.size.rows - round(TESTED * task.size.rows)
    rows = functools.partial(shuffled, trained, batch)
    rows(0)
    starts = layout(task.size)
    return Problem(
        scaling.of(loss), scaling.begun(functools.partial(initial, starts)),
        functools.partial(batches, task, rows),
        functools.partial(evaluate, scaling.of(growth), task, trained, target=target), stand_ins(starts),
    )  # fmt: skip


def batches(task: Made, rows: Callable[[int], Callable[[int], Array]], seed: int) -> Callable[[int], dict[str, Array]]:
    """The batch of any step."""
    chosen = rows(seed)
    return lambda step: of_rows(task, chosen(step))


def of_rows(task: Made, rows: Array) -> dict[str, Array]:
    """What the net reads of some rows, and what it should give."""
    which = task["which"][rows]
    return {
        "cell": task["cell"][which[:, 0]],
        "descriptors": task["descriptors"][which[:, 1]],
        "fingerprint": task["fingerprint"][which[:, 1]],
        "dose": task["dose"][rows],
        "growth": task["growth"][rows],
    }


def layout(size: Size) -> Any:
    """How every parameter begins."""

    def dense(widths: list[int]) -> Any:
        return [
            {"weight": ParameterStart((rows, columns), (2 / rows) ** 0.5), "bias": ParameterStart((columns,))}
            for rows, columns in itertools.pairwise(widths)
        ]

    towers = {name: dense([f, *[size.width] * size.deep]) for name, f in zip(TOWERS, size.features, strict=True)}
    return {
        **towers,
        "joined": dense([len(TOWERS) * size.width + 1, *[size.width] * size.layers]),
        "growth": dense([size.width, 1]),
    }


def growth(params: Any, batch: Any) -> Any:
    """(rows,)."""
    parts = [_through(params[name], batch[name]) for name in TOWERS]
    h = _through(params["joined"], concatenate([*parts, batch["dose"]], 1))
    made = nn.linear(h, **params["growth"][0])
    return nn.reshape(made, (np.shape(made)[0],))


def _through(layers: Any, h: Any) -> Any:
    for layer in layers:
        h = nn.relu(nn.linear(h, **layer))
    return h


def loss(params: Any, batch: Any) -> Any:
    """The mean square of what is missing."""
    return nn.mse(growth(params, batch), batch["growth"])


def evaluate(
    own: Callable[..., Any], task: Made, trained: int, params: Any, precision: Precision, *, target: Target
) -> dict[str, float]:
    """The share of the test doses' variance that is told (r squared)."""
    batch = of_rows(task, np.arange(trained, task.size.rows))
    made = evaluated(in_units(own, precision), precision, OrderRule.of(target), Key(EVALUATION), params, batch)
    wanted = batch["growth"].astype(np.float64)
    missing = np.asarray(made, np.float64) - wanted
    return {"r_squared": float(1 - (missing**2).mean() / wanted.var())}
