"""Joules: time times published power, parts by counts that add up to the total exactly, a table of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import Sgd, Target, TrainLoop, nn
from ipu_core.chip.energy import PICOJOULES, POWER, REST, energy_of


def test_the_parts_are_the_total_to_the_picojoule() -> None:
    counts = {"float16": 10**9 + 7, "tile memory": 12_345_678, "streaming": 999, "exchange": 10**9}
    made = energy_of(1e-3, (200.0, 300.0), counts)
    assert made.joules == pytest.approx((0.2, 0.3))
    assert made.picojoules == 200_000_000_000
    assert sum(part for _, part in made.parts) == made.picojoules
    parts = dict(made.parts)
    assert parts["float16"] == round(1.5 * (10**9 + 7))
    assert parts["streaming"] == round(243.75 * 999)
    assert "exchange" not in parts  # it has no source, and is in the rest
    assert parts[REST] > 0.98 * made.picojoules
    own = dict(energy_of(1e-3, (200.0, 300.0), counts, {**PICOJOULES, "exchange": 2.0}).parts)
    assert own["exchange"] == 2 * 10**9
    assert own[REST] == parts[REST] - 2 * 10**9


def test_counts_that_take_more_than_there_is_are_refused() -> None:
    with pytest.raises(ValueError, match=r"counts take 1\.5 J of 0\.001"):
        energy_of(1e-5, (100.0, 100.0), {"float16": 10**12})


@pytest.mark.parametrize(
    ("name", "joules"), [("gc200", (2.1, 3.15)), ("bow", (2.17, 2.17))], ids=["v1.1 on GC200", "v2.0 on Bow"]
)
def test_at_the_published_throughput_bert_takes_the_published_joules(name: str, joules: tuple[float, float]) -> None:
    # 95.2 and 144.0 sequences a second and chip: MLPerf v1.1 and v2.0, 16 chips
    rate = {"gc200": 95.2, "bow": 144.0}[name]
    assert energy_of(1 / rate, Target(name).power, {}).joules == pytest.approx(joules, rel=0.01)


def test_a_target_has_power_and_a_table_that_keywords_change() -> None:
    for name, watts in POWER.items():
        assert Target(name).power == watts
    own = Target("bow", power=(280, 300), energy={"exchange": 1.5, "float16": 0.9})
    assert own.power == (280.0, 300.0)
    assert dict(own.energy) == {**PICOJOULES, "exchange": 1.5, "float16": 0.9}
    assert Target("bow", power=250).power == (250.0, 250.0)
    assert hash(own) != hash(Target("bow"))


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ({"power": (300, 200)}, "the least first"),
        ({"power": 0}, "above 0"),
        ({"power": "much"}, "power must be watts"),
        ({"energy": {"float12": 1}}, "there is no energy of 'float12'; there are float8"),
        ({"energy": {"float16": -1}}, "0 or more"),
        *(
            ({"energy": given}, "energy must be picojoules by name")
            for given in (3, None, "x", [1], [("exchange", 1.0)])
        ),
    ],
)
def test_figures_that_are_none_are_refused(figure: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        Target("bow", **figure)


def test_a_profile_says_its_joules() -> None:
    x = np.ones((4, 8), np.float32)
    loop = TrainLoop(
        lambda params, batch: nn.mean(nn.matmul(batch, params)), np.ones((8, 2), np.float32), x, optimizer=Sgd(0.1),
        precision="fp32.32", target=Target("gc200", tiles=4),
    )  # fmt: skip
    profile = loop.profile
    assert profile is not None
    assert profile.joules == (200 * profile.seconds, 300 * profile.seconds)
    assert profile.to_json()["joules"] == list(profile.joules)
