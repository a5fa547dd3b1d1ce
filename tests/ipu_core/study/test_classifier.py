"""Models that tell classes apart, measured by the test rows of their data."""

from typing import Any

import numpy as np
import pytest

from ipu_core.ir.precision.precision import Precision
from ipu_core.study.models import classifier
from ipu_core.study.models.catalogue import problem
from ipu_core.study.settings import Settings
from ipu_core.train.data import dataset as data


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet"])
def test_a_classifier_is_measured_with_the_sums_of_its_chip(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, families = data.digits(), list[str]()

    def seen(scores: Any, precision: Precision, rule: Any, *_: Any) -> Any:
        families.append(rule.family)
        return np.eye(task.classes, dtype=np.float32)[task.y_test]

    monkeypatch.setattr(classifier, "evaluated", seen)
    for chip in ("gc2", "gc200"):
        made = problem(Settings(model=model, target=chip), task)
        given = made.params(0) if made.state is None else (made.params(0), made.initial_state(0))
        assert made.evaluate is not None
        assert made.evaluate(given, Precision.parse("fp32.32")) == {"test_accuracy": 1.0}
    assert families == ["mk1", "mk2"]
