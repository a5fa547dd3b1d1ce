"""The study of reversible layers: its measures are what they say, and its verdicts those of its figures."""

from functools import partial

import numpy as np
import pytest

from ipu_core.reproduce import reversible
from ipu_core.reproduce.reversible import ReversibleTraining


def silent(words: str) -> None:
    pass


def test_both_kinds_of_layer_are_one_function() -> None:
    params, batch = reversible.initial(3, 1), (np.eye(64, dtype=np.float32)[:8], np.arange(8, dtype=np.int32))
    losses = [float(reversible.loss_of(layer)(params, batch)) for layer in reversible.LAYERS]
    assert losses[0] == losses[1]


def test_errors_are_of_the_order_of_a_rounding_and_grow() -> None:
    units = {"float32": 2.0**-24, "FP16.16, nearest": 2.0**-11, "bfloat16": 2.0**-8}
    for name, unit in units.items():
        few, many = (reversible.made_again(reversible.PRECISIONS[name], depth, 0) for depth in (1, 8))
        assert unit / 8 < few < 16 * unit
        assert few < many < 400 * unit


def test_what_stochastic_rounding_takes_away_is_not_what_it_added() -> None:
    nearest, stochastic = (reversible.made_again(reversible.PRECISIONS[f"FP16.16, {how}"], 8, 0)
                           for how in ("nearest", "stochastic"))  # fmt: skip
    assert 1.1 * nearest < stochastic < 4 * nearest


def test_gradients_of_float32_are_apart_by_roundings() -> None:
    same = reversible.gradient_errors("fp32.32", 4, 0)
    assert same.stored == 0
    assert 0 < same.apart < 1e-5
    assert same.reversible == same.apart
    half = reversible.gradient_errors("fp16.16/nearest", 4, 0)
    assert 1e-4 < half.stored < half.reversible < 1e-2


def test_the_end_is_the_mean_of_the_last_tenth() -> None:
    assert ReversibleTraining([9.0] * 90 + [1.0] * 10, 0.5).end == 1.0


def test_the_whole_runs_at_a_small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of less deep nets: those of 16 layers take ten times as long, and are what the study itself trains."""
    monkeypatch.setattr(reversible, "train", partial(reversible.train, depth=1))
    monkeypatch.setattr(reversible, "DEPTHS", (1, 4))
    assert [finding.holds for finding in reversible.run((0,), 0.01, silent)][:2] == [True, True]
