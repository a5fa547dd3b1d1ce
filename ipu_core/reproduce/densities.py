"""Densities to sample from: two whose answers are known, and the net of the talk."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from ipu_core import nn
from ipu_core.initial import normal, uniform
from lowprec import Key
from lowprec.types import Array

DEVIATIONS = np.array([0.1, 1.0, 3.0, 10.0], np.float32)
CENTRES = np.array([0.0, 1.0, -3.0, 5.0], np.float32)
ROWS, NOISE = 128, 0.3
SIZES = (22, 40, 40, 1)
"""Three dense layers of 40 units that read 22 inputs, the last with one number to give."""


def gaussian(positions: Any) -> Any:
    """Independent normal numbers of DEVIATIONS around CENTRES: (chains, 4) -> (chains,)."""
    apart = (positions - CENTRES) * (1 / DEVIATIONS)
    return -0.5 * (apart * apart).sum(axis=1)


def logistic(positions: Any, x: Any, y: Any) -> Any:
    """Logistic regression with a normal prior of deviation 2: (chains, 2), (rows, 2), signs (rows,) -> (chains,)."""
    margins = nn.matmul(positions, x.T) * y
    # log sigmoid(m) = min(m, 0) - log(1 + exp(-|m|))
    inside = nn.minimum(margins, 0.0) - np.log(1.0 + np.exp(-np.abs(margins)))
    return inside.sum(axis=1) - 0.125 * (positions * positions).sum(axis=1)


def logistic_data(rows: int = 60) -> tuple[Array, Array]:
    """Rows of (1, x) and signs of which a slope of 1.5 and an offset of -0.5 would give most."""
    x = normal(Key(1), (rows,))
    chance = 1 / (1 + np.exp(-(1.5 * x.astype(np.float64) - 0.5)))
    signs = np.where(uniform(Key(2), (rows,)) * 0.5 + 0.5 < chance, 1, -1)
    return np.stack([np.ones_like(x), x], axis=1), signs.astype(np.float32)


class Known(NamedTuple):
    """Means and variances of the two coefficients."""

    mean: Array
    variance: Array


def logistic_answer(side: int = 801) -> Known:
    """Of the logistic regression, by a sum over a grid in float64, on which the density falls to nothing."""
    x, y = (each.astype(np.float64) for each in logistic_data())
    grid = np.linspace(-6, 6, side)
    places = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    log = -np.logaddexp(0, -(places @ x.T) * y).sum(axis=1) - 0.125 * (places**2).sum(axis=1)
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mean = weights @ places
    return Known(mean, weights @ (places - mean) ** 2)


def network(layers: Any, x: Any) -> Any:
    """tanh between layers, none after the last: (rows, 22) -> (chains, rows, 1)."""
    hidden = x
    for number, layer in enumerate(layers):
        bias = layer["bias"]
        hidden = nn.matmul(hidden, layer["weight"]) + nn.reshape(bias, (bias.shape[0], 1, bias.shape[1]))
        hidden = hidden if number == len(layers) - 1 else nn.tanh(hidden)
    return hidden


def regression(layers: Any, x: Any, y: Any) -> Any:
    """Rows with normal noise of deviation NOISE; weights have variance 1/inputs before, biases 1."""
    off = network(layers, x) - y
    value = (off * off).sum(axis=(1, 2)) * (-0.5 / NOISE**2)
    for layer in layers:
        weight, bias = layer["weight"], layer["bias"]
        value = value - (weight * weight).sum(axis=(1, 2)) * (0.5 * weight.shape[1]) - 0.5 * (bias * bias).sum(axis=1)
    return value


def prior(key: Key, chains: int) -> Any:
    """Layers of every chain drawn from the prior."""
    keys = iter(key.split(2 * len(SIZES)))
    return [
        {"weight": normal(next(keys), (chains, m, n), m**-0.5), "bias": normal(next(keys), (chains, n))}
        for m, n in itertools.pairwise(SIZES)
    ]


def prior_scales() -> Any:
    """The deviation of each part of a position under the prior."""
    return [
        {"weight": np.full((m, n), m**-0.5, np.float32), "bias": np.ones(n, np.float32)}
        for m, n in itertools.pairwise(SIZES)
    ]


def regression_data(key: Key) -> tuple[Array, Array]:
    """Rows, and what a net of the prior gives for them, with noise."""
    for_rows, for_net, for_noise = key.split(3)
    x = normal(for_rows, (ROWS, SIZES[0]))
    y = np.asarray(network(prior(for_net, 1), x))[0]
    return x, (y + normal(for_noise, y.shape, NOISE)).astype(np.float32)
