"""Models that the command line finds in files: functions of one's own, and modules of PyTorch (torch:FILE:NAME)."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ipu_core.frontends.torch import from_torch
from ipu_core.study.compare import by_seed, same
from ipu_core.study.models import catalogue
from ipu_core.study.models.named import GIVES_TORCH, TORCH, Own
from ipu_core.study.models.own import called
from ipu_core.study.point import Problem
from ipu_core.study.settings import Settings
from ipu_core.train.digests import described
from lowprec.checks import shown


def load(settings: Settings) -> catalogue.Task:
    """The data that these settings name, or the model in a file.

    Raises:
        ValueError: there are none, or they are not as the model takes them.
        ImportError: torch is not installed.
        NotCovered: what a module does has no counterpart here.
    """
    if not settings.model.startswith(TORCH):
        return catalogue.load(settings)
    words, made = called(settings.model)
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[1], Iterable):
        gives = f"{GIVES_TORCH} (or no loss, where the module gives it)"
        raise ValueError(f"{words} gave {shown(made)}; it must be {gives}")
    module, loader, *loss = made
    given = [tuple(each) if isinstance(each, list) else each for each in loader]
    if not given:
        raise ValueError(f"{words} gave a loader without batches")
    model = from_torch(module, given[0], *loss)
    batches = [model.batch(each) for each in given]
    state = None if model.state is None else functools.partial(same, model.state)
    problem = Problem(model, functools.partial(same, model.params), by_seed(batches), state=state)
    return Own(words, problem, described((model, model.params, batches)))
