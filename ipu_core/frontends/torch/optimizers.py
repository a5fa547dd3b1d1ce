"""Optimizers of torch.optim as settings of the ones here: the same equations, with torch's defaults and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipu_core.frontends.torch.errors import EMULATE
from ipu_core.frontends.torch.model import TorchModel
from ipu_core.frontends.torch.schedules import TorchSchedule
from ipu_core.train.optim import (
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Asgd,
    Group,
    Lamb,
    NAdam,
    RAdam,
    RmsProp,
    Rprop,
    Sgd,
)
from ipu_core.train.optim.common import Rate, nothing

Taken = Sgd | Asgd | Adam | RmsProp | Adagrad | Adadelta | Adafactor | Rprop
"""What torch's optimizers become; kinds of Adam are AdamW, NAdam, RAdam, Adamax and Lamb too."""


def from_torch_optimizer(model: TorchModel, optimizer: Any, lr: Rate | Any = None) -> Taken:
    """The settings of an optimizer of torch over a captured module's parameters.

    Args:
        model: what `from_torch` gave.
        optimizer: one of torch.optim over parameters of that module, in groups or not, which makes one update of each
            from its own gradient: all but LBFGS, SparseAdam and Muon. A parameter in no group is frozen, and so is one
            that the loss does not depend on: torch gives it no gradient and does not decay it either.
        lr: a schedule, in place of the first group's learning rate; the others keep their ratios to it. Or a scheduler
            of `torch.optim.lr_scheduler` over the optimizer, moved on after each step (see `TorchSchedule`): every
            group has the rates that it gives it.

    Raises:
        ValueError: another optimizer, one of another module or that has made steps, a scheduler over another one, or
            settings that the ones here do not have.
    """
    kind = type(optimizer).__name__
    if hasattr(lr, "get_last_lr"):
        if getattr(lr, "optimizer", optimizer) is not optimizer:
            raise ValueError(f"the scheduler moves the rates of another optimizer: give one over this {kind}")
        lr = TorchSchedule(lr)
    if kind not in KINDS:
        why = f"{OTHERS[kind]}; " if kind in OTHERS else ""
        raise ValueError(f"from_torch_optimizer knows {', '.join(KINDS)}, not {kind}; {why}{EMULATE}")
    first = optimizer.param_groups[0]
    made, read = KINDS[kind]
    _check(kind, optimizer, {name for name, _ in read})
    if _stepped(optimizer):
        raise ValueError(
            f"{kind}: it has made steps, and its moments would not be taken along: give a new one, or say with "
            "optimizer.state.clear() that they begin anew"
        )
    scheduler = lr if isinstance(lr, TorchSchedule) else None
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    if scheduler is not None and len(scheduler.base) != len(rates):
        raise ValueError(f"the scheduler moves {len(scheduler.base)} groups, the optimizer has {len(rates)}")
    # a ratio to 0 is none
    if len(rates) > 1 and not rates[0] and scheduler is None:
        raise ValueError(
            f"{kind}: the learning rates of its groups are kept by their ratio to the first, which is 0: order the "
            "groups so that the first learns, or give a scheduler"
        )
    settings: dict[str, Any] = {"lr": rates[0] if lr is None else lr}
    if "weight_decay" in first:
        # torch decays all that a group holds; the default here leaves out biases and norms
        settings |= {"weight_decay": float(first["weight_decay"]), "exclude": nothing}
    if kind in COUPLED and not first.get("decoupled_weight_decay"):
        settings["decoupled"] = not any(group["weight_decay"] for group in optimizer.param_groups)
    for name, fields in read:
        given = first.get(name)
        values = given if isinstance(given, list | tuple) else [given]
        settings |= {field: x if isinstance(x, bool) else float(x)
                     for field, x in zip(fields, values, strict=True) if x is not None}  # fmt: skip
    if kind == "Adafactor":
        if first["eps"][0] is None:  # the epsilon of the parameters' format
            settings["eps1"] = float(np.finfo(np.float64 if model.exported.wide else np.float32).eps)
        lie = [(name, model.places(name)[-2:]) for name, array in model.params.items() if array.ndim > 1]
        settings["axes"] = TorchAxes(tuple((name, (columns, rows)) for name, (columns, rows) in lie))
    own: list[Rate] = (
        [scheduler.of(n) for n in range(len(rates))] if scheduler else [x / (rates[0] or 1) for x in rates]
    )
    taken: Taken = made(groups=_groups(model, optimizer, own), **settings)
    return taken


