"""What a training loop is given, checked where it comes in: refusals that say what was given and what is allowed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from ipu_core.chip.hardware_random import HardwareRandom
from ipu_core.ir.block import Array, Type, dtype_of
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.pytree import flatten, paths
from ipu_core.ir.trace.eager import as_array, format_of
from ipu_core.ir.trace.values import Traced
from ipu_core.train import ENGINES, GENERATORS
from lowprec import Accumulation, FloatFormat, as_format

Recompute = bool | float | tuple[str, ...]
"""What is made again for the gradients: what is cheap, a share's worth of it, or parts by their names."""


def check_loss_function(loss: Any) -> None:
    """Raises TypeError for what is no function."""
    if not callable(loss):
        raise TypeError(f"loss must be a function (params, batch) -> one number, not {loss!r}")


def check_optimizer(optimizer: Any) -> None:
    """Raises TypeError for what is no optimizer."""
    if isinstance(optimizer, type) or not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        raise TypeError(f"optimizer must be one such as Sgd(0.1), Adam(1e-3) or Lamb(1e-3), not {optimizer!r}")


def check_orders(accumulations: Any) -> None:
    """Raises TypeError for what says no order of sums."""
    if accumulations is None:
        return
    if not isinstance(accumulations, Mapping):
        raise TypeError(f"accumulations must be a dict from equation numbers to Accumulations, not {accumulations!r}")
    for number, order in accumulations.items():
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise TypeError(f"accumulations must be a dict from equation numbers to Accumulations: {number!r} is none")
        if not isinstance(order, Accumulation):
            raise TypeError(f"accumulations[{number!r}] must be one such as Accumulation(group=16), not {order!r}")


def check_engine(engine: Any) -> None:
    if not isinstance(engine, str) or engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}: choose {' or '.join(ENGINES)}")


def check_params(params: Any) -> None:
    """Refuses parameters that are no arrays of floats, by their name and with what to write."""
    leaves, tree = flatten(params)
    for name, leaf in zip(paths(tree), leaves, strict=True):
        _check_no_list("params", name, leaf)
        if hasattr(leaf, "dtype") and (given := np.dtype(as_array(leaf).dtype)).kind in "iu":
            raise TypeError(f"params: {name or 'it'} holds {given}; parameters are floats: x.astype(np.float32)")


def check_batch(batch: Any) -> None:
    """Refuses a batch with an array without rows, or lists in place of arrays, by its name."""
    leaves, tree = flatten(batch)
    for name, leaf in zip(paths(tree), leaves, strict=True):
        _check_no_list("batch", name, leaf)
        if np.shape(leaf)[:1] == (0,):
            raise ValueError(f"batch: array {name or '0'} is empty, of shape {np.shape(leaf)}: it needs a row at least")


def check_forward(forward: Any, batch: Any) -> None:
    """Refuses what is no function of parameters and a batch, and a batch with lists in place of arrays."""
    if not callable(forward):
        raise TypeError(f"forward must be a function (params, batch) -> arrays, not {forward!r}")
    leaves, tree = flatten(batch)
    for name, leaf in zip(paths(tree), leaves, strict=True):
        _check_no_list("batch", name, leaf)


def _check_no_list(what: str, name: str, leaf: Any) -> None:
    """Refuses a number in a list within a list, or in a list of parameters: an array was meant."""
    if not isinstance(leaf, int | float) or isinstance(leaf, np.generic):
        return
    places = name.split(".")
    if places[-1].isdecimal() and (what == "params" or len(places) > 1):
        raise TypeError(
            f"{what}: {name} is the number {leaf!r} in a list, and lists are read as nested "
            f"{'parameters' if what == 'params' else 'arrays'}: give arrays, np.array([...], np.float32)"
        )


def check_loss(loss: Any) -> None:
    """Refuses a loss whose arguments are named the other way round."""
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):  # which some compiled functions raise
        return
    if names[:2] == ["batch", "params"]:
        raise TypeError("loss takes (params, batch), in this order; this one takes (batch, params)")


def check_one_number(value: Any) -> None:
    """Refuses what a loss gives where that is not one number which something that is traced goes into."""
    if isinstance(value, tuple | list | dict):
        raise TypeError(
            f"loss must give one number, not a {type(value).__name__} of {len(value)}; what a model carries beside "
            "its parameters is model_state, what is to be watched is measured by an Evaluate callback"
        )
    if not isinstance(value, Traced):
        raise ValueError(f"loss gives {value!r}, in which there is neither a parameter nor the batch")


def check_integer(name: str, value: Any, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, not {value!r}")


def is_real(value: Any) -> bool:
    """Whether something is a real number: no truth value, text or array."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_random(random: Any) -> str | HardwareRandom:
    """The name of a generator, or how the tiles' start.

    Raises:
        ValueError: an unknown name, or another seed than two words.
        TypeError: neither name nor `HardwareRandom`.
    """
    if isinstance(random, HardwareRandom):
        if len(random.seed) != 2:
            raise ValueError(f"random: a seed has two 32-bit words, not {tuple(random.seed)}")
        random.state(1, 1)  # refuses words that are none
        return replace(random, seed=(random.seed[0], random.seed[1]))
    if not isinstance(random, str):
        raise TypeError(f"random must be {' or '.join(GENERATORS)} or a HardwareRandom, not {random!r}")
    if random not in GENERATORS:
        raise ValueError(f"unknown random {random!r}: choose {' or '.join(GENERATORS)}")
    return random


def check_recompute(recompute: Any) -> Recompute:
    """What `recompute` says: whether all that is cheap is made again, a share of the memory to come down to, or names.

    Names are given in order and each once: neither says more.

    Raises:
        ValueError: it says none of these.
    """
    if isinstance(recompute, bool | np.bool_):
        return bool(recompute)
    if isinstance(recompute, float | np.floating) and 0 < recompute < 1:
        return float(recompute)
    names = (recompute,) if isinstance(recompute, str) else recompute
    if isinstance(names, tuple | list | set | frozenset) and names and all(isinstance(n, str) and n for n in names):
        return tuple(sorted(set(names)))
    raise ValueError(
        "recompute must be True, False, a share between 0 and 1 such as 0.75, or names of parts such as 'blocks.*', "
        f"not {recompute!r}"
    )


def check_stash(stash: Any) -> FloatFormat | None:
    """The format of a stash; None: there is none.

    Raises:
        ValueError, TypeError: no format, or one without a storage dtype.
    """
    fmt = None if stash is None else as_format(stash)
    if fmt is not None:
        dtype_of(fmt)
    return fmt


def feed(position: int, leaf: Any, wanted: Type) -> Array:
    """One array of a batch as the step takes it: float64, NumPy's default, is rounded to the traced format."""
    try:
        given = as_array(leaf)
        if given.shape != wanted.shape:
            raise ValueError(f"it has shape {given.shape}; the step was traced with {wanted}")
        format_of(given)  # refuses what is no number
        array = cast(given, wanted.format)
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"array {position} of the batch: {error}") from None
    if array.dtype == np.int32 and not np.array_equal(array, given):
        raise ValueError(f"array {position} of the batch holds numbers that are no 32-bit integers")
    return array
