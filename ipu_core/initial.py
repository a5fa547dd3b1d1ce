"""Initial values of parameters: pure functions of a key and a shape, the same bits on every machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipu_core.ir.block import Array
from ipu_core.ir.pytree import flatten, unflatten
from ipu_core.ir.trace.values import apply, elementwise
from lowprec import random_bits
from lowprec.checks import number, sizes
from lowprec.processor import in_default_state
from lowprec.random import KeyLike, as_key


@in_default_state
def uniform(key: KeyLike, shape: Sequence[int], bound: float = 1.0) -> Array:
    """float32 numbers uniform in [-bound, bound): the same bits on every machine.

    Args:
        key: a `lowprec.Key` or an int.
        shape: sizes of the axes.
        bound: largest magnitude.
    """
    # by integers of the key: NumPy's generators may change their distributions between versions
    words = random_bits(key, sizes("shape", shape), 32)
    return (number("bound", bound) * (words * 2.0**-31 - 1.0)).astype(np.float32)


@in_default_state
def normal(key: KeyLike, shape: Sequence[int], deviation: float = 1.0) -> Array:
    """float32 numbers of a normal distribution (Box and Muller): the same bits on every machine.

    Args:
        key: a `lowprec.Key` or an int.
        shape: sizes of the axes.
        deviation: the standard deviation.
    """
    # keys of their own: the two numbers of Box and Muller must be independent
    for_radius, for_angle = as_key(key).split(2)
    shape, deviation = sizes("shape", shape), number("deviation", deviation)
    # half a step off the grid, so that the logarithm never meets 0
    unit = ((random_bits(for_radius, shape, 32) + 0.5) * 2.0**-32).astype(np.float32)
    angle = uniform(for_angle, shape, math.pi)
    # by the kernels' fixed sequences, not NumPy's functions, whose bits differ between AVX2 and AVX-512
    radius = apply("sqrt", elementwise("multiply", apply("log", unit), -2.0))
    return np.asarray(elementwise("multiply", elementwise("multiply", radius, apply("cos", angle)), deviation))


def _fan_in(shape: Sequence[int]) -> int:
    """The inputs of a weight (..., outputs); at least 1, so that an empty weight has a variance too."""
    lengths = tuple(shape) if isinstance(shape, Sequence) else ()
    if not lengths or not all(isinstance(size, int | np.integer) and size >= 0 for size in lengths):
        raise ValueError(f"a weight's shape is integers (..., inputs, outputs) of at least 0, not {shape!r}")
    return max(1, math.prod(lengths[:-1]))


@in_default_state
def he_uniform(key: KeyLike, shape: Sequence[int]) -> Array:
    """Uniform with variance 2/inputs, for weights (..., outputs) before a relu (He et al., arXiv 1502.01852)."""
    return uniform(key, shape, math.sqrt(6 / _fan_in(shape)))


@in_default_state
def he_normal(key: KeyLike, shape: Sequence[int]) -> Array:
    """Normal with variance 2/inputs, for weights before a relu (He et al., arXiv 1502.01852)."""
    return normal(key, shape, math.sqrt(2 / _fan_in(shape)))


@in_default_state
def lecun_uniform(key: KeyLike, shape: Sequence[int]) -> Array:
    """Uniform with variance 1/inputs."""
    return uniform(key, shape, math.sqrt(3 / _fan_in(shape)))


@in_default_state
def lecun_normal(key: KeyLike, shape: Sequence[int]) -> Array:
    """Normal with variance 1/inputs."""
    return normal(key, shape, math.sqrt(1 / _fan_in(shape)))


@in_default_state
def glorot_uniform(key: KeyLike, shape: Sequence[int]) -> Array:
    """Uniform with variance 2/(inputs + outputs) (Glorot and Bengio, 2010)."""
    return uniform(key, shape, math.sqrt(6 / (_fan_in(shape) + shape[-1])))


@in_default_state
def unit_parameters(key: KeyLike, params: Any) -> Any:
    """Parameters as a model under unit scaling begins with (see `unit_scale`): weights normal of deviation 1.

    Args:
        key: a `lowprec.Key` or an int.
        params: nested arrays. What has fewer than two axes (biases, scales of norms) stays as it is.
    """
    leaves, tree = flatten(params)
    keys = as_key(key).split(max(1, len(leaves)))
    return unflatten(
        tree, [normal(own, np.shape(x)) if np.ndim(x) > 1 else x for own, x in zip(keys, leaves, strict=False)]
    )


@in_default_state
def mlp_parameters(key: KeyLike, widths: Sequence[int]) -> list[dict[str, Array]]:
    """Initial layers for `nn.mlp`: He's uniform weights (the last layer's with half the variance), biases 0.

    Args:
        key: a `lowprec.Key` or an int.
        widths: inputs, hidden sizes, outputs: at least two.

    Raises:
        ValueError: fewer than two widths, or widths that are no integers of at least 0.
    """
    if not isinstance(widths, Sequence) or len(widths) < 2:
        raise ValueError(f"a perceptron needs at least two widths, not {widths!r}")
    keys = as_key(key).split(len(widths) - 1)
    # no relu follows the last layer, so its variance is 1 / inputs
    initials = [he_uniform] * (len(widths) - 2) + [lecun_uniform]
    shapes = itertools.pairwise(widths)
    weights = [f(k, shape) for f, k, shape in zip(initials, keys, shapes, strict=True)]
    return [{"weight": w, "bias": np.zeros(w.shape[1], np.float32)} for w in weights]
