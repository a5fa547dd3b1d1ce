"""Checks of a training loop's arguments: errors say what was given and what is allowed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from ipu_core.chip.hardware_random import HardwareRandom
from ipu_core.chip.system import SYSTEMS, System, read_chips
from ipu_core.chip.target import CHIPS, Target
from ipu_core.ir.block import Array, Type
from ipu_core.ir.block import check_stash as check_format
from ipu_core.ir.precision.retype import cast
from ipu_core.ir.pytree import flatten, named
from ipu_core.ir.spelling import respelled
from ipu_core.ir.trace.eager import as_array, format_of
from ipu_core.ir.trace.values import Traced
from ipu_core.placement.orders import Orders
from ipu_core.system.schedule import SCHEDULES
from ipu_core.train import ENGINES, GENERATORS
from lowprec import Accumulation, FloatFormat, as_format
from lowprec import float32 as FLOAT32
from lowprec.checks import by_number, integer, iterable, number, shown

Recompute = bool | float | tuple[str, ...]
"""What is made again for the gradients: what is cheap, a share's worth of it, or parts by their names."""


def check_loss_function(loss: Any) -> None:
    """Raises TypeError if `loss` cannot be called."""
    if _is_module(loss):
        raise TypeError(
            "loss must be a function (params, batch) -> one number, and this is a module of torch: "
            "model = from_torch(module, batch, loss) has model.loss and model.params"
        )
    if not callable(loss):
        raise TypeError(f"loss must be a function (params, batch) -> one number, not {loss!r}")


def _is_module(x: Any) -> bool:
    """Whether something is a module of torch, which need not be there."""
    return any(each.__module__.startswith("torch.nn") and each.__name__ == "Module" for each in type(x).__mro__)


def check_optimizer(optimizer: Any) -> None:
    """Raises TypeError if `optimizer` is a class, or lacks `init` or `update`."""
    library = type(optimizer).__module__.partition(".")[0]
    if library in ("optax", "torch"):
        maker = "from_torch_optimizer(model, optimizer)" if library == "torch" else "from_optax(optimizer, params)"
        raise TypeError(
            f"an optimizer of {library} keeps its state in arrays of its own and cannot be traced: {maker} makes one"
        )
    missing = [name for name in ("init", "update") if not callable(getattr(optimizer, name, None))]
    missing += [] if hasattr(optimizer, "lr") else ["lr"]
    if isinstance(optimizer, type) or missing:
        own = "one of your own has lr, init(params) and update(params, gradients, state, lr)"
        lacks = f"; {own}, and this lacks {', '.join(missing)}" if missing and not isinstance(optimizer, str) else ""
        raise TypeError(f"optimizer must be one such as Sgd(0.1), Adam(1e-3) or Lamb(1e-3), not {optimizer!r}{lacks}")


def check_orders(accumulations: Any) -> Orders | None:
    """The given orders of sums, their formats set to float32. Raises TypeError for what is no order of a sum."""
    if accumulations is None:
        return None
    given = by_number("accumulations", accumulations, Accumulation)
    # The precision says the formats of sums. Kept here, they would decide no bit and still change the digest.
    return Orders({number: order.with_types(FLOAT32) for number, order in given.items()})


def check_engine(engine: Any) -> None:
    if not isinstance(engine, str) or engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}: choose {' or '.join(ENGINES)}")


def check_params(params: Any) -> None:
    """Refuses parameters that are no arrays of floats, by their name and with what to write, and none at all."""
    if not flatten(params)[0]:
        raise ValueError(
            "params: there are none, so nothing is trained; a Predictor runs a function without parameters"
        )
    for name, leaf in named(params):
        _check_no_list("params", name, leaf)
        if hasattr(leaf, "dtype") and (given := np.dtype(as_array(leaf).dtype)).kind in "iu":
            raise TypeError(f"params: {name or 'it'} holds {given}; parameters are floats: x.astype(np.float32)")


def check_batch(batch: Any, rows: bool = True) -> None:
    """Refuses a batch with lists in place of arrays, or an array without rows where it needs such, by its name."""
    for name, leaf in named(batch):
        _check_no_list("batch", name, leaf)
        if rows and np.shape(leaf)[:1] == (0,):
            raise ValueError(f"batch: array {name or '0'} is empty, of shape {np.shape(leaf)}: it needs a row at least")


def check_forward(forward: Any, batch: Any) -> None:
    """Refuses what is no function of parameters and a batch, and a batch with lists in place of arrays."""
    if not callable(forward):
        raise TypeError(f"forward must be a function (params, batch) -> arrays, not {forward!r}")
    check_batch(batch, rows=False)


def _check_no_list(what: str, name: str, leaf: Any) -> None:
    """Refuses a number in a list within a list, or in a list of parameters: an array was meant."""
    # np.float64 is a float too, but an array scalar is no number of a list.
    if not isinstance(leaf, int | float) or isinstance(leaf, np.generic):
        return
    places = name.split(".")
    # A number at the top of a batch, as in (x, 0.5), is an input of its own; parameters have no such place.
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
    """Refuses a loss whose result is not one number that depends on a traced value."""
    if isinstance(value, tuple | list | dict):
        raise TypeError(
            f"loss must give one number, not a {type(value).__name__} of {len(value)}; what a model carries beside "
            "its parameters is model_state, what is to be watched is measured by an Evaluate callback"
        )
    if not isinstance(value, Traced):
        raise ValueError(f"loss gives {value!r}, in which there is neither a parameter nor the batch")


