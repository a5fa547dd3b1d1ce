"""Parsers for the options of the command line; a wrong value is refused in one line."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ipu_core.ir.precision.precision import Precision
from ipu_core.ir.precision.rules import LAYERS
from ipu_core.ir.precision.said_rounding import split_words
from ipu_core.train import optim
from ipu_core.train.arguments import Recompute, check_recompute
from ipu_core.train.optim import Group, Optimizer
from ipu_core.train.schedules import Constant, Cosine, Piecewise, Polynomial, Schedule, WarmUp
from lowprec import Collective
from lowprec.threads import MOST
from lowprec.values.collective import ALGORITHMS
from lowprec.values.keywords import as_rounding

WIDEST = 10**9
PRECISIONS = ("fp32.32", "fp16.32", "fp16.16/nearest", "fp16.16/stochastic")
OPTIMIZERS = {
    kind.lower(): kind
    for kind in (
        "Sgd", "Lars", "Asgd", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lamb", "RmsProp", "Adagrad", "Adadelta",
        "Adafactor", "Lion", "Rprop",
    )
}  # fmt: skip
"""Optimizers as they are typed, by their names in Python."""
SEARCHES = ("grid", "each", "random", "bisect")
"""How a sweep goes through its axes."""
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


def number(text: str) -> float | int | str:
    """A whole number, a number, or the text, which a sweep then refuses or takes as a word."""
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return text


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
    kind = getattr(optim, OPTIMIZERS[name])
    allowed = {f.name: f.default for f in dataclasses.fields(kind) if _plain(f)}
    fields = _options(f"optimizer {name}", words, allowed)
    made = tuple(_group(group) for group in groups)
    chosen: Optimizer = kind(lr=read_schedule(schedule, lr, steps), groups=made, **fields)
    return chosen


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
            # The steps are those of the training; behind a warm-up a schedule counts from its own start.
            made = Piecewise(lr, tuple((int(step) - int(warm), factor) for step, factor in given.items()))
        case _:
            made = Polynomial(lr, end, rest, given.get("power", 1.0 if name == "linear" else 2.0))
    return WarmUp(made, int(warm)) if warm else made


def collective(spec: str) -> Collective:
    """An algorithm and options, as "ring/wire=float16/rounding=stochastic": the fields of a `lowprec.Collective`.

    Raises:
        ValueError: an unknown algorithm or option, or a value out of range, in words.
    """
    algorithm, *words = spec.split("/")
    check_name("collective", algorithm, ALGORITHMS)
    allowed = ("first", "group", "wire", "accumulate", "rounding")
    given: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in allowed:
            raise ValueError(f"unknown option {name!r} of collective {algorithm}; there are {', '.join(allowed)}")
        if name in ("first", "group") and not text.isdecimal():
            raise ValueError(f"collective {algorithm}: {name} must be a whole number, not {text!r}")
        given[name] = int(text) if name in ("first", "group") else text
    try:
        return Collective(algorithm, **given)  # type: ignore[arg-type]  # checked
    except (TypeError, ValueError) as error:
        raise ValueError(f"collective {spec}: {error}") from None


def collective_words(made: Collective) -> str:
    """A collective as `collective` reads it, with what is not as by default: "ring/wire=float16"."""
    plain = Collective(made.algorithm, group=made.group)
    words = [made.algorithm] if made.group is None else [made.algorithm, f"group={made.group}"]
    words += [f"first={made.first}"] if made.first else []
    for name in ("wire", "accumulate"):
        fmt = getattr(made, name)
        words += [f"{name}={fmt.name}"] if fmt != getattr(plain, name) else []
    if made.rounding != plain.rounding:
        # one with policies of its own cannot be typed, and is told in full
        mode = made.rounding.mode
        words.append(f"rounding={mode if made.rounding == as_rounding(mode) else made.rounding.words()}")
    return "/".join(words)


def _group(spec: str) -> Group:
    pattern, *words = spec.split("/")
    return Group(pattern, **_options(f"group {pattern}", words, {"lr": 1.0, "decay": 0.0, "frozen": False}))


def _plain(field: dataclasses.Field[Any]) -> bool:
    """Whether a field is a number or truth value that the command line may give."""
    # The annotations are text, since the modules have `from __future__ import annotations`.
    kinds = str(field.type).replace(" ", "").split("|")
    # A field of any other type, such as `exclude`, is a function and cannot be typed.
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


def parse_layers(text: str) -> tuple[int, ...]:
    """Reads widths such as "64-256-256-10" (commas are allowed too).

    Raises:
        ValueError: the text is not two or more integers from 1 to WIDEST.
    """
    parts = [part.strip() for part in text.replace(",", "-").split("-")]
    # Cut before int(): Python refuses to read more than 4,300 digits.
    if len(parts) < 2 or not all(part.isdecimal() and 0 < int(part[:20]) <= WIDEST for part in parts):
        allowed = f"two or more positive widths such as 64-256-256-10, none beyond {WIDEST:,}"
        raise ValueError(f"layers must be {allowed}, not {text!r}")
    return tuple(int(part) for part in parts)


def parse_precisions(texts: list[str]) -> tuple[str, ...]:
    """Reads precisions separated by commas or spaces, each once, and checks every name.

    Raises:
        ValueError: no precision, or one that `Precision.parse` refuses.
    """
    names = tuple(dict.fromkeys(name.strip() for text in texts for name in split_words(text, ",") if name.strip()))
    if not names:
        raise ValueError(f"no precision given, for example {','.join(PRECISIONS)}")
    for name in names:
        Precision.parse(name)
    return names


def parse_one_precision(text: str) -> str:
    """Reads one precision.

    Raises:
        ValueError: none, several, or one that `Precision.parse` refuses.
    """
    names = parse_precisions([text])
    if len(names) > 1:
        raise ValueError(f"one precision is wanted here, not {len(names)}: {', '.join(names)}")
    return names[0]


def scale(text: str) -> float | str:
    """A loss scale."""
    if text in ("automatic", "none"):
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, 'automatic' or 'none', not {text!r}") from None


def recompute(text: str) -> Recompute:
    """A share of the temporaries' peak, or names of parts, joined by commas; none is nothing."""
    if text == "none":
        return False
    names = text.split(",")
    try:
        if all(name == LAYERS or "." in name.strip("0123456789.") or "*" in name for name in names):
            return check_recompute(names)
        return check_recompute(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number between 0 and 1, or parts such as 'blocks.*' or 'layers', not {text!r}; "
            "MODEL stands before it"
        ) from None


def stages(text: str) -> int | tuple[str, ...]:
    """How many stages, or the names of the first layer of each, as in "embed,layers.3,layers.6"."""
    return count(text) if text.isdecimal() else tuple(text.split(","))


def count(text: str) -> int:
    """A number of seeds, workers or threads, of which lowprec takes no more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"must be an integer from 1 to {MOST:,}, not {text!r}")
    return value


def folder(text: str) -> Path:
    """A folder, which need not exist."""
    if not text:
        raise argparse.ArgumentTypeError("must name a folder ('.' is this one)")
    return Path(text)