@dataclass(frozen=True)
class TorchAxes:
    """The last two axes that parameters have in torch, by the names and in the order of axes that they have here.

    Attributes:
        pairs: of each with two axes and more.
    """

    pairs: tuple[tuple[str, tuple[int, int]], ...]

    def __call__(self, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
        """Those of a parameter."""
        return dict(self.pairs)[name]


def _check(kind: str, optimizer: Any, read: set[str]) -> None:
    """Refuses options without a counterpart, in every group: the first alone would let a later one through."""
    first, *others = optimizer.param_groups
    known = read | REFUSED.keys() | DIFFERENT | PLACES | {"decoupled_weight_decay"}
    for name in optimizer.defaults:
        given = [group[name] for group in optimizer.param_groups if name in group]
        if name not in known and given:
            raise ValueError(f"{kind}: {name}={given[0]!r} has no counterpart here; {EMULATE}")
        for value in given:
            if name in REFUSED and value != (usual := REFUSED[name]):
                instead = "negate the loss" if name == "maximize" else EMULATE
                raise ValueError(f"{kind}: {name}={value!r} has no counterpart here, only {usual!r}; {instead}")
        if name not in DIFFERENT | PLACES and any(group.get(name) != first.get(name) for group in others):
            raise ValueError(
                f"{kind}: its groups differ in {name}; here they may differ in lr and weight_decay; {EMULATE}"
            )


def _stepped(optimizer: Any) -> bool:
    """Whether it has state of steps that were made; some keep a state from the start, of step 0."""
    return any(
        float(kept["step"]) > 0 if "step" in kept else any(value is not None for value in kept.values())
        for kept in optimizer.state.values()
    )


def _groups(model: TorchModel, optimizer: Any, rates: Sequence[Rate]) -> tuple[Group, ...]:
    """A group for every parameter that is not as the first group's are, with its rate."""
    # by identity, as torch's groups hold tensors and no names
    of = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    found = []
    numbers = {name: of.get(id(model.exported.tensors[name])) for name in model.params}
    # an optimizer over another module's parameters would freeze those of this one, in silence
    kind, held = type(optimizer).__name__, {id(tensor) for tensor in model.exported.tensors.values()}
    if all(number is None for number in numbers.values()):
        raise ValueError(f"{kind}: none of its parameters is trained in {model.__name__}")
    if strangers := [p for group in optimizer.param_groups for p in group["params"] if id(p) not in held]:
        shape = tuple(strangers[0].shape)
        raise ValueError(f"{kind}: a parameter of shape {shape} is none of {model.__name__}'s: leave it out")
    for name, number in numbers.items():
        # torch skips a parameter without a gradient; here its gradient is 0, and decay would shrink it
        idle = name in model.exported.idle
        if number == 0 and not idle:
            continue
        if number is None or idle:
            found.append(Group(name, frozen=True))
        else:
            decay = optimizer.param_groups[number].get("weight_decay")
            found.append(Group(name, lr=rates[number], decay=None if decay is None else float(decay)))
    return tuple(found)


def _read(words: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Options of torch and the fields that they are here, as "betas:b1,b2 eps"."""
    pairs = [word.partition(":") for word in words.split()]
    return tuple((name, tuple((fields or name).split(","))) for name, _, fields in pairs)


KINDS: Mapping[str, tuple[Any, tuple[tuple[str, tuple[str, ...]], ...]]] = {
    "SGD": (Sgd, _read("momentum nesterov")),
    "ASGD": (Asgd, _read("lambd alpha t0")),
    "Adam": (Adam, _read("betas:b1,b2 eps amsgrad")),
    "AdamW": (AdamW, _read("betas:b1,b2 eps amsgrad")),
    "NAdam": (NAdam, _read("betas:b1,b2 eps momentum_decay")),
    "RAdam": (RAdam, _read("betas:b1,b2 eps")),
    "Adamax": (Adamax, _read("betas:b1,b2 eps")),
    "LAMB": (Lamb, _read("betas:b1,b2 eps")),
    "RMSprop": (RmsProp, _read("alpha:decay eps momentum centered")),
    "Adagrad": (Adagrad, _read("eps initial_accumulator_value:initial")),
    "Adadelta": (Adadelta, _read("rho:decay eps")),
    "Adafactor": (Adafactor, _read("beta2_decay eps:eps1,eps2 d")),
    "Rprop": (Rprop, _read("etas:shrink,grow step_sizes:least,most")),
}
"""Optimizers of torch, what they are here, and the options that are read."""
OTHERS: Mapping[str, str] = {
    "LBFGS": "it computes the loss several times a step, where a loop here does once",
    "SparseAdam": "gradients are dense here, for which it is Adam",
    "Muon": "its products in bfloat16, five times three a step, are nobody's but torch's",
}
"""Those that are not taken, and why."""
COUPLED = ("Adam", "NAdam", "RAdam", "Adamax")
"""Kinds that add the decay to the gradient, unless `decoupled_weight_decay` says otherwise."""
DIFFERENT = {"lr", "weight_decay"}
"""Options in which groups may differ."""
PLACES = {"foreach", "fused", "capturable", "differentiable"}
"""Options that say how torch computes, and nothing of what."""
REFUSED = {"dampening": 0, "maximize": False, "lr_decay": 0}
"""Options of torch with the only value that has a counterpart."""
