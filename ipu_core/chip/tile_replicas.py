"""What the tiles of all replicas make together of what each has: sums in a collective's order, and parts of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipu_core.chip.control import FloatingPointControl
from ipu_core.chip.tile import SECOND_ROUNDING
from lowprec import Collective, Key, Rounding, as_format, astype
from lowprec import float32 as FLOAT32
from lowprec import round as rounded
from lowprec.sums.collectives import all_reduce as summed

Array = NDArray[Any]


def all_reduce(
    collective: Collective, out_format: Any, control: FloatingPointControl
) -> Callable[[Array, Key | None, Array], None]:
    """A prepared sum of what replicas have: f(every, key, out), every (replicas, ...).

    Args:
        collective: its order, formats and rounding.
        out_format: the result's; what travels in another is converted once, rounded as the collective says.
        control: overflow, where the collective's rounding does not say it.
    """
    fmt = as_format(out_format)
    narrows = fmt != collective.wire and not fmt.contains(collective.wire)
    wide = np.float32 if FLOAT32.contains(fmt) else np.float64  # what has its values, where it has no dtype
    last = control.rounding(Rounding(collective.rounding.mode, collective.rounding.random_bits), fmt)
    how = replace(collective, rounding=control.rounding(collective.rounding, collective.wire))

    def call(every: Array, key: Key | None, out: Array) -> None:
        total = summed(every, how, key=key)
        if narrows:
            second = key.fold_in(SECOND_ROUNDING) if key is not None and last.stochastic else None
            if fmt.dtype is None:
                total = rounded(total.astype(np.promote_types(total.dtype, wide), copy=False), fmt, last, key=second)
            else:
                total = astype(total, fmt, last, key=second)
        np.copyto(out, total.astype(out.dtype, copy=False))  # exact: the format has all that is left

    return call


def first_shard(total: Callable[[Array, Key | None, Array], None], every: Array, key: Key | None, out: Array) -> None:
    """The first replica's shard of a sum: its first elements."""
    whole = np.empty(every.shape[1:], out.dtype)
    total(every, key, whole)
    out[...] = whole.reshape(-1)[: out.size]


def gathered(own: Array, out: Array) -> None:
    """What all replicas have one after another, if all have the same."""
    out[...] = np.resize(own, out.size).reshape(out.shape)
