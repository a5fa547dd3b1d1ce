"""What was typed as a study's settings."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from ipu_core.command_line.words import DEFAULT
from ipu_core.ir.precision.precision import Precision
from ipu_core.study.models.named import is_own
from ipu_core.study.settings import (
    MODELS,
    OF_DATA,
    OF_SIZE,
    OF_TEXT,
    UNIT_RATES,
    USUAL,
    Settings,
    tuned,
    unit_rate,
    usual_engine,
)
from ipu_core.study.typed import check_name, parse_layers
from ipu_core.train.arguments import chip_of


def settings_of(given: argparse.Namespace, precisions: Sequence[str]) -> Settings:
    """What all points of a study share, as it was typed; of what was not, what is usual for the model.

    Raises:
        ValueError: an option that the model does not have, or that goes with another.
    """
    model = given.name or given.model or DEFAULT.model
    if given.model not in (None, model):
        raise ValueError(f"two models are named, {given.name} and {given.model}: give one")
    if is_own(model):
        _refuse_of_models(given, model)
    else:
        check_name("model", model, MODELS)
    if given.data != DEFAULT.data and model not in OF_DATA and not is_own(model):
        raise ValueError(f"--data is for {', '.join(OF_DATA)}, not for {model}")
    names = ("steps", "batch", "lr", "optimizer", "text", "pack", "size", "stash", "dropout")
    said = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    sizes = {name: getattr(given, name) for name in ("width", "heads", "context") if getattr(given, name) is not None}
    if model in OF_TEXT:
        if given.layers is not None:
            sizes["layers"] = int(given.layers) if given.layers.isdecimal() else given.layers
        said["language_model"] = replace(USUAL[model].get("language_model", DEFAULT.language_model), **sizes)
    elif sizes or given.text is not None:
        raise ValueError(f"--{next(iter(sizes), 'text')} is for {' and '.join(OF_TEXT)}, not for {model}")
    elif given.layers is not None and model in OF_SIZE:
        raise ValueError(f"--layers is not for {model}, whose sizes have names: --size")
    elif given.layers is not None:
        said["layers"] = parse_layers(given.layers)
    # weights of deviation 1 want another learning rate; one that is typed stays
    if given.unit_scaled or given.mup or _in_units(given, precisions):
        said.setdefault("lr", unit_rate(model, said, given.mup))
        said["loss_scale"] = None  # it needs none
    if given.loss_scale is not None:
        said["loss_scale"] = None if given.loss_scale == "none" else given.loss_scale
    return Settings(
        data=given.data, target=given.target, engine=_engine(given, precisions), model=model, schedule=given.schedule,
        groups=tuple(given.group), micro_batches=given.micro_batches, recompute=given.recompute,
        streamed=tuple(given.streamed), overlap=given.overlap, random=given.random,
        unit_scaled=given.unit_scaled, mup=given.mup, replicas=given.replicas, collective=given.collective,
        sharded=tuple(given.sharded), stages=given.stages, pipeline_schedule=given.pipeline_schedule,
        # what was typed before what is usual for the model
        **{**tuned(model, said), **said},
    )  # fmt: skip


def trained_with(given: argparse.Namespace, precisions: Sequence[str]) -> Settings:
    """`settings_of` of what is trained: a learning rate that nobody typed, and that is not of the optimizer, is said.

    Raises:
        ValueError: as `settings_of`.
    """
    settings = settings_of(given, precisions)
    typed, varied = given.lr is not None, (axis[0] for axis in getattr(given, "axis", ()))
    if settings.model in MODELS and given.optimizer is not None and not typed and "lr" not in varied:
        usual = str(USUAL.get(settings.model, {}).get("optimizer", Settings.optimizer))
        if usual.partition("/")[0] != given.optimizer.partition("/")[0]:
            what = f"the learning rate {settings.lr:g} was not tuned for {settings.model} with {given.optimizer}"
            print(f"ipu-core: {what}: --lr says another", file=sys.stderr)
    return settings


def _refuse_of_models(given: argparse.Namespace, model: str) -> None:
    """Refuses options that say what a model in a file says itself."""
    of_models = ("layers", "width", "heads", "context", "text", "batch", "pack", "size", "stash", "dropout", "recipe")
    said = [name for name in of_models if getattr(given, name) is not None]
    said += ["data"] * (given.data != DEFAULT.data) + ["unit-scaled"] * given.unit_scaled + ["mup"] * given.mup
    if said:
        raise ValueError(f"--{said[0]} is for {', '.join(MODELS)}: {model} says its model and data itself")


def _engine(given: argparse.Namespace, precisions: Sequence[str]) -> str:
    """The engine that is asked for, or the usual one: the reason is said where that is not the tiles."""
    if given.engine is not None:
        return str(given.engine)
    engine, why = usual_engine(chip_of(given.target), precisions, given.stash)
    if why is not None:
        print(f"ipu-core: {why}", file=sys.stderr)
    return engine


def _in_units(given: argparse.Namespace, precisions: Sequence[str]) -> bool:
    """Whether every precision is under unit scaling by its name.

    Raises:
        ValueError: some are, and no learning rate is given that is for those and for the others.
    """
    scaled = [name for name in precisions if Precision.parse(name).unit_scaled]
    # one rate for both kinds would be far off for one of them
    if scaled and len(scaled) < len(precisions) and given.lr is None:
        raise ValueError(
            f"{scaled[0]} begins with other weights than the others and wants another learning rate (such as "
            f"{UNIT_RATES['unit']:g}): give --lr for all, or --unit-scaled, or a study of its own"
        )
    return len(scaled) == len(precisions)
