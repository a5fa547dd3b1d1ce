"""Options that were not typed: a configuration file's, a recipe's, and what is usual for what is profiled."""

import argparse
import difflib
import sys
import tomllib
from pathlib import Path

from ipu_core import workloads
from ipu_core.command_line.words import OF_WORKLOADS, USUAL_OF_MODELS, option
from ipu_core.study.models.named import is_own
from ipu_core.study.published import words_of
from ipu_core.study.settings import MODELS
from ipu_core.study.typed import PRECISIONS

TRAINING = ("steps", "lr", "schedule", "engine")  # options that change nothing of what a step costs


def from_file(given: argparse.Namespace) -> list[str]:
    """The options that a configuration file says, as they would be typed.

    Raises:
        ValueError: it cannot be read, or says what is no option of the command.
    """
    try:
        table = tomllib.loads(Path(given.config).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the configuration {given.config} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{given.config}: {error}") from error
    # what argparse knows, so that a new option is one of the file, too
    known = {name.replace("_", "-") for name in vars(given)} - {"command", "run", "config", "name"}
    words = []
    for key, value in table.items():
        name = "optimizer" if key == "optimiser" else key  # as version 0.1.0 spelt it
        if name not in known:
            raise ValueError(f"{given.config}: unknown option {name!r}; there are {', '.join(sorted(known))}")
        # two models that differ are refused, and what was typed stands
        if name == "model" and (given.name or given.model):
            continue
        if name in TRAINING and given.command == "profile":  # one file for all commands
            continue
        if name in ("precisions", "recompute") and isinstance(value, list):
            # as one word: --precisions takes several, and the last occurrence alone would count
            value = ",".join(map(str, value))
        if isinstance(value, bool):
            words += [f"--{name}"] if value else []
        else:
            words += [f"--{name}={item}" for item in (value if isinstance(value, list) else [value])]
    return words


def from_recipe(given: argparse.Namespace) -> None:
    """Says the options that a recipe stands for; what was typed wins, but for the optimizer, which is the recipe.

    Raises:
        ValueError: no such recipe, what is missing of it, another model or optimizer.
    """
    if "bert" not in (given.name, given.model):
        raise ValueError("--recipe is for bert, which the recipes trained")
    if given.optimizer is not None:
        raise ValueError(f"--recipe says the optimizer: leave --optimizer {given.optimizer} out")
    made = words_of(given.recipe)
    usual = {"precisions": list(PRECISIONS), "precision": (PRECISIONS[-1], "fp16.16/nearest")}
    typed_too = [name for name in ("stash", "loss_scale") if getattr(given, name) is not None]
    typed_too += ["precisions"] if getattr(given, "precisions", usual["precisions"]) != usual["precisions"] else []
    typed_too += ["precision"] if getattr(given, "precision", PRECISIONS[-1]) not in usual["precision"] else []
    if typed_too:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in typed_too)
        print(f"ipu-core: not the recipe's, but as typed: {names}", file=sys.stderr)
    given.optimizer = made.optimizer
    given.stash = given.stash or made.stash
    if given.loss_scale is None:
        given.loss_scale = "none" if made.loss_scale is None else made.loss_scale
    if getattr(given, "precisions", None) == list(PRECISIONS):
        given.precisions = [PRECISIONS[0], made.precision]
    if getattr(given, "precision", None) in (PRECISIONS[-1], "fp16.16/nearest"):
        given.precision = made.precision
    if given.micro_batches == 1:
        print(
            f"ipu-core: the recipe adds up {made.micro_batches} micro-batches, here is one of the whole batch: "
            "--micro-batches says another number",
            file=sys.stderr,
        )


def filled(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Fills in what is usual for a model, where one is profiled and no workload.

    Raises:
        ValueError: an option that is not for what is profiled.
    """
    usual = vars(parser.parse_args(["profile"]))
    said = [name for name, value in vars(given).items() if value != usual[name]]
    if given.name in workloads.NAMES:
        known = ("name", "out", "json", *OF_WORKLOADS, *USUAL_OF_MODELS)
        if others := [name for name in said if name not in known]:
            options = ", ".join(map(option, known[1:]))
            raise ValueError(f"{option(others[0])} is not for a workload, which has {options}")
        return
    if given.name is not None and given.name not in MODELS and not is_own(given.name):
        like = difflib.get_close_matches(given.name.replace("_", "-"), workloads.NAMES, 1)
        if like:
            raise ValueError(f"there is no model {given.name!r}: is it the workload {like[0]}?")
    if others := [name for name in said if name in OF_WORKLOADS]:
        there = ", ".join(workloads.NAMES)
        raise ValueError(f"{option(others[0])} is for workloads, which are {there}")
    for name, value in USUAL_OF_MODELS.items():
        setattr(given, name, value if getattr(given, name) is None else getattr(given, name))
