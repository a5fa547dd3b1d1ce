"""Optimizers of torch.optim as settings of the ones here: the same equations, with torch's defaults and groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ipu_core.frontends.torch.errors import EMULATE
from ipu_core.frontends.torch.model import TorchModel
from ipu_core.frontends.torch.schedules import TorchSchedule
from ipu_core.train.optim import Adagrad, Adam, AdamW, Group, Lamb, RmsProp, Sgd
from ipu_core.train.optim.common import Rate, nothing

Taken = Sgd | Adam | RmsProp | Adagrad
"""What torch's optimizers become; Adam's kinds are AdamW and Lamb too."""


def from_torch_optimizer(model: TorchModel, optimizer: Any, lr: Rate | Any = None) -> Taken:
    """The settings of an optimizer of torch over a captured module's parameters.

    Args:
        model: what `from_torch` gave.
        optimizer: a `torch.optim.SGD`, `Adam`, `AdamW`, `RMSprop` or `Adagrad` over parameters of that module, in
            groups or not. A parameter in none of them is frozen, and so is one that the loss does not depend on: torch
            gives it no gradient and does not decay it either.
        lr: a schedule, in place of the first group's learning rate; the others keep their ratios to it. Or a scheduler
            of `torch.optim.lr_scheduler` over the optimizer, moved on after each step (see `TorchSchedule`): every
            group has the rates that it gives it.

    Raises:
        ValueError: another optimizer, one of another module, or settings that the ones here do not have.
    """
    if hasattr(lr, "get_last_lr"):
        lr = TorchSchedule(lr)
    kind = type(optimizer).__name__
    if kind not in MAKERS:
        raise ValueError(f"from_torch_optimizer knows {', '.join(MAKERS)}, not {kind}; {EMULATE}")
    first, *others = optimizer.param_groups
    # in every group: the first alone would let a later one through
    for name, usual in REFUSED.items():
        if any(group.get(name, usual) != usual for group in optimizer.param_groups):
            raise ValueError(f"{kind}: {name}={first.get(name)!r} has no counterpart here, only {usual!r}; {EMULATE}")
    for name in set(first) - MAY_DIFFER:
        if any(group.get(name) != first[name] for group in others):
            raise ValueError(
                f"{kind}: its groups differ in {name}; here they may differ in lr and weight_decay; {EMULATE}"
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
    rate = rates[0] if lr is None else lr
    # torch decays all that a group holds; the default here leaves out biases and norms
    settings = {"lr": rate, "weight_decay": float(first["weight_decay"]), "exclude": nothing}
    if kind == "Adam" and not first.get("decoupled_weight_decay"):
        settings["decoupled"] = not any(group["weight_decay"] for group in optimizer.param_groups)
    own: list[Rate] = (
        [scheduler.of(n) for n in range(len(rates))] if scheduler else [x / (rates[0] or 1) for x in rates]
    )
    return MAKERS[kind](first, groups=_groups(model, optimizer, own), **settings)


def _groups(model: TorchModel, optimizer: Any, rates: Sequence[Rate]) -> tuple[Group, ...]:
    """A group for every parameter that is not as the first group's are, with its rate."""
    # by identity, as torch's groups hold tensors and no names
    of = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    found = []
    numbers = {name: of.get(id(model.exported.tensors[name])) for name in model.params}
    # an optimizer over another module's parameters would freeze all of this one's, in silence
    if all(number is None for number in numbers.values()):
        raise ValueError(f"{type(optimizer).__name__}: none of its parameters is trained in {model.__name__}")
    for name, number in numbers.items():
        # torch skips a parameter without a gradient; here its gradient is 0, and decay would shrink it
        idle = name in model.exported.idle
        if number == 0 and not idle:
            continue
        if number is None or idle:
            found.append(Group(name, frozen=True))
        else:
            decay = float(optimizer.param_groups[number]["weight_decay"])
            found.append(Group(name, lr=rates[number], decay=decay))
    return tuple(found)


def _sgd(group: Mapping[str, Any], **settings: Any) -> Sgd:
    return Sgd(momentum=float(group["momentum"]), nesterov=bool(group["nesterov"]), **settings)


def _adam(kind: type[Adam]) -> Callable[..., Adam]:
    def make(group: Mapping[str, Any], **settings: Any) -> Adam:
        b1, b2 = group["betas"]
        amsgrad = bool(group.get("amsgrad"))
        return kind(b1=float(b1), b2=float(b2), eps=float(group["eps"]), amsgrad=amsgrad, **settings)

    return make


def _rmsprop(group: Mapping[str, Any], **settings: Any) -> RmsProp:
    alpha, eps, momentum = (float(group[name]) for name in ("alpha", "eps", "momentum"))
    return RmsProp(decay=alpha, eps=eps, momentum=momentum, centered=bool(group["centered"]), **settings)


def _adagrad(group: Mapping[str, Any], **settings: Any) -> Adagrad:
    return Adagrad(eps=float(group["eps"]), initial=float(group["initial_accumulator_value"]), **settings)


MAKERS: Mapping[str, Callable[..., Taken]] = {
    "SGD": _sgd, "Adam": _adam(Adam), "AdamW": _adam(AdamW), "LAMB": _adam(Lamb), "RMSprop": _rmsprop,
    "Adagrad": _adagrad,
}  # fmt: skip
MAY_DIFFER = {"params", "lr", "initial_lr", "weight_decay", "max_lr", "min_lr", "max_momentum", "base_momentum"}
"""Settings in which groups may differ: those with a counterpart, and notes of schedulers."""
REFUSED = {"dampening": 0, "maximize": False, "lr_decay": 0}
"""Settings of torch with the only value that has a counterpart."""
