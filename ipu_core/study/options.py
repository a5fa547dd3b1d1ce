"""Optimizers, schedules and parameter groups as the command line says them: a name and options between slashes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from ipu_core.train.optim import Adam, AdamW, Group, Lamb, Lars, Optimizer, Sgd
from ipu_core.train.schedules import Constant, Cosine, Piecewise, Polynomial, Schedule, WarmUp

OPTIMIZERS: dict[str, type[Sgd] | type[Adam]] = {"sgd": Sgd, "lars": Lars, "adam": Adam, "adamw": AdamW, "lamb": Lamb}
SCHEDULES = ("constant", "linear", "cosine", "polynomial", "piecewise")
SAID_ELSEWHERE = frozenset({"lr", "groups", "precision_scale"})
TRUTH = {"": True, "true": True, "false": False}


def check_name(kind: str, name: str, valid: Iterable[str]) -> None:
    """Refuses a name that is not among the valid ones and lists those.

    Raises:
        ValueError: in words.
    """
    names = tuple(valid)
    if name not in names:
        raise ValueError(f"unknown {kind} {name!r}: choose {', '.join(names[:-1])} or {names[-1]}")


def optimizer(
    spec: str, lr: float, schedule: str = "constant", groups: Iterable[str] = (), steps: int = 1
) -> Optimizer:
    """The optimizer of a study.

    Args:
        spec: its name and any of its numbers and truth values, such as "lamb/weight_decay=0.01/clip_norm=1" or
            "adam/store_root".
        lr: the learning rate, where the schedule begins once it is warm.
        schedule: see `read_schedule`.
        groups: such as "*.bias/lr=2/decay=0" or "embedding/frozen".
        steps: of the training.

    Raises:
        ValueError: an unknown name or option, or a value out of range, in words.
    """
    name, *words = spec.split("/")
    check_name("optimizer", name, OPTIMIZERS)
    kind = OPTIMIZERS[name]
    allowed = {f.name: f.default for f in dataclasses.fields(kind) if _plain(f)}
    fields = _options(f"optimizer {name}", words, allowed)
    made = tuple(_group(group) for group in groups)
    return kind(lr=read_schedule(schedule, lr, steps), groups=made, **fields)


def read_schedule(spec: str, lr: float, steps: int) -> float | Schedule:
    """The learning rate of each step: a name of SCHEDULES and its options.

    "warmup=N": N steps of a straight line from 0 come before it. "end=S": where it ends, as a share of the learning
    rate (default 0); "power=P" of "polynomial". "piecewise" takes "STEP=FACTOR" as often as wanted.

    Raises:
        ValueError: an unknown name or option, or a value out of range, in words.
    """
    name, *words = spec.split("/")
    check_name("schedule", name, SCHEDULES)
    if name == "piecewise":
        allowed: dict[str, Any] = {word.partition("=")[0]: 0.0 for word in words if word.partition("=")[0].isdecimal()}
    else:
        allowed = {"constant": {}, "linear": {"end": 0.0}, "cosine": {"end": 0.0}}.get(name, {"end": 0.0, "power": 2.0})
    given = _options(f"schedule {name}", words, {**allowed, "warmup": 0.0})
    warm = given.pop("warmup", 0.0)
    if warm != int(warm) or not 0 <= warm < max(steps, 1):
        raise ValueError(f"schedule {spec!r}: warmup must be a number of steps from 0 to {steps - 1}, not {warm:g}")
    rest, end = steps - int(warm), lr * given.pop("end", 0.0)
    match name:
        case "constant":
            if not warm:
                return lr
            made: Schedule = Constant(lr)
        case "cosine":
            made = Cosine(lr, rest, end)
        case "piecewise":
            made = Piecewise(lr, tuple((int(step) - int(warm), factor) for step, factor in given.items()))
        case _:
            made = Polynomial(lr, end, rest, given.get("power", 1.0 if name == "linear" else 2.0))
    return WarmUp(made, int(warm)) if warm else made


def _group(spec: str) -> Group:
    pattern, *words = spec.split("/")
    return Group(pattern, **_options(f"group {pattern}", words, {"lr": 1.0, "decay": 0.0, "frozen": False}))


def _plain(field: dataclasses.Field[Any]) -> bool:
    """Whether a field is a number or truth value that the command line may give."""
    kinds = str(field.type).replace(" ", "").split("|")
    return field.name not in SAID_ELSEWHERE and set(kinds) <= {"float", "bool", "None"}


def _options(of: str, words: list[str], allowed: dict[str, Any]) -> dict[str, Any]:
    """name=value words as numbers and truth values, by what is allowed."""
    given: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in allowed:
            raise ValueError(f"unknown option {name!r} of {of}; there are {', '.join(allowed)}")
        if isinstance(allowed[name], bool):
            if text not in TRUTH:
                raise ValueError(f"{of}: {name} is true or false, not {text!r}")
            given[name] = TRUTH[text]
            continue
        try:
            given[name] = float(text)
        except ValueError:
            raise ValueError(f"{of}: {name} must be a number, not {text!r}") from None
    return given
