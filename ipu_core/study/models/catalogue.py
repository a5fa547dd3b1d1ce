"""The models that the command line trains, by name, and the data that each is trained on."""

from collections.abc import Mapping
from typing import Any

from ipu_core.study.models import bert, bragg, cnn, communities, lm, mlp, molecules, own, resnet, uno
from ipu_core.study.models.made import Made
from ipu_core.study.models.named import Own, is_own
from ipu_core.study.point import Problem
from ipu_core.study.settings import MODELS, Settings
from ipu_core.train.arguments import chip_of
from ipu_core.train.data import dataset as data
from ipu_core.train.data import text
from ipu_core.train.data.dataset import Dataset
from ipu_core.train.data.text import Text

CLASSIFIERS = {"mlp": mlp.problem, "cnn": cnn.problem, "resnet": resnet.problem}
MADE: Mapping[str, Any] = {"gcn": communities, "gin": molecules, "braggnn": bragg, "uno": uno}
"""Modules of models whose data are made: each has `SIZES`, `data` and `problem`."""
Task = Dataset | Text | Own | Made


def load(settings: Settings) -> Task:
    """The data that these settings name.

    Raises:
        ValueError: there are none, or they are not as the model takes them.
    """
    if is_own(settings.model):
        return own.load(settings.model)
    if settings.model in MADE:
        made: Made = MADE[settings.model].data(settings.size)
        return made
    return data.load(settings.data) if settings.model in CLASSIFIERS else text.load(settings.text)


def problem(settings: Settings, task: Task) -> Problem:
    """The model of these settings on this data.

    Raises:
        ValueError: the layers or the batch do not fit the data.
    """
    if isinstance(task, Own):
        return task.problem
    if isinstance(task, Made):
        made: Problem = MADE[settings.model].problem(task, settings.batch, settings.scaling, chip_of(settings.target))
        return made
    if isinstance(task, Text):
        size, how = settings.language_model, (settings.scaling, chip_of(settings.target))
        if settings.model == "bert":
            kept = settings.stash is not None
            return bert.problem(size, task, settings.batch, settings.pack, *how, settings.dropout, kept)
        return lm.problem(size, task, settings.batch, *how)
    return CLASSIFIERS[settings.model](settings, task)


def title(settings: Settings, task: Task, length: str | None = None) -> str:
    """The data, the model and the training in words; `length` of it if not all its steps."""
    length = f"{settings.steps} steps" if length is None else length
    schedule = "" if settings.schedule == "constant" else f" {settings.schedule}"
    groups = "".join(f", {group}" for group in settings.groups)
    shared = f", {settings.replicas} replicas" if settings.replicas > 1 else ""
    shared += "" if settings.collective is None else f" by {settings.collective}"
    training = f"{settings.optimizer} lr {settings.lr:g}{schedule}{groups}{shared}"
    if isinstance(task, Own):
        return f"{task.name}, {training}, {length}"
    if isinstance(task, Text):
        size = settings.language_model
        sizes = f"{size.layers} layers, width {size.width}, {size.heads} heads, context {size.context}"
        if settings.pack > 1:
            factor = problem(settings, task).sequences_of_a_row
            power = "betas as they are" if settings.betas_as_said else "betas to that power"
            sizes += f", up to {settings.pack} sequences a row (on average {factor:.3f}: {power})"
        sizes += f", attention's dropout {settings.dropout:g}" if settings.dropout else ""
        sizes += "" if settings.stash is None else f", stashes in {settings.stash}"
    elif isinstance(task, Made):
        sizes = str(task.size)
    else:
        sizes = "-".join(map(str, settings.widths(task)))
    scaled = ", u-muP" if settings.mup else ", unit-scaled" if settings.unit_scaled else ""
    model = f"{MODELS[settings.model]} {sizes}{scaled}"
    return f"{task.name}, {model}, {training}, batch {settings.batch}, {length}"
