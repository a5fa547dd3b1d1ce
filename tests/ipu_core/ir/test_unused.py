"""What a precision says and what nothing in the step reads."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, Sgd, TrainLoop, compare
from ipu_core.errors import ChangesNothing
from ipu_core.train.optim import Optimizer

PARAMS = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "b": np.zeros(3, np.float32)}
BATCH = np.linspace(-2, 2, 32, dtype=np.float32).reshape(8, 4)


def loss(params: Any, batch: Any) -> Any:
    return ((batch @ params["w"] + params["b"] - 1) ** 2).mean()


def trained(precision: str, optimizer: Optimizer, micro_batches: int = 1) -> dict[str, Any]:
    """The weights after three steps, whatever is warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChangesNothing)
        made = TrainLoop(
            loss, PARAMS, BATCH, optimizer=optimizer, precision=precision, micro_batches=micro_batches, engine="direct"
        )
    made.run(lambda _: BATCH, 3)
    return {name: np.asarray(value, np.float32) for name, value in made.params.items()}


VAIN = [
    ("fp32.32", "toward_zero", Sgd(0.1), 1),
    ("fp32.32", "moments=e5m2", Sgd(0.1), 1),
    ("fp32.32", "second_moment=e5m2", Sgd(0.1, momentum=0.9), 1),
    ("fp32.32", "gradient_sum=float16", Sgd(0.1), 1),
    ("fp32.32", "running_mean=true", Adam(0.1), 1),
    ("fp16.32", "store_root=true", Sgd(0.1), 1),
    ("fp16.32", "scaled_state=1024", Sgd(0.1), 1),
    ("fp16.32", "streamed", Sgd(0.1), 1),
    ("fp32.32/weights=e8m5@up", "down", Sgd(0.1), 1),
]


@pytest.mark.parametrize(("rest", "word", "optimizer", "parts"), VAIN)
def test_a_word_that_changes_nothing_is_warned_of(rest: str, word: str, optimizer: Optimizer, parts: int) -> None:
    precision = f"{rest}/{word}"
    with pytest.warns(ChangesNothing) as told:
        TrainLoop(loss, PARAMS, BATCH, optimizer=optimizer, precision=precision, micro_batches=parts, engine="direct")
    assert [str(each.message) for each in told] == [f"{precision}: {word} changes nothing in this step"]
    one, other = trained(precision, optimizer, parts), trained(rest, optimizer, parts)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


READ = [
    ("fp32.32", "moments=e5m2", Adam(0.1), 1),
    ("fp32.32", "moments=e5m2", Sgd(0.1, momentum=0.9), 1),  # the first of the two is there
    ("fp32.32", "gradient_sum=e5m2", Sgd(0.1), 4),
    ("fp32.32/gradient_sum=e5m2", "running_mean=true", Sgd(0.1), 4),
    ("fp16.32/moments=float16", "store_root=true", Adam(0.1), 1),
    ("fp32.32/weights=e8m5", "down", Sgd(0.1), 1),
    ("fp32.32", "every=e6m7", Sgd(0.1), 1),
    ("fp32.32", "partials=e5m2", Sgd(0.1), 1),
    ("fp32.32/partials=e5m2", "group=2", Sgd(0.1), 1),
    ("fp8/delayed", "margin=-1", Sgd(0.1), 1),
]


@pytest.mark.parametrize(("rest", "word", "optimizer", "parts"), READ)
def test_a_word_that_changes_bits_is_not(rest: str, word: str, optimizer: Optimizer, parts: int) -> None:
    precision = f"{rest}/{word}"
    # A warning is an error here.
    TrainLoop(loss, PARAMS, BATCH, optimizer=optimizer, precision=precision, micro_batches=parts, engine="direct")
    one, other = trained(precision, optimizer, parts), trained(rest, optimizer, parts)
    assert any(one[name].tobytes() != other[name].tobytes() for name in one)


@pytest.mark.parametrize("precision", ["mlperf-bert", "fp16.16/nearest", "fp32.32/nearest", "fp32.32/weights=float32"])
def test_a_preset_and_what_it_has_may_be_said_of_any_step(precision: str) -> None:
    TrainLoop(loss, PARAMS, BATCH, optimizer=Sgd(0.1), precision=precision, engine="direct")


def test_a_rule_wins_over_a_word_without_a_warning() -> None:
    precision = "fp16.32/second_moment=float16/:second_moment=float32"
    TrainLoop(loss, PARAMS, BATCH, optimizer=Adam(0.1), precision=precision, engine="direct")


def test_a_comparison_says_it_too() -> None:
    with pytest.warns(ChangesNothing, match="moments=e5m2 changes nothing"):
        compare(loss, PARAMS, [BATCH], ["fp32.32", "fp32.32/moments=e5m2"], optimizer=Sgd(0.1), steps=2, seeds=1)
