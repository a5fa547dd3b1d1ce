"""The sizes with which models begin are those on the page: what lies in [0.5, 2] and what does not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_core import nn
from ipu_core.study import settings
from ipu_core.study.models import catalogue as studies
from ipu_core.study.models.size import Size
from tests.ipu_core.ir.unit_scaling import models
from tests.ipu_core.ir.unit_scaling.models import Model, data, labels, zeros
from tests.ipu_core.ir.unit_scaling.sizes import Sizes, sizes

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "notebooks" / "docs" / "pages" / "how-to" / "unit-scaling.md"
WIDTH, ROWS = 64, 64
COLUMNS = ("values", "cotangents", "gradients")


def of_study(model: str, **changes: Any) -> Sizes:
    """Of a model of the command line, on the first batch of its data."""
    given = settings.Settings(model=model, unit_scaled=True, **changes)
    problem = studies.problem(given, studies.load(given))
    loss: Any = problem.loss
    state = () if problem.state is None else (problem.state(0),)
    return sizes(loss.function, problem.params(0), *state, problem.batches(0)(0), deviation=problem.deviation)


def of_model(make: Callable[..., Model], *arguments: Any) -> Sizes:
    """Of normal numbers and labels that are drawn."""
    model = make(*arguments)
    return sizes(model.loss, model.params, model.batch)


def own_weights(places: int) -> Model:
    """A recurrence whose weights are others at every place."""
    cell = models.recurrent("lstm", WIDTH, 1, ROWS).params["cell"]

    def loss(params: Any, batch: Any) -> Any:
        x, y, *state = batch
        before, hidden = tuple(state), []
        for place, weights in enumerate(params["cells"]):
            before = nn.lstm_cell(weights, x[:, place], before)
            hidden.append(before[0])
        return nn.softmax_cross_entropy(np.stack(hidden, 1) @ params["head"], y)

    batch = (data(ROWS, places, 64), labels(ROWS, places), *data(2, ROWS, WIDTH))
    return Model(loss, {"cells": [cell] * places, "head": zeros(WIDTH, models.CLASSES)}, batch)


TEXT = {"language_model": Size(layers=2, width=64, heads=4, context=64), "batch": 8, "text": str(ROOT / "LICENSE")}
MEASURED: dict[str, Callable[[], Sizes]] = {
    "perceptron, digits": functools.partial(of_study, "mlp"),
    "convolutions, digits": functools.partial(of_study, "cnn"),
    "residual net with batch norm, digits": functools.partial(of_study, "resnet"),
    "perceptron, normal numbers": functools.partial(of_model, models.perceptron),
    "transformer of 2 layers, bytes at random": functools.partial(of_model, models.transformer, 2),
    "transformer of 2 layers, English text": functools.partial(of_study, "lm", **TEXT),
    "GRU, 32 places": functools.partial(of_model, models.recurrent, "gru", WIDTH, 32, ROWS),
    "LSTM, 8 places": functools.partial(of_model, models.recurrent, "lstm", WIDTH, 8, ROWS),
    "LSTM, 32 places": functools.partial(of_model, models.recurrent, "lstm", WIDTH, 32, ROWS),
    "LSTM, 64 places": functools.partial(of_model, models.recurrent, "lstm", WIDTH, 64, ROWS),
    "LSTM, 32 places, weights of their own at each": functools.partial(of_model, own_weights, 32),
}
SLOW = ("GRU, 32 places", "LSTM, 32 places", "LSTM, 64 places", "LSTM, 32 places, weights of their own at each")
CASES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in MEASURED]


def page() -> dict[str, list[str]]:
    """The cells of the page's table by model."""
    lines = PAGE.read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {name: cells for name, *cells in rows[1:]}


def words(low: float, high: float) -> str:
    """A range as the page shows it, bold where it leaves [0.5, 2]."""
    text = f"{low:.2f} to {high:.2f}"
    return text if 0.5 <= low <= high <= 2 else f"**{text}**"


@pytest.mark.parametrize("name", CASES)
def test_sizes_at_the_start_are_those_on_the_page(name: str) -> None:
    found = MEASURED[name]()
    assert page()[name] == [words(*found.range(kind)) for kind in COLUMNS]


def test_what_the_page_says_of_its_table() -> None:
    """Activations are held, and their gradients but for long LSTMs; with weights of their own at each place all is."""
    table = page()
    assert list(table) == list(MEASURED)
    assert not [name for name, (values, _, _) in table.items() if "*" in values]
    assert [name for name, (_, back, _) in table.items() if "*" in back] == ["LSTM, 32 places", "LSTM, 64 places"]
    assert [name for name, (_, _, own) in table.items() if "*" not in own] == [
        "LSTM, 32 places, weights of their own at each"
    ]


def test_a_gradient_of_a_weight_grows_at_most_by_the_root_of_what_it_is_a_sum_over() -> None:
    found = MEASURED["transformer of 2 layers, English text"]()
    most = max(size.gradient for size in found.activations if size.gradient is not None)
    assert found.range("gradients")[1] <= most * (8 * 64) ** 0.5


def test_sequences_cut_into_pieces_are_held() -> None:
    """The way out that the page gives."""
    places, piece = 16, 8
    model = models.recurrent("lstm", WIDTH, places, ROWS)

    def loss(params: Any, batch: Any) -> Any:
        x, y, *state = batch
        parts, before = [], tuple(state)
        for start in range(0, places, piece):
            hidden, after = nn.lstm(params["cell"], x[:, start : start + piece], before)
            parts.append(hidden)
            before = tuple(map(nn.stop_gradient, after))
        return nn.softmax_cross_entropy(np.concatenate(parts, 1) @ params["head"], y)

    whole, cut = (sizes(f, model.params, model.batch).range("cotangents") for f in (model.loss, loss))
    assert whole[1] > 2
    assert 0.5 <= cut[0] <= cut[1] <= 2
