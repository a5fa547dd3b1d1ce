"""Settings as suspects: state, loss scale, learning rate, clipping and batches, and a run with some of them changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipu_core.ir.block import Array
from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.pytree import flatten, plain
from ipu_core.train.altered import altered
from ipu_core.train.loop import TrainLoop
from ipu_core.train.loss_scale import LossScale

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Setting:
    """A setting that is changed.

    Attributes:
        cause: "loss scale", "learning rate", "clipping", "batch" or "state".
        value: the loss scale that is taken instead; what the learning rate is multiplied by; of batches, those that are
            left out, by number; None for clipping, which is left out, and for a state, whose infinities and NaN become
            zeros.
        part: "", as of a `CauseSwitch` for the whole model.
    """

    cause: str
    value: LossScale | float | tuple[int, ...] | None = None
    part: str = ""

    def __str__(self) -> str:
        match self.value:
            case LossScale(init_scale=scale):
                return f"a loss scale that begins at {in_words(scale)} and adapts (loss_scale=LossScale({scale:.16g}))"
            case tuple(numbers):
                return f"{'the batch' if len(numbers) == 1 else 'batches'} of {numbers_in_words(numbers)} left out"
            case None:
                return "zeros in their place" if self.cause == "state" else "gradients that are not clipped"
            case factor:
                share = f"{factor:.16g} times" if factor > 1 else f"1/{1 / factor:.16g} of"
                return f"{share} the learning rate"


@dataclass(frozen=True)
class Variant:
    """A run to be done: a precision, and settings that are changed.

    Attributes:
        precision: of the run.
        settings: that are changed.
    """

    precision: Precision
    settings: tuple[Setting, ...] = ()

    def of(self, loop: TrainLoop) -> TrainLoop:
        """A loop on the state of another, for this run."""
        scale, rate = None, 1.0
        for one in self.settings:
            scale = one.value if isinstance(one.value, LossScale) else scale
            rate *= one.value if isinstance(one.value, float) else 1.0
        causes = {one.cause for one in self.settings}
        made = altered(loop.in_precision(self.precision), rate=rate, loss_scale=scale, clipped="clipping" not in causes)
        if "state" in causes:
            state = made.state
            made.resume(replace(state, leaves={name: _finite(array) for name, array in state.leaves.items()}))
        return made

    def batches(self, given: Sequence[Any], first: int) -> Sequence[Any]:
        """The batches of the run, with the nearest ones before (or behind) in the place of those that are left out."""
        out = {n - first for one in self.settings if isinstance(one.value, tuple) for n in one.value}
        if not out:
            return given
        good = [n for n in range(len(given)) if n not in out]
        return [
            given[n if n not in out else max((g for g in good if g < n), default=good[0])] for n in range(len(given))
        ]

    def with_setting(self, setting: Setting) -> Variant:
        """The same run with one more setting changed."""
        return replace(self, settings=(*self.settings, setting))


def not_finite_state(loop: TrainLoop) -> dict[str, str]:
    """The arrays of a state that hold infinities or NaN, with how many of how many elements, in words."""
    counts = {name: int(np.sum(~finite_in(array))) for name, array in loop.state.leaves.items()}
    return {name: f"{count:,} of {loop.state.leaves[name].size:,}" for name, count in counts.items() if count}


def _finite(array: Array) -> Array:
    """With zeros in the place of infinities and NaN."""
    return np.where(finite_in(array), array, np.zeros((), array.dtype))


def finite_in(array: Array) -> Bools:
    """Which elements are numbers; all of an array of integers."""
    x = np.asarray(array)
    return np.isfinite(x) if x.dtype.kind not in "iub" else np.ones(x.shape, np.bool_)


def not_finite(batches: Sequence[Any], first: int) -> tuple[int, ...]:
    """The steps whose batch holds infinities or NaN.

    Args:
        batches: of the run.
        first: the number of its first step.
    """
    return tuple(first + n for n, batch in enumerate(batches) if not is_finite(batch))


def is_finite(batch: Any) -> bool:
    """Whether all floats of a batch are finite."""
    arrays = (np.asarray(plain(x)) for x in flatten(batch)[0])
    return all(bool(np.isfinite(x).all()) for x in arrays if np.issubdtype(x.dtype, np.inexact))


def numbers_in_words(numbers: Sequence[int]) -> str:
    """Steps in words, the first of many."""
    more = f" and {len(numbers) - MOST} more" if len(numbers) > MOST else ""
    return f"step{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:MOST]))}{more}"


MOST = 3


def in_words(number: float) -> str:
    """A scale in words, a power of two as such."""
    mantissa, exponent = math.frexp(number)
    return f"2^{exponent - 1}" if mantissa == HALF else f"{number:g}"


HALF = 0.5


def sizes(batches: Sequence[Any]) -> list[float]:
    """The largest magnitude of the floats of each batch; 0 of one that has none."""

    def size(batch: Any) -> float:
        arrays = (np.asarray(plain(x)) for x in flatten(batch)[0])
        return max(
            (float(np.abs(x).max()) for x in arrays if x.size and np.issubdtype(x.dtype, np.inexact)), default=0.0
        )

    return [size(batch) for batch in batches]