def check_integer(name: str, value: Any, least: int = 0) -> int:
    """A whole number of at least `least`; another kind is a TypeError, as everywhere."""
    return integer(name, value, least)


def is_real(value: Any) -> bool:
    """Whether something is a real number: no truth value, text or array."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_random(random: Any) -> str | HardwareRandom:
    """The name of a generator, or a `HardwareRandom` with the start of the tiles' generators.

    Raises:
        ValueError: an unknown name, or another seed than two words.
        TypeError: neither name nor `HardwareRandom`.
    """
    if isinstance(random, HardwareRandom):
        if len(random.seed) != 2:
            raise ValueError(f"random: a seed has two 32-bit words, not {tuple(random.seed)}")
        random.state(1, 1)  # refuses words that are none
        # A tuple, whatever was given: a Training is hashable.
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
    return fmt if fmt is None else check_format(fmt)


def feed(name: str, leaf: Any, wanted: Type, classes: int = 0) -> Array:
    """One array of a batch as the step takes it: float64, NumPy's default, is rounded to the traced format.

    Args:
        name: The array's name in the batch.
        leaf: The array.
        wanted: The shape and format it was traced with.
        classes: How many classes the loss has whose labels it holds; 0: it holds no labels.
    """
    try:
        given = as_array(leaf)
        if given.shape != wanted.shape:
            raise ValueError(f"it has shape {given.shape}; the step was traced with {wanted}")
        format_of(given)  # refuses what is no number
        array = cast(given, wanted.format)
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"array {name} of the batch: {error}") from None
    # The cast wraps wider integers: a number beyond 2^31 would become another one.
    if array.dtype == np.int32 and not np.array_equal(array, given):
        raise ValueError(f"array {name} of the batch holds numbers that are no 32-bit integers")
    # one_hot makes a row of zeros of such a label: the loss would be finite, and wrong.
    if classes and array.size and array.view(np.uint32).max() >= classes:  # which negative ones are too
        held = f"labels from {array.min()} to {array.max()}"
        raise ValueError(f"array {name} of the batch holds {held}; the loss has the classes 0 to {classes - 1}")
    return array


def check_overhead(seconds: float | None) -> float | None:
    """Seconds of an update, none or more."""
    if seconds is None:
        return None
    if not 0 <= (given := number("update_overhead", seconds)) < math.inf:
        raise ValueError(f"update_overhead must be seconds, 0 or more and finite, not {seconds!r}")
    return float(given)


def check_names(what: str, given: Any) -> tuple[str, ...]:
    """Names of parts of a state, in order and each once: neither order nor number says more."""
    names = (given,) if isinstance(given, str) else tuple(iterable(what, given))
    if unnamed := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"{what} must be names such as 'params.*', not {shown(unnamed[0])}")
    if not all(names):
        raise ValueError(f"{what} must be names such as 'params.*', not ''; () is nothing")
    return tuple(sorted(set(respelled(names, what).values())))


def check_stages(given: Any) -> int | tuple[str, ...]:
    """How many stages, or the names of the first layer of each, in order."""
    if isinstance(given, int | np.integer) or not isinstance(given, str | Sequence):
        return check_integer("stages", given, least=1)
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not isinstance(name, str) or not name:
            kind = ValueError if isinstance(name, str) else TypeError
            raise kind(f"stages must be a number, or names of layers such as 'blocks.0', not {shown(name)}")
    if len(names) < 2:
        raise ValueError(f"stages are how many, or the first layer of each, two names at least, not {shown(given)}")
    return names


def check_schedule(schedule: Any, stages: int | tuple[str, ...]) -> str:
    """Refuses a schedule that there is not, and one that nothing would follow."""
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise ValueError(f"pipeline_schedule: there is no {shown(schedule)}; there are {', '.join(SCHEDULES)}")
    if stages == 1 and schedule != "grouped":
        told = "one stage has nothing to wait for; stages=2 has"
        raise ValueError(f"pipeline_schedule={schedule!r} would do nothing: {told}")
    return schedule


def chip_of(spec: Target | System | str | None) -> Target:
    """A chip, by its name too, or that of a system; None: the usual one."""
    return chip_and_system(spec, None)[0]


def chip_and_system(spec: Target | System | str | None, system: System | None) -> tuple[Target, System | None]:
    """The chip that `target=` says, and the system that it or `system=` says; a text as of `read_chips`.

    Raises:
        TypeError: a system or a target that is none.
        ValueError: two systems, or one of other chips.
    """
    if not isinstance(system, System | None):
        raise TypeError(f"system must be a System such as System('bow-pod16'), not {shown(system)}")
    named = isinstance(spec, str)
    if isinstance(spec, str):
        if (name := spec.partition("/")[0]) not in (*CHIPS, *SYSTEMS):
            raise ValueError(
                f"unknown target {name!r}; valid targets are {', '.join(CHIPS)}, of replicas {', '.join(SYSTEMS)}"
            )
        spec = read_chips(spec)
    if isinstance(spec, System):
        if system is not None and system != spec:
            raise ValueError(f"target= is the system {spec.name} and system= is {system.name}: one of them")
        return spec.target, spec
    chip = Target() if spec is None else spec
    if not isinstance(chip, Target):
        raise TypeError(f"target must be a Target or a System, or the name of one, not {shown(chip)}")
    if system is not None and chip == Target() and not named:
        chip = system.target
    if system is not None and system.target != chip:
        raise ValueError(
            f"the chips of the system {system.name} are not the target, {chip.name}: target=System(...) says both"
        )
    return chip, system
