"""A model that tells classes apart, as a study's problem: trained on a data set, measured by its test rows."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ipu_core.chip.target import Target
from ipu_core.ir.precision.precision import Precision
from ipu_core.placement.orders import OrderRule
from ipu_core.study.point import Problem
from ipu_core.study.settings import Settings
from ipu_core.train.arguments import chip_of
from ipu_core.train.data import dataset as data
from ipu_core.train.predictor import EVALUATION, evaluated
from ipu_core.train.units import in_units
from lowprec import Key


def classifier(
    settings: Settings, task: data.Dataset, loss: Callable[..., Any], scores: Callable[..., Any],
    initial: Callable[[int], Any], shapes: Any, state: Callable[[int], Any] | None = None,
) -> Problem:  # fmt: skip
    """The problem of a model on this data, under unit scaling where the settings say so.

    Args:
        settings, task: What is trained, and on which data.
        loss: As of a `Problem`.
        scores: (params, rows) -> (rows, classes); of a model with a state (params, state, rows) -> such.
        initial, shapes, state: As of a `Problem`.

    Raises:
        ValueError: the batch does not fit the data.
    """
    # Refuses a batch that does not fit the data before anything is trained.
    data.batches(task, settings.batch, 0)
    scaling, deviation = settings.scaling, task.deviation
    # The orders of sums in training are those of this chip's family, and the test adds in the same way.
    target = chip_of(settings.target)
    return Problem(
        scaling.of(loss, deviation), scaling.begun(initial), functools.partial(data.batches, task, settings.batch),
        functools.partial(accuracy, task, scaling.of(scores, deviation), target), shapes, state, deviation,
    )  # fmt: skip


def accuracy(
    task: data.Dataset, scores: Callable[..., Any], target: Target, trained: Any, precision: Precision
) -> dict[str, float]:
    """The share of the test rows classified correctly, computed forward in the precision itself as a target sums.

    Args:
        task: Which has the rows.
        scores: As of a `classifier`.
        target: Whose orders of sums are taken.
        trained: Parameters; where there is a state a tuple of both.
        precision: Computed in.
    """
    scores = in_units(scores, precision, task.deviation)
    parts = trained if isinstance(trained, tuple) else (trained,)
    # A key that no training step folds in: the test rounds with random bits of its own.
    given = evaluated(scores, precision, OrderRule.of(target), Key(EVALUATION), *parts, task.x_test)
    right = np.argmax(given.astype(np.float32), axis=1) == task.y_test
    return {"test_accuracy": float(right.mean())}
