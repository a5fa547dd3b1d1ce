"""The models that the command line trains, by name."""

from ipu_core.study import cnn, mlp
from ipu_core.study.point import Problem
from ipu_core.study.settings import Settings
from ipu_core.train.data import Dataset

PROBLEMS = {"mlp": mlp.problem, "cnn": cnn.problem}


def problem(settings: Settings, task: Dataset) -> Problem:
    """The model of these settings on this data.

    Raises:
        ValueError: the layers or the batch do not fit the data.
    """
    return PROBLEMS[settings.model](settings, task)
