"""How the parameters of a model begin, nested as they are: said once, for their values and for their shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core import nn
from ipu_core.ir.pytree import flatten, map_leaves, unflatten
from ipu_core.study.point import stand_in
from lowprec import Key


@dataclass(frozen=True)
class ParameterStart:
    """How a parameter begins: normal numbers of a deviation, or full of a value."""

    shape: tuple[int, ...]
    deviation: float = 0.0
    value: float = 0.0


def initial(starts: Any, seed: int) -> Any:
    """The parameters of a seed, float32: the same bits on every machine."""
    leaves, tree = flatten(starts)
    return unflatten(tree, list(map(_begun, leaves, Key(seed).split(len(leaves)))))


def _begun(start: ParameterStart, key: Key) -> Any:
    if start.deviation:
        return nn.normal(key, start.shape, start.deviation)
    return np.full(start.shape, start.value, np.float32)


def stand_ins(starts: Any) -> Any:
    """Stand-ins of the parameters, for `Problem.shapes`."""
    return map_leaves(lambda start: stand_in(*start.shape, zero=not start.deviation and not start.value), starts)
